/*
 * persistent.cu - a stretch of launches as one kernel: its blocks stay on the GPU and walk through
 * a list of tasks (cuda_tasks.h), each of which was a launch. Between two kernels the memory idles
 * for 2 to 3 us (one drains, the next one starts and ramps up); here a block that has done its part
 * of a task has the weights of the next product fetched to the L2 cache before it waits for the
 * others.
 *
 * A group of warps, as many as the task's kernel has in a block, runs the very body of that kernel
 * for one block of its grid after the other: so results have the same bits.
 *
 * A task begins when all blocks have done their parts of the one before, which began when ... and
 * so on: no block overtakes the list. Each task has a counter of arrivals that only rises; what a
 * launch awaits is a multiple of its number, so nobody has to clear it. Blocks for which a task has
 * no work neither wait for it nor arrive: after a norm of one row, all wait for the one block
 * alone. Whoever sees a count (acquire) sees what was written before it rose (release), on this
 * multiprocessor and on others: the pattern of cooperative groups' grid barrier.
 */
#define OATO_BODIES_ONLY
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/matvec.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/sample.cu"

#include "kernels/cuda/cuda_tasks.h"

#include <stddef.h>

static_assert(sizeof(cuda_task) % 16 == 0 && offsetof(cuda_task, argument) % 16 == 0,
              "tasks are copied 16 bytes at a time");

/* A block of a task's kernel; see own_block. */
template <int THREADS> struct task_block {
    unsigned at_x, at_y, at_z;
    unsigned char *memory; /* of its group */

    __device__ unsigned x() const
    {
        return at_x;
    }
    __device__ unsigned y() const
    {
        return at_y;
    }
    __device__ unsigned z() const
    {
        return at_z;
    }
    __device__ unsigned thread() const
    {
        return threadIdx.x % THREADS;
    }
    __device__ void barrier() const
    {
        if (THREADS == WARP)
            __syncwarp();
        else
            some_threads_sync(1 + threadIdx.x / THREADS, THREADS);
    }
    __device__ void again() const
    {
        barrier();
    }
    __device__ unsigned char *room() const
    {
        return memory + PERSISTENT_SHARED;
    }
    template <class T> __device__ T &shared() const
    {
        static_assert(sizeof(T) <= PERSISTENT_SHARED, "more than a group has");
        return *(T *)memory;
    }
};

/* Of two tasks: the one at hand and the next. */
__device__ static cuda_task *slots()
{
    return (cuda_task *)SHARED_ROOM;
}

/* Numbers of blocks go round the multiprocessors first: a small grid has each on its own. */
template <int THREADS, class Body>
__device__ __forceinline__ void each_block(const cuda_task &task, const Body &body)
{
    const unsigned group = threadIdx.x / THREADS;
    unsigned char *memory = (unsigned char *)(slots() + 2);
    if (group >= task.groups)
        return;
    for (unsigned at = blockIdx.x + gridDim.x * group; at < task.blocks;
         at += gridDim.x * task.groups) {
        const unsigned row = at / task.grid_x;
        body(task_block<THREADS>{at % task.grid_x, row % task.grid_y, row / task.grid_y,
                                 memory + group * (PERSISTENT_SHARED + task.room)});
        __syncwarp(); /* lanes that had less to do wait for the others of their warp */
    }
}

/* Functions of their own: in one body the compiler would have all of them at once in mind. They are
 * told the number of the slot, so that it knows that what they read is shared memory. */
#define RUN_TASK(name, threads, type)                                                              \
    OUT_OF_LINE __device__ static void run_##name(int slot)                                        \
    {                                                                                              \
        const cuda_task &task = slots()[slot];                                                     \
        static_assert(PERSISTENT_THREADS % (threads) == 0 && (threads) % WARP == 0, #name);        \
        static_assert(sizeof(type) <= CUDA_TASK_ARGUMENT_MOST, #name);                             \
        each_block<threads>(task, [&](const task_block<threads> &block) {                          \
            name##_body(*(const type *)task.argument, block);                                      \
        });                                                                                        \
    }
CUDA_TASKS(RUN_TASK)
#undef RUN_TASK

__device__ static void run_task(int slot)
{
    switch (slots()[slot].body) {
#define CASE_TASK(name, threads, type)                                                             \
    case TASK_##name: run_##name(slot); break;
        CUDA_TASKS(CASE_TASK)
#undef CASE_TASK
    default: break;
    }
}

__device__ static void fetch_task(cuda_task *to, const cuda_task *from)
{
    for (unsigned i = threadIdx.x; i < sizeof(cuda_task) / 16; i += PERSISTENT_THREADS)
        copy_16((uint4 *)to + i, (const uint4 *)from + i, true);
}

/* A warp a stretch that this block will read first. */
__device__ static void fetch_weights(const cuda_task &task)
{
    const unsigned stretches = task.n_ahead * task.groups_ahead;
    for (unsigned i = threadIdx.x / WARP; i < stretches; i += PERSISTENT_THREADS / WARP) {
        const cuda_ahead &ahead = task.ahead[i % task.n_ahead];
        const unsigned at = blockIdx.x + gridDim.x * (i / task.n_ahead) - ahead.first;
        if (at >= ahead.blocks) /* also where it is before the first */
            continue;
        const uint64_t begin = (uint64_t)at * ahead.block_bytes / 16 * 16;
        const uint64_t end = (uint64_t)(at + 1) * ahead.block_bytes / 16 * 16;
        if (end > begin)
            read_ahead(ahead.from + begin, (uint32_t)(end - begin), threadIdx.x % WARP, WARP);
    }
}

KERNEL_RESIDENT(persistent, PERSISTENT_THREADS, PERSISTENT_BLOCKS, cuda_persistent_args)
{
    fetch_task(&slots()[0], a.task);
    copies_wait();
    __syncthreads();
    for (int i = 0; i < a.n; i++) {
        const cuda_task &task = slots()[i % 2];
        if (i + 1 < a.n)
            fetch_task(&slots()[(i + 1) % 2], a.task + i + 1);
        if (blockIdx.x < task.blocks) {
            if (i > 0 && threadIdx.x == 0)
                await_count(&a.arrived[i - 1], a.launches * task.awaited);
            __syncthreads();
            run_task(i % 2);
            __syncthreads();
            if (threadIdx.x == 0)
                count_up(&a.arrived[i]);
        }
        fetch_weights(task);
        copies_wait();
        __syncthreads(); /* the next task is here, and nobody reads this one any more */
    }
}
