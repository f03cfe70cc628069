/*
 * test_utf8_stream.c - what comes out is what went in, cut at whole characters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/tokens_internal.h"

static void characters_are_held_back_until_complete(void **state)
{
    (void)state;
    static const char rocket[] = "\xf0\x9f\x9a\x80"; /* U+1F680 */
    struct utf8_stream s = {0};
    struct text out;
    text_init(&out);
    for (int i = 0; i < 3; i++) {
        utf8_stream_push(&s, rocket + i, 1, &out);
        assert_int_equal(out.len, 0);
    }
    utf8_stream_push(&s, rocket + 3, 1, &out);
    assert_string_equal(out.data, rocket);
    utf8_stream_push(&s, "a\xc3", 2, &out);
    assert_int_equal(out.len, 5);
    utf8_stream_push(&s, "\xa4z", 2, &out);
    assert_string_equal(out.data, "\xf0\x9f\x9a\x80"
                                  "a\xc3\xa4z");
    text_free(&out);
}

static void bytes_that_can_be_no_character_pass_at_once(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",     "\xc0",     "\xc1",     "\xf5",     "\xff",
                                      "\xe0\x80", "\xed\xa0", "\xf0\x80", "\xf4\x90", "\xc3("};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct utf8_stream s = {0};
        struct text out;
        text_init(&out);
        for (const char *b = bad[i]; *b; b++)
            utf8_stream_push(&s, b, 1, &out);
        assert_int_equal(s.n_held, 0);
        assert_string_equal(out.data, bad[i]);
        text_free(&out);
    }
}

static void a_character_that_never_ends_comes_out_at_the_flush(void **state)
{
    (void)state;
    struct utf8_stream s = {0};
    struct text out;
    text_init(&out);
    utf8_stream_push(&s, "ok\xe2\x82", 4, &out);
    assert_string_equal(out.data, "ok");
    utf8_stream_flush(&s, &out);
    assert_string_equal(out.data, "ok\xe2\x82");
    utf8_stream_flush(&s, &out);
    assert_int_equal(out.len, 4);
    /* A new character begins while one is held. */
    utf8_stream_push(&s, "\xe2\x82", 2, &out);
    utf8_stream_push(&s, "\xe2\x82\xac", 3, &out);
    assert_string_equal(out.data, "ok\xe2\x82\xe2\x82\xe2\x82\xac");
    text_free(&out);
}

/* Random bytes of the kinds that matter, cut at random: nothing is lost, and what is out never
 * ends in the middle of a character. */
static void nothing_is_lost_however_it_is_cut(void **state)
{
    (void)state;
    static const uint8_t kinds[] = {'a',  0x80, 0xbf, 0x9f, 0xa0, 0xc2, 0xc3, 0xe0,
                                    0xe2, 0xed, 0xf0, 0xf4, 0xf5, 0x90, 0x8f, 0xff};
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 2000; round++) {
        char bytes[40];
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (char)kinds[(size_t)rand() % sizeof kinds];
        struct utf8_stream s = {0};
        struct text out;
        text_init(&out);
        for (size_t i = 0; i < sizeof bytes;) {
            size_t n = 1 + (size_t)rand() % 5;
            n = n < sizeof bytes - i ? n : sizeof bytes - i;
            utf8_stream_push(&s, bytes + i, n, &out);
            i += n;
            assert_int_equal(out.len + (size_t)s.n_held, i);
            if (s.n_held > 0)
                assert_int_equal(utf8_char(s.held, (size_t)s.n_held), 0);
        }
        utf8_stream_flush(&s, &out);
        assert_int_equal(out.len, sizeof bytes);
        assert_memory_equal(out.data, bytes, sizeof bytes);
        text_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_held_back_until_complete),
        cmocka_unit_test(bytes_that_can_be_no_character_pass_at_once),
        cmocka_unit_test(a_character_that_never_ends_comes_out_at_the_flush),
        cmocka_unit_test(nothing_is_lost_however_it_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
