/*
 * cuda_tasks.h - a stretch of launches as data: what the persistent kernel (persistent.cu) walks
 * through and the host (cuda_persistent.c) writes down. A task is one launch: which kernel's body,
 * over which grid, with which argument.
 */
#ifndef OATO_CUDA_TASKS_H
#define OATO_CUDA_TASKS_H

#include "kernels/cuda/cuda_kernels.h"

/* The kernels whose bodies it runs: F(name, threads of a block, type of the argument). Blocks are
 * whole warps and divide PERSISTENT_THREADS. */
#define CUDA_TASKS_OF_TYPE(F, type)                                                                \
    F(matvec_##type, MATVEC_WARPS * 32, cuda_matvec_args)                                          \
    F(matvec_many_##type, MATVEC_WARPS * 32, cuda_matvec_args)                                     \
    F(expert_gate_up_##type, MATVEC_WARPS * 32, cuda_experts_args)                                 \
    F(expert_down_##type, MATVEC_WARPS * 32, cuda_experts_args)
#define CUDA_TASKS(F)                                                                              \
    CUDA_TASKS_OF_TYPE(F, F32)                                                                     \
    CUDA_TASKS_OF_TYPE(F, F16)                                                                     \
    CUDA_TASKS_OF_TYPE(F, BF16)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q4_0)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q4_1)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q5_0)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q5_1)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q8_0)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q2_K)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q3_K)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q4_K)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q5_K)                                                                    \
    CUDA_TASKS_OF_TYPE(F, Q6_K)                                                                    \
    CUDA_TASKS_OF_TYPE(F, IQ4_NL)                                                                  \
    CUDA_TASKS_OF_TYPE(F, IQ4_XS)                                                                  \
    CUDA_TASKS_OF_TYPE(F, MXFP4)                                                                   \
    F(pack_q8, PACK_WARPS * 32, cuda_pack_args)                                                    \
    F(rms_norm, NORM_THREADS, cuda_norm_args)                                                      \
    F(head_norm, ROW_THREADS, cuda_norm_args)                                                      \
    F(pairwise, ROW_THREADS, cuda_pairwise_args)                                                   \
    F(merge, ROW_THREADS, cuda_merge_args)                                                         \
    F(select_rows, ROW_THREADS, cuda_select_args)                                                  \
    F(embed, ROW_THREADS, cuda_embed_args)                                                         \
    F(rope, ROW_THREADS, cuda_rope_args)                                                           \
    F(kv_store, ROW_THREADS, cuda_kv_store_args)                                                   \
    F(rope_store, ROW_THREADS, cuda_rope_store_args)                                               \
    F(route, 32, cuda_route_args)                                                                  \
    F(attention_F32, ATTENTION_THREADS, cuda_attention_args)                                       \
    F(attention_F16, ATTENTION_THREADS, cuda_attention_args)                                       \
    F(attention_Q8_0, ATTENTION_THREADS, cuda_attention_args)                                      \
    F(attention_merge, ATTENTION_THREADS, cuda_attention_args)                                     \
    F(top_k, TOP_THREADS, cuda_top_args)                                                           \
    F(top_k_merge, TOP_THREADS, cuda_top_args)

enum cuda_task_body {
#define CUDA_TASK_BODY(name, threads, argument) TASK_##name,
    CUDA_TASKS(CUDA_TASK_BODY) CUDA_TASK_BODIES
#undef CUDA_TASK_BODY
};

enum {
    /* Of a block of the persistent kernel. Four blocks of a product (128 threads each, so that none
     * of its lanes idles) or two of what goes row by row run abreast in it, as groups with a
     * barrier of their own; two such blocks on a multiprocessor keep 32 warps busy, as many as
     * reading at the memory's pace takes. */
    PERSISTENT_THREADS = 512,
    PERSISTENT_BLOCKS = 2,         /* on a multiprocessor */
    PERSISTENT_SHARED = 128,       /* bytes of a group for own_block::shared */
    PERSISTENT_ROOM = 24 << 10,    /* bytes for the rooms of all groups, unless one needs more */
    PERSISTENT_MOST = 48 << 10,    /* bytes that a block has without asking */
    CUDA_TASK_ARGUMENT_MOST = 320, /* bytes */
    CUDA_TASK_AHEAD = 12,          /* three matrices of four planes */
};

/* Weights in a plane: block first + i of a product reads bytes [i, i + 1) * block_bytes. */
struct cuda_ahead {
    const uint8_t *from;
    uint32_t block_bytes, first, blocks, pad;
};

struct cuda_task {
    int32_t body;            /* enum cuda_task_body */
    uint32_t grid_x, grid_y; /* the blocks are numbered along x first */
    uint32_t blocks;         /* in all */
    uint32_t groups;         /* that compute blocks abreast */
    uint32_t room;           /* bytes of shared memory of each, a multiple of 16 */
    uint32_t awaited;        /* arrivals at the task before that a launch makes */
    uint32_t n_ahead, groups_ahead;
    uint32_t pad[3];
    /* What the next product reads whose weights are known, from its first blocks in each group on:
     * it is fetched to the L2 cache while this task is not done everywhere. */
    struct cuda_ahead ahead[CUDA_TASK_AHEAD];
    uint8_t argument[CUDA_TASK_ARGUMENT_MOST];
};

/* Walks through the tasks in order. grid: as many blocks as are resident at once, launched so that
 * all of them are; shared memory: two tasks, then PERSISTENT_SHARED and the room of each group. */
struct cuda_persistent_args {
    const struct cuda_task *task;
    uint32_t *arrived; /* of each task: blocks that have done their part, in all launches */
    uint32_t launches; /* of this list so far, with this one */
    int32_t n;
};

#endif
