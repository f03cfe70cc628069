/*
 * record_internal.h - shared by ops.c, which runs records, ops_attention.c (records that use KV
 * pages), ops_experts.c (mixture of experts), ops_heads.c (a matrix for each head), ops_sparse.c
 * (products that skip zeros), ops_transposed.c (transposed matrices) and ops_top.c (candidates of
 * rows of logits).
 */
#ifndef OATO_RECORD_INTERNAL_H
#define OATO_RECORD_INTERNAL_H

#include "kernels/cpu/kernels_internal.h"

enum {
    PRIVATE_ELEMENTS = 8192, /* inputs up to this are packed by every thread for itself: cheaper
                                than a barrier */
};

/* One running record as its functions see it. */
struct run {
    const struct cpu_context *c;
    const struct cpu_kernels *k;
    const struct matrix_class *matrix; /* the class that the record asks for */
    const struct program_record *r;
    const struct oato_op *op;
    const struct step *step;
    struct cpu_barrier *barrier;
    int64_t T;
    int thread, n_threads;
};

static inline const float *input(const struct run *x, int i)
{
    return const_floats(x->c->arena + x->r->in[i]);
}

static inline float *output(const struct run *x, int i)
{
    return floats(x->c->arena + x->r->out[i]);
}

static inline const struct oato_weight *weight(const struct run *x, int i)
{
    return x->r->weight[i] == UINT32_MAX ? NULL : x->c->weights[x->r->weight[i]];
}

/* Prepared rows from r on, a multiple of MATRIX_ROWS; behind the last one their end. */
static inline const uint8_t *rows_at(const struct cpu_kernels *k, const struct oato_weight *w,
                                     int64_t r)
{
    return w->data + k->layout->bytes(k->layout->lanes, w->dtype, r, w->k);
}

/* The operator's activation of n floats, times `up` unless that is NULL. */
static inline void gate_row(const struct run *x, float *y, const float *gate, const float *up,
                            int64_t n)
{
    x->k->rows->gate((enum activation)x->op->activation, x->op->scale, y, gate, up, n);
}

/* This thread's rows of an element-wise operator. */
static inline void share_rows(const struct run *x, int64_t *begin, int64_t *end)
{
    *begin = x->T * x->thread / x->n_threads;
    *end = x->T * (x->thread + 1) / x->n_threads;
}

static inline uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

/* Hands a record's units to its threads: first one piece each, then the rest in smaller and smaller
 * pieces, so that a core that is slow or busy with another process does not delay the others. */
struct deal {
    const struct run *x;
    int64_t units;
    bool begun;
};
/* deal.c. Units of each thread that nobody else gets. */
int64_t deal_own(int64_t units, int n_threads);
/* This thread's next units; false when there are none left. */
bool deal_next(struct deal *d, int64_t *begin, int64_t *end);

/* ops_attention.c */
uint64_t attention_workspace(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads);
void run_attention(const struct run *x);
void kv_store_row(const struct run *x, int64_t t);
void run_kv_copy(const struct run *x);

/* ops_experts.c */
uint64_t experts_workspace(const struct matrix_class *k, const struct oato_op *op, int64_t T,
                           int n_threads);
void route_row(const struct run *x, int64_t t);
void expert_sum_row(const struct run *x, int64_t t);
void run_experts(const struct run *x);

/* ops_state.c */
void run_state(const struct run *x);
void run_state_copy(const struct run *x);

/* ops_heads.c */
uint64_t heads_workspace(const struct matrix_class *k, const struct oato_op *op, int64_t T,
                         int n_threads);
void run_heads(const struct run *x);

/* The weights of a matrix product side by side, cut into units of MATRIX_ROWS rows. */
struct matrix_task {
    const struct run *x;
    struct matrix_job job[3];
    int64_t rows[3];
    int n;
    uint8_t *scratch;
    uint64_t up_at; /* GATE_UP: of the rows of `up` in the scratch; sparse: then of their weights */
    int64_t panel;  /* rows computed together */
};

/* ops_sparse.c */
/* Scratch of a thread behind that of the kernels: products of some listed rows, and those rows. */
enum { SPARSE_CHUNK = 1024, SPARSE_PANEL = MATRIX_ROWS };
uint64_t sparse_gate_up_scratch(const struct cpu_kernels *k, const struct oato_op *op, int64_t T);
/* GATE_UP of rows [begin, end); the thread reads on at `next`. */
void sparse_gate_up_rows(const struct matrix_task *m, int64_t begin, int64_t end,
                         const uint8_t *next);
/* The same of a MUL_MAT whose rows are listed. */
void listed_rows(const struct matrix_task *m, int64_t begin, int64_t end);
uint64_t columns_workspace(const struct cpu_kernels *k, const struct oato_op *op, int64_t T,
                           int n_threads);
void run_columns(const struct run *x);
/* ACTIVE: the list of scores above a threshold. */
void active_row(const struct run *x, int64_t t);

/* ops_transposed.c */
uint64_t transposed_workspace(const struct oato_op *op, int n_threads);
void run_transposed(const struct run *x);

/* ops_top.c */
void top_k_row(const struct run *x, int64_t t);

#endif
