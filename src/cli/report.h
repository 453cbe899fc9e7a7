/* SPDX-License-Identifier: Apache-2.0 */
/* Data on standard output, each value named once: as JSON, as lines "name  value", or as rows of a table. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>
#include <stddef.h>

enum report_shape {
    REPORT_RECORD, /* JSON: an object */
    REPORT_LIST,   /* records; JSON: an array of objects */
    REPORT_TABLE   /* rows; JSON: an array of objects */
};

struct report {
    bool json;
    enum report_shape shape;
    int rows, fields, depth;
    size_t used, head_used;
    char line[1024], head[1024]; /* of a table */
};

void report_begin(struct report *report, enum report_shape shape, bool json);
void report_row(struct report *report); /* lists and tables: begins the next one */
void report_end(struct report *report);

/* Values that belong together; not in a table. */
void report_group(struct report *report, const char *name);
void report_group_end(struct report *report);

/* Names are as in JSON: text shows their underscores as spaces. `width` is that of a table's column, to the left when
 * it is negative. */
void report_text(struct report *report, const char *name, int width, const char *value); /* NULL: none */
void report_whole(struct report *report, const char *name, int width, long long value);
void report_real(struct report *report, const char *name, int width, int digits, double value); /* significant */
void report_truth(struct report *report, const char *name, int width, bool value);

#endif
