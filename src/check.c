/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "format.h"
#include "plan.h"

#include <math.h>
#include <stdlib.h>

/* Of bytes or of elements of up to 8 bytes. Addresses of 64 bits then hold the sum of three such spans. */
#define SPAN_MAX 0x1p58

enum { OFFSET_MAX = 1 << 20, STRUCT_SIZE_MAX = 4096 };

sparse_mla_status smla_invalid_integer(const char *where, const char *name, int64_t value, const char *allowed)
{
    return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: %s", where, name, (long long)value, allowed);
}

sparse_mla_status smla_invalid_pointer(const char *where, const char *name, const void *pointer, const char *allowed)
{
    if (!pointer)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is NULL: %s", where, name, allowed);
    return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %p: %s", where, name, pointer, allowed);
}

sparse_mla_status smla_check_struct_size(size_t size, size_t known, size_t first, const char *name)
{
    if (size < first || size > STRUCT_SIZE_MAX || size % 8 != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s.struct_size is %zu: its _init() function sets it to %zu",
                         name, size, known);
    return SPARSE_MLA_OK;
}

sparse_mla_status smla_copy_struct(void *to, size_t known, size_t first, const void *from, const char *name)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    sparse_mla_status status = smla_check_struct_size(size, known, first, name);
    if (status != SPARSE_MLA_OK)
        return status;
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return smla_fail(SPARSE_MLA_UNSUPPORTED,
                             "%s.struct_size is %zu and byte %zu is not 0: this library knows the first %zu bytes",
                             name, size, i, known);
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return SPARSE_MLA_OK;
}

int smla_dtype_bytes(int32_t dtype)
{
    return dtype == SPARSE_MLA_F32 ? 4 : 2;
}

sparse_mla_status smla_check_dtype(const char *name, int32_t dtype)
{
    if (dtype < SPARSE_MLA_BF16 || dtype > SPARSE_MLA_F32)
        return smla_invalid_integer("", name, dtype, "0 (bf16), 1 (f16) and 2 (f32) are supported");
    return SPARSE_MLA_OK;
}

sparse_mla_status smla_check_pointers(const char *where, const struct smla_pointer *pointers, size_t count)
{
    for (const struct smla_pointer *p = pointers; p < pointers + count; p++) {
        if (!p->pointer && p->need == SMLA_REQUIRED)
            return smla_invalid_pointer(where, p->name, p->pointer, "it is required");
        if ((uintptr_t)p->pointer % (uintptr_t)p->alignment != 0)
            return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %p: it must be aligned to %d bytes", where, p->name,
                             p->pointer, p->alignment);
    }
    return SPARSE_MLA_OK;
}

sparse_mla_status smla_check_stride(const char *where, const char *name, int64_t stride, int64_t extent, int64_t least,
                                    int64_t multiple, const char *unit)
{
    if (extent <= 1)
        return SPARSE_MLA_OK;
    if (stride < least)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: it must be at least %lld, in %s", where, name,
                         (long long)stride, (long long)least, unit);
    if (stride % multiple != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: it must be a multiple of %lld, in %s", where, name,
                         (long long)stride, (long long)multiple, unit);
    if ((double)stride * (double)extent > SPAN_MAX)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%s%s is %lld: %lld such steps are more than 2^58 %s", where,
                         name, (long long)stride, (long long)extent, unit);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_dims(const struct smla_format *format, int32_t latent_dim, int32_t rope_dim)
{
    if (format->latent_dim && latent_dim != format->latent_dim)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "latent_dim is %d: %s has %d", latent_dim, format->name,
                         format->latent_dim);
    if (latent_dim < 64 || latent_dim > 512 || latent_dim % 64 != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "latent_dim is %d: %s has a multiple of 64 from 64 to 512",
                         latent_dim, format->name);
    if (rope_dim < 0 || rope_dim > 64 || rope_dim % 32 != 0 || !(format->rope_mask >> rope_dim / 32 & 1))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "rope_dim is %d: %s has %s", rope_dim, format->name,
                         format->rope_dims);
    return SPARSE_MLA_OK;
}

/* Fills in both offsets. */
static sparse_mla_status check_offsets(sparse_mla_cache *cache, const struct smla_format *format, int32_t latent_dim,
                                       int32_t rope_dim, const char *where)
{
    const int32_t latent_bytes = smla_format_run_bytes(format, latent_dim);
    const int32_t rope_bytes = smla_format_run_bytes(format, rope_dim);
    if (!format->flat_element_bytes) {
        if (cache->latent_offset_bytes != 0)
            return smla_invalid_integer(where, "latent_offset_bytes", cache->latent_offset_bytes,
                                        "only flat formats and q8_0 take another than 0");
        if (cache->rope_offset_bytes != -1)
            return smla_invalid_integer(where, "rope_offset_bytes", cache->rope_offset_bytes,
                                        "only flat formats and q8_0 take another than -1");
        cache->rope_offset_bytes = format->rope_offset;
        return SPARSE_MLA_OK;
    }
    if (cache->latent_offset_bytes < 0 || cache->latent_offset_bytes > OFFSET_MAX ||
        cache->latent_offset_bytes % format->alignment != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "%slatent_offset_bytes is %d: it must be a multiple of %d from 0 to 2^20", where,
                         cache->latent_offset_bytes, format->alignment);
    if (cache->rope_offset_bytes == -1)
        cache->rope_offset_bytes = cache->latent_offset_bytes + latent_bytes;
    if (cache->rope_offset_bytes < 0 || cache->rope_offset_bytes > 2 * OFFSET_MAX ||
        cache->rope_offset_bytes % format->alignment != 0)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "%srope_offset_bytes is %d: it must be -1 or a multiple of %d from 0 to 2^21", where,
                         cache->rope_offset_bytes, format->alignment);
    if (rope_bytes > 0 && cache->rope_offset_bytes < cache->latent_offset_bytes + latent_bytes &&
        cache->latent_offset_bytes < cache->rope_offset_bytes + rope_bytes)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "%srope_offset_bytes is %d: the rope would overlap the latent, which is bytes %d to %d", where,
                         cache->rope_offset_bytes, cache->latent_offset_bytes,
                         cache->latent_offset_bytes + latent_bytes - 1);
    return SPARSE_MLA_OK;
}

static sparse_mla_status check_pages(const sparse_mla_cache *cache, const struct smla_format *format,
                                     int32_t latent_dim, int32_t rope_dim, const char *where)
{
    const int64_t bytes = smla_format_read_bytes(cache, latent_dim, rope_dim);
    sparse_mla_status status;
    if (cache->num_slots < 0 || cache->num_slots > INT32_MAX)
        return smla_invalid_integer(where, "num_slots", cache->num_slots, "0 to 2^31 - 1 are supported");
    if (cache->page_size < 1)
        return smla_invalid_integer(where, "page_size", cache->page_size, "it must be at least 1");
    status = smla_check_stride(where, "row_stride_bytes", cache->row_stride_bytes, cache->page_size, bytes,
                               format->alignment, "bytes");
    if (status != SPARSE_MLA_OK)
        return status;
    /* Even where no second row is: the scales are found by it. */
    if (format->page_scale_bytes && cache->row_stride_bytes != format->record_bytes)
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT,
                         "%srow_stride_bytes is %lld: it must be %d, since the scales of %s follow the rows of a page",
                         where, (long long)cache->row_stride_bytes, format->record_bytes, format->name);
    return smla_check_stride(where, "page_stride_bytes", cache->page_stride_bytes,
                             (cache->num_slots + cache->page_size - 1) / cache->page_size,
                             smla_format_page_bytes(cache, latent_dim, rope_dim), format->alignment, "bytes");
}

sparse_mla_status smla_check_record(sparse_mla_cache *cache, int32_t latent_dim, int32_t rope_dim, const char *where)
{
    const struct smla_format *format = smla_format_get(cache->format);
    sparse_mla_status status;
    if (!format)
        return smla_invalid_integer(where, "format", cache->format, "it must be a sparse_mla_format, 0 to 6");
    status = check_dims(format, latent_dim, rope_dim);
    if (status == SPARSE_MLA_OK)
        status = check_offsets(cache, format, latent_dim, rope_dim, where);
    if (status == SPARSE_MLA_OK)
        status = check_pages(cache, format, latent_dim, rope_dim, where);
    if (status == SPARSE_MLA_OK && cache->format == SPARSE_MLA_FLAT_E4M3 && !isfinite(cache->tensor_scale))
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "%stensor_scale is %g: it must be finite", where,
                         (double)cache->tensor_scale);
    return status;
}

sparse_mla_status smla_check_target(const char *target, int *capability)
{
    const char *digits = target && strncmp(target, "sm_", 3) == 0 ? target + 3 : "";
    size_t length = strspn(digits, "0123456789");
    if (length < 2 || length > 3 || digits[length] || digits[0] == '0')
        return smla_fail(SPARSE_MLA_INVALID_ARGUMENT, "target is \"%s\"; allowed: \"sm_\" and a number, as in sm_120",
                         target ? target : "NULL");
    *capability = atoi(digits);
    if (smla_profile_of(*capability) == SPARSE_MLA_PROFILE_AUTO)
        return smla_fail(SPARSE_MLA_UNSUPPORTED, "target is \"%s\"; sm_80 or higher is needed", target);
    return SPARSE_MLA_OK;
}
