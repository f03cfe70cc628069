/*
 * test_profiler_numbers.c - what a run measures and how it counts: sizes, passes, quantiles, and
 * the machine's fingerprint.
 */
#include "profiler/profiler_internal.h"

#include "tests/profiler/profiler_testing.h"

static void quick_sizes_are_sizes_of_the_full_run(void **state)
{
    (void)state;
    struct profiler_options full = {.kv = DT_F16}, quick = {.kv = DT_F16, .quick = true};
    const int kinds[] = {OP_MUL_MAT, OP_ATTENTION};
    for (int i = 0; i < 4; i++) {
        struct op_case c = {.op = {.kind = (uint16_t)kinds[i % 2]}, .logits_only = i == 2};
        struct op_point a[POINTS_MAX], b[POINTS_MAX];
        int32_t context = i == 3 ? 100 : 8192;
        int32_t n = op_points(&c, &full, context, a), m = op_points(&c, &quick, context, b);
        assert_true(m > 0 && m < n);
        for (int32_t j = 0; j < m; j++) {
            bool found = false;
            for (int32_t k = 0; k < n; k++)
                found = found || !memcmp(&a[k], &b[j], sizeof b[j]);
            assert_true(found);
        }
    }
    full.n_contexts = 2; /* given ones replace the usual ones */
    full.contexts[0] = 300;
    full.contexts[1] = 9000;
    struct op_case c = {.op = {.kind = OP_ATTENTION}};
    struct op_point a[POINTS_MAX];
    int32_t n = op_points(&c, &full, 8192, a);
    for (int32_t j = 0; j < n; j++)
        assert_true(a[j].seqs > 1 || a[j].context == 300 ||
                    (a[j].rows == 512 && a[j].context == 8192));
}

static void attention_counts_every_position_read(void **state)
{
    (void)state;
    struct oato_op op = {.kind = OP_ATTENTION};
    struct op_size size = op_point_size(&op, &(struct op_point){4, 1, 10, 0});
    assert_int_equal(size.kv_positions, 7 + 8 + 9 + 10);
    size = op_point_size(&op, &(struct op_point){4, 2, 10, 0});
    assert_int_equal(size.kv_positions, 2 * (9 + 10));
    assert_int_equal(size.seqs, 2);
}

static void the_fingerprint_tells_the_machine_and_not_its_owner(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    char host[256] = "", why[256], name[96];
    if (profiler_begin(NULL, false, &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    const struct profile_machine *m = &p.machine;
    assert_true(m->cores >= 1 && m->threads >= m->cores && m->sockets >= 1 && m->numa_nodes >= 1);
    assert_true(m->memory_bytes > (uint64_t)64 << 20);
    gethostname(host, sizeof host - 1);
    if (strlen(host) > 3)
        assert_null(strstr(m->cpu, host));
    assert_true(machine_same(m, m, why, sizeof why));
    struct profile_machine other = *m;
    other.cpu = "Other CPU";
    assert_false(machine_same(m, &other, why, sizeof why));
    other = *m;
    other.isa = "none";
    assert_false(machine_same(m, &other, why, sizeof why));
    other.cpu = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz";
    machine_file_name(&other, name, sizeof name);
    assert_string_equal(name, "intel-xeon-platinum-8481c.profile.yaml");
    other.cpu = "AMD EPYC 9755 128-Core Processor";
    machine_file_name(&other, name, sizeof name);
    assert_string_equal(name, "amd-epyc-9755-128-core.profile.yaml");
    other.cpu = "@";
    machine_file_name(&other, name, sizeof name);
    assert_string_equal(name, "machine.profile.yaml");
    profile_free(&p);
}

static void the_middle_pass_counts(void **state)
{
    (void)state;
    static const double times[PASSES_MAX] = {5, 1, 3, 9, 2}, middle[PASSES_MAX] = {5, 1, 3, 3, 3},
                        least[PASSES_MAX] = {5, 1, 1, 1, 1};
    struct profile_row got;
    struct passes p = {.n = 0};
    struct profile_row row = {.op = {.kind = OP_ADD, .dtype = DT_F32, .k = 64, .n = 64},
                              .size = {.rows = 1, .seqs = 1},
                              .supported = true};
    struct profile_row other = row;
    other.size.rows = 8;
    for (int i = 0; i < PASSES_MAX; i++) {
        p.n++;
        row.median_ns = times[i];
        assert_true(passes_add(&p, &row));
        got = passes_middle(&p, &row);
        assert_true(got.median_ns == middle[i]);
        assert_int_equal(got.disturbed, middle[i] > 2 * least[i]); /* two passes disagree */
    }
    assert_true(passes_add(&p, &other));
    assert_int_equal(passes_middle(&p, &other).size.rows, 8);
    passes_free(&p);
}

static void quantiles_lie_between_their_neighbours(void **state)
{
    (void)state;
    double v[] = {4, 1, 3, 2};
    assert_true(quantile(v, 4, 0.5) == 2.5 && quantile(v, 4, 0) == 1 && quantile(v, 4, 1) == 4);
    double one[] = {7};
    assert_true(quantile(one, 1, 0.9) == 7);
    assert_true(readable_ns(12.3456) == 12.3 && readable_ns(1234.6) == 1235);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quick_sizes_are_sizes_of_the_full_run),
        cmocka_unit_test(attention_counts_every_position_read),
        cmocka_unit_test(the_fingerprint_tells_the_machine_and_not_its_owner),
        cmocka_unit_test(the_middle_pass_counts),
        cmocka_unit_test(quantiles_lie_between_their_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
