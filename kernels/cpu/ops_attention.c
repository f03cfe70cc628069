/*
 * ops_attention.c - the records that touch the KV pages: storing, copying pages, and attention with
 * its division among threads.
 *
 * A unit of attention is one KV head and some tokens of a sequence (a chunk), so that the pages
 * that it reads serve many queries; threads claim units, the longest first. If a few tokens have
 * too few heads to keep the threads busy, a unit is one segment of the context, and the partial
 * results are merged in order. No bit depends on any of this.
 */
#include "kernels/core/wire.h"
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static int64_t segments_of(int64_t positions)
{
    return (positions + ATTENTION_SEGMENT - 1) / ATTENTION_SEGMENT;
}

/* Partial results of `segments` segments of one token each. */
static uint64_t partial_bytes(const struct oato_op *op, int64_t segments)
{
    return (uint64_t)segments * (uint64_t)op->heads *
           (uint64_t)attention_partial_floats(op_v_dim(op)) * sizeof(float);
}

uint64_t attention_workspace(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads)
{
    return WORKSPACE_HEADER_BYTES + (uint64_t)n_threads * align64(k->attention->scratch_bytes(op)) +
           op_attention_partial_bytes(op, size);
}

/* Goes through the chunks of a step, from the last to the first. */
struct chunks {
    const struct run *x;
    int32_t most;           /* tokens of a chunk */
    int32_t seq;            /* of the chunk at hand */
    struct attention_job j; /* its tokens */
    int64_t segments;       /* that they see */
    bool splits;            /* a segment is a unit */
    int64_t units, end;     /* of the chunk; number of its last one + 1, counted from the start */
    float *partial;         /* of its first segment of its first head */
};

static struct chunks chunks_of(const struct run *x, float *partial)
{
    const struct oato_op *op = x->op;
    int64_t most = ATTENTION_QUERIES / (op->heads / op->kv_heads);
    if (x->T > ATTENTION_SPLIT_TOKENS) /* two units a thread are worth reading pages more often */
        most = min_i64(most, x->T * op->kv_heads / (2 * x->n_threads));
    return (struct chunks){.x = x,
                           .most = (int32_t)max_i64(most, 1),
                           .seq = x->step->n_seqs,
                           .splits = partial != NULL,
                           .partial = partial,
                           .j = {.op = op,
                                 .kv = x->c->kv,
                                 .kv_layer = x->r->kv_layer,
                                 .token_position = x->step->token_position,
                                 .q = input(x, 0),
                                 .out = output(x, 0)}};
}

/* Floats of the partial results of one segment of a head. */
static int64_t partial_row(const struct attention_job *j)
{
    return (int64_t)(j->token_end - j->token_begin) * (j->op->heads / j->op->kv_heads) *
           attention_partial_floats(op_v_dim(j->op));
}

static bool chunks_next(struct chunks *c)
{
    struct attention_job *j = &c->j;
    if (c->splits && j->seq)
        c->partial += c->units * partial_row(j);
    while (!j->seq || j->token_begin == j->seq->query_begin) {
        if (c->seq == 0)
            return false;
        j->seq = &c->x->step->seq[--c->seq];
        j->token_begin = j->seq->query_begin + j->seq->query_len;
    }
    j->token_end = j->token_begin;
    j->token_begin = (int32_t)max_i64(j->seq->query_begin, j->token_end - c->most);
    c->segments = segments_of(j->token_position[j->token_end - 1] + 1);
    c->units = c->x->op->kv_heads * (c->splits ? c->segments : 1);
    c->end += c->units;
    return true;
}

/* ------------------------------------------------------------------------------ attention - */

/* Partial results are worth it, and there is room for them. */
static bool attention_splits(const struct run *x, uint64_t room)
{
    if (x->T > ATTENTION_SPLIT_TOKENS || x->n_threads == 1)
        return false;
    int64_t units = 0, segments = 0, longest = 0;
    for (struct chunks c = chunks_of(x, NULL); chunks_next(&c);) {
        units = c.end;
        segments += c.segments * (c.j.token_end - c.j.token_begin);
        longest = max_i64(longest, c.segments);
    }
    return units < 4 * (int64_t)x->n_threads && longest > 1 &&
           partial_bytes(x->op, segments) <= room;
}

/* Those of the heads that share a KV head. */
static const float *head_sinks(const struct run *x, int64_t kv_head)
{
    const struct oato_weight *w = x->r->n_weights ? weight(x, 0) : NULL;
    return w ? const_floats(w->data) + kv_head * (x->op->heads / x->op->kv_heads) : NULL;
}

/* Units [begin, end) of the chunk, counted from its first. */
static void chunk_run(const struct chunks *c, int64_t begin, int64_t end, uint8_t *scratch)
{
    struct attention_job j = c->j;
    for (int64_t u = begin, n; u < end; u += n) {
        n = 1;
        j.kv_head = (int32_t)u;
        if (c->splits) { /* neighbours of the same head in one job */
            j.kv_head = (int32_t)(u / c->segments);
            j.segment_begin = u % c->segments;
            n = min_i64(end - u, c->segments - j.segment_begin);
            j.segment_end = j.segment_begin + n;
            j.partial = c->partial + u * partial_row(&j);
        }
        j.sinks = head_sinks(c->x, j.kv_head);
        c->x->k->attention->run(&j, scratch);
    }
}

static void units_run(const struct run *x, float *partial, uint8_t *scratch)
{
    struct chunks c = chunks_of(x, partial);
    int64_t units = 0, begin, end;
    for (struct chunks all = c; chunks_next(&all);)
        units = all.end;
    struct deal deal = {.x = x, .units = units};
    while (deal_next(&deal, &begin, &end)) {
        while (begin < end) {
            while (begin >= c.end)
                chunks_next(&c);
            const int64_t stop = min_i64(end, c.end), first = c.end - c.units;
            chunk_run(&c, begin - first, stop - first, scratch);
            begin = stop;
        }
    }
}

static void partials_merge(const struct run *x, float *partial)
{
    const int32_t d = op_v_dim(x->op), group = x->op->heads / x->op->kv_heads;
    int64_t unit = 0;
    for (struct chunks c = chunks_of(x, partial); chunks_next(&c);) {
        const int64_t row = partial_row(&c.j);
        for (int64_t h = 0; h < x->op->kv_heads; h++) {
            const float *p = c.partial + h * c.segments * row;
            for (int32_t t = c.j.token_begin; t < c.j.token_end; t++) {
                if (unit++ % x->n_threads == x->thread)
                    x->k->attention->merge(p, row, segments_of(c.j.token_position[t] + 1), group, d,
                                           head_sinks(x, h),
                                           c.j.out + t * (int64_t)x->op->n + h * group * d);
                p += group * attention_partial_floats(d);
            }
        }
    }
}

void run_attention(const struct run *x)
{
    const uint64_t one = align64(x->k->attention->scratch_bytes(x->op));
    const uint64_t used = WORKSPACE_HEADER_BYTES + (uint64_t)x->n_threads * one;
    assert(used <= x->c->workspace_bytes);
    uint8_t *scratch = x->c->workspace + WORKSPACE_HEADER_BYTES + (uint64_t)x->thread * one;
    float *partial = NULL;
    if (attention_splits(x, x->c->workspace_bytes - used))
        partial = floats(x->c->workspace + used);
    units_run(x, partial, scratch);
    if (partial) {
        cpu_barrier_wait(x->barrier);
        partials_merge(x, partial);
    }
}

/* ------------------------------------------------------------------------------- KV pages - */

/* Bytes `step` apart, their scales behind the block's bytes. */
static void store_q8(const float *from, int64_t d, uint8_t *block, int64_t first, int64_t step,
                     int64_t at)
{
    int8_t q[HEAD_DIM_MAX] = {0};
    uint16_t scales[HEAD_DIM_MAX / 32] = {0};
    uint16_t *to = (uint16_t *)(void *)(block + KV_PAGE_POSITIONS * d) + at;
    q8_quantise(from, d, q, scales);
    for (int64_t e = 0; e < d; e++)
        block[first + e * step] = (uint8_t)q[e];
    for (int64_t b = 0; b < d / 32; b++)
        to[b * KV_PAGE_POSITIONS] = scales[b];
}

/* A row of K is a column of its block. */
static void store_k(const struct run *x, uint8_t *block, int64_t at, const float *from)
{
    const int64_t d = x->op->head_dim;
    if (x->c->kv->dtype == DT_Q8_0) {
        store_q8(from, d, block, at, KV_PAGE_POSITIONS, at);
        return;
    }
    if (x->c->kv->dtype == DT_F32) {
        float *to = floats(block) + at;
        for (int64_t e = 0; e < d; e++)
            to[e * KV_PAGE_POSITIONS] = from[e];
        return;
    }
    uint16_t half[HEAD_DIM_MAX], *to = (uint16_t *)(void *)block + at;
    x->k->rows->to_f16(half, from, d);
    for (int64_t e = 0; e < d; e++)
        to[e * KV_PAGE_POSITIONS] = half[e];
}

static void store_v(const struct run *x, uint8_t *block, int64_t at, const float *from)
{
    const int64_t d = op_v_dim(x->op);
    if (x->c->kv->dtype == DT_Q8_0)
        store_q8(from, d, block, at * d, 1, at);
    else if (x->c->kv->dtype == DT_F32)
        memcpy(floats(block) + at * d, from, (size_t)d * sizeof(float));
    else
        x->k->rows->to_f16((uint16_t *)(void *)block + at * d, from, d);
}

void kv_store_row(const struct run *x, int64_t t)
{
    const struct oato_op *op = x->op;
    const struct kv_cache *kv = x->c->kv;
    const int64_t own = op->head_dim - op->k_tail, v_dim = op->v_in_k ? 0 : op_v_dim(op);
    const struct step_seq *seq = &x->step->seq[x->step->token_seq[t]];
    const int64_t position = x->step->token_position[t], at = position % KV_PAGE_POSITIONS;
    const int32_t page = kv_table(kv, x->r->kv_layer, seq)[position / KV_PAGE_POSITIONS];
    const float *first = input(x, 0) + t * op_in_width(op, 0);
    const float *second = input(x, 1) + t * op_in_width(op, 1);
    float row[HEAD_DIM_MAX];
    if (op->k_tail)
        memcpy(row + own, second, (size_t)op->k_tail * sizeof *row);
    for (int64_t h = 0; h < op->kv_heads; h++) {
        const float *k = first, *v = op->k_tail ? first + own : second;
        if (op->k_tail)
            k = memcpy(row, first, (size_t)own * sizeof *row);
        store_k(x, kv_block(kv, x->r->kv_layer, page, 0, h), at, k);
        if (v_dim)
            store_v(x, kv_block(kv, x->r->kv_layer, page, 1, h), at, v);
        first += op->k_tail ? own + v_dim : own;
        second += op->k_tail ? 0 : v_dim;
    }
}

/* Whole pages: the positions of K are spread all over its block. */
void run_kv_copy(const struct run *x)
{
    const struct kv_cache *kv = x->c->kv;
    if (!kv)
        return;
    run_state_copy(x);
    for (int32_t l = x->thread; l < kv->n_layers; l += x->n_threads) {
        const uint64_t page = kv_page_bytes(kv, l);
        const struct kv_layer_shape *s = &kv->layers[l];
        const bool here = !s->state && !s->filed && !s->staged; /* filed: core/file_stream.c */
        for (int32_t i = 0; here && i < x->step->n_page_copies; i++) {
            const struct step_page_copy *copy = &x->step->page_copy[i];
            if (copy->window == (s->window > 0))
                memcpy(kv_block(kv, l, copy->to, 0, 0), kv_block(kv, l, copy->from, 0, 0), page);
        }
    }
}
