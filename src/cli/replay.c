/* SPDX-License-Identifier: Apache-2.0 */
/* replay: runs a dumped call again and compares it with the outputs of then and with the host backend. */
#include "call_file.h"
#include "report.h"

#include <math.h>
#include <stdlib.h>

static const double lse_limit = 1e-3;

struct outputs {
    unsigned char *out; /* [T, H, value_dim] without gaps */
    float *lse;         /* [T, H]; NULL: none */
};

struct difference {
    int64_t count; /* of elements whose bits differ, lse included */
    double out, lse;
    int token, head, dim; /* of the largest; dim -1: lse */
    double largest, own, expected;
};

static double value_of(const unsigned char *at, int dtype)
{
    uint32_t bits = 0;
    float value;
    memcpy(&bits, at, (size_t)dtype_bytes(dtype));
    if (dtype == SPARSE_MLA_F16) {
        const int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
        const double size = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                            : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                           : ldexp(fraction, -24);
        return bits >> 15 ? -size : size;
    }
    if (dtype == SPARSE_MLA_BF16)
        bits <<= 16;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* How far two numbers are apart; NaN is NaN. */
static double distance(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    const double off = fabs(a - b);
    return isfinite(off) ? off : (double)INFINITY;
}

static void note(struct difference *found, double own, double expected, int token, int head, int dim)
{
    const double off = distance(own, expected);
    if (found->count++ && off <= found->largest)
        return;
    found->largest = off;
    found->own = own;
    found->expected = expected;
    found->token = token;
    found->head = head;
    found->dim = dim;
}

static double compare_row(struct difference *found, const sparse_mla_decode_args *args, const unsigned char *own,
                          const unsigned char *expected, int token, int head)
{
    const int bytes = dtype_bytes(args->out_dtype);
    double off = 0, size = 0;
    for (int dim = 0; dim < args->value_dim; dim++, own += bytes, expected += bytes) {
        const double a = value_of(own, args->out_dtype), b = value_of(expected, args->out_dtype);
        const double apart = distance(a, b);
        if (memcmp(own, expected, (size_t)bytes) != 0 && !(isnan(a) && isnan(b)))
            note(found, a, b, token, head, dim);
        off += apart * apart;
        size += isfinite(b) ? b * b : 0;
    }
    return off > 0 ? size > 0 ? sqrt(off / size) : (double)INFINITY : 0;
}

static struct difference compare(const sparse_mla_decode_args *args, const struct outputs *own,
                                 const struct outputs *expected)
{
    struct difference found = {0};
    const size_t row_bytes = (size_t)args->value_dim * (size_t)dtype_bytes(args->out_dtype);
    for (int token = 0; token < args->num_tokens; token++)
        for (int head = 0; head < args->num_heads; head++) {
            const size_t row = (size_t)token * (size_t)args->num_heads + (size_t)head;
            found.out = fmax(found.out, compare_row(&found, args, own->out + row * row_bytes,
                                                    expected->out + row * row_bytes, token, head));
            if (!own->lse || !expected->lse)
                continue;
            const double a = (double)own->lse[row], b = (double)expected->lse[row], off = distance(a, b);
            if (memcmp(&own->lse[row], &expected->lse[row], sizeof(float)) != 0 && !(isnan(a) && isnan(b)))
                note(&found, a, b, token, head, -1);
            found.lse = fmax(found.lse, off > 0 ? off / fmax(1, isfinite(b) ? fabs(b) : 1) : 0);
        }
    return found;
}

/* Without gaps, on the host. */
static struct outputs gather(const struct session *session, const struct loaded_call *loaded)
{
    const sparse_mla_decode_args *args = &loaded->args;
    const size_t element = (size_t)dtype_bytes(args->out_dtype), width = (size_t)args->value_dim * element;
    const size_t rows = (size_t)args->num_tokens * (size_t)args->num_heads;
    unsigned char *out = host_alloc(loaded->out_bytes);
    float *lse = host_alloc(loaded->lse_bytes);
    struct outputs outputs = {host_alloc(rows * width), args->lse ? host_alloc(rows * sizeof(float)) : NULL};
    device_read(&session->device, out, args->out, loaded->out_bytes);
    if (args->lse)
        device_read(&session->device, lse, args->lse, loaded->lse_bytes);
    for (int token = 0; token < args->num_tokens; token++)
        for (int head = 0; head < args->num_heads; head++) {
            const int64_t request = token / args->q_len, position = token % args->q_len;
            const size_t row = (size_t)token * (size_t)args->num_heads + (size_t)head;
            memcpy(outputs.out + row * width,
                   out + element * (size_t)(request * args->out_request_stride + position * args->out_token_stride +
                                            head * args->out_head_stride),
                   width);
            if (args->lse)
                outputs.lse[row] = lse[request * args->lse_request_stride + position * args->lse_token_stride +
                                       head * args->lse_head_stride];
        }
    free(out);
    free(lse);
    return outputs;
}

static void free_outputs(struct outputs *outputs)
{
    free(outputs->out);
    free(outputs->lse);
}

static sparse_mla_status run_side(const struct session *session, const struct call_file *file, struct outputs *outputs)
{
    struct loaded_call loaded;
    call_file_load(file, &session->device, &loaded);
    sparse_mla_decode_args *args = &loaded.args;
    sparse_mla_status status =
        sparse_mla_decode_workspace(session->context, args, session->device.stream, &args->workspace_size);
    if (status == SPARSE_MLA_OK && args->workspace_size) {
        args->workspace = loaded.owned[loaded.num_owned++] = device_alloc(&session->device, args->workspace_size);
        status =
            sparse_mla_workspace_init(session->context, args->workspace, args->workspace_size, session->device.stream);
    }
    if (status == SPARSE_MLA_OK)
        status = sparse_mla_decode(session->context, args, session->device.stream);
    if (status == SPARSE_MLA_OK)
        *outputs = gather(session, &loaded);
    call_file_unload(&session->device, &loaded);
    return status;
}

static void print_difference(const char *with, const struct difference *found)
{
    char dim[16] = "";
    if (found->dim >= 0)
        snprintf(dim, sizeof dim, ", %d", found->dim);
    fprintf(stderr, "sparsemla replay: %s[%d, %d%s] is %.9g; %s: %.9g\n", found->dim < 0 ? "lse" : "out", found->token,
            found->head, dim, found->own, with, found->expected);
}

/* `exact`: the same bits are due. */
static bool print_row(struct report *report, const char *with, const sparse_mla_decode_args *args,
                      const struct difference *found, bool exact)
{
    const double limit = args->out_dtype == SPARSE_MLA_BF16 ? 8e-3 : 2e-3;
    const bool passed = exact ? found->count == 0 : found->out <= limit && found->lse <= lse_limit;
    report_row(report);
    report_text(report, "compared_with", -13, with);
    report_real(report, "out_error", 9, 2, found->out);
    report_real(report, "lse_error", 9, 2, found->lse);
    report_whole(report, "differing", 9, (long long)found->count);
    report_whole(report, "token", 6, found->count ? found->token : -1);
    report_whole(report, "head", 4, found->count ? found->head : -1);
    if (found->count && found->dim < 0)
        report_text(report, "dim", 4, "lse");
    else
        report_whole(report, "dim", 4, found->count ? found->dim : -1);
    report_text(report, "due", -9, exact ? "same bits" : "close");
    report_text(report, "result", -6, passed ? "pass" : "FAIL");
    if (!passed)
        print_difference(with, found);
    return passed;
}

static int compare_all(const struct settings *settings, const struct call_file *file, const struct outputs *own,
                       const struct outputs *host)
{
    const bool on_host = settings->backend == SPARSE_MLA_BACKEND_HOST;
    struct report report;
    bool passed = true;
    report_begin(&report, REPORT_TABLE, settings->json);
    if (file->out) {
        float *lse = file->lse ? host_alloc(file->lse_bytes) : NULL;
        if (lse)
            memcpy(lse, file->lse, file->lse_bytes);
        const struct outputs stored = {(unsigned char *)file->out, lse};
        const struct difference found = compare(&file->args, own, &stored);
        passed &= print_row(&report, "stored", &file->args, &found, on_host && file->same_host);
        free(lse);
    }
    if (!on_host || !file->out) {
        const struct difference found = compare(&file->args, own, host);
        passed &= print_row(&report, "host backend", &file->args, &found, on_host);
    }
    report_end(&report);
    return passed ? EXIT_FINE : EXIT_FAILED;
}

static int replay(const struct settings *settings, const struct call_file *file)
{
    struct settings on_host = *settings;
    struct session session, host;
    struct outputs own = {0}, expected = {0};
    on_host.backend = SPARSE_MLA_BACKEND_HOST;
    int result = session_open(&session, settings);
    if (result != EXIT_FINE)
        return result;
    result = session_open(&host, &on_host);
    if (result == EXIT_FINE) {
        sparse_mla_status status = run_side(&host, file, &expected);
        if (status == SPARSE_MLA_OK)
            status = run_side(&session, file, &own);
        result =
            status == SPARSE_MLA_OK ? compare_all(settings, file, &own, &expected) : report_failure(settings, status);
        session_close(&host);
    }
    session_close(&session);
    free_outputs(&own);
    free_outputs(&expected);
    return result;
}

int run_replay(const struct settings *settings)
{
    struct call_file file;
    if (!call_file_open(&file, settings->file)) {
        fprintf(stderr, "sparsemla replay: %s\n", file.error);
        return EXIT_FAILED;
    }
    const int result = replay(settings, &file);
    call_file_close(&file);
    return result;
}
