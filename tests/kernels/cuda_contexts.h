/*
 * cuda_contexts.h - sequences of random values in the KV caches of the CPU and of a CUDA device,
 * and attention over pieces of them. Included once by each test program.
 *
 * Slots of the cache that no position has are no numbers.
 */
#ifndef OATO_CUDA_CONTEXTS_H
#define OATO_CUDA_CONTEXTS_H

#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda_case.h"

enum { SEQS = 4, PAGES = 48, TOKENS_MOST = 2000, RECORDS = 2 };

/* Sequences and the heads that they have; `queries` of each are asked for, the last ones. */
struct context {
    oato_dtype dtype;
    int32_t heads, kv_heads, head_dim;
    int32_t length[SEQS], queries[SEQS];
    int32_t window;
    float soft_cap, alibi;
};

/* Random values of all positions of all sequences, one after the other. */
struct values {
    const struct context *x;
    int32_t tokens, at[SEQS]; /* at: of a sequence's first */
    float *k, *v, *q;
};

/* A context in the cache of a device. */
struct cache {
    struct oato_device *d;
    const struct values *values;
    struct kv_cache *kv;
    int32_t page[SEQS][PAGES];
};

/* Positions [begin, begin + count) of a sequence, in a step. */
struct piece {
    int32_t seq, begin, count;
};

static int64_t kv_width(const struct context *x)
{
    return (int64_t)x->kv_heads * x->head_dim;
}

static int64_t q_width(const struct context *x)
{
    return (int64_t)x->heads * x->head_dim;
}

/* ------------------------------------------------------------------------------- context -- */

static struct values random_values(const struct context *x)
{
    struct values v = {.x = x};
    for (int s = 0; s < SEQS; s++) {
        v.at[s] = v.tokens;
        v.tokens += x->length[s];
    }
    assert_true(v.tokens <= TOKENS_MOST);
    v.k = test_malloc((size_t)(v.tokens * kv_width(x)) * sizeof(float));
    v.v = test_malloc((size_t)(v.tokens * kv_width(x)) * sizeof(float));
    v.q = test_malloc((size_t)(v.tokens * q_width(x)) * sizeof(float));
    random_floats(v.k, v.tokens * kv_width(x));
    random_floats(v.v, v.tokens * kv_width(x));
    random_floats(v.q, v.tokens * q_width(x));
    return v;
}

static void free_values(struct values *v)
{
    test_free(v->k);
    test_free(v->v);
    test_free(v->q);
}

/* The step of some pieces, and where its arrays are. */
struct piece_step {
    struct step step;
    struct step_seq seq[SEQS];
    int32_t position[TOKENS_MOST], sequence[TOKENS_MOST];
};

static void fill_step(struct piece_step *s, const struct cache *c, const struct piece *piece, int n)
{
    int32_t t = 0;
    for (int i = 0; i < n; i++) {
        s->seq[i] = (struct step_seq){.query_begin = t,
                                      .query_len = piece[i].count,
                                      .kv_len = piece[i].begin + piece[i].count,
                                      .pages = c->page[piece[i].seq]};
        for (int32_t j = 0; j < piece[i].count; j++, t++) {
            s->position[t] = piece[i].begin + j;
            s->sequence[t] = i;
        }
    }
    s->step = (struct step){.n_tokens = t,
                            .n_seqs = n,
                            .token_id = s->position,
                            .token_position = s->position,
                            .token_seq = s->sequence,
                            .seq = s->seq};
}

static void store_values(struct cache *c)
{
    const struct context *x = c->values->x;
    struct oato_device *d = c->d;
    const int32_t width = (int32_t)kv_width(x);
    const uint64_t bytes = (uint64_t)c->values->tokens * (uint64_t)width * sizeof(float);
    const uint64_t half = size_align(bytes, 64);
    uint8_t *arena = at(d, 2 * half);
    struct program_record r = {.op = {.kind = OP_KV_STORE,
                                      .dtype = (uint16_t)x->dtype,
                                      .k = width,
                                      .n = width,
                                      .kv_heads = x->kv_heads,
                                      .head_dim = x->head_dim},
                               .n_in = 2,
                               .kv_layer = 1,
                               .in_width = {width, width},
                               .in = {0, half},
                               .signal = 1};
    const struct program p = {.records = &r,
                              .n_records = 1,
                              .n_signals = 1,
                              .max_tokens = c->values->tokens,
                              .max_rows = 1,
                              .max_seqs = SEQS,
                              .arena = arena,
                              .kv = c->kv};
    struct piece all[SEQS];
    struct piece_step s;
    for (int i = 0; i < SEQS; i++)
        all[i] = (struct piece){i, 0, x->length[i]};
    fill_step(&s, c, all, SEQS);
    upload(d, arena, 0, c->values->k, bytes);
    upload(d, arena, half, c->values->v, bytes);
    struct compiled *compiled = compile(d, &p);
    run(d, compiled, &s.step);
    d->ops->release(d, compiled);
    d->ops->free(d, arena, 2 * half);
}

/* Pages of all sequences in turn, from the last one down. */
static void open_cache(struct cache *c, struct oato_device *d, const struct values *values)
{
    const struct context *x = values->x;
    const struct kv_layer_shape layers[] = {{.kv_heads = 1, .head_dim = 32},
                                            {.kv_heads = x->kv_heads, .head_dim = x->head_dim}};
    struct oato_error err;
    int32_t next = PAGES;
    *c = (struct cache){.d = d, .values = values};
    if (d->ops->kv_create(d, layers, 2, x->dtype, PAGES, &c->kv, &err))
        fail_msg("%s", err.text);
    uint8_t *garbage = test_malloc(c->kv->bytes);
    memset(garbage, 0xff, c->kv->bytes);
    upload(d, c->kv->data, 0, garbage, c->kv->bytes);
    test_free(garbage);
    for (int32_t i = 0; i < PAGES; i++)
        for (int s = 0; s < SEQS; s++)
            if (i * KV_PAGE_POSITIONS < x->length[s])
                c->page[s][i] = --next;
    assert_true(next >= 0);
    store_values(c);
}

/* ----------------------------------------------------------------------------- attending -- */

static bool with_sinks; /* of at most 8 heads */

/* Attention of one class, compiled for steps of at most so many tokens; two records, as a graph
 * wants more than one. */
struct attention {
    struct cache *cache;
    struct program_record record[RECORDS];
    struct program program;
    struct compiled *compiled;
    struct oato_weight *sinks;
    uint64_t bytes; /* of the arena */
};

static void open_attention(struct attention *a, struct cache *c, enum numerics_choice numerics,
                           int32_t tokens)
{
    const struct context *x = c->values->x;
    struct oato_device *d = c->d;
    const int32_t width = (int32_t)q_width(x);
    const uint64_t each = size_align((uint64_t)tokens * (uint64_t)width * sizeof(float), 64);
    const struct op_size size = {.rows = tokens, .seqs = SEQS};
    *a = (struct attention){.cache = c, .bytes = each * (1 + RECORDS)};
    for (unsigned i = 0; i < RECORDS; i++)
        a->record[i] = (struct program_record){.op = {.kind = OP_ATTENTION,
                                                      .dtype = (uint16_t)x->dtype,
                                                      .k = width,
                                                      .n = width,
                                                      .heads = x->heads,
                                                      .kv_heads = x->kv_heads,
                                                      .head_dim = x->head_dim,
                                                      .scale = 1 / sqrtf((float)x->head_dim),
                                                      .window = x->window,
                                                      .soft_cap = x->soft_cap,
                                                      .alibi = x->alibi,
                                                      .first = x->alibi != 0 ? 2 : 0,
                                                      .alibi_heads = x->heads + 5},
                                               .n_in = 1,
                                               .n_out = 1,
                                               .numerics = (uint8_t)numerics,
                                               .kv_layer = 1,
                                               .in_width = {width},
                                               .out = {each * (1 + i)},
                                               .signal = i + 1 == RECORDS};
    a->program = (struct program){.records = a->record,
                                  .n_records = RECORDS,
                                  .n_signals = 1,
                                  .max_tokens = tokens,
                                  .max_rows = 1,
                                  .max_seqs = SEQS,
                                  .arena = at(d, a->bytes),
                                  .kv = c->kv};
    if (with_sinks) {
        static const float sinks[] = {0.3f, -1, 2, 0.1f, 1, -5, 0, 100};
        const struct weight_source source = {.data = sinks,
                                             .dtype = DT_F32,
                                             .k = x->heads,
                                             .n = 1,
                                             .row_end = 1,
                                             .use = WEIGHT_VECTOR};
        struct oato_error err;
        assert_false(weight_prepare(d, &source, &a->sinks, &err));
        a->program.weights = &a->sinks;
        a->program.n_weights = 1;
        for (int i = 0; i < RECORDS; i++)
            a->record[i].n_weights = 1;
    }
    a->program.workspace_bytes = d->ops->workspace_bytes(d, &a->record[0].op, &size);
    a->compiled = compile(d, &a->program);
}

/* The pieces' rows of out, which has all positions as q has them. */
static void attend(struct attention *a, const struct piece *piece, int n, float *out)
{
    const struct values *values = a->cache->values;
    const uint64_t row = (uint64_t)q_width(values->x) * sizeof(float);
    struct oato_device *d = a->cache->d;
    struct oato_error err;
    struct piece_step s;
    fill_step(&s, a->cache, piece, n);
    for (int i = 0; i < n; i++)
        upload(d, a->program.arena, (uint64_t)s.seq[i].query_begin * row,
               values->q + (values->at[piece[i].seq] + piece[i].begin) * q_width(values->x),
               (uint64_t)piece[i].count * row);
    run(d, a->compiled, &s.step);
    for (int i = 0; i < n; i++)
        if (d->ops->download(d,
                             out + (values->at[piece[i].seq] + piece[i].begin) * q_width(values->x),
                             a->program.arena,
                             a->record[RECORDS - 1].out[0] + (uint64_t)s.seq[i].query_begin * row,
                             (uint64_t)piece[i].count * row, NULL, &err))
            fail_msg("%s", err.text);
}

static void close_attention(struct attention *a)
{
    struct oato_device *d = a->cache->d;
    d->ops->release(d, a->compiled);
    if (a->sinks)
        weight_free(d, a->sinks);
    d->ops->free(d, a->program.arena, a->bytes);
}

static void attend_once(struct cache *c, const struct piece *piece, int n, float *out)
{
    struct attention a;
    int32_t tokens = 0;
    for (int i = 0; i < n; i++)
        tokens += piece[i].count;
    open_attention(&a, c, NUMERICS_PREFILL, tokens);
    attend(&a, piece, n, out);
    close_attention(&a);
}

/* Every query that the context asks for, in one step. */
static float *attend_all(struct cache *c)
{
    const struct context *x = c->values->x;
    struct piece piece[SEQS];
    int n = 0;
    float *out = test_calloc((size_t)(c->values->tokens * q_width(x)), sizeof(float));
    for (int s = 0; s < SEQS; s++)
        if (x->queries[s])
            piece[n++] = (struct piece){s, x->length[s] - x->queries[s], x->queries[s]};
    attend_once(c, piece, n, out);
    return out;
}

#endif
