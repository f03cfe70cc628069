/*
 * test_dtype.c - the 16-bit floats are exact: every value survives a round trip and every midpoint
 * between two neighbours rounds to the even one. The type table agrees with itself.
 */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_f16_survives(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        int exponent = (int)(h >> 10 & 31);
        double m = h & 1023, sign = h & 0x8000 ? -1 : 1;
        if (exponent == 31 && m) {
            assert_true(isnan(f));
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
            continue;
        }
        double expected = exponent == 31 ? (double)INFINITY
                          : exponent     ? ldexp(1024 + m, exponent - 25)
                                         : ldexp(m, -24);
        assert_true((double)f == sign * expected);
        assert_int_equal(signbit(f) != 0, h >> 15);
        assert_int_equal(f32_to_f16(f), h);
    }
}

/* a and b are neighbours, a the smaller in size: what lies between goes to the nearer. */
static void check_between(float a, float b, uint16_t even, uint16_t lower, uint16_t upper,
                          uint16_t (*narrow)(float))
{
    float middle = (float)(((double)a + (double)b) / 2);
    assert_int_equal(narrow(middle), even);
    assert_int_equal(narrow(nextafterf(middle, a)), lower);
    assert_int_equal(narrow(nextafterf(middle, b)), upper);
}

static void f16_midpoints_round_to_even(void **state)
{
    (void)state;
    for (uint32_t sign = 0; sign < 65536; sign += 0x8000) {
        for (uint32_t h = sign; h < sign + 0x7bff; h++) {
            uint16_t next = (uint16_t)(h + 1);
            check_between(f16_to_f32((uint16_t)h), f16_to_f32(next), h & 1 ? next : (uint16_t)h,
                          (uint16_t)h, next, f32_to_f16);
        }
    }
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00); /* the midpoint to 65536 */
    assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(f32_to_f16(1e-40f), 0);
}

static void every_bf16_survives_and_midpoints_round_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(f32_to_bf16(f), h);
        if ((h & 0x7fff) < 0x7f7f && (h & 0x7f80)) { /* float has no room below normal ones */
            uint16_t next = (uint16_t)(h + 1);
            check_between(f, bf16_to_f32(next), h & 1 ? next : (uint16_t)h, (uint16_t)h, next,
                          f32_to_bf16);
        }
    }
    uint32_t bits = 0x7f800001; /* a NaN whose upper half alone would be infinity */
    float nan_low;
    memcpy(&nan_low, &bits, sizeof nan_low);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(nan_low))));
}

static void types_are_named_and_sized(void **state)
{
    (void)state;
    int n = 0;
    for (int i = 0; i < DT_COUNT; i++) {
        const struct dtype_info *d = dtype_info(i);
        oato_dtype back;
        if (!d)
            continue;
        n++;
        assert_true(dtype_parse(d->name, &back));
        assert_int_equal(back, i);
        assert_string_equal(dtype_name((oato_dtype)i), d->name);
        size_t bytes;
        assert_true(dtype_row_bytes((oato_dtype)i, (int64_t)d->block_elems * 3, &bytes));
        assert_int_equal(bytes, 3 * d->block_bytes);
        assert_false(dtype_row_bytes((oato_dtype)i, -(int64_t)d->block_elems, &bytes));
        if (d->block_elems > 1)
            assert_false(dtype_row_bytes((oato_dtype)i, d->block_elems + 1, &bytes));
    }
    assert_int_equal(n, 31);
    assert_null(dtype_info(-1));
    assert_null(dtype_info(4));
    assert_null(dtype_info(DT_COUNT));
    assert_string_equal(dtype_name((oato_dtype)38), "?");
    assert_true(dtype_is_weight(DT_F32) && dtype_is_weight(DT_BF16) && dtype_is_weight(DT_MXFP4));
    assert_false(dtype_is_weight(DT_I8) || dtype_is_weight(DT_F64));
    assert_false(dtype_is_weight((oato_dtype)38) || dtype_is_weight((oato_dtype)-1));
    oato_dtype out;
    size_t bytes;
    assert_false(dtype_parse("q4_k", &out));
    assert_false(dtype_row_bytes(DT_F64, INT64_MAX, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_survives),
        cmocka_unit_test(f16_midpoints_round_to_even),
        cmocka_unit_test(every_bf16_survives_and_midpoints_round_to_even),
        cmocka_unit_test(types_are_named_and_sized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
