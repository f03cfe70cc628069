/*
 * device_rig.c - see device_rig.h. Values are slots of equal size in the arena, so that a test can
 * name them by number on every device.
 */
#include "tests/kernels/device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SLOT_BYTES  ((uint64_t)RIG_TOKENS * RIG_WIDTH * sizeof(float))
#define ARENA_BYTES (RIG_VALUES * SLOT_BYTES)

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

void rig_random(float *out, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (float)next_random(&seed) * 0x1p-23f - 1.0f;
}

struct oato_device *rig_open(const char *spec)
{
    const struct device_options options = {.threads = 2};
    struct oato_device *d = NULL;
    struct oato_error err;
    if (device_open(spec, 0, &options, &d, &err))
        fail_msg("%s", err.text);
    return d;
}

struct rig *rig_create(const char *spec, int self)
{
    const struct device_options options = {.threads = 2};
    struct rig *g = calloc(1, sizeof *g);
    struct oato_error err;
    void *arena = NULL;
    assert_non_null(g);
    if (device_open(spec, self, &options, &g->d, &err) ||
        g->d->ops->alloc(g->d, ARENA_BYTES, &arena, &err))
        fail_msg("%s", err.text);
    g->self = self;
    g->p = (struct program){.records = g->records,
                            .weights = g->weights,
                            .max_tokens = RIG_TOKENS,
                            .max_rows = RIG_ROWS,
                            .max_seqs = 2,
                            .arena = arena};
    return g;
}

void rig_free(struct rig *g)
{
    if (g->d) {
        g->d->ops->release(g->d, g->c);
        for (uint32_t i = 0; i < g->p.n_weights; i++)
            weight_free(g->d, g->weights[i]);
        if (g->p.kv)
            g->d->ops->kv_free(g->d, g->p.kv);
        g->d->ops->free(g->d, g->p.arena, ARENA_BYTES);
        g->d->ops->close(g->d);
    }
    free(g->host_arena);
    free(g);
}

/* ----------------------------------------------------------------------------- weights ---- */

static int weight_add(struct rig *g, const struct weight_source *source)
{
    struct oato_error err;
    uint32_t i = g->p.n_weights++;
    assert_true(i < RIG_WEIGHTS);
    if (weight_prepare(g->d, source, &g->weights[i], &err))
        fail_msg("%s", err.text);
    return (int)i;
}

/* n x k of Q8_0: blocks of a half-precision scale and 32 bytes. */
static uint8_t *random_q8(int k, int n, uint32_t seed, size_t *bytes)
{
    size_t blocks = (size_t)n * (size_t)k / 32;
    *bytes = blocks * 34;
    uint8_t *data = malloc(*bytes);
    assert_non_null(data);
    for (size_t b = 0; b < blocks; b++) {
        uint16_t scale = f32_to_f16(0x1p-10f * (float)(1 + next_random(&seed) % 4));
        memcpy(data + b * 34, &scale, sizeof scale);
        for (int i = 0; i < 32; i++)
            data[b * 34 + 2 + (size_t)i] = (uint8_t)next_random(&seed);
    }
    return data;
}

int rig_matrix(struct rig *g, int k, int n, int begin, int end, uint32_t seed)
{
    size_t bytes;
    uint8_t *data = random_q8(k, n, seed, &bytes);
    int i = weight_add(g, &(struct weight_source){.data = data,
                                                  .dtype = DT_Q8_0,
                                                  .k = k,
                                                  .n = n,
                                                  .row_begin = begin,
                                                  .row_end = end,
                                                  .use = WEIGHT_MATRIX});
    free(data);
    return i;
}

/* The rows stay readable for the test's life: a host device borrows them. */
int rig_lookup(struct rig *g, int k, int n, uint32_t seed)
{
    static uint8_t table[RIG_VOCABULARY * RIG_WIDTH];
    size_t bytes;
    uint8_t *data = random_q8(k, n, seed, &bytes);
    assert_true(bytes <= sizeof table);
    memcpy(table, data, bytes);
    free(data);
    return weight_add(
        g,
        &(struct weight_source){
            .data = table, .dtype = DT_Q8_0, .k = k, .n = n, .row_end = n, .use = WEIGHT_LOOKUP});
}

static int f32_add(struct rig *g, int k, int n, uint32_t seed, enum weight_use use)
{
    size_t count = (size_t)n * (size_t)k;
    float *data = malloc(count * sizeof *data);
    assert_non_null(data);
    rig_random(data, count, seed);
    int i =
        weight_add(g, &(struct weight_source){
                          .data = data, .dtype = DT_F32, .k = k, .n = n, .row_end = n, .use = use});
    free(data);
    return i;
}

int rig_f32_matrix(struct rig *g, int k, int n, uint32_t seed)
{
    return f32_add(g, k, n, seed, WEIGHT_MATRIX);
}

int rig_vector(struct rig *g, int k, uint32_t seed)
{
    return f32_add(g, k, 1, seed, WEIGHT_VECTOR);
}

int rig_stage(struct rig *g, const struct weight_source *s, void *staging, uint64_t offset)
{
    struct oato_error err;
    uint32_t i = g->p.n_weights++;
    assert_true(i < RIG_WEIGHTS);
    if (weight_stage(g->d, s, staging, offset, &g->weights[i], &err))
        fail_msg("%s", err.text);
    return (int)i;
}

void rig_kv(struct rig *g, const struct kv_layer_shape *layers, int n, oato_dtype dtype, int pages)
{
    struct oato_error err;
    if (g->d->ops->kv_create(g->d, layers, n, dtype, pages, &g->p.kv, &err))
        fail_msg("%s", err.text);
}

/* ----------------------------------------------------------------------------- records ---- */

static struct program_record *record_add(struct rig *g)
{
    struct program_record *r = &g->records[g->p.n_records++];
    assert_true(g->p.n_records <= RIG_RECORDS);
    *r = (struct program_record){.kv_layer = -1, .graph_op = UINT32_MAX, .value = UINT32_MAX};
    memset(r->weight, 0xff, sizeof r->weight);
    return r;
}

struct program_record *rig_put(struct rig *g, const char *key, int n_in, const int *in, int n_out,
                               const int *out, const int *weights)
{
    struct program_record *r = record_add(g);
    struct op_size size;
    if (!oato_op_parse(key, &r->op, &size))
        fail_msg("no key: %s", key);
    r->op.eps = 1e-5f;
    r->op.rope_base = 10000;
    r->op.rope_scale = 1;
    r->op.scale = r->op.kind == OP_ATTENTION ? 0.125f : 0;
    r->n_in = (uint8_t)n_in;
    for (int i = 0; i < n_in; i++) {
        r->in[i] = (uint64_t)in[i] * SLOT_BYTES;
        r->in_width[i] = r->op.kind == OP_MERGE ? r->op.n / n_in : r->op.k;
        r->in_type[i] = (uint8_t)value_type_in(device_values(g->d), &r->op, i);
    }
    r->n_out = (uint8_t)n_out;
    for (int i = 0; i < n_out; i++) {
        r->out[i] = (uint64_t)out[i] * SLOT_BYTES;
        r->out_type[i] = (uint8_t)value_type_out(device_values(g->d), &r->op, i);
    }
    r->n_weights = (uint8_t)(weights ? max_i64(1, op_weight_least(&r->op)) : 0);
    for (int i = 0; weights && i < r->n_weights; i++) /* as many as the kind's number */
        // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign)
        r->weight[i] = (uint32_t)weights[i];
    return r;
}

struct program_record *rig_put_copy(struct rig *g, enum record_kind kind, int width, int from,
                                    int to)
{
    struct program_record *r = record_add(g);
    r->kind = (uint8_t)kind;
    r->n_in = r->n_out = 1;
    r->in_width[0] = width;
    r->in[0] = (uint64_t)from * SLOT_BYTES;
    r->out[0] = (uint64_t)to * SLOT_BYTES;
    return r;
}

static struct program_record *put_between(struct rig *g, enum record_kind kind,
                                          const struct rig *other, int width, int from, int to)
{
    struct program_record *r = rig_put_copy(g, kind, width, from, to);
    r->peer = (uint8_t)other->self;
    g->peers[other->self] = (struct program_peer){
        .device = other->d, .arena = other->p.arena, .arena_bytes = ARENA_BYTES};
    g->p.peers = g->peers;
    return r;
}

struct program_record *rig_put_peer(struct rig *g, const struct rig *other, int width, int from,
                                    int to)
{
    return put_between(g, RECORD_PEER, other, width, from, to);
}

struct program_record *rig_put_stream(struct rig *g, int weight)
{
    struct program_record *r = record_add(g);
    r->kind = RECORD_STREAM;
    r->n_weights = 1;
    r->weight[0] = (uint32_t)weight;
    return r;
}

void rig_wait(struct program_record *r, int device, uint32_t ordinal)
{
    r->wait[r->n_waits++] = (struct record_wait){.device = (uint16_t)device, .ordinal = ordinal};
}

const struct program *rig_program(struct rig *g)
{
    const struct op_size most = {.rows = RIG_TOKENS, .seqs = 2, .kv_positions = RIG_TOKENS * 64};
    g->p.n_signals = 0;
    for (uint32_t i = 0; i < g->p.n_records; i++) {
        const struct program_record *r = &g->records[i];
        if (r->signal > g->p.n_signals)
            g->p.n_signals = r->signal;
        if (r->kind != RECORD_RUN)
            continue;
        uint64_t bytes = g->d->ops->workspace_bytes(g->d, &r->op, &most);
        g->p.workspace_bytes = bytes > g->p.workspace_bytes ? bytes : g->p.workspace_bytes;
    }
    return &g->p;
}

void rig_compile(struct rig *g, struct rig *host)
{
    struct oato_error err;
    if (host) {
        g->p.host_arena = host->p.arena;
        g->p.host_arena_bytes = ARENA_BYTES;
    } else {
        g->host_arena = calloc(1, ARENA_BYTES);
        assert_non_null(g->host_arena);
        g->p.host_arena = g->host_arena;
    }
    if (g->d->ops->compile(g->d, rig_program(g), g->self, &g->c, &err))
        fail_msg("%s", err.text);
}

void rig_write(struct rig *g, int value, const float *from, size_t bytes)
{
    struct oato_error err;
    if (g->d->ops->upload(g->d, g->p.arena, (uint64_t)value * SLOT_BYTES, from, bytes, NULL, &err))
        fail_msg("%s", err.text);
}

void rig_read(struct rig *g, int value, float *to, size_t bytes)
{
    struct oato_error err;
    if (g->d->ops->download(g->d, to, g->p.arena, (uint64_t)value * SLOT_BYTES, bytes, NULL, &err))
        fail_msg("%s", err.text);
}

/* ------------------------------------------------------------------------------- steps ---- */

void rig_step(struct rig *const *g, int n, struct step *step)
{
    struct rig *first = g[0];
    struct oato_error err;
    for (int i = 0; i < n; i++) {
        first->timelines[i] = g[i]->d->ops->timeline(g[i]->d);
        first->bases[i] = atomic_load(&first->timelines[i]->value);
    }
    step->timeline = first->timelines;
    step->timeline_base = first->bases;
    for (int i = n; i-- > 0;)
        if (g[i]->d->ops->submit(g[i]->d, g[i]->c, step, &err))
            fail_msg("%s", err.text);
    for (int i = 0; i < n; i++)
        if (g[i]->d->ops->finish(g[i]->d, &err))
            fail_msg("%s", err.text);
}

struct step *rig_step_begin(struct rig *g, struct timeline *other, const struct step *step)
{
    assert_true(g->submitted < RIG_STEPS);
    struct step *own = &g->pending[g->submitted].step;
    struct timeline **timelines = g->pending[g->submitted].timelines;
    *own = *step;
    timelines[0] = other;
    timelines[1] = g->d->ops->timeline(g->d);
    own->timeline = timelines;
    own->timeline_base = memcpy(g->pending[g->submitted].bases, g->bases, sizeof g->bases);
    return own;
}

void rig_submit_beside(struct rig *g, struct timeline *other, const struct step *step)
{
    struct oato_error err;
    if (g->d->ops->submit(g->d, g->c, rig_step_begin(g, other, step), &err))
        fail_msg("%s", err.text);
    g->submitted++;
    g->bases[1] += g->p.n_signals;
}

void rig_step_beside(struct rig *g, struct timeline *other, const struct step *step)
{
    struct oato_error err;
    rig_submit_beside(g, other, step);
    if (g->d->ops->finish(g->d, &err))
        fail_msg("%s", err.text);
}

void rig_run_peers(struct rig *const g[2], struct rig *alone)
{
    enum { STEPS = 30, K = 64, N = 128 };
    static float x[RIG_TOKENS * K], expected[RIG_TOKENS * N], got[RIG_TOKENS * N];
    for (int i = 0; i < 2; i++)
        if (!g[i]->d->ops->reaches(g[i]->d, g[1 - i]->d))
            fail_msg("the devices do not reach each other");
    rig_put(alone, "mul_mat/Q8_0/k64/n128", 1, (int[]){0}, 1, (int[]){1},
            (int[]){rig_matrix(alone, K, N, 0, N, 2)});
    rig_put(alone, "bias/k128", 1, (int[]){1}, 1, (int[]){2}, (int[]){rig_vector(alone, N, 3)});
    rig_put(alone, "add/k128", 2, (int[]){1, 2}, 1, (int[]){3}, NULL)->signal = 1;
    rig_put(g[0], "mul_mat/Q8_0/k64/n128", 1, (int[]){0}, 1, (int[]){1},
            (int[]){rig_matrix(g[0], K, N, 0, N, 2)})
        ->signal = 1;
    rig_wait(rig_put_peer(g[1], g[0], N, 1, 4), 0, 1);
    rig_put(g[1], "bias/k128", 1, (int[]){4}, 1, (int[]){5}, (int[]){rig_vector(g[1], N, 3)})
        ->signal = 1;
    rig_wait(rig_put_peer(g[0], g[1], N, 5, 6), 1, 1);
    put_between(g[1], RECORD_PUSH, g[0], N, 5, 7)->signal = 2;
    rig_put(g[0], "add/k128", 2, (int[]){1, 6}, 1, (int[]){3}, NULL);
    rig_wait(rig_put(g[0], "add/k128", 2, (int[]){1, 7}, 1, (int[]){8}, NULL), 1, 2);
    g[0]->records[g[0]->p.n_records - 1].signal = 2;
    rig_compile(alone, NULL);
    rig_compile(g[0], NULL);
    rig_compile(g[1], NULL);
    for (int i = 0; i < STEPS; i++) {
        struct step step = {.n_tokens = 1 + i % RIG_TOKENS, .n_seqs = 1};
        const size_t bytes = (size_t)step.n_tokens * N * sizeof(float);
        rig_random(x, ARRAY_LEN(x), (uint32_t)i);
        rig_write(alone, 0, x, sizeof x);
        rig_write(g[0], 0, x, sizeof x);
        rig_step(&alone, 1, &step);
        rig_step(g, 2, &step);
        rig_read(alone, 3, expected, bytes);
        for (int slot = 3; slot <= 8; slot += 5) { /* fetched, and sent */
            rig_read(g[0], slot, got, bytes);
            assert_memory_equal(expected, got, bytes);
        }
    }
}

/* -------------------------------------------------------------------------------- layer --- */

/* Width 64 of two heads, one KV head, 128 in the feed-forward. */
static void layer_put(struct rig *g)
{
    int vocabulary = rig_lookup(g, 64, RIG_VOCABULARY, 1);
    rig_put(g, "kv_copy", 0, NULL, 0, NULL, NULL);
    rig_put(g, "embed/Q8_0/k64/n96", 0, NULL, 1, (int[]){0}, &vocabulary);
    rig_put(g, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(g, 64, 2)});
    rig_put(g, "qkv/Q8_0/k64/n64/m32", 1, (int[]){1}, 3, (int[]){2, 3, 4},
            (int[]){rig_matrix(g, 64, 64, 0, 64, 3), rig_matrix(g, 64, 32, 0, 32, 4),
                    rig_matrix(g, 64, 32, 0, 32, 5)});
    rig_put(g, "rope/h2/d32/r32/p0", 1, (int[]){2}, 1, (int[]){5}, (int[]){rig_vector(g, 16, 6)});
    rig_put(g, "rope/h1/d32/r32/p0", 1, (int[]){3}, 1, (int[]){6}, NULL);
    rig_put(g, "kv_store/F16/g1/d32", 2, (int[]){6, 4}, 0, NULL, NULL)->kv_layer = 1;
    rig_put(g, "attention/F16/h2/g1/d32", 1, (int[]){5}, 1, (int[]){7}, NULL)->kv_layer = 1;
    rig_put(g, "mul_mat/F32/k64/n64", 1, (int[]){7}, 1, (int[]){8},
            (int[]){rig_f32_matrix(g, 64, 64, 7)});
    rig_put(g, "add_norm/k64", 2, (int[]){0, 8}, 2, (int[]){9, 10}, (int[]){rig_vector(g, 64, 8)});
    rig_put(g, "gate_up/Q8_0/k64/n128", 1, (int[]){10}, 1, (int[]){11},
            (int[]){rig_matrix(g, 64, 128, 0, 128, 9), rig_matrix(g, 64, 128, 0, 128, 10)});
    rig_put(g, "swiglu/k128", 2, (int[]){11, 11}, 1, (int[]){12}, NULL);
    rig_put(g, "mul_mat/Q8_0/k128/n64", 1, (int[]){12}, 1, (int[]){13},
            (int[]){rig_matrix(g, 128, 64, 0, 64, 11)});
    rig_put(g, "add/k64", 2, (int[]){9, 13}, 1, (int[]){14}, NULL);
    rig_put(g, "merge/n128", 2, (int[]){14, 9}, 1, (int[]){15}, NULL);
    rig_put(g, "select/k128", 1, (int[]){15}, 1, (int[]){16}, NULL)->rows = ROWS_LOGITS;
    rig_put(g, "mul_mat/Q8_0/k128/n96", 1, (int[]){16}, 1, (int[]){17},
            (int[]){rig_matrix(g, 128, 96, 0, 96, 12)})
        ->rows = ROWS_LOGITS;
    struct program_record *r =
        rig_put(g, "bias/k96", 1, (int[]){17}, 1, (int[]){18}, (int[]){rig_vector(g, 96, 13)});
    r->rows = ROWS_LOGITS;
    r->signal = 1;
}

/* Tokens begin .. end - 1 of a fixed text, with logits of the last ones. */
static void layer_step(struct rig *g, int begin, int end, int32_t page,
                       const struct step_page_copy *copy, float *logits)
{
    static const int32_t text[RIG_TOKENS + 2] = {17, 95, 0, 42, 42, 7, 63, 31, 5, 88};
    static const int32_t sequence[RIG_TOKENS] = {0};
    int32_t position[RIG_TOKENS], row[RIG_ROWS];
    struct step step = {.n_tokens = end - begin, .n_seqs = 1};
    step.n_rows = (int32_t)min_i64(step.n_tokens, RIG_ROWS);
    for (int i = 0; i < step.n_tokens; i++)
        position[i] = begin + i;
    for (int i = 0; i < step.n_rows; i++)
        row[i] = step.n_tokens - step.n_rows + i;
    const struct step_seq seq = {
        .query_len = step.n_tokens, .kv_len = end, .pages = (int32_t[]){page}};
    step.token_id = text + begin;
    step.token_position = position;
    step.token_seq = sequence;
    step.seq = &seq;
    step.row = row;
    step.n_page_copies = copy ? 1 : 0;
    step.page_copy = copy;
    rig_step(&g, 1, &step);
    rig_read(g, 18, logits, (size_t)step.n_rows * RIG_VOCABULARY * sizeof *logits);
}

void rig_run_layer(const char *spec, int prompt, float logits[RIG_LOGITS])
{
    const struct kv_layer_shape layers[] = {{.kv_heads = 2, .head_dim = 64},
                                            {.kv_heads = 1, .head_dim = 32}};
    struct rig *g = rig_create(spec, 0);
    memset(logits, 0, RIG_LOGITS * sizeof *logits);
    layer_put(g);
    rig_kv(g, layers, 2, DT_F16, 3);
    rig_compile(g, NULL);
    layer_step(g, 0, prompt, 2, NULL, logits);
    layer_step(g, prompt, prompt + 1, 2, NULL, logits + RIG_ROWS * RIG_VOCABULARY);
    const struct step_page_copy copy = {.from = 2, .to = 0, .positions = prompt + 1};
    layer_step(g, prompt + 1, prompt + 2, 0, &copy, logits + 2 * RIG_ROWS * RIG_VOCABULARY);
    rig_free(g);
}
