/*
 * test_heads.c - a layer's attention divided by KV heads between devices of one process: each makes
 * q, k and v of its heads, stores and attends to these, and multiplies them with its columns of the
 * output product. Whatever sequences do, the bits are those of the same plan with all of it on the
 * CPU, and tokens are those of one device; each device keeps its share of weights and KV.
 */
#include "tests/executor/story.h"

#include <stdlib.h>

enum { BOTH = 3, KEPT = 90, MORE = 10, TOKENS = 24 };

static const struct engine_options options = {
    .threads = 2, .rows = STORY_CHUNK, .ubatch = STORY_CHUNK, .seqs = STORY_SEQS, .context = 1024};

static struct model *model_of(const char *architecture, int64_t kv_heads, oato_dtype dtype)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.architecture = architecture;
    shape.layers = 3;
    shape.width = 256;
    shape.ffn = 1024;
    shape.heads = 16;
    shape.kv_heads = kv_heads;
    shape.head_dim = 64;
    shape.vocab = 320;
    shape.dtype = dtype;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* ---------------------------------------------------------------------------------- plans */

static void put(struct plan *p, const struct graph_op *o, enum op_axis axis, int64_t extent,
                int32_t n, int32_t i)
{
    const int32_t device = n > 1 ? 1 + i : 1;
    p->parts[p->n_parts++] = (struct plan_part){.op = o->name,
                                                .axis = axis,
                                                .begin = extent * i / n,
                                                .end = extent * (i + 1) / n,
                                                .phases = BOTH,
                                                .device = device,
                                                .home = device};
}

/* Along which axis a team divides the operator; AXIS_COUNT: it does not. */
static enum op_axis axis_of(const struct graph *g, const struct graph_op *o)
{
    const int kind = g->ops[g->values[o->in[0]].producer].op.kind;
    if (o->op.kind == OP_QKV || o->op.kind == OP_ROPE || o->op.kind == OP_HEAD_NORM ||
        o->kv_layer >= 0)
        return AXIS_HEADS;
    if (o->op.kind == OP_GATE_UP || o->op.kind == OP_BIAS || strstr(o->name, "attn_q") ||
        strstr(o->name, "attn_k") || strstr(o->name, "attn_v"))
        return AXIS_ROWS;
    return o->op.kind == OP_MUL_MAT && (kind == OP_ATTENTION || kind == OP_GATE_UP) ? AXIS_K
                                                                                    : AXIS_COUNT;
}

/* Layers divided between n devices beside the host, all else on the first one. */
static void plan_divided(struct plan *p, const struct graph *g, int32_t n)
{
    p->parts =
        arena_alloc(&p->arena, (size_t)g->n_ops * (size_t)p->n_devices + 1, sizeof *p->parts);
    p->kv = arena_alloc(&p->arena, (size_t)g->n_ops * (size_t)n + 1, sizeof *p->kv);
    assert_true(p->parts && p->kv);
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const enum op_axis axis = n > 1 && i ? axis_of(g, o) : AXIS_COUNT;
        const bool whole = axis == AXIS_COUNT;
        for (int32_t r = 0; r < (whole ? 1 : n); r++) {
            put(p, o, whole ? AXIS_ROWS : axis, whole ? o->op.n : op_axis_extent(&o->op, axis),
                whole ? 1 : n, r);
            const struct plan_part *x = &p->parts[p->n_parts - 1];
            if (o->op.kind == OP_KV_STORE)
                p->kv[p->n_kv++] =
                    (struct plan_kv){o->kv_layer, whole ? 0 : (int32_t)x->begin,
                                     whole ? o->op.kv_heads : (int32_t)x->end, x->device};
        }
    }
}

/* A plan and what its names belong to. */
struct planned {
    struct plan p;
    struct graph fused;
};

static void plan_make(struct planned *x, const struct model *m, int32_t n, const char *spec)
{
    plan_begin(&x->p, m, n, spec);
    plan_fuse_all(&x->p, m, &x->fused);
    plan_divided(&x->p, &x->fused, n);
}

static void planned_free(struct planned *x)
{
    plan_free(&x->p);
    graph_free(&x->fused);
}

/* ---------------------------------------------------------------------------------- cases */

static const struct divided_case {
    const char *architecture, *spec;
    int64_t kv_heads;
    int32_t n;
    oato_dtype dtype, kv;
} cases[] = {
    {"llama", "vram=64MiB", 8, 2, DT_Q4_0, DT_F16},
    {"llama", "vram=64MiB,peer=50GB/s", 8, 4, DT_F16, DT_F16},
    {"llama", "vram=64MiB,peer=50GB/s", 8, 4, DT_Q8_0, DT_Q8_0},
    {"llama", "vram=64MiB", 8, 4, DT_F32, DT_F32},
    {"llama", "vram=64MiB,peer=50GB/s", 8, 8, DT_F16, DT_F16},
    {"llama", "vram=64MiB,peer=50GB/s", 2, 2, DT_Q4_0, DT_Q8_0},
    {"qwen2", "vram=64MiB,peer=50GB/s", 8, 4, DT_Q4_0, DT_F16},
    {"qwen3", "vram=64MiB", 2, 2, DT_F16, DT_F16},
    {"qwen3", "vram=64MiB,peer=50GB/s", 8, 4, DT_Q8_0, DT_F16},
};

static struct engine_options options_of(const struct divided_case *c)
{
    struct engine_options o = options;
    o.kv = c->kv;
    o.kv_given = true;
    return o;
}

static void told_free(struct told *t)
{
    engine_close(t->e);
    free(t->said);
}

static void the_bits_are_those_of_the_same_plan_on_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct divided_case *c = &cases[i];
        struct model *m = model_of(c->architecture, c->kv_heads, c->dtype);
        struct engine_options o = options_of(c);
        struct planned x;
        plan_make(&x, m, c->n, c->spec);
        struct told got = story_of(m, &x.p, o);
        o.devices = "cpu";
        o.map = "sim:0=cpu:0,sim:1=cpu:0,sim:2=cpu:0,sim:3=cpu:0,sim:4=cpu:0,sim:5=cpu:0,"
                "sim:6=cpu:0,sim:7=cpu:0";
        struct told expected = story_of(m, &x.p, o);
        assert_int_equal(expected.n, got.n);
        assert_same_bits(got.said, expected.said, got.n * got.vocab);
        told_free(&expected);
        told_free(&got);
        planned_free(&x);
        model_close(m);
    }
}

/* The token that is most likely, which is in doubt where another is as good. */
static int32_t best_of(const float *row, int32_t vocab, int32_t than, bool *doubtful)
{
    int32_t best = 0;
    float least = row[0];
    for (int32_t i = 1; i < vocab; i++) {
        best = row[i] > row[best] ? i : best;
        least = row[i] < least ? row[i] : least;
    }
    *doubtful = than >= 0 && row[best] - row[than] < 0.01f * (row[best] - least);
    return best;
}

/* Greedy tokens after a prompt in several steps; told to say `said`, if not NULL, it says these or
 * ones as good. */
static void answer(const struct model *m, const struct plan *p, struct engine_options o,
                   const int32_t *said, int32_t tokens[TOKENS], struct engine_stats *stats)
{
    struct oato_error err;
    int32_t ids[KEPT], seq;
    struct engine *e = open_engine(m, p, o);
    fill_ids(ids, KEPT, m->shape.vocab, 5);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, KEPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int32_t t = 0; t < TOKENS; t++) {
        bool doubtful;
        tokens[t] = best_of(engine_logits(e, 0), m->shape.vocab, said ? said[t] : -1, &doubtful);
        if (said && doubtful)
            tokens[t] = said[t];
        const struct engine_input in = {seq, &tokens[t], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
    }
    engine_get_stats(e, stats);
    engine_close(e);
}

static void tokens_are_those_of_one_device_and_each_keeps_its_share(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct divided_case *c = &cases[i];
        struct model *m = model_of(c->architecture, c->kv_heads, c->dtype);
        struct engine_stats whole, divided;
        int32_t expected[TOKENS], got[TOKENS];
        struct planned x;
        plan_make(&x, m, 1, c->spec);
        answer(m, &x.p, options_of(c), NULL, expected, &whole);
        planned_free(&x);
        plan_make(&x, m, c->n, c->spec);
        answer(m, &x.p, options_of(c), expected, got, &divided);
        assert_memory_equal(expected, got, sizeof got);
        for (int32_t d = 1; d <= c->n; d++)
            assert_int_equal(divided.device[d].kv_bytes * (uint64_t)c->n, whole.device[1].kv_bytes);
        for (int32_t d = 2; d <= c->n; d++) /* embeddings, norms and the output are the first's */
            assert_true(divided.device[d].weight_bytes * (uint64_t)c->n <
                        whole.device[1].weight_bytes);
        planned_free(&x);
        model_close(m);
    }
}

/* A sequence is saved from all devices and restored to all; what begins like another one finds its
 * pages, there, too. */
static void sequences_are_saved_and_prompts_shared(void **state)
{
    (void)state;
    struct model *m = model_of("llama", 8, DT_F16);
    const size_t vocab = (size_t)m->shape.vocab;
    struct planned x;
    struct oato_error err;
    struct engine_saved *saved = NULL;
    int32_t ids[KEPT + MORE], seq[2] = {0};
    float *row = malloc(vocab * sizeof *row);
    assert_non_null(row);
    plan_make(&x, m, 4, "vram=64MiB,peer=50GB/s");
    struct engine *e = open_engine(m, &x.p, options);
    fill_ids(ids, KEPT + MORE, m->shape.vocab, 5);
    if (engine_seq_create(e, &seq[0], &err) ||
        engine_feed(e, seq[0], ids, KEPT, LOGITS_LAST, NULL, NULL, &err) ||
        engine_seq_save(e, seq[0], &saved, &err))
        fail_msg("%s", err.text);
    if (engine_feed(e, seq[0], ids + KEPT, MORE, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    memcpy(row, engine_logits(e, 0), vocab * sizeof *row);
    engine_seq_free(e, seq[0]);
    if (engine_seq_create(e, &seq[0], &err) || /* takes the pages that are free again */
        engine_feed(e, seq[0], ids + MORE, KEPT, LOGITS_LAST, NULL, NULL, &err) ||
        engine_seq_restore(e, saved, &seq[1], &err) ||
        engine_feed(e, seq[1], ids + KEPT, MORE, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    assert_same_bits(engine_logits(e, 0), row, vocab);
    engine_saved_free(saved);
    engine_close(e);
    free(row);
    planned_free(&x);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_the_same_plan_on_the_cpu),
        cmocka_unit_test(tokens_are_those_of_one_device_and_each_keeps_its_share),
        cmocka_unit_test(sequences_are_saved_and_prompts_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
