/*
 * test_tokenizer_specials.c - special tokens among many that begin each other: the longest wins, as
 * a search through all of them says, and their number costs no time.
 */
#include "text/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, BYTE = 6, BYTES = 256 };

/* A SentencePiece vocabulary of the 256 bytes, whose ids are their values, and n special tokens. */
static struct tokenizer *tokenizer_of(const struct gguf_string *specials, const int32_t *kinds,
                                      size_t n)
{
    char path[] = "/tmp/oato-test-XXXXXX";
    static char bytes[BYTES][8];
    struct gguf_string *tokens = calloc(BYTES + n, sizeof *tokens);
    int32_t *types = calloc(BYTES + n, sizeof *types);
    float *scores = calloc(BYTES + n, sizeof *scores);
    struct gguf_writer *w = gguf_writer_create();
    struct gguf *g;
    struct tokenizer *t;
    struct oato_error err;
    const int fd = mkstemp(path);
    assert_true(tokens && types && scores && w && fd >= 0);
    close(fd);
    for (unsigned b = 0; b < BYTES; b++) {
        snprintf(bytes[b], sizeof bytes[b], "<0x%02X>", b);
        tokens[b] = (struct gguf_string){bytes[b], 6};
        types[b] = BYTE;
    }
    memcpy(tokens + BYTES, specials, n * sizeof *specials);
    memcpy(types + BYTES, kinds, n * sizeof *kinds);
    gguf_writer_string(w, "general.architecture", "llama");
    gguf_writer_string(w, "tokenizer.ggml.model", "llama");
    gguf_writer_strings(w, "tokenizer.ggml.tokens", tokens, BYTES + n);
    gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, types, BYTES + n);
    gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, scores, BYTES + n);
    gguf_writer_scalar(w, "tokenizer.ggml.add_space_prefix", GGUF_BOOL, &(uint8_t){0});
    if (gguf_writer_save(w, path, &err) || gguf_open(path, &g, &err) ||
        tokenizer_create(g, &t, &err))
        fail_msg("%s", err.text);
    gguf_close(g);
    unlink(path);
    gguf_writer_free(w);
    free(scores);
    free(types);
    free(tokens);
    return t;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

enum { SPECIALS = 60, LETTERS = 400 };

/* Ids of the text by trying every token at every place. Of equal tokens the first one counts. */
static size_t slow_ids(const char *text, const struct gguf_string *specials, const int32_t *kinds,
                       bool controls, int32_t *ids)
{
    size_t n = 0;
    for (size_t at = 0; at < LETTERS;) {
        int32_t best = (uint8_t)text[at];
        size_t longest = 0;
        for (int32_t i = 0; i < SPECIALS; i++) {
            const struct gguf_string *s = &specials[i];
            bool again = false;
            for (int32_t j = 0; j < i; j++)
                again |= specials[j].len == s->len && !memcmp(specials[j].data, s->data, s->len);
            if (again || s->len <= longest || s->len > LETTERS - at ||
                (kinds[i] == CONTROL && !controls) || memcmp(text + at, s->data, s->len) != 0)
                continue;
            best = BYTES + i;
            longest = s->len;
        }
        ids[n++] = best;
        at += longest ? longest : 1;
    }
    return n;
}

static void the_longest_special_token_wins_among_many(void **state)
{
    (void)state;
    static char texts[SPECIALS][16], text[LETTERS];
    struct gguf_string specials[SPECIALS];
    int32_t kinds[SPECIALS], expected[LETTERS];
    struct oato_error err;
    uint64_t seed = now_ns();
    print_message("state of the random numbers: %llu\n", (unsigned long long)seed);
    for (int i = 0; i < SPECIALS; i++) {
        const size_t len = 2 + next(&seed) % 12;
        for (size_t j = 0; j < len; j++)
            texts[i][j] = next(&seed) % 2 ? 'x' : 'y';
        specials[i] = (struct gguf_string){texts[i], len};
        kinds[i] = next(&seed) % 2 ? CONTROL : USER_DEFINED;
    }
    for (int i = 0; i < LETTERS; i++)
        text[i] = next(&seed) % 2 ? 'x' : 'y';
    struct tokenizer *t = tokenizer_of(specials, kinds, SPECIALS);
    for (int controls = 0; controls < 2; controls++) {
        const size_t n = slow_ids(text, specials, kinds, controls, expected);
        int32_t *ids;
        size_t got;
        assert_int_equal(tokenizer_encode(t, text, LETTERS, controls ? TOKENIZE_PARSE_SPECIAL : 0,
                                          &ids, &got, &err),
                         OATO_OK);
        assert_int_equal(got, n);
        assert_memory_equal(ids, expected, n * sizeof *ids);
        free(ids);
    }
    tokenizer_free(t);
}

/* A token of each length up to 3000, none of which is in the text, which looks like all of them.
 * Trying each length at each place took 10 s. */
static void many_special_lengths_take_no_longer(void **state)
{
    (void)state;
    enum { MANY = 3000, LONG = 40000 };
    static struct gguf_string specials[MANY];
    static int32_t kinds[MANY];
    static char letters[MANY + 1][MANY + 2], text[LONG];
    struct oato_error err;
    int32_t *ids;
    size_t n;
    memset(text, 'x', sizeof text);
    for (size_t i = 0; i < MANY; i++) {
        memset(letters[i], 'x', i + 1);
        letters[i][i + 1] = '!';
        specials[i] = (struct gguf_string){letters[i], i + 2};
        kinds[i] = CONTROL;
    }
    struct tokenizer *t = tokenizer_of(specials, kinds, MANY);
    const uint64_t begin = now_ns();
    assert_int_equal(tokenizer_encode(t, text, LONG, TOKENIZE_PARSE_SPECIAL, &ids, &n, &err),
                     OATO_OK);
    const double seconds = (double)(now_ns() - begin) * 1e-9;
    print_message("%.3f s\n", seconds);
    assert_int_equal(n, LONG);
    assert_true(seconds < 3);
    free(ids);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_special_token_wins_among_many),
        cmocka_unit_test(many_special_lengths_take_no_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
