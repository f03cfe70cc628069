/*
 * grid.cpp - runs the blocks of a grid, the threads of a block as fibers of the calling thread.
 *
 * A fiber runs until it must wait; then the next one in the queue runs, without a system call. Who
 * arrives last at a meeting (a barrier of the block, an operation of a warp) completes it, puts the
 * others back into the queue and goes on. When the queue is empty before all fibers have returned,
 * they wait for each other: the process ends with a list of where. The order in which fibers are
 * queued turns round with every block and every barrier, so that a missing one shows.
 *
 * Fibers outlive blocks and launches: each waits in a loop for its next turn.
 */
#include "tests/cuda_on_cpu/grid.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <link.h>
#include <mutex>
#include <sys/mman.h>
#ifdef OATO_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

/* Saves the registers that a function must preserve on the stack and its pointer in *from, then
 * goes on where `to` was saved. */
extern "C" void cuda_on_cpu_switch(void **from, void *to);
#if defined __x86_64__
asm(R"(
    .text
    .hidden cuda_on_cpu_switch
    .globl cuda_on_cpu_switch
    .type cuda_on_cpu_switch, @function
cuda_on_cpu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");
enum { SAVED_WORDS = 8, SAVED_RETURN = 6 }; /* the last keeps the stack aligned at the entry */
#elif defined __aarch64__
asm(R"(
    .text
    .hidden cuda_on_cpu_switch
    .globl cuda_on_cpu_switch
    .type cuda_on_cpu_switch, %function
cuda_on_cpu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size cuda_on_cpu_switch, . - cuda_on_cpu_switch
)");
enum { SAVED_WORDS = 20, SAVED_RETURN = 11 };
#else
#error "fibers are written for x86-64 and 64-bit ARM"
#endif

namespace cuda_on_cpu
{
unsigned char *shared_room;
exchange exchanges[BLOCK_THREADS];
copies copies_of[BLOCK_THREADS];
int awaited_by[BLOCK_THREADS];

namespace
{
enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 64 << 10, WARPS = BLOCK_THREADS / WARP_LANES };

struct fiber {
    void *saved = nullptr; /* where it goes on */
    char *stack = nullptr; /* its lower end */
    size_t stack_bytes = 0;
    void *fake_stack = nullptr;  /* AddressSanitizer's */
    const char *waits = nullptr; /* where */
};

/* Lanes of a warp that have arrived at an operation, but not all of its mask. */
struct warp_meeting {
    const warp_operation *operation;
    uint32_t mask, arrived;
};
struct warp {
    uint32_t gone; /* lanes that have returned or never were */
    int meetings;
    warp_meeting meeting[WARP_LANES];
};

/* All of it belongs to the grid that runs; `one_grid` is held. */
std::mutex one_grid;
const kernel *kernels, *running_kernel;
const void *running_argument;
fiber host;                  /* the thread that runs the grid */
fiber fibers[BLOCK_THREADS]; /* made as they are needed */
unsigned fiber_count;
fiber *running, *previous;
unsigned living, block_count;
bool backwards;
warp warps[WARPS];
unsigned short queue[BLOCK_THREADS]; /* each fiber at most once */
unsigned queue_begin, queue_end;

struct {
    block_meeting meeting;
    unsigned arrived, true_votes;
    int result;
} barrier;

const char *const meeting_names[] = {"__syncthreads", "__syncthreads_or", "__syncthreads_and",
                                     "__syncthreads_count"};

void begin_message()
{
    std::fflush(stdout);
    std::fprintf(stderr, "cuda-on-cpu: kernel %s, block (%u, %u, %u), thread %u: ",
                 running_kernel ? running_kernel->name : "?", blockIdx.x, blockIdx.y, blockIdx.z,
                 threadIdx.x);
}

/* Every place where threads wait, with how many and the first of them. */
[[noreturn]] void fail_stuck()
{
    begin_message();
    std::fprintf(stderr, "threads wait for each other forever:\n");
    for (unsigned i = 0; i < blockDim.x; i++) {
        const char *place = fibers[i].waits;
        unsigned same = 0;
        bool first = place;
        for (unsigned j = 0; j < blockDim.x; j++) {
            same += fibers[j].waits == place;
            first = first && !(j < i && fibers[j].waits == place);
        }
        if (first)
            std::fprintf(stderr, "  %u at %s, the first is thread %u\n", same, place, i);
    }
    for (const warp &w : warps)
        for (int m = 0; m < w.meetings; m++)
            std::fprintf(stderr, "  warp %td: %s for lanes %08x, has %08x\n", &w - warps,
                         w.meeting[m].operation->name, w.meeting[m].mask, w.meeting[m].arrived);
    std::abort();
}

void enqueue(unsigned thread)
{
    fibers[thread].waits = nullptr;
    queue[queue_end++ % BLOCK_THREADS] = static_cast<unsigned short>(thread);
}

/* What a fiber does first when it goes on: tells the sanitizer on which stack it is. */
void arrive()
{
#ifdef OATO_ADDRESS_SANITIZER
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(running->fake_stack, &stack, &bytes);
    if (previous == &host) {
        host.stack = static_cast<char *>(const_cast<void *>(stack));
        host.stack_bytes = bytes;
    }
#endif
}

void go_to(fiber &next)
{
    previous = running;
    running = &next;
#ifdef OATO_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&previous->fake_stack, next.stack, next.stack_bytes);
#endif
    cuda_on_cpu_switch(&previous->saved, next.saved);
    arrive();
}

void go_to_next()
{
    if (queue_begin == queue_end) {
        if (living)
            fail_stuck();
        go_to(host);
        return;
    }
    unsigned thread = queue[queue_begin++ % BLOCK_THREADS];
    threadIdx.x = thread;
    go_to(fibers[thread]);
}

void open_barrier()
{
    barrier.result = barrier.meeting == MEET_AND  ? barrier.true_votes == barrier.arrived
                     : barrier.meeting == MEET_OR ? barrier.true_votes != 0
                                                  : static_cast<int>(barrier.true_votes);
    barrier.arrived = barrier.true_votes = 0;
    backwards = !backwards;
    const char *name = meeting_names[barrier.meeting];
    for (unsigned i = 0; i < blockDim.x; i++) {
        unsigned thread = backwards ? blockDim.x - 1 - i : i;
        if (fibers[thread].waits == name)
            enqueue(thread);
    }
}

/* The thread has returned from the kernel. */
void leave_block()
{
    unsigned thread = threadIdx.x, lane = 1u << thread % WARP_LANES;
    warp &w = warps[thread / WARP_LANES];
    if (copies_of[thread].n)
        fail("it returned with %d copies under way", copies_of[thread].n);
    if (awaited_by[thread] != 1)
        fail("it returned and waited %d times for the kernel before it", awaited_by[thread]);
    awaited_by[thread] = 0;
    for (int m = 0; m < w.meetings; m++)
        if (w.meeting[m].mask & lane)
            fail("it returned, but lanes %08x wait for it at %s for lanes %08x",
                 w.meeting[m].arrived, w.meeting[m].operation->name, w.meeting[m].mask);
    w.gone |= lane;
    living--;
    if (barrier.arrived && barrier.arrived == living)
        open_barrier();
    go_to_next();
}

/* Where a fiber begins: every turn of the loop is a thread of another block. */
void run_threads()
{
    arrive();
    for (;;) {
        running_kernel->call(running_argument);
        leave_block();
    }
}

void make_fiber()
{
    size_t room = STACK_BYTES + GUARD_BYTES;
    void *p = mmap(nullptr, room, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, GUARD_BYTES, PROT_NONE))
        fail("no memory for the stack of a fiber");
    fiber &made = fibers[fiber_count++];
    made.stack = static_cast<char *>(p) + GUARD_BYTES;
    made.stack_bytes = STACK_BYTES;
    /* Stacks that began at the same place of a page would all lie in the same cache sets. */
    const size_t aside = fiber_count % 64 * 17 * 64;
    void **saved = reinterpret_cast<void **>(made.stack + STACK_BYTES - aside) - SAVED_WORDS;
    saved[SAVED_RETURN] = reinterpret_cast<void *>(run_threads);
    made.saved = saved;
}

void run_block(unsigned threads, size_t shared_bytes)
{
    fill_with_garbage(shared_room, shared_bytes);
    fill_with_garbage(exchanges, threads * sizeof *exchanges);
    for (unsigned i = 0; i < (threads + WARP_LANES - 1) / WARP_LANES; i++) {
        unsigned lanes = threads - i * WARP_LANES;
        warps[i].gone = lanes < WARP_LANES ? ~0u << lanes : 0;
        warps[i].meetings = 0;
    }
    living = threads;
    queue_begin = queue_end = 0;
    backwards = block_count++ & 1;
    for (unsigned i = 0; i < threads; i++)
        enqueue(backwards ? threads - 1 - i : i);
    running = &host;
    go_to_next();
}

#ifndef OATO_ADDRESS_SANITIZER
volatile __thread char any_static_shared; /* written, so that the thread has such memory */

/* Static __shared__ is all the memory of this library that is its thread's own. */
int fill_static_shared(dl_phdr_info *object, size_t, void *code)
{
    bool own = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) &segment = object->dlpi_phdr[i];
        own = own || (segment.p_type == PT_LOAD &&
                      reinterpret_cast<uintptr_t>(code) - object->dlpi_addr - segment.p_vaddr <
                          segment.p_memsz);
    }
    if (!own)
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_TLS && object->dlpi_tls_data)
            fill_with_garbage(object->dlpi_tls_data, object->dlpi_phdr[i].p_memsz);
    return 1;
}
#endif
} // namespace

kernel::kernel(const char *its_name, unsigned its_threads, size_t bytes,
               void (*its_call)(const void *argument))
    : name(its_name), threads(its_threads), argument_bytes(bytes), call(its_call), next(kernels)
{
    kernels = this;
}

const kernel *first_kernel()
{
    return kernels;
}

void fail(const char *format, ...)
{
    begin_message();
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::abort();
}

int meet_block(block_meeting meeting, int given)
{
    if (barrier.arrived && barrier.meeting != meeting)
        fail("it is at %s while others of its block are at %s", meeting_names[meeting],
             meeting_names[barrier.meeting]);
    barrier.meeting = meeting;
    barrier.true_votes += given != 0;
    if (++barrier.arrived == living) {
        open_barrier();
    } else {
        fibers[threadIdx.x].waits = meeting_names[meeting];
        go_to_next();
    }
    return barrier.result;
}

void meet_warp(const warp_operation &operation, uint32_t mask)
{
    unsigned thread = threadIdx.x, first = thread / WARP_LANES * WARP_LANES;
    uint32_t lane = 1u << (thread - first);
    warp &w = warps[thread / WARP_LANES];
    if (!(mask & lane))
        fail("%s for lanes %08x, of which it is none", operation.name, mask);
    if (mask & w.gone)
        fail("%s for lanes %08x, of which %08x have returned or are none of the block",
             operation.name, mask, mask & w.gone);
    int m = 0;
    while (m < w.meetings && w.meeting[m].mask != mask)
        m++;
    warp_meeting &meeting = w.meeting[m];
    if (m == w.meetings) {
        meeting = {&operation, mask, 0};
        w.meetings++;
    } else if (meeting.operation != &operation) {
        fail("it is at %s while lanes %08x of its warp are at %s", operation.name, meeting.arrived,
             meeting.operation->name);
    }
    meeting.arrived |= lane;
    if (meeting.arrived != mask) {
        fibers[thread].waits = operation.name;
        go_to_next();
        return;
    }
    meeting = w.meeting[--w.meetings];
    operation.run(exchanges + first, mask);
    for (unsigned i = 0; i < WARP_LANES; i++) {
        unsigned other = backwards ? WARP_LANES - 1 - i : i;
        if (mask & ~lane & 1u << other)
            enqueue(first + other);
    }
}

void fill_with_garbage(void *p, size_t bytes)
{
    static const unsigned char garbage[4] = {0xa5, 0xa5, 0xff, 0xff};
    char *to = static_cast<char *>(p);
    if (!bytes)
        return;
    size_t done = std::min(bytes, sizeof garbage);
    std::memcpy(to, garbage, done);
    for (size_t n; done < bytes; done += n) {
        n = std::min(done, bytes - done);
        std::memcpy(to + done, to, n);
    }
}

void run_grid(const kernel &k, const void *argument, dim3 grid, unsigned threads,
              size_t shared_bytes)
{
    std::lock_guard<std::mutex> alone(one_grid);
    running_kernel = &k;
    running_argument = argument;
    gridDim = grid;
    blockDim = {threads, 1, 1};
    while (fiber_count < threads)
        make_fiber();
    /* Of its own, so that AddressSanitizer knows where it ends. */
    shared_room = shared_bytes ? static_cast<unsigned char *>(std::malloc(shared_bytes)) : nullptr;
#ifndef OATO_ADDRESS_SANITIZER
    any_static_shared = 0;
    dl_iterate_phdr(fill_static_shared, reinterpret_cast<void *>(run_threads));
#endif
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++)
                run_block(threads, shared_bytes);
    std::free(shared_room);
    shared_room = nullptr;
}
} // namespace cuda_on_cpu
