/*
 * test_tokenizer.c - the rules of both tokenizers on vocabularies small enough to see, and the
 * refusal of vocabularies that are not sound.
 */
#include "tests/text/small_vocab.h"

#include <math.h>

/* Every byte in the alphabet of GPT-2. */
static void add_alphabet(struct vocab *v)
{
    int moved = 0;
    for (int b = 0; b < 256; b++) {
        bool itself = (b > ' ' && b <= '~') || (b > 0xa0 && b != 0xad);
        int c = itself ? b : 256 + moved++;
        char *s = byte_texts[b];
        if (c < 0x80)
            snprintf(s, 8, "%c", c);
        else
            snprintf(s, 8, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
        add(v, s, TOKEN_NORMAL, 0);
    }
}

static void decodes_to(const struct tokenizer *t, const int32_t *ids, size_t n, bool strip,
                       const char *want)
{
    struct text out;
    text_init(&out);
    tokenizer_decode(t, ids, n, strip, &out);
    assert_string_equal(out.data ? out.data : "", want);
    text_free(&out);
}

/* A budget is asked before the work is done, and gets back what the work needed for its time. */
static void budget_limits(const struct tokenizer *t)
{
    enum { BYTES = 1000000 };
    char *s = malloc(BYTES);
    struct oato_error err;
    int32_t *ids;
    size_t n;
    assert_non_null(s);
    memset(s, 'a', BYTES);
    struct budget b = {.steps = 100000000, .bytes = (size_t)100 << 20}, before = b;
    assert_int_equal(tokenizer_encode_within(t, s, BYTES, 0, &b, &ids, &n, &err), OATO_OK);
    free(ids);
    assert_int_equal(b.bytes, before.bytes);
    assert_in_range(before.steps - b.steps, BYTES, 100 * BYTES);
    b.steps = before.steps - b.steps - 1;
    assert_int_equal(tokenizer_encode_within(t, s, BYTES, 0, &b, &ids, &n, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "more work"));
    b = before;
    b.bytes = (size_t)30 << 20;
    assert_int_equal(tokenizer_encode_within(t, s, BYTES, 0, &b, &ids, &n, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "more memory"));
    free(s);
}

/* ---------------------------------------------------------------- byte-level BPE --------- */

/* ids: 0..255 the bytes, then what is named. */
enum { AB = 256, ABC, BC, SPACE_A, END, USER, USER_LONG, BPE_TOKENS };

static void bpe_vocab(struct vocab *v)
{
    vocab_init(v, "gpt2");
    v->pre = "gpt-2";
    add_alphabet(v);
    add(v, "ab", TOKEN_NORMAL, 0);
    add(v, "abc", TOKEN_NORMAL, 0);
    add(v, "bc", TOKEN_NORMAL, 0);
    add(v,
        "\xc4\xa0"
        "a",
        TOKEN_NORMAL, 0);
    add(v, "<|end|>", TOKEN_CONTROL, 0);
    add(v, "<u>", TOKEN_USER_DEFINED, 0);
    add(v, "<u>\xc3\xb6", TOKEN_USER_DEFINED, 0);
    v->merges[0] = "b c";
    v->merges[1] = "a b";
    v->merges[2] = "a bc";
    v->merges[3] = "\xc4\xa0 a";
    v->merges[4] = "x y"; /* to no token: left out */
    v->n_merges = 5;
    v->bos = v->eos = END;
}

static void pairs_merge_by_rank_then_from_the_left(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "abc", 0, ABC); /* b c first, then a bc */
    GIVES(t, "ab", 0, AB);
    GIVES(t, "abab", 0, AB, AB);
    GIVES(t, "aabcb", 0, 'a', ABC, 'b');
    GIVES(t, "b ab", 0, 'b', ' ', AB); /* "a b" stands before "Ġ a" */
    GIVES(t, "b ac", 0, 'b', SPACE_A, 'c');
    GIVES(t, "xy", 0, 'x', 'y');
    GIVES(t, "", 0, -1);
    assert_int_equal(tokenizer_size(t), BPE_TOKENS);
    tokenizer_free(t);
}

static void a_piece_that_is_a_token_is_taken_whole_where_the_model_says_so(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    add(&v, "cab", TOKEN_NORMAL, 0);
    struct tokenizer *t = made(&v);
    GIVES(t, "cab", 0, 'c', AB);
    tokenizer_free(t);
    v.pre = "llama3";
    t = made(&v);
    GIVES(t, "cab", 0, BPE_TOKENS);
    GIVES(t, "cab", TOKENIZE_ADD_SPECIAL, END, BPE_TOKENS); /* this family begins with BOS */
    tokenizer_free(t);
    v.add_bos = 0;
    t = made(&v);
    GIVES(t, "cab", TOKENIZE_ADD_SPECIAL, BPE_TOKENS);
    tokenizer_free(t);
}

static void special_tokens_are_found_first_and_the_longest_wins(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "ab<|end|>ab", TOKENIZE_PARSE_SPECIAL, AB, END, AB);
    GIVES(t, "<|end|>", 0, '<', '|', 'e', 'n', 'd', '|', '>'); /* text is not a command */
    GIVES(t, "a<u>b", 0, 'a', USER, 'b'); /* user-defined tokens always count */
    GIVES(t, "<u>\xc3\xb6<u", 0, USER_LONG, '<', 'u');
    const int32_t ids[] = {USER_LONG, END, SPACE_A, 9999, -5};
    decodes_to(t, ids, 5, true, "<u>\xc3\xb6 a");
    const char *bytes;
    size_t n;
    assert_true(tokenizer_piece(t, END, true, &bytes, &n));
    assert_memory_equal(bytes, "<|end|>", n);
    assert_int_equal(n, 7);
    assert_true(tokenizer_piece(t, END, false, &bytes, &n));
    assert_int_equal(n, 0);
    assert_true(tokenizer_piece(t, SPACE_A, false, &bytes, &n));
    assert_memory_equal(bytes, " a", n);
    assert_false(tokenizer_piece(t, BPE_TOKENS, true, &bytes, &n));
    assert_false(tokenizer_piece(t, -1, true, &bytes, &n));
    assert_true(tokenizer_is_end(t, END));
    assert_false(tokenizer_is_end(t, USER));
    assert_false(tokenizer_is_end(t, -1));
    assert_false(tokenizer_is_end(t, BPE_TOKENS));
    tokenizer_free(t);
}

static void invalid_bytes_are_pieces_of_their_own(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t,
          "ab\xff\xc3"
          "ab",
          0, AB, 0xff, 0xc3, AB);
    GIVES(t, "\xed\xa0\x80", 0, 0xed, 0xa0, 0x80); /* a surrogate */
    gives(t, "a\0b", 3, 0, (const int32_t[]){'a', 0, 'b', -1});
    tokenizer_free(t);
}

static void a_byte_without_a_token_is_replaced_or_refused(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    v.texts['z'] = "zz"; /* no token for z */
    struct tokenizer *t = made(&v);
    GIVES(t, "azb", 0, 'a', 0xef, 0xbf, 0xbd, 'b');
    tokenizer_free(t);
    v.texts[0xbf] = "yy";
    t = made(&v);
    struct oato_error err = {0};
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, "z", 1, 0, &ids, &n, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "0x7A"));
    assert_null(ids);
    assert_int_equal(tokenizer_encode(t, "\xbf", 1, 0, &ids, &n, &err), OATO_EUSAGE);
    tokenizer_free(t);
}

/* A megabyte of one letter, of spaces and of line ends must take no more than a moment. */
static void long_words_spend_their_budget(void **state)
{
    struct vocab v;
    (void)state;
    bpe_vocab(&v);
    struct tokenizer *t = made(&v);
    budget_limits(t);
    size_t longest = 4;
    for (int32_t i = 0; i < tokenizer_size(t); i++) {
        const char *bytes;
        size_t n;
        assert_true(tokenizer_piece(t, i, true, &bytes, &n));
        longest = n > longest ? n : longest;
    }
    assert_int_equal(tokenizer_longest(t), longest);
    tokenizer_free(t);
}

static void long_runs_do_not_hang(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    static const char *const pres[] = {"gpt-2",        "llama-bpe",      "qwen2",
                                       "falcon",       "smollm",         "default",
                                       "deepseek-llm", "deepseek-coder", "deepseek-v3"};
    char *s = malloc(BYTES + 1);
    assert_non_null(s);
    for (size_t p = 0; p < ARRAY_LEN(pres); p++) {
        struct vocab v;
        bpe_vocab(&v);
        v.pre = pres[p];
        add(&v, "aa", TOKEN_NORMAL, 0);
        add(&v, "aaaa", TOKEN_NORMAL, 0);
        v.merges[v.n_merges++] = "a a";
        v.merges[v.n_merges++] = "aa aa";
        struct tokenizer *t = made(&v);
        for (const char *c = "a 1.\n\t"; *c; c++) {
            struct oato_error err = {0};
            int32_t *ids;
            size_t n;
            memset(s, *c, BYTES);
            s[BYTES] = 'z';
            if (tokenizer_encode(t, s, BYTES + 1, 0, &ids, &n, &err) != OATO_OK)
                fail_msg("%s: %s", pres[p], err.text);
            assert_int_equal(n, *c == 'a' ? BYTES / 4 + 1 : BYTES + 1);
            free(ids);
        }
        tokenizer_free(t);
    }
    free(s);
}

/* ----------------------------------------------------------------- SentencePiece --------- */

enum {
    UNK,
    S_BOS,
    S_EOS,
    S_BYTES,
    S_A = S_BYTES + 256,
    S_B,
    S_SPACE,
    S_AB,
    S_SPACE_A,
    S_AA,
    S_MARK
};

static void spm_vocab(struct vocab *v)
{
    vocab_init(v, "llama");
    add(v, "<unk>", TOKEN_UNKNOWN, 0);
    add(v, "<s>", TOKEN_CONTROL, 0);
    add(v, "</s>", TOKEN_CONTROL, 0);
    add_bytes(v);
    add(v, "a", TOKEN_NORMAL, -10);
    add(v, "b", TOKEN_NORMAL, -11);
    add(v, "\xe2\x96\x81", TOKEN_NORMAL, -12);
    add(v, "ab", TOKEN_NORMAL, -2);
    add(v,
        "\xe2\x96\x81"
        "a",
        TOKEN_NORMAL, -1);
    add(v, "aa", TOKEN_NORMAL, -3);
    add(v, "[U]", TOKEN_USER_DEFINED, 0);
}

/* A model that reads EOS behind EOS says nothing. */
static void a_text_to_be_continued_has_no_end(void **state)
{
    (void)state;
    struct vocab v;
    spm_vocab(&v);
    v.add_space_prefix = 0;
    v.add_eos = 1;
    struct tokenizer *t = made(&v);
    GIVES(t, "ab", TOKENIZE_PROMPT, S_BOS, S_AB);
    GIVES(t, "ab", TOKENIZE_ADD_BOS, S_BOS, S_AB);
    GIVES(t, "ab", TOKENIZE_ADD_EOS, S_AB, S_EOS);
    GIVES(t, "ab", TOKENIZE_ADD_SPECIAL, S_BOS, S_AB, S_EOS);
    tokenizer_free(t);
}

static void the_highest_score_merges_first(void **state)
{
    (void)state;
    struct vocab v;
    spm_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "ab", 0, S_SPACE_A, S_B); /* "▁a" -1 beats "ab" -2 */
    GIVES(t, "bab", 0, S_SPACE, S_B, S_AB);
    GIVES(t, "baaa", 0, S_SPACE, S_B, S_AA, S_A); /* of equals the leftmost */
    GIVES(t, "", 0, -1);
    GIVES(t, "", TOKENIZE_ADD_SPECIAL, S_BOS);
    GIVES(t, "a", TOKENIZE_ADD_SPECIAL, S_BOS, S_SPACE_A);
    assert_int_equal(tokenizer_bos(t), S_BOS);
    assert_true(tokenizer_is_end(t, S_EOS));
    tokenizer_free(t);

    v.add_space_prefix = 0;
    v.add_bos = 0;
    t = made(&v);
    GIVES(t, "ab", TOKENIZE_ADD_SPECIAL, S_AB);
    GIVES(t, "a\0b", 0, S_A, S_BYTES, S_B); /* text is bytes and a length */
    const int32_t ids[] = {S_SPACE_A};
    decodes_to(t, ids, 1, true, " a"); /* no space was put in front */
    tokenizer_free(t);
}

static void what_no_token_covers_is_written_as_bytes(void **state)
{
    (void)state;
    struct vocab v;
    spm_vocab(&v);
    struct tokenizer *t = made(&v);
    GIVES(t, "b\n", 0, S_SPACE, S_B, S_BYTES + '\n');
    GIVES(t, "b\xc3\xb6\xff", 0, S_SPACE, S_B, S_BYTES + 0xc3, S_BYTES + 0xb6, S_BYTES + 0xff);
    const int32_t ids[] = {S_BOS, S_SPACE_A, S_BYTES + 0xc3, S_BYTES + 0xb6, S_MARK, S_SPACE_A};
    decodes_to(t, ids, 6, true, "a\xc3\xb6[U]a");
    decodes_to(t, ids, 6, false, " a\xc3\xb6[U] a");
    /* A space follows a special token, in and out. */
    GIVES(t, "b[U]a<s>a", TOKENIZE_PARSE_SPECIAL, S_SPACE, S_B, S_MARK, S_SPACE_A, S_BOS,
          S_SPACE_A);
    GIVES(t,
          "\xe2\x96\x81"
          "a",
          0, S_SPACE, S_SPACE_A); /* U+2581 is a space */
    tokenizer_free(t);
}

static void without_byte_tokens_the_unknown_token_stands(void **state)
{
    (void)state;
    struct vocab v;
    vocab_init(&v, "llama");
    add(&v, "<unk>", TOKEN_UNKNOWN, 0);
    add(&v, "a", TOKEN_NORMAL, NAN); /* a score that is none must not upset the order */
    add(&v, "\xe2\x96\x81", TOKEN_NORMAL, 0);
    add(&v, "aa", TOKEN_NORMAL, NAN);
    struct tokenizer *t = made(&v);
    GIVES(t,
          "aa\xe5\x8c\x97"
          "a",
          0, 2, 3, 0, 1);
    tokenizer_free(t);
    v.types[0] = TOKEN_NORMAL;
    t = made(&v);
    struct oato_error err = {0};
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, "?", 1, 0, &ids, &n, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "0x3F"));
    tokenizer_free(t);
    v.n_types = 0; /* byte tokens are known by their form then */
    v.texts[0] = "<0x3F>";
    t = made(&v);
    GIVES(t, "?", 0, 2, 0);
    tokenizer_free(t);
}

static void phi3_takes_the_space_after_its_special_tokens(void **state)
{
    (void)state;
    struct vocab v;
    spm_vocab(&v);
    v.name = "My Phi-3 mini";
    struct tokenizer *t = made(&v);
    GIVES(t, "[U] \n a", 0, S_MARK, S_SPACE_A);
    GIVES(t, "<s> a", TOKENIZE_PARSE_SPECIAL, S_BOS, S_SPACE, S_SPACE_A); /* but not <s> */
    tokenizer_free(t);
}

static void a_long_word_does_not_hang_sentencepiece(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    struct vocab v;
    spm_vocab(&v);
    struct tokenizer *t = made(&v);
    struct oato_error err = {0};
    char *s = malloc(BYTES);
    int32_t *ids;
    size_t n;
    assert_non_null(s);
    memset(s, 'a', BYTES);
    assert_int_equal(tokenizer_encode(t, s, BYTES, 0, &ids, &n, &err), OATO_OK);
    assert_int_equal(n, BYTES / 2 + 1);
    free(ids);
    free(s);
    tokenizer_free(t);
}

/* ----------------------------------------------------------------- bad vocabularies ------- */

static void vocabularies_of_unknown_kind_are_refused(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    v.model = NULL;
    refused(&v, "no tokenizer.ggml.model");
    v.model = "rwkv";
    refused(&v, "\"rwkv\"; gpt2");
    v.model = "gpt2";
    v.pre = "no-such";
    refused(&v, "\"no-such\"");
    v.pre = NULL; /* default */
    tokenizer_free(made(&v));
}

static void vocabularies_without_their_arrays_are_refused(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    v.n = 0;
    refused(&v, "tokenizer.ggml.tokens is missing");
    bpe_vocab(&v);
    v.n_types--;
    refused(&v, "tokenizer.ggml.token_type has 262 entries for 263 tokens");
    bpe_vocab(&v);
    v.types[7] = 7;
    refused(&v, "token_type[7] is 7");
    bpe_vocab(&v);
    v.n_merges = 0;
    refused(&v, "tokenizer.ggml.merges is missing");
    spm_vocab(&v);
    v.n_scores--;
    refused(&v, "tokenizer.ggml.scores has");
    v.n_scores = 0;
    refused(&v, "tokenizer.ggml.scores is missing");
}

static void merges_without_two_sides_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"ab", "", "a", " ", " b", "a ", "ab "};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct vocab v;
        bpe_vocab(&v);
        v.merges[2] = bad[i];
        refused(&v, "tokenizer.ggml.merges[2]");
    }
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    v.bos = BPE_TOKENS;
    refused(&v, "bos_token_id is 263; the vocabulary has 263 tokens");
    v.bos = -1; /* none */
    v.add_bos = 1;
    struct tokenizer *t = made(&v);
    assert_int_equal(tokenizer_bos(t), -1);
    GIVES(t, "a", TOKENIZE_ADD_SPECIAL, 'a');
    tokenizer_free(t);
    v.eos = 1 << 30;
    refused(&v, "eos_token_id");
}

static void byte_tokens_of_another_form_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"<0x-1>", "<0x0>",  "<0x000>", "<0xG0>", "<0x 1>",
                                      "0x0A",   "<0X0A>", "<0x0A]",  ""};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct vocab v;
        spm_vocab(&v);
        v.texts[S_BYTES + 3] = bad[i];
        refused(&v, "token 6 is a byte");
    }
}

static void arrays_of_the_wrong_type_are_refused(void **state)
{
    (void)state;
    static const char *const arrays[] = {"tokenizer.ggml.token_type", "tokenizer.ggml.merges",
                                         "tokenizer.ggml.tokens"};
    for (size_t bad = 0; bad < ARRAY_LEN(arrays); bad++) {
        struct gguf_writer *w = gguf_writer_create();
        const char *const texts[2] = {"a", "b"};
        const int32_t numbers[2] = {1, 1};
        gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
        for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
            if ((i == bad) == (i == 0))
                write_strings(w, arrays[i], texts, 2);
            else
                gguf_writer_array(w, arrays[i], GGUF_I32, numbers, 2);
        }
        refused_file(saved(w), arrays[bad]);
    }
    struct gguf_writer *w = gguf_writer_create();
    const char *const texts[2] = {"a", "b"};
    const float f = 1;
    gguf_writer_string(w, "tokenizer.ggml.model", "gpt2");
    write_strings(w, "tokenizer.ggml.tokens", texts, 2);
    gguf_writer_scalar(w, "tokenizer.ggml.bos_token_id", GGUF_F32, &f);
    refused_file(saved(w), "key tokenizer.ggml.bos_token_id is a FLOAT32, wanted an integer");
}

static void duplicate_and_empty_tokens_are_tolerated(void **state)
{
    (void)state;
    struct vocab v;
    bpe_vocab(&v);
    int twin = add(&v, "ab", TOKEN_NORMAL, 0), empty = add(&v, "", TOKEN_NORMAL, 0);
    add(&v, "", TOKEN_CONTROL, 0);
    int odd = add(&v, "\xe5\x8c\x97\xff", TOKEN_NORMAL, 0); /* not of the alphabet */
    struct tokenizer *t = made(&v);
    GIVES(t, "ab", 0, AB); /* the first one is given */
    const int32_t ids[] = {twin, empty, odd};
    decodes_to(t, ids, 3, false, "ab\xe5\x8c\x97\xff");
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_merge_by_rank_then_from_the_left),
        cmocka_unit_test(a_piece_that_is_a_token_is_taken_whole_where_the_model_says_so),
        cmocka_unit_test(special_tokens_are_found_first_and_the_longest_wins),
        cmocka_unit_test(invalid_bytes_are_pieces_of_their_own),
        cmocka_unit_test(a_byte_without_a_token_is_replaced_or_refused),
        cmocka_unit_test(long_words_spend_their_budget),
        cmocka_unit_test(long_runs_do_not_hang),
        cmocka_unit_test(a_text_to_be_continued_has_no_end),
        cmocka_unit_test(the_highest_score_merges_first),
        cmocka_unit_test(what_no_token_covers_is_written_as_bytes),
        cmocka_unit_test(without_byte_tokens_the_unknown_token_stands),
        cmocka_unit_test(phi3_takes_the_space_after_its_special_tokens),
        cmocka_unit_test(a_long_word_does_not_hang_sentencepiece),
        cmocka_unit_test(vocabularies_of_unknown_kind_are_refused),
        cmocka_unit_test(vocabularies_without_their_arrays_are_refused),
        cmocka_unit_test(merges_without_two_sides_are_refused),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(byte_tokens_of_another_form_are_refused),
        cmocka_unit_test(arrays_of_the_wrong_type_are_refused),
        cmocka_unit_test(duplicate_and_empty_tokens_are_tolerated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
