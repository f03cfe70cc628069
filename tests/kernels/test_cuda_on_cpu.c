/*
 * test_cuda_on_cpu.c - the emulation on which the CUDA device is tested computes what CUDA C means:
 * warps, barriers, shared memory, 8-bit and 16-bit arithmetic, matrix products against plain loops.
 * It ends the process where a kernel is wrong in ways that a GPU may let pass.
 */
#include "tests/kernels/cuda_rig.h"

#if defined __SANITIZE_ADDRESS__
#define ADDRESSES_CHECKED true
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define ADDRESSES_CHECKED true
#endif
#endif
#ifndef ADDRESSES_CHECKED
#define ADDRESSES_CHECKED false
#endif

/* ------------------------------------------------------------------------- language ------- */

enum { THREADS = 128 };

static void shuffles_take_from_the_right_lane(void **state)
{
    (void)state;
    int32_t value[THREADS], out[THREADS][SHUFFLES];
    for (int i = 0; i < THREADS; i++)
        value[i] = (int32_t)random_in(-1000, 1000);
    struct shuffle_args a = {(void *)device_copy(value, sizeof value),
                             (void *)device_alloc(sizeof out)};
    launch("selftest_shuffle", 1, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.value));
    for (int i = 0; i < THREADS; i++) {
        const int32_t *v = value + i / WARP * WARP;
        int lane = i % WARP, sum = 0;
        for (int j = 0; j < WARP; j++)
            sum += v[j];
        const int32_t expected[SHUFFLES] = {
            v[5],
            v[lane / 8 * 8 + (lane + 3) % 8],
            v[lane ^ 16],
            v[lane ^ 3],
            v[lane < 2 ? lane : lane - 2],
            v[lane % 4 < 1 ? lane : lane - 1],
            v[lane + 7 < WARP ? lane + 7 : lane],
            v[lane % 16 + 2 < 16 ? lane + 2 : lane],
            sum,
        };
        for (int s = 0; s < SHUFFLES; s++)
            if (out[i][s] != expected[s])
                fail_msg("thread %d, shuffle %d: %d, not %d", i, s, out[i][s], expected[s]);
    }
}

static void check_votes(const int32_t *bit)
{
    int32_t out[THREADS][VOTES];
    struct vote_args a = {(void *)device_copy(bit, THREADS * sizeof *bit),
                          (void *)device_alloc(sizeof out)};
    launch("selftest_vote", 1, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.bit));
    int count = 0;
    for (int i = 0; i < THREADS; i++)
        count += bit[i] != 0;
    for (int i = 0; i < THREADS; i++) {
        uint32_t votes = 0;
        for (int lane = 0; lane < WARP; lane++)
            votes |= (uint32_t)(bit[i / WARP * WARP + lane] != 0) << lane;
        assert_int_equal((uint32_t)out[i][0], votes);
        assert_int_equal((uint32_t)out[i][1], i % WARP < 16 ? votes & 0xffff : votes >> 16 != 0);
        assert_int_equal(out[i][2], votes == 0xffffffff);
        assert_int_equal(out[i][3], count != 0);
        assert_int_equal(out[i][4], count == THREADS);
        assert_int_equal(out[i][5], count);
    }
}

static void votes_are_counted(void **state)
{
    (void)state;
    int32_t bit[THREADS] = {0};
    check_votes(bit);
    bit[77] = 5;
    check_votes(bit);
    for (int i = 0; i < THREADS; i++)
        bit[i] = (int32_t)random_in(0, 1);
    check_votes(bit);
    for (int i = 0; i < THREADS; i++)
        bit[i] = 1;
    check_votes(bit);
}

static void blocks_add_in_shared_memory(void **state)
{
    (void)state;
    enum { BLOCKS = 9 };
    float value[BLOCKS * THREADS], sum[BLOCKS];
    for (int i = 0; i < BLOCKS * THREADS; i++)
        value[i] = (float)random_in(-100, 100);
    struct sum_args a = {(void *)device_copy(value, sizeof value),
                         (void *)device_alloc(sizeof sum)};
    launch("selftest_sum", BLOCKS, THREADS, 0, &a);
    take_back(sum, (cu_address)a.sum, sizeof sum);
    DO(cu->memory_free((cu_address)a.value));
    for (int b = 0; b < BLOCKS; b++) {
        float expected = 0;
        for (int i = 0; i < THREADS; i++)
            expected += value[b * THREADS + i];
        assert_float_equal(sum[b], expected, 0);
    }
}

static void shared_memory_begins_as_garbage(void **state)
{
    (void)state;
    enum { BLOCKS = 3, BLOCK = 96, N = 1001 };
    uint8_t in[BLOCKS * N], out[BLOCKS * N];
    int32_t zero = 0, written;
    for (int i = 0; i < BLOCKS * N; i++)
        in[i] = (uint8_t)random_u64();
    struct reverse_args a = {(void *)device_copy(in, sizeof in), (void *)device_alloc(sizeof out),
                             N, (void *)device_copy(&zero, sizeof zero)};
    for (int turn = 0; turn < 2; turn++) /* what the first leaves is gone */
        launch("selftest_reverse", BLOCKS, BLOCK, N, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    take_back(&written, (cu_address)a.written, sizeof written);
    DO(cu->memory_free((cu_address)a.in));
    for (int i = 0; i < BLOCKS * N; i++)
        assert_int_equal(out[i], in[i / N * N + N - 1 - i % N]);
    /* AddressSanitizer guards static arrays instead. */
    assert_int_equal(written, ADDRESSES_CHECKED ? 2 * BLOCK : 0);
}

static void words_hold_bytes(void **state)
{
    (void)state;
    enum { N = 4 * THREADS };
    uint32_t x[3][N], out[N][5];
    for (int i = 0; i < 3 * N; i++)
        x[i / N][i % N] = (uint32_t)random_u64();
    struct word_args a = {(void *)device_copy(x[0], sizeof x[0]),
                          (void *)device_copy(x[1], sizeof x[1]),
                          (void *)device_copy(x[2], sizeof x[2]), (void *)device_alloc(sizeof out)};
    launch("selftest_words", 4, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.a));
    DO(cu->memory_free((cu_address)a.b));
    DO(cu->memory_free((cu_address)a.c));
    for (int i = 0; i < N; i++) {
        uint8_t p[8], difference[4], permuted[4];
        memcpy(p, &x[0][i], 4);
        memcpy(p + 4, &x[1][i], 4);
        uint32_t with_sign = x[2][i], without = x[2][i];
        for (int e = 0; e < 4; e++) {
            with_sign += (uint32_t)((int8_t)p[e] * (int8_t)p[4 + e]);
            without += (uint32_t)p[e] * p[4 + e];
            difference[e] = (uint8_t)(p[e] - p[4 + e]);
            permuted[e] = p[x[2][i] >> 4 * e & 7];
        }
        uint64_t both = (uint64_t)x[1][i] << 32 | x[0][i];
        assert_int_equal(out[i][0], with_sign);
        assert_int_equal(out[i][1], without);
        assert_memory_equal(&out[i][2], difference, 4);
        assert_memory_equal(&out[i][3], permuted, 4);
        assert_int_equal(out[i][4], (uint32_t)(both >> x[2][i] % 32));
    }
}

static void halves_convert_as_ours(void **state)
{
    (void)state;
    enum { N = 65536 };
    float *given = malloc(N * sizeof *given), *wide = malloc(N * sizeof *wide);
    uint16_t *narrow = malloc(N * sizeof *narrow);
    assert_true(given && wide && narrow);
    for (int i = 0; i < N; i++) { /* around every half, ties between two of them too */
        float here = f16_to_f32((uint16_t)i), next = f16_to_f32((uint16_t)(i + 1));
        uint32_t any = (uint32_t)random_u64();
        switch (i % 4) {
        case 0: given[i] = here; break;
        case 1: given[i] = here / 2 + next / 2; break;
        case 2: given[i] = nextafterf(here / 2 + next / 2, random_float()); break;
        default: memcpy(&given[i], &any, 4);
        }
    }
    struct half_args a = {(void *)device_copy(given, N * sizeof *given),
                          (void *)device_alloc(N * sizeof *wide),
                          (void *)device_alloc(N * sizeof *narrow)};
    launch("selftest_half", N / 256, 256, 0, &a);
    take_back(wide, (cu_address)a.wide, N * sizeof *wide);
    take_back(narrow, (cu_address)a.narrow, N * sizeof *narrow);
    DO(cu->memory_free((cu_address)a.given));
    for (int i = 0; i < N; i++) {
        float expected = f16_to_f32((uint16_t)i);
        assert_memory_equal(&wide[i], &expected, 4);
        if (isnan(given[i]))
            assert_int_equal(narrow[i], 0x7fff);
        else if (narrow[i] != f32_to_f16(given[i]))
            fail_msg("%a becomes %#x, not %#x", (double)given[i], narrow[i], f32_to_f16(given[i]));
    }
    free(given);
    free(wide);
    free(narrow);
}

enum { M = 16, N = 8, DEPTH_BYTES = 32 };

static float element(const char *type, const uint8_t *row, int k)
{
    uint16_t h;
    if (strcmp(type, "s8") == 0)
        return (float)(int8_t)row[k];
    memcpy(&h, row + 2 * k, 2);
    return strcmp(type, "f16") == 0 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Small integers: every sum is exact, whatever the order. */
static void check_product(const char *type)
{
    bool bytes = strcmp(type, "s8") == 0;
    int depth = bytes ? DEPTH_BYTES : DEPTH_BYTES / 2;
    uint8_t a[M][DEPTH_BYTES], b[N][DEPTH_BYTES];
    union {
        int32_t i[M][N];
        float f[M][N];
    } before, after;
    for (int i = 0; i < (M + N) * depth; i++) {
        int row = i / depth, k = i % depth, v = (int)random_in(bytes ? -128 : -200, 127);
        uint8_t *to = row < M ? a[row] : b[row - M];
        uint16_t h = strcmp(type, "f16") == 0 ? f32_to_f16((float)v) : f32_to_bf16((float)v);
        if (bytes)
            to[k] = (uint8_t)v;
        else
            memcpy(to + 2 * k, &h, 2);
    }
    for (int i = 0; i < M * N; i++)
        if (bytes)
            before.i[i / N][i % N] = (int32_t)random_in(-5000, 5000);
        else
            before.f[i / N][i % N] = (float)random_in(-5000, 5000);
    struct product_args args = {(void *)device_copy(a, sizeof a), (void *)device_copy(b, sizeof b),
                                (void *)device_copy(&before, sizeof before)};
    char kernel[64];
    snprintf(kernel, sizeof kernel, "selftest_product_%s", type);
    launch(kernel, 1, WARP, 0, &args);
    take_back(&after, (cu_address)args.c, sizeof after);
    DO(cu->memory_free((cu_address)args.a));
    DO(cu->memory_free((cu_address)args.b));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float expected = bytes ? (float)before.i[m][n] : before.f[m][n];
            float got = bytes ? (float)after.i[m][n] : after.f[m][n];
            for (int k = 0; k < depth; k++)
                expected += element(type, a[m], k) * element(type, b[n], k);
            if (got != expected)
                fail_msg("%s: row %d, column %d: %g, not %g", type, m, n, (double)got,
                         (double)expected);
        }
}

static void matrices_are_multiplied(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        check_product("s8");
        check_product("f16");
        check_product("bf16");
    }
}

static void tiles_are_transposed(void **state)
{
    (void)state;
    uint16_t row[WARP][8];
    uint32_t out[WARP][4];
    for (int i = 0; i < WARP * 8; i++)
        row[i / 8][i % 8] = (uint16_t)random_u64();
    for (int early = 0; early < 2; early++) {
        struct tile_args a = {(void *)device_copy(row, sizeof row),
                              (void *)device_alloc(sizeof out), early};
        launch("selftest_tiles", 1, WARP, sizeof row, &a);
        take_back(out, (cu_address)a.out, sizeof out);
        DO(cu->memory_free((cu_address)a.row));
        for (int i = 0; i < WARP * 4; i++) {
            const int lane = i / 4, tile = i % 4, first = tile * 8 + lane % 4 * 2;
            uint32_t expected = 0;
            for (int e = 0; e < 2; e++)
                if ((first + e) % 5 != 4)
                    expected |= (uint32_t)row[first + e][lane / 4] << 16 * e;
            assert_int_equal(out[lane][tile], early ? 0xffffffff : expected);
        }
    }
}

static void grids_have_three_dimensions(void **state)
{
    (void)state;
    int32_t out[2][3][5];
    struct grid_args a = {(void *)device_alloc(sizeof out)};
    DO(cu->launch(find("selftest_grid"), 5, 3, 2, 1, 1, 1, 0, stream, (void *[]){&a}, NULL));
    take_back(out, (cu_address)a.out, sizeof out);
    for (int i = 0; i < 30; i++)
        assert_int_equal(out[i / 15][i / 5 % 3][i % 5],
                         i % 5 + 100 * (i / 5 % 3) + 10000 * (i / 15));
}

/* Threads run in one order in one launch, in the other in the next: one of them shows it. */
static void a_missing_barrier_shows(void **state)
{
    (void)state;
    int32_t out[THREADS];
    int wrong = 0;
    for (int turn = 0; turn < 2; turn++) {
        struct race_args a = {(void *)device_alloc(sizeof out)};
        launch("selftest_race", 1, THREADS, 0, &a);
        take_back(out, (cu_address)a.out, sizeof out);
        for (int i = 0; i < THREADS; i++)
            wrong += out[i] != i + 1;
    }
    assert_int_not_equal(wrong, 0);
}

/* -------------------------------------------------------------------- what ends it -------- */

static const struct wrong_case {
    enum wrong what;
    bool only_checked; /* seen by AddressSanitizer alone */
    const char *says;
} wrong_cases[] = {
    {WRONG_BARRIER, false, "threads wait for each other forever"},
    {WRONG_LANE, false, "returned"},
    {WRONG_MASK, false, "of which it is none"},
    {WRONG_MEETING, false, "of its warp are at"},
    {WRONG_TRAP, false, "__trap"},
    {WRONG_COPY, false, "under way"},
    {WRONG_WAIT, false, "waited 2 times"},
    {WRONG_AHEAD, false, "behind the wait"},
    {WRONG_SHARED, true, "heap-buffer-overflow"},
    {WRONG_STATIC, true, "selftest.cu"},
    {WRONG_DEVICE, true, "heap-buffer-overflow"},
};

/* In a process of its own, which does not come back. */
static int run_wrong(int what)
{
    enum { BYTES = 64 };
    open_driver();
    open_device(NULL);
    struct wrong_args a = {what, BYTES, (void *)device_alloc(BYTES)};
    launch("selftest_wrong", 1, 2 * WARP, BYTES, &a);
    return cu->stream_synchronize(stream);
}

static void wrong_kernels_end_the_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong_cases); i++) {
        const struct wrong_case *c = &wrong_cases[i];
        char text[16384];
        if (c->only_checked && !ADDRESSES_CHECKED)
            continue;
        char number[16];
        snprintf(number, sizeof number, "%d", c->what);
        int status = run_again(number, text, sizeof text);
        if (!strstr(text, c->says))
            fail_msg("kernel %d wrong: '%s' does not say '%s'", c->what, text, c->says);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            fail_msg("kernel %d wrong: the process goes on", c->what);
        if (!c->only_checked)
            assert_non_null(strstr(text, "selftest_wrong"));
    }
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return run_wrong(atoi(argv[1]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_kernels_end_the_process),
        DEVICE_TEST(shuffles_take_from_the_right_lane),
        DEVICE_TEST(votes_are_counted),
        DEVICE_TEST(blocks_add_in_shared_memory),
        DEVICE_TEST(shared_memory_begins_as_garbage),
        DEVICE_TEST(words_hold_bytes),
        DEVICE_TEST(halves_convert_as_ours),
        DEVICE_TEST(matrices_are_multiplied),
        DEVICE_TEST(tiles_are_transposed),
        DEVICE_TEST(grids_have_three_dimensions),
        DEVICE_TEST(a_missing_barrier_shows),
    };
    open_driver();
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
