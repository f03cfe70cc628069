/*
 * test_side_by_side.c - engines of one process, and cpu devices of one engine, compute at the same
 * time and give the bits that each gives alone.
 */
#include "tests/executor/harness.h"

#include <pthread.h>
#include <stdlib.h>

enum { N = 150 };

struct talk {
    struct engine *e;
    const int32_t *ids;
    float *got;
};

static void *talk_run(void *arg)
{
    struct talk *t = arg;
    t->got = logits_of(t->e, t->ids, N);
    return NULL;
}

/* Two engines of a process, each with a simulated device, stepped by a thread each. */
static void two_engines_step_at_the_same_time(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_K, 5);
    struct random r = random_of_run();
    struct plan p[2];
    struct graph fused[2];
    int32_t ids[2][N];
    struct talk talk[2];
    for (int i = 0; i < 2; i++) {
        plan_begin(&p[i], m, 1, "vram=64MiB");
        plan_fuse_all(&p[i], m, &fused[i]);
        plan_place_randomly(&p[i], &fused[i], &r);
        fill_ids(ids[i], N, m->shape.vocab, r.state);
    }
    for (int round = 0; round < 3; round++) { /* both simulated, one, none */
        pthread_t thread[2];
        float *expected[2];
        for (int i = 0; i < 2; i++) {
            const struct plan *plan = i < round ? NULL : &p[i];
            talk[i] = (struct talk){
                open_engine(m, plan, (struct engine_options){.rows = 64, .threads = 2}), ids[i],
                NULL};
            expected[i] = logits_of(talk[i].e, ids[i], N);
        }
        for (int repeat = 0; repeat < 5; repeat++) {
            for (int i = 0; i < 2; i++)
                assert_int_equal(pthread_create(&thread[i], NULL, talk_run, &talk[i]), 0);
            for (int i = 0; i < 2; i++) {
                pthread_join(thread[i], NULL);
                assert_same_bits(talk[i].got, expected[i], (size_t)N * (size_t)m->shape.vocab);
                free(talk[i].got);
            }
        }
        for (int i = 0; i < 2; i++) {
            engine_close(talk[i].e);
            free(expected[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        graph_free(&fused[i]);
        plan_free(&p[i]);
    }
    model_close(m);
}

/* The second one computes on a thread of its own: in submit, it would wait for ever for the first.
 */
static void two_cpu_devices_compute_together(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_1, 9);
    struct random r = random_of_run();
    const struct engine_options options = {.rows = 64, .threads = 2};
    struct plan p;
    struct graph fused;
    int32_t ids[N];
    fill_ids(ids, N, m->shape.vocab, 1);
    struct engine *alone = open_engine(m, NULL, options);
    float *expected = logits_of(alone, ids, N);
    engine_close(alone);
    plan_begin(&p, m, 1, "");
    strcpy(p.devices[1].kind, "cpu");
    p.devices[1].is_host = true;
    strcpy(p.devices[1].id, "cpu:1");
    plan_fuse_all(&p, m, &fused);
    plan_place_randomly(&p, &fused, &r);
    struct engine *e = open_engine(m, &p, options);
    for (int i = 0; i < 2; i++) {
        float *got = logits_of(e, ids, i ? 1 : N);
        assert_same_bits(got, expected, (size_t)(i ? 1 : N) * (size_t)m->shape.vocab);
        free(got);
    }
    struct oato_error err;
    struct oato_device *d = engine_borrow_device(e, "cpu:1");
    int32_t seq;
    assert_int_equal(d->ops->inject_error(d, "record=2", &err), OATO_OK);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    struct engine_input in = {seq, ids, 5, LOGITS_LAST, false};
    assert_int_equal(engine_step(e, &in, 1, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "cpu:1"));
    engine_close(e);
    free(expected);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_engines_step_at_the_same_time),
        cmocka_unit_test(two_cpu_devices_compute_together),
    };
    return cmocka_run_group_tests_name("side_by_side", tests, NULL, NULL);
}
