/*
 * test_tokenizer_kinds.c - the rules of byte-pair encoding of characters (gemma4), WordPiece (bert)
 * and unigram (t5) on vocabularies small enough to see, and that no text makes them hang.
 */
#include "tests/text/small_vocab.h"

#define MARK "\xe2\x96\x81" /* U+2581 */

enum { BYTES = 1000000 };

static void decodes_to(const struct tokenizer *t, const char *text, const char *want)
{
    struct oato_error err = {0};
    struct text out;
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 0, &ids, &n, &err), OATO_OK);
    text_init(&out);
    tokenizer_decode(t, ids, n, true, &out);
    assert_string_equal(out.data ? out.data : "", want);
    text_free(&out);
    free(ids);
}

/* ------------------------------------------------------------------------------- gemma4 --- */

enum { G_BOS = 256, G_A, G_B, G_SPACE, G_AB, G_SPACE_AB, G_LINE, G_LINES, G_UNK };

static void gemma_vocab(struct vocab *v)
{
    vocab_init(v, "gemma4");
    add_bytes(v);
    add(v, "<bos>", TOKEN_CONTROL, 0);
    add(v, "a", TOKEN_NORMAL, 0);
    add(v, "b", TOKEN_NORMAL, 0);
    add(v, MARK, TOKEN_NORMAL, 0);
    add(v, "ab", TOKEN_NORMAL, 0);
    add(v, MARK "ab", TOKEN_NORMAL, 0);
    add(v, "\n", TOKEN_NORMAL, 0);
    add(v, "\n\n", TOKEN_NORMAL, 0);
    add(v, "<unk>", TOKEN_UNKNOWN, 0);
    v->merges[0] = "\n \n";
    v->merges[1] = "a b";
    v->merges[2] = MARK " ab";
    v->n_merges = 3;
}

static void characters_merge_by_rank_and_spaces_are_marks(void **state)
{
    (void)state;
    static const char *const pres[] = {NULL, "gemma4", "granite-embed-multi-311m", "sarvam-moe"};
    for (size_t i = 0; i < ARRAY_LEN(pres); i++) {
        struct vocab v;
        gemma_vocab(&v);
        v.model = pres[i] ? "gpt2" : "gemma4";
        v.pre = pres[i];
        struct tokenizer *t = made(&v);
        GIVES(t, "ab ab", 0, G_AB, G_SPACE_AB);
        GIVES(t, "  ab\n\n\n", 0, G_SPACE, G_SPACE_AB, G_LINES, G_LINE);
        GIVES(t, "a\xc3\xb6\xff", 0, G_A, 0xc3, 0xb6, 0xff);
        decodes_to(t, " ab  \xf0\x9f\x98\x80\n", " ab  \xf0\x9f\x98\x80\n");
        tokenizer_free(t);
    }
}

static void vocabularies_of_characters_need_merges(void **state)
{
    (void)state;
    struct vocab v;
    gemma_vocab(&v);
    v.n_merges = 0;
    refused(&v, "tokenizer.ggml.merges is missing");
}

/* ---------------------------------------------------------------------------- WordPiece --- */

enum { W_UNK, W_CLS, W_SEP, W_A, W_AB, W_B, W_COMMA, W_ZHONG, W_BIG, W_ACUTE, W_MARK };

static void bert_vocab(struct vocab *v)
{
    vocab_init(v, "bert");
    add(v, "[UNK]", TOKEN_CONTROL, 0);
    add(v, "[CLS]", TOKEN_CONTROL, 0);
    add(v, "[SEP]", TOKEN_CONTROL, 0);
    add(v, MARK "a", TOKEN_NORMAL, 0);
    add(v, MARK "ab", TOKEN_NORMAL, 0);
    add(v, "b", TOKEN_NORMAL, 0); /* ##b */
    add(v, MARK ",", TOKEN_NORMAL, 0);
    add(v, MARK "\xe4\xb8\xad", TOKEN_NORMAL, 0);
    add(v, MARK "A", TOKEN_NORMAL, 0);
    add(v, MARK "\xc3\xa1", TOKEN_NORMAL, 0); /* a with an acute */
    add(v, MARK, TOKEN_NORMAL, 0);            /* ## with that character */
    v->unknown = W_UNK;
}

static void words_become_their_longest_tokens(void **state)
{
    (void)state;
    struct vocab v;
    bert_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "ab abb  a,b", 0, W_AB, W_AB, W_B, W_A, W_COMMA, W_UNK);
    GIVES(t, "abx ab", 0, W_UNK, W_AB); /* all of a word or nothing */
    GIVES(t,
          "a\xe4\xb8\xad"
          "ab\t\n",
          0, W_A, W_ZHONG, W_AB);
    GIVES(t,
          "A\xc3\x81\xcc\x81 a\xe2\x80\x8b"
          "b\xff",
          0, W_UNK, W_AB); /* accents and formats vanish */
    GIVES(t, "\xc3\x81 A", 0, W_A, W_A);
    GIVES(t, "a" MARK, 0, W_A, W_MARK);
    GIVES(t, "", 0, -1);
    GIVES(t, " \xcc\x81 ", 0, -1);
    decodes_to(t, "AB,  a", "ab , a");
    tokenizer_free(t);
    v.lowercase = 0;
    t = made(&v);
    GIVES(t, "A a \xc3\xa1", 0, W_BIG, W_A, W_ACUTE);
    tokenizer_free(t);
}

static void words_of_more_than_100_characters_are_unknown(void **state)
{
    (void)state;
    struct vocab v;
    bert_vocab(&v);
    struct tokenizer *t = made(&v);
    char word[102] = "a";
    int32_t want[101] = {W_AB};
    memset(word + 1, 'b', 99);
    for (int i = 1; i < 99; i++)
        want[i] = W_B;
    want[99] = -1;
    gives(t, word, strlen(word), 0, want);
    word[100] = 'b';
    GIVES(t, word, 0, W_UNK);
    tokenizer_free(t);
    v.unknown = -2;
    refused(&v, "unknown_token_id is missing");
}

/* ------------------------------------------------------------------------------ unigram --- */

enum { U_PAD, U_EOS, U_UNK, U_SPACE, U_A, U_B, U_AB, U_SPACE_A, U_BB };

static void t5_vocab(struct vocab *v)
{
    vocab_init(v, "t5");
    add(v, "<pad>", TOKEN_CONTROL, 0);
    add(v, "</s>", TOKEN_CONTROL, 0);
    add(v, "<unk>", TOKEN_UNKNOWN, 0);
    add(v, MARK, TOKEN_NORMAL, -3);
    add(v, "a", TOKEN_NORMAL, -2);
    add(v, "b", TOKEN_NORMAL, -2);
    add(v, "ab", TOKEN_NORMAL, -3);
    add(v, MARK "a", TOKEN_NORMAL, -4);
    add(v, "bb", TOKEN_NORMAL, -5);
}

static void the_likeliest_tokens_are_taken(void **state)
{
    (void)state;
    struct vocab v;
    t5_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "ab", 0, U_SPACE, U_AB); /* -6; with the other two it is also -6, and found later */
    GIVES(t, "abb", 0, U_SPACE, U_AB, U_B);
    GIVES(t, "bb", 0, U_SPACE, U_B, U_B);
    GIVES(t, "a  a", 0, U_SPACE_A, U_SPACE, U_SPACE_A);
    GIVES(t, "axyb", 0, U_SPACE_A, U_UNK, U_B); /* unknown characters are one token */
    GIVES(t, "", 0, -1);
    tokenizer_free(t);
    v.merge_spaces = 1;
    t = made(&v);
    GIVES(t, "  a   a ", 0, U_SPACE_A, U_SPACE_A);
    GIVES(t, "   ", 0, -1);
    GIVES(t, "</s> a", TOKENIZE_PARSE_SPECIAL, U_EOS, U_SPACE_A);
    tokenizer_free(t);
    v.add_space_prefix = 0;
    t = made(&v);
    GIVES(t, " a", 0, U_A);
    tokenizer_free(t);
}

static void with_byte_tokens_nothing_is_unknown(void **state)
{
    (void)state;
    struct vocab v;
    t5_vocab(&v);
    const int first = v.n;
    add_bytes(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "a\xc3\xb6", 0, U_SPACE_A, first + 0xc3, first + 0xb6);
    tokenizer_free(t);
}

/* A map of one letter, x -> ab: the root's child at 'x' is a leaf, whose value is at label 0. */
static void the_map_of_the_file_replaces_characters(void **state)
{
    (void)state;
    enum { UNITS = 512, MAP = 4 + 4 * UNITS + 3 };
    static uint32_t units[UNITS];
    static uint8_t map[MAP];
    const uint32_t bytes = sizeof units;
    units[0] = 0;                            /* children of the root at index = label */
    units['x'] = 'x' | 1u << 8 | 256u << 10; /* children at 'x' ^ 256 ^ label */
    units['x' ^ 256] = 0x80000000u;          /* the value: offset 0 */
    memcpy(map, &bytes, 4);
    memcpy(map + 4, units, sizeof units);
    memcpy(map + 4 + sizeof units, "ab", 3);
    struct vocab v;
    t5_vocab(&v);
    v.map = map;
    v.n_map = sizeof map;
    struct tokenizer *t = made(&v);
    GIVES(t, "xb", 0, U_SPACE, U_AB, U_B);
    tokenizer_free(t);
    v.n_map--; /* the text has no end */
    refused(&v, "precompiled_charsmap has");
    v.n_map = 3;
    refused(&v, "precompiled_charsmap has 3 bytes");
    memset(map, 0xff, 4);
    v.n_map = sizeof map;
    refused(&v, "precompiled_charsmap");
    /* Whatever the units say, nothing outside of them is read. */
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < 200; i++) {
        memcpy(map, &bytes, 4);
        for (size_t k = 4; k < 4 + sizeof units; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const uint64_t r = random >> 33;
            map[k] = (uint8_t)(k % 4 == 0 ? 'a' + r % 8 : k % 4 == 1 ? r % 8 : r % 2);
        }
        t = made(&v);
        decodes_to(t, "", "");
        struct oato_error err = {0};
        int32_t *ids;
        size_t n;
        assert_int_equal(tokenizer_encode(t, "abcdefghijkl", 12, 0, &ids, &n, &err), OATO_OK);
        free(ids);
        tokenizer_free(t);
    }
}

static void vocabularies_of_scores_need_them(void **state)
{
    (void)state;
    struct vocab v;
    t5_vocab(&v);
    struct tokenizer *t;
    v.types[U_UNK] = TOKEN_NORMAL;
    t = made(&v);
    struct oato_error err = {0};
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, "?", 1, 0, &ids, &n, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "0x3F"));
    tokenizer_free(t);
}

/* --------------------------------------------------------------------------------- all ---- */

static void a_megabyte_of_anything_takes_a_moment(void **state)
{
    (void)state;
    static const char *const units[] = {" ",  "a",  "b",  "1", "\xcc\x81",
                                        "\n", "ab", "a ", ",", "\xff"};
    static void (*const kinds[])(struct vocab *) = {gemma_vocab, bert_vocab, t5_vocab};
    double slowest = 0;
    char *s = malloc(BYTES + 1);
    assert_non_null(s);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct vocab v;
        kinds[k](&v);
        struct tokenizer *t = made(&v);
        for (size_t u = 0; u < ARRAY_LEN(units); u++) {
            struct oato_error err = {0};
            const size_t unit = strlen(units[u]);
            int32_t *ids;
            size_t n = 0, count;
            for (; n + unit <= BYTES; n += unit)
                memcpy(s + n, units[u], unit);
            const uint64_t begin = now_ns();
            assert_int_equal(tokenizer_encode(t, s, n, 0, &ids, &count, &err), OATO_OK);
            const double seconds = (double)(now_ns() - begin) * 1e-9;
            if (seconds > slowest)
                print_message("%s, unit %zu: %.3f s\n", v.model, u, slowest = seconds);
            assert_true(seconds < 5);
            free(ids);
        }
        tokenizer_free(t);
    }
    free(s);
}

static void a_message_may_end_before_the_turn(void **state)
{
    (void)state;
    struct vocab v;
    t5_vocab(&v);
    const int end = add(&v, "<|end|>", TOKEN_CONTROL, 0);
    struct tokenizer *t = made(&v);
    assert_true(tokenizer_is_end(t, end));
    tokenizer_free(t);
    const int last = add(&v, "<|return|>", TOKEN_CONTROL, 0);
    const int call = add(&v, "<|call|>", TOKEN_CONTROL, 0);
    const int turn = add(&v, "<turn|>", TOKEN_CONTROL, 0);
    const int kimi = add(&v, "[EOT]", TOKEN_CONTROL, 0);
    t = made(&v);
    assert_false(tokenizer_is_end(t, end));
    assert_true(tokenizer_is_end(t, last));
    assert_true(tokenizer_is_end(t, call));
    assert_true(tokenizer_is_end(t, turn));
    assert_true(tokenizer_is_end(t, kimi));
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_merge_by_rank_and_spaces_are_marks),
        cmocka_unit_test(vocabularies_of_characters_need_merges),
        cmocka_unit_test(words_become_their_longest_tokens),
        cmocka_unit_test(words_of_more_than_100_characters_are_unknown),
        cmocka_unit_test(the_likeliest_tokens_are_taken),
        cmocka_unit_test(with_byte_tokens_nothing_is_unknown),
        cmocka_unit_test(the_map_of_the_file_replaces_characters),
        cmocka_unit_test(vocabularies_of_scores_need_them),
        cmocka_unit_test(a_megabyte_of_anything_takes_a_moment),
        cmocka_unit_test(a_message_may_end_before_the_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
