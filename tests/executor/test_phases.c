/*
 * test_phases.c - who else is in a step changes nobody's bits: requests join and leave at random,
 * their prompts in chunks beside the others' decode, and each row of logits is that of its request
 * alone.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { REQUESTS = 64, SEQS = 6, UBATCH = 64, PROMPT_MOST = 60, ANSWER_MOST = 8 };

struct request {
    int32_t ids[PROMPT_MOST + ANSWER_MOST];
    int32_t prompt, answer; /* tokens; those of the answer are given, too */
    float *expected;        /* a row behind the prompt, and one behind each token of the answer */
    int32_t seq, fed;
};

/* The next tokens of a request: of its prompt at most `most`, then one by one. */
static struct engine_input next_input(const struct request *q, int32_t most)
{
    const int32_t left = q->prompt - q->fed, n = left < most ? left : most;
    if (left <= 0)
        return (struct engine_input){q->seq, q->ids + q->fed, 1, LOGITS_LAST, false};
    return (struct engine_input){q->seq, q->ids + q->fed, n, n == left ? LOGITS_LAST : LOGITS_NONE,
                                 true};
}

static void step_or_fail(struct engine *e, const struct engine_input *in, int32_t n)
{
    struct oato_error err;
    if (engine_step(e, in, n, &err))
        fail_msg("%s", err.text);
}

static void answer_alone(struct engine *e, struct request *q, size_t vocab)
{
    struct oato_error err;
    q->expected = malloc((size_t)(q->answer + 1) * vocab * sizeof(float));
    assert_non_null(q->expected);
    assert_int_equal(engine_seq_create(e, &q->seq, &err), OATO_OK);
    for (q->fed = 0; q->fed < q->prompt + q->answer;) {
        const struct engine_input in = next_input(q, UBATCH);
        step_or_fail(e, &in, 1);
        q->fed += in.n;
        memcpy(q->expected + (size_t)(q->fed - q->prompt) * vocab, engine_logits(e, 0),
               vocab * sizeof(float));
    }
    engine_seq_free(e, q->seq);
}

/* One step of the requests that are running; those that are done leave. Returns how many stay. */
static int32_t step_together(struct engine *e, struct request **running, int32_t n, size_t vocab,
                             struct random *r)
{
    struct engine_input in[SEQS];
    int32_t row = 0, stay = 0;
    for (int32_t i = 0; i < n; i++)
        in[i] = next_input(running[i], 1 + (int32_t)random_below(r, UBATCH / SEQS));
    step_or_fail(e, in, n);
    for (int32_t i = 0; i < n; i++) {
        struct request *q = running[i];
        q->fed += in[i].n;
        if (in[i].logits == LOGITS_LAST)
            assert_same_bits(engine_logits(e, row++),
                             q->expected + (size_t)(q->fed - q->prompt) * vocab, vocab);
        if (q->fed == q->prompt + q->answer)
            engine_seq_free(e, q->seq);
        else
            running[stay++] = q;
    }
    assert_null(engine_logits(e, row));
    return stay;
}

static void check_mixed(const struct model *m, const struct plan *p, bool deterministic)
{
    struct random r = {11};
    struct request *all = calloc(REQUESTS, sizeof *all), *running[SEQS];
    const size_t vocab = (size_t)m->shape.vocab;
    struct oato_error err;
    struct engine_options options = {
        .ubatch = UBATCH, .context = 1024, .deterministic = deterministic};
    struct engine *e = open_engine(m, p, options);
    assert_non_null(all);
    for (int i = 0; i < REQUESTS; i++) {
        all[i].prompt = 1 + (int32_t)random_below(&r, PROMPT_MOST);
        all[i].answer = 1 + (int32_t)random_below(&r, ANSWER_MOST - 1);
        fill_ids(all[i].ids, all[i].prompt + all[i].answer, m->shape.vocab, (uint64_t)i);
        answer_alone(e, &all[i], vocab);
    }
    engine_close(e);
    options.seqs = SEQS;
    e = open_engine(m, p, options);
    for (int32_t next = 0, n = 0; next < REQUESTS || n;) {
        while (next < REQUESTS && n < SEQS && (!n || random_below(&r, 2))) {
            running[n] = &all[next++];
            running[n]->fed = 0;
            assert_int_equal(engine_seq_create(e, &running[n++]->seq, &err), OATO_OK);
        }
        n = step_together(e, running, n, vocab, &r);
    }
    engine_close(e);
    for (int i = 0; i < REQUESTS; i++)
        free(all[i].expected);
    free(all);
}

static void requests_that_join_and_leave_get_their_own_bits(void **state)
{
    struct model *m = tiny_model(DT_Q4_K, 5);
    (void)state;
    check_mixed(m, NULL, false);
    check_mixed(m, NULL, true);
    model_close(m);
}

static void put(struct plan *p, const struct graph_op *o, enum op_axis axis, int64_t begin,
                int64_t end, enum plan_phase phase)
{
    p->parts[p->n_parts++] = (struct plan_part){.op = o->name,
                                                .axis = axis,
                                                .begin = begin,
                                                .end = end,
                                                .phases = 1u << phase,
                                                .device = phase == PHASE_PREFILL};
}

/* Prefill on the simulated device, to which products are streamed; decode on the host, where the
 * sums of a feed-forward block are made in two parts: other bits than prefill's. */
static void so_they_do_where_prompts_are_streamed(void **state)
{
    struct model *m = tiny_model(DT_Q4_1, 5);
    struct plan p;
    struct graph fused;
    (void)state;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (op_weight_use(&o->op) != WEIGHT_MATRIX)
            continue;
        put(&p, o, AXIS_ROWS, 0, o->op.n, PHASE_PREFILL);
        if (o->op.kind != OP_GATE_UP)
            continue;
        put(&p, o, AXIS_ROWS, 0, 64, PHASE_DECODE);
        put(&p, o, AXIS_ROWS, 64, o->op.n, PHASE_DECODE);
        put(&p, o + 1, AXIS_K, 0, 64, PHASE_DECODE);
        put(&p, o + 1, AXIS_K, 64, o->op.n, PHASE_DECODE);
    }
    check_mixed(m, &p, false);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_that_join_and_leave_get_their_own_bits),
        cmocka_unit_test(so_they_do_where_prompts_are_streamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
