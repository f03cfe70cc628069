/*
 * test_memory.c - sizes never wrap, arena memory is zeroed, aligned and stays where it is, and a
 * message is one line however long its parts.
 */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    size_t out = 7;
    assert_false(size_mul(SIZE_MAX, 2, &out));
    assert_false(size_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 7);
    assert_true(size_mul(SIZE_MAX, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_true(size_add(3, 4, &out));
    assert_int_equal(out, 7);
    assert_int_equal(size_align(0, 64), 0);
    assert_int_equal(size_align(65, 64), 128);
    assert_int_equal(min_i64(-1, 2), -1);
    assert_int_equal(max_i64(-1, 2), 2);
}

static bool is_set(void *flag)
{
    return *(const bool *)flag;
}

/* Taking is refused before the work is done, and what was refused leaves nothing for later. */
static void a_spent_budget_refuses(void **state)
{
    (void)state;
    struct oato_error err = {0};
    bool gone = false;
    struct budget b = {.steps = 10, .bytes = 100, .cancelled = is_set, .user = &gone};
    assert_int_equal(budget_spend(&b, 10, 40, "the grammar", &err), OATO_OK);
    assert_int_equal(budget_spend(&b, 0, 60, "the grammar", &err), OATO_OK);
    assert_int_equal(budget_spend(&b, 0, 1, "the grammar", &err), OATO_EUSAGE);
    assert_string_equal(err.text,
                        "the grammar needs more memory than one request may take; make it smaller");
    assert_int_equal(budget_spend(&b, 1, 0, "the schema", &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "the schema needs more work"));
    assert_int_equal(budget_spend(&b, 0, 0, "the grammar", &err), OATO_OK);
    gone = true;
    assert_int_equal(budget_spend(&b, 0, 0, "the grammar", &err), OATO_EUSAGE);
    assert_int_equal(budget_spend(NULL, UINT64_MAX, SIZE_MAX, "the grammar", &err), OATO_OK);
}

static void arena_blocks_are_zeroed_aligned_and_stay(void **state)
{
    (void)state;
    struct arena a;
    unsigned char *blocks[600];
    arena_init(&a);
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        size_t n = 1 + i * 37;
        blocks[i] = arena_alloc(&a, n, 1);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % 64, 0);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(blocks[i][j], 0);
        memset(blocks[i], (int)(i & 255), n);
    }
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        assert_int_equal(blocks[i][0], i & 255);
        assert_int_equal(blocks[i][i * 37], i & 255);
    }
    assert_true(a.used_bytes >= 37 * 600 * 599 / 2);
    assert_non_null(arena_alloc(&a, 0, 8));
    assert_non_null(arena_alloc(&a, 1, (size_t)8 << 20)); /* larger than any block */
    assert_null(arena_alloc(&a, SIZE_MAX, 2));
    assert_null(arena_alloc(&a, SIZE_MAX / 2, 1));
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_strndup(&a, "", 0), "");
    arena_free(&a);
    assert_int_equal(a.used_bytes, 0);
    assert_null(a.blocks);
}

static void pages_are_zeroed_and_large_ones_aligned(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4097, (2 << 20) - 1, (5 << 20) + 3};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        unsigned char *p = pages_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (sizes[i] >= 2 << 20 ? 2 << 20 : 64), 0);
        for (size_t j = 0; j < sizes[i]; j += 1000)
            assert_int_equal(p[j], 0);
        if (sizes[i])
            p[sizes[i] - 1] = 1;
        pages_free(p, sizes[i]);
    }
    assert_null(pages_alloc(SIZE_MAX));
    pages_free(NULL, 100);
    assert_true(peak_rss_bytes() > 100000);
}

static void a_message_is_one_line_and_fits(void **state)
{
    (void)state;
    struct oato_error e;
    char lengthy[2000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    assert_int_equal(oato_fail(&e, OATO_EFILE, "two\nlines\r%s", "here"), OATO_EFILE);
    assert_string_equal(e.text, "two lines here");
    assert_int_equal(e.status, OATO_EFILE);
    assert_int_equal(oato_fail_at(&e, "a\nfile"), OATO_EFILE);
    assert_string_equal(e.text, "a file: two lines here");
    oato_fail(&e, OATO_EIO, "%s", lengthy);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_int_equal(oato_fail_at(&e, "%s", lengthy), OATO_EIO);
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
    assert_int_equal(oato_fail_memory(&e, 12, "a table"), OATO_EFIT);
    assert_non_null(strstr(e.text, "12 bytes for a table"));
}

static void spare_memory_is_what_could_be_had(void **state)
{
    (void)state;
    assert_true(memory_spare(1 << 20));
    assert_false(memory_spare((size_t)1 << 60));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(arena_blocks_are_zeroed_aligned_and_stay),
        cmocka_unit_test(pages_are_zeroed_and_large_ones_aligned),
        cmocka_unit_test(a_spent_budget_refuses),
        cmocka_unit_test(spare_memory_is_what_could_be_had),
        cmocka_unit_test(a_message_is_one_line_and_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
