/*
 * test_cuda_engine.c - the engine with CUDA devices: weights that stay with the host and are
 * streamed give the bits of resident ones, in the memory of their staging room alone; steps that
 * are one kernel, or several with work of the host between, give the bits of graphs; cuBLAS
 * computes where the plan names its class and nowhere else; values go from one GPU to the other
 * with the same bits, whichever way; candidates of rows of logits are the first of the rows; where
 * silent neurons are skipped, the bits are those of computing them.
 */
#include "tests/executor/harness.h"
#include "tests/kernels/cuda_counts.h"

#include "kernels/device.h"

#include <stdlib.h>

enum { PROMPT = 9, ANSWER = 4, LONG_PROMPT = 41 };

/* Logits of a prompt, and of tokens one by one behind it. */
static float *answer_of(struct engine *e, int32_t vocab)
{
    const size_t row = (size_t)vocab;
    int32_t ids[PROMPT + ANSWER], seq;
    struct oato_error err;
    fill_ids(ids, PROMPT + ANSWER, vocab, 5);
    float *all = realloc(logits_of(e, ids, PROMPT), (PROMPT + ANSWER) * row * sizeof *all);
    assert_non_null(all);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < ANSWER; i++) {
        struct engine_input in = {seq, &ids[PROMPT + i], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
        memcpy(all + (PROMPT + (size_t)i) * row, engine_logits(e, 0), row * sizeof *all);
    }
    engine_seq_free(e, seq);
    return all;
}

static void streamed_weights_give_the_bits_of_resident_ones(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype dtype;
    } models[] = {{"llama", DT_Q4_K}, {"llama", DT_Q8_0}, {"qwen3moe", DT_Q4_1}};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = tiny_model_of(models[i].architecture, models[i].dtype, i);
        const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
        float *logits[2];
        uint64_t weight_bytes[2];
        struct plan p;
        struct graph fused;
        plan_begin_gpu(&p, m, &fused);
        for (int streams = 0; streams < 2; streams++) {
            struct engine_stats stats;
            plan_on_gpu(&p, &fused, streams);
            struct engine *e = open_engine(m, &p, options);
            logits[streams] = answer_of(e, m->shape.vocab);
            engine_get_stats(e, &stats);
            weight_bytes[streams] = stats.device[1].weight_bytes;
            assert_int_equal(stats.device[1].staging_bytes > 0, streams);
            assert_int_equal(stats.stream_bytes[PHASE_DECODE] > 0, streams);
            engine_close(e);
        }
        assert_true(weight_bytes[1] < weight_bytes[0]);
        assert_same_bits(logits[0], logits[1], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
        free(logits[0]);
        free(logits[1]);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

static void graphs_give_the_bits_of_launches(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype dtype;
        bool divided; /* between the devices */
    } cases[] = {{"llama", DT_Q4_K, false},
                 {"qwen3moe", DT_Q4_1, false},
                 {"llama", DT_Q8_0, true},
                 {"qwen35", DT_Q8_0, false}};
    count_begin();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m = tiny_model_of(cases[i].architecture, cases[i].dtype, i);
        const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
        float *logits[2];
        for (int graphs = 0; graphs < 2; graphs++) {
            struct plan p;
            struct graph fused;
            struct random r = {7};
            plan_begin_gpu(&p, m, &fused);
            plan_on_gpu(&p, &fused, false);
            if (cases[i].divided) {
                p.n_parts = p.n_kv = 0;
                plan_place_randomly(&p, &fused, &r);
            }
            setenv("OATO_CUDA_GRAPHS", graphs ? "1" : "0", 1);
            struct engine *e = open_engine(m, &p, options);
            graph_launches = 0;
            logits[graphs] = answer_of(e, m->shape.vocab);
            if (graphs)
                assert_in_range(graph_launches, (cases[i].divided ? 2 : 1) * (ANSWER - 1), 1000);
            else
                assert_int_equal(graph_launches, 0);
            engine_close(e);
            graph_free(&fused);
            plan_free(&p);
        }
        assert_same_bits(logits[0], logits[1], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
        free(logits[0]);
        free(logits[1]);
        model_close(m);
    }
    unsetenv("OATO_CUDA_GRAPHS");
    count_end();
}

/* ------------------------------------------------------------------------ classes -------- */

static void count_warning(void *user, const char *text)
{
    *(int *)user += strstr(text, "own kernels") != NULL;
}

/* Logits of a long prompt under a plan that names these classes; steps of `ubatch` tokens. */
static float *logits_under(const struct model *m, struct plan *p, const char *classes,
                           int32_t ubatch, bool deterministic, int *warnings)
{
    const struct engine_options options = {
        .threads = 1, .rows = LONG_PROMPT, .ubatch = ubatch, .deterministic = deterministic};
    int32_t ids[LONG_PROMPT];
    struct engine *e;
    struct oato_error err;
    int ignored = 0;
    p->numerics[PHASE_PREFILL] = classes;
    if (engine_open(m, p, &options, count_warning, warnings ? warnings : &ignored, &e, &err))
        fail_msg("%s", err.text);
    fill_ids(ids, LONG_PROMPT, m->shape.vocab, 7);
    float *logits = logits_of(e, ids, LONG_PROMPT);
    engine_close(e);
    return logits;
}

/* A GPU's library may happen to sum up as our kernels do; the emulated one does not. */
static void assert_near_not_same(const float *a, const float *b, size_t n, double limit)
{
    const char *driver = getenv("OATO_CUDA_DRIVER");
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        energy += (double)a[i] * (double)a[i];
    }
    if (!(error < limit * energy))
        fail_msg("NMSE %g", error / energy);
    assert_true(error > 0 || !driver || !*driver);
}

static bool has_library(void)
{
    struct oato_error err;
    struct oato_device *d;
    const struct oato_op op = {.kind = OP_MUL_MAT, .dtype = DT_F16, .k = 64, .n = 64};
    if (device_open("cuda", 0, NULL, &d, &err))
        fail_msg("%s", err.text);
    const bool has = strchr(d->ops->numerics(d, &op, NUMERICS_LIBRARY), '.') != NULL;
    d->ops->close(d);
    return has;
}

static void a_library_computes_where_the_plan_names_it(void **state)
{
    (void)state;
    if (!has_library())
        skip();
    struct model *m = tiny_model(DT_F16, 3);
    const size_t n = LONG_PROMPT * (size_t)m->shape.vocab;
    struct plan p;
    struct graph fused;
    int warnings[2] = {0};
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    float *own = logits_under(m, &p, "f32+f16", 64, false, &warnings[0]);
    float *library = logits_under(m, &p, "f32+f16.cublas+f16", 64, false, &warnings[0]);
    float *again = logits_under(m, &p, "f32+f16.cublas+f16", 64, false, NULL);
    assert_same_bits(library, again, n);
    assert_near_not_same(own, library, n, 1e-5);
    free(again);
    /* our own class keeps its bits when the prompt comes in pieces */
    again = logits_under(m, &p, "f32+f16", 20, false, NULL);
    assert_same_bits(own, again, n);
    free(again);
    /* one that nobody here has: our own, and a line about it */
    again = logits_under(m, &p, "f32+f16.elsewhere", 64, false, &warnings[1]);
    assert_same_bits(own, again, n);
    free(again);
    assert_int_equal(warnings[0], 0);
    assert_int_equal(warnings[1], 1);
    /* one class for all phases is never a library's */
    float *single = logits_under(m, &p, "f32", 64, true, NULL);
    again = logits_under(m, &p, "f32+f16.cublas", 64, true, NULL);
    assert_same_bits(single, again, n);
    free(again);
    free(single);
    free(library);
    free(own);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* A model of which the library computes some and streams bring all weights. */
static void streamed_weights_are_there_for_the_library(void **state)
{
    (void)state;
    if (!has_library())
        skip();
    struct model *m = tiny_model(DT_BF16, 4);
    struct plan p;
    struct graph fused;
    float *logits[2];
    plan_begin_gpu(&p, m, &fused);
    for (int streams = 0; streams < 2; streams++) {
        plan_on_gpu(&p, &fused, streams);
        logits[streams] = logits_under(m, &p, "bf16.cublas", 64, false, NULL);
    }
    assert_same_bits(logits[0], logits[1], LONG_PROMPT * (size_t)m->shape.vocab);
    free(logits[0]);
    free(logits[1]);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* ------------------------------------------------------------------------- memory -------- */

/* A driver rounds each allocation up to 2 MiB: a model has more weights than this GPU has room for
 * such, and fits. */
static void weights_share_allocations(void **state)
{
    (void)state;
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    enum { GRANULE = 2 << 20, MOST = 12, ROOMS = 8 }; /* ROOMS: of cuda_unpack.c */
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct plan p;
    struct graph fused;
    struct device_info info;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    setenv("OATO_CUDA_ON_CPU_GRANULE", "2097152", 1);
    struct engine *e = open_engine(m, &p, (struct engine_options){.threads = 1, .ubatch = 16});
    struct oato_device *d = engine_borrow_device(e, "cuda:0");
    d->ops->info(d, &info);
    unsetenv("OATO_CUDA_ON_CPU_GRANULE");
    const uint64_t taken = (info.memory_bytes - info.free_bytes) / GRANULE;
    assert_true(fused.n_ops > 2 * MOST);
    assert_in_range(taken, 4, MOST + ROOMS);
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* Whichever allocation finds no memory, loading ends with a line, or does without it. */
static void memory_that_ends_while_loading_is_told(void **state)
{
    (void)state;
    enum { ALLOCATIONS = 40 };
    struct model *m = tiny_model_of("llama", DT_Q4_K, 1);
    const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
    struct plan p;
    struct graph fused;
    int failed = 0;
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, true);
    for (int i = 1; i <= ALLOCATIONS; i++) {
        struct engine *e = NULL;
        struct oato_error err;
        char text[32];
        snprintf(text, sizeof text, "alloc=%d", i);
        setenv("OATO_CUDA_ON_CPU_FAIL", text, 1);
        const oato_status status = engine_open(m, &p, &options, NULL, NULL, &e, &err);
        unsetenv("OATO_CUDA_ON_CPU_FAIL");
        if (status && (status != OATO_EFIT || strncmp(err.text, "cuda:0: ", 8) != 0))
            fail_msg("allocation %d: status %d, %s", i, status, err.text);
        failed += status != OATO_OK;
        engine_close(e);
    }
    assert_in_range(failed, 3, ALLOCATIONS - 3);
    setenv("OATO_CUDA_ON_CPU_MEMORY", "100000", 1); /* others use the rest */
    struct engine *e = NULL;
    struct oato_error err;
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "may use 0.1 MiB, which are free now: "));
    assert_non_null(
        strstr(err.text, "MiB are missing; stop what else uses it, or plan again: oato-plan "));
    assert_non_null(strstr(err.text, " --budget cuda:0=0MiB"));
    unsetenv("OATO_CUDA_ON_CPU_MEMORY");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* What a library took since the device was opened is not free any more: said before anything is
 * loaded, with what is needed. */
static void memory_is_looked_at_when_all_have_theirs(void **state)
{
    (void)state;
    if (!getenv("OATO_CUDA_DRIVER") || !has_library())
        skip();
    struct model *m = tiny_model(DT_F16, 3);
    const struct engine_options options = {.threads = 1, .ubatch = 64};
    struct engine *e;
    struct plan p;
    struct graph fused;
    struct oato_error err;
    int ignored = 0;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    p.numerics[PHASE_PREFILL] = "f32+f16.cublas+f16";
    setenv("OATO_CUDA_ON_CPU_BLAS_MEMORY", "1072693248", 1); /* all but 1 MiB */
    assert_int_equal(engine_open(m, &p, &options, count_warning, &ignored, &e, &err), OATO_EFIT);
    unsetenv("OATO_CUDA_ON_CPU_BLAS_MEMORY");
    assert_non_null(strstr(err.text, "cuda:0: needs "));
    assert_non_null(strstr(err.text, "may use 1.0 MiB"));
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void loading_ends_when_it_is_interrupted(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q8_0, 3);
    const struct engine_options options = {.threads = 1, .ubatch = 16};
    struct engine *e;
    struct plan p;
    struct graph fused;
    struct oato_error err;
    int ignored = 0;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    oato_interrupted = 1;
    const oato_status status = engine_open(m, &p, &options, count_warning, &ignored, &e, &err);
    oato_interrupted = 0;
    assert_int_equal(status, OATO_NEGATIVE);
    assert_null(e);
    assert_string_equal(err.text, "interrupted");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* All of the model on two GPUs, operator by operator in turns but for what touches KV. */
static void plan_on_two(struct plan *p, const struct graph *g)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const bool kv = o->op.kind == OP_KV_STORE || o->op.kind == OP_ATTENTION;
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] =
                (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, 1 + o->kv_layer % 2};
        plan_add_part(p, o->name, 0, o->op.n, kv ? 1 + o->kv_layer % 2 : 1 + i % 2);
    }
}

static bool goes_directly(const struct engine *e)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    engine_dump_programs(e, out);
    fclose(out);
    const bool direct = strstr(text, " peer ") != NULL;
    free(text);
    return direct;
}

static void two_gpus_give_the_bits_of_one(void **state)
{
    (void)state;
    setenv("OATO_CUDA_ON_CPU_DEVICES", "2", 1);
    const bool emulated = getenv("OATO_CUDA_DRIVER") != NULL;
    struct model *m = tiny_model_of("qwen3moe", DT_Q8_0, 3);
    const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
    float *logits[3];
    int ways = 0;
    for (; ways < 3 && cuda_device_ops.probe() > 1; ways++) { /* one GPU, directly, by the host */
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, "");
        for (int d = 1; d < 3; d++) {
            snprintf(p.devices[d].kind, sizeof p.devices[d].kind, "cuda");
            snprintf(p.devices[d].id, sizeof p.devices[d].id, "cuda:%d", d - 1);
        }
        plan_fuse_all(&p, m, &fused);
        if (ways)
            plan_on_two(&p, &fused);
        else
            plan_on_gpu(&p, &fused, false);
        setenv("OATO_CUDA_ON_CPU_PEERS", ways == 2 ? "0" : "1", 1);
        struct engine *e = open_engine(m, &p, options);
        if (emulated)
            assert_int_equal(goes_directly(e), ways == 1);
        logits[ways] = answer_of(e, m->shape.vocab);
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    unsetenv("OATO_CUDA_ON_CPU_PEERS");
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
    assert_true(ways == 3 || !emulated);
    for (int i = 0; i < ways; i++)
        assert_same_bits(logits[0], logits[i], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
    for (int i = 0; i < ways; i++)
        free(logits[i]);
    model_close(m);
}

/* Steps are captured as graphs when they come again, with the kernels of candidates among them. */
static void candidates_are_the_first_of_the_row(void **state)
{
    enum { CANDIDATES = 11 };
    (void)state;
    struct model *m = tiny_model(DT_Q8_0, 3);
    const int32_t vocab = m->shape.vocab;
    struct engine *e[2]; /* whole rows, candidates */
    struct plan p;
    struct graph fused;
    int32_t ids[PROMPT + ANSWER], seq;
    struct oato_error err;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    fill_ids(ids, PROMPT + ANSWER, vocab, 5);
    for (int i = 0; i < 2; i++) {
        e[i] = open_engine(m, &p,
                           (struct engine_options){.threads = 1, .top_logits = i ? CANDIDATES : 0});
        assert_int_equal(engine_seq_create(e[i], &seq, &err), OATO_OK);
    }
    for (int32_t at = 0, n; at < PROMPT + ANSWER; at += n) {
        n = at ? 1 : PROMPT;
        const bool whole = at % 3 == 0; /* steps of either kind have graphs of their own */
        const struct engine_input in = {seq, ids + at, n, whole ? LOGITS_LAST : LOGITS_PICKS, !at};
        int32_t got;
        for (int i = 0; i < 2; i++)
            if (engine_step(e[i], &in, 1, &err))
                fail_msg("%s", err.text);
        const float *candidates = engine_candidates(e[1], 0, &got);
        if (whole) {
            assert_null(candidates);
            assert_memory_equal(engine_logits(e[0], 0), engine_logits(e[1], 0),
                                (size_t)vocab * sizeof(float));
            continue;
        }
        assert_non_null(candidates);
        assert_int_equal(got, CANDIDATES);
        assert_candidates(candidates, got, engine_logits(e[0], 0), vocab);
    }
    engine_close(e[0]);
    engine_close(e[1]);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void silent_neurons_change_no_bit(void **state)
{
    (void)state;
    static const char *const modes[] = {"off", "dense", "exact", "predict", "predict"};
    struct model *m = relu_model(DT_Q4_K);
    struct neurons guesses;
    const size_t n = (PROMPT + ANSWER) * (size_t)m->shape.vocab;
    float *logits[ARRAY_LEN(modes)];
    struct plan p;
    struct graph fused;
    predictors_init(&guesses, m);
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        const struct engine_options options = {.threads = 1,
                                               .rows = 16,
                                               .ubatch = i == 1 ? 4 : 16,
                                               .sparse = sparse_of(modes[i]),
                                               .neurons = &guesses};
        predictors_limit(&guesses, i == 3 ? -1e9f : 0);
        struct engine *e = open_engine(m, &p, options);
        logits[i] = answer_of(e, m->shape.vocab);
        engine_close(e);
    }
    assert_same_bits(logits[1], logits[2], n);
    assert_same_bits(logits[2], logits[3], n); /* lists of all */
    assert_memory_not_equal(logits[3], logits[4], n * sizeof(float));
    assert_near_not_same(logits[0], logits[1], n, 1e-3);
    for (size_t i = 0; i < ARRAY_LEN(modes); i++)
        free(logits[i]);
    neurons_free(&guesses);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    struct oato_error err;
    struct oato_device *d;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_weights_give_the_bits_of_resident_ones),
        cmocka_unit_test(graphs_give_the_bits_of_launches),
        cmocka_unit_test(a_library_computes_where_the_plan_names_it),
        cmocka_unit_test(streamed_weights_are_there_for_the_library),
        cmocka_unit_test(weights_share_allocations),
        cmocka_unit_test(memory_that_ends_while_loading_is_told),
        cmocka_unit_test(memory_is_looked_at_when_all_have_theirs),
        cmocka_unit_test(loading_ends_when_it_is_interrupted),
        cmocka_unit_test(two_gpus_give_the_bits_of_one),
        cmocka_unit_test(candidates_are_the_first_of_the_row),
        cmocka_unit_test(silent_neurons_change_no_bit),
    };
    if (device_open("cuda", 0, NULL, &d, &err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    d->ops->close(d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
