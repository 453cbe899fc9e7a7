/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the decoder example share: a context of the library, and memory where its backend works. */
#ifndef EXAMPLES_DECODER_H
#define EXAMPLES_DECODER_H

#include "attention_file.h"
#include "kv_cache.h"

struct session {
    struct device device;
    sparse_mla_context *context;
    void *workspace;
    size_t workspace_size;
};

/* Makes the kernel of these arguments ready, says which it is and how long that took, and gives the arguments a
 * workspace that serves any smaller num_tokens too. */
void session_prepare(struct session *session, sparse_mla_decode_args *args);

/* Ends the program with the library's sentence unless `status` is OK. */
void check_status(sparse_mla_status status);

const char *format_name(int format);

/* Whether the terminal wants to see progress; then one line on standard error that the next one overwrites. */
void show_progress(const char *what, int64_t done, int64_t of);

/* Runs the attention of the file with one cache format; prints a table. False when it is out of bounds. */
bool check_attention(struct session *session, const struct attention_file *file, int format);

/* Decodes token after token at GLM-5's size on synthetic data; prints the speed. */
void run_decode_loop(struct session *session, int format);

int compare_doubles(const void *a, const void *b);

#endif
