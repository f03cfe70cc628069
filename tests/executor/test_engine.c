/*
 * test_engine.c - what the engine must keep whatever the placement: the same bits on any devices,
 * row parts, threads, chunks and batch companions; as few copies as the values demand; sequences
 * that fork, are cut back and survive failed steps.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { N = 150 };

/* ------------------------------------------------------------------------------- placement */

/* (value or part of it, other device that reads it), counted from the plan alone. */
static int32_t count_copies(const struct plan *p, const struct graph *g)
{
    int32_t copies = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *part = &p->parts[i];
        const struct graph_op *producer = NULL;
        for (int32_t o = 0; o < g->n_ops; o++)
            if (!strcmp(g->ops[o].name, part->op))
                producer = &g->ops[o];
        assert_non_null(producer);
        for (int32_t v = 0; producer && v < producer->n_out; v++) {
            bool reads[DEVICES_MAX] = {false};
            if (producer->out[v] == g->logits)
                reads[0] = true; /* whoever samples is on the host */
            for (int32_t o = 0; o < g->n_ops; o++)
                for (int32_t k = 0; k < g->ops[o].n_in; k++)
                    for (int32_t j = 0; g->ops[o].in[k] == producer->out[v] && j < p->n_parts; j++)
                        if (!strcmp(p->parts[j].op, g->ops[o].name))
                            reads[p->parts[j].device] = true;
            for (int32_t d = 0; d < p->n_devices; d++)
                copies += reads[d] && d != part->device;
        }
    }
    return copies;
}

static void any_placement_gives_the_same_bits_with_as_few_copies_as_possible(void **state)
{
    struct random r = random_of_run();
    static const oato_dtype types[] = {DT_F32, DT_Q4_1, DT_Q4_K, DT_F16, DT_MXFP4};
    static const char *const architectures[] = {"llama", "qwen3moe", "llama", "qwen3"};
    (void)state;
    for (int round = 0; round < 12; round++) {
        struct model *m =
            tiny_model_of(architectures[round % 4], types[round % 5], random_below(&r, 1000));
        int32_t ids[N];
        fill_ids(ids, N, m->shape.vocab, r.state);
        struct engine_options options = {.threads = 1 + round % 2, .rows = 64};
        struct engine *alone = open_engine(m, NULL, options);
        float *expected = logits_of(alone, ids, N);
        engine_close(alone);

        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 1 + round % 3, round % 2 ? "vram=64MiB,peer=50GB/s" : "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        plan_place_randomly(&p, &fused, &r);
        struct engine *e = open_engine(m, &p, options);
        float *got = logits_of(e, ids, N);
        assert_same_bits(got, expected, (size_t)N * (size_t)m->shape.vocab);
        free(got);
        got = logits_of(e, ids, 1); /* the decode program */
        assert_same_bits(got, expected, (size_t)m->shape.vocab);
        free(got);
        struct engine_stats stats;
        engine_get_stats(e, &stats);
        assert_int_equal(stats.copies[PHASE_PREFILL], count_copies(&p, &fused));
        assert_int_equal(stats.copies[PHASE_DECODE], count_copies(&p, &fused));
        engine_close(e);

        /* the same plan with all parts on the CPU */
        options.devices = "cpu";
        options.map = "sim:0=cpu:0,sim:1=cpu:0,sim:2=cpu:0";
        e = open_engine(m, &p, options);
        got = logits_of(e, ids, N);
        assert_same_bits(got, expected, (size_t)N * (size_t)m->shape.vocab);
        engine_get_stats(e, &stats);
        assert_int_equal(stats.copies[PHASE_DECODE], 0);
        engine_close(e);
        free(got);
        free(expected);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* Lines of all programs that hold the word. */
static int lines_with(const struct engine *e, const char *word)
{
    char *text = NULL;
    size_t size;
    int n = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    engine_dump_programs(e, out);
    fclose(out);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        n++;
    free(text);
    return n;
}

/* One part of each feed-forward block on either accelerator: what is between goes directly. */
static void accelerators_that_reach_each_other_need_no_host(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 7);
    const struct engine_options options = {.rows = 64};
    int32_t ids[N];
    int downloads[2];
    float *logits[2];
    (void)state;
    fill_ids(ids, N, m->shape.vocab, 1);
    for (int direct = 0; direct < 2; direct++) {
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, direct ? "vram=64MiB,peer=50GB/s" : "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        for (int32_t i = 0; i < fused.n_ops; i++) {
            const struct graph_op *o = &fused.ops[i];
            const bool down = i && fused.ops[i - 1].op.kind == OP_GATE_UP;
            if (o->op.kind == OP_GATE_UP || down)
                plan_add_part(&p, o->name, 0, o->op.n, down ? 2 : 1);
        }
        struct engine *e = open_engine(m, &p, options);
        struct engine_stats stats;
        engine_get_stats(e, &stats);
        assert_int_equal(stats.copies[PHASE_DECODE], 3 * fused.n_layers);
        assert_int_equal(lines_with(e, " peer "), direct * fused.n_layers * PHASE_COUNT);
        assert_int_equal(lines_with(e, " of sim:0 "), direct * fused.n_layers * PHASE_COUNT);
        downloads[direct] = lines_with(e, " download ");
        assert_int_equal(downloads[direct], (2 - direct) * fused.n_layers * PHASE_COUNT);
        logits[direct] = logits_of(e, ids, N);
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    assert_same_bits(logits[0], logits[1], (size_t)N * (size_t)m->shape.vocab);
    free(logits[0]);
    free(logits[1]);
    model_close(m);
}

static void phases_may_be_placed_apart(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 7);
    struct plan p;
    struct graph fused;
    int32_t ids[N];
    (void)state;
    fill_ids(ids, N, m->shape.vocab, 1);
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (o->op.kind != OP_GATE_UP)
            continue;
        plan_add_part(&p, o->name, 0, o->op.n, 1);
        p.parts[p.n_parts - 1].phases = 1 << PHASE_PREFILL;
        plan_add_part(&p, o->name, 0, o->op.n, 0);
        p.parts[p.n_parts - 1].phases = 1 << PHASE_DECODE;
    }
    struct engine_options options = {.rows = 64};
    struct engine *a = open_engine(m, NULL, options), *b = open_engine(m, &p, options);
    struct engine_stats stats;
    engine_get_stats(b, &stats);
    assert_int_equal(stats.copies[PHASE_PREFILL], 2 * fused.n_layers);
    assert_int_equal(stats.copies[PHASE_DECODE], 0);
    float *x = logits_of(a, ids, N), *y = logits_of(b, ids, N);
    assert_same_bits(x, y, (size_t)N * (size_t)m->shape.vocab);
    free(x);
    free(y);
    engine_close(a);
    engine_close(b);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void what_does_not_fit_is_said_in_mib_before_anything_is_loaded(void **state)
{
    struct model *m = tiny_model(DT_F32, 3);
    struct plan p;
    struct graph fused;
    struct engine *e;
    struct oato_error err;
    struct engine_options options = {0};
    (void)state;
    plan_begin(&p, m, 1, "vram=1MiB");
    plan_fuse_all(&p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++)
        if (fused.ops[i].op.kind == OP_GATE_UP)
            plan_add_part(&p, fused.ops[i].name, 0, fused.ops[i].op.n, 1);
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "sim:0"));
    assert_non_null(strstr(err.text, "MiB are missing"));
    assert_null(e);
    snprintf(p.devices[1].spec, sizeof p.devices[1].spec, "vram=1GiB");
    e = open_engine(m, &p, options);
    engine_close(e);
    p.devices[1].budget_bytes = 1 << 20; /* the plan's own limit counts too */
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFIT);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void note_warning(void *user, const char *text)
{
    snprintf(user, 320, "%s", text);
}

/* Of a plan for cpu:0, whose processor has another name: what counts is how it computes. */
static void expect_strict_by_kernels(const struct model *m, const struct plan *given)
{
    struct plan plan = *given, *p = &plan;
    const struct engine_options options = {.strict = true};
    struct plan_kernels here = {0, NULL, NULL};
    struct device_options any = {0};
    struct oato_device *cpu;
    struct device_info info;
    struct engine *e;
    struct oato_error err;
    assert_int_equal(device_open("cpu", 0, &any, &cpu, &err), OATO_OK);
    cpu->ops->info(cpu, &info);
    here.isa = info.isa;
    here.layout = or_empty(cpu->ops->layout(cpu));
    p->kernels = &here;
    p->n_kernels = 1;
    assert_int_equal(engine_open(m, p, &options, NULL, NULL, &e, &err), OATO_OK);
    engine_close(e);
    here.isa = "of another level";
    assert_int_equal(engine_open(m, p, &options, NULL, NULL, &e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "kernels of 'of another level'"));
    here.isa = info.isa;
    here.layout = "other lanes";
    assert_int_equal(engine_open(m, p, &options, NULL, NULL, &e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "layout 'other lanes'"));
    cpu->ops->close(cpu);
}

/* A device that only another one stands for is not opened: there is no cuda here, and no GPU. */
static void a_device_that_is_mapped_away_is_not_opened(void **state)
{
    struct model *m = tiny_model(DT_F32, 3);
    struct plan p;
    struct engine *e;
    struct oato_error err;
    struct engine_options options = {.map = "cuda:0=cpu:0"};
    (void)state;
    plan_begin(&p, m, 1, "");
    snprintf(p.devices[1].id, sizeof p.devices[1].id, "cuda:0");
    snprintf(p.devices[1].kind, sizeof p.devices[1].kind, "cuda");
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_OK);
    engine_close(e);
    options.map = "cuda:0=gpu:9";
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EUSAGE);
    options.map = "cuda:0";
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EUSAGE);
    plan_free(&p);
    model_close(m);
}

static void plans_of_other_machines_and_models_are_noticed(void **state)
{
    struct model *m = tiny_model(DT_F32, 3);
    struct plan p;
    struct engine *e;
    struct oato_error err;
    struct engine_options options = {0};
    char warning[320] = "";
    (void)state;
    plan_begin(&p, m, 0, "");
    snprintf(p.devices[0].model, sizeof p.devices[0].model, "Another CPU");
    assert_int_equal(engine_open(m, &p, &options, note_warning, warning, &e, &err), OATO_OK);
    assert_non_null(strstr(warning, "Another CPU"));
    engine_close(e);
    options.strict = true;
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "does not say for which instruction set"));
    expect_strict_by_kernels(m, &p);
    options.strict = false;
    p.structure_hash ^= 1;
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFILE);
    p.structure_hash ^= 1;
    p.neurons_hash = 1;
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "follows a neurons sidecar"));
    p.neurons_hash = 0;
    options.devices = "sim:vram=64MiB";
    options.map = "cpu:0=gpu:9";
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EDEVICE);
    plan_free(&p);
    model_close(m);
}

/* ------------------------------------------------------------------- threads, chunks, batch */

static void check_threads_and_chunks(const struct model *m, int runs)
{
    int32_t ids[N];
    fill_ids(ids, N, m->shape.vocab, 2);
    for (int run = 0; run < runs; run++) {
        float *expected = NULL;
        const bool deterministic = run < runs / 2; /* else prefill's own class */
        const int threads[] = {1, 1 + run % 2}, chunk[] = {0, 1 + run % 10 * 17};
        for (int i = 0; i < 2; i++) {
            struct engine_options options = {.threads = threads[i],
                                             .ubatch = chunk[i],
                                             .rows = 512,
                                             .deterministic = deterministic};
            struct engine *e = open_engine(m, NULL, options);
            float *got = logits_of(e, ids, N);
            engine_close(e);
            if (i)
                assert_same_bits(got, expected, (size_t)N * (size_t)m->shape.vocab);
            free(expected);
            expected = got;
        }
        free(expected);
    }
}

static void threads_and_chunks_do_not_change_bits(void **state)
{
    struct model *m = tiny_model(DT_Q4_1, 5), *experts = tiny_model_of("qwen3moe", DT_Q4_1, 5);
    (void)state;
    check_threads_and_chunks(m, 20);
    check_threads_and_chunks(experts, 8);
    model_close(m);
    model_close(experts);
}

static void check_batch(const struct model *m)
{
    enum { SEQS = 4, STEPS = 12 };
    struct oato_error err;
    int32_t ids[SEQS][N], length[SEQS] = {1, 40, 64, 101}, seq[SEQS];
    float *alone[SEQS];
    size_t vocab = (size_t)m->shape.vocab;
    struct engine *one =
        open_engine(m, NULL, (struct engine_options){.rows = 512, .deterministic = true});
    for (int i = 0; i < SEQS; i++) {
        fill_ids(ids[i], N, m->shape.vocab, (uint64_t)i);
        alone[i] = logits_of(one, ids[i], length[i] + STEPS);
    }
    engine_close(one);
    struct engine *e = open_engine(
        m, NULL, (struct engine_options){.seqs = SEQS, .ubatch = 256, .deterministic = true});
    struct engine_input in[SEQS];
    for (int i = 0; i < SEQS; i++) {
        assert_int_equal(engine_seq_create(e, &seq[i], &err), OATO_OK);
        in[i] = (struct engine_input){seq[i], ids[i], length[i], LOGITS_LAST, true};
    }
    for (int step = 0; step <= STEPS; step++) { /* all prompts in one step, then decoding */
        assert_int_equal(engine_step(e, in, SEQS, &err), OATO_OK);
        for (int i = 0; i < SEQS; i++) {
            assert_same_bits(engine_logits(e, i), alone[i] + (size_t)(length[i] + step - 1) * vocab,
                             vocab);
            in[i] = (struct engine_input){seq[i], &ids[i][length[i] + step], 1, LOGITS_LAST, false};
        }
        if (step == STEPS - 1)
            break;
    }
    assert_null(engine_logits(e, SEQS));
    engine_close(e);
    for (int i = 0; i < SEQS; i++)
        free(alone[i]);
}

static void a_batch_answers_as_each_would_alone(void **state)
{
    struct model *m = tiny_model(DT_Q4_K, 6), *experts = tiny_model_of("qwen3moe", DT_Q8_0, 6);
    (void)state;
    check_batch(m);
    check_batch(experts);
    model_close(m);
    model_close(experts);
}

/* ------------------------------------------------------------------------------- sequences */

static void feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    if (engine_feed(e, seq, ids, n, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

static void a_forked_and_cut_sequence_goes_on_as_if_alone(void **state)
{
    struct model *m = tiny_model(DT_F32, 8);
    struct oato_error err;
    int32_t ids[N], other[N], a, b, c;
    size_t vocab = (size_t)m->shape.vocab;
    (void)state;
    fill_ids(ids, N, m->shape.vocab, 3);
    fill_ids(other, N, m->shape.vocab, 4);
    struct engine *e =
        open_engine(m, NULL, (struct engine_options){.seqs = 4, .rows = 512, .context = 1024});
    int32_t pages = engine_free_pages(e);
    float *alone = logits_of(e, ids, N);
    for (int32_t cut = 1; cut < 135; cut += 19) { /* inside pages and at their borders */
        assert_int_equal(engine_seq_create(e, &a, &err), OATO_OK);
        feed(e, a, ids, cut);
        assert_int_equal(engine_seq_fork(e, a, &b, &err), OATO_OK);
        feed(e, b, other, 9); /* b writes to the page that it shares with a */
        feed(e, a, ids + cut, N - cut);
        assert_same_bits(engine_logits(e, 0), alone + (N - 1) * vocab, vocab);
        assert_int_equal(engine_seq_fork(e, a, &c, &err), OATO_OK);
        assert_int_equal(engine_seq_truncate(e, c, cut, &err), OATO_OK);
        assert_int_equal(engine_seq_length(e, c), cut);
        feed(e, c, ids + cut, N - cut);
        assert_same_bits(engine_logits(e, 0), alone + (N - 1) * vocab, vocab);
        engine_seq_free(e, a);
        engine_seq_free(e, b);
        engine_seq_free(e, c);
        assert_int_equal(engine_free_pages(e), pages);
    }
    free(alone);
    engine_close(e);
    model_close(m);
}

static void a_full_cache_leaves_sequences_as_they_were(void **state)
{
    struct model *m = tiny_model(DT_F32, 8);
    struct oato_error err;
    int32_t ids[N], a, b, none;
    (void)state;
    fill_ids(ids, N, m->shape.vocab, 3);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.seqs = 2, .context = 128});
    assert_int_equal(engine_seq_create(e, &a, &err), OATO_OK);
    assert_int_equal(engine_seq_create(e, &b, &err), OATO_OK);
    assert_int_equal(engine_seq_create(e, &none, &err), OATO_EFIT);
    feed(e, a, ids, 100);
    int32_t pages = engine_free_pages(e);
    struct engine_input in[2] = {{a, ids, 20, LOGITS_NONE, false},
                                 {b, ids, 100, LOGITS_NONE, false}};
    assert_int_equal(engine_step(e, in, 2, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "--context"));
    assert_int_equal(engine_free_pages(e), pages);
    assert_int_equal(engine_seq_length(e, a), 100);
    assert_int_equal(engine_seq_length(e, b), 0);
    feed(e, a, ids + 100, 20);
    engine_close(e);
    model_close(m);
}

static void wrong_steps_are_refused(void **state)
{
    struct model *m = tiny_model(DT_F32, 8);
    struct oato_error err;
    int32_t id = 1, bad = m->shape.vocab, a;
    (void)state;
    struct engine *e = open_engine(m, NULL, (struct engine_options){.seqs = 2, .ubatch = 8});
    assert_int_equal(engine_seq_create(e, &a, &err), OATO_OK);
    int32_t many[16] = {0};
    const struct engine_input wrong[] = {
        {a, &bad, 1, LOGITS_LAST, false}, {a, &id, 0, LOGITS_LAST, false},
        {7, &id, 1, LOGITS_LAST, false},  {-1, &id, 1, LOGITS_LAST, false},
        {a, many, 9, LOGITS_NONE, false}, {a, many, 8, LOGITS_ALL, false}};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_int_equal(engine_step(e, &wrong[i], 1, &err), OATO_EUSAGE);
    struct engine_input twice[2] = {{a, &id, 1, LOGITS_NONE, false},
                                    {a, &id, 1, LOGITS_NONE, false}};
    assert_int_equal(engine_step(e, twice, 2, &err), OATO_EUSAGE);
    assert_int_equal(engine_step(e, twice, 0, &err), OATO_EUSAGE);
    assert_int_equal(engine_seq_truncate(e, a, -1, &err), OATO_EUSAGE);
    assert_int_equal(engine_seq_length(e, a), 0);
    engine_close(e);
    model_close(m);
}

/* ---------------------------------------------------------------------------------- errors */

static void a_device_that_dies_ends_the_step_with_its_message(void **state)
{
    struct model *m = tiny_model(DT_F32, 9);
    (void)state;
    for (int dead = 0; dead < 2; dead++) {
        struct plan p;
        struct graph fused;
        struct oato_error err;
        int32_t ids[N], seq;
        fill_ids(ids, N, m->shape.vocab, 3);
        plan_begin(&p, m, 1, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        for (int32_t i = 0; i < fused.n_ops; i++)
            if (fused.ops[i].op.kind == OP_GATE_UP)
                plan_add_part(&p, fused.ops[i].name, 0, fused.ops[i].op.n, 1);
        struct engine *e = open_engine(m, &p, (struct engine_options){0});
        assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
        feed(e, seq, ids, 10);
        const char *id = dead ? "cpu:0" : "sim:0";
        struct oato_device *d = engine_borrow_device(e, id);
        assert_int_equal(d->ops->inject_error(d, "record=2", &err), OATO_OK);
        struct engine_input in = {seq, ids + 10, 5, LOGITS_LAST, false};
        assert_int_equal(engine_step(e, &in, 1, &err), OATO_EDEVICE);
        if (!strstr(err.text, dead ? "cpu" : "sim"))
            fail_msg("%s", err.text);
        assert_int_equal(engine_seq_length(e, seq), 10);
        assert_int_equal(engine_step(e, &in, 1, &err), OATO_EDEVICE);
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    model_close(m);
}

/* Near 2^31 the number of pages would overflow. */
static void an_endless_context_is_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 8);
    struct engine *e;
    struct oato_error err;
    const struct engine_options o = {.context = INT32_MAX};
    assert_int_equal(engine_open(m, NULL, &o, NULL, NULL, &e, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "--context"));
    assert_null(e);
    model_close(m);
}

static void an_interrupt_ends_loading(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 1);
    struct engine *e;
    struct oato_error err;
    const struct engine_options options = {.threads = 1};
    oato_interrupted = 1;
    assert_int_equal(engine_open(m, NULL, &options, NULL, NULL, &e, &err), OATO_NEGATIVE);
    oato_interrupted = 0;
    assert_string_equal(err.text, "interrupted");
    assert_null(e);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_placement_gives_the_same_bits_with_as_few_copies_as_possible),
        cmocka_unit_test(accelerators_that_reach_each_other_need_no_host),
        cmocka_unit_test(phases_may_be_placed_apart),
        cmocka_unit_test(what_does_not_fit_is_said_in_mib_before_anything_is_loaded),
        cmocka_unit_test(plans_of_other_machines_and_models_are_noticed),
        cmocka_unit_test(a_device_that_is_mapped_away_is_not_opened),
        cmocka_unit_test(threads_and_chunks_do_not_change_bits),
        cmocka_unit_test(a_batch_answers_as_each_would_alone),
        cmocka_unit_test(a_forked_and_cut_sequence_goes_on_as_if_alone),
        cmocka_unit_test(a_full_cache_leaves_sequences_as_they_were),
        cmocka_unit_test(wrong_steps_are_refused),
        cmocka_unit_test(an_interrupt_ends_loading),
        cmocka_unit_test(a_device_that_dies_ends_the_step_with_its_message),
        cmocka_unit_test(an_endless_context_is_refused),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
