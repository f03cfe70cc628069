/*
 * test_ov_ops.c - every operator that openvino has, of every type, on OpenVINO's CPU against the
 * reference, for 1, 7 and 64 rows in functions of fixed rows.
 */
#include "tests/kernels/openvino/ov_test.h"

static struct ov_runtime *rt;
static double worst;
static int cases;

static const struct {
    int32_t bucket, rows;
} sizes[] = {{1, 1}, {16, 7}, {256, 64}};

/* Under sanitizers one case in seven. */
static bool is_left_out(void)
{
    static size_t turn;
    if (!turn)
        turn = random_first(7);
    return turn++ % pace_step(7) != 0;
}

static void check(const struct oato_op *op, int n_in, int weights, int32_t bucket, int32_t rows,
                  const char *what)
{
    struct ov_test t = {0};
    const int in[RECORD_INPUTS] = {0, 1, 2}, out[] = {3, 4, 5};
    char key[OP_KEY_SIZE];
    if (is_left_out())
        return;
    assert_true(op_valid(op));
    assert_true(ov_supports(rt, op, NULL));
    ov_test_put(&t, op, n_in, in, out, weights);
    const double nmse = ov_test_run(rt, &t, n_in, in, t.record[0].n_out, out, bucket, rows);
    worst = nmse <= worst ? worst : nmse;
    cases++;
    if (!(nmse <= 1e-9))
        fail_msg("%s %s, %d of %d rows: NMSE %.3g", oato_op_key(op, NULL, key), what, rows, bucket,
                 nmse);
    ov_test_free(&t);
}

static struct oato_op op_of(const char *key)
{
    struct oato_op op;
    struct op_size size;
    if (!oato_op_parse(key, &op, &size))
        fail_msg("no operator: %s", key);
    op.eps = 1e-5f;
    op.scale = 0.75f;
    return op;
}

static void products_of_every_type(void **state)
{
    static const char *const keys[] = {"mul_mat/%s/k512/n96", "qkv/%s/k256/n128/m64",
                                       "gate_up/%s/k256/n96"};
    (void)state;
    for (size_t type = 0; type < ARRAY_LEN(matrix_types); type++)
        for (size_t k = 0; k < ARRAY_LEN(keys); k++)
            for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
                char key[OP_KEY_SIZE];
                snprintf(key, sizeof key, keys[k], dtype_name(matrix_types[type]));
                const struct oato_op op = op_of(key);
                check(&op, 1, op_weight_count(&op), sizes[s].bucket, sizes[s].rows, "");
            }
}

static void every_activation(void **state)
{
    static const char *const keys[] = {"activate/k200", "swiglu/k200", "gate/k200/h4",
                                       "gate/k200/h200", "gate_up/Q8_0/k64/n96"};
    (void)state;
    for (int a = 0; a < ACT_COUNT; a++)
        for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
            struct oato_op op = op_of(keys[k]);
            op.activation = a;
            if (a != ACT_CLAMPED || k % 3 == 1 || k == 3 || k == 4)
                check(&op, op_in_count(&op), op_weight_count(&op), 16, 7, activation_name(a));
        }
}

static void every_norm(void **state)
{
    (void)state;
    for (int norm = 0; norm < 2 * NORM_HEAD_GAINS; norm++)
        for (int kind = 0; kind < 3; kind++)
            for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
                struct oato_op op = op_of((const char *const[]){"rms_norm/k200", "add_norm/k200",
                                                                "head_norm/h4/d64"}[kind]);
                char what[16];
                op.norm = norm;
                snprintf(what, sizeof what, "flags %d", norm);
                if (op_valid(&op) && !(kind < 2 && norm >= NORM_OWN_HEADS))
                    check(&op, op_in_count(&op), op_weight_count(&op), sizes[s].bucket,
                          sizes[s].rows, what);
            }
}

static void what_is_done_row_by_row(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int n_in, weights;
        int32_t divides, first, heads;
    } rows[] = {
        {"bias/k200", 1, 1, 0, 0, 0},
        {"scale/k200", 1, 0, 0, 0, 0},
        {"scale/k200", 1, 1, 0, 0, 0},
        {"scale/k200", 1, 1, 1, 0, 0},
        {"add/k200", 2, 0, 0, 0, 0},
        {"merge/n200", 2, 0, 0, 0, 0},
        {"merge_sum/k600/n200", 3, 0, 0, 0, 0},
        {"merge_sum/k200/n200", 1, 0, 0, 0, 0},
        {"slice/k200/n50", 1, 0, 0, 30, 0},
        {"slice/k200/n40", 1, 0, 0, 5, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
            struct oato_op op = op_of(rows[i].key);
            op.divides = rows[i].divides;
            op.first = rows[i].first;
            op.heads = rows[i].heads;
            check(&op, rows[i].n_in, rows[i].weights, sizes[s].bucket, sizes[s].rows, "");
        }
}

static void the_others_stay_on_the_host(void **state)
{
    (void)state;
    struct oato_error why = {0};
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        struct oato_op op = {.kind = (uint16_t)kind};
        op_example((enum op_kind)kind, DT_F32, &op);
        if (op_has_kv(&op) || op_has_experts(&op) || op_state_floats(&op) || kind == OP_ROPE ||
            kind == OP_SELECT || kind == OP_EMBED || kind == OP_ACTIVE || kind == OP_TOP_K)
            assert_false(ov_supports(rt, &op, &why));
    }
    struct oato_op op = op_of("mul_mat/Q8_0/k64/n64/z2");
    assert_false(ov_supports(rt, &op, &why)); /* a list */
    op = op_of("scale/k64");
    op.temperature = 1;
    assert_false(ov_supports(rt, &op, &why)); /* positions */
    assert_non_null(strstr(why.text, "scale"));
}

int main(void)
{
    const int cannot = ov_test_open(&rt);
    if (cannot)
        return cannot;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_type),
        cmocka_unit_test(every_activation),
        cmocka_unit_test(every_norm),
        cmocka_unit_test(what_is_done_row_by_row),
        cmocka_unit_test(the_others_stay_on_the_host),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d cases on %s (%s, %s), the worst NMSE %.2g\n", cases, rt->name, rt->numerics,
           rt->library->version, worst);
    ov_runtime_close(rt);
    return failed;
}
