/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    char letter;
    const char *name, *argument, *help;
} table[] = {
    {'m', "model", "NAME", "one of the models below"},
    {'a', "arch", "LIST", "sm_80, sm_86, sm_90, sm_120 ...: what NVRTC can compile for"},
    {'h', "heads", "LIST", "heads on one GPU, 1 to 128; default: see the manual page"},
    {'t', "tokens", "LIST", "tokens of a call, 1 to 1048576; default 1"},
    {'f', "format", "LIST", "cache formats, of those below; default: the model's"},
    {'k', "topk", "N", "keys per token of the main cache; default: the model's"},
    {'q', "q-dtype", "TYPE", "bf16, f16 or f32; default: the model's"},
    {'b', "backend", "NAME", "cuda or host (the host backend in place of the GPU); default cuda"},
    {'p', "profile", "NAME", "code path: auto, sm80, sm89, sm90 or sm120; default auto"},
    {'c', "cache", "DIR", "directory of compiled kernels; default: where the library keeps them"},
    {'n', "nvrtc", "PATH", "libnvrtc.so to compile with; default: what the library finds"},
    {'s', "share", NULL, "make that directory and its files readable for every user"},
    {'j', "json", NULL, "print JSON"},
    {'v', "verbose", NULL, "print what the library logs, on standard error"},
};

enum { OPTIONS = sizeof table / sizeof *table, MAX_TOKENS = 1 << 20, MAX_TOPK = 1 << 20, HELP = 1 };

static void print_names(FILE *stream, const char *const *names)
{
    for (int i = 0; names[i]; i++)
        fprintf(stream, "%s%s", i ? ", " : "", names[i]);
}

static void print_models(FILE *stream)
{
    for (const struct model *model = models; model->name; model++)
        fprintf(stream, "%s%s", model == models ? "" : ", ", model->name);
}

void print_usage(FILE *stream)
{
    fputs("Usage: sparsemla COMMAND [OPTION...]\n\nCommands\n", stream);
    for (const struct command *command = commands; command->name; command++)
        fprintf(stream, "  %-8s  %s\n", command->name, command->about);
    fputs("\nsparsemla COMMAND --help names the options of a command; sparsemla --version the version.\n", stream);
}

static void print_command_usage(FILE *stream, const struct command *command)
{
    fprintf(stream, "Usage: sparsemla %s", command->name);
    if (command->actions) {
        fputc(' ', stream);
        for (const char *c = command->actions; *c; c++)
            fputc(*c == ',' ? '|' : *c, stream);
    }
    if (command->takes_file)
        fputs(" FILE", stream);
    for (int i = 0; i < OPTIONS; i++)
        if (strchr(command->required, table[i].letter))
            fprintf(stream, " --%s %s", table[i].name, table[i].argument);
    fprintf(stream, " [OPTION...]\n\n%c%s.\n\n", command->about[0] - 'a' + 'A', command->about + 1);
    for (int i = 0; i < OPTIONS; i++)
        if (strchr(command->options, table[i].letter))
            fprintf(stream, "  --%-8s %-5s %s\n", table[i].name, table[i].argument ? table[i].argument : "",
                    table[i].help);
    fprintf(stream, "  --%-8s %-5s %s\n", "help", "", "this text");
    if (strchr(command->options, 'm')) {
        fputs("\nModels\n", stream);
        for (const struct model *model = models; model->name; model++)
            fprintf(stream, "  %-18s %s\n", model->name, model->about);
    }
    if (strchr(command->options, 'f')) {
        fputs("\nFormats\n  ", stream);
        print_names(stream, format_names);
        fputc('\n', stream);
    }
    if (strchr(command->options, 'f'))
        fputs("\nThe words of a LIST are separated by commas.\n", stream);
}

static _Noreturn void refuse(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static _Noreturn void refuse(const struct command *command, const char *format, ...)
{
    va_list list;
    fprintf(stderr, "sparsemla %s: ", command->name);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputs("\n\n", stderr);
    print_command_usage(stderr, command);
    exit(EXIT_WRONG_USE);
}

/* `word` is what getopt_long() read last, unless letters behind it are left. */
static _Noreturn void refuse_option(const struct command *command, const char *word)
{
    const char letter[] = {'-', (char)optopt, 0};
    const bool is_long = !optopt || (strncmp(word, "--", 2) == 0 && strchr(word, '='));
    refuse(command, "the option is \"%s\"; see below for what is allowed", is_long ? word : letter);
}

static _Noreturn void refuse_name(const struct command *command, const char *option, const char *value, int length,
                                  const char *const *names)
{
    fprintf(stderr, "sparsemla %s: --%s is \"%.*s\"; allowed: ", command->name, option, length, value);
    if (names)
        print_names(stderr, names);
    else
        print_models(stderr);
    fputc('\n', stderr);
    exit(EXIT_WRONG_USE);
}

static int name_of(const struct command *command, const char *option, const char *value, int length,
                   const char *const *names)
{
    for (int i = 0; names[i]; i++)
        if (strlen(names[i]) == (size_t)length && strncmp(names[i], value, (size_t)length) == 0)
            return i;
    refuse_name(command, option, value, length, names);
}

static const struct model *model_of(const struct command *command, const char *value)
{
    for (const struct model *model = models; model->name; model++)
        if (strcmp(model->name, value) == 0)
            return model;
    refuse_name(command, "model", value, (int)strlen(value), NULL);
}

/* The number in the first `length` characters; a sentence and the end when it is none from 1 to `most`. */
static int number_of(const struct command *command, const char *option, const char *value, int length, int most)
{
    int64_t number = 0;
    int i = 0;
    for (; i < length && value[i] >= '0' && value[i] <= '9' && number <= most; i++)
        number = 10 * number + value[i] - '0';
    if (i < length || number < 1 || number > most)
        refuse(command, "--%s is \"%.*s\"; allowed: 1 to %d", option, length, value, most);
    return (int)number;
}

static int arch_of(const struct command *command, const char *value, int length)
{
    if (length < 5 || length > 6 || strncmp(value, "sm_", 3) != 0 ||
        strspn(value + 3, "0123456789") != (size_t)length - 3)
        refuse(command, "--arch is \"%.*s\"; allowed: sm_80 and higher, as in sm_120", length, value);
    return atoi(value + 3);
}

static struct list list_of(const struct command *command, char letter, const char *option, const char *text)
{
    struct list list = {0};
    for (;; text++) {
        const int length = (int)strcspn(text, ",");
        if (list.count == MAX_LIST)
            refuse(command, "--%s names more than %d; allowed: 1 to %d", option, MAX_LIST, MAX_LIST);
        list.values[list.count++] = letter == 'a' ? arch_of(command, text, length)
                                    : letter == 'f'
                                        ? name_of(command, option, text, length, format_names)
                                        : number_of(command, option, text, length, letter == 'h' ? 128 : MAX_TOKENS);
        text += length;
        if (!*text)
            return list;
    }
}

static void take(struct settings *settings, char letter, const char *option, const char *value)
{
    static const char *const backends[] = {"cuda", "host", NULL};
    static const char *const profiles[] = {"auto", "sm80", "sm89", "sm90", "sm120", NULL};
    const struct command *command = settings->command;
    const int length = value ? (int)strlen(value) : 0;
    struct list *const lists[] = {
        ['a'] = &settings->archs, ['h'] = &settings->heads, ['t'] = &settings->tokens, ['f'] = &settings->formats};
    switch (letter) {
    case 'm':
        settings->model = model_of(command, value);
        break;
    case 'k':
        settings->topk = number_of(command, option, value, length, MAX_TOPK);
        break;
    case 'q':
        settings->q_dtype = name_of(command, option, value, length, dtype_names);
        break;
    case 'b':
        settings->backend = name_of(command, option, value, length, backends);
        break;
    case 'p':
        settings->profile = name_of(command, option, value, length, profiles);
        break;
    case 'c':
    case 'n':
        if (!*value)
            refuse(command, "--%s is \"\"; allowed: a path", option);
        *(letter == 'c' ? &settings->cache : &settings->nvrtc) = value;
        break;
    case 's':
        settings->share = true;
        break;
    case 'j':
        settings->json = true;
        break;
    case 'v':
        settings->verbose = true;
        break;
    default:
        *lists[(unsigned char)letter] = list_of(command, letter, option, value);
    }
}

static bool is_action(const struct command *command, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = command->actions; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (length && strcspn(at, ",") == length && strncmp(at, word, length) == 0)
            return true;
    return false;
}

static void take_words(struct settings *settings, int argc, char **argv)
{
    const struct command *command = settings->command;
    if (command->actions) {
        settings->action = argc ? argv[0] : "";
        if (!is_action(command, settings->action))
            refuse(command, "the action is \"%s\"; allowed: %s", settings->action, command->actions);
        argc--;
        argv++;
    }
    if (command->takes_file) {
        if (!argc || !*argv[0])
            refuse(command, "FILE is missing; allowed: the path of a dumped call");
        settings->file = argv[0];
        argc--;
        argv++;
    }
    if (argc)
        refuse(command, "\"%s\" is one word too many; only options are allowed", argv[0]);
}

struct settings parse_settings(const struct command *command, int argc, char **argv)
{
    struct settings settings = {.command = command, .q_dtype = -1};
    struct option options[OPTIONS + 2] = {{"help", no_argument, NULL, HELP}};
    char given[OPTIONS + 1] = "";
    int letter, index, count = 1;
    for (int i = 0; i < OPTIONS; i++)
        if (strchr(command->options, table[i].letter))
            options[count++] = (struct option){table[i].name, table[i].argument ? required_argument : no_argument, NULL,
                                               table[i].letter};
    opterr = 0;
    while ((letter = getopt_long(argc, argv, ":", options, &index)) != -1) {
        if (letter == HELP) {
            print_command_usage(stdout, command);
            exit(EXIT_FINE);
        }
        if (letter == '?')
            refuse_option(command, argv[optind - 1]);
        if (letter == ':')
            refuse(command, "%s lacks its value", argv[optind - 1]);
        if (!strchr(given, letter))
            given[strlen(given)] = (char)letter;
        take(&settings, (char)letter, options[index].name, optarg);
    }
    take_words(&settings, argc - optind, argv + optind);
    for (int i = 0; i < OPTIONS; i++)
        if (strchr(command->required, table[i].letter) && !strchr(given, table[i].letter))
            refuse(command, "--%s is missing; allowed: %s", table[i].name, table[i].help);
    return settings;
}
