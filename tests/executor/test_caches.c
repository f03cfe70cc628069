/*
 * test_caches.c - experts in a cache on another device: a token gets the same bits whatever lies
 * there, and however often that changes; what is chosen again and again comes to lie there; an
 * expert that is still on its way is not used; and what the plan may not ask for is told. On a GPU,
 * here the emulated one, whose arithmetic is another one: the same numbers but for its rounding.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { EXPERTS = 12, USED = 3, BATCH = 3, PROMPT = 10, TOKENS = 24, GPU_TOKENS = 10 };

/* As wide as all types need, with rows in multiples of 64. */
static struct model *experts_model(const char *architecture, const char *keys, const char *optional,
                                   oato_dtype dtype)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.architecture = architecture;
    shape.keys = keys;
    shape.optional = optional;
    shape.layers = 3;
    shape.width = 256;
    shape.ffn = 256;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.experts = EXPERTS;
    shape.experts_used = USED;
    shape.vocab = 320;
    shape.dtype = dtype;
    shape.seed = 11;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s: %s", architecture, err.text);
    return m;
}

/* Experts below `fixed` on sim:0, the others on the host with a cache of `slots` on sim:0, or
 * without one. */
static void plan_caches(struct plan *p, const struct model *m, int32_t fixed, int32_t slots,
                        const char *spec)
{
    struct graph fused;
    plan_begin(p, m, 1, spec);
    p->request.batch = BATCH;
    plan_fuse_all(p, m, &fused);
    p->caches = arena_alloc(&p->arena, (size_t)fused.n_layers + 1, sizeof *p->caches);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (!op_has_experts(&o->op))
            continue;
        for (int32_t part = 0; part < 2 && fixed; part++)
            p->parts[p->n_parts++] =
                (struct plan_part){.op = arena_strndup(&p->arena, o->name, strlen(o->name)),
                                   .axis = AXIS_EXPERTS,
                                   .begin = part ? fixed : 0,
                                   .end = part ? EXPERTS : fixed,
                                   .phases = 3,
                                   .device = !part,
                                   .home = !part};
        if (o->op.kind == OP_EXPERT_GATE_UP && slots)
            p->caches[p->n_caches++] =
                (struct plan_cache){.op = arena_strndup(&p->arena, o->name, strlen(o->name)),
                                    .device = 1,
                                    .slots = slots};
    }
    graph_free(&fused);
}

/* Logits of some steps of a batch: each sequence says `period` tokens of its own again and again.
 */
static float *decode(struct engine *e, int32_t vocab, int32_t steps, int32_t period, int32_t batch)
{
    struct oato_error err;
    struct engine_input in[BATCH];
    int32_t ids[BATCH * TOKENS], seq[BATCH];
    float *all = malloc((size_t)batch * (size_t)steps * (size_t)vocab * sizeof *all), *to = all;
    assert_non_null(all);
    fill_ids(ids, BATCH * TOKENS, vocab, 3);
    for (int32_t s = 0; s < batch; s++)
        if (engine_seq_create(e, &seq[s], &err) ||
            engine_feed(e, seq[s], ids + s, PROMPT, LOGITS_NONE, NULL, NULL, &err))
            fail_msg("%s", err.text);
    for (int32_t t = 0; t < steps; t++) {
        for (int32_t s = 0; s < batch; s++)
            in[s] =
                (struct engine_input){seq[s], &ids[s * TOKENS + t % period], 1, LOGITS_LAST, false};
        if (engine_step(e, in, batch, &err))
            fail_msg("%s", err.text);
        for (int32_t s = 0; s < batch; s++, to += vocab)
            memcpy(to, engine_logits(e, s), (size_t)vocab * sizeof *to);
    }
    for (int32_t s = 0; s < batch; s++)
        engine_seq_free(e, seq[s]);
    return all;
}

static void count_warnings(void *user, const char *text)
{
    *(int *)user += strstr(text, "caches of experts are left out: --deterministic") != NULL;
}

struct outcome {
    float *logits;
    struct engine_expert_stats experts;
};

/* What the engine says in so many steps; closes it. */
static struct outcome outcome_of(struct engine *e, const struct model *m, int32_t steps,
                                 int32_t batch)
{
    struct engine_stats stats;
    struct outcome o = {.logits = decode(e, m->shape.vocab, steps, steps, batch)};
    engine_get_stats(e, &stats);
    o.experts = stats.experts;
    engine_close(e);
    return o;
}

static struct outcome run_ordered(const struct model *m, const struct neurons *neurons,
                                  int32_t fixed, int32_t slots, int32_t batch, int32_t threads,
                                  const char *spec)
{
    struct plan p;
    plan_caches(&p, m, fixed, slots, spec);
    p.neurons = neurons;
    p.neurons_hash = neurons ? neurons_hash(neurons) : 0;
    struct engine *e = open_engine(m, &p, (struct engine_options){.threads = threads});
    const struct outcome o = outcome_of(e, m, TOKENS, batch);
    plan_free(&p);
    return o;
}

static struct outcome run(const struct model *m, int32_t fixed, int32_t slots, int32_t batch,
                          int32_t threads, const char *spec)
{
    return run_ordered(m, NULL, fixed, slots, batch, threads, spec);
}

static void tokens_get_the_same_bits_whatever_lies_in_the_cache(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *keys, *optional;
        oato_dtype dtype;
    } models[] = {
        {"qwen3moe", NULL, NULL, DT_Q4_K},
        {"qwen3moe", NULL, "scale", DT_Q8_0},
        {"gpt-oss", "attention.sliding_window=64", NULL, DT_MXFP4},
        {"llama4", "interleave_moe_layer_step=1 expert_feed_forward_length=256", NULL, DT_F32},
    };
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = experts_model(models[i].architecture, models[i].keys, models[i].optional,
                                        models[i].dtype);
        for (int32_t batch = 1; batch <= BATCH; batch += 2) {
            const int32_t fixed = batch > 1 ? 4 : 0;
            const size_t n = (size_t)batch * TOKENS * (size_t)m->shape.vocab;
            const struct outcome without = run(m, fixed, 0, batch, 1, "vram=64MiB");
            assert_int_equal(without.experts.caches + without.experts.choices, 0);
            for (int32_t slots = 1; slots < 8; slots += 4) {
                const struct outcome with =
                    run(m, fixed, slots, batch, 1 + slots % 2, "vram=64MiB");
                assert_same_bits(with.logits, without.logits, n);
                assert_true(with.experts.refills > 0 && with.experts.hits > 0);
                assert_true(with.experts.hits < with.experts.choices);
                free(with.logits);
            }
            free(without.logits);
        }
        model_close(m);
    }
}

/* Experts numbered by a sidecar: the last one first. */
static void a_cache_follows_the_order_of_a_sidecar(void **state)
{
    (void)state;
    struct model *m = experts_model("qwen3moe", NULL, "scale", DT_Q8_0);
    struct neurons n;
    neurons_init(&n);
    n.structure_hash = gguf_structure_hash(m->gguf);
    n.source = "test";
    n.n_layers = m->graph.n_layers;
    n.layers = arena_alloc(&n.arena, (size_t)n.n_layers, sizeof *n.layers);
    for (int32_t l = 0; l < n.n_layers; l++) {
        float *freq = arena_alloc(&n.arena, EXPERTS, sizeof *freq);
        int32_t *order = arena_alloc(&n.arena, EXPERTS, sizeof *order);
        for (int32_t i = 0; i < EXPERTS; i++)
            freq[i] = (float)i / EXPERTS;
        neurons_order(freq, EXPERTS, order);
        n.layers[l] =
            (struct neurons_layer){.n_experts = EXPERTS, .exp_freq = freq, .exp_order = order};
    }
    const struct outcome without = run_ordered(m, &n, 4, 0, 1, 1, "vram=64MiB");
    const struct outcome with = run_ordered(m, &n, 4, 3, 1, 2, "vram=64MiB");
    assert_same_bits(with.logits, without.logits, TOKENS * (size_t)m->shape.vocab);
    assert_true(with.experts.hits > 0 && with.experts.refills > 0);
    free(with.logits);
    free(without.logits);
    neurons_free(&n);
    model_close(m);
}

/* What repeats is there after as many steps as it takes to come, one expert a step. */
static void what_is_chosen_again_comes_to_stay(void **state)
{
    (void)state;
    struct model *m = experts_model("qwen3moe", NULL, NULL, DT_Q8_0);
    struct plan p;
    struct engine_stats before, after;
    plan_caches(&p, m, 0, USED, "vram=64MiB");
    struct engine *e = open_engine(m, &p, (struct engine_options){.threads = 1});
    free(decode(e, m->shape.vocab, TOKENS, 1, 1));
    engine_get_stats(e, &before);
    free(decode(e, m->shape.vocab, TOKENS, 1, 1));
    engine_get_stats(e, &after);
    const double hits = (double)(after.experts.hits - before.experts.hits);
    const double choices = (double)(after.experts.choices - before.experts.choices);
    print_message("%.0f of %.0f choices, %d refills\n", hits, choices, (int)after.experts.refills);
    assert_int_equal(after.experts.caches, 3);
    assert_int_equal(after.experts.slots, 3 * USED);
    assert_true(choices == 3.0 * USED * TOKENS);
    assert_true(hits > 0.6 * choices); /* a quarter if they were random */
    engine_close(e);
    plan_free(&p);
    model_close(m);
}

/* Copying an expert takes longer than all of the steps: slots that were given up stay unused. */
static void an_expert_on_its_way_is_not_used(void **state)
{
    (void)state;
    struct model *m = experts_model("qwen3moe", NULL, NULL, DT_F32);
    const struct outcome without = run(m, 0, 0, 1, 1, "vram=64MiB");
    const struct outcome slow = run(m, 0, 2, 1, 1, "vram=64MiB,link=1kB/s,latency=0");
    assert_same_bits(slow.logits, without.logits, TOKENS * (size_t)m->shape.vocab);
    assert_int_equal(slow.experts.refills, 3); /* one in each layer */
    free(slow.logits);
    free(without.logits);
    model_close(m);
}

/* A plan whose accelerator is the host: there is nothing to cache. */
static void without_another_device_there_is_no_cache(void **state)
{
    (void)state;
    struct model *m = experts_model("qwen3moe", NULL, NULL, DT_Q8_0);
    const struct outcome with = run(m, 4, 2, 1, 1, "vram=64MiB");
    struct plan p;
    struct engine_stats stats;
    plan_caches(&p, m, 4, 2, "vram=64MiB");
    struct engine *e =
        open_engine(m, &p, (struct engine_options){.devices = "cpu", .map = "sim:0=cpu:0"});
    float *logits = decode(e, m->shape.vocab, TOKENS, TOKENS, 1);
    engine_get_stats(e, &stats);
    assert_int_equal(stats.experts.caches, 0);
    assert_same_bits(with.logits, logits, TOKENS * (size_t)m->shape.vocab);
    engine_close(e);
    free(logits);
    free(with.logits);
    plan_free(&p);
    model_close(m);
}

/* The same with the experts' cache on cuda:0. */
static struct outcome run_on_gpu(const struct model *m, int32_t fixed, int32_t slots, int32_t batch,
                                 bool deterministic, int *warnings)
{
    struct plan p;
    struct oato_error err;
    struct engine *e;
    const struct engine_options options = {.threads = 1, .deterministic = deterministic};
    plan_caches(&p, m, fixed, slots, "");
    snprintf(p.devices[1].kind, sizeof p.devices[1].kind, "cuda");
    snprintf(p.devices[1].id, sizeof p.devices[1].id, "cuda:0");
    if (engine_open(m, &p, &options, count_warnings, warnings, &e, &err))
        fail_msg("%s", err.text);
    const struct outcome o = outcome_of(e, m, GPU_TOKENS, batch);
    plan_free(&p);
    return o;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the rows' errors the upper quartile: behind a few roundings a token may choose another expert.
 */
static double error_of_most(const float *got, const float *expected, size_t rows, size_t vocab)
{
    double error[BATCH * GPU_TOKENS] = {0};
    for (size_t r = 0; r < rows; r++)
        error[r] = nmse(got + r * vocab, expected + r * vocab, vocab);
    qsort(error, rows, sizeof *error, by_size);
    return error[rows * 3 / 4];
}

/* A part of the experts on the GPU for good or none, some or all of the others in its cache: as
 * near to the host's as what has all of them on the GPU. */
static void a_gpu_caches_experts_of_any_model(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *keys, *optional;
        oato_dtype dtype;
        int32_t fixed, slots, batch;
    } cases[] = {
        {"qwen3moe", NULL, "scale", DT_Q8_0, 0, 2, 1},
        {"qwen3moe", NULL, NULL, DT_Q4_K, 4, 5, BATCH},
        {"gpt-oss", "attention.sliding_window=64", NULL, DT_MXFP4, 0, EXPERTS, 1},
        {"llama4", "interleave_moe_layer_step=1 expert_feed_forward_length=256", NULL, DT_F32, 4, 1,
         1},
    };
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m =
            experts_model(cases[i].architecture, cases[i].keys, cases[i].optional, cases[i].dtype);
        const int32_t batch = cases[i].batch, held = EXPERTS - cases[i].fixed;
        const size_t rows = (size_t)batch * GPU_TOKENS, vocab = (size_t)m->shape.vocab;
        int warnings = 0;
        const struct outcome without = run_on_gpu(m, cases[i].fixed, 0, batch, false, &warnings);
        const struct outcome with =
            run_on_gpu(m, cases[i].fixed, cases[i].slots, batch, false, &warnings);
        const struct outcome all = run_on_gpu(m, EXPERTS, 0, batch, false, &warnings);
        const double error = error_of_most(with.logits, without.logits, rows, vocab),
                     of_gpu = error_of_most(all.logits, without.logits, rows, vocab);
        print_message("%s %s: NMSE %.1e (all on the GPU %.1e), %.0f of %.0f choices, %d refills\n",
                      cases[i].architecture, dtype_name(cases[i].dtype), error, of_gpu,
                      (double)with.experts.hits, (double)with.experts.choices,
                      (int)with.experts.refills);
        assert_true(of_gpu < 1e-3 && error < 1.5 * of_gpu);
        assert_int_equal(warnings, 0);
        assert_true(with.experts.hits > 0);
        if (cases[i].slots < held)
            assert_true(with.experts.refills > 0 && with.experts.hits < with.experts.choices);
        else
            assert_int_equal(with.experts.hits, with.experts.choices);
        free(with.logits);
        free(without.logits);
        free(all.logits);
        model_close(m);
    }
}

static void a_gpu_caches_nothing_where_all_must_compute_alike(void **state)
{
    (void)state;
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    struct model *m = experts_model("qwen3moe", NULL, NULL, DT_Q8_0);
    int told[2] = {0};
    const struct outcome without = run_on_gpu(m, 0, 0, 1, true, &told[0]);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        const struct outcome with = run_on_gpu(m, 0, 2, 1, deterministic, &told[deterministic]);
        assert_int_equal(with.experts.caches, deterministic ? 0 : 3);
        if (deterministic)
            assert_same_bits(with.logits, without.logits, GPU_TOKENS * (size_t)m->shape.vocab);
        free(with.logits);
    }
    assert_int_equal(told[0], 0);
    assert_int_equal(told[1], 1);
    free(without.logits);
    model_close(m);
}

static const struct engine_options with_sim = {.devices = "cpu,sim:vram=64MiB"};

static void impossible_caches_are_told(void **state)
{
    (void)state;
    struct model *m = experts_model("qwen3moe", NULL, NULL, DT_Q8_0);
    struct plan p;
    plan_caches(&p, m, 4, 2, "vram=64MiB");
    p.caches[1].slots = EXPERTS - 3;
    expect_refused(m, &p, &with_sim, OATO_EFILE, "9 slots on sim:0 for 8 experts of the host");
    p.caches[1].slots = 0;
    expect_refused(m, &p, &with_sim, OATO_EFILE, "cache 1: operator 'blk.1.");
    p.caches[1] = p.caches[0];
    expect_refused(m, &p, &with_sim, OATO_EFILE, "caches 0 and 1 of the plan are both of 'blk.0.");
    p.caches[1].op = "blk.1.attn_norm";
    expect_refused(m, &p, &with_sim, OATO_EFILE, "the model has no experts 'blk.1.attn_norm'");
    p.caches[1].op = p.caches[2].op;
    p.caches[1].device = 0;
    expect_refused(m, &p, &with_sim, OATO_EFILE, "2 slots on cpu:0");
    p.n_caches = 1;
    for (int i = 0; i < 4; i++)
        p.parts[i].device = p.parts[i].home = 1;
    expect_refused(m, &p, &with_sim, OATO_EFILE, "is not in one part on the host");
    plan_free(&p);
    model_close(m);
    m = tiny_model_of("qwen3moe", DT_Q8_0, 1); /* 160 rows */
    plan_caches(&p, m, 0, 2, "vram=64MiB");
    expect_refused(m, &p, &with_sim, OATO_EFILE, "a cache needs multiples of 64");
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_get_the_same_bits_whatever_lies_in_the_cache),
        cmocka_unit_test(a_cache_follows_the_order_of_a_sidecar),
        cmocka_unit_test(what_is_chosen_again_comes_to_stay),
        cmocka_unit_test(an_expert_on_its_way_is_not_used),
        cmocka_unit_test(without_another_device_there_is_no_cache),
        cmocka_unit_test(a_gpu_caches_experts_of_any_model),
        cmocka_unit_test(a_gpu_caches_nothing_where_all_must_compute_alike),
        cmocka_unit_test(impossible_caches_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
