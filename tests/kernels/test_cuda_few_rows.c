/*
 * test_cuda_few_rows.c - prompts of a few dozen rows on a CUDA device: a tile of 64 columns that
 * has fewer costs fewer. Counted on the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER); a
 * real one, labelled gpu, shows the numbers only, and without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"

#include <dlfcn.h>

/* How often the emulated GPU's warps multiply for a product of T rows; 0: it is a real one. */
static uint64_t multiplications(const char *key, int32_t k, int32_t T)
{
    void *emulated = dlopen(getenv("OATO_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = emulated ? dlsym(emulated, "cuda_on_cpu_products") : NULL;
    uint64_t (*products)(void) = NULL;
    memcpy(&products, &symbol, sizeof products);
    const uint64_t before = products ? products() : 0;
    struct test_case c = case_of(key, T);
    struct step step = plain_step(T);
    c.numerics = NUMERICS_PREFILL;
    give_input(&c, k);
    give_weights(&c);
    compare(&c, &step, 1e-10);
    free_case(&c);
    const uint64_t n = products ? products() - before : 0;
    if (emulated)
        dlclose(emulated);
    return n;
}

/* Columns are multiplied in groups of 8: those of the last tile that are not there cost nothing. */
static void a_prompt_of_few_rows_is_not_multiplied_as_64(void **state)
{
    (void)state;
    static const char *keys[] = {"mul_mat/Q4_0/k512/n64", "mul_mat/Q6_K/k512/n64",
                                 "mul_mat/F16/k512/n64"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const uint64_t whole = multiplications(keys[i], 512, 64);
        assert_int_equal(8 * multiplications(keys[i], 512, 17), 3 * whole);
        assert_int_equal(8 * multiplications(keys[i], 512, 40), 5 * whole);
        assert_int_equal(8 * multiplications(keys[i], 512, 65), 9 * whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_of_few_rows_is_not_multiplied_as_64),
    };
    RUN_ON_DEVICES(tests);
}
