/*
 * cuda_sparse_kernels.h - what the host gives to the kernels that skip silent neurons (sparse.cu,
 * columns.cu), as cuda_kernels.h has it for the others.
 */
#ifndef OATO_CUDA_SPARSE_KERNELS_H
#define OATO_CUDA_SPARSE_KERNELS_H

#include "kernels/cuda/cuda_kernels.h"

/* ------------------------------------------------------------- active neurons: sparse.cu -- */

/* listed_<type>: rows of w_0 that the token's list (OP_ACTIVE) names times x, `unlisted` where it
 * names none; with `gate_up`, of these a(w_0 row . x) * (w_1 row . x) where the activation is
 * active, else 0. With the bits of dense products that have the same split. Who has a place of the
 * list also fills the gap before it. grid: (pairs of places, of as many as there are rows, * split
 * / MATVEC_WARPS rounded up, tokens) */
struct cuda_listed_args {
    struct cuda_matrix w[2];
    const float *list; /* rows of w.rows + 1 */
    float *y;          /* rows of w.rows */
    const uint8_t *x;  /* a row per token: packed, or float32 for types without blocks */
    uint64_t x_stride;
    int32_t gate_up, activation;
    int32_t split, pad; /* split: as in struct cuda_matvec_args */
    float limit, threshold;
    float unlisted, pad_2;
};

/* active_list: OP_ACTIVE. grid: tokens */
enum { LIST_THREADS = 1024 };
struct cuda_list_args {
    const float *x;    /* rows of k */
    const float *bias; /* k; NULL: none */
    float *list;       /* rows of k + 1 */
    int32_t k;
    float threshold;
};

/* sparse_up_<type>: where gates are active, y = a(y) * (w row . x), elsewhere 0; y has the gates'
 * products before. With the bits of a dense product of gate and up that has the same split. A block
 * has SPARSE_CHUNK neurons of a token, makes their list and shares it among its warps. grid:
 * (w.rows / SPARSE_CHUNK rounded up, tokens) */
enum { SPARSE_CHUNK = 32 };
struct cuda_sparse_up_args {
    struct cuda_matrix w;
    float *y;         /* rows of w.rows */
    const uint8_t *x; /* a row per token: packed, or float32 for types without blocks */
    uint64_t x_stride;
    int32_t activation, split; /* split: as in struct cuda_matvec_args */
    float limit, threshold;
};

/* ----------------------------------------------------- columns of neurons: columns.cu -- */

/* A weight of WEIGHT_COLUMNS as kernels/core/columns.c lays it out. */
struct cuda_columns {
    const uint8_t *data;     /* from the number of blocks on */
    uint64_t scales, column; /* bytes of a block's scales and minima; of a column */
    int32_t rows, k;
    int32_t offset;        /* of integers */
    int32_t has_min, half; /* half: scales are F16, else float32 */
    int32_t pad;
};

enum {
    COLUMNS_WARPS = 8,
    COLUMNS_ROWS = 256,  /* of the result, computed by one block: 8 for each lane */
    COLUMNS_BLOCK = 32,  /* columns that a lane each looks at together */
    COLUMNS_TOKENS = 4,  /* at once, by the columns_many_* kernels */
    COLUMNS_WANTED = 512 /* blocks of a grid: four for each of 128 multiprocessors */
};

/* columns_<form>: y = w x without the columns where |x| <= threshold, which are not read. Blocks of
 * columns are divided into `slices` (cuda_columns_slices). With `partial` each slice has a grid
 * row, and columns_merge adds them up in order; without, one grid row computes all of them in
 * order, to the same bits. grid: (w.rows / COLUMNS_ROWS rounded up, slices or 1, tokens at once);
 * columns_merge: (w.rows / ROW_THREADS rounded up, tokens) */
struct cuda_columns_args {
    struct cuda_columns w;
    const float *x; /* rows of w.k */
    float *y;       /* rows of w.rows */
    float *partial; /* `slices` rows of w.rows per token, or NULL */
    int32_t slices, tokens;
    float threshold;
    int32_t pad;
};

/* Depends on the shape alone, as bits do: a warp has at least one block of a slice. */
static inline int32_t cuda_columns_slices(int32_t rows, int32_t k)
{
    const int32_t groups = (rows + COLUMNS_ROWS - 1) / COLUMNS_ROWS;
    const int32_t wanted = (COLUMNS_WANTED + groups - 1) / groups;
    const int32_t full = k / (COLUMNS_WARPS * COLUMNS_BLOCK);
    return full < 1 ? 1 : full < wanted ? full : wanted;
}

#endif
