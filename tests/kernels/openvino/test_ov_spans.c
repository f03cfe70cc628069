/*
 * test_ov_spans.c - spans of several records as one function: a feed-forward block and all of a
 * layer but its attention; one function for all layers of a shape; what cannot be compiled is
 * refused; no threads, no memory left over.
 */
#include "tests/kernels/openvino/ov_test.h"

#include <dirent.h>

static struct ov_runtime *rt;

static struct oato_op op_of(const char *key)
{
    struct oato_op op;
    struct op_size size;
    assert_true(oato_op_parse(key, &op, &size));
    op.eps = 1e-5f;
    return op;
}

static void put(struct ov_test *t, const char *key, const int in[4], const int out[4])
{
    const struct oato_op op = op_of(key);
    ov_test_put(t, &op, op_in_count(&op), in, out, op_weight_least(&op));
}

/* y = x + down(gate_up(norm(x))): 0 -> 4; the places of values that died are used again. */
static void put_ffn(struct ov_test *t, const char *type)
{
    char key[OP_KEY_SIZE];
    put(t, "rms_norm/k256", (const int[4]){0}, (const int[4]){1});
    snprintf(key, sizeof key, "gate_up/%s/k256/n768", type);
    put(t, key, (const int[4]){1}, (const int[4]){2});
    snprintf(key, sizeof key, "mul_mat/%s/k768/n256", type);
    put(t, key, (const int[4]){2}, (const int[4]){3});
    put(t, "add/k256", (const int[4]){0, 3}, (const int[4]){4});
}

static void a_feed_forward_block(void **state)
{
    static const char *const types[] = {"F32", "F16", "Q8_0", "Q4_0", "Q4_1", "Q6_K"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct ov_test t = {0};
        put_ffn(&t, types[i]);
        const double nmse =
            ov_test_run(rt, &t, 1, (const int[4]){0}, 1, (const int[4]){4}, 16, i % 2 ? 16 : 5);
        if (!(nmse <= 1e-9))
            fail_msg("%s: NMSE %.3g", types[i], nmse);
        ov_test_free(&t);
    }
}

/* From attention's output 0 and the residual 1 to the next layer's q, k, v and residual. */
static void a_layer_without_attention(void **state)
{
    static const struct {
        int32_t bucket, rows;
    } sizes[] = {{1, 1}, {16, 16}, {256, 40}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct ov_test t = {0};
        put(&t, "mul_mat/Q4_1/k256/n256", (const int[4]){0}, (const int[4]){2});
        put(&t, "bias/k256", (const int[4]){2}, (const int[4]){2}); /* in place */
        put(&t, "add_norm/k256", (const int[4]){1, 2}, (const int[4]){3, 4});
        put(&t, "gate_up/Q4_1/k256/n512", (const int[4]){4}, (const int[4]){5});
        put(&t, "mul_mat/Q6_K/k512/n256", (const int[4]){5}, (const int[4]){2});
        put(&t, "add_norm/k256", (const int[4]){3, 2}, (const int[4]){6, 4});
        put(&t, "qkv/Q4_1/k256/n256/m64", (const int[4]){4}, (const int[4]){7, 8, 9});
        put(&t, "head_norm/h4/d64", (const int[4]){7}, (const int[4]){10});
        const double nmse =
            ov_test_run(rt, &t, 2, (const int[4]){0, 1}, 4, (const int[4]){6, 10, 8, 9},
                        sizes[i].bucket, sizes[i].rows);
        if (!(nmse <= 1e-9))
            fail_msg("%d rows: NMSE %.3g", sizes[i].rows, nmse);
        ov_test_free(&t);
    }
}

static struct ov_span span_of(const struct ov_test *t, struct span_value *values)
{
    values[0] = (struct span_value){ov_test_offset(0), 256, ROWS_TOKENS, DT_F32};
    values[1] = (struct span_value){ov_test_offset(4), 256, ROWS_TOKENS, DT_F32};
    return (struct ov_span){t->record, t->n, values, 1, 1};
}

static void run(struct ov_function *f, const struct ov_test *t, const float *in, float *out)
{
    struct oato_error err = {0};
    if (ov_function_run(f, 3, &in, (const void *const *)t->planes, &out, &err))
        fail_msg("%s", err.text);
}

static void layers_of_a_shape_share_a_function(void **state)
{
    enum { FLOATS = 3 * 256 };
    (void)state;
    struct oato_error err = {0};
    struct ov_test layer[2] = {{.n = 0}};
    struct span_value values[2];
    struct ov_function *f[2], *other = NULL;
    float in[FLOATS], first[FLOATS], second[FLOATS], again[FLOATS];
    random_floats(in, FLOATS);
    for (int i = 0; i < 2; i++) {
        put_ffn(&layer[i], "Q8_0");
        const struct ov_span span = span_of(&layer[i], values);
        assert_int_equal(ov_function_open(rt, &span, 16, NULL, &f[i], &err), OATO_OK);
    }
    assert_ptr_equal(f[0], f[1]);
    run(f[0], &layer[0], in, first);
    run(f[1], &layer[1], in, second);
    run(f[0], &layer[0], in, again);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, second, sizeof first);

    const struct ov_function_info info = ov_function_info(f[0]);
    assert_int_equal(info.rows, 16);
    assert_true(info.compile_seconds > 0 && info.nmse <= 1e-9);
    assert_int_equal(info.buffer_bytes, 2 * 16 * 256 * sizeof(float));
    assert_true(info.temporary_bytes >= 768 * 256 * sizeof(float));
    layer[0].record[0].op.eps = 1; /* is in the function */
    const struct ov_span span = span_of(&layer[0], values);
    assert_int_equal(ov_function_open(rt, &span, 16, NULL, &other, &err), OATO_OK);
    assert_ptr_not_equal(other, f[0]);
    ov_function_close(other);
    for (int i = 0; i < 2; i++) {
        ov_function_close(f[i]);
        ov_test_free(&layer[i]);
    }
    assert_null(rt->functions);
}

static void what_cannot_be_compiled_is_refused(void **state)
{
    (void)state;
    struct oato_error err = {0};
    struct ov_function *f = NULL;
    struct ov_test t = {0};
    struct span_value values[2];
    put_ffn(&t, "F32");
    struct ov_span span = span_of(&t, values);
    values[0].offset = ov_test_offset(9); /* nobody writes what the first record reads */
    assert_int_equal(ov_function_open(rt, &span, 1, NULL, &f, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "input 0 of rms_norm"));
    values[0].offset = ov_test_offset(0);
    values[1].offset = ov_test_offset(9);
    assert_int_equal(ov_function_open(rt, &span, 1, NULL, &f, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "output 0"));
    values[1].offset = ov_test_offset(4);
    rt->nmse = 0; /* nothing computes as exactly: refused as if it were wrong */
    assert_int_equal(ov_function_open(rt, &span, 1, NULL, &f, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "than the reference"));
    assert_null(strchr(err.text, '\n'));
    rt->nmse = 1e-9;
    snprintf(rt->streams, sizeof rt->streams, "x"); /* the library's own words */
    assert_int_equal(ov_function_open(rt, &span, 1, NULL, &f, &err), OATO_EDEVICE);
    if (!strstr(err.text, "CPU: compiling a function: ") || strchr(err.text, '\n'))
        fail_msg("%s", err.text);
    snprintf(rt->streams, sizeof rt->streams, "0");
    t.record[0].op.kind = OP_ROPE;
    assert_int_equal(ov_function_open(rt, &span, 1, NULL, &f, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "rope cannot be compiled"));
    assert_null(rt->functions);
    ov_test_free(&t);
}

static void no_threads_are_made(void **state)
{
    (void)state;
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_string_equal(rt->streams, "0");
    assert_int_equal(n, 1);
}

int main(void)
{
    const int cannot = ov_test_open(&rt);
    if (cannot)
        return cannot;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_feed_forward_block),
        cmocka_unit_test(a_layer_without_attention),
        cmocka_unit_test(layers_of_a_shape_share_a_function),
        cmocka_unit_test(what_cannot_be_compiled_is_refused),
        cmocka_unit_test(no_threads_are_made),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ov_runtime_close(rt);
    return failed;
}
