/*
 * What operators of the stand-in see: elements of every type through strides, and numbers rounded
 * as the chip rounds them.
 */
#include "tests/ascend/client.h"

#include <math.h>

static void halves_are_rounded_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = stand_from_f16((uint16_t)h), b = stand_from_bf16((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(stand_to_f16(f), h);
        if (!isnan(b))
            assert_int_equal(stand_to_bf16(b), h);
        /* Half way to the next one up: the even one of the two. */
        if ((h & 0x7fff) >= 0x7c00 - 1)
            continue;
        double half = ((double)f + stand_from_f16((uint16_t)(h + 1))) / 2;
        assert_int_equal(stand_to_f16(half), h + (h & 1));
        assert_int_equal(stand_to_f16(half + (half - f) * 0x1p-20), h + 1);
        assert_int_equal(stand_to_f16(half - (half - f) * 0x1p-20), h);
    }
    assert_int_equal(stand_to_f16(65520), 0x7c00);
    assert_int_equal(stand_to_f16(65519), 0x7bff);
    assert_int_equal(stand_to_f16(-1e6), 0xfc00);
    assert_int_equal(stand_to_f16(INFINITY), 0x7c00);
    assert_int_equal(stand_to_f16(1e300), 0x7c00);
    assert_int_equal(stand_to_bf16(1e39), 0x7f80);
    assert_true(isnan(stand_from_f16(stand_to_f16(NAN))));
}

struct move {
    struct stand_view from, to;
    int how;
};

static void move_run(struct stand_run *run, const void *state)
{
    const struct move *op = state;
    int64_t n = stand_elements(op->to);
    if (op->how == 0)
        stand_write_doubles(run, op->to, stand_read_doubles(run, op->from));
    else if (op->how == 1)
        stand_write_ints(run, op->to, stand_read_ints(run, op->from));
    else
        for (int64_t i = 0; i < n; i++)
            stand_set(run, &op->to, i, stand_get(run, &op->from, i));
}

/* from (2 x rows x columns, transposed) in every type and back: what fits in all of them survives.
 */
static void every_type_is_read_and_written_through_strides(void **state)
{
    (void)state;
    enum { ROWS = 3, COLUMNS = 5, N = 2 * ROWS * COLUMNS };
    static const aclDataType types[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16,  ACL_INT8,  ACL_INT4,
                                        ACL_INT16, ACL_INT32,   ACL_INT64, ACL_DOUBLE};
    static const int64_t dims[3] = {2, ROWS, COLUMNS}, transposed[3] = {1, 2, 2 * ROWS};
    static const int64_t all = 2 * N;
    start(NULL);
    struct client c = client_open();
    int64_t values[N], back[N];
    for (int i = 0; i < N; i++)
        values[i] = i % 16 - 8;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int how = 0; how < 3; how++) {
            OK(aclrtMemset(c.y, BYTES, 0xff, BYTES));
            OK(aclrtMemcpy(c.x, BYTES, values, sizeof values, ACL_MEMCPY_HOST_TO_DEVICE));
            for (int step = 0; step < 2; step++) {
                aclTensor *wide =
                    aclCreateTensor(dims, 3, ACL_INT64, NULL, 0, ACL_FORMAT_ND, dims, 3, c.x);
                aclTensor *strided =
                    aclCreateTensor(dims, 3, types[t], transposed, 3, ACL_FORMAT_ND, &all, 1, c.y);
                uint64_t bytes;
                aclOpExecutor *executor;
                struct stand_call *call = stand_begin("move", &bytes, &executor);
                struct move op = {stand_in(call, "from", step ? strided : wide),
                                  stand_out(call, "to", step ? wide : strided), how};
                OK(stand_plan(call, move_run, &op, sizeof op, 0));
                OK(stand_launch("move", NULL, 0, executor, c.stream));
                OK(aclDestroyTensor(wide));
                OK(aclDestroyTensor(strided));
                OK(aclrtSynchronizeStream(c.stream));
                if (!step)
                    OK(aclrtMemset(c.x, BYTES, 0, sizeof values));
            }
            OK(aclrtMemcpy(back, sizeof back, c.x, sizeof back, ACL_MEMCPY_DEVICE_TO_HOST));
            assert_memory_equal(back, values, sizeof back);
        }
    client_close(&c);
    assert_int_equal(stand_broken(NULL), 0);
    assert_int_equal(stand_leaks(), 0);
    stand_reset();
}

static void views_of_views(void **state)
{
    (void)state;
    struct stand_view v = {.given = true, .rank = 3, .dims = {2, 3, 4}, .strides = {12, 4, 1}};
    assert_int_equal(stand_elements(v), 24);
    assert_int_equal(stand_rows(v), 6);
    assert_int_equal(stand_row(v, 4).offset, 16);
    assert_int_equal(stand_row(v, 4).rank, 1);
    struct stand_view s = stand_slice(stand_swap(v, 0, 2), 1, 1, 2);
    assert_int_equal(s.offset, 4);
    assert_int_equal(s.dims[0], 4);
    assert_int_equal(s.dims[1], 2);
    assert_int_equal(s.strides[2], 12);
    struct stand_view one = {.given = true, .rank = 2, .dims = {3, 1}, .strides = {1, 1}};
    struct stand_view e = stand_expand(one, v);
    assert_int_equal(e.strides[0], 0);
    assert_int_equal(e.strides[1], 1);
    assert_int_equal(e.strides[2], 0);
    assert_int_equal(stand_select(v, 1, 2).offset, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_rounded_to_the_nearest_even),
        cmocka_unit_test(every_type_is_read_and_written_through_strides),
        cmocka_unit_test(views_of_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
