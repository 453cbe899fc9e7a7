/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libFuzzer where that is missing: runs the target over a corpus, then over seeded changes of it.
 *
 *     mutate RUNS FOLDER      The same runs every time. Says which input was the last one when it crashes. */
#define _GNU_SOURCE
#include "target.h"

#include <dirent.h>
#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS_MAX = 256, SIZE_MAX_BYTES = 1 << 14 };

struct input {
    uint8_t *data;
    size_t size;
};

static struct input corpus[INPUTS_MAX];
static size_t inputs;
static uint8_t bytes[SIZE_MAX_BYTES];
static size_t size;
static long run;

static uint64_t draw(void)
{
    static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(draw() % limit) : 0;
}

static void tell(void)
{
    fprintf(stderr, "run %ld, an input of %zu bytes:", run, size);
    for (size_t i = 0; i < size; i++)
        fprintf(stderr, " %02x", bytes[i]);
    fputc('\n', stderr);
}

/* Makes room for `count` bytes at `at`, or takes them out. */
static void insert(size_t at, size_t count)
{
    count = count < sizeof bytes - size ? count : sizeof bytes - size;
    memmove(bytes + at + count, bytes + at, size - at);
    size += count;
}

static void cut(size_t at, size_t count)
{
    count = count < size - at ? count : size - at;
    memmove(bytes + at, bytes + at + count, size - at - count);
    size -= count;
}

static void overwrite_number(void)
{
    static const uint64_t numbers[] = {0,          1,          0x7f,       0x80,         0xff,           0xffff,
                                       0x7fffffff, 0x80000000, 0xffffffff, 0x100000000u, UINT64_MAX - 1, UINT64_MAX};
    const uint64_t number = below(2) ? numbers[below(sizeof numbers / sizeof *numbers)] : size - below(64);
    const size_t width = (size_t)1 << below(4), at = below(size);
    for (size_t i = 0; i < width && at + i < size; i++)
        bytes[at + i] = (uint8_t)(number >> (8 * i));
}

/* A stretch of another input, over what is there or in between. */
static void splice(void)
{
    const struct input *other = &corpus[below(inputs)];
    const size_t from = below(other->size), at = below(size + 1);
    size_t count = 1 + below(64);
    count = count < other->size - from ? count : other->size - from;
    if (below(2))
        insert(at, count);
    if (count > size - at)
        count = size - at;
    memcpy(bytes + at, other->data + from, count);
}

static void change(void)
{
    const size_t at = below(size);
    switch (size ? below(8) : 7) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        bytes[at] = (uint8_t)draw();
        break;
    case 2:
        bytes[at] = (uint8_t)('0' + below(10));
        break;
    case 3:
        overwrite_number();
        break;
    case 4:
        cut(at, 1 + below(16));
        break;
    case 5:
        size = at;
        break;
    case 6:
        bytes[at] = bytes[below(size)];
        break;
    default:
        splice();
    }
}

static void test_one(void)
{
    uint8_t *exact = malloc(size ? size : 1); /* a sanitizer sees what is read behind it */
    memcpy(exact, bytes, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void take(const struct input *input)
{
    size = input->size;
    memcpy(bytes, input->data, size);
}

static void load(const char *folder)
{
    struct dirent **names;
    const int count = scandir(folder, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        FILE *file = names[i]->d_name[0] != '.' && inputs < INPUTS_MAX ? fopen(path, "rb") : NULL;
        if (file) {
            size = fread(bytes, 1, sizeof bytes, file);
            corpus[inputs] = (struct input){malloc(size + 1), size};
            memcpy(corpus[inputs++].data, bytes, size);
            fclose(file);
        }
        free(names[i]);
    }
    if (count >= 0)
        free(names);
}

int main(int argc, char **argv)
{
    const long runs = argc == 3 ? atol(argv[1]) : 0;
    if (runs > 0)
        load(argv[2]);
    if (!inputs) {
        fprintf(stderr, "usage: %s RUNS FOLDER, with inputs in it\n", argv[0]);
        return 2;
    }
    __sanitizer_set_death_callback(tell);
    for (size_t i = 0; i < inputs; i++, run++) {
        take(&corpus[i]);
        test_one();
    }
    for (; run < runs; run++) {
        take(&corpus[below(inputs)]);
        for (size_t changes = 1 + below(6); changes; changes--)
            change();
        test_one();
    }
    for (size_t i = 0; i < inputs; i++)
        free(corpus[i].data);
    printf("%ld runs over %zu inputs\n", run, inputs);
    return 0;
}
