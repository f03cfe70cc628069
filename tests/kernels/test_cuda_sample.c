/*
 * test_cuda_sample.c - the candidates that a CUDA device makes of rows of logits have the bits of
 * the CPU's: one list and many, one candidate and as many as there may be. Runs on the emulated GPU
 * of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and, labelled gpu, on a real one; without any it is
 * skipped.
 */
#include "tests/kernels/cuda_case.h"
#include "tests/kernels/top_logits.h"

#include "kernels/cuda/cuda_kernels.h"

static void check_rows(enum top_logits what, int32_t n, int32_t wanted, int32_t T)
{
    char key[OP_KEY_SIZE];
    snprintf(key, sizeof key, "top_k/k%d/n%d", (int)n, (int)(2 * wanted));
    struct test_case c = case_of(key, T);
    struct step step = plain_step(T);
    const size_t bytes = (size_t)T * 2 * (size_t)wanted * sizeof(float);
    float *out[2];
    give_input(&c, n);
    for (int32_t t = 0; t < T; t++)
        fill_logits(what, c.in[0] + (int64_t)t * n, n);
    for (int d = 0; d < 2; d++) {
        out[d] = test_malloc(bytes);
        float *outs[RECORD_OUTPUTS] = {out[d]};
        run_case(device[d], &c, &step, outs);
    }
    if (memcmp(out[0], out[1], bytes) != 0)
        fail_msg("%s T %d of kind %d", key, (int)T, what);
    test_free(out[0]);
    test_free(out[1]);
    free_case(&c);
}

static void candidates_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const int32_t some[] = {1, 2, 3, 40, 64, 104, TOP_K_MOST};
    static const int32_t widths[] = {1,   7, 320, TOP_STRETCH - 1, TOP_STRETCH, TOP_STRETCH + 1,
                                     5000};
    for (int what = 0; what < TOP_LOGITS; what++)
        for (size_t w = 0; w < ARRAY_LEN(widths); w++)
            for (int i = 0; i < 2; i++) {
                const int32_t wanted = some[random_in(0, ARRAY_LEN(some) - 1)];
                check_rows(what, widths[w], (int32_t)min_i64(wanted, widths[w]),
                           (int32_t)random_in(1, 3));
            }
}

/* One list more than a block has room for. */
static void many_lists_are_merged(void **state)
{
    (void)state;
    for (int32_t kept = 64; kept <= TOP_K_MOST; kept *= 2)
        for (int what = 0; what < TOP_LOGITS; what++)
            check_rows(what, TOP_STRETCH / kept * TOP_STRETCH + 5, kept - (int32_t)random_in(0, 9),
                       1);
    check_rows(TOP_RANDOM, 128256, 1, 1);
    check_rows(TOP_RANDOM, 128256, 40, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_have_the_bits_of_the_reference),
        cmocka_unit_test(many_lists_are_merged),
    };
    RUN_ON_DEVICES(tests);
}
