/*
 * test_cuda_state.c - recurrent mixers of a CUDA device: two sequences in two steps, one of which
 * moves to a copy of its state between them, give what the CPU's reference gives, and the same bits
 * wherever the tokens are cut into steps.
 */
#include "tests/kernels/cuda_case.h"

enum { SEQS = 2, LENGTH = 7, TOKENS = SEQS * LENGTH, SLOTS = 4 };

struct mixing {
    struct oato_device *d;
    const struct test_case *c;
    struct case_program x;
    struct kv_cache *kv;
};

/* Tokens [from, to) of each sequence; outputs to their places in out. */
static void mix_step(struct mixing *m, struct compiled *compiled, int32_t from, int32_t to,
                     bool copies, float *out)
{
    struct oato_error err;
    const struct test_case *c = m->c;
    const int32_t n = to - from, width = c->out_width[0];
    const int32_t pages[] = {0};
    const struct step_state_copy copy = {1, 3};
    struct step_seq seq[SEQS];
    struct step step = plain_step(SEQS * n);
    if (!n)
        return;
    for (int32_t s = 0; s < SEQS; s++) {
        seq[s] = (struct step_seq){.query_begin = s * n,
                                   .query_len = n,
                                   .kv_len = to,
                                   .state = s && copies ? 3 : s,
                                   .pages = pages};
        for (int i = 0; i < c->n_in; i++) {
            const uint64_t row = (uint64_t)c->in_width[i] * sizeof(float);
            upload(m->d, m->x.arena, m->x.record.in[i] + (uint64_t)(s * n) * row,
                   c->in[i] + (int64_t)(s * LENGTH + from) * c->in_width[i], (uint64_t)n * row);
        }
    }
    step.n_seqs = SEQS;
    step.seq = seq;
    step.n_state_copies = copies;
    step.state_copy = &copy;
    run(m->d, compiled, &step);
    for (int32_t s = 0; s < SEQS; s++)
        if (m->d->ops->download(m->d, out + (int64_t)(s * LENGTH + from) * width, m->x.arena,
                                m->x.record.out[0] +
                                    (uint64_t)(s * n) * (uint64_t)width * sizeof(float),
                                (uint64_t)n * (uint64_t)width * sizeof(float), NULL, &err))
            fail_msg("%s", err.text);
}

/* All tokens, in two steps cut at `cut`. */
static void mix(struct oato_device *d, const struct test_case *c, int32_t cut, float *out)
{
    struct oato_error err;
    struct mixing m = {.d = d, .c = c};
    const struct kv_layer_shape layers[] = {{.state = 5, .slots = SLOTS},
                                            {.state = op_state_floats(&c->op), .slots = SLOTS}};
    case_begin(d, c, &m.x);
    if (d->ops->kv_create(d, layers, 2, DT_F16, 1, &m.kv, &err))
        fail_msg("%s", err.text);
    struct program_record records[2] = {{.op = {.kind = OP_KV_COPY}, .kv_layer = -1}, m.x.record};
    records[1].kv_layer = 1;
    m.x.program.records = records;
    m.x.program.n_records = 2;
    m.x.program.kv = m.kv;
    m.x.program.max_seqs = 5;
    struct compiled *compiled = compile(d, &m.x.program);
    mix_step(&m, compiled, 0, cut, false, out);
    mix_step(&m, compiled, cut, LENGTH, cut > 0, out);
    d->ops->release(d, compiled);
    d->ops->kv_free(d, m.kv);
    case_end(d, c, &m.x);
}

static void check(const char *key, int variant)
{
    struct test_case c = case_of(key, TOKENS);
    if (c.op.kind == OP_DELTA) {
        c.op.cyclic = variant;
        c.op.scale = variant ? -3 : 0;
    }
    if (c.op.kind == OP_SSM && !c.op.per_channel && variant) {
        c.op.alibi = 8;
        c.op.alibi_heads = c.op.heads;
        c.op.scale = 0.5f;
    }
    for (int i = 0; i < op_in_count(&c.op); i++)
        give_input(&c, (int32_t)op_in_width(&c.op, i));
    give_weights(&c);
    float *a = (float *)(uintptr_t)c.weight[0].data;
    for (int64_t i = 0; c.n_weights && i < c.weight[0].n * c.weight[0].k; i++) /* negative decays */
        a[i] = c.op.kind == OP_CONV ? a[i] * 20 : -fabsf(a[i]) * 20;
    const int64_t n = TOKENS * (int64_t)c.out_width[0];
    float *expected = test_calloc((size_t)n, sizeof *expected);
    float *got = test_calloc((size_t)n, sizeof *got), *again = test_calloc((size_t)n, sizeof *got);
    mix(device[0], &c, 0, expected);
    mix(device[1], &c, 0, got);
    const double e = error_of(got, expected, n);
    if (!(e < 1e-10))
        fail_msg("%s: NMSE %.3g", key, e);
    for (int32_t cut = 1; cut < LENGTH; cut += 2) {
        mix(device[1], &c, cut, again);
        assert_memory_equal(again, got, (size_t)n * sizeof *got);
    }
    test_free(expected);
    test_free(got);
    test_free(again);
    free_case(&c);
}

static void mixers_are_computed_alike(void **state)
{
    static const char *const keys[] = {
        "conv/k100/s3",          "conv/k64/s1",           "delta/h4/g2/d64/c0",
        "delta/h6/g3/d40/c0",    "delta/h2/g2/d128/c1",   "ssm/h4/g2/d64/s24/c0",
        "ssm/h6/g1/d20/s128/c0", "ssm/h100/g1/d1/s16/c1", "ssm/h140/g2/d1/s5/c1"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (int variant = 0; variant < 2; variant++)
            check(keys[i], variant);
}

/* Columns of each of some heads. */
static void heads_are_sliced_alike(void **state)
{
    (void)state;
    struct test_case c = case_of("slice/k96/n40", 5);
    struct step step = plain_step(5);
    c.op.heads = 8;
    c.op.first = 7;
    give_input(&c, 96);
    compare(&c, &step, 0);
    free_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixers_are_computed_alike),
        cmocka_unit_test(heads_are_sliced_alike),
    };
    RUN_ON_DEVICES(tests);
}
