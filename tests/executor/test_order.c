/*
 * test_order.c - plans that follow a neurons sidecar: a part has the neurons and experts that the
 * sidecar's order gives it. A plan without a sidecar for a model whose neurons and experts were put
 * in that order beforehand has the same bits, and so has the same plan with all of it on the CPU,
 * with any number of threads; so has a plan whose parts guess which of their neurons are active. A
 * sidecar that the plan does not follow is refused.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>
#include <unistd.h>

enum { PROMPT = 20, DECODED = 3, PARTS = 4, BOTH = 3, PREFILL = 1, DECODE = 2 };

/* ------------------------------------------------------------------------------- sidecars */

/* Random frequencies in every layer of the model. */
static void sidecar_make(const struct model *m, struct random *r, struct neurons *n)
{
    neurons_init(n);
    n->structure_hash = gguf_structure_hash(m->gguf);
    n->source = "";
    n->n_layers = m->graph.n_layers;
    n->layers = arena_alloc(&n->arena, (size_t)n->n_layers, sizeof *n->layers);
    for (int32_t i = 0; i < m->graph.n_ops; i++) {
        const struct graph_op *o = &m->graph.ops[i];
        const bool experts = o->op.kind == OP_EXPERT_GATE_UP;
        const int32_t count = experts ? o->op.experts : o->op.n;
        if (!experts && o->op.kind != OP_SWIGLU)
            continue;
        float *freq = arena_alloc(&n->arena, (size_t)count, sizeof *freq);
        int32_t *order = arena_alloc(&n->arena, (size_t)count, sizeof *order);
        struct neurons_layer *l = &n->layers[o->layer];
        for (int32_t k = 0; k < count; k++)
            freq[k] = (float)random_below(r, 1000) / 1000;
        neurons_order(freq, count, order);
        *(experts ? &l->n_experts : &l->n_ff) = count;
        *(experts ? &l->exp_freq : &l->ffn_freq) = freq;
        *(experts ? &l->exp_order : &l->ffn_order) = order;
    }
}

/* --------------------------------------------------------------------------------- models */

/* Matrices of F32 but for those of the feed-forward blocks. */
static struct model *model_of(oato_dtype dtype, bool experts, uint64_t seed)
{
    return tiny_model_of(experts ? "qwen3moe" : "llama", dtype, seed);
}

static struct gguf_tensor *tensor(const struct model *m, int32_t layer, const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    const struct gguf_tensor *t = gguf_tensor(m->gguf, full);
    if (!t)
        fail_msg("no %s", full);
    return (struct gguf_tensor *)(uintptr_t)t;
}

/* The tensor's i-th block of `bytes` becomes that of order[i], in every stretch of n blocks. */
static void reorder(struct gguf_tensor *t, const int32_t *order, size_t n, size_t bytes)
{
    uint8_t *to = malloc(t->bytes);
    for (size_t at = 0; at < t->bytes; at += n * bytes)
        for (size_t i = 0; i < n; i++)
            memcpy(to + at + i * bytes, t->data + at + (size_t)order[i] * bytes, bytes);
    t->data = to;
    t->file = NULL;
}

static int ascending(const void *a, const void *b)
{
    return order_i64(*(const int32_t *)a, *(const int32_t *)b);
}

/* Neurons in the order in which the parts have them: each part's ascending. cut: PARTS + 1 */
static void neurons_reorder(const struct model *m, int32_t layer, const struct neurons_layer *l,
                            const int32_t *cut)
{
    int32_t order[512];
    memcpy(order, l->ffn_order, sizeof order);
    for (int i = 0; i < PARTS; i++)
        qsort(order + cut[i], (size_t)(cut[i + 1] - cut[i]), sizeof *order, ascending);
    struct gguf_tensor *down = tensor(m, layer, "ffn_down");
    for (int i = 0; i < 2; i++) {
        struct gguf_tensor *t = tensor(m, layer, i ? "ffn_up" : "ffn_gate");
        reorder(t, order, 512, t->bytes / 512);
    }
    reorder(down, order, 512, dtype_info((int)down->dtype)->block_bytes);
}

static void experts_reorder(const struct model *m, int32_t layer, const struct neurons_layer *l)
{
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
                                        "ffn_gate_inp"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct gguf_tensor *t = tensor(m, layer, names[i]);
        reorder(t, l->exp_order, (size_t)l->n_experts, t->bytes / (size_t)l->n_experts);
    }
}

static void reordered_free(struct model *m)
{
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++)
        if (!gguf_tensor_at(m->gguf, i)->file)
            free((void *)(uintptr_t)gguf_tensor_at(m->gguf, i)->data);
    model_close(m);
}

/* ---------------------------------------------------------------------------------- plans */

static void put(struct plan *p, const struct graph_op *o, enum op_axis axis, const int32_t *range,
                uint32_t phases, int32_t device, int32_t home)
{
    p->parts[p->n_parts++] = (struct plan_part){.op = o->name,
                                                .axis = axis,
                                                .begin = range[0],
                                                .end = range[1],
                                                .phases = phases,
                                                .device = device,
                                                .home = home};
}

/* Every feed-forward block in PARTS parts on random devices; those of the host are streamed in
 * prefill now and then. The same cuts in all layers. */
static void plan_make(struct plan *p, const struct model *m, struct graph *fused, struct random *r,
                      int32_t cut[PARTS + 1])
{
    plan_begin(p, m, 2, "vram=64MiB");
    plan_fuse_all(p, m, fused);
    for (int32_t i = 0; i + 1 < fused->n_ops; i++) {
        const struct graph_op *o = &fused->ops[i];
        const bool experts = o->op.kind == OP_EXPERT_GATE_UP;
        if (!experts && o->op.kind != OP_GATE_UP)
            continue;
        const int32_t block = (int32_t)dtype_info(o[1].op.dtype)->block_elems;
        const int32_t all = experts ? o->op.experts : o->op.n;
        const int32_t unit = experts ? all / 8 : block > 64 ? block : 64;
        for (int k = 0; k <= PARTS; k++) /* the last ones may be empty */
            cut[k] = (int32_t)min_i64(all, k < PARTS ? unit * (k < 2 ? k : k + 1) : all);
        for (int k = 0; k < PARTS; k++) {
            const int32_t device = (int32_t)random_below(r, 3);
            const bool streams = !device && random_below(r, 2);
            for (int half = 0; half < 2; half++) {
                const enum op_axis axis = experts ? AXIS_EXPERTS : half ? AXIS_K : AXIS_ROWS;
                if (streams)
                    put(p, o + half, axis, cut + k, PREFILL, 1, 0);
                put(p, o + half, axis, cut + k, streams ? DECODE : BOTH, device, device);
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- runs */

/* Logits of a prompt, then of tokens that are decoded after it. */
static float *answer_of(const struct model *m, const struct plan *p, struct engine_options o)
{
    int32_t ids[PROMPT + DECODED], seq;
    struct oato_error err;
    const size_t row = (size_t)m->shape.vocab;
    o.ubatch = 16;
    struct engine *e = open_engine(m, p, o);
    fill_ids(ids, PROMPT + DECODED, m->shape.vocab, 5);
    float *all = realloc(logits_of(e, ids, PROMPT), (PROMPT + DECODED) * row * sizeof *all);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int t = PROMPT; t < PROMPT + DECODED; t++) {
        const struct engine_input in = {seq, &ids[t], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
        memcpy(all + (size_t)t * row, engine_logits(e, 0), row * sizeof *all);
    }
    engine_close(e);
    return all;
}

static const struct engine_options on_cpu = {.devices = "cpu", .map = "sim:0=cpu:0,sim:1=cpu:0"};

/* The plan's answer on CPU and sims and on the CPU alone with 1 to 4 threads, which are alike. */
static float *answer_everywhere(const struct model *m, const struct plan *p, int round)
{
    const size_t n = (size_t)(PROMPT + DECODED) * (size_t)m->shape.vocab;
    float *got = answer_of(m, p, (struct engine_options){.threads = 1 + round % 2});
    for (int32_t threads = 1 + round % 3; threads <= 4; threads += 3) {
        struct engine_options o = on_cpu;
        o.threads = threads;
        float *other = answer_of(m, p, o);
        assert_same_bits(got, other, n);
        free(other);
    }
    return got;
}

static void parts_have_the_neurons_that_the_order_gives_them(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q4_0, DT_Q8_0, DT_Q4_K};
    struct random r = random_of_run();
    for (int round = 0; round < 12; round++) {
        const oato_dtype dtype = types[round % 6];
        const bool experts = round >= 6, blocks = dtype_info(dtype)->block_elems > 1;
        const uint64_t seed = random_below(&r, 1000);
        struct model *m = model_of(dtype, experts, seed), *same = model_of(dtype, experts, seed);
        const size_t n = (size_t)(PROMPT + DECODED) * (size_t)m->shape.vocab;
        struct neurons neurons;
        struct plan p;
        struct graph fused;
        int32_t cut[PARTS + 1];
        print_message("%s of %s\n", experts ? "experts" : "neurons", dtype_name(dtype));
        sidecar_make(m, &r, &neurons);
        plan_make(&p, m, &fused, &r, cut);
        float *natural = answer_of(m, &p, on_cpu);
        p.neurons = &neurons;
        p.neurons_hash = neurons_hash(&neurons);
        float *got = answer_everywhere(m, &p, round);
        p.neurons = NULL;
        p.neurons_hash = 0;
        if (experts || !blocks) { /* columns in blocks cannot change places */
            for (int32_t l = 0; l < neurons.n_layers; l++)
                if (experts)
                    experts_reorder(same, l, &neurons.layers[l]);
                else
                    neurons_reorder(same, l, &neurons.layers[l], cut);
            float *expected = answer_of(same, &p, on_cpu);
            assert_same_bits(got, expected, n);
            free(expected);
        }
        /* other sums of the same products; where experts are as good as equal the choice tips */
        if (!experts && nmse(got, natural, n) > 1e-3)
            fail_msg("%s: NMSE %g", dtype_name(dtype), nmse(got, natural, n));
        free(got);
        free(natural);
        graph_free(&fused);
        plan_free(&p);
        neurons_free(&neurons);
        reordered_free(same);
        model_close(m);
    }
}

/* Each part has the predictor's rows of its own neurons. */
static void parts_guess_their_own_neurons(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_F16, DT_Q4_0};
    struct random r = {5};
    for (int round = 0; round < 2; round++) {
        struct model *m = relu_model(types[round]);
        const size_t n = DECODED * (size_t)m->shape.vocab, from = PROMPT * (size_t)m->shape.vocab;
        struct neurons neurons;
        struct plan p;
        struct graph fused;
        int32_t cut[PARTS + 1];
        sidecar_make(m, &r, &neurons);
        add_predictors(&neurons, m);
        struct engine_options here = {.sparse = sparse_of("predict"), .threads = 2}, all = here,
                              apart = here;
        here.neurons = apart.neurons = &neurons;
        all.sparse = sparse_of("exact");
        apart.devices = on_cpu.devices;
        apart.map = on_cpu.map;
        float *whole = answer_of(m, NULL, here), *exact = answer_of(m, NULL, all);
        plan_make(&p, m, &fused, &r, cut);
        p.neurons = &neurons;
        p.neurons_hash = neurons_hash(&neurons);
        float *got = answer_of(m, &p, here), *other = answer_of(m, &p, apart);
        assert_same_bits(got, other, n + from);
        const double far = nmse(exact + from, whole + from, n),
                     near = nmse(got + from, whole + from, n);
        print_message("NMSE %g from exact, %g by the plan\n", far, near);
        /* Devices round differently, so a few guesses tip: of a sixth of far at most was seen. Rows
         * of other neurons would be as far as all of them. */
        assert_true(far > 1e-3 && near < far / 4);
        free(other);
        free(got);
        free(exact);
        free(whole);
        graph_free(&fused);
        plan_free(&p);
        neurons_free(&neurons);
        model_close(m);
    }
}

/* The sims' parts on a GPU, with other arithmetic; some of their columns are streamed there.
 * Skipping silent neurons changes no bit. */
static void parts_may_be_on_a_gpu(void **state)
{
    (void)state;
    struct random r = random_of_run();
    struct engine_options on_gpu = {
        .threads = 2, .devices = "cpu,cuda", .map = "sim:0=cuda:0,sim:1=cuda:0"};
    if (!gpu_is_there())
        skip();
    struct model *m = relu_model(random_below(&r, 2) ? DT_Q4_0 : DT_Q6_K);
    const size_t n = (size_t)(PROMPT + DECODED) * (size_t)m->shape.vocab;
    struct neurons neurons;
    struct plan p;
    struct graph fused;
    int32_t cut[PARTS + 1];
    sidecar_make(m, &r, &neurons);
    plan_make(&p, m, &fused, &r, cut);
    p.neurons = &neurons;
    p.neurons_hash = neurons_hash(&neurons);
    float *expected = answer_of(m, &p, on_cpu), *got = answer_of(m, &p, on_gpu);
    if (nmse(got, expected, n) > 1e-3)
        fail_msg("NMSE %g", nmse(got, expected, n));
    on_gpu.sparse = sparse_of("exact");
    on_gpu.threads = 1;
    float *exact = answer_of(m, &p, on_gpu);
    assert_same_bits(got, exact, n);
    free(expected);
    free(got);
    free(exact);
    graph_free(&fused);
    plan_free(&p);
    neurons_free(&neurons);
    model_close(m);
}

static void prepared_weights_are_of_one_order(void **state)
{
    (void)state;
    struct random r = {11};
    struct model *m = model_of(DT_F16, false, 3);
    const size_t n = (size_t)(PROMPT + DECODED) * (size_t)m->shape.vocab;
    struct neurons neurons[2];
    struct plan p;
    struct graph fused;
    int32_t cut[PARTS + 1];
    char folder[] = "/tmp/oato-order-XXXXXX", command[128];
    assert_non_null(mkdtemp(folder));
    plan_make(&p, m, &fused, &r, cut);
    for (int pass = 0; pass < 4; pass++) { /* the last two find files */
        if (pass < 2)
            sidecar_make(m, &r, &neurons[pass]);
        p.neurons = &neurons[pass % 2];
        p.neurons_hash = neurons_hash(p.neurons);
        struct engine_options o = on_cpu;
        float *expected = answer_of(m, &p, o);
        o.prepared_cache = folder;
        float *got = answer_of(m, &p, o);
        assert_same_bits(got, expected, n);
        free(got);
        free(expected);
    }
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 2 && rm -r %s", folder, folder);
    assert_int_equal(system(command), 0); /* a file for each */
    graph_free(&fused);
    plan_free(&p);
    neurons_free(&neurons[0]);
    neurons_free(&neurons[1]);
    model_close(m);
}

static void only_the_plans_own_sidecar_will_do(void **state)
{
    (void)state;
    struct random r = {7};
    struct model *m = model_of(DT_F16, false, 3);
    struct neurons neurons, other;
    struct plan p;
    struct graph fused;
    int32_t cut[PARTS + 1];
    sidecar_make(m, &r, &neurons);
    sidecar_make(m, &r, &other);
    plan_make(&p, m, &fused, &r, cut);
    p.neurons_hash = neurons_hash(&neurons);
    expect_refused(m, &p, &on_cpu, OATO_EUSAGE, "name it with --neurons");
    p.neurons = &other;
    expect_refused(m, &p, &on_cpu, OATO_EUSAGE, "is not the plan's");
    p.neurons = &neurons;
    engine_close(open_engine(m, &p, on_cpu));
    p.neurons_hash = 0;
    expect_refused(m, &p, &on_cpu, OATO_EUSAGE, "leave --neurons out");
    p.neurons_hash = neurons_hash(&neurons);
    for (int32_t i = 0, kept = p.n_parts, n = 0; i < kept; i++, p.n_parts = n)
        if (p.parts[i].axis == AXIS_ROWS) /* whoever reads them wants all of them, in order */
            p.parts[n++] = p.parts[i];
    expect_refused(m, &p, &on_cpu, OATO_EFILE, "split by neurons but read as a whole");
    graph_free(&fused);
    plan_free(&p);
    neurons_free(&neurons);
    neurons_free(&other);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_neurons_that_the_order_gives_them),
        cmocka_unit_test(parts_guess_their_own_neurons),
        cmocka_unit_test(parts_may_be_on_a_gpu),
        cmocka_unit_test(prepared_weights_are_of_one_order),
        cmocka_unit_test(only_the_plans_own_sidecar_will_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
