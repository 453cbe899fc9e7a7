/* SPDX-License-Identifier: Apache-2.0 */
/* Seventeen calls of the host backend, of every format twice, dumped to the directory that is given, or where the
 * environment says. All but every fourth meet faults. */
#define _DEFAULT_SOURCE
#include "host_world.h"

#include <stdio.h>

static void print_line(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    fprintf(stderr, "%d %s\n", (int)level, message);
}

int main(int argc, char **argv)
{
    sparse_mla_options options;
    sparse_mla_context *context;
    sparse_mla_options_init(&options);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    options.dump_dir = argc > 1 ? argv[1] : NULL;
    options.log = print_line;
    if (sparse_mla_create(&options, &context) != SPARSE_MLA_OK)
        return 1;
    for (int n = 0; n < 17; n++) {
        static const int32_t lengths[] = {1000, 3, 0, 55}, requests[] = {1, 0, 7, 1};
        const bool odd = n % 2;
        struct shape shape = small(n / 2 % FORMATS);
        struct world w;
        shape.caches = odd ? 2 : 1;
        shape.one_view = odd;
        shape.q_dtype = odd ? SPARSE_MLA_BF16 : SPARSE_MLA_F16;
        shape.out_dtype = odd ? SPARSE_MLA_BF16 : SPARSE_MLA_F32;
        shape.cache[0].page_size = odd ? 64 : 2;
        shape.cache[0].slots = n % 4 == 1 ? 128 : 150;
        shape.cache[0].table = odd;
        shape.cache[1].dense = true;
        build(&w, &shape);
        if (!odd) {
            set_lengths(&w, lengths, SPARSE_MLA_LENGTH_PER_TOKEN);
            w.indices[0][1] = shape.cache[0].slots;
            w.args.request_of_token = requests;
        }
        poison(&w);
        if (sparse_mla_decode(context, &w.args, NULL) != SPARSE_MLA_OK || (w.faults == 0) != (n % 4 == 1)) {
            fprintf(stderr, "call %d: %u faults; %s\n", n, w.faults, sparse_mla_last_error());
            return 1;
        }
        destroy(&w);
    }
    sparse_mla_destroy(context);
    return 0;
}
