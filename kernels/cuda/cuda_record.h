/*
 * cuda_record.h - a record being launched; shared by cuda_launch.c and, for products with matrices,
 * cuda_products.c.
 */
#ifndef OATO_CUDA_RECORD_H
#define OATO_CUDA_RECORD_H

#include "kernels/cuda/cuda_device.h"

/* A record being launched. */
struct launch {
    struct cuda_device *d;
    const struct compiled *c;
    const struct program_record *r;
    const struct cuda_record *kernels;
    const struct oato_op *op;
    const struct step *step;
    uint32_t T; /* rows, at least 1 */
};

struct grid {
    uint32_t x, y, z;
};

/* The launch of the record `distance` records after this one (before it if negative). */
static inline struct launch launch_near(const struct launch *l, int distance)
{
    struct launch near = *l;
    near.r += distance;
    near.kernels += distance;
    near.op = &near.r->op;
    return near;
}

/* cuda_context.c */
cu_result launch_start(const struct launch *l, cu_function kernel, struct grid grid,
                       uint32_t threads, uint32_t shared_bytes, void *argument);

static inline uint32_t blocks_of(int64_t n, int64_t size)
{
    return (uint32_t)((n + size - 1) / size);
}

static inline const void *launch_arena(const struct launch *l, uint64_t offset)
{
    return (const uint8_t *)l->c->program->arena + offset;
}

static inline const float *launch_input(const struct launch *l, int i)
{
    return launch_arena(l, l->r->in[i]);
}

static inline float *launch_output(const struct launch *l, int i)
{
    return (float *)(uintptr_t)launch_arena(l, l->r->out[i]);
}

static inline void *launch_workspace(const struct launch *l)
{
    return l->d->workspace ? l->d->workspace->address : NULL;
}

static inline const struct oato_weight *launch_weight(const struct launch *l, int i)
{
    return l->c->program->weights[l->r->weight[i]];
}

static inline const float *launch_vector(const struct launch *l, int i)
{
    return const_floats(launch_weight(l, i)->data);
}

/* NULL: the record has no such weight. */
static inline const float *launch_optional(const struct launch *l, int i)
{
    return i < l->r->n_weights && l->r->weight[i] != UINT32_MAX ? launch_vector(l, i) : NULL;
}

/* Where each expert of the layer lies in the record's cache, in this step. */
static inline const int32_t *launch_slots(const struct launch *l)
{
    return (const int32_t *)(uintptr_t)(l->c->step_memory + cuda_slots_at(l->c, l->r->cache));
}

/* cuda_products.c. The weight as kernels take it. */
struct cuda_matrix launch_matrix(const struct launch *l, int i);
/* Bytes of a row of k elements, packed as products of that type read it. */
uint64_t cuda_packed_bytes(oato_dtype dtype, int64_t k);
/* Bytes of `rows` packed rows, a multiple of 256. */
uint64_t cuda_packed_rows_bytes(oato_dtype dtype, int64_t k, int64_t rows);
cu_result launch_product(const struct launch *l);
/* Packs `rows` rows of the input, if the type wants it: where they are then, and how far apart. */
cu_result launch_pack(const struct launch *l, int64_t rows, const uint8_t **x, uint64_t *stride);
/* Warps that share a pair of rows, of so many pairs. */
int32_t launch_split(int64_t pairs, int32_t k);
cu_result launch_experts(const struct launch *l);
cu_result launch_heads(const struct launch *l);

/* cuda_sparse.c: a product that reads columns, and what it needs of the workspace; the kernel's
 * name, of one token or several at once */
cu_result launch_columns(const struct launch *l);
uint64_t cuda_columns_workspace(const struct oato_op *op, int64_t rows);
const char *cuda_columns_kernel(oato_dtype dtype, bool many);
/* Products by a list, the list, and guesses of it. */
cu_result launch_listed(const struct launch *l);
cu_result launch_list(const struct launch *l);
/* up of a GATE_UP that skips neurons, behind gate's products, which `gate` has computed. */
cu_result launch_sparse_up(const struct launch *l, const struct cuda_matvec_args *gate);

/* cuda_state.c: recurrent mixers; the copies of a layer of states that the step asks for */
cu_result launch_state(const struct launch *l);
cu_result launch_state_copy(const struct launch *l, int32_t layer);
/* Of products: see cuda_op_workspace. */
uint64_t cuda_product_workspace(const struct cuda_device *d, const struct oato_op *op, int64_t rows,
                                bool blas);

#endif
