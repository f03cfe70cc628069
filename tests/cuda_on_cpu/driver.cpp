/*
 * driver.cpp - the emulated driver: devices, contexts, modules. Its GPUs are threads of this
 * process, their memory (memory.cpp) comes from malloc, so that AddressSanitizer watches kernels
 * and copies.
 *
 * The environment says what the GPUs are like; it is read whenever something depends on it, counts
 * of failures begin anew with each context:
 *   OATO_CUDA_ON_CPU_DEVICES=1       how many, 0 to 8
 *   OATO_CUDA_ON_CPU_CAPABILITY=90   compute capability, 75 for 7.5
 *   OATO_CUDA_ON_CPU_LOADS=0         what loading kernels gives, 209: there are none for the GPU
 *   OATO_CUDA_ON_CPU_COMPILED_FOR=90 what cuFuncGetAttribute says of the version of their PTX
 *   OATO_CUDA_ON_CPU_MEMORY=BYTES    of each, 1 GiB
 *   OATO_CUDA_ON_CPU_VERSION=13000   of the driver, or that of the compiler if that is later
 *   OATO_CUDA_ON_CPU_STREAM_WRITES=1 0: streams cannot write values to memory; 2: the driver says
 *                                    that they can, and then refuses
 *   OATO_CUDA_ON_CPU_PEERS=1         0: GPUs have no access to each other's memory
 *   OATO_CUDA_ON_CPU_COMPUTES=1      0: kernels write nothing and take no time, for who only wants
 *                                    to be told of them
 *   OATO_CUDA_ON_CPU_GRANULE=1       allocations take multiples of so many bytes: a real one, 2 MiB
 *   OATO_CUDA_ON_CPU_FAIL=launch=N,alloc=N,register=N,hang=N   the N-th launch ends with an illegal
 *                                    address, as a real one does: later, and all that follows fails
 *                                    too; the N-th allocation finds no memory, the N-th
 *                                    registration of host memory is refused; the N-th launch does
 *                                    not end while this is set. release=1: releasing a context does
 *                                    not return
 *
 * Stricter than a real one: the context must be current wherever work is given or memory is asked
 * for, copies read and write host memory when the stream comes to them, copies between GPUs want
 * access to be enabled, a kernel may overlap only with a kernel that stands right before it, and
 * what is not freed when its context is released stays allocated, for LeakSanitizer to find. The
 * default stream does not exist.
 */
#include "tests/cuda_on_cpu/driver.h"
#include "tests/cuda_on_cpu/grid.h"

#include <cstdio>
#include <cstdlib>
#include <pthread.h>

namespace cuda_on_cpu
{
namespace
{
enum {
    MULTIPROCESSORS = 4,
    L2_BYTES = 256 << 10,
    USUAL_SHARED_BYTES = 48 << 10,
    MOST_GRID_YZ = 65535,
    USUAL_VERSION = OATO_CUDA_MAJOR < 13 ? 13000 : OATO_CUDA_MAJOR * 1000,
    OVERLAP_CAPABILITY = 90,
    OVERLAP_CAPTURED = 12030, /* by drivers from this version on */
};

struct result_text {
    cu_result result;
    const char *name, *text;
};
const result_text result_texts[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const result_text *find_text(cu_result result)
{
    for (const result_text &row : result_texts)
        if (row.result == result)
            return &row;
    return nullptr;
}

size_t total_memory()
{
    return static_cast<size_t>(setting("MEMORY", 1l << 30));
}

/* Not a variable of the thread itself: all of those are static __shared__, see grid.cpp. */
pthread_key_t current_key()
{
    static const pthread_key_t key = [] {
        pthread_key_t made;
        if (pthread_key_create(&made, nullptr))
            std::abort();
        return made;
    }();
    return key;
}

} // namespace

long setting(const char *name, long otherwise)
{
    const char *value = std::getenv((std::string("OATO_CUDA_ON_CPU_") + name).c_str());
    return value && *value ? std::atol(value) : otherwise;
}

int device_count()
{
    return static_cast<int>(min(setting("DEVICES", 1), static_cast<long>(MOST_DEVICES)));
}

long failure_asked_for(const char *what)
{
    const char *all = std::getenv("OATO_CUDA_ON_CPU_FAIL");
    const char *at = all ? std::strstr(all, what) : nullptr;
    return at ? std::atol(at + std::strlen(what)) : 0;
}

/* CUDA C Programming Guide, technical specifications per compute capability. */
unsigned most_shared_bytes()
{
    long capability = setting("CAPABILITY", 90);
    unsigned kib = capability < 80                        ? 64
                   : capability == 80 || capability == 87 ? 163
                   : capability < 90 || capability >= 120 ? 99
                                                          : 227;
    return kib << 10;
}

cu_result current_context(cu_context *out)
{
    *out = static_cast<cu_context>(pthread_getspecific(current_key()));
    if (!*out || !(*out)->retained)
        return INVALID_CONTEXT;
    return (*out)->failure;
}
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

/* ------------------------------------------------------------------ driver and devices ------- */

cu_result on_cpu_init(unsigned flags)
{
    locked lock(state().lock);
    if (flags)
        return INVALID_VALUE;
    state().initialised = true;
    return device_count() ? OK : NO_DEVICE;
}

cu_result on_cpu_driver_version(int *version)
{
    *version = static_cast<int>(setting("VERSION", USUAL_VERSION));
    return OK;
}

cu_result on_cpu_device_count(int *count)
{
    locked lock(state().lock);
    *count = device_count();
    return state().initialised ? OK : NOT_INITIALIZED;
}

cu_result on_cpu_device_get(cu_device *device, int ordinal)
{
    locked lock(state().lock);
    if (!state().initialised)
        return NOT_INITIALIZED;
    *device = ordinal;
    return ordinal >= 0 && ordinal < device_count() ? OK : INVALID_DEVICE;
}

cu_result on_cpu_device_name(char *name, int size, cu_device)
{
    if (size < 1)
        return INVALID_VALUE;
    std::snprintf(name, static_cast<size_t>(size), "CUDA on CPU");
    return OK;
}

cu_result on_cpu_device_attribute(int *value, int attribute, cu_device)
{
    long capability = setting("CAPABILITY", 90);
    switch (attribute) {
    case CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN: *value = static_cast<int>(most_shared_bytes()); break;
    case CU_ATTRIBUTE_L2_BYTES: *value = L2_BYTES; break;
    case CU_ATTRIBUTE_MULTIPROCESSORS: *value = MULTIPROCESSORS; break;
    case CU_ATTRIBUTE_MAJOR: *value = static_cast<int>(capability / 10); break;
    case CU_ATTRIBUTE_MINOR: *value = static_cast<int>(capability % 10); break;
    case CU_ATTRIBUTE_STREAM_WRITES_64: *value = setting("STREAM_WRITES", 1) != 0; break;
    default: return INVALID_VALUE;
    }
    return OK;
}

cu_result on_cpu_device_memory(size_t *bytes, cu_device)
{
    *bytes = total_memory();
    return OK;
}

cu_result on_cpu_error_name(cu_result result, const char **text)
{
    const result_text *row = find_text(result);
    *text = row ? row->name : nullptr;
    return row ? OK : INVALID_VALUE;
}

cu_result on_cpu_error_text(cu_result result, const char **text)
{
    const result_text *row = find_text(result);
    *text = row ? row->text : nullptr;
    return row ? OK : INVALID_VALUE;
}

/* --------------------------------------------------------------------------- contexts -------- */

cu_result on_cpu_context_retain(cu_context *context, cu_device device)
{
    locked lock(state().lock);
    if (!state().initialised)
        return NOT_INITIALIZED;
    if (device < 0 || device >= device_count())
        return INVALID_DEVICE;
    cu_context gpu = &state().gpus[device];
    if (!gpu->retained++) {
        gpu->failure = OK;
        gpu->total = total_memory();
        gpu->granule = static_cast<size_t>(setting("GRANULE", 1));
        gpu->used = 0;
        gpu->memory.clear();
        gpu->peers.clear();
        gpu->launches = gpu->allocations = 0;
        gpu->bad_launch = failure_asked_for("launch=");
        gpu->hanging_launch = failure_asked_for("hang=");
        gpu->registrations = 0;
        gpu->handles = gpu->products = 0;
        gpu->bad_registration = failure_asked_for("register=");
        gpu->bad_allocation = failure_asked_for("alloc=");
    }
    *context = gpu;
    return OK;
}

cu_result on_cpu_context_release(cu_device device)
{
    locked lock(state().lock);
    if (device < 0 || device >= MOST_DEVICES)
        return INVALID_DEVICE;
    cu_context gpu = &state().gpus[device];
    if (!gpu->retained)
        return INVALID_CONTEXT;
    while (failure_asked_for("release="))
        state().changed.wait(lock);
    if (!--gpu->retained)
        gpu->memory.clear();
    return OK;
}

cu_result on_cpu_context_set(cu_context context)
{
    return pthread_setspecific(current_key(), context) ? OUT_OF_MEMORY : OK;
}

/* ------------------------------------------------------------------ modules and launches ----- */

cu_result on_cpu_module_load(cu_module *module, const void *image)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (!image)
        return INVALID_VALUE;
    if (const long result = setting("LOADS", OK))
        return static_cast<cu_result>(result);
    *module = new CUmod_st{gpu, {}};
    return OK;
}

cu_result on_cpu_module_unload(cu_module module)
{
    locked lock(state().lock);
    if (!module)
        return INVALID_HANDLE;
    wait_until_idle(module->gpu, lock);
    cu_result result = module->gpu->failure;
    delete module;
    return result;
}

cu_result on_cpu_module_function(cu_function *function, cu_module module, const char *name)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (!module || module->gpu != gpu)
        return INVALID_HANDLE;
    for (const kernel *k = first_kernel(); k; k = k->next) {
        if (std::strcmp(k->name, name) != 0)
            continue;
        CUfunc_st made = {k, gpu, USUAL_SHARED_BYTES};
        *function = &module->functions.emplace(name, made).first->second;
        return OK;
    }
    return NOT_FOUND;
}

/* Kernels here wait, as those compiled for a GPU of 90; a build for older ones is pretended. */
static int compiled_for()
{
    return static_cast<int>(setting("COMPILED_FOR", OVERLAP_CAPABILITY));
}

cu_result on_cpu_function_get(int *value, int attribute, cu_function function)
{
    locked lock(state().lock);
    if (!function)
        return INVALID_HANDLE;
    if (!value || attribute != CU_FUNCTION_PTX_VERSION)
        return INVALID_VALUE;
    *value = compiled_for();
    return OK;
}

cu_result on_cpu_function_set(cu_function function, int attribute, int value)
{
    locked lock(state().lock);
    if (!function)
        return INVALID_HANDLE;
    if (attribute != CU_FUNCTION_MAX_DYNAMIC_SHARED || value < 0 ||
        static_cast<unsigned>(value) > most_shared_bytes())
        return INVALID_VALUE;
    function->most_shared_bytes = static_cast<unsigned>(value);
    return OK;
}

/* The lock is held. */
static cu_result enqueue_kernel(cu_function function, const cu_launch &how, void **arguments,
                                void **extra)
{
    if (!function || function->gpu != how.stream->gpu)
        return INVALID_HANDLE;
    const kernel &k = *function->kernel;
    const dim3 grid = {how.grid_x, how.grid_y, how.grid_z};
    const unsigned threads = how.block_x, shared_bytes = how.shared_bytes;
    unsigned most_shared = max(function->most_shared_bytes, unsigned{USUAL_SHARED_BYTES});
    if (!grid.x || grid.x > INT32_MAX || !grid.y || grid.y > MOST_GRID_YZ || !grid.z ||
        grid.z > MOST_GRID_YZ || !threads || threads > min(k.threads, unsigned{BLOCK_THREADS}) ||
        how.block_y != 1 || how.block_z != 1 || shared_bytes > most_shared || !arguments || extra)
        return INVALID_VALUE;
    const unsigned char *bytes = static_cast<const unsigned char *>(arguments[0]);
    std::vector<unsigned char> copy(bytes, bytes + k.argument_bytes);
    const bool computes = setting("COMPUTES", 1);
    enqueue(how.stream, {WORK_LAUNCH, [=, &k] {
                             if (computes)
                                 run_grid(k, copy.data(), grid, threads, shared_bytes);
                             tell_kernel(k, grid, threads);
                         }});
    return OK;
}

cu_result on_cpu_launch(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        cu_stream stream, void **arguments, void **extra)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    return enqueue_kernel(
        function,
        {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, nullptr, 0},
        arguments, extra);
}

/* A kernel that may overlap with the one before it runs behind it all the same. */
cu_result on_cpu_launch_as(const cu_launch *how, cu_function function, void **arguments,
                           void **extra)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(how->stream))
        return result;
    bool overlaps = false;
    for (unsigned i = 0; i < how->n_attributes; i++) {
        if (how->attributes[i].id != CU_LAUNCH_OVERLAPS)
            return INVALID_VALUE;
        overlaps = overlaps || how->attributes[i].value.overlaps;
    }
    if (overlaps && setting("CAPABILITY", 90) < OVERLAP_CAPABILITY)
        return NOT_SUPPORTED;
    if (overlaps && compiled_for() < OVERLAP_CAPABILITY) /* a GPU would run it, too early */
        return ILLEGAL_STATE;
    if (overlaps && how->stream->capture && setting("VERSION", USUAL_VERSION) < OVERLAP_CAPTURED) {
        how->stream->capture_broken = true;
        return CAPTURE_UNSUPPORTED;
    }
    if (overlaps && !how->stream->after_launch)
        return ILLEGAL_STATE;
    return enqueue_kernel(function, *how, arguments, extra);
}
