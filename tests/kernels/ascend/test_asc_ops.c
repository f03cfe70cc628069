/*
 * test_asc_ops.c - every operator that an NPU has, of every type of weights and in small shapes, on
 * the strict stand-in against the reference kernels: numbers within the limit of the class, those
 * of operators that are defined in float32 within 1e-6, and nothing written beside outputs. What
 * breaks a rule of the stand-in fails, too.
 *
 * The stand-in computes in plain C: it shows that the calls mean what they should, not how fast an
 * NPU is, nor what it rounds.
 */
#include "tests/kernels/ascend/asc_cases.h"
#include "tests/pace.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Cases that each chip must have; the first is the stand-in's own choice. */
static const struct {
    const char *name;
    int cases;
} chips[] = {{"910B4", 1500}, {"310P3", 1400}, {"310B1", 700}};
#define F32_LIMIT 1e-6

static struct rig tested, reference;
static int cases, refused, failures;
static double worst;

static const oato_dtype types[] = {DT_F32, DT_F16, DT_BF16, DT_Q4_0, DT_Q8_0};
static const int32_t rows[] = {1, 2, 5, 16};

static bool is_typed(enum op_kind kind)
{
    struct oato_op op;
    return op_example(kind, DT_F16, &op);
}

static void key_of(const struct trial *t, int variant, char key[OP_KEY_SIZE + 16])
{
    const struct op_size size = {.rows = t->rows, .seqs = t->seqs};
    oato_op_key(&t->op, &size, key);
    snprintf(key + strlen(key), 16, " #%d", variant);
}

static void tell(const struct trial *t, int variant, const char *why)
{
    char key[OP_KEY_SIZE + 16];
    key_of(t, variant, key);
    if (failures++ < 20)
        fprintf(stderr, "%s: %s\n", key, why);
}

/* No product of F16 or BF16 weights, nor of pages of F16. */
static bool is_float32(const struct oato_op *op)
{
    return op_weight_use(op) != WEIGHT_MATRIX && op->kind != OP_MUL_MAT_T &&
           op->kind != OP_ATTENTION;
}

static void run_trial(const struct trial_pair *pair, const struct trial *t, int variant)
{
    struct trial_result result;
    struct oato_error err = {0};
    if (trial_run(pair, t, &result, &err)) {
        tell(t, variant, err.text);
        return;
    }
    cases++;
    worst = fmax(worst, result.nmse);
    if (result.wrong[0])
        tell(t, variant, result.wrong);
    else if (is_float32(&t->op) && result.nmse > F32_LIMIT)
        tell(t, variant, "more than 1e-6 off");
}

static bool device_supports(const struct oato_op *op)
{
    return tested.device->ops->supports(tested.device, op);
}

static void run_case(const struct recipe *c, oato_dtype dtype, int variant)
{
    static size_t turn;
    struct trial t;
    struct trial_pair pair;
    struct oato_error err = {0};
    if (!recipe_trial(c, dtype, variant, &t))
        return;
    if (!device_supports(&t.op)) {
        refused++;
        return;
    }
    if (trial_pair_open(&tested, &reference, &t, &pair, &err)) {
        t.rows = t.seqs = 1;
        tell(&t, variant, err.text);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (c->kind == OP_MUL_MAT && t.op.n > 4096 && i)
            break;
        t.rows = rows[i];
        t.seqs = 1;
        const bool keeps = c->kind == OP_ATTENTION || op_state_floats(&t.op);
        if (keeps) { /* whole tokens of each sequence, after others */
            t.seqs = i % 2 + 1;
            t.rows = (t.rows + t.seqs - 1) / t.seqs * t.seqs;
            t.before = (int32_t)(turn++ % 3 * (c->kind == OP_ATTENTION ? 50 : 2));
        }
        run_trial(&pair, &t, variant);
    }
    trial_pair_close(&pair);
}

static void operators_are_the_references(void **state)
{
    (void)state;
    for (int i = 0; i < asc_case_count; i++) {
        const struct recipe *c = &asc_cases[i];
        for (size_t t = 0; t < ARRAY_LEN(types); t++) {
            if ((t && !is_typed(c->kind)) ||
                (c->few_types && types[t] != DT_F16 && types[t] != DT_Q4_0))
                continue;
            const oato_dtype type = is_typed(c->kind) ? types[t] : DT_F32;
            for (int v = 0; v < (c->variants ? c->variants : 1); v++)
                run_case(c, type, v);
        }
    }
    printf("%d cases, %d refused, %d wrong, else at most %.2g off\n", cases, refused, failures,
           worst);
    assert_int_equal(failures, 0);
    const char *chip = getenv("STAND_CHIP");
    for (size_t i = 0; i < ARRAY_LEN(chips); i++)
        if (!strcmp(chip ? chip : chips[0].name, chips[i].name))
            assert_true(cases >= chips[i].cases);
}

/* What has no aclnn operator, and what depends on lists, caches or states. */
static void the_others_stay_on_the_host(void **state)
{
    static const char *const keys[] = {"conv/k100/s3",
                                       "delta/h4/g2/d64/c0",
                                       "ssm/h4/g2/d64/s16/c0",
                                       "active/k64",
                                       "expert_sum/n64/e8/u2",
                                       "mul_mat/Q4_0/k64/n64/z2",
                                       "gate_up/Q4_0/k64/n64/z1",
                                       "mul_mat/Q4_0/k32/n64", /* one group */
                                       "mul_mat/Q8_0/k65536/n64",
                                       "attention/Q8_0/h4/g2/d64",
                                       "kv_store/F32/g2/d64",
                                       "route/e32/u4/x2"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct oato_op op;
        struct op_size size;
        assert_true(oato_op_parse(keys[i], &op, &size));
        if (device_supports(&op))
            fail_msg("%s should stay on the host", keys[i]);
    }
}

/* But that chips are asked for what they do not have: by trial it is found out. */
static void no_rule_is_broken(void **state)
{
    int64_t (*broken)(const char *) = NULL;
    const char *(*rule)(int) = NULL;
    (void)state;
    void *stand = dlopen("libascendcl.so", RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(stand);
    *(void **)&broken = dlsym(stand, "stand_broken");
    *(void **)&rule = dlsym(stand, "stand_rule");
    assert_true(broken && rule && rule(0));
    for (int i = 0; rule(i); i++)
        if (strcmp(rule(i), "chip") != 0 || !getenv("STAND_CHIP"))
            assert_int_equal(broken(rule(i)), 0);
    dlclose(stand);
}

int main(void)
{
    const struct device_options plain = {.isa = "ref", .threads = 1}, options = {0};
    struct oato_error err = {0};
    void *kept = NULL;
    if (device_open("ascend", 0, &options, &tested.device, &err) ||
        device_open("cpu", 0, &plain, &reference.device, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    /* The device's last chunk of memory would come and go with each case. */
    if (tested.device->ops->alloc(tested.device, 64, &kept, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    tested.device->ops->info(tested.device, &tested.info);
    reference.device->ops->info(reference.device, &reference.info);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_are_the_references),
        cmocka_unit_test(the_others_stay_on_the_host),
        cmocka_unit_test(no_rule_is_broken),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tested.device->ops->free(tested.device, kept, 64);
    tested.device->ops->close(tested.device);
    reference.device->ops->close(reference.device);
    return failed;
}
