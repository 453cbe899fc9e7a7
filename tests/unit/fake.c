/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct fake_world fake;

static sparse_mla_status open_driver(struct smla_driver *driver)
{
    if (fake.driver_status != SPARSE_MLA_OK)
        return smla_fail(fake.driver_status, "no fake driver");
    fake_driver(driver);
    return smla_driver_start(driver);
}

/* ---- NVRTC: a cubin says what it was made for ---- */

struct _nvrtcProgram {
    char cubin[64];
};

static int fake_get_version(int *major, int *minor)
{
    *major = fake.nvrtc_version / 1000;
    *minor = fake.nvrtc_version % 1000 / 10;
    return SMLA_NVRTC_SUCCESS;
}

static const char *fake_get_error_string(int result)
{
    return result == SMLA_NVRTC_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}

static int fake_get_num_supported_archs(int *count)
{
    for (*count = 0; *count < 4 && fake.archs[*count]; ++*count)
        ;
    return SMLA_NVRTC_SUCCESS;
}

static int fake_get_supported_archs(int *archs)
{
    for (int i = 0; i < 4 && fake.archs[i]; i++)
        archs[i] = fake.archs[i];
    return SMLA_NVRTC_SUCCESS;
}

static int fake_create_program(struct _nvrtcProgram **program, const char *source, const char *name, int num_headers,
                               const char *const *headers, const char *const *header_names)
{
    (void)headers, (void)header_names;
    *program = calloc(1, sizeof **program);
    return *program && source && name && num_headers > 0 ? SMLA_NVRTC_SUCCESS : SMLA_NVRTC_OUT_OF_MEMORY;
}

static int fake_destroy_program(struct _nvrtcProgram **program)
{
    free(*program);
    *program = NULL;
    return SMLA_NVRTC_SUCCESS;
}

static int fake_compile_program(struct _nvrtcProgram *program, int num_options, const char *const *options)
{
    const struct timespec pause = {.tv_nsec = fake.compile_ms * 1000000L};
    const char *arch = "?";
    int number = atomic_fetch_add(&fake.compiles, 1) + 1;
    nanosleep(&pause, NULL);
    fake.options[0] = 0;
    for (int i = 0; i < num_options; i++) {
        strcat(strcat(fake.options, options[i]), "\n");
        if (strncmp(options[i], "-arch=", 6) == 0)
            arch = options[i] + 6;
    }
    snprintf(program->cubin, sizeof program->cubin, "cubin %s #%d", arch, number);
    return fake.compile_result;
}

static int fake_get_cubin_size(struct _nvrtcProgram *program, size_t *size)
{
    *size = strlen(program->cubin) + 1;
    return SMLA_NVRTC_SUCCESS;
}

static int fake_get_cubin(struct _nvrtcProgram *program, char *cubin)
{
    strcpy(cubin, program->cubin);
    return SMLA_NVRTC_SUCCESS;
}

static const char output[] = "root.cu(1): note\nroot.cu(2): error: fake\nmore\n";

static int fake_get_program_log_size(struct _nvrtcProgram *program, size_t *size)
{
    (void)program;
    *size = fake.compile_result ? sizeof output : 1;
    return SMLA_NVRTC_SUCCESS;
}

static int fake_get_program_log(struct _nvrtcProgram *program, char *log)
{
    (void)program;
    strcpy(log, output);
    return SMLA_NVRTC_SUCCESS;
}

void fake_nvrtc(struct smla_nvrtc *nvrtc)
{
    *nvrtc = (struct smla_nvrtc){
        .get_version = fake_get_version,
        .get_error_string = fake_get_error_string,
        .get_num_supported_archs = fake_get_num_supported_archs,
        .get_supported_archs = fake_get_supported_archs,
        .create_program = fake_create_program,
        .destroy_program = fake_destroy_program,
        .compile_program = fake_compile_program,
        .get_cubin_size = fake_get_cubin_size,
        .get_cubin = fake_get_cubin,
        .get_program_log_size = fake_get_program_log_size,
        .get_program_log = fake_get_program_log,
    };
}

static sparse_mla_status open_nvrtc(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                    const struct smla_log *log)
{
    (void)path, (void)log;
    atomic_fetch_add(&fake.nvrtc_opens, 1);
    fake.nvrtc_for_driver = driver_version;
    if (fake.nvrtc_status != SPARSE_MLA_OK)
        return smla_fail(fake.nvrtc_status, "no fake NVRTC");
    fake_nvrtc(nvrtc);
    return smla_nvrtc_start(nvrtc, "fake");
}

/* ---- file system ---- */

static bool fails(const char *operation)
{
    atomic_fetch_add(&fake.fs_calls, 1);
    if (fake.fs_hook)
        fake.fs_hook(operation);
    if (!fake.fs_failing || strcmp(fake.fs_failing, operation) != 0)
        return false;
    errno = fake.fs_errno;
    return true;
}

static int fs_mkdir(const char *path, mode_t mode)
{
    return fails("mkdir") ? -1 : smla_fs_system.mkdir(path, mode);
}

static int fs_open_dir(const char *path)
{
    return fails("open_dir") ? -1 : smla_fs_system.open_dir(path);
}

static int fs_open(int dir, const char *name, int flags, mode_t mode)
{
    return fails("open") ? -1 : smla_fs_system.open(dir, name, flags, mode);
}

static int fs_close(int fd)
{
    int result = smla_fs_system.close(fd);
    return fails("close") ? -1 : result;
}

static int fs_fstat(int fd, struct stat *status)
{
    return fails("fstat") ? -1 : smla_fs_system.fstat(fd, status);
}

static int fs_stat_at(int dir, const char *name, struct stat *status)
{
    return fails("stat_at") ? -1 : smla_fs_system.stat_at(dir, name, status);
}

/* In small pieces, as a signal or a network file system may hand them out. */
static ssize_t fs_read(int fd, void *data, size_t size)
{
    return fails("read") ? -1 : smla_fs_system.read(fd, data, size < 1000 ? size : 1000);
}

static ssize_t fs_write(int fd, const void *data, size_t size)
{
    return fails("write") ? -1 : smla_fs_system.write(fd, data, size < 100 ? size : 100);
}

static int fs_fsync(int fd)
{
    return fails("fsync") ? -1 : smla_fs_system.fsync(fd);
}

static int fs_rename(int dir, const char *from, const char *to)
{
    return fails("rename") ? -1 : smla_fs_system.rename(dir, from, to);
}

static int fs_unlink(int dir, const char *name)
{
    return fails("unlink") ? -1 : smla_fs_system.unlink(dir, name);
}

static int fs_touch(int fd)
{
    return fails("touch") ? -1 : smla_fs_system.touch(fd);
}

static int fs_lock(int fd, uint64_t byte)
{
    return fails("lock") ? -1 : smla_fs_system.lock(fd, byte);
}

static int fs_unlock(int fd)
{
    return fails("unlock") ? -1 : smla_fs_system.unlock(fd);
}

static int fs_list(int dir, smla_fs_visit_fn visit, void *user)
{
    return fails("list") ? -1 : smla_fs_system.list(dir, visit, user);
}

const struct smla_fs fake_fs = {
    .mkdir = fs_mkdir,
    .open_dir = fs_open_dir,
    .open = fs_open,
    .close = fs_close,
    .fstat = fs_fstat,
    .stat_at = fs_stat_at,
    .read = fs_read,
    .write = fs_write,
    .fsync = fs_fsync,
    .rename = fs_rename,
    .unlink = fs_unlink,
    .touch = fs_touch,
    .lock = fs_lock,
    .unlock = fs_unlock,
    .list = fs_list,
};

/* ---- the rest ---- */

const char *fake_environment(const char *name)
{
    for (int i = 0; i < 8 && fake.environment[i][0]; i++)
        if (strcmp(fake.environment[i][0], name) == 0)
            return fake.environment[i][1];
    return NULL;
}

void fake_log_line(void *user, sparse_mla_log_level level, const char *message)
{
    (void)user;
    pthread_mutex_lock(&fake.mutex);
    fake.warnings += level == SPARSE_MLA_LOG_WARNING;
    snprintf(fake.text[fake.lines++ % FAKE_LINES], sizeof fake.text[0], "%s", message);
    pthread_mutex_unlock(&fake.mutex);
}

bool fake_logged(const char *text)
{
    for (int i = 0; i < FAKE_LINES; i++)
        if (strstr(fake.text[i], text))
            return true;
    return false;
}

void fake_reset(void)
{
    static char some_context;
    memset(&fake, 0, sizeof fake);
    pthread_mutex_init(&fake.mutex, NULL);
    fake.driver_version = 13000;
    fake.failing_result = 700;
    fake.refusal_result = SMLA_CU_INVALID_IMAGE;
    fake.capability = 90;
    fake.current = fake.of_stream = (struct CUctx_st *)&some_context;
    fake.nvrtc_version = 13000;
    fake.archs[0] = 80;
    fake.archs[1] = 90;
    fake.archs[2] = 120;
    fake.fs_errno = EIO;
}

void fake_make_dir(char path[64])
{
    strcpy(path, "/tmp/sparsemla-test-XXXXXX");
    if (!mkdtemp(path))
        abort();
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *ftw)
{
    (void)status, (void)kind, (void)ftw;
    return remove(path);
}

void fake_remove_dir(const char *path)
{
    (void)nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const struct smla_log fake_log = {fake_log_line, NULL};
const struct smla_edges fake_edges = {&fake_fs, fake_environment, open_driver, open_nvrtc};

void *fake_address(uintptr_t number)
{
    return (void *)(number << 32);
}

void fake_glm5(sparse_mla_decode_args *args, sparse_mla_cache *cache)
{
    sparse_mla_cache_init(cache);
    cache->format = SPARSE_MLA_FP8_DS_MLA;
    cache->data = fake_address(1);
    cache->num_slots = 64000;
    cache->row_stride_bytes = 656;
    cache->page_stride_bytes = 64 * 656;
    cache->topk = 2048;
    cache->indices = fake_address(2);
    cache->indices_request_stride = cache->indices_token_stride = 2048;
    sparse_mla_decode_args_init(args);
    args->num_tokens = 4;
    args->num_heads = 8;
    args->latent_dim = args->value_dim = 512;
    args->rope_dim = 64;
    args->scale = 0.0625f;
    args->q_latent = fake_address(3);
    args->q_latent_head_stride = 576;
    args->q_latent_token_stride = args->q_latent_request_stride = 8 * 576;
    args->out = fake_address(4);
    args->out_head_stride = 512;
    args->out_token_stride = args->out_request_stride = 8 * 512;
    args->main_cache = cache;
    args->workspace = fake_address(5);
    args->workspace_size = (size_t)64 << 20;
}
