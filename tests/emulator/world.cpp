// SPDX-License-Identifier: Apache-2.0
// The driver and the NVRTC that the library is given. A "cubin" is a shared object that g++ makes of the kernel's
// sources; the driver opens it and runs its grids here.
#include "machine.h"

#include "emulator.h"
extern "C" {
#include "driver.h"
#include "nvrtc.h"
}

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void clear_report();
uint64_t emulator_seed;

// ---- the device

struct device_facts {
    int capability, multiprocessors, shared_per_block;
};
extern "C" {
sparse_mla_status emulator_open_driver(struct smla_driver *driver);
sparse_mla_status emulator_open_nvrtc(struct smla_nvrtc *nvrtc, const char *path, int driver_version,
                                      const struct smla_log *log);
const char *emulator_cache_dir(void);
}

static const device_facts devices[] = {{80, 108, 166912}, {89, 128, 101376}, {90, 132, 232448}, {120, 170, 101376}};
static device_facts device = devices[2];

void emulator_set_device(int capability, int multiprocessors)
{
    for (const device_facts &d : devices)
        if (d.capability == capability)
            device = d;
    if (multiprocessors)
        device.multiprocessors = multiprocessors;
}

void emulator_set_seed(uint64_t seed)
{
    emulator_seed = seed;
}

// ---- compiler

static std::string read_file(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

static void write_file(const std::string &path, const std::string &text)
{
    std::ofstream(path, std::ios::binary) << text;
}

struct _nvrtcProgram {
    std::map<std::string, std::string> files; // all but device.cuh
    std::string root, cubin, log;
};

// Of $EMULATOR_CACHE_DIR, for what the library does not know that a kernel depends on.
const char *emulator_cache_dir(void)
{
    static std::string directory;
    const char *parent = getenv("EMULATOR_CACHE_DIR");
    if (!parent || !*parent)
        return nullptr;
    std::string all;
    for (const char *file :
         {"/tests/emulator/device.cuh", "/tests/emulator/hooks.h", "/tests/emulator/world.cpp", "/src/number.h"})
        all += read_file(std::string(EMULATOR_ROOT) + file);
    directory = std::string(parent) + "/" + std::to_string(std::hash<std::string>()(all));
    return directory.c_str();
}

static int run_compiler(const std::string &directory, const std::string &root, const std::vector<std::string> &defines)
{
    std::string command = "cd '" + directory +
                          "' && " EMULATOR_CXX " -std=c++17 -O1 -g1 -fPIC -shared -x c++ -w "
                          "-fsanitize=thread --param tsan-instrument-func-entry-exit=0 -nostdlib "
                          "-I '" EMULATOR_ROOT "/tests/emulator' -I '" EMULATOR_ROOT "/src' -I '" EMULATOR_ROOT
                          "/include' "
                          "-o kernel.so";
    for (const std::string &define : defines)
        command += " " + define;
    command += " '" + root + "' -lm -lc > log 2>&1";
    return system(command.c_str());
}

static bool compile(_nvrtcProgram &program, const std::vector<std::string> &defines)
{
    char directory[] = "/tmp/sparsemla-emulator-XXXXXX";
    if (!mkdtemp(directory))
        return false;
    const std::string in = std::string(directory) + "/";
    for (const auto &[name, text] : program.files)
        write_file(in + name, text);
    const bool done = run_compiler(directory, program.root, defines) == 0;
    program.log = read_file(in + "log");
    program.cubin = done ? read_file(in + "kernel.so") : "";
    for (const char *name : {"log", "kernel.so"})
        remove((in + name).c_str());
    for (const auto &[name, text] : program.files)
        remove((in + name).c_str());
    rmdir(directory);
    return done;
}

static int get_version(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

static const char *get_error_string(int)
{
    return "g++ failed";
}

static int get_num_archs(int *count)
{
    *count = 4;
    return 0;
}

static int get_archs(int *archs)
{
    for (int i = 0; i < 4; i++)
        archs[i] = devices[i].capability;
    return 0;
}

static int create_program(_nvrtcProgram **out, const char *source, const char *name, int num_headers,
                          const char *const *headers, const char *const *names)
{
    const char *instead = getenv("EMULATOR_KERNELS");
    auto *program = new _nvrtcProgram;
    program->root = name;
    program->files[name] = source;
    for (int i = 0; i < num_headers; i++)
        program->files[names[i]] = headers[i];
    program->files.erase("device.cuh"); // the one of this folder is found instead
    if (instead && *instead)
        for (auto &[file, text] : program->files)
            text = read_file(std::string(instead) + "/" + file);
    *out = program;
    return 0;
}

static int destroy_program(_nvrtcProgram **program)
{
    delete *program;
    *program = nullptr;
    return 0;
}

static int compile_program(_nvrtcProgram *program, int count, const char *const *options)
{
    std::vector<std::string> defines;
    for (int i = 0; i < count; i++)
        if (strncmp(options[i], "-D", 2) == 0)
            defines.push_back(options[i]);
    return compile(*program, defines) ? SMLA_NVRTC_SUCCESS : SMLA_NVRTC_COMPILATION;
}

static int get_cubin_size(_nvrtcProgram *program, size_t *size)
{
    *size = program->cubin.size();
    return 0;
}

static int get_cubin(_nvrtcProgram *program, char *cubin)
{
    memcpy(cubin, program->cubin.data(), program->cubin.size());
    return 0;
}

static int get_log_size(_nvrtcProgram *program, size_t *size)
{
    *size = program->log.size() + 1;
    return 0;
}

static int get_log(_nvrtcProgram *program, char *log)
{
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}

sparse_mla_status emulator_open_nvrtc(struct smla_nvrtc *nvrtc, const char *, int, const struct smla_log *)
{
    *nvrtc = {13000,           get_version,     get_error_string, get_num_archs, get_archs,    create_program,
              destroy_program, compile_program, get_cubin_size,   get_cubin,     get_log_size, get_log};
    return SPARSE_MLA_OK;
}

// ---- modules

struct CUmod_st {
    void *library;
};
struct CUfunc_st {
    std::string name;
    void (*entry)(const void *);
    const emu_kernel *kernel;
};

static size_t size_of_image(const void *image)
{
    const auto *header = (const Elf64_Ehdr *)image;
    return header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
}

// From memory: the file that it comes from may be in a cache.
static void *open_image(const void *image, size_t size)
{
    const int file = memfd_create("kernel", 0);
    if (file < 0 || write(file, image, size) != (ssize_t)size)
        abort();
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), file); // also for addr2line
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "emulator: %s\n", dlerror());
    return library;
}

static int module_load(CUmod_st **module, const void *image)
{
    if (memcmp(image, ELFMAG, SELFMAG) != 0)
        return SMLA_CU_INVALID_IMAGE;
    void *library = open_image(image, size_of_image(image));
    *module = new CUmod_st{library};
    return library ? SMLA_CU_SUCCESS : SMLA_CU_INVALID_IMAGE;
}

static int module_unload(CUmod_st *)
{
    return 0;
}

static int module_get_function(CUfunc_st **function, CUmod_st *module, const char *name)
{
    void *entry = dlsym(module->library, (std::string(name) + "_entry").c_str());
    void *kernel = dlsym(module->library, (std::string(name) + "_kernel").c_str());
    if (!entry || !kernel)
        return 500;
    *function = new CUfunc_st{name, (void (*)(const void *))entry, (const emu_kernel *)kernel};
    return 0;
}

// ---- launches

struct limits {
    u32 shared_per_sm, shared_per_block, threads_per_sm, cluster;
};

static limits limits_of(int profile)
{
    if (profile == SPARSE_MLA_PROFILE_SM90)
        return {228 << 10, 227 << 10, 2048, 16};
    return {100 << 10, 99 << 10, 1536, profile == SPARSE_MLA_PROFILE_SM120 ? 8u : 1u};
}

static std::string broken_limit(const launch &l)
{
    const limits most = limits_of(l.kernel->profile);
    const u32 blocks = (u32)l.kernel->blocks_per_sm;
    char text[200] = "";
    if (l.threads != (u32)l.kernel->threads || l.threads % 32 != 0 || l.threads > 1024)
        snprintf(text, sizeof text, "%u threads, the kernel is bound to %d", l.threads, l.kernel->threads);
    else if (l.threads * blocks > most.threads_per_sm)
        snprintf(text, sizeof text, "%u blocks of %u threads: a multiprocessor has %u", blocks, l.threads,
                 most.threads_per_sm);
    else if (l.shared_bytes > most.shared_per_block || (l.shared_bytes + SHARED_BASE) * blocks > most.shared_per_sm)
        snprintf(text, sizeof text,
                 "%u blocks of %u and %u bytes of shared memory: a block may have %u, all of them %u", blocks,
                 l.shared_bytes, SHARED_BASE, most.shared_per_block, most.shared_per_sm);
    else if (l.cluster_y > most.cluster || l.grid_y % l.cluster_y != 0)
        snprintf(text, sizeof text, "clusters of %u out of %u: they may have %u", l.cluster_y, l.grid_y, most.cluster);
    else if (l.grid_x == 0 || l.grid_y == 0 || l.grid_y > 65535)
        snprintf(text, sizeof text, "a grid of %u by %u", l.grid_x, l.grid_y);
    return text;
}

static bool run(launch &l)
{
    clear_report();
    l.random = emulator_seed;
    return run_launch(l, broken_limit(l));
}

static int launch_kernel(const struct smla_cu_launch_config *config, CUfunc_st *function, void **params, void **)
{
    launch l = {};
    l.name = function->name.c_str();
    l.entry = function->entry;
    l.kernel = function->kernel;
    l.params.assign((uint8_t *)params[0], (uint8_t *)params[0] + function->kernel->params_bytes);
    l.grid_x = config->grid_x;
    l.grid_y = config->grid_y;
    l.cluster_y = 1;
    for (unsigned i = 0; i < config->num_attributes; i++) {
        if (config->attributes[i].id == SMLA_CU_LAUNCH_CLUSTER_DIMENSION)
            l.cluster_y = config->attributes[i].value.cluster.y;
        else
            l.overlapped = config->attributes[i].value.allowed != 0;
    }
    l.threads = config->block_x;
    l.shared_bytes = config->shared_bytes;
    return run(l) ? SMLA_CU_SUCCESS : 719;
}

// ---- the rest of the driver

static int succeed_init(unsigned)
{
    return 0;
}

static int driver_version(int *version)
{
    *version = 13000;
    return 0;
}

static int get_error_name(int, const char **name)
{
    *name = "the emulator has made a report";
    return 0;
}

static int get_attribute(int *value, int attribute, int)
{
    switch (attribute) {
    case SMLA_CU_MULTIPROCESSOR_COUNT:
        *value = device.multiprocessors;
        return 0;
    case SMLA_CU_COMPUTE_CAPABILITY_MAJOR:
        *value = device.capability / 10;
        return 0;
    case SMLA_CU_COMPUTE_CAPABILITY_MINOR:
        *value = device.capability % 10;
        return 0;
    case SMLA_CU_SHARED_PER_BLOCK_OPTIN:
        *value = device.shared_per_block;
        return 0;
    default:
        return 1;
    }
}

static int get_name(char *name, int length, int)
{
    snprintf(name, (size_t)length, "emulator");
    return 0;
}

static int get_context(CUctx_st **context)
{
    *context = (CUctx_st *)&device;
    return 0;
}

static int push_context(CUctx_st *)
{
    return 0;
}

static int get_device(int *number)
{
    *number = 0;
    return 0;
}

static int get_context_id(CUctx_st *, unsigned long long *id)
{
    *id = 1;
    return 0;
}

static int stream_context(CUstream_st *, CUctx_st **context)
{
    return get_context(context);
}

static int is_capturing(CUstream_st *, int *status)
{
    *status = SMLA_CU_CAPTURE_NONE;
    return 0;
}

static int get_function_attribute(int *value, int, CUfunc_st *)
{
    *value = 255;
    return 0;
}

static int set_function_attribute(CUfunc_st *, int, int)
{
    return 0;
}

static int set_memory(unsigned long long pointer, unsigned char value, size_t bytes, CUstream_st *)
{
    if (!emulator_mark((void *)pointer, bytes, true))
        return 1;
    memset((void *)pointer, value, bytes);
    return 0;
}

sparse_mla_status emulator_open_driver(struct smla_driver *driver)
{
    *driver = {};
    driver->init = succeed_init;
    driver->driver_get_version = driver_version;
    driver->get_error_name = get_error_name;
    driver->device_get_attribute = get_attribute;
    driver->device_get_name = get_name;
    driver->ctx_get_current = get_context;
    driver->ctx_push_current = push_context;
    driver->ctx_pop_current = get_context;
    driver->ctx_get_device = get_device;
    driver->ctx_get_id = get_context_id;
    driver->stream_get_ctx = stream_context;
    driver->stream_is_capturing = is_capturing;
    driver->module_load_data = module_load;
    driver->module_unload = module_unload;
    driver->module_get_function = module_get_function;
    driver->func_get_attribute = get_function_attribute;
    driver->func_set_attribute = set_function_attribute;
    driver->launch_kernel_ex = launch_kernel;
    driver->memset_d8_async = set_memory;
    return smla_driver_start(driver);
}

// ---- kernels that are not the library's

void *emulator_compile(const char *path, int profile)
{
    _nvrtcProgram program;
    void *image_module = nullptr;
    program.root = "kernel.cu";
    program.files[program.root] = read_file(path);
    if (!compile(program, {"-DSMLA_PROFILE=" + std::to_string(profile)}))
        fprintf(stderr, "%s", program.log.c_str());
    else
        image_module = open_image(program.cubin.data(), program.cubin.size());
    return image_module;
}

bool emulator_run(void *module, const char *kernel, const struct emulator_grid *grid, const void *params)
{
    CUmod_st opened = {module};
    CUfunc_st *function;
    launch l = {};
    if (module_get_function(&function, &opened, kernel) != 0)
        abort();
    l.name = kernel;
    l.entry = function->entry;
    l.kernel = function->kernel;
    l.params.assign((const uint8_t *)params, (const uint8_t *)params + l.kernel->params_bytes);
    l.overlapped = grid->overlapped;
    l.grid_x = grid->x;
    l.grid_y = grid->y;
    l.cluster_y = grid->cluster_y;
    l.threads = grid->threads;
    l.shared_bytes = grid->shared_bytes;
    return run(l);
}
