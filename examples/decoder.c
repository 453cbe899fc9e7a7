/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse MLA decode from a model's tensors to its attention output, then a decode loop at GLM-5's size. */
#define _POSIX_C_SOURCE 200809L
#include "decoder.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AUTO = -1 };

static const char usage[] =
    "Usage: decoder [FILE.safetensors] [--kv fp8|bf16] [--backend auto|cuda|host]\n"
    "\n"
    "Runs the attention of FILE through sparse_mla_decode() and compares it with the one stored there, then times a\n"
    "decode loop at GLM-5's size. Exits with status 1 on a mismatch.\n"
    "\n"
    "  FILE             default: " DECODER_DEFAULT_FILE "\n"
    "  --kv fp8|bf16    cache format: fp8_ds_mla or flat bf16; default: both, one after the other\n"
    "  --backend NAME   auto (the GPU when there is one, else the host), cuda or host\n"
    "  --help           this text\n";

struct options {
    const char *path;
    int format;  /* sparse_mla_format or AUTO: both */
    int backend; /* sparse_mla_backend or AUTO */
};

static int choose(const char *option, const char *value, const char *const names[], const int values[])
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], value) == 0)
            return values[i];
    fprintf(stderr, "decoder: --%s %s is not possible\n\n%s", option, value, usage);
    exit(2);
}

static struct options parse_options(int argc, char **argv)
{
    static const struct option table[] = {{"kv", required_argument, NULL, 'k'},
                                          {"backend", required_argument, NULL, 'b'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    static const char *const formats[] = {"fp8", "bf16", NULL}, *const backends[] = {"auto", "cuda", "host", NULL};
    static const int format_values[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16};
    static const int backend_values[] = {AUTO, SPARSE_MLA_BACKEND_CUDA, SPARSE_MLA_BACKEND_HOST};
    struct options options = {DECODER_DEFAULT_FILE, AUTO, AUTO};
    int letter;
    while ((letter = getopt_long(argc, argv, "h", table, NULL)) != -1) {
        if (letter == 'k') {
            options.format = choose("kv", optarg, formats, format_values);
        } else if (letter == 'b') {
            options.backend = choose("backend", optarg, backends, backend_values);
        } else {
            fputs(usage, letter == 'h' ? stdout : stderr);
            exit(letter == 'h' ? 0 : 2);
        }
    }
    if (optind < argc)
        options.path = argv[optind++];
    if (optind < argc) {
        fputs(usage, stderr);
        exit(2);
    }
    return options;
}

void check_status(sparse_mla_status status)
{
    if (status != SPARSE_MLA_OK)
        fail("decoder: %s: %s", sparse_mla_status_string(status), sparse_mla_last_error());
}

const char *format_name(int format)
{
    return format == SPARSE_MLA_FP8_DS_MLA ? "fp8_ds_mla" : "bf16";
}

void show_progress(const char *what, int64_t done, int64_t of)
{
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r%s %lld / %lld\033[K%s", what, (long long)done, (long long)of, done == of ? "\r\033[K" : "");
}

int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void session_open(struct session *session, int backend)
{
    sparse_mla_options options;
    sparse_mla_options_init(&options);
    memset(session, 0, sizeof *session);
    if (backend != SPARSE_MLA_BACKEND_HOST && device_open_gpu(&session->device)) {
        sparse_mla_device info;
        sparse_mla_device_init(&info);
        check_status(sparse_mla_create(&options, &session->context));
        check_status(sparse_mla_device_info(session->context, session->device.stream, &info));
        printf("backend: CUDA, %s, compute capability %d.%d\n", info.name, info.compute_capability / 10,
               info.compute_capability % 10);
        return;
    }
    if (backend == SPARSE_MLA_BACKEND_CUDA)
        fail("decoder: --backend cuda: no CUDA driver (libcuda.so.1) or no GPU");
    device_open_host(&session->device);
    options.backend = SPARSE_MLA_BACKEND_HOST;
    check_status(sparse_mla_create(&options, &session->context));
    printf("backend: host%s\n", backend == AUTO ? " (no CUDA driver or no GPU)" : "");
}

static void session_close(struct session *session)
{
    device_free(&session->device, session->workspace);
    sparse_mla_destroy(session->context);
    device_close(&session->device);
}

static void prepare_kernel(struct session *session, const sparse_mla_decode_args *args)
{
    static const char *const origin[] = {"compiled and loaded", "loaded from the disk cache", "already in memory"};
    struct CUstream_st *stream = session->device.stream;
    sparse_mla_plan_info plan;
    sparse_mla_plan_info_init(&plan);
    check_status(sparse_mla_decode_explain(session->context, args, stream, &plan));
    double start = now();
    check_status(sparse_mla_decode_prepare(session->context, args, stream));
    printf("kernel %s, %u splits: %s in %.1f ms\n", plan.variant, plan.num_splits, origin[plan.cached],
           1e3 * (now() - start));
}

void session_prepare(struct session *session, sparse_mla_decode_args *args)
{
    struct CUstream_st *stream = session->device.stream;
    size_t bytes = 0;
    if (session->device.gpu)
        prepare_kernel(session, args);
    check_status(sparse_mla_decode_workspace(session->context, args, stream, &bytes));
    if (bytes > session->workspace_size) {
        device_free(&session->device, session->workspace);
        session->workspace = device_alloc(&session->device, bytes);
        session->workspace_size = bytes;
        check_status(sparse_mla_workspace_init(session->context, session->workspace, bytes, stream));
    }
    args->workspace = session->workspace;
    args->workspace_size = session->workspace_size;
}

int main(int argc, char **argv)
{
    static const int formats[] = {SPARSE_MLA_FP8_DS_MLA, SPARSE_MLA_FLAT_BF16};
    struct options options = parse_options(argc, argv);
    struct attention_file file;
    struct session session;
    bool ok = true;
    attention_file_load(&file, options.path);
    printf("%s: %lld tokens, %lld heads, %lld keys, top-k %lld\n", options.path, (long long)file.tokens,
           (long long)file.heads, (long long)file.keys, (long long)file.topk);
    session_open(&session, options.backend);
    for (int i = 0; i < 2; i++)
        if (options.format == AUTO || options.format == formats[i])
            ok &= check_attention(&session, &file, formats[i]);
    for (int i = 0; ok && i < 2; i++)
        if (options.format == AUTO || options.format == formats[i])
            run_decode_loop(&session, formats[i]);
    session_close(&session);
    attention_file_free(&file);
    return ok ? 0 : 1;
}
