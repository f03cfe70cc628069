/*
 * test_sim_streams.c - weights that stay in host memory and are copied to the simulated device when
 * they are used: the same bits as resident ones, whatever form they are kept in, in memory that is
 * the device's, at the rate of the link, beside what computes.
 */
#include "tests/kernels/device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 64, MATRIX = N * N * 4, MATRICES = 3 };

/* A byte and an operation take a nanosecond each. */
#define SPEEDS "sim:vram=8MiB,read=1GB/s,flops=1G,link=1GB/s,latency=10us,launch=2us"

static struct timeline fake; /* of a device that the test plays */
static float matrices[MATRICES][N * N];

static struct weight_source source_of(int i)
{
    return (struct weight_source){
        .data = matrices[i], .dtype = DT_F32, .k = N, .n = N, .row_end = N, .use = WEIGHT_MATRIX};
}

static struct program_record *put_product(struct rig *g, int from, int weight)
{
    return rig_put(g, "mul_mat/F32/k64/n64", 1, (int[]){from}, 1, (int[]){from + 1}, &weight);
}

/* Value 3 = matrices[2] matrices[1] matrices[0] value 0, all of them resident. */
static void expected_product(const float *x, float *y)
{
    struct rig *g = rig_create("sim:vram=8MiB", 0);
    struct oato_error err;
    for (int i = 0; i < MATRICES; i++) {
        const struct weight_source s = source_of(i);
        assert_int_equal(weight_prepare(g->d, &s, &g->weights[i], &err), OATO_OK);
        g->p.n_weights++;
        put_product(g, i, i)->signal = (uint32_t)i + 1;
    }
    rig_compile(g, NULL);
    rig_write(g, 0, x, N * sizeof *x);
    struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_step(&g, 1, &step);
    rig_read(g, 3, y, N * sizeof *y);
    rig_free(g);
}

/* Two buffers for three weights: one lies in the file, one as the CPU prepared it, one is some
 * columns of a wider tensor. */
static void streamed_weights_take_turns_beside_what_computes(void **state)
{
    (void)state;
    static float wide[N * 3 * N], x[N], expected[N], got[N];
    struct oato_error err;
    struct oato_device *cpu = rig_open("cpu");
    struct oato_weight *prepared;
    void *staging;
    for (int i = 0; i < MATRICES; i++)
        rig_random(matrices[i], N * N, (uint32_t)i + 1);
    rig_random(wide, ARRAY_LEN(wide), 9);
    for (size_t r = 0; r < N; r++)
        memcpy(wide + (r * 3 + 1) * N, matrices[2] + r * N, N * sizeof *wide);
    rig_random(x, N, 7);
    expected_product(x, expected);

    struct rig *sim = rig_create(SPEEDS, 1);
    const struct device_ops *ops = sim->d->ops;
    assert_int_equal(ops->alloc(sim->d, 2 * (uint64_t)MATRIX, &staging, &err), OATO_OK);
    struct weight_source s[MATRICES] = {source_of(0), source_of(1), source_of(2)};
    assert_int_equal(weight_prepare(cpu, &s[1], &prepared, &err), OATO_OK);
    assert_string_equal(cpu->ops->layout(cpu), ops->layout(sim->d));
    s[1].prepared = weight_data(cpu, prepared);
    s[1].data = NULL;
    s[2].data = wide + N;
    s[2].row_stride = 3 * N * sizeof *wide;
    for (int i = 0; i < MATRICES; i++)
        rig_stage(sim, &s[i], staging, (uint64_t)(i % 2) * MATRIX);
    struct oato_weight *none;
    assert_int_equal(weight_stage(sim->d, &s[0], staging, MATRIX + 1, &none, &err), OATO_EUSAGE);
    assert_int_equal(weight_stage(sim->d, &s[0], x, 0, &none, &err), OATO_EUSAGE);
    s[0].row_stride = 4; /* less than a row */
    assert_int_equal(weight_stage(sim->d, &s[0], staging, 0, &none, &err), OATO_EUSAGE);

    rig_put_stream(sim, 0);
    rig_put_stream(sim, 1);
    put_product(sim, 0, 0)->signal = 1;
    rig_put_stream(sim, 2);
    put_product(sim, 1, 1)->signal = 2;
    put_product(sim, 2, 2)->signal = 3;
    rig_compile(sim, NULL);
    rig_write(sim, 0, x, sizeof x);
    timeline_init(&fake);
    for (int round = 0; round < 2; round++) {
        struct step step = {.n_tokens = 1, .n_seqs = 1};
        const uint64_t begin = ops->clock_ns(sim->d), copy = 10000 + MATRIX, run = 2000 + MATRIX;
        const uint64_t base = sim->bases[1];
        rig_step_beside(sim, &fake, &step);
        const uint64_t at[] = {begin + copy + run,      /* the first two are copied one after the */
                               begin + 2 * copy + run,  /* other; the third behind them, beside */
                               begin + 3 * copy + run}; /* the second product */
        for (uint64_t i = 0; i < MATRICES; i++) {
            uint64_t clock_ns = 0;
            assert_true(timeline_wait(ops->timeline(sim->d), base + i + 1, &clock_ns));
            assert_int_equal(clock_ns, at[i]);
        }
        rig_read(sim, 3, got, sizeof got);
        assert_memory_equal(got, expected, sizeof got);
    }
    rig_free(sim); /* the weights with it */
    weight_free(cpu, prepared);
    cpu->ops->close(cpu);
}

static void what_nobody_reads_in_a_step_is_not_streamed(void **state)
{
    (void)state;
    struct rig *sim = rig_create(SPEEDS, 1);
    struct oato_error err;
    void *staging;
    const struct weight_source s = source_of(0);
    assert_int_equal(sim->d->ops->alloc(sim->d, MATRIX, &staging, &err), OATO_OK);
    const int w = rig_stage(sim, &s, staging, 0);
    rig_put_stream(sim, w);
    put_product(sim, 0, w)->signal = 1;
    sim->records[0].rows = sim->records[1].rows = ROWS_LOGITS;
    rig_compile(sim, NULL);
    timeline_init(&fake);
    struct step step = {.n_tokens = 1, .n_seqs = 1};
    const uint64_t begin = sim->d->ops->clock_ns(sim->d);
    rig_step_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->clock_ns(sim->d), begin);
    step.n_rows = 1;
    rig_step_beside(sim, &fake, &step);
    assert_int_equal(sim->d->ops->clock_ns(sim->d), begin + 12000 + 2 * (uint64_t)MATRIX);
    rig_free(sim);
}

static void only_what_was_staged_is_streamed(void **state)
{
    (void)state;
    struct compiled *c;
    struct oato_error err;
    struct rig *sim = rig_create(SPEEDS, 1), *cpu = rig_create("cpu", 0);
    rig_put_stream(sim, rig_f32_matrix(sim, N, N, 1));
    assert_int_equal(sim->d->ops->compile(sim->d, rig_program(sim), 1, &c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "weight 0 is streamed but already resident"));
    sim->records[0].weight[0] = 1;
    assert_int_equal(sim->d->ops->compile(sim->d, rig_program(sim), 1, &c, &err), OATO_EUSAGE);
    rig_put_stream(cpu, rig_f32_matrix(cpu, N, N, 1));
    assert_int_equal(cpu->d->ops->compile(cpu->d, rig_program(cpu), 0, &c, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "cannot be streamed to the host"));
    rig_free(sim);
    rig_free(cpu);
}

/* Of a matrix of three groups of rows the second, then the third: the host's prepared bytes, and
 * rows of the file, which are converted on the way. */
static void rows_are_replaced_by_prepared_ones_and_by_the_files(void **state)
{
    (void)state;
    enum { GROUPS = MATRICES };
    static float rows[GROUPS * N * N], expected[GROUPS * N * N];
    struct oato_device *cpu = rig_open("cpu"), *sim = rig_open(SPEEDS);
    struct oato_weight *w, *all, *part;
    struct oato_error err;
    uint64_t value;
    rig_random(rows, ARRAY_LEN(rows), 3);
    rig_random(matrices[1], N * N, 1);
    rig_random(matrices[2], N * N, 2);
    memcpy(expected, rows, sizeof rows);
    memcpy(expected + N * N, matrices[1], MATRIX);
    memcpy(expected + 2 * N * N, matrices[2], MATRIX);
    struct weight_source s = {
        .data = rows, .dtype = DT_F32, .k = N, .n = GROUPS * N, .row_end = GROUPS * N};
    assert_int_equal(weight_prepare(sim, &s, &w, &err), OATO_OK);
    s.data = expected;
    assert_int_equal(weight_prepare(cpu, &s, &all, &err), OATO_OK);
    struct weight_source by = source_of(1), from = source_of(2);
    assert_int_equal(weight_prepare(cpu, &by, &part, &err), OATO_OK);
    by.prepared = weight_data(cpu, part);
    by.data = NULL;
    assert_int_equal(weight_refill(sim, w, N, &by, 0, &value, &err), OATO_OK);
    assert_int_equal(weight_refill(sim, w, 2 * N, &from, 0, &value, &err), OATO_OK);
    assert_true(timeline_wait(weight_transfers(sim), value, NULL));
    assert_memory_equal(weight_data(sim, w), weight_data(cpu, all), GROUPS * MATRIX);
    assert_int_equal(weight_refill(sim, w, 1, &by, 0, &value, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "rows 1 to 65 cannot be refilled"));
    assert_false(weight_refills(cpu));
    weight_free(sim, w);
    weight_free(cpu, all);
    weight_free(cpu, part);
    sim->ops->close(sim);
    cpu->ops->close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_weights_take_turns_beside_what_computes),
        cmocka_unit_test(what_nobody_reads_in_a_step_is_not_streamed),
        cmocka_unit_test(only_what_was_staged_is_streamed),
        cmocka_unit_test(rows_are_replaced_by_prepared_ones_and_by_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
