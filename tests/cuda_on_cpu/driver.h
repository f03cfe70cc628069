/*
 * driver.h - what the files of the emulated driver share: the objects behind its handles, one lock
 * over all of them, and what a call must check first.
 */
#ifndef OATO_CUDA_ON_CPU_DRIVER_H
#define OATO_CUDA_ON_CPU_DRIVER_H

#include "tests/cuda_on_cpu/cuda_on_cpu.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* of a structure's name by a function's: not so in C */
#include "kernels/cuda/cuda_driver.h"
#pragma GCC diagnostic pop

/* The functions of the interface: on_cpu_NAME here, exported under their real names. */
#define DECLARE(member, symbol, arguments)                                                         \
    __attribute__((visibility("default"))) cu_result on_cpu_##member arguments __asm__(symbol);
CUDA_DRIVER_FUNCTIONS(DECLARE)
#undef DECLARE
}

/* The driver's results. */
enum {
    OK = CU_OK,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = CU_ERROR_OUT_OF_MEMORY,
    NOT_INITIALIZED = 3,
    NO_DEVICE = CU_ERROR_NO_DEVICE,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = CU_ERROR_NOT_FOUND,
    NOT_READY = CU_ERROR_NOT_READY,
    ILLEGAL_ADDRESS = 700,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    PEER_ACCESS_UNSUPPORTED = 217,
    PEER_ACCESS_ALREADY_ENABLED = CU_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED = 705,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_WRONG_THREAD = 908,
};

/* One record of an event: every record has its own, so that who waits for an earlier one does not
 * see a later one. */
struct mark {
    bool done;
    std::chrono::steady_clock::time_point when; /* done */
};

enum work_kind {
    WORK,        /* dropped once its GPU has failed */
    WORK_LAUNCH, /* the same, and counted for the failures that are asked for */
    WORK_ORDER,  /* done always, so that nobody waits forever */
};

struct work {
    work_kind kind;
    std::function<void()> run; /* by the stream's thread, without the lock */
};

/* A GPU with its primary context. */
struct CUctx_st {
    int retained;
    cu_result failure; /* sticky */
    size_t total, used, granule;
    std::map<cu_address, size_t> memory;
    std::set<cu_stream> streams;
    std::set<cu_context> peers;      /* whose memory it may read and write */
    long launches, allocations;      /* so far */
    long bad_launch, bad_allocation; /* the one that fails; 0: none */
    long hanging_launch;
    long registrations, bad_registration;
    long handles, products; /* of cuBLAS */
};

struct CUstream_st {
    cu_context gpu;
    std::deque<work> queue;
    bool busy, closing;
    cu_graph capture; /* NULL: work is queued as usual */
    bool capture_broken;
    bool after_launch; /* the latest that was enqueued is a kernel */
    std::thread::id capturer;
    std::thread worker;
};

struct CUevent_st {
    cu_context gpu;
    bool timed;
    std::shared_ptr<mark> latest; /* NULL: never recorded */
};

struct CUgraph_st {
    std::vector<work> works;
};

struct CUgraphExec_st {
    cu_context gpu;
    std::vector<work> works;
};

struct CUfunc_st {
    const cuda_on_cpu::kernel *kernel;
    cu_context gpu;
    unsigned most_shared_bytes;
};

struct CUmod_st {
    cu_context gpu;
    std::map<std::string, CUfunc_st> functions; /* those asked for */
};

namespace cuda_on_cpu
{
enum { MOST_DEVICES = 8 };

/* `lock` guards all objects; `changed` is told of everything that somebody may wait for. Never
 * destroyed: threads of streams that nobody destroyed still use it while the process ends. */
struct driver_state {
    std::mutex lock;
    std::condition_variable changed;
    CUctx_st gpus[MOST_DEVICES];
    std::map<uintptr_t, size_t> registered; /* host memory, of all GPUs */
    std::map<uintptr_t, size_t> mapped;     /* what host_alloc gave for GPUs to address */
    bool initialised;
};
driver_state &state();

typedef std::unique_lock<std::mutex> locked;

/* The context that this thread made current; the result says why there is none to be used. */
cu_result current_context(cu_context *out);
/* The same, for a call that uses this stream. */
cu_result check_stream(cu_stream stream);
/* True, and the capture is lost, when this thread captures: what it wants to do would wait. */
bool breaks_capture(cu_context gpu);
/* The lock is held. Into the graph while the stream captures. */
void enqueue(cu_stream stream, work what);
/* Waits for all that was enqueued. */
void wait_until_idle(cu_context gpu, locked &lock);
/* Whether one allocation holds all of it. The lock is held. */
bool is_inside(cu_context gpu, cu_address address, size_t bytes);
/* For cupti.cpp: a kernel, cuBLAS's kernel, or a copy or fill, was run by a stream. */
void tell_kernel(const kernel &k, dim3 grid, unsigned threads);
void tell_product();
void tell_transfer(uint32_t kind, size_t bytes);
/* A number of the environment, OATO_CUDA_ON_CPU_name. */
long setting(const char *name, long otherwise);
/* OATO_CUDA_ON_CPU_FAIL being "launch=3,alloc=7": the number after `what`, 0 without one. */
long failure_asked_for(const char *what);
int device_count();
/* Memory of one block that kernels may ask for, at most. */
unsigned most_shared_bytes();
} // namespace cuda_on_cpu

#endif
