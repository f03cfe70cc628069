/*
 * test_text.c - growing text, JSON escapes that are always valid UTF-8, numbers with units, and
 * the hash that files are sealed with.
 */
#include "base/base.h"

#include <math.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void text_grows_and_remembers_a_failure(void **state)
{
    (void)state;
    struct text t;
    text_init(&t);
    text_add(&t, "", 0);
    assert_string_equal(t.data, "");
    for (int i = 0; i < 1000; i++)
        text_printf(&t, "%d,", i);
    assert_int_equal(t.len, 10 * 2 + 90 * 3 + 900 * 4);
    assert_memory_equal(t.data, "0,1,2,", 6);
    size_t len = t.len;
    text_add(&t, "x", SIZE_MAX - 10);
    assert_true(t.failed);
    text_add(&t, "x", 1);
    text_printf(&t, "y");
    assert_int_equal(t.len, len);
    text_free(&t);
    assert_null(t.data);
    assert_false(t.failed);
}

static void json_is_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain", "plain"},
        {"a\"b\\c", "a\\\"b\\\\c"},
        {"tab\tline\n\x01", "tab\\u0009line\\u000a\\u0001"},
        {"\x7f\xc2\x9b", "\\u007f\\u009b"}, /* a terminal obeys these, too */
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x98\x80", "\xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff", "\xef\xbf\xbd"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"},
        {"bad tail \xc3(", "bad tail \xef\xbf\xbd("},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct text t;
        text_init(&t);
        text_add_json(&t, rows[i].in, strlen(rows[i].in));
        assert_string_equal(t.data, rows[i].out);
        text_free(&t);
    }
}

static void json_is_written_as_the_type_of_the_value_says(void **state)
{
    (void)state;
    struct text t;
    char name[] = "a\"b";
    const bool good = true;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("name", name), JSON("n", (int16_t)7), JSON("bytes", UINT64_MAX),
             JSON("good", good), json_bool("less", 1 < 0), JSON("share", 1.0 / 3));
    json_open(&t, "list", '[');
    json_add(&t, JSON(NULL, 1), JSON(NULL, (const char *)NULL), JSON(NULL, NAN));
    json_close(&t, ']');
    json_add_object(&t, "of", json_hash("hash", 0xabc), JSON("f", 0.5f));
    json_close(&t, '}');
    assert_string_equal(t.data, "{\"name\":\"a\\\"b\",\"n\":7,\"bytes\":18446744073709551615,"
                                "\"good\":true,\"less\":false,\"share\":0.333333,"
                                "\"list\":[1,\"\",0],"
                                "\"of\":{\"hash\":\"0000000000000abc\",\"f\":0.5}}");
    text_free(&t);
}

static void html_is_escaped_and_stays_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain \xc3\xbc", "plain \xc3\xbc"},
        {"<a href=\"x\">'&amp;'", "&lt;a href=&quot;x&quot;&gt;&#39;&amp;amp;&#39;"},
        {"tab\tline\n", "tab\tline\n"},
        {"\x01\xff\x7f", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"cut \xe2\x82<", "cut \xef\xbf\xbd\xef\xbf\xbd&lt;"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct text t;
        text_init(&t);
        text_add_html(&t, rows[i].in, strlen(rows[i].in));
        assert_string_equal(t.data, rows[i].out);
        text_free(&t);
    }
}

static void quantities_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text, *unit;
        double value;
    } good[] = {
        {"64MiB", "B", 64.0 * 1024 * 1024},
        {"64Mi", "B", 64.0 * 1024 * 1024},
        {"1.5G", "B", 1.5e9},
        {"1.5 GB", "B", 1.5e9},
        {"900GB/s", "B/s", 900e9},
        {"80T", "FLOP/s", 80e12},
        {"80TFLOP/s", "FLOP/s", 80e12},
        {"10us", "s", 10e-6},
        {"10u", "s", 10e-6},
        {"3ms", "s", 3e-3},
        {"250ns", "s", 250e-9},
        {"2s", "s", 2},
        {"2", "s", 2},
        {"0", "B", 0},
        {"7B", "B", 7},
        {"4kB", "B", 4000},
        {".5K", "B", 500},
        {"1Ti", "B", 1024.0 * 1024 * 1024 * 1024},
        {"1P", "B", 1e15},
    };
    static const struct {
        const char *text, *unit;
    } bad[] = {
        {"", "B"},      {"MiB", "B"},   {"-1", "B"},    {"+1", "B"},   {"1X", "B"},
        {"1MiBx", "B"}, {"1MB/s", "B"}, {"1MB", "B/s"}, {"nan", "B"},  {"inf", "B"},
        {"1e999", "B"}, {"1iB", "B"},   {"1 2", "B"},   {"10us", "B"}, {"64MiB", "s"},
    };
    double v;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        assert_true(parse_quantity(good[i].text, good[i].unit, &v));
        assert_true(fabs(v - good[i].value) <= 1e-12 * good[i].value);
    }
    v = 5;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (parse_quantity(bad[i].text, bad[i].unit, &v))
            fail_msg("'%s' was taken for a number of %s", bad[i].text, bad[i].unit);
    assert_true(v == 5);
}

static void numbers_are_whole_and_within_limits(void **state)
{
    (void)state;
    int64_t n = 0;
    double d = 0;
    assert_true(parse_i64("-12", -12, 5, &n));
    assert_int_equal(n, -12);
    assert_true(parse_i64("9223372036854775807", 0, INT64_MAX, &n));
    assert_true(n == INT64_MAX);
    assert_true(parse_count("4k", 1, 1 << 20, &n) && n == 4096);
    assert_true(parse_count("1M", 1, 1 << 20, &n) && n == 1 << 20);
    assert_true(parse_count("-1", -1, 5, &n) && n == -1);
    assert_false(parse_count("2m", 1, 1 << 20, &n));
    assert_false(parse_count("k", 0, 5, &n));
    assert_false(parse_count("-1k", -5000, 5, &n));
    assert_false(parse_count("9007199254740993k", 0, INT64_MAX, &n));
    assert_false(parse_count("4kk", 0, INT64_MAX, &n));
    assert_false(parse_i64("9223372036854775808", 0, INT64_MAX, &n));
    assert_false(parse_i64("6", -12, 5, &n));
    assert_false(parse_i64("1.5", 0, 5, &n));
    assert_false(parse_i64("", 0, 5, &n));
    assert_false(parse_i64("3x", 0, 5, &n));
    assert_true(parse_f64("0.25", 0, 1, &d));
    assert_true(d == 0.25);
    assert_false(parse_f64("nan", 0, 1, &d));
    assert_false(parse_f64("1.01", 0, 1, &d));
    assert_false(parse_f64("0.5 ", 0, 1, &d));
    assert_false(parse_f64("", 0, 1, &d));
}

static void the_hash_is_xxh64(void **state)
{
    (void)state;
    /* published check values of XXH64 with seed 0 */
    assert_true(hash_bytes("", 0) == 0xef46db3751d8e999u);
    assert_true(hash_bytes("abc", 3) == 0x44bc2cf5ad770999u);
    char data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    struct hash_stream *h = hash_create();
    assert_non_null(h);
    for (size_t at = 0, n = 1; at < sizeof data; at += n, n = n * 3 % 257) {
        n = n < sizeof data - at ? n : sizeof data - at;
        hash_update(h, data + at, n);
    }
    assert_true(hash_digest(h) == hash_bytes(data, sizeof data));
    hash_free(h);
}

/* Nothing that a terminal obeys, on whichever way it is told. */
static void foreign_text_cannot_steer_a_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain \xc3\xa4 \xe2\x82\xac", "plain \xc3\xa4 \xe2\x82\xac"},
        {"\x1b[2Jgone", "?[2Jgone"},
        {"\xc2\x9b"
         "2J",
         "??2J"},
        {"\x07\x08\x7f\x01", "????"},
        {"half \xe2\x82", "half ??"},
        {"\xff\xfe", "??"},
        {"a\tb\r\nc\nd", "a\tb\r\nc\nd"},
        {"safe\rfake", "safe?fake"},
    };
    struct oato_error err;
    char got[64], long_text[9000];
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        snprintf(got, sizeof got, "%s", rows[i].in);
        text_tame(got, strlen(got));
        assert_string_equal(got, rows[i].out);
    }
    oato_fail(&err, OATO_EFILE, "architecture '%s'", "\x1b]0;x\x07\tll\nama");
    assert_string_equal(err.text, "architecture '?]0;x? ll ama'");
    oato_fail_at(&err, "%s", "\x1b.gguf");
    assert_string_equal(err.text, "?.gguf: architecture '?]0;x? ll ama'");

    FILE *f = tmpfile();
    assert_non_null(f);
    text_print(f, "\x1b[2J", 4); /* no terminal: bytes are bytes */
    rewind(f);
    assert_int_equal(fread(got, 1, sizeof got, f), 4);
    assert_memory_equal(got, "\x1b[2J", 4);
    fclose(f);

    int master, slave;
    if (!openpty(&master, &slave, NULL, NULL, NULL)) {
        f = fdopen(slave, "w");
        assert_non_null(f);
        text_print(f, "\x1b[2J\xc2\x9b", 6);
        fflush(f);
        assert_int_equal(read(master, got, sizeof got), 6);
        assert_memory_equal(got, "?[2J??", 6);
        fclose(f);
        close(master);
    }

    /* stderr is read by somebody; no character falls between two blocks */
    for (size_t i = 0; i < sizeof long_text; i++)
        long_text[i] = "\xe2\x82\xac"[i % 3];
    f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    int old = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    text_print(stderr, long_text, sizeof long_text);
    text_tell("%s", "\x1b");
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    char *back = malloc(sizeof long_text + 2);
    assert_non_null(back);
    rewind(f);
    assert_int_equal(fread(back, 1, sizeof long_text + 2, f), sizeof long_text + 1);
    assert_memory_equal(back, long_text, sizeof long_text);
    assert_int_equal(back[sizeof long_text], '?');
    free(back);
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_and_remembers_a_failure),
        cmocka_unit_test(json_is_escaped),
        cmocka_unit_test(json_is_written_as_the_type_of_the_value_says),
        cmocka_unit_test(html_is_escaped_and_stays_utf8),
        cmocka_unit_test(foreign_text_cannot_steer_a_terminal),
        cmocka_unit_test(quantities_have_units),
        cmocka_unit_test(numbers_are_whole_and_within_limits),
        cmocka_unit_test(the_hash_is_xxh64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
