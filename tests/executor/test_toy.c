/*
 * test_toy.c - a device that is one folder and a word in DEVICE_KINDS (toy.c, registry_with_toy.c)
 * runs half of a model with the CPU: listed, loaded, streamed to, failing like any other.
 */
#include "kernels/core/core_internal.h"
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { N = 70 };

static bool on_toy(const struct graph_op *o, int32_t layers)
{
    switch (o->op.kind) {
    case OP_RMS_NORM:
    case OP_ADD_NORM:
    case OP_MUL_MAT:
    case OP_GATE_UP: return o->layer % 2 || layers < 2;
    default: return false;
    }
}

/* Odd layers' products and norms on the toy: resident, or at home with the host. */
static void plan_toy(struct plan *p, const struct model *m, struct graph *fused, bool streams)
{
    plan_begin(p, m, 1, "");
    strcpy(p->devices[1].kind, "toy");
    strcpy(p->devices[1].id, "toy:0");
    plan_fuse_all(p, m, fused);
    for (int32_t i = 0; i < fused->n_ops; i++) {
        const struct graph_op *o = &fused->ops[i];
        if (!on_toy(o, fused->n_layers))
            continue;
        plan_add_part(p, o->name, 0, o->op.n, 1);
        if (streams && op_weight_use(&o->op) == WEIGHT_MATRIX)
            p->parts[p->n_parts - 1].home = 0;
    }
}

/* A prompt, and a token by the decode program. */
static void check_model(oato_dtype dtype)
{
    struct model *m = tiny_model(dtype, 3);
    const struct engine_options options = {.threads = 2, .rows = 64};
    const size_t vocab = (size_t)m->shape.vocab, n[2] = {N * vocab, vocab};
    float *expected[2], *resident[2] = {NULL};
    int32_t ids[N];
    fill_ids(ids, N, m->shape.vocab, 1);
    struct engine *e = open_engine(m, NULL, options);
    for (int i = 0; i < 2; i++)
        expected[i] = logits_of(e, ids, i ? 1 : N);
    engine_close(e);
    for (int streams = 0; streams < 2; streams++) {
        struct plan p;
        struct graph fused;
        struct engine_stats stats;
        plan_toy(&p, m, &fused, streams);
        e = open_engine(m, &p, options);
        engine_get_stats(e, &stats);
        assert_true(stats.copies[PHASE_DECODE] > 0);
        for (int i = 0; i < 2; i++) {
            float *got = logits_of(e, ids, i ? 1 : N);
            assert_true(nmse(got, expected[i], n[i]) < 1e-8);
            if (streams)
                assert_same_bits(got, resident[i], n[i]);
            free(resident[i]);
            resident[i] = got;
        }
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    for (int i = 0; i < 2; i++) {
        free(expected[i]);
        free(resident[i]);
    }
    model_close(m);
}

static void half_a_model_runs_on_a_new_device(void **state)
{
    (void)state;
    check_model(DT_F32);
    check_model(DT_Q4_1);
    check_model(DT_Q4_K);
}

/* Memory that only copies reach, with one function less. */
static void what_the_host_does_not_reach_is_uploaded(void **state)
{
    enum { ROWS = 70, K = 256 };
    static uint8_t blocks[ROWS * K]; /* more than Q4_K takes */
    static float expected[ROWS * K], got[ROWS * K];
    const struct weight_source s = {
        .data = blocks, .dtype = DT_Q4_K, .k = K, .n = ROWS, .row_begin = 2, .row_end = ROWS};
    struct random r = random_of_run();
    struct oato_device *d;
    struct oato_weight *w;
    struct oato_error err;
    (void)state;
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)random_below(&r, 64); /* no scale that is no number */
    assert_int_equal(device_open("toy", 0, NULL, &d, &err), OATO_OK);
    struct device_ops apart = *d->ops;
    apart.reach = NULL;
    d->ops = &apart;
    const uint64_t bytes = weight_bytes(d, &s);
    assert_int_equal(bytes, (ROWS - 2) * K * sizeof *got);
    assert_int_equal(weight_convert(d, &s, expected, &err), OATO_OK);
    for (int prepared = 0; prepared < 2; prepared++) {
        struct weight_source source = s;
        source.prepared = prepared ? expected : NULL;
        assert_int_equal(weight_prepare(d, &source, &w, &err), OATO_OK);
        assert_null(weight_data(d, w));
        assert_int_equal(d->ops->download(d, got, w->data, 0, bytes, NULL, &err), OATO_OK);
        assert_memory_equal(got, expected, bytes);
        weight_free(d, w);
    }
    d->ops->close(d);
}

static void a_new_device_is_listed(void **state)
{
    char *text = NULL;
    size_t size;
    struct text found;
    (void)state;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    device_list(out);
    fclose(out);
    assert_non_null(strstr(text, "toy:0"));
    free(text);
    text_init(&found);
    device_found(&found, NULL, NULL);
    assert_non_null(strstr(found.data, "toy:0"));
    text_free(&found);
}

static void its_failures_are_said_like_others(void **state)
{
    struct model *m = tiny_model(DT_F32, 3);
    const struct engine_options options = {.rows = 64};
    int32_t ids[N], seq;
    struct plan p;
    struct graph fused;
    struct oato_error err;
    (void)state;
    fill_ids(ids, N, m->shape.vocab, 1);
    plan_toy(&p, m, &fused, false);
    struct engine *e = open_engine(m, &p, options);
    struct oato_device *d = engine_borrow_device(e, "toy:0");
    const struct engine_input in = {0, ids, 5, LOGITS_LAST, false};
    assert_int_equal(d->ops->inject_error(d, "record=2", &err), OATO_OK);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    assert_int_equal(engine_step(e, &in, 1, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "toy:0"));
    engine_close(e);
    snprintf(p.devices[1].spec, sizeof p.devices[1].spec, "memory=1");
    expect_refused(m, &p, &options, OATO_EUSAGE, "toy:");
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    setenv("OATO_CPU_ISA", "ref", 1); /* whose products do not round their inputs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_model_runs_on_a_new_device),
        cmocka_unit_test(what_the_host_does_not_reach_is_uploaded),
        cmocka_unit_test(a_new_device_is_listed),
        cmocka_unit_test(its_failures_are_said_like_others),
    };
    return cmocka_run_group_tests_name("toy", tests, NULL, NULL);
}
