/*
 * test_plan.c - what must stay true of plan files: what is written reads back the same and twice
 * gives the same bytes; any flipped bit and any missing byte is refused; right checksums do not
 * make wrong values right.
 */
#include "plan_bytes.h"
#include "plan_refusal.h"
#include "random_planfmt.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void assert_same(const struct plan *a, const struct plan *b)
{
    assert_string_equal(a->tool, b->tool);
    assert_string_equal(a->model_name, b->model_name);
    assert_true(a->structure_hash == b->structure_hash && a->content_hash == b->content_hash &&
                a->profile_hash == b->profile_hash && a->neurons_hash == b->neurons_hash);
    assert_int_equal(a->n_devices, b->n_devices);
    for (int32_t i = 0; i < a->n_devices; i++) {
        assert_string_equal(a->devices[i].id, b->devices[i].id);
        assert_string_equal(a->devices[i].kind, b->devices[i].kind);
        assert_true(a->devices[i].is_host == b->devices[i].is_host);
        assert_string_equal(a->devices[i].model, b->devices[i].model);
        assert_string_equal(a->devices[i].spec, b->devices[i].spec);
        assert_int_equal(a->devices[i].rank, b->devices[i].rank);
        assert_true(a->devices[i].budget_bytes == b->devices[i].budget_bytes &&
                    a->devices[i].planned_bytes == b->devices[i].planned_bytes);
    }
    assert_memory_equal(&a->request, &b->request, offsetof(struct plan_request, deterministic));
    assert_int_equal(a->request.deterministic, b->request.deterministic);
    assert_int_equal(a->request.objective, b->request.objective);
    assert_int_equal(a->request.n_points, b->request.n_points);
    assert_memory_equal(a->request.points, b->request.points,
                        (size_t)a->request.n_points * sizeof *a->request.points);
    assert_int_equal(a->n_sparse, b->n_sparse);
    for (int32_t i = 0; i < a->n_sparse; i++)
        assert_true(a->sparse[i].layer == b->sparse[i].layer &&
                    a->sparse[i].threshold == b->sparse[i].threshold &&
                    a->sparse[i].dense == b->sparse[i].dense &&
                    a->sparse[i].predicts == b->sparse[i].predicts);
    assert_int_equal(a->n_parts, b->n_parts);
    for (int32_t i = 0; i < a->n_parts; i++) {
        const struct plan_part *x = &a->parts[i], *y = &b->parts[i];
        assert_string_equal(x->op, y->op);
        assert_true(x->axis == y->axis && x->begin == y->begin && x->end == y->end &&
                    x->phases == y->phases && x->device == y->device && x->home == y->home);
    }
    assert_int_equal(a->n_kv, b->n_kv);
    if (a->n_kv)
        assert_memory_equal(a->kv, b->kv, (size_t)a->n_kv * sizeof *a->kv);
    assert_int_equal(a->n_fusions, b->n_fusions);
    for (int32_t i = 0; i < a->n_fusions; i++) {
        assert_string_equal(a->fusions[i].name, b->fusions[i].name);
        assert_string_equal(a->fusions[i].op, b->fusions[i].op);
    }
    assert_int_equal(a->n_inputs, b->n_inputs);
    for (int32_t i = 0; i < a->n_inputs; i++) {
        assert_string_equal(a->inputs[i].tensor, b->inputs[i].tensor);
        assert_true(a->inputs[i].threshold == b->inputs[i].threshold &&
                    a->inputs[i].silent == b->inputs[i].silent);
    }
    assert_int_equal(a->n_sums, b->n_sums);
    for (int32_t i = 0; i < a->n_sums; i++)
        assert_true(a->sums[i].bytes == b->sums[i].bytes && a->sums[i].way == b->sums[i].way &&
                    a->sums[i].wire == b->sums[i].wire);
    assert_int_equal(a->n_kernels, b->n_kernels);
    for (int32_t i = 0; i < a->n_kernels; i++) {
        assert_int_equal(a->kernels[i].device, b->kernels[i].device);
        assert_string_equal(a->kernels[i].isa, b->kernels[i].isa);
        assert_string_equal(a->kernels[i].layout, b->kernels[i].layout);
    }
    assert_int_equal(a->n_choices, b->n_choices);
    for (int32_t i = 0; i < a->n_choices; i++) {
        assert_string_equal(a->choices[i].option, b->choices[i].option);
        assert_int_equal(a->choices[i].chosen, b->choices[i].chosen);
    }
    assert_int_equal(a->n_alternatives, b->n_alternatives);
    for (int32_t i = 0; i < a->n_alternatives; i++) {
        const struct plan_alternative *x = &a->alternatives[i], *y = &b->alternatives[i];
        assert_string_equal(x->option, y->option);
        assert_string_equal(x->why, y->why);
        assert_true(x->prefill_ns == y->prefill_ns && x->decode_ns == y->decode_ns &&
                    x->request_ns == y->request_ns);
    }
    assert_int_equal(a->n_caches, b->n_caches);
    for (int32_t i = 0; i < a->n_caches; i++) {
        const struct plan_cache *x = &a->caches[i], *y = &b->caches[i];
        assert_string_equal(x->op, y->op);
        assert_true(x->device == y->device && x->slots == y->slots && x->margin == y->margin &&
                    x->hits == y->hits);
    }
    assert_int_equal(a->n_costs, b->n_costs);
    for (int32_t i = 0; i < a->n_costs; i++) {
        const struct plan_cost *x = &a->costs[i], *y = &b->costs[i];
        assert_string_equal(x->op, y->op);
        assert_true(x->phase == y->phase && x->device == y->device && x->ns == y->ns &&
                    x->transfer_ns == y->transfer_ns && x->estimate == y->estimate);
    }
    assert_int_equal(a->n_baselines, b->n_baselines);
    for (int32_t i = 0; i < a->n_baselines; i++) {
        assert_string_equal(a->baselines[i].name, b->baselines[i].name);
        assert_true(a->baselines[i].objective_ns == b->baselines[i].objective_ns);
    }
    for (int i = 0; i < PHASE_COUNT; i++)
        assert_string_equal(a->numerics[i], b->numerics[i]);
    assert_true(a->prefill_ns == b->prefill_ns && a->decode_ns == b->decode_ns &&
                a->request_ns == b->request_ns && a->objective_ns == b->objective_ns &&
                a->bound_ns == b->bound_ns && a->timed_out == b->timed_out);
    assert_string_equal(a->solver, b->solver);
}

static void plans_read_back_the_same(void **state)
{
    (void)state;
    struct rng rng = {test_seed()};
    for (int round = 0; round < 200; round++) {
        struct plan p, q;
        struct oato_error err = {.text = ""};
        uint8_t *one, *two;
        size_t n1, n2;
        random_plan(&rng, (int32_t)rng_range(&rng, 0, 200), &p);
        encode(&p, &one, &n1);
        if (plan_load_memory(one, n1, "m.plan", &q, &err))
            fail_msg("%s", err.text);
        assert_same(&p, &q);
        encode(&q, &two, &n2);
        assert_int_equal(n1, n2);
        assert_memory_equal(one, two, n1);
        free(one);
        free(two);
        plan_free(&p);
        plan_free(&q);
    }
}

static void an_empty_plan_is_a_plan(void **state)
{
    (void)state;
    struct plan p, q;
    struct oato_error err = {.text = ""};
    plan_init(&p);
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_OK);
    assert_int_equal(plan_load(scratch_path("m.plan"), &q, &err), OATO_OK);
    assert_string_equal(q.tool, "");
    assert_string_equal(q.solver, "");
    assert_int_equal(q.n_parts, 0);
    plan_free(&p);
    plan_free(&q);
    assert_int_equal(plan_load(scratch_path("none.plan"), &q, &err), OATO_EIO);
    scratch_clean();
}

static void the_documents_reader_and_writer_agree_with_ours(void **state)
{
    (void)state;
    uint8_t *data, *joined;
    size_t bytes, n;
    struct raw_plan raw;
    a_small_plan(&data, &bytes);
    assert_true(raw_split(data, bytes, &raw));
    raw_join(&raw, &joined, &n);
    assert_int_equal(n, bytes);
    assert_memory_equal(data, joined, n);
    raw_free(&raw);
    free(data);
    free(joined);
}

static void every_flipped_bit_is_refused(void **state)
{
    (void)state;
    uint8_t *data;
    size_t bytes;
    a_small_plan(&data, &bytes);
    assert_null(refusal(data, bytes));
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (!refusal(data, bytes))
            fail_msg("bit %zu of byte %zu may flip unseen", bit % 8, bit / 8);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    struct raw_plan raw;
    assert_true(raw_split(data, bytes, &raw));
    for (int i = 0; i < raw.n; i++) { /* the message names the section */
        size_t at = (size_t)raw_u64(data + 64 + (size_t)i * 40 + 8);
        char say[64];
        snprintf(say, sizeof say, "checksum of section %u (", raw.section[i].id);
        data[at] ^= 1;
        assert_refused(data, bytes, say);
        data[at] ^= 1;
    }
    data[70] ^= 4;
    assert_refused(data, bytes, "checksum of the section table is wrong");
    data[70] ^= 4;
    data[50] ^= 4;
    assert_refused(data, bytes, "checksum of the header is wrong");
    raw_free(&raw);
    free(data);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    uint8_t *data;
    size_t bytes;
    a_small_plan(&data, &bytes);
    assert_refused(data, 0, "empty file");
    for (size_t n = 1; n < bytes; n++)
        assert_refused(data, n, "truncated: ");
    uint8_t *longer = calloc(1, bytes + 3);
    assert_non_null(longer);
    memcpy(longer, data, bytes);
    assert_refused(longer, bytes + 3, "3 extra bytes after the end");
    free(longer);
    assert_refused((const uint8_t *)"GGUF....", 8, "not a plan");
    free(data);
}

static void wrong_values_are_refused_whatever_their_checksum(void **state)
{
    (void)state;
    static const struct {
        uint32_t section, at, value;
        const char *say;
    } wrong[] = {
        {2, 24, 0xffffffff, "section 2 (identity), record 0: no string begins at 4294967295"},
        {2, 28, 2, "section 2 (identity), record 0: no string begins at 2"},
        {3, 0, 0, "device 0: id ''"},
        {3, 4, 1, "device 0: id 'cpu:0' must be its kind, 'oato 0.1.0'"},
        {3, 16, 0x80000000, "device 0: rank -2147483648"},
        {3, 16, 1, "device 0: rank 1 on host 0 follows rank 0 on host 0"},
        {3, 20, 1, "device 0: rank 0 on host 1 follows rank 0 on host 0; ranks and hosts must be"},
        {4, 0, 0, "part 0: no operator"},
        {4, 4, 4, "part 0 ('blk."},
        {4, 12, 0x80000000, "range -"},
        {4, 20, 0x80000000, "range "},
        {4, 24, 0, "phases 0"},
        {4, 24, 4, "phases 0x4"},
        {4, 28, 9, "device 9 with home"},
        {4, 32, 0xfffffffe, "with home -2"},
        {4, 36, 1, "section 4 (parts), record 0: reserved"},
        {4, 40, 1u << 30, "section 4 (parts), record 1: no string begins"},
        {5, 0, 0x80000000, "KV range 0: layer -2147483648"},
        {5, 8, 0, "KV range 0: layer 0, heads 0 to 0"},
        {5, 12, 3, "KV range 0: device 3"},
        {6, 0, 0, "fusion 0: no name"},
        {6, 4, 0, "fusion 0: no name or no operator"},
        {6, 4, 3, "section 6 (fusions), record 0: no string"},
        {7, 0, 0xffffffff, "request: prompt -1"},
        {7, 20, 2, "request: KV of type 2"},
        {7, 24, 2, "section 7 (request), record 0: flag 2"},
        {7, 28, 3, "request: objective 3 of 3"},
        {8, 0, 0, "cost 0: operator ''"},
        {8, 4, 2, "cost 0: operator 'blk."},
        {8, 8, 7, "phase"},
        {8, 12, 2, "section 8 (costs), record 0: flag 2"},
        {9, 0, 3, "section 9 (baselines), record 0: no string"},
        {9, 4, 1, "section 9 (baselines), record 0: reserved"},
        {10, 40, 3, "section 10 (summary), record 0: no string"},
        {10, 48, 3, "section 10 (summary), record 0: no string"},
        {10, 52, 5, "section 10 (summary), record 0: flag 5"},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        uint8_t *data, *joined;
        size_t bytes, n;
        struct raw_plan raw;
        a_small_plan(&data, &bytes);
        assert_true(raw_split(data, bytes, &raw));
        raw_put32(raw_find(&raw, wrong[i].section)->data + wrong[i].at, wrong[i].value);
        raw_join(&raw, &joined, &n);
        assert_refused(joined, n, wrong[i].say);
        raw_free(&raw);
        free(data);
        free(joined);
    }
}

static void offsets_and_sizes_are_checked_before_use(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        const char *say;
    } wrong[] = {
        {16, 8, "extra bytes after the end of the plan at 8"},
        {16, UINT64_MAX, "truncated: "},
        {24, 65, "header: sizes"},
        {40, 11 | 40ull << 32, "section "}, /* an 11th row is read from the strings */
        {40, 0xffffffff | 40ull << 32, "4294967295 sections do not fit"},
        {40, 10 | 41ull << 32, "header: sizes"},
        {48, 1, "reserved 1"},
        {72, 0, "at 0; must begin at 464"},
        {72, 1ull << 63, "at 9223372036854775808; must begin at 464"},
        {72, 472, "at 472; must begin at 464"},
        {80, UINT64_MAX, "section 1 (strings): 18446744073709551615 bytes"},
        {80, 1 << 20, "section 1 (strings): 1048576 bytes"},
        {112, 464, "section 2 (identity): 32 bytes at 464; must begin at"}, /* overlaps section 1 */
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        uint8_t *data;
        size_t bytes;
        a_small_plan(&data, &bytes);
        raw_put64(data + wrong[i].at, wrong[i].value);
        /* the table's own checksum is kept right only while the header's count is */
        if (raw_u32(data + 40) < 12)
            raw_seal(data);
        else
            raw_put64(data + 56, hash_bytes(data, 56));
        assert_refused(data, bytes, wrong[i].say);
        free(data);
    }
    uint8_t *data;
    size_t bytes;
    a_small_plan(&data, &bytes);
    for (size_t i = 464; i < bytes; i++) { /* padding that is not zero, between two sections */
        uint64_t end = raw_u64(data + 72) + raw_u64(data + 80);
        if (i == end && end % 8) {
            data[i] = 1;
            assert_refused(data, bytes, "must be zero");
        }
    }
    free(data);
}

static void what_could_not_be_read_is_not_written(void **state)
{
    (void)state;
    struct rng rng = {9};
    struct plan p;
    struct oato_error err = {.text = ""};
    random_plan(&rng, 4, &p);
    p.parts[2].device = 9;
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "m.plan: plan not written: part 2"));
    assert_int_equal(scratch_files(), 0);
    p.parts[2].device = 0;
    memset(p.devices[0].model, 'x', sizeof p.devices[0].model);
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "is not terminated"));
    p.devices[0].model[1] = 0;
    p.n_devices = 65;
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_EUSAGE);
    p.n_devices = 1;
    p.n_costs = -1;
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_EUSAGE);
    plan_free(&p);
    scratch_clean();
}

static void control_characters_do_not_reach_the_file(void **state)
{
    (void)state;
    struct plan p, q;
    struct oato_error err = {.text = ""};
    plan_init(&p);
    p.model_name = "bad\x1b[2Jname\n\xff\xc3\xa4\t";
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_OK);
    assert_int_equal(plan_load(scratch_path("m.plan"), &q, &err), OATO_OK);
    assert_string_equal(q.model_name, "bad?[2Jname??\xc3\xa4?");
    plan_free(&p);
    plan_free(&q);
    scratch_clean();
}

static void a_full_disk_leaves_the_old_plan(void **state)
{
    (void)state;
    struct rng rng = {13};
    struct plan p;
    struct oato_error err = {.text = ""};
    struct rlimit old, tight;
    size_t before, after;
    plan_init(&p);
    assert_int_equal(plan_save(&p, scratch_path("m.plan"), &err), OATO_OK);
    char *one = read_whole(scratch_path("m.plan"), &before);
    plan_free(&p);
    random_plan(&rng, 400, &p);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight = (struct rlimit){2000, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    oato_status status = plan_save(&p, scratch_path("m.plan"), &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, OATO_EIO);
    char *two = read_whole(scratch_path("m.plan"), &after);
    assert_int_equal(before, after);
    assert_memory_equal(one, two, before);
    assert_int_equal(scratch_files(), 1);
    free(one);
    free(two);
    plan_free(&p);
    scratch_clean();
}

static void classes_are_named_whole(void **state)
{
    (void)state;
    assert_true(plan_classes_have("f32", "f32"));
    assert_true(plan_classes_have("f32+f16.cublas+a8b32s", "f16.cublas"));
    assert_true(plan_classes_have("f32+a8b32s", "a8b32s"));
    assert_false(plan_classes_have("f32+f16.cublas", "f16"));
    assert_false(plan_classes_have("bf16+f32", "f16"));
    assert_false(plan_classes_have("a8b32", "a8b32s"));
    assert_false(plan_classes_have("", "f32"));
    assert_false(plan_classes_have(NULL, "f32"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_named_whole),
        cmocka_unit_test(plans_read_back_the_same),
        cmocka_unit_test(an_empty_plan_is_a_plan),
        cmocka_unit_test(the_documents_reader_and_writer_agree_with_ours),
        cmocka_unit_test(every_flipped_bit_is_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(wrong_values_are_refused_whatever_their_checksum),
        cmocka_unit_test(offsets_and_sizes_are_checked_before_use),
        cmocka_unit_test(what_could_not_be_read_is_not_written),
        cmocka_unit_test(control_characters_do_not_reach_the_file),
        cmocka_unit_test(a_full_disk_leaves_the_old_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
