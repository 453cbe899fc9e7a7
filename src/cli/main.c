/* SPDX-License-Identifier: Apache-2.0 */
/* sparsemla: looks into the library from a command line. A user of its public interface like any other. */
#include "cli.h"

#include <string.h>

const struct command commands[] = {
    {"info", "cnjv", "", "what this machine has and what the library can do with it", NULL, run_info, false},
    {"warm", "mahfkqcnsv", "ma", "compile a model's kernels for any architecture, without a GPU", NULL, run_warm,
     false},
    {"explain", "mhtfkqpcnjv", "m", "how a call would be run on this GPU", NULL, run_explain, false},
    {"verify", "bpcnjv", "", "compare the library with its host backend, under a minute", NULL, run_verify, false},
    {"bench", "mhtfkqbpcnjv", "m", "time a model's decode on this GPU", NULL, run_bench, false},
    {"replay", "bpcnjv", "", "run a dumped call again and compare the outputs", NULL, run_replay, .takes_file = true},
    {"cache", "cjv", "", "list, check or clear the directory of compiled kernels", "list,check,clear", run_cache,
     false},
    {0},
};

static void print_version(void)
{
    const int version = sparse_mla_version();
    printf("sparsemla %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_usage(stdout);
        return EXIT_FINE;
    }
    if (strcmp(name, "--version") == 0) {
        print_version();
        return EXIT_FINE;
    }
    for (const struct command *command = commands; command->name; command++)
        if (strcmp(command->name, name) == 0) {
            const struct settings settings = parse_settings(command, argc - 1, argv + 1);
            const int status = command->run(&settings);
            if (fflush(stdout) == 0 && !ferror(stdout))
                return status;
            fprintf(stderr, "sparsemla %s: standard output cannot be written\n", name);
            return EXIT_FAILED;
        }
    if (*name)
        fprintf(stderr, "sparsemla: %s is \"%s\"; see below for what is allowed\n\n",
                *name == '-' ? "the option" : "the command", name);
    print_usage(stderr);
    return EXIT_WRONG_USE;
}
