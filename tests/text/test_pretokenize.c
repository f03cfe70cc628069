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
#include <time.h>
#include <unistd.h>

#include "text/tokens_internal.h"

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
    const clock_t begin = clock(); /* the processor's time: others may share it */
    if (pretokenize(p, &w, text, n, &err) != OATO_OK)
        fail_msg("%s", err.text);
    const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    size_t last = 0;
    for (size_t i = 0; i < w.spans.n; i++) {
        assert_true(w.spans.ends[i] > last);
        last = w.spans.ends[i];
    }
    assert_int_equal(last, n);
    pretokenize_work_free(&w);
    return seconds;
}

/* Many bytes of one thing, with nothing or a letter behind it: a megabyte of what runs are made of,
 * less of the rest, which would still take minutes if a run were looked at from each character. */
static void a_megabyte_of_anything_takes_a_moment(void **state)
{
    (void)state;
    static const struct {
        const char *unit;
        size_t bytes;
    } runs[] = {
        {" ", BYTES},
        {"a", BYTES},
        {"A", BYTES},
        {"1", BYTES},
        {"\xcc\x81", BYTES},
        {"\n", BYTES},
        {"\t", BYTES},
        {"\xe4\xb8\xad", BYTES},
        {".", BYTES},
        {" \n", BYTES / 5},
        {"\r\n", BYTES / 5},
        {"'s", BYTES / 5},
        {"'", BYTES / 5},
        {" a", BYTES / 5},
        {"aA", BYTES / 5},
        {"1 ", BYTES / 5},
        {"a\xcc\x81", BYTES / 5},
        {"/", BYTES / 5},
        {"123,", BYTES / 5},
        {" .", BYTES / 5},
        {" \xcc\x81", BYTES / 5},
        {"\xc2\xb2", BYTES / 5},
        {"\xc2\xa0", BYTES / 5},
        {"\xd9\xa1", BYTES / 5},
        {"\xe4\xb8\xad\x41", BYTES / 5},
    };
    static const char *const ends[] = {"", "z"};
    double slowest = 0;
    char *s = malloc(BYTES + 8);
    assert_non_null(s);
    for (size_t r = 0; r < n_pretokenizer_rows; r++) {
        const char *name = pretokenizer_rows[r].names[0];
        struct pretokenizer *p = made(name);
        for (size_t u = 0; u < ARRAY_LEN(runs); u++) {
            const size_t unit = strlen(runs[u].unit);
            size_t n = 0;
            for (; n + unit <= runs[u].bytes; n += unit)
                memcpy(s + n, runs[u].unit, unit);
            for (size_t e = 0; e < ARRAY_LEN(ends); e++) {
                memcpy(s + n, ends[e], strlen(ends[e]));
                const double seconds = cut_seconds(p, s, n + strlen(ends[e]));
                if (seconds > slowest)
                    print_message("%s, run %zu, end %zu: %.3f s\n", name, u, e, slowest = seconds);
                if (seconds > 5)
                    fail_msg("%s, run %zu, end %zu: %.3f s", name, u, e, seconds);
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
