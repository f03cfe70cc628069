/*
 * test_wide_checks.c - kernels/cpu/wide_checks.c reports an access exactly if libasan finds a byte
 * of it poisoned, wherever it begins and whatever its width.
 */
#include <sanitizer/asan_interface.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

void __asan_loadN(void *p, long bytes);
void __asan_storeN(void *p, long bytes);
void __asan_report_load_n(void *p, long bytes);
void __asan_report_store_n(void *p, long bytes);

/* Reported here instead of by libasan, which would end the program. */
static jmp_buf reported;

void __asan_report_load_n(void *p, long bytes)
{
    (void)p;
    (void)bytes;
    longjmp(reported, 1);
}

void __asan_report_store_n(void *p, long bytes)
{
    (void)p;
    (void)bytes;
    longjmp(reported, 2);
}

static bool is_load_reported(void *p, size_t bytes)
{
    if (setjmp(reported))
        return true;
    __asan_loadN(p, (long)bytes);
    return false;
}

static bool is_store_reported(void *p, size_t bytes)
{
    if (setjmp(reported))
        return true;
    __asan_storeN(p, (long)bytes);
    return false;
}

static void an_access_is_reported_if_one_of_its_bytes_is_poisoned(void **state)
{
    enum { SIZE = 256 };
    static const size_t widths[] = {1, 16, 17, 24, 31, 32, 33, 48, 57, 63, 64, 65, 100};
    char *buffer = aligned_alloc(64, SIZE);
    int poisoned = 0, free_ones = 0;
    (void)state;
    assert_non_null(buffer);
    for (size_t end = 96; end <= 136; end++) { /* what lies before it may be accessed */
        __asan_unpoison_memory_region(buffer, SIZE);
        __asan_poison_memory_region(buffer + end, SIZE - end);
        for (size_t begin = 16; begin < 150; begin++)
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
                const bool wrong = begin + widths[i] > end;
                assert_int_equal(is_load_reported(buffer + begin, widths[i]), wrong);
                assert_int_equal(is_store_reported(buffer + begin, widths[i]), wrong);
                poisoned += wrong;
                free_ones += !wrong;
            }
    }
    assert_true(poisoned > 1000 && free_ones > 1000);
    /* before the first byte, too */
    __asan_unpoison_memory_region(buffer, SIZE);
    __asan_poison_memory_region(buffer, 64);
    assert_true(is_load_reported(buffer + 63, 32));
    assert_false(is_load_reported(buffer + 64, 32));
    __asan_unpoison_memory_region(buffer, SIZE);
    free(buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_access_is_reported_if_one_of_its_bytes_is_poisoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
