/*
 * cupti.cpp - the emulated GPU's CUPTI: records of what its streams ran, with times of a clock of
 * its own that moves by what is declared and by nothing else, so that who reads them knows what to
 * expect. A kernel takes OATO_CUDA_ON_CPU_KERNEL_NS (1000), one of cuBLAS
 * OATO_CUDA_ON_CPU_PRODUCT_NS (1000), a copy or fill
 * OATO_CUDA_ON_CPU_COPY_NS (500) and a nanosecond for 16 bytes, and between two of them pass
 * OATO_CUDA_ON_CPU_GAP_NS (700).
 *
 * As the real one may, it gives records back in an order other than that of their begin, in buffers
 * of which it needs several, and behind the members that we know are some that we do not.
 * OATO_CUDA_ON_CPU_CUPTI_LOSES=N: the N-th record since recording began is lost;
 * OATO_CUDA_ON_CPU_CUPTI_DROPS=N: and CUPTI says so.
 */
#include "tests/cuda_on_cpu/driver.h"

#include "kernels/cuda/cupti_records.h"

extern "C" {
#define DECLARE(member, symbol, arguments)                                                         \
    __attribute__((visibility("default"))) int on_cpu_cupti_##member arguments __asm__(symbol);
CUPTI_FUNCTIONS(DECLARE)
#undef DECLARE
}

namespace cuda_on_cpu
{
namespace
{
enum { KINDS = 64, INVALID_KIND = 21, INVALID_PARAMETER = 1, INVALID_OPERATION = 7 };
enum { RECORDS_OF_A_BUFFER = 100 };

struct kernel_record {
    cupti_kernel known;
    uint64_t more[10];
};
struct transfer_record {
    cupti_transfer known;
    uint64_t more[4];
};

struct recorder {
    std::mutex lock;
    bool enabled[KINDS];
    cupti_request_fn *request;
    cupti_complete_fn *complete;
    std::vector<kernel_record> records; /* or transfer_record in that place */
    uint64_t clock_ns;
    long seen;
    size_t dropped;
};

recorder &the_recorder()
{
    static recorder *const made = new recorder();
    return *made;
}

size_t size_of(uint32_t kind)
{
    return kind == CUPTI_KIND_CONCURRENT_KERNEL ? sizeof(kernel_record) : sizeof(transfer_record);
}

/* The lock is held: whether anybody wants the record, whose times go to begin and end. */
bool wanted(uint32_t kind, uint64_t ns, uint64_t *begin, uint64_t *end)
{
    recorder &r = the_recorder();
    r.clock_ns += static_cast<uint64_t>(setting("GAP_NS", 700));
    *begin = r.clock_ns;
    *end = r.clock_ns += ns;
    if (!r.enabled[kind] || ++r.seen == setting("CUPTI_LOSES", 0))
        return false;
    if (r.seen != setting("CUPTI_DROPS", 0))
        return true;
    r.dropped++;
    return false;
}

void tell(const char *name, dim3 grid, unsigned threads, long ns)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    kernel_record record = {};
    cupti_kernel &known = record.known;
    known.kind = CUPTI_KIND_CONCURRENT_KERNEL;
    known.grid[0] = static_cast<int32_t>(grid.x);
    known.grid[1] = static_cast<int32_t>(grid.y);
    known.grid[2] = static_cast<int32_t>(grid.z);
    known.block[0] = static_cast<int32_t>(threads);
    known.name = name;
    if (wanted(known.kind, static_cast<uint64_t>(ns), &known.begin_ns, &known.end_ns))
        r.records.push_back(record);
}
} // namespace

void tell_kernel(const kernel &k, dim3 grid, unsigned threads)
{
    tell(k.name, grid, threads, setting("KERNEL_NS", 1000));
}

void tell_product()
{
    tell("product", {1, 1, 1}, 1, setting("PRODUCT_NS", 1000));
}

void tell_transfer(uint32_t kind, size_t bytes)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    transfer_record record = {};
    cupti_transfer &known = record.known;
    known.kind = kind;
    known.bytes = bytes;
    if (!wanted(kind, static_cast<uint64_t>(setting("COPY_NS", 500)) + bytes / 16, &known.begin_ns,
                &known.end_ns))
        return;
    kernel_record room = {};
    std::memcpy(static_cast<void *>(&room), &record, sizeof record);
    r.records.push_back(room);
}
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

int on_cpu_cupti_register_callbacks(cupti_request_fn *request, cupti_complete_fn *complete)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    r.request = request;
    r.complete = complete;
    return request && complete ? int{CUPTI_OK} : int{INVALID_PARAMETER};
}

int on_cpu_cupti_enable(uint32_t kind)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    if (kind != CUPTI_KIND_CONCURRENT_KERNEL && kind != CUPTI_KIND_MEMCPY &&
        kind != CUPTI_KIND_MEMSET)
        return INVALID_KIND;
    r.enabled[kind] = true;
    r.seen = 0;
    return CUPTI_OK;
}

int on_cpu_cupti_disable(uint32_t kind)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    if (kind >= KINDS)
        return INVALID_KIND;
    r.enabled[kind] = false;
    return CUPTI_OK;
}

/* The latest records first. */
int on_cpu_cupti_flush_all(uint32_t)
{
    recorder &r = the_recorder();
    std::vector<kernel_record> records;
    {
        std::lock_guard<std::mutex> lock(r.lock);
        if (!r.complete)
            return INVALID_OPERATION;
        records.swap(r.records);
    }
    while (!records.empty()) {
        uint8_t *buffer = nullptr;
        size_t bytes = 0, most = 0, valid = 0;
        r.request(&buffer, &bytes, &most);
        if (reinterpret_cast<uintptr_t>(buffer) % CUPTI_ALIGNMENT)
            return INVALID_PARAMETER;
        for (int i = 0; i < RECORDS_OF_A_BUFFER && !records.empty(); i++) {
            const size_t size = size_of(records.back().known.kind);
            if (valid + size > bytes)
                break;
            std::memcpy(buffer + valid, &records.back(), size);
            valid += size;
            records.pop_back();
        }
        r.complete(nullptr, 0, buffer, bytes, valid);
        if (!valid) /* dropped: there is no room for any */
            return CUPTI_OK;
    }
    return CUPTI_OK;
}

int on_cpu_cupti_next_record(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *at = static_cast<uint8_t *>(*record);
    at = at ? at + size_of(reinterpret_cast<cupti_kernel *>(at)->kind) : buffer;
    if (at >= buffer + valid)
        return CUPTI_NO_MORE_RECORDS;
    *record = at;
    return CUPTI_OK;
}

int on_cpu_cupti_dropped(void *, uint32_t, size_t *records)
{
    recorder &r = the_recorder();
    std::lock_guard<std::mutex> lock(r.lock);
    *records = r.dropped;
    r.dropped = 0;
    return CUPTI_OK;
}

int on_cpu_cupti_result_text(int result, const char **text)
{
    *text = result == CUPTI_OK            ? "CUPTI_SUCCESS"
            : result == INVALID_KIND      ? "CUPTI_ERROR_INVALID_KIND"
            : result == INVALID_PARAMETER ? "CUPTI_ERROR_INVALID_PARAMETER"
                                          : "CUPTI_ERROR_INVALID_OPERATION";
    return CUPTI_OK;
}
