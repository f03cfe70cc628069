/*
 * test_plan_sections.c - sections of plan files: those that are unknown are skipped or refused as
 * they ask; those that are known keep their rules, whatever their checksum.
 */
#include "plan_bytes.h"
#include "plan_refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The small plan, changed by `change` on its sections, must say `say`; NULL: must load. */
static void assert_changed(void (*change)(struct raw_plan *), const char *say)
{
    uint8_t *data, *joined;
    size_t bytes, n;
    struct raw_plan raw;
    a_small_plan(&data, &bytes);
    assert_true(raw_split(data, bytes, &raw));
    change(&raw);
    raw_join(&raw, &joined, &n);
    if (say)
        assert_refused(joined, n, say);
    else if (refusal(joined, n))
        fail_msg("%s", refusal(joined, n));
    raw_free(&raw);
    free(data);
    free(joined);
}

static void add_optional(struct raw_plan *r)
{
    raw_add(r, 77, 0, "anything", 8);
}
static void add_required(struct raw_plan *r)
{
    raw_add(r, 77, 1, "anything", 8);
}
static void add_flags(struct raw_plan *r)
{
    raw_add(r, 77, 2, "anything", 8);
}
static void add_twice(struct raw_plan *r)
{
    raw_add(r, 77, 0, "a", 1);
    raw_add(r, 77, 0, "b", 1);
}
static void add_parts_again(struct raw_plan *r)
{
    raw_add(r, 4, 1, "", 0);
}
static void add_too_many(struct raw_plan *r)
{
    for (uint32_t i = 0; i < 260; i++)
        raw_add(r, 1000 + i, 0, "", 0);
}
static void add_wrong_count(struct raw_plan *r)
{
    raw_add(r, 77, 0, "anything", 8);
    r->section[r->n - 1].count = 7;
}
static void newer_format(struct raw_plan *r)
{
    r->version = 2;
}
static void remove_section(struct raw_plan *r, uint32_t id)
{
    struct raw_section *s = raw_find(r, id);
    free(s->data);
    memmove(s, s + 1, (size_t)(&r->section[r->n] - (s + 1)) * sizeof *s);
    r->n--;
}
static void remove_parts(struct raw_plan *r)
{
    remove_section(r, 4);
}
static void remove_costs(struct raw_plan *r)
{
    remove_section(r, 8);
    remove_section(r, 9);
}
static void reverse_order(struct raw_plan *r)
{
    for (int i = 0; i < r->n / 2; i++) {
        struct raw_section s = r->section[i];
        r->section[i] = r->section[r->n - 1 - i];
        r->section[r->n - 1 - i] = s;
    }
}
static void parts_optional(struct raw_plan *r)
{
    raw_find(r, 4)->flags = 0;
}
static void two_requests(struct raw_plan *r)
{
    struct raw_section *s = raw_find(r, 7);
    s->data = realloc(s->data, 64);
    memset(s->data + 32, 0, 32);
    s->bytes = 64;
    s->count = 2;
}
static void other_record_size(struct raw_plan *r)
{
    struct raw_section *s = raw_find(r, 5);
    s->count *= 2;
    s->record_bytes /= 2;
}
static void strings_without_end(struct raw_plan *r)
{
    struct raw_section *s = raw_find(r, 1);
    s->data[s->bytes - 1] = 'x';
}
static void strings_without_begin(struct raw_plan *r)
{
    raw_find(r, 1)->data[0] = 'x';
}
static void strings_empty(struct raw_plan *r)
{
    raw_find(r, 1)->bytes = raw_find(r, 1)->count = 0;
}
static void strings_control(struct raw_plan *r)
{
    raw_find(r, 1)->data[2] = 0x1b;
}

static void sections_keep_their_rules(void **state)
{
    (void)state;
    assert_changed(add_optional, NULL);
    assert_changed(reverse_order, NULL);
    assert_changed(remove_costs, NULL);
    assert_changed(add_required, "section 77 is required and unknown to this program");
    assert_changed(add_flags, "section 77: flags 0x2");
    assert_changed(add_twice, "duplicate section 77");
    assert_changed(add_parts_again, "duplicate section 4 (parts)");
    assert_changed(add_too_many, "270 sections");
    assert_changed(add_wrong_count, "section 77: 7 records of 1 bytes in 8 bytes");
    assert_changed(newer_format, "plan format 2; this program reads 1");
    assert_changed(remove_parts, "section 4 (parts) is missing");
    assert_changed(parts_optional, "section 4 (parts): flags 0; must be 1");
    assert_changed(two_requests, "section 7 (request): 2 records of 32 bytes; must be 1 of 32");
    assert_changed(other_record_size, "section 5 (kv): ");
    assert_changed(strings_without_end, "section 1 (strings): must begin and end");
    assert_changed(strings_without_begin, "section 1 (strings): must begin and end");
    assert_changed(strings_empty, "section 1 (strings): must begin and end");
    assert_changed(strings_control, "section 1 (strings): control character 0x1b");
}

static void add_neurons(struct raw_plan *r)
{
    raw_add(r, 11, 1, "\1\0\0\0\0\0\0\2", 8);
    r->section[r->n - 1].count = 1;
    r->section[r->n - 1].record_bytes = 8;
}
static void add_no_neurons(struct raw_plan *r)
{
    add_neurons(r);
    memset(r->section[r->n - 1].data, 0, 8);
}
static void add_optional_neurons(struct raw_plan *r)
{
    add_neurons(r);
    r->section[r->n - 1].flags = 0;
}

static void add_sparse(struct raw_plan *r, const char *records, int32_t n)
{
    raw_add(r, 13, 0, records, (size_t)n * 16);
    r->section[r->n - 1].count = (uint32_t)n;
    r->section[r->n - 1].record_bytes = 16;
}
static void add_inputs(struct raw_plan *r, const char *records, int32_t n)
{
    add_sparse(r, records, n);
    r->section[r->n - 1].id = 14;
}
static void add_no_inputs(struct raw_plan *r)
{
    add_inputs(r, "", 0);
}
static void add_nameless_input(struct raw_plan *r)
{
    add_inputs(r, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1);
}
static void add_reserved_input(struct raw_plan *r)
{
    add_inputs(r, "\1\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0", 1);
}
static void add_negative_input(struct raw_plan *r)
{
    add_inputs(r, "\1\0\0\0\0\0\x80\xbf\0\0\0\0\0\0\0\0", 1);
}
static void add_two_shares(struct raw_plan *r)
{
    add_inputs(r, "\1\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0", 1);
}
static void add_sums(struct raw_plan *r, const char *records, int32_t n)
{
    add_sparse(r, records, n);
    r->section[r->n - 1].id = 15;
}
static void add_no_sums(struct raw_plan *r)
{
    add_sums(r, "", 0);
}
static void add_unknown_way(struct raw_plan *r)
{
    add_sums(r, "\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 1);
}
static void add_sums_of_no_accelerator(struct raw_plan *r)
{
    add_sums(r, "\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 1);
}
static void add_falling_sums(struct raw_plan *r)
{
    add_sums(r, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 2);
}
static void add_library_sums_of_f16(struct raw_plan *r)
{
    add_sums(r, "\1\0\0\0\0\0\0\0\1\0\0\0\1\0\0\0", 1);
}
static void add_sums_of_q4(struct raw_plan *r)
{
    add_sums(r, "\1\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0", 1);
}
static void add_no_kernels(struct raw_plan *r)
{
    add_sparse(r, "", 0);
    r->section[r->n - 1].id = 16;
}
static void add_kernels_of_no_device(struct raw_plan *r)
{
    add_sparse(r, "\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0", 1);
    r->section[r->n - 1].id = 16;
}
/* So many points of one token each, with these weights. */
static void add_points(struct raw_plan *r, int32_t n, uint32_t weight, uint32_t depth)
{
    uint8_t records[32 * (REQUEST_POINTS_MAX + 1)] = {0};
    for (int32_t i = 0; i < n; i++) {
        records[32 * i] = 1;
        raw_put32(&records[32 * i + 8], depth);
        raw_put32(&records[32 * i + 12], weight);
    }
    raw_add(r, 17, 0, records, (size_t)n * 32);
    r->section[r->n - 1].count = (uint32_t)n;
    r->section[r->n - 1].record_bytes = 32;
}
static void add_no_points(struct raw_plan *r)
{
    add_points(r, 0, 0, 0);
}
static void add_too_many_points(struct raw_plan *r)
{
    add_points(r, REQUEST_POINTS_MAX + 1, 1, 0);
}
static void add_light_points(struct raw_plan *r)
{
    add_points(r, 2, POINTS_WEIGHT / 2 - 1, 0);
}
static void add_points_of_no_weight(struct raw_plan *r)
{
    add_points(r, 1, 0, 0);
}
static void add_points_of_negative_depth(struct raw_plan *r)
{
    add_points(r, 1, POINTS_WEIGHT, UINT32_MAX);
}
static void points_are_few_and_weigh_one_together(void **state)
{
    (void)state;
    assert_changed(add_no_points, "section 17 (points): no records");
    assert_changed(add_too_many_points, "section 17 (points): 9 records; at most 8");
    assert_changed(add_light_points, "points: weights are 999999998 together; must be 1000000000");
    assert_changed(add_points_of_no_weight, "point 0: prompt 1, generate 0, depth 0");
    assert_changed(add_points_of_negative_depth, "point 0: prompt 1, generate 0, depth -1");
}
static void add_no_choices(struct raw_plan *r)
{
    raw_add(r, 18, 0, "", 0);
    r->section[r->n - 1].record_bytes = 8;
}
static void add_choice_of_nothing(struct raw_plan *r)
{
    raw_add(r, 18, 0, "\0\0\0\0\1\0\0\0", 8);
    r->section[r->n - 1].count = 1;
    r->section[r->n - 1].record_bytes = 8;
}
static void add_choice_in_part(struct raw_plan *r)
{
    raw_add(r, 18, 0, "\0\0\0\0\2\0\0\0", 8);
    r->section[r->n - 1].count = 1;
    r->section[r->n - 1].record_bytes = 8;
}
static void add_alternative_of_nothing(struct raw_plan *r)
{
    static const char nothing[32];
    raw_add(r, 19, 0, nothing, 32);
    r->section[r->n - 1].count = 1;
    r->section[r->n - 1].record_bytes = 32;
}
static void add_no_layers(struct raw_plan *r)
{
    add_sparse(r, "", 0);
}
static void add_layer_twice(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 2);
}
static void add_no_number(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\xc0\x7f\0\0\0\0\0\0\0\0", 1);
}
static void add_negative_threshold(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\x80\xbf\0\0\0\0\0\0\0\0", 1);
}
static void add_signs(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0", 1);
}
static void add_unknown_mode(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\0\0\0\0\0\0\3\0\0\0", 1);
}
static void add_threshold_of_a_predictor(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\x80\x3f\0\0\0\0\1\0\0\0", 1);
}
static void add_no_device(struct raw_plan *r)
{
    add_sparse(r, "\3\0\0\0\0\0\0\0\0\0\0\x40\0\0\0\0", 1);
}

static void layers_that_skip_neurons_are_listed_once(void **state)
{
    (void)state;
    assert_changed(add_no_layers, "section 13 (sparse): no records");
    assert_changed(add_layer_twice, "sparse layer 1: number 3; they must ascend");
    assert_changed(add_no_number, "sparse layer 0: threshold nan");
    assert_changed(add_negative_threshold, "sparse layer 0: threshold -1");
    assert_changed(add_signs,
                   "found by signs, which this version no longer does; run oato-plan again");
    assert_changed(add_unknown_mode, "sparse layer 0: predicts 3; allowed: 0 and 1");
    assert_changed(add_threshold_of_a_predictor, "sparse layer 0: threshold 1; allowed: 0 to 0");
    assert_changed(add_no_device, "sparse layer 0: dense on devices 0x40000000");
    assert_changed(add_no_inputs, "section 14 (inputs): no records");
    assert_changed(add_nameless_input, "input 0: matrix '', threshold 0, share 0");
    assert_changed(add_reserved_input, "section 14 (inputs), record 0: reserved");
    assert_changed(add_negative_input, "threshold -1, share 0; allowed: from 0");
    assert_changed(add_two_shares, "share 2; allowed: from 0, and 0 to 1");
    assert_changed(add_no_sums, "section 15 (sums): no records");
    assert_changed(add_unknown_way, "sum 0: 1 bytes, way 4, wire 0; at most");
    assert_changed(add_sums_of_no_accelerator, "sums by accelerators: allowed for ranks");
    assert_changed(add_falling_sums, "sum 1: 1 bytes, way 1, wire 0; at most");
    assert_changed(add_library_sums_of_f16, "sum 0: 1 bytes, way 1, wire 1; at most");
    assert_changed(add_no_kernels, "section 16 (kernels): no records");
    assert_changed(add_no_choices, "section 18 (choices): no records");
    assert_changed(add_choice_of_nothing, "choice 0: no name");
    assert_changed(add_choice_in_part, "section 18 (choices), record 0: flag 2");
    assert_changed(add_alternative_of_nothing, "alternative 0: no option");
    assert_changed(add_kernels_of_no_device, "kernels 0: device 1073741824 of");
    assert_changed(add_sums_of_q4, "sum 0: 1 bytes, way 0, wire 2; at most");
}

/* A plan in natural order is what readers without the section take; one in another they refuse. */
static void the_order_of_neurons_is_said_only_where_it_is_not_the_natural_one(void **state)
{
    (void)state;
    uint8_t *data, *with;
    size_t bytes, n;
    struct raw_plan raw;
    struct plan p;
    struct oato_error err = {.text = ""};
    a_small_plan(&data, &bytes);
    assert_true(raw_split(data, bytes, &raw));
    assert_null(raw_find(&raw, 11));
    add_neurons(&raw);
    raw_join(&raw, &with, &n);
    raw_free(&raw);
    free(data);
    assert_int_equal(plan_load_memory(with, n, "m.plan", &p, &err), OATO_OK);
    assert_true(p.neurons_hash == (1 | 2ull << 56));
    encode(&p, &data, &bytes);
    assert_int_equal(bytes, n);
    assert_memory_equal(data, with, n);
    free(data);
    free(with);
    plan_free(&p);
    assert_changed(add_no_neurons, "section 11 (neurons): hash 0");
    assert_changed(add_optional_neurons, "section 11 (neurons): flags 0; must be 1");
}

static void add_cache(struct raw_plan *r, uint32_t at, uint32_t value)
{
    uint8_t record[24] = {0};
    raw_put32(record, raw_u32(raw_find(r, 4)->data)); /* an operator's name */
    raw_put32(record + 8, 3);
    raw_put32(record + at, value);
    raw_add(r, 12, 0, record, sizeof record);
    r->section[r->n - 1].count = 1;
    r->section[r->n - 1].record_bytes = sizeof record;
}
static void add_good_cache(struct raw_plan *r)
{
    add_cache(r, 12, 1500);
}
static void add_unnamed_cache(struct raw_plan *r)
{
    add_cache(r, 0, 0);
}
static void add_lost_cache(struct raw_plan *r)
{
    add_cache(r, 4, 77);
}
static void add_empty_cache(struct raw_plan *r)
{
    add_cache(r, 8, 0);
}
static void add_negative_margin(struct raw_plan *r)
{
    add_cache(r, 12, UINT32_MAX);
}
static void add_too_many_hits(struct raw_plan *r)
{
    add_cache(r, 16, 1000001);
}
static void add_reserved_cache(struct raw_plan *r)
{
    add_cache(r, 20, 1);
}

static void caches_have_slots_on_a_device(void **state)
{
    (void)state;
    assert_changed(add_good_cache, NULL);
    assert_changed(add_unnamed_cache, "cache 0: operator ''");
    assert_changed(add_lost_cache, "device 77 of ");
    assert_changed(add_empty_cache, "0 slots");
    assert_changed(add_negative_margin, "margin -1");
    assert_changed(add_too_many_hits, "1000001 hits");
    assert_changed(add_reserved_cache, "section 12 (caches), record 0: reserved");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sections_keep_their_rules),
        cmocka_unit_test(layers_that_skip_neurons_are_listed_once),
        cmocka_unit_test(points_are_few_and_weigh_one_together),
        cmocka_unit_test(the_order_of_neurons_is_said_only_where_it_is_not_the_natural_one),
        cmocka_unit_test(caches_have_slots_on_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
