/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of the sparsemla tool share: their options, failures, and a context of the library. */
#ifndef CLI_H
#define CLI_H

#include "device.h"
#include "models.h"

#include <sparsemla/sparsemla.h>

enum {
    EXIT_FINE = 0,
    EXIT_FAILED = 1,    /* a call of the library failed, a comparison did not hold, an entry is damaged */
    EXIT_WRONG_USE = 2, /* of the command line */
    EXIT_NOT_HERE = 77  /* this machine lacks a driver, a GPU or NVRTC that the command needs */
};

enum { MAX_LIST = 16 };

struct list {
    int count, values[MAX_LIST];
};

/* What the command line says; a command sees defaults for what it does not take. */
struct settings {
    const struct command *command;
    const char *action; /* of `cache` */
    const char *file;   /* of `replay` */
    const struct model *model;
    struct list archs, heads, tokens, formats; /* empty: not given */
    int topk;                                  /* 0: the model's */
    int q_dtype;                               /* sparse_mla_dtype; -1: the model's */
    int backend, profile;
    const char *cache, *nvrtc; /* NULL: where the library looks */
    bool json, share, verbose;
};

struct command {
    const char *name, *options; /* letters of the options that it takes */
    const char *required;       /* those of them that it cannot do without */
    const char *about;          /* one line */
    const char *actions;        /* comma-separated; NULL: none */
    int (*run)(const struct settings *settings);
    bool takes_file;
};

extern const struct command commands[]; /* ends with a name of NULL */

int run_bench(const struct settings *settings);
int run_cache(const struct settings *settings);
int run_explain(const struct settings *settings);
int run_info(const struct settings *settings);
int run_replay(const struct settings *settings);
int run_verify(const struct settings *settings);
int run_warm(const struct settings *settings);

/* argv[0] is the name of the command. Prints and exits on a mistake and for --help. */
struct settings parse_settings(const struct command *command, int argc, char **argv);
void print_usage(FILE *stream);

/* Where compiled kernels are kept, by the rules of sparsemla.h; to be freed, NULL: nowhere. */
char *cache_directory(const struct settings *settings);

/* Prints the library's sentence; the exit status for it. */
int report_failure(const struct settings *settings, sparse_mla_status status);

/* options of sparse_mla_create() as the command line has them; `cache` is what cache_directory() gave. */
void fill_options(const struct settings *settings, const char *cache, sparse_mla_options *options);

struct session {
    struct device device;
    sparse_mla_context *context;
};

/* A context and, unless the backend is the host, a GPU; an exit status, and on EXIT_FINE it must be closed. */
int session_open(struct session *session, const struct settings *settings);
void session_close(struct session *session);

/* The calls that a command line means: every format, number of heads and width, one after the other. */
int count_shapes(const struct settings *settings);
struct shape nth_shape(const struct settings *settings, int n, int tokens);

bool show_progress(int done, int of, const char *what); /* a bar, if standard error is a terminal */
void hide_progress(void);

#endif
