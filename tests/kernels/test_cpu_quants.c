/*
 * test_cpu_quants.c - rows of every GGUF type become the float32 values that the gguf package
 * makes of them (tests/data/quant_vectors.bin, written by make_quant_vectors.py), and the choice
 * of instruction set obeys its name.
 */
#include "tests/kernels/test_cpu.h"

/* Every entry of a type's tables: the hash behind the blocks is that of the values. */
static void check_tables(FILE *f, oato_dtype dtype, const uint8_t *raw, uint32_t n)
{
    uint64_t wanted, hash = 0xcbf29ce484222325;
    float *got = test_malloc(n * sizeof *got);
    assert_int_equal(fread(&wanted, sizeof wanted, 1, f), 1);
    quants_row(dtype, raw, n, got);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, got + i, sizeof word);
        hash = (hash ^ word) * 0x100000001b3;
    }
    if (hash != wanted)
        fail_msg("%s: some of %u values are not those of the gguf package", dtype_name(dtype), n);
    test_free(got);
}

static void every_type_dequantises_as_the_gguf_package_says(void **state)
{
    (void)state;
    FILE *f = fopen(OATO_TEST_DATA "/quant_vectors.bin", "rb");
    assert_non_null(f);
    uint32_t head[3];
    int types = 0, tables = 0;
    while (fread(head, sizeof head, 1, f) == 1) {
        uint8_t *raw = test_malloc(head[1]);
        assert_int_equal(fread(raw, 1, head[1], f), head[1]);
        if (head[0] >= 65536) {
            check_tables(f, (oato_dtype)(head[0] - 65536), raw, head[2]);
            tables++;
            test_free(raw);
            continue;
        }
        float *wanted = test_malloc(head[2] * sizeof *wanted);
        float *got = test_malloc(head[2] * sizeof *got);
        assert_int_equal(fread(wanted, sizeof *wanted, head[2], f), head[2]);
        assert_true(quants_known((oato_dtype)head[0]));
        quants_row((oato_dtype)head[0], raw, head[2], got);
        for (uint32_t i = 0; i < head[2]; i++)
            if (got[i] != wanted[i])
                fail_msg("%s element %u: %.9g, not %.9g", dtype_name((oato_dtype)head[0]), i,
                         (double)got[i], (double)wanted[i]);
        test_free(raw);
        test_free(wanted);
        test_free(got);
        types++;
    }
    fclose(f);
    assert_int_equal(types, 25);
    assert_int_equal(tables, 10);
    float one = 1.5f, copy = 0;
    quants_row(DT_F32, (const uint8_t *)&one, 1, &copy);
    assert_true(copy == one);
    assert_false(quants_known(DT_I8));
    assert_false(quants_known((oato_dtype)99));
}

static void the_instruction_set_is_chosen_by_name(void **state)
{
    (void)state;
    const struct cpu_kernels *k;
    struct oato_error err;
    assert_int_equal(cpu_kernels_select("ref", &k, &err), OATO_OK);
    assert_string_equal(cpu_kernels_name(k), "ref");
    for (size_t i = 1; i < ARRAY_LEN(isas); i++) {
        if (cpu_kernels_select(isas[i], &k, &err)) {
            assert_int_equal(err.status, OATO_EUSAGE);
            assert_true(strstr(err.text, "this processor does not support") ||
                        strstr(err.text, "this build has")); /* another architecture's */
            print_message("%s: not on this processor, skipped\n", isas[i]);
        } else {
            assert_string_equal(cpu_kernels_name(k), isas[i]);
        }
    }
    assert_int_equal(cpu_kernels_select("sse9", &k, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "sse9"));
    setenv("OATO_CPU_ISA", "ref", 1);
    assert_int_equal(cpu_kernels_select(NULL, &k, &err), OATO_OK);
    assert_string_equal(cpu_kernels_name(k), "ref");
    setenv("OATO_CPU_ISA", "none", 1);
    assert_int_equal(cpu_kernels_select(NULL, &k, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "OATO_CPU_ISA"));
    unsetenv("OATO_CPU_ISA");
    assert_int_equal(cpu_kernels_select(NULL, &k, &err), OATO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_dequantises_as_the_gguf_package_says),
        cmocka_unit_test(the_instruction_set_is_chosen_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
