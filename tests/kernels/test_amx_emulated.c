/*
 * test_amx_emulated.c - the tile instructions in plain C do what the manual says: shapes, faults,
 * order and rounding of the products. Results are compared with evaluations that share nothing with
 * them: exact sums in long double, integers element by element, the processor's own conversion
 * where it has one.
 */
#include "tests/kernels/test_cpu.h"

#define OATO_AMX_EMULATED
#include "kernels/cpu/amx_tiles.h"

#include <sys/wait.h>

/* Tile 0: m x n sums, 1: m x k, 2: k x n, in dwords. */
static void configure(int m, int n, int k)
{
    struct amx_config c = {.palette = 1,
                           .row_bytes = {(uint16_t)(4 * n), (uint16_t)(4 * k), (uint16_t)(4 * n)},
                           .rows = {(uint8_t)m, (uint8_t)m, (uint8_t)k}};
    amx_configure(&c);
}

/* ----------------------------------------------------------------------------------- shapes - */

static void loads_and_stores_keep_to_the_shape(void **state)
{
    (void)state;
    enum { ROWS = 5, BYTES = 12, STRIDE = 100 };
    struct guarded g;
    guarded_init(&g);
    uint8_t *from = guarded_alloc(&g, (ROWS - 1) * STRIDE + BYTES);
    uint8_t *to = guarded_alloc(&g, (ROWS - 1) * STRIDE + BYTES);
    for (int i = 0; i < (ROWS - 1) * STRIDE + BYTES; i++) {
        from[i] = (uint8_t)random_u64();
        to[i] = 0xa5;
    }
    configure(ROWS, BYTES / 4, 16);
    memset(&amx_state.tile[0], 0xff, sizeof amx_state.tile[0]);
    AMX_LOAD(0, from, STRIDE);
    AMX_STORE(0, to, STRIDE);
    for (int r = 0; r < AMX_ROWS; r++)
        for (int b = 0; b < AMX_ROW_BYTES; b++) {
            const bool inside = r < ROWS && b < BYTES;
            assert_int_equal(amx_state.tile[0].byte[r][b], inside ? from[r * STRIDE + b] : 0);
        }
    for (int i = 0; i < (ROWS - 1) * STRIDE + BYTES; i++)
        assert_int_equal(to[i], i % STRIDE < BYTES ? from[i] : 0xa5);
    AMX_ZERO(0);
    AMX_STORE(0, to, STRIDE);
    assert_int_equal(to[0], 0);
    guarded_free(&g);
}

static void what_a_configuration_says_can_be_read_back(void **state)
{
    (void)state;
    configure(3, 4, 5);
    const struct amx_config c = amx_configuration();
    assert_int_equal(c.palette, 1);
    assert_int_equal(c.rows[1], 3);
    assert_int_equal(c.row_bytes[1], 20);
    memset(&amx_state.tile[1], 0xff, sizeof amx_state.tile[1]);
    configure(3, 4, 5);
    assert_int_equal(amx_state.tile[1].byte[0][0], 0); /* cleared */
    amx_release();
    assert_int_equal(amx_configuration().palette, 0);
}

/* ----------------------------------------------------------------------------------- faults - */

static void use_unconfigured(void)
{
    amx_release();
    AMX_ZERO(0);
}

static void use_absent_tile(void)
{
    configure(1, 1, 1);
    AMX_ZERO(3);
}

static void configure_wrongly(struct amx_config c)
{
    amx_configure(&c);
}

static void palette_2(void)
{
    configure_wrongly((struct amx_config){.palette = 2});
}

static void many_rows(void)
{
    configure_wrongly((struct amx_config){.palette = 1, .rows = {17}, .row_bytes = {64}});
}

static void long_rows(void)
{
    configure_wrongly((struct amx_config){.palette = 1, .rows = {16}, .row_bytes = {68}});
}

static void ninth_tile(void)
{
    configure_wrongly((struct amx_config){.palette = 1, .rows[8] = 1, .row_bytes[8] = 4});
}

static void rows_without_bytes(void)
{
    configure_wrongly((struct amx_config){.palette = 1, .rows = {16}});
}

static void reserved_bytes(void)
{
    configure_wrongly((struct amx_config){.palette = 1, .reserved[3] = 1});
}

static void product_of_other_rows(void)
{
    struct amx_config c = {.palette = 1, .rows = {2, 3, 4}, .row_bytes = {8, 16, 8}};
    amx_configure(&c);
    AMX_DOT_BF16(0, 1, 2);
}

static void product_of_other_columns(void)
{
    struct amx_config c = {.palette = 1, .rows = {2, 2, 4}, .row_bytes = {8, 16, 12}};
    amx_configure(&c);
    AMX_DOT_BF16(0, 1, 2);
}

static void product_of_other_depth(void)
{
    struct amx_config c = {.palette = 1, .rows = {2, 2, 4}, .row_bytes = {8, 12, 8}};
    amx_configure(&c);
    amx_dot_int8(0, 1, 2, true, true);
}

static void product_with_itself(void)
{
    configure(4, 4, 4);
    AMX_DOT_BF16(0, 1, 1);
}

static void misuse_faults(void **state)
{
    (void)state;
    void (*const wrong[])(void) = {use_unconfigured,
                                   use_absent_tile,
                                   palette_2,
                                   many_rows,
                                   long_rows,
                                   ninth_tile,
                                   rows_without_bytes,
                                   reserved_bytes,
                                   product_of_other_rows,
                                   product_of_other_columns,
                                   product_of_other_depth,
                                   product_with_itself};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(2);
            signal(SIGABRT, SIG_DFL);
            wrong[i]();
            _exit(1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("misuse %zu did not fault", i);
    }
}

/* --------------------------------------------------------------------------------- products - */

/* A bfloat16 in the upper half of a dword: whole numbers and eighths, so that sums of 64 bits are
 * exact. */
static uint32_t random_bf16(void)
{
    const float x = (float)random_in(-255, 255) * (random_in(0, 1) ? 1.0f : 0x1p-10f);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    assert_int_equal(bits & 0xffff, 0);
    return bits;
}

static void fill_pairs(int tile)
{
    for (int r = 0; r < amx_state.config.rows[tile]; r++)
        for (int i = 0; i < amx_state.config.row_bytes[tile] / 4; i++)
            amx_state.tile[tile].pair[r][i] = random_bf16() | random_bf16() >> 16;
}

static long double part(uint32_t pair, bool second)
{
    return second ? amx_second(pair) : amx_first(pair);
}

static void products_of_bf16_round_as_the_manual_says(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        const int m = (int)random_in(1, 16), n = (int)random_in(1, 16), k = (int)random_in(1, 16);
        configure(m, n, k);
        fill_pairs(1);
        fill_pairs(2);
        for (int r = 0; r < m; r++)
            for (int j = 0; j < n; j++)
                amx_state.tile[0].f32[r][j] = (float)random_in(-1000, 1000) * 0x1p-7f;
        const union amx_tile old = amx_state.tile[0];
        AMX_DOT_BF16(0, 1, 2);
        for (int r = 0; r < 16; r++)
            for (int j = 0; j < 16; j++) {
                float sum[2] = {0, 0};
                for (int h = 0; h < 2; h++)
                    for (int i = 0; r < m && j < n && i < k; i++)
                        sum[h] = (float)((long double)sum[h] +
                                         part(amx_state.tile[1].pair[r][i], h) *
                                             part(amx_state.tile[2].pair[i][j], h));
                const float both = sum[0] + sum[1];
                const float wanted = r < m && j < n ? old.f32[r][j] + both : 0;
                assert_memory_equal(&amx_state.tile[0].f32[r][j], &wanted, sizeof wanted);
            }
    }
}

/* One sum of two pairs. */
static float dot(float x0, float x1, float x2, float x3, float c)
{
    const float x[4] = {x0, x1, x2, x3};
    configure(1, 1, 2);
    for (int i = 0; i < 2; i++) {
        uint32_t bits[2];
        memcpy(bits, x + 2 * i, sizeof bits);
        amx_state.tile[1].pair[0][i] = bits[0] >> 16 | (bits[1] & 0xffff0000u);
        amx_state.tile[2].pair[i][0] = 0x3f803f80; /* ones */
    }
    amx_state.tile[0].f32[0][0] = c;
    AMX_DOT_BF16(0, 1, 2);
    return amx_state.tile[0].f32[0][0];
}

static void firsts_and_seconds_of_pairs_are_summed_apart(void **state)
{
    (void)state;
    /* One after the other the small ones would be lost, two to a pair one of them. */
    assert_true(dot(1, 0x1p-24f, 0, 0x1p-24f, 0) == 1 + 0x1p-23f);
    assert_true(dot(1, 0x1p-24f, 0x1p-24f, 0, 0) == 1);
    /* The sums before are added last. */
    assert_true(dot(0x1p-24f, 0, 0, 0x1p-24f, 1) == 1 + 0x1p-23f);
    assert_true(dot(1, 0, -1, 0, 0x1p-24f) == 0x1p-24f);
}

static void products_of_bf16_ignore_the_float_state(void **state)
{
    (void)state;
    const uint32_t old = _mm_getcsr(), up = 0x1f80 | 0x4000; /* round up, denormals kept */
    _mm_setcsr(up);
    const float sum = dot(1, 0, 0x1p-25f, 0, 0), tiny_sum = dot(0x1p-126f, -0x1.8p-126f, 0, 0, 0);
    const float tiny_input = dot(0x1p-127f, 0, 0, 0, 0), tiny_old = dot(0, 0, 0, 0, 0x1p-127f);
    const uint32_t after = _mm_getcsr();
    _mm_setcsr(old);
    assert_int_equal(after, up);
    assert_true(sum == 1);
    assert_true(tiny_sum == 0 && tiny_input == 0 && tiny_old == 0);
    assert_true(isnan(dot(INFINITY, -INFINITY, 0, 0, 0)));
    assert_true(isinf(dot(INFINITY, 1, 0, 0, 0)));
}

static void products_of_int8_wrap_and_know_signs(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        const int m = (int)random_in(1, 16), n = (int)random_in(1, 16), k = (int)random_in(1, 16);
        const bool a_signed = round & 1, b_signed = round & 2;
        configure(m, n, k);
        for (int tile = 0; tile < 3; tile++)
            for (int r = 0; r < amx_state.config.rows[tile]; r++)
                for (int i = 0; i < amx_state.config.row_bytes[tile]; i++)
                    amx_state.tile[tile].byte[r][i] = (uint8_t)random_u64();
        const union amx_tile old = amx_state.tile[0];
        amx_dot_int8(0, 1, 2, a_signed, b_signed);
        for (int r = 0; r < m; r++)
            for (int j = 0; j < n; j++) {
                int64_t sum = old.i32[r][j];
                for (int i = 0; i < 4 * k; i++) {
                    const uint8_t x = amx_state.tile[1].byte[r][i];
                    const uint8_t w = amx_state.tile[2].byte[i / 4][4 * j + i % 4];
                    sum += (int64_t)(a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)w : w);
                }
                assert_int_equal(amx_state.tile[0].pair[r][j], (uint32_t)sum);
            }
    }
}

/* ------------------------------------------------------------------------------- conversion - */

__attribute__((target("avx512bf16"))) static void convert_native(const float x[32], uint16_t y[32])
{
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

static void conversion_to_bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const uint32_t special[] = {0,          0x80000000, 1,          0x007fffff, 0x00800000,
                                       0x7f7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f800000, 0xff800000,
                                       0x7f800001, 0x7fc00000, 0xffffffff, 0x3f808000, 0x3f818000,
                                       0x3f808001, 0x3f817fff, 0x807fffff};
    const bool native = __builtin_cpu_supports("avx512bf16");
    for (int round = 0; round < 2000; round++) {
        uint32_t bits[32];
        float x[32];
        uint16_t got[32], wanted[32];
        for (int i = 0; i < 32; i++)
            bits[i] = round ? (uint32_t)random_u64() : special[(size_t)i % ARRAY_LEN(special)];
        memcpy(x, bits, sizeof x);
        _mm512_storeu_si512(got, amx_round(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
        for (int i = 0; i < 32; i++) {
            const bool tiny = (bits[i] & 0x7f800000) == 0;
            wanted[i] = tiny ? (uint16_t)(bits[i] >> 16 & 0x8000) : f32_to_bf16(x[i]);
        }
        assert_memory_equal(got, wanted, sizeof got);
        if (native) {
            convert_native(x, wanted);
            assert_memory_equal(got, wanted, sizeof got);
        }
    }
    print_message("conversion compared with the processor's own: %s\n", native ? "yes" : "no");
}

/* Not in main: with AddressSanitizer this frame is set up by AVX-512. */
__attribute__((noinline)) static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_and_stores_keep_to_the_shape),
        cmocka_unit_test(what_a_configuration_says_can_be_read_back),
        cmocka_unit_test(misuse_faults),
        cmocka_unit_test(products_of_bf16_round_as_the_manual_says),
        cmocka_unit_test(firsts_and_seconds_of_pairs_are_summed_apart),
        cmocka_unit_test(products_of_bf16_ignore_the_float_state),
        cmocka_unit_test(products_of_int8_wrap_and_know_signs),
        cmocka_unit_test(conversion_to_bf16_rounds_to_nearest_even),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    if (!__builtin_cpu_supports("avx512vnni")) { /* this program is compiled for it */
        print_message("no AVX-512 on this processor, skipped\n");
        return 77;
    }
    return run();
}
