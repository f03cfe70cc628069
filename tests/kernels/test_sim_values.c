/*
 * test_sim_values.c - values that a simulated device has as F16: conversions, what lies in its
 * arena, and the class of its operators.
 */
#include "tests/kernels/device_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static float half_of(float x)
{
    return f16_to_f32(f32_to_f16(x));
}

/* What is stored is F16 in two bytes, and no more is lost than that takes. */
static void values_are_halves_where_it_says_so(void **state)
{
    (void)state;
    enum { K = 64, N = RIG_TOKENS * K };
    struct rig *sim = rig_create("sim:vram=8MiB,values=f16", 0), *cpu = rig_create("cpu", 0);
    static float x[N], halves[N], back[N], sum[N], norm[N], expected[N];
    static uint16_t stored[N + 1];
    struct step step = {.n_tokens = RIG_TOKENS, .n_seqs = 1};
    rig_random(x, N, 7);
    x[0] = 1e6f; /* beyond F16 */
    x[1] = -INFINITY;
    for (int i = 0; i < N; i++) {
        halves[i] = i ? half_of(x[i]) : 65504;
        sum[i] = half_of(halves[i] + halves[i]);
    }
    rig_put(sim, "convert/F16/k64", 1, (int[]){0}, 1, (int[]){1}, NULL);
    rig_put(sim, "add/k64", 2, (int[]){1, 1}, 1, (int[]){2}, NULL);
    rig_put(sim, "rms_norm/k64", 1, (int[]){2}, 1, (int[]){3}, (int[]){rig_vector(sim, K, 3)});
    rig_put(sim, "convert/F32/k64", 1, (int[]){2}, 1, (int[]){4}, NULL);
    rig_put(sim, "convert/F32/k64", 1, (int[]){3}, 1, (int[]){5}, NULL)->signal = 1;
    rig_put(cpu, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(cpu, K, 3)})
        ->signal = 1;
    rig_compile(sim, NULL);
    rig_compile(cpu, NULL);
    rig_write(sim, 0, x, sizeof x);
    rig_write(sim, 1, (float[N]){0}, sizeof x);
    rig_write(cpu, 0, sum, sizeof sum);
    rig_step(&sim, 1, &step);
    rig_step(&cpu, 1, &step);
    rig_read(sim, 1, (float *)(void *)stored, sizeof stored);
    for (int i = 0; i < N; i++)
        assert_true(f16_to_f32(stored[i]) == halves[i]);
    assert_int_equal(stored[N], 0); /* two bytes, no more */
    rig_read(sim, 4, back, sizeof back);
    sum[0] = 65504;
    assert_memory_equal(back, sum, sizeof sum);
    rig_read(sim, 5, norm, sizeof norm);
    rig_read(cpu, 1, expected, sizeof expected);
    for (int i = K; i < N; i++) /* of the other rows */
        assert_true(norm[i] == half_of(expected[i]));
    const struct oato_op *op = &sim->records[1].op;
    assert_string_equal(sim->d->ops->numerics(sim->d, op, NUMERICS_DECODE), "f32-f16");
    assert_string_equal(cpu->d->ops->numerics(cpu->d, op, NUMERICS_DECODE), "f32");
    rig_free(sim);
    rig_free(cpu);
}

static void its_word_is_f16(void **state)
{
    (void)state;
    struct oato_error err;
    struct oato_device *d;
    assert_int_equal(device_open("sim:values=q8_0", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "values='q8_0' must be f16"));
    d = rig_open("sim");
    assert_null(device_values(d));
    d->ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_halves_where_it_says_so),
        cmocka_unit_test(its_word_is_f16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
