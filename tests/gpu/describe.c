/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include <stdarg.h>
#include <stdio.h>

struct line {
    char *text;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void say(struct line *line, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int written = vsnprintf(line->text + line->used, line->size - line->used, format, list);
    va_end(list);
    if (written > 0)
        line->used += (size_t)written < line->size - line->used ? (size_t)written : line->size - line->used - 1;
}

static void say_integer(struct line *line, const char *name, long long value)
{
    if (value)
        say(line, " %s %lld", name, value);
}

static void say_real(struct line *line, const char *name, double value)
{
    if (value < 0 || value > 0)
        say(line, " %s %g", name, value);
}

static void say_keys(struct line *line, const char *name, const struct key_spec *keys)
{
    say(line, " %s {topk %d", name, keys->topk);
    say_integer(line, "slots", keys->slots);
    say_integer(line, "page", keys->page_size);
    say_integer(line, "record", keys->record);
    say_integer(line, "row_pad", keys->row_pad);
    say_integer(line, "page_pad", keys->page_pad);
    say_integer(line, "index_pad", keys->index_pad);
    say_real(line, "masked", keys->masked);
    say_real(line, "past", keys->past);
    say_integer(line, "lengths", keys->lengths);
    say_integer(line, "table", keys->table);
    say_integer(line, "dense", keys->dense);
    say_integer(line, "no_tail", keys->no_tail);
    say(line, "}");
}

void spec_describe(const struct spec *spec, char *text, size_t size)
{
    struct line line = {text, size, 0};
    say(&line, "format %d %d+%d tokens %d heads %d", spec->format, spec->latent, spec->rope, spec->tokens, spec->heads);
    say_integer(&line, "q_len", spec->q_len);
    say_integer(&line, "q_dtype", spec->q_dtype);
    say_integer(&line, "out_dtype", spec->out_dtype);
    say_keys(&line, "main", &spec->main);
    if (spec->extra.topk)
        say_keys(&line, "extra", &spec->extra);
    say_integer(&line, "scales", spec->scales);
    say_real(&line, "tensor_scale", spec->tensor_scale);
    say_real(&line, "key_size", spec->key_size);
    say_real(&line, "score_size", spec->score_size);
    say_real(&line, "nan_rows", spec->nan_rows);
    say_integer(&line, "clamp", spec->clamp);
    say_integer(&line, "q_layout", spec->q_layout);
    say_integer(&line, "q_views", spec->q_views);
    say_integer(&line, "out_layout", spec->out_layout);
    say_integer(&line, "lse_layout", spec->lse_layout);
    say_integer(&line, "requests", spec->requests);
    say_integer(&line, "sink", spec->sink);
    say_integer(&line, "no_lse", spec->no_lse);
    say_integer(&line, "no_faults", spec->no_faults);
    say_integer(&line, "odd_strides", spec->odd_strides);
    say_integer(&line, "flags", spec->flags);
    say(&line, " seed %llu", (unsigned long long)spec->seed);
}
