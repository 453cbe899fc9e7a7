/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_WIDTH = 26, INDENT = 2 };

static void print_string(const char *text)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    putchar('"');
}

static void add_cell(char *line, size_t size, size_t *used, int width, const char *text)
{
    const int added = snprintf(line + *used, size - *used, "%s%*s", *used ? "  " : "", width, text);
    if (added > 0)
        *used += (size_t)added < size - *used ? (size_t)added : size - *used - 1;
}

static void spaced(char *to, size_t size, const char *name)
{
    snprintf(to, size, "%s", name);
    for (char *c = to; *c; c++)
        if (*c == '_')
            *c = ' ';
}

/* What stands before a value of JSON. */
static void next_member(struct report *report, const char *name)
{
    printf("%s\n%*s", report->fields++ ? "," : "", INDENT * (report->depth + 1), "");
    if (name) {
        print_string(name);
        printf(": ");
    }
}

static void add(struct report *report, const char *name, int width, const char *value, bool quoted)
{
    char shown[64];
    spaced(shown, sizeof shown, name);
    if (report->json) {
        next_member(report, name);
        if (quoted)
            print_string(value);
        else
            fputs(value, stdout);
    } else if (report->shape == REPORT_TABLE) {
        const int length = (int)strlen(shown), least = width < 0 ? -length : length;
        const int wide = width < 0 ? (width < least ? width : least) : (width > least ? width : least);
        add_cell(report->line, sizeof report->line, &report->used, wide, value);
        if (report->rows == 1)
            add_cell(report->head, sizeof report->head, &report->head_used, wide, shown);
    } else {
        printf("%*s%-*s %s\n", INDENT * report->depth, "", NAME_WIDTH - INDENT * report->depth, shown, value);
    }
}

static void print_line(char *line, size_t used)
{
    while (used && line[used - 1] == ' ')
        used--;
    printf("%.*s\n", (int)used, line);
}

static void end_row(struct report *report)
{
    if (report->json && report->rows) {
        report->depth--;
        printf("\n%*s}", INDENT * (report->depth + 1), "");
    } else if (report->shape == REPORT_TABLE && report->rows) {
        if (report->rows == 1)
            print_line(report->head, report->head_used);
        print_line(report->line, report->used);
        fflush(stdout);
    }
}

void report_begin(struct report *report, enum report_shape shape, bool json)
{
    *report = (struct report){.json = json, .shape = shape};
    if (json)
        putchar(shape == REPORT_RECORD ? '{' : '[');
}

void report_row(struct report *report)
{
    end_row(report);
    if (report->json) {
        report->fields = report->rows;
        next_member(report, NULL);
        putchar('{');
        report->depth++;
    } else if (report->shape == REPORT_LIST && report->rows) {
        putchar('\n');
    }
    report->rows++;
    report->fields = 0;
    report->used = 0;
}

void report_end(struct report *report)
{
    if (report->shape != REPORT_RECORD)
        end_row(report);
    if (report->json)
        printf("\n%c\n", report->shape == REPORT_RECORD ? '}' : ']');
}

void report_group(struct report *report, const char *name)
{
    char shown[64];
    spaced(shown, sizeof shown, name);
    if (report->json) {
        next_member(report, name);
        putchar('{');
        report->fields = 0;
    } else {
        printf("%*s%s\n", INDENT * report->depth, "", shown);
    }
    report->depth++;
}

void report_group_end(struct report *report)
{
    report->depth--;
    if (report->json)
        printf("\n%*s}", INDENT * (report->depth + 1), "");
    report->fields = 1;
}

void report_text(struct report *report, const char *name, int width, const char *value)
{
    add(report, name, width, value ? value : report->json ? "null" : "-", value != NULL);
}

void report_whole(struct report *report, const char *name, int width, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    add(report, name, width, text, false);
}

void report_real(struct report *report, const char *name, int width, int digits, double value)
{
    char text[48];
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (isfinite(value) || !report->json)
        add(report, name, width, text, false);
    else
        add(report, name, width, "null", false);
}

void report_truth(struct report *report, const char *name, int width, bool value)
{
    add(report, name, width, report->json ? value ? "true" : "false" : value ? "yes" : "no", false);
}
