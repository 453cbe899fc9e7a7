/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels beside decode on an emulated device: tools DEVICE [TEST], DEVICE being 80, 89, 90 or 120. The calls are
 * those of tests/gpu/tool_cases.h, small; every tensor is a device allocation of its own size. */
#include "emulator.h"

#include "../gpu/tool_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 16 };

static struct tensor {
    size_t at, bytes;
    unsigned char *device;
} tensors[MAX_TENSORS];
static int num_tensors;

static void drop_tensors(void)
{
    while (num_tensors)
        emulator_free(tensors[--num_tensors].device);
}

static void take_tensor(size_t at, size_t bytes)
{
    assert_true(num_tensors < MAX_TENSORS);
    tensors[num_tensors++] = (struct tensor){at, bytes, emulator_alloc_bytes(bytes, at % 256)};
}

static void *address_of(size_t at)
{
    int i = 0;
    while (i < num_tensors && at - tensors[i].at >= tensors[i].bytes)
        i++;
    assert_true(i < num_tensors);
    return tensors[i].device + (at - tensors[i].at);
}

static void upload(void)
{
    for (int i = 0; i < num_tensors; i++) {
        memcpy(tensors[i].device, tool_block.host + tensors[i].at, tensors[i].bytes);
        emulator_mark(tensors[i].device, tensors[i].bytes, true);
    }
}

static void download(void)
{
    memset(tool_block.read_back, 0xFF, tool_block.used);
    for (int i = 0; i < num_tensors; i++)
        memcpy(tool_block.read_back + tensors[i].at, tensors[i].device, tensors[i].bytes);
}

/* Another order of threads for every call. */
static void set_seed(void)
{
    static uint64_t calls;
    const char *only = getenv("EMULATOR_SEED");
    emulator_set_seed(only ? strtoull(only, NULL, 10) : ++calls);
}

struct tool_device tool_device = {NULL, NULL, NULL, drop_tensors, take_tensor, address_of, upload, download, set_seed};

static void test_append(void **state)
{
    static const int pages[] = {1, 61, 64};
    (void)state;
    for (const struct tool_record *r = tool_records; r->latent; r++)
        for (int rule = r->first_rule; rule <= r->last_rule; rule++)
            for (int dtype = SPARSE_MLA_BF16; dtype <= SPARSE_MLA_F32; dtype++)
                for (int numbers = 0; numbers < NUMBERS; numbers++)
                    tool_append_case(r->format, r->latent, r->rope, dtype, rule, 1 + tool_below(7),
                                     pages[tool_below(3)], numbers);
}

/* 2051 and 5000 columns need several rounds. */
static void test_slots(void **state)
{
    static const int widths[] = {1, 31, 77, 256, 2051, 5000}, pages[] = {1, 64, 61, 256};
    (void)state;
    for (int options = 0; options < SLOT_OPTIONS; options++)
        tool_slots_case(1 + options % 3, 1 + options / 16 % 2, widths[options % 6], pages[tool_below(4)], options);
}

static void test_merge(void **state)
{
    static const int parts[] = {1, 2, 3, 8, 33}, dims[] = {512, 64, 8, 1000, 576};
    (void)state;
    for (int i = 0; i < 90; i++) {
        const uint32_t flags = (uint32_t)tool_below(64) & (SPARSE_MLA_LSE_BASE2 | SPARSE_MLA_LSE_WITH_SINK |
                                                           SPARSE_MLA_LSE_EMPTY_POSINF | SPARSE_MLA_PART_LSE_BASE2);
        tool_merge_case(&(struct merge_spec){.parts = parts[i % 5],
                                             .tokens = 1 + tool_below(4),
                                             .heads = 1 + tool_below(9),
                                             .dim = dims[tool_below(5)],
                                             .part_dtype = i / 3 % 3,
                                             .out_dtype = i % 3,
                                             .flags = flags,
                                             .sink = tool_below(2),
                                             .lse = tool_below(3) != 0,
                                             .empty = tool_below(4)});
    }
}

static void print_warning(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    if (level == SPARSE_MLA_LOG_WARNING)
        fprintf(stderr, "warning: %s\n", message);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_merge),
    };
    sparse_mla_options options;
    if (argc < 2)
        return 2;
    sparse_mla_options_init(&options);
    options.log = print_warning;
    emulator_set_device(atoi(argv[1]), 0);
    if (emulator_create(&options, &tool_device.context) != SPARSE_MLA_OK)
        return 1;
    options.backend = SPARSE_MLA_BACKEND_HOST;
    if (emulator_create(&options, &tool_device.host) != SPARSE_MLA_OK)
        return 1;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
