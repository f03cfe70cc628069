/*
 * test_span_plans.c - a device that compiles spans gives what it gives record by record, although
 * its values lie elsewhere; one whose numerics class promises no bits takes part where the plan
 * names it, and is refused where bits are promised.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT = 40 };

/* What may be in a span is on the device, the rest on the host. */
static void hybrid(struct plan *p, const struct model *m, const char *spec, struct graph *fused)
{
    plan_begin(p, m, 1, spec);
    plan_fuse_all(p, m, fused);
    for (int32_t i = 0; i < fused->n_ops; i++)
        if (op_spans(&fused->ops[i].op))
            p->parts[p->n_parts++] = (struct plan_part){.op = fused->ops[i].name,
                                                        .end = fused->ops[i].op.n,
                                                        .phases = (1u << PHASE_COUNT) - 1,
                                                        .device = 1,
                                                        .home = 1};
}

/* Rows of the prompt's logits by the plan; each is freed by the caller. */
static float *logits_by(const struct model *m, const char *spec)
{
    struct plan p;
    struct graph fused;
    int32_t ids[PROMPT];
    hybrid(&p, m, spec, &fused);
    fill_ids(ids, PROMPT, m->shape.vocab, 6);
    struct engine *e = open_engine(m, &p, (struct engine_options){.ubatch = 32});
    float *logits = logits_of(e, ids, PROMPT);
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    return logits;
}

static void spans_change_no_bits(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 5);
    const size_t n = (size_t)PROMPT * (size_t)m->shape.vocab;
    float *records = logits_by(m, "vram=64MiB"),
          *spans = logits_by(m, "vram=64MiB,spans=on,rows=1+16,unit=9us,class=f32.sim");
    assert_same_bits(records, spans, n);
    free(records);
    free(spans);
    model_close(m);
}

static void a_device_without_a_class_is_refused_where_bits_are_promised(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 5);
    struct plan p;
    struct graph fused;
    struct engine *e = NULL;
    struct oato_error err;
    const struct engine_options options = {.deterministic = true};
    hybrid(&p, m, "vram=64MiB,class=f32.sim", &fused);
    assert_int_equal(engine_open(m, &p, &options, NULL, NULL, &e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "would be computed as f32.sim on sim:0"));
    assert_null(strchr(err.text, '\n'));
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_change_no_bits),
        cmocka_unit_test(a_device_without_a_class_is_refused_where_bits_are_promised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
