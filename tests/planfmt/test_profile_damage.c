/*
 * test_profile_damage.c - what must stay true of profiles that people or disks have damaged: each
 * is refused with one line that names file, line and column, or loads; what is odd but harmless is
 * warned about at its place; nothing crashes.
 */
#include "random_planfmt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HEAD "oato_profile: 1\n"
#define DEVICES                                                                                    \
    "devices:\n"                                                                                   \
    "- {id: 'cpu:0', kind: cpu, memory_bytes: 8, free_bytes: 4, is_host: true}\n"                  \
    "- {id: 'sim:0', kind: sim, memory_bytes: 8, free_bytes: 4, is_host: false}\n"
#define ROW "median_ns: 1.5, prepared_bytes: 1, workspace_bytes: 2, numerics: f32"

static const struct {
    const char *yaml, *say; /* what the message must have in it */
} damaged[] = {
    {"", "p.yaml: empty"},
    {"# a comment alone\n", "p.yaml: empty"},
    {"42\n", "p.yaml:1:1: a single value where a mapping"},
    {"- 1\n", "p.yaml:1:1: a list where a mapping"},
    {"{}\n", "p.yaml:1:1: key 'oato_profile' is missing"},
    {"tool: x\n" HEAD DEVICES, "p.yaml:1:1: 'tool' where 'oato_profile: 1' must come first"},
    {"oato_profile: 2\nwhatever: [\n", "p.yaml:1:15: oato_profile: version 2 is newer than 1"},
    {"oato_profile: 0\n", "p.yaml:1:15: oato_profile: version 0"},
    {"oato_profile: one\n", "p.yaml:1:15: oato_profile: 'one' is not a whole number"},
    {"oato_profile: [1]\n", "p.yaml:1:15: oato_profile: a list where a single value"},
    {HEAD, "'devices' is missing or empty"},
    {HEAD "devices: []\n", "'devices' is missing or empty"},
    {HEAD "devices: []\nlinks: []\n", "p.yaml:2:1: 'devices' is missing or empty"},
    {HEAD "devices: 3\n", "p.yaml:2:10: devices: a single value where a list"},
    {HEAD "devices: [1]\n", "p.yaml:2:11: device: a single value where a mapping"},
    {HEAD "machine: []\n" DEVICES, "p.yaml:2:10: machine: a list where a mapping"},
    {HEAD "machine: {cores: 1.5}\n" DEVICES, "p.yaml:2:18: cores: '1.5' is not a whole number"},
    {HEAD "machine: {cores: -1}\n" DEVICES, "p.yaml:2:18: cores: -1 is negative"},
    {HEAD "machine: {cores: 2147483648}\n" DEVICES, "too large; allowed: 0 to 2147483647"},
    {HEAD "machine: {l2_bytes: 18446744073709551616}\n" DEVICES, "p.yaml:2:21: l2_bytes: 1844"},
    {HEAD "machine: {cores: 1, cores: 1}\n" DEVICES, "p.yaml:2:21: machine: duplicate key 'cores'"},
    {HEAD "machine: {cpu: \"a\\0b\"}\n" DEVICES, "p.yaml:2:16: cpu: has a zero byte"},
    {HEAD "machine: {[a]: 1}\n" DEVICES, "p.yaml:2:11: machine: a list where a key"},
    {HEAD "[a]: 1\n" DEVICES, "p.yaml:2:1: a list where a key"},
    {HEAD "machine: {}\nmachine: {}\n" DEVICES, "p.yaml:3:1: duplicate key 'machine'"},
    {HEAD "tool: a\ntool: b\n" DEVICES, "p.yaml:3:1: duplicate key 'tool'"},
    {HEAD HEAD DEVICES, "p.yaml:2:1: duplicate key 'oato_profile'"},
    {HEAD DEVICES "devices: []\n", "p.yaml:5:1: duplicate key 'devices'"},
    {HEAD DEVICES "---\nmore: 1\n", "p.yaml:5:1: a second YAML document"},
    {HEAD "machine: &m {}\n" DEVICES, "p.yaml:2:10: anchor '&m'"},
    {HEAD "machine: *m\n" DEVICES, "p.yaml:2:10: alias '*m'"},
    {HEAD "notes: &n x\n" DEVICES, "p.yaml:2:8: anchor '&n'"},
    {HEAD "other: [&a [1], *a]\n" DEVICES, "p.yaml:2:9: anchor '&a'"},
    {HEAD "notes: !!str x\n" DEVICES, "p.yaml:2:8: tag 'tag:yaml.org,2002:str'"},
    {HEAD "notes: x\n  y: z\n" DEVICES, "p.yaml:3:4: not YAML: mapping values are not allowed"},
    {HEAD "other: [x\n", "not YAML: "},
    {HEAD "\tnotes: x\n", "not YAML: "},
    {HEAD "notes: \"\\q\"\n", "not YAML: "},
    {HEAD "notes: \xff\n" DEVICES, "not UTF-8"},
    {HEAD "notes: \x01\n" DEVICES, "not UTF-8"},
    {HEAD "deep: [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]\n", "p.yaml:2:23: nested deeper than 16"},
    {HEAD "devices:\n- {id: 'cpu:0', kind: cpu, memory_bytes: 8, is_host: true}\n",
     "p.yaml:3:3: device: key 'free_bytes' is missing"},
    {HEAD "devices:\n- {id: cpu, kind: cpu, memory_bytes: 8, free_bytes: 4, is_host: true}\n",
     "p.yaml:3:8: id 'cpu'"},
    {HEAD "devices:\n- {id: 'gpu:0', kind: cpu, memory_bytes: 8, free_bytes: 4, is_host: true}\n",
     "p.yaml:3:8: id 'gpu:0'"},
    {HEAD "devices:\n- {id: 'cpu:', kind: cpu, memory_bytes: 8, free_bytes: 4, is_host: true}\n",
     "p.yaml:3:8: id 'cpu:'"},
    {HEAD "devices:\n- {id: 'CPU:0', kind: CPU, memory_bytes: 8, free_bytes: 4, is_host: true}\n",
     "p.yaml:3:8: id 'CPU:0'"},
    {HEAD "devices:\n- {id: 'cpu:0', kind: accelerator-of-8, memory_bytes: 8}\n",
     "kind: 16 bytes long"},
    {HEAD "devices:\n- {id: 'cpu:0', kind: cpu, is_host: 1}\n", "is_host: '1'; allowed: true"},
    {HEAD "supports: []\n" DEVICES, "p.yaml:2:1: 'supports' must come after 'devices'"},
    {HEAD DEVICES "supports:\n- {device: 'sim:1', kind: add}\n", "p.yaml:6:12: device 'sim:1'"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0'}\n", "p.yaml:6:3: supports: key 'kind'"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: sum}\n",
     "p.yaml:6:27: kind: 'sum' is not a kind of operator"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: mul_mat}\n",
     "p.yaml:6:3: types: missing; mul_mat has types"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: mul_mat, types: F16 Q9_9}\n",
     "p.yaml:6:43: types: 'Q9_9'"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: mul_mat, types: F16 F32 F16}\n",
     "types: 'F16' is a duplicate"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: attention, types: F16 Q4_0}\n",
     "types: 'Q4_0' is a duplicate, or no type that attention has"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: add, types: F32}\n", "types: 'F32'"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: add, values: F16 F16}\n",
     "values: 'F16 F16' is no list"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: add, values: 'F16 > Q8_0'}\n",
     "values: 'F16 > Q8_0' is no list"},
    {HEAD DEVICES "supports:\n- {device: 'sim:0', kind: add}\n- {device: 'sim:0', kind: add}\n",
     "p.yaml:7:3: duplicate kind 'add' on 'sim:0'"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: .inf}\n",
     "p.yaml:3:30: flops_per_s: .inf is not"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: -.Inf}\n", "-.Inf is not finite"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: .nan}\n", ".nan is not finite"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: nan}\n", "nan is not finite"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: 1e999}\n", "too large to be finite"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: -1e3}\n", "-1e3 is negative"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: 0x1p3}\n", "'0x1p3' is not a number"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: 1_000}\n", "'1_000' is not a number"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: 3e}\n", "'3e' is not a number"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: }\n", "'' is not a number"},
    {HEAD "devices:\n- {id: 'cpu:0', flops_per_s: {a: 1}}\n", "a mapping where a single value"},
    {HEAD DEVICES "- {id: 'cpu:0', kind: cpu, memory_bytes: 8, free_bytes: 4, is_host: true}\n",
     "p.yaml:5:8: duplicate device 'cpu:0'"},
    {HEAD "links: []\n" DEVICES, "p.yaml:2:1: 'links' must come after 'devices'"},
    {HEAD "operators: []\n" DEVICES, "p.yaml:2:1: 'operators' must come after 'devices'"},
    {HEAD DEVICES "links:\n- {from: 'cpu:0', to: 'gpu:0', latency_ns: 1, bytes_per_s: 1}\n",
     "p.yaml:6:23: device 'gpu:0' is not among the 2"},
    {HEAD DEVICES "links:\n- {from: 'cpu:0', to: 'cpu:0', latency_ns: 1, bytes_per_s: 1}\n",
     "p.yaml:6:23: link from 'cpu:0' to itself"},
    {HEAD DEVICES "links:\n- {from: 'cpu:0', to: 'sim:0', latency_ns: 1, bytes_per_s: 0}\n",
     "p.yaml:6:60: bytes_per_s: must be above 0"},
    {HEAD DEVICES "links:\n- {from: 'cpu:0', to: 'sim:0', bytes_per_s: 1}\n",
     "p.yaml:6:3: link: key 'latency_ns' is missing"},
    {HEAD DEVICES
     "links:\n- &l {from: 'cpu:0', to: 'sim:0', latency_ns: 1, bytes_per_s: 1}\n- *l\n",
     "p.yaml:6:3: anchor '&l'"},
    {HEAD DEVICES "links:\n- {from: 'cpu:0', to: 'sim:0', latency_ns: 1, bytes_per_s: 1}\n"
                  "- {from: 'cpu:0', to: 'sim:0', latency_ns: 1, bytes_per_s: 1}\n",
     "p.yaml:7:3: duplicate link from 'cpu:0' to 'sim:0'"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:9', op: add/k64/t1, " ROW "}\n",
     "p.yaml:6:12: device 'cpu:9' is not among the 2"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: add/k64, " ROW "}\n",
     "p.yaml:6:25: op: 'add/k64' lacks the size"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: add/k0/t1, " ROW "}\n",
     "p.yaml:6:25: op: 'add/k0/t1' is not an operator key"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: mul_mat/Q9_9/k64/n64/t1, " ROW "}\n",
     "is not an operator key"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: add/k64/t1, prepared_bytes: 1}\n",
     "p.yaml:6:3: operator: key 'median_ns' is missing"},
    {HEAD DEVICES "operators:\n- {op: add/k64/t1, supported: false}\n",
     "p.yaml:6:3: operator: key 'device' is missing"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: add/k64/t1, " ROW "}\n"
                  "- {device: 'cpu:0', op: add/k64/t1, supported: false}\n",
     "p.yaml:7:3: duplicate operator 'add/k64/t1' on 'cpu:0'"},
    {HEAD DEVICES "operators:\n- {device: 'cpu:0', op: add/k64/t1, median_ns: -3}\n",
     "p.yaml:6:48: median_ns: -3 is negative"},
    {HEAD DEVICES "storage:\n- {depth: 0, bytes: 1, bytes_per_s: 1}\n",
     "p.yaml:6:3: depth, bytes and bytes_per_s: must be above 0"},
    {HEAD DEVICES "storage:\n- {depth: 1, bytes: 1}\n",
     "p.yaml:6:3: storage: key 'bytes_per_s' is missing"},
    {HEAD DEVICES "sums:\n- {ranks: 2, hosts: 1, by: magic, wire: F32, bytes: 4, median_ns: 1}\n",
     "p.yaml:6:3: sum: numbers must be above 0"},
    {HEAD DEVICES "sums:\n- {ranks: 2, hosts: 3, by: tree, wire: F32, bytes: 4, median_ns: 1}\n",
     "p.yaml:6:3: sum: numbers must be above 0"},
    {HEAD DEVICES "sums:\n- {ranks: 2, hosts: 1, by: tree, wire: Q4_0, bytes: 4, median_ns: 1}\n",
     "p.yaml:6:3: sum: numbers must be above 0"},
    {HEAD DEVICES "operators: {}\n", "p.yaml:5:12: operators: a mapping where a list"},
};

static void each_kind_of_damage_is_refused_at_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
        struct profile p;
        struct oato_error err = {.text = ""};
        oato_status status = profile_load_memory(damaged[i].yaml, strlen(damaged[i].yaml), "p.yaml",
                                                 &p, NULL, NULL, &err);
        if (status != OATO_EFILE || !strstr(err.text, damaged[i].say))
            fail_msg("case %zu: status %d, '%s' is not in '%s'", i, status, damaged[i].say,
                     err.text);
        assert_null(strchr(err.text, '\n'));
        assert_null(p.arena.blocks); /* nothing is left to free */
    }
}

static void collect_warning(void *user, const char *text)
{
    struct text *t = user;
    text_printf(t, "%s\n", text);
}

static void unknown_keys_are_warned_about_and_skipped(void **state)
{
    (void)state;
    static const char yaml[] =
        HEAD "hosts: {a: [1, {b: c}], d: e}\n" DEVICES "operators:\n"
             "- {device: 'sim:0', op: add/k64/t1, colour: [red], " ROW "}\n"
             "- {device: 'cpu:0', op: add/k64/t1, supported: false, median_ns: 4}\n"
             "later: |\n  many\n  lines\n";
    struct profile p;
    struct oato_error err = {.text = ""};
    struct text warnings;
    text_init(&warnings);
    if (profile_load_memory(yaml, strlen(yaml), "p.yaml", &p, collect_warning, &warnings, &err))
        fail_msg("%s", err.text);
    assert_string_equal(warnings.data, "p.yaml:2:1: unknown key 'hosts' is ignored\n"
                                       "p.yaml:7:37: unknown key 'colour' is ignored\n"
                                       "p.yaml:9:1: unknown key 'later' is ignored\n");
    assert_int_equal(p.n_rows, 2);
    assert_int_equal(p.rows[0].device, 1);
    assert_true(p.rows[0].supported && p.rows[0].median_ns == 1.5);
    assert_true(!p.rows[1].supported && p.rows[1].median_ns == 0);
    assert_string_equal(p.machine.cpu, "");
    assert_string_equal(p.devices[0].spec, "");
    assert_int_equal(p.n_links, 0);
    assert_int_equal(profile_device_index(&p, "sim:0"), 1);
    assert_int_equal(profile_device_index(&p, "sim:1"), -1);
    profile_free(&p);
    text_free(&warnings);
}

/* Profiles that earlier versions measured. */
static void operators_that_are_gone_are_left_out(void **state)
{
    (void)state;
    static const char yaml[] =
        HEAD DEVICES "supports:\n- {device: 'cpu:0', kind: signs, types: F32 F16 Q4_0}\n"
                     "- {device: 'cpu:0', kind: add}\n"
                     "operators:\n- {op: signs/Q4_0/k64/n64/t1, device: 'cpu:0', " ROW "}\n"
                     "- {op: add/k64/t1, device: 'cpu:0', " ROW "}\n";
    struct profile p;
    struct oato_error err;
    if (profile_load_memory(yaml, strlen(yaml), "p", &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    assert_int_equal(p.n_rows, 1);
    assert_int_equal(p.rows[0].op.kind, OP_ADD);
    assert_true(profile_runs(&p.devices[0], OP_ADD, DT_F32));
    profile_free(&p);
}

static void an_alias_bomb_ends_at_its_first_anchor(void **state)
{
    (void)state;
    struct text t;
    text_init(&t);
    text_printf(&t, HEAD "a0: &a0 [x, x]\n");
    for (int i = 1; i < 40; i++)
        text_printf(&t, "a%d: &a%d [*a%d, *a%d]\n", i, i, i - 1, i - 1);
    struct profile p;
    struct oato_error err = {.text = ""};
    assert_int_equal(profile_load_memory(t.data, t.len, "p", &p, NULL, NULL, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "p:2:5: anchor"));
    text_free(&t);
}

static void nesting_of_a_hundred_thousand_is_refused(void **state)
{
    (void)state;
    static const char *const open[] = {"[", "{a: ", "- "};
    for (size_t k = 0; k < ARRAY_LEN(open); k++) {
        struct text t;
        text_init(&t);
        text_printf(&t, HEAD "a:\n  ");
        for (int i = 0; i < 100000; i++)
            text_printf(&t, "%s", open[k]);
        struct profile p;
        struct oato_error err = {.text = ""};
        assert_int_equal(profile_load_memory(t.data, t.len, "p", &p, NULL, NULL, &err), OATO_EFILE);
        assert_non_null(strstr(err.text, "nested deeper than 16"));
        text_free(&t);
    }
}

static void a_missing_file_and_a_folder_are_input_errors(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err = {.text = ""};
    assert_int_equal(profile_load(scratch_path("none"), &p, NULL, NULL, &err), OATO_EIO);
    assert_int_equal(profile_load("/", &p, NULL, NULL, &err), OATO_EIO);
    profile_free(&p); /* allowed after a failure */
    scratch_clean();
}

/* A saved profile as text. */
static char *saved(uint64_t seed, size_t *bytes)
{
    struct rng rng = {seed};
    struct profile p;
    struct oato_error err = {.text = ""};
    random_profile(&rng, 6, &p);
    if (profile_save(&p, scratch_path("a.yaml"), &err))
        fail_msg("%s", err.text);
    profile_free(&p);
    return read_whole(scratch_path("a.yaml"), bytes);
}

static void try_bytes(const char *data, size_t bytes)
{
    struct profile p;
    struct oato_error err = {.text = ""};
    char *exact = malloc(bytes ? bytes : 1); /* so that a sanitizer sees reads behind the end */
    assert_non_null(exact);
    memcpy(exact, data, bytes);
    oato_status status = profile_load_memory(exact, bytes, "p", &p, NULL, NULL, &err);
    assert_true(status == OATO_OK || status == OATO_EFILE);
    if (status)
        assert_true(err.text[0] && !strchr(err.text, '\n'));
    else
        assert_true(p.n_devices > 0);
    profile_free(&p);
    free(exact);
}

static void truncated_profiles_are_refused_or_load(void **state)
{
    (void)state;
    size_t bytes;
    char *data = saved(3, &bytes);
    for (size_t n = 0; n < bytes; n++)
        try_bytes(data, n);
    free(data);
    scratch_clean();
}

static void profiles_with_random_bytes_are_refused_or_load(void **state)
{
    (void)state;
    static const char bytes_that_matter[] = ":-{}[],&*!|>'\"%@`#\n\t \\0e.~\xff";
    struct rng rng = {test_seed()};
    size_t bytes;
    char *data = saved(5, &bytes);
    for (int round = 0; round < 2000; round++) {
        char *copy = malloc(bytes);
        assert_non_null(copy);
        memcpy(copy, data, bytes);
        for (int i = 0; i < 3; i++)
            copy[rng_range(&rng, 0, (int64_t)bytes - 1)] =
                bytes_that_matter[rng_range(&rng, 0, (int64_t)sizeof bytes_that_matter - 1)];
        try_bytes(copy, bytes);
        free(copy);
    }
    free(data);
    scratch_clean();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_damage_is_refused_at_its_place),
        cmocka_unit_test(unknown_keys_are_warned_about_and_skipped),
        cmocka_unit_test(operators_that_are_gone_are_left_out),
        cmocka_unit_test(an_alias_bomb_ends_at_its_first_anchor),
        cmocka_unit_test(nesting_of_a_hundred_thousand_is_refused),
        cmocka_unit_test(a_missing_file_and_a_folder_are_input_errors),
        cmocka_unit_test(truncated_profiles_are_refused_or_load),
        cmocka_unit_test(profiles_with_random_bytes_are_refused_or_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
