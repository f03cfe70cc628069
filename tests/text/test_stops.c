/*
 * test_stops.c - an answer ends in front of the first stop word that it contains, wherever its text
 * is cut into pieces: every way of cutting gives what looking at the whole text gives.
 */
#include "text/stops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void expect_lines(const char *text, const char *const *words, int32_t indent,
                         const char *said, const char *hit)
{
    struct stops stops = {.indent = indent};
    const size_t n = strlen(text);
    for (; *words; words++)
        stops.word[stops.n++] = (char *)*words;
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            struct stop_filter f = {.of = &stops};
            struct text out;
            text_init(&out);
            text_init(&f.held);
            stop_filter_push(&f, text, a, false, &out);
            stop_filter_push(&f, text + a, b - a, false, &out);
            stop_filter_push(&f, text + b, n - b, false, &out);
            stop_filter_push(&f, "", 0, true, &out);
            assert_string_equal(or_empty(out.data), said);
            assert_string_equal(or_empty(f.hit), hit);
            text_free(&out);
            text_free(&f.held);
        }
    }
}

static void expect(const char *text, const char *const *words, const char *said, const char *hit)
{
    expect_lines(text, words, 0, said, hit);
}

static void cuts(void **state)
{
    (void)state;
    expect("one two three", (const char *const[]){"two", NULL}, "one ", "two");
    expect("one two three", (const char *const[]){"three", "two", NULL}, "one ", "two");
    expect("one two three", (const char *const[]){"four", NULL}, "one two three", "");
    expect("one tw", (const char *const[]){"two", NULL}, "one tw", "");
    expect("aaab", (const char *const[]){"aab", NULL}, "a", "aab");
    expect("a\n\nUser: b", (const char *const[]){"\nUser:", "User", NULL}, "a\n", "\nUser:");
    expect("stop", (const char *const[]){"stop", NULL}, "", "stop");
    expect("text", (const char *const[]){NULL}, "text", "");
}

/* Words come first or lines, whichever does. */
static void lines(void **state)
{
    const char *const none[] = {NULL}, *const b[] = {"b", NULL};
    (void)state;
    expect_lines("a\n  b\n c", none, 2, "a\n  b", "");
    expect_lines("a\n  b\n\t\tc", none, 2, "a\n  b\n\t\tc", "");
    expect_lines("a\n\n  b", none, 2, "a", "");
    expect_lines("a\nb", none, 1, "a", "");
    expect_lines("a\nb", b, 0, "a\n", "b");
    expect_lines("a\nb", b, 1, "a", "");
    expect_lines("a\n  b\nc", b, 2, "a\n  ", "b");
    expect_lines("a\n ", none, 2, "a\n ", "");
}

/* What begins no word is not held back: a stream shows it at once. */
static void at_once(void **state)
{
    struct stops stops = {.word = {(char *)"END"}, .n = 1};
    struct stop_filter f = {.of = &stops};
    struct text out;
    (void)state;
    text_init(&out);
    text_init(&f.held);
    stop_filter_push(&f, "so EN", 5, false, &out);
    assert_string_equal(out.data, "so ");
    stop_filter_push(&f, "ough", 4, false, &out);
    assert_string_equal(out.data, "so ENough");
    text_free(&out);
    text_free(&f.held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts), cmocka_unit_test(lines),
                                       cmocka_unit_test(at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
