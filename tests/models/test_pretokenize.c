/*
 * test_pretokenize.c - what holds for every row of the pre-tokenisers: names are unique, the pieces
 * are the whole text, and no text makes an expression look at a run again and again.
 *
 * Where the cuts lie is compared with other implementations: tests/oracle/test_tokenizers.py and
 * test_tokenizer_vectors.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/tokenizer_internal.h"

enum { BYTES = 1000000 };

static struct pretokenizer *made(const char *name)
{
    char path[] = "/tmp/oato-test-XXXXXX";
    struct oato_error err = {0};
    struct pretokenizer_traits traits;
    struct pretokenizer *p = NULL;
    struct gguf_writer *w = gguf_writer_create();
    struct gguf *g = NULL;
    int fd = mkstemp(path);
    assert_true(w && fd >= 0);
    close(fd);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_string(w, "tokenizer.ggml.pre", name);
    if (gguf_writer_save(w, path, &err) != OATO_OK || gguf_open(path, &g, &err) != OATO_OK ||
        pretokenizer_create(g, &p, &traits, &err) != OATO_OK)
        fail_msg("%s", err.text);
    gguf_close(g);
    unlink(path);
    gguf_writer_free(w);
    return p;
}

static void names_are_unique(void **state)
{
    (void)state;
    int names = 0;
    for (size_t i = 0; i < n_pretokenizer_rows; i++) {
        for (const char *const *a = pretokenizer_rows[i].names; *a; a++, names++) {
            int same = 0;
            for (size_t j = 0; j < n_pretokenizer_rows; j++)
                for (const char *const *b = pretokenizer_rows[j].names; *b; b++)
                    same += strcmp(*a, *b) == 0;
            if (same != 1)
                fail_msg("%s: %d rows", *a, same);
        }
    }
    print_message("%d names in %zu rows\n", names, n_pretokenizer_rows);
}

/* Seconds to cut n bytes; the pieces are not empty and end where the text ends. */
static double cut_seconds(const struct pretokenizer *p, const char *text, size_t n)
{
    struct oato_error err = {0};
    struct pretokenize_work w = {0};
    const uint64_t begin = now_ns();
    if (pretokenize(p, &w, text, n, &err) != OATO_OK)
        fail_msg("%s", err.text);
    const double seconds = (double)(now_ns() - begin) * 1e-9;
    size_t last = 0;
    for (size_t i = 0; i < w.spans.n; i++) {
        assert_true(w.spans.ends[i] > last);
        last = w.spans.ends[i];
    }
    assert_int_equal(last, n);
    pretokenize_work_free(&w);
    return seconds;
}

/* A megabyte of one thing, with nothing or a letter behind it. */
static void a_megabyte_of_anything_takes_a_moment(void **state)
{
    (void)state;
    static const char *const units[] = {
        " ",
        "a",
        "A",
        "1",
        "\xcc\x81",
        "\n",
        " \n",
        "\r\n",
        "\t",
        "'",
        "'s",
        ".",
        " a",
        "aA",
        "1 ",
        "a\xcc\x81",
        "/",
        "123,",
        " .",
        " \xcc\x81",
        "\xc2\xb2",
        "\xc2\xa0",
        "\xe4\xb8\xad",
        "\xe4\xb8\xad"
        "A",
        "\xd9\xa1",
    };
    static const char *const ends[] = {"", "z"};
    double slowest = 0;
    char *s = malloc(BYTES + 8);
    assert_non_null(s);
    for (size_t r = 0; r < n_pretokenizer_rows; r++) {
        struct pretokenizer *p = made(pretokenizer_rows[r].names[0]);
        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            const size_t unit = strlen(units[u]);
            size_t n = 0;
            for (; n + unit <= BYTES; n += unit)
                memcpy(s + n, units[u], unit);
            for (size_t e = 0; e < ARRAY_LEN(ends); e++) {
                strcpy(s + n, ends[e]);
                const double seconds = cut_seconds(p, s, n + strlen(ends[e]));
                if (seconds > slowest)
                    print_message("%s, unit %zu, end %zu: %.3f s\n", pretokenizer_rows[r].names[0],
                                  u, e, slowest = seconds);
                assert_true(seconds < 5);
            }
        }
        pretokenizer_free(p);
    }
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique),
        cmocka_unit_test(a_megabyte_of_anything_takes_a_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
