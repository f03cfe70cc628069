/*
 * memory.cpp - the emulated driver's memory: of GPUs and of the host, copies and fills.
 */
#include "kernels/cuda/cupti_records.h"
#include "tests/cuda_on_cpu/driver.h"
#include "tests/cuda_on_cpu/grid.h"

#include <cstdlib>
#include <cstring>

namespace cuda_on_cpu
{
namespace
{
enum { ALIGNMENT = 256, PAGE = 4096 };

/* Whether one allocation holds all of it. */
template <class Address>
bool is_in_one(const std::map<Address, size_t> &allocations, Address address, size_t bytes)
{
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin())
        return false;
    --after;
    size_t offset = address - after->first;
    return offset <= after->second && bytes <= after->second - offset;
}

/* How much of a range of host memory is registered. */
enum registration { REGISTERED_NONE, REGISTERED_PART, REGISTERED_ALL };

registration registration_of(const void *p, size_t bytes)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p), end = begin + bytes;
    for (const auto &range : state().registered) {
        const uintptr_t from = range.first, to = from + range.second;
        if (begin >= from && end <= to)
            return REGISTERED_ALL;
        if (begin < to && from < end)
            return REGISTERED_PART;
    }
    return REGISTERED_NONE;
}

template <class T> T *pointer(cu_address address)
{
    return reinterpret_cast<T *>(address);
}

/* Garbage of its own, freed with free(). */
void *allocate(size_t alignment, size_t bytes)
{
    void *p;
    if (posix_memalign(&p, alignment, bytes))
        return nullptr;
    fill_with_garbage(p, bytes);
    return p;
}

/* host: the other side of a copy; of a fill nullptr. A copy lies in registered memory or outside of
 * it. */
cu_result enqueue_on_memory(cu_stream stream, cu_address address, size_t bytes, const void *host,
                            std::function<void()> run)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (!is_inside(stream->gpu, address, bytes) ||
        (host && registration_of(host, bytes) == REGISTERED_PART))
        return INVALID_VALUE;
    enqueue(stream, {WORK, [=] {
                         run();
                         tell_transfer(host ? CUPTI_KIND_MEMCPY : CUPTI_KIND_MEMSET, bytes);
                     }});
    return OK;
}
} // namespace

bool is_inside(cu_context gpu, cu_address address, size_t bytes)
{
    return is_in_one<cu_address>(gpu->memory, address, bytes);
}

} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

cu_result on_cpu_memory_info(size_t *free_bytes, size_t *total)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    *free_bytes = gpu->total - gpu->used;
    *total = gpu->total;
    return OK;
}

cu_result on_cpu_memory_alloc(cu_address *address, size_t bytes)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (breaks_capture(gpu))
        return CAPTURE_UNSUPPORTED;
    if (!bytes)
        return INVALID_VALUE;
    const size_t taken = (bytes + gpu->granule - 1) / gpu->granule * gpu->granule;
    if (++gpu->allocations == gpu->bad_allocation || taken > gpu->total - gpu->used)
        return OUT_OF_MEMORY;
    void *p = allocate(ALIGNMENT, bytes);
    if (!p)
        return OUT_OF_MEMORY;
    *address = reinterpret_cast<cu_address>(p);
    gpu->memory[*address] = bytes;
    gpu->used += taken;
    return OK;
}

/* As a real one, only once nothing that was enqueued can use it. */
cu_result on_cpu_memory_free(cu_address address)
{
    locked lock(state().lock);
    cu_context gpu;
    cu_result result = current_context(&gpu);
    if (result == INVALID_CONTEXT)
        return result;
    if (breaks_capture(gpu))
        return CAPTURE_UNSUPPORTED;
    wait_until_idle(gpu, lock);
    auto found = gpu->memory.find(address);
    if (found == gpu->memory.end())
        return INVALID_VALUE;
    gpu->used -= (found->second + gpu->granule - 1) / gpu->granule * gpu->granule;
    gpu->memory.erase(found);
    std::free(pointer<void>(address));
    return result;
}

cu_result on_cpu_host_alloc(void **p, size_t bytes, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (breaks_capture(gpu))
        return CAPTURE_UNSUPPORTED;
    if (!bytes || flags & ~static_cast<unsigned>(CU_HOST_PORTABLE | CU_HOST_DEVICEMAP | 4))
        return INVALID_VALUE;
    *p = allocate(PAGE, bytes);
    if (*p && flags & CU_HOST_DEVICEMAP)
        state().mapped[reinterpret_cast<uintptr_t>(*p)] = bytes;
    return *p ? OK : OUT_OF_MEMORY;
}

cu_result on_cpu_host_address(cu_address *address, void *p, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (flags || !is_in_one<uintptr_t>(state().mapped, reinterpret_cast<uintptr_t>(p), 1))
        return INVALID_VALUE;
    *address = reinterpret_cast<cu_address>(p);
    return OK;
}

cu_result on_cpu_host_free(void *p)
{
    locked lock(state().lock);
    cu_context gpu;
    cu_result result = current_context(&gpu);
    if (result == INVALID_CONTEXT)
        return result;
    wait_until_idle(gpu, lock);
    state().mapped.erase(reinterpret_cast<uintptr_t>(p));
    std::free(p);
    return result;
}

cu_result on_cpu_host_register(void *p, size_t bytes, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (!p || !bytes || flags & ~static_cast<unsigned>(CU_HOST_PORTABLE | CU_HOST_DEVICEMAP))
        return INVALID_VALUE;
    if (++gpu->registrations == gpu->bad_registration)
        return OUT_OF_MEMORY;
    if (registration_of(p, bytes) != REGISTERED_NONE)
        return ALREADY_REGISTERED;
    state().registered[reinterpret_cast<uintptr_t>(p)] = bytes;
    return OK;
}

cu_result on_cpu_host_unregister(void *p)
{
    locked lock(state().lock);
    cu_context gpu;
    cu_result result = current_context(&gpu);
    if (result == INVALID_CONTEXT)
        return result;
    wait_until_idle(gpu, lock);
    return state().registered.erase(reinterpret_cast<uintptr_t>(p)) ? result : NOT_REGISTERED;
}

cu_result on_cpu_upload(cu_address to, const void *from, size_t bytes, cu_stream stream)
{
    return enqueue_on_memory(stream, to, bytes, from,
                             [=] { std::memcpy(pointer<void>(to), from, bytes); });
}

cu_result on_cpu_download(void *to, cu_address from, size_t bytes, cu_stream stream)
{
    return enqueue_on_memory(stream, from, bytes, to,
                             [=] { std::memcpy(to, pointer<const void>(from), bytes); });
}

cu_result on_cpu_copy(cu_address to, cu_address from, size_t bytes, cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (!is_inside(stream->gpu, to, bytes) || !is_inside(stream->gpu, from, bytes))
        return INVALID_VALUE;
    enqueue(stream, {WORK, [=] { std::memcpy(pointer<void>(to), pointer<void>(from), bytes); }});
    return OK;
}

cu_result on_cpu_peer_can(int *can, cu_device device, cu_device other)
{
    locked lock(state().lock);
    if (device < 0 || device >= device_count() || other < 0 || other >= device_count())
        return INVALID_DEVICE;
    *can = device != other && setting("PEERS", 1);
    return OK;
}

cu_result on_cpu_peer_enable(cu_context other, unsigned flags)
{
    locked lock(state().lock);
    cu_context gpu;
    if (cu_result result = current_context(&gpu))
        return result;
    if (flags)
        return INVALID_VALUE;
    if (!other || other == gpu || !other->retained)
        return INVALID_CONTEXT;
    if (!setting("PEERS", 1))
        return PEER_ACCESS_UNSUPPORTED;
    return gpu->peers.insert(other).second ? OK : PEER_ACCESS_ALREADY_ENABLED;
}

cu_result on_cpu_peer_copy(cu_address to, cu_context to_gpu, cu_address from, cu_context from_gpu,
                           size_t bytes, cu_stream stream)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (!to_gpu || !from_gpu || (stream->gpu != to_gpu && stream->gpu != from_gpu))
        return INVALID_CONTEXT;
    if (!stream->gpu->peers.count(stream->gpu == to_gpu ? from_gpu : to_gpu))
        return PEER_ACCESS_NOT_ENABLED;
    if (!is_inside(to_gpu, to, bytes) || !is_inside(from_gpu, from, bytes))
        return INVALID_VALUE;
    enqueue(stream, {WORK, [=] { std::memcpy(pointer<void>(to), pointer<void>(from), bytes); }});
    return OK;
}

cu_result on_cpu_fill(cu_address to, unsigned char byte, size_t bytes, cu_stream stream)
{
    return enqueue_on_memory(stream, to, bytes, nullptr,
                             [=] { std::memset(pointer<void>(to), byte, bytes); });
}

cu_result on_cpu_stream_write(cu_stream stream, cu_address address, uint64_t value, unsigned flags)
{
    locked lock(state().lock);
    if (cu_result result = check_stream(stream))
        return result;
    if (setting("STREAM_WRITES", 1) != 1)
        return NOT_SUPPORTED;
    if (flags || address % sizeof value ||
        (!is_inside(stream->gpu, address, sizeof value) &&
         !is_in_one<uintptr_t>(state().mapped, static_cast<uintptr_t>(address), sizeof value)))
        return INVALID_VALUE;
    enqueue(stream,
            {WORK, [=] { __atomic_store_n(pointer<uint64_t>(address), value, __ATOMIC_RELEASE); }});
    return OK;
}
