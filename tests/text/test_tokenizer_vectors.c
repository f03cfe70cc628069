/*
 * test_tokenizer_vectors.c - real vocabularies: ids equal those of the peer, and text comes back.
 *
 * The vocabularies and vectors are llama.cpp's (models/ggml-vocab-NAME.gguf, .inp, .out: 45 texts
 * or more, no special tokens added or parsed); OATO_VOCAB_DIR says where, else the peer in
 * OATO_CACHE. They are skipped when missing unless OATO_REQUIRE_PEER=1. The ids of SmolLM2 were
 * recorded from llama-tokenize.
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
#include <utf8proc.h>

#include "text/tokens_internal.h"

enum { ROUND_TRIPS = 10000, CASES = 45, SPACE_MARK = 0x2581 };
static const char separator[] = "\n__ggml_vocab_test__\n";

static struct tokenizer *load(const char *path)
{
    struct oato_error err = {0};
    struct gguf *g;
    struct tokenizer *t = NULL;
    if (gguf_open(path, &g, &err) != OATO_OK)
        fail_msg("%s", err.text);
    uint64_t begin = now_ns();
    if (tokenizer_create(g, &t, &err) != OATO_OK)
        fail_msg("%s", err.text);
    print_message("%s: %d tokens in %.1f ms\n", path, tokenizer_size(t),
                  (double)(now_ns() - begin) / 1e6);
    gguf_close(g);
    return t;
}

static void cache_path(char *out, size_t n, const char *below)
{
    const char *cache = getenv("OATO_CACHE"), *home = getenv("HOME");
    if (cache && *cache)
        snprintf(out, n, "%s/%s", cache, below);
    else
        snprintf(out, n, "%s/.cache/oato/%s", home ? home : "", below);
}

static bool required(const char *variable)
{
    const char *v = getenv(variable);
    return v && strcmp(v, "1") == 0;
}

/* The tokenizer of a vocabulary of the peer; skips the test when it is not there. */
static struct tokenizer *load_vocab(const char *name, char *path, size_t n)
{
    const char *dir = getenv("OATO_VOCAB_DIR");
    char below[512];
    if (dir && *dir)
        snprintf(below, sizeof below, "%s", dir);
    else
        cache_path(below, sizeof below, "peers/llama.cpp/models");
    snprintf(path, n, "%s/ggml-vocab-%s.gguf", below, name);
    if (access(path, R_OK) != 0) {
        if (required("OATO_REQUIRE_PEER"))
            fail_msg("%s is missing (OATO_REQUIRE_PEER=1)", path);
        print_message("%s is missing: skipped\n", path);
        skip();
    }
    return load(path);
}

static char *read_file(const char *path, size_t *n)
{
    struct oato_error err = {0};
    struct mapped_file f;
    if (file_map(path, &f, &err) != OATO_OK)
        fail_msg("%s", err.text);
    char *copy = malloc(f.bytes + 1);
    assert_non_null(copy);
    if (f.bytes)
        memcpy(copy, f.data, f.bytes);
    copy[f.bytes] = 0;
    *n = f.bytes;
    file_unmap(&f);
    return copy;
}

static int32_t *encode(const struct tokenizer *t, const char *s, size_t n, int flags, size_t *count)
{
    struct oato_error err = {0};
    int32_t *ids = NULL;
    if (tokenizer_encode(t, s, n, flags, &ids, count, &err) != OATO_OK)
        fail_msg("%s", err.text);
    return ids;
}

static void vectors_match(const char *name)
{
    char path[600], file[640];
    struct tokenizer *t = load_vocab(name, path, sizeof path);
    size_t n_in, n_out;
    snprintf(file, sizeof file, "%s.inp", path);
    char *in = read_file(file, &n_in);
    snprintf(file, sizeof file, "%s.out", path);
    char *out = read_file(file, &n_out), *want = out;

    int cases = 0, wrong = 0;
    const char *begin = in, *end;
    for (; (end = memmem(begin, n_in - (size_t)(begin - in), separator, sizeof separator - 1));
         begin = end + sizeof separator - 1, cases++) {
        size_t count;
        int32_t *ids = encode(t, begin, (size_t)(end - begin), 0, &count);
        bool same = true;
        char *line_end = strchr(want, '\n');
        assert_non_null(line_end);
        for (size_t i = 0; i < count; i++) {
            char *after;
            long id = strtol(want, &after, 10);
            same = same && id == ids[i] && after > want && after <= line_end;
            want = after;
        }
        for (; want < line_end; want++)
            same = same && *want == ' ';
        want = line_end + 1;
        if (!same) {
            wrong++;
            print_message("%s case %d differs: \"%.*s\"\n ours:", name, cases, (int)(end - begin),
                          begin);
            for (size_t i = 0; i < count; i++)
                print_message(" %d", ids[i]);
            print_message("\n");
        }
        struct text back;
        text_init(&back);
        tokenizer_decode(t, ids, count, true, &back);
        if (t->kind != TOKENIZER_WORDPIECE) { /* which has no way back */
            assert_int_equal(back.len, end - begin);
            if (back.len)
                assert_memory_equal(back.data, begin, back.len);
        }
        text_free(&back);
        free(ids);
    }
    print_message("%s: %d of %d cases equal\n", name, cases - wrong, cases);
    assert_true(cases >= CASES);
    assert_int_equal(wrong, 0);
    free(in);
    free(out);
    tokenizer_free(t);
}

/* xorshift64* */
static uint64_t rng_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t new_seed(void)
{
    const char *given = getenv("OATO_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;
    print_message("OATO_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed ? seed : 1;
}

static uint32_t random_char(uint64_t *rng)
{
    static const uint32_t ranges[][2] = {
        {' ', '~'},       {' ', '~'},          {'a', 'z'},         {' ', ' '},
        {0, 0x7f},        {0x80, 0x24f},       {0x370, 0x52f},     {0x590, 0x6ff},
        {0x900, 0x97f},   {0x1800, 0x18af},    {0x2000, 0x206f},   {0x3000, 0x30ff},
        {0x4e00, 0x9fff}, {0xac00, 0xd7a3},    {0x1f300, 0x1faff}, {0x80, 0xd7ff},
        {0xe000, 0xffff}, {0x10000, 0x10ffff},
    };
    uint64_t r = rng_next(rng) >> 8;
    const uint32_t *range = ranges[r % ARRAY_LEN(ranges)];
    return range[0] + (uint32_t)((r >> 16) % (range[1] - range[0] + 1));
}

/* Characters whose bytes the vocabulary lacks cannot come back and are left out. */
static size_t random_text(const struct tokenizer *t, uint64_t *rng, char *out, size_t most)
{
    size_t n = 0, chars = rng_next(rng) % most;
    for (size_t i = 0; i < chars; i++) {
        uint32_t c = random_char(rng);
        bool there = t->kind == TOKENIZER_BPE || c != SPACE_MARK;
        int len = (int)utf8proc_encode_char((utf8proc_int32_t)c, (uint8_t *)out + n);
        for (int k = 0; k < len; k++)
            there = there && t->byte_id[(uint8_t)out[n + (size_t)k]] >= 0;
        if (there)
            n += (size_t)len;
    }
    return n;
}

static void comes_back(const struct tokenizer *t, const char *s, size_t n)
{
    size_t count;
    int32_t *ids = encode(t, s, n, 0, &count);
    struct text back;
    text_init(&back);
    tokenizer_decode(t, ids, count, true, &back);
    assert_false(back.failed);
    if (back.len != n || (n && memcmp(back.data, s, n) != 0)) {
        for (size_t i = 0; i < n; i++)
            print_message("%02x ", (uint8_t)s[i]);
        fail_msg("%zu bytes came back as %zu, or different", n, back.len);
    }
    text_free(&back);
    free(ids);
}

static void random_texts_come_back(const char *name)
{
    char path[600], s[256 * 4];
    struct tokenizer *t = load_vocab(name, path, sizeof path);
    uint64_t rng = new_seed();
    for (int i = 0; i < ROUND_TRIPS; i++)
        comes_back(t, s, random_text(t, &rng, s, i % 100 == 0 ? 256 : 32));
    tokenizer_free(t);
}

/* Random bytes, and characters cut off or with a byte replaced. */
static void invalid_utf8_comes_back(const char *name)
{
    char path[600], s[64 * 4];
    struct tokenizer *t = load_vocab(name, path, sizeof path);
    uint64_t rng = new_seed();
    for (int i = 0; i < ROUND_TRIPS / 2; i++) {
        size_t n = random_text(t, &rng, s, 64);
        for (size_t k = 0; i % 2 && k < n; k++)
            s[k] = (char)(rng_next(&rng) >> 32);
        for (int k = 0; n > 0 && k < 3; k++)
            s[rng_next(&rng) % n] = (char)(rng_next(&rng) >> 32);
        bool holds_mark = t->kind != TOKENIZER_BPE && memmem(s, n, "\xe2\x96\x81", 3);
        if (!holds_mark)
            comes_back(t, s, n);
    }
    for (int b = 0; b < 256; b++) {
        s[0] = (char)b;
        comes_back(t, s, 1);
    }
    tokenizer_free(t);
}

#define PER_VOCAB(test, id, name)                                                                  \
    static void test##_##id(void **state)                                                          \
    {                                                                                              \
        (void)state;                                                                               \
        test(name);                                                                                \
    }

PER_VOCAB(vectors_match, gpt2, "gpt-2")
PER_VOCAB(vectors_match, llama_bpe, "llama-bpe")
PER_VOCAB(vectors_match, llama_spm, "llama-spm")
PER_VOCAB(vectors_match, qwen2, "qwen2")
PER_VOCAB(vectors_match, falcon, "falcon")
PER_VOCAB(vectors_match, deepseek_coder, "deepseek-coder")
PER_VOCAB(vectors_match, deepseek_llm, "deepseek-llm")
PER_VOCAB(vectors_match, starcoder, "starcoder")
PER_VOCAB(vectors_match, refact, "refact")
PER_VOCAB(vectors_match, qwen35, "qwen35")
PER_VOCAB(vectors_match, phi3, "phi-3")
PER_VOCAB(vectors_match, command_r, "command-r")
PER_VOCAB(vectors_match, mpt, "mpt")
PER_VOCAB(vectors_match, gemma4, "gemma-4")
PER_VOCAB(vectors_match, bert_bge, "bert-bge")
PER_VOCAB(random_texts_come_back, gpt2, "gpt-2")
PER_VOCAB(random_texts_come_back, llama_bpe, "llama-bpe")
PER_VOCAB(random_texts_come_back, llama_spm, "llama-spm")
PER_VOCAB(random_texts_come_back, qwen2, "qwen2")
PER_VOCAB(random_texts_come_back, falcon, "falcon")
PER_VOCAB(random_texts_come_back, deepseek_coder, "deepseek-coder")
PER_VOCAB(random_texts_come_back, deepseek_llm, "deepseek-llm")
PER_VOCAB(random_texts_come_back, gemma4, "gemma-4")
PER_VOCAB(invalid_utf8_comes_back, gpt2, "gpt-2")
PER_VOCAB(invalid_utf8_comes_back, llama_bpe, "llama-bpe")
PER_VOCAB(invalid_utf8_comes_back, llama_spm, "llama-spm")
PER_VOCAB(invalid_utf8_comes_back, qwen2, "qwen2")
PER_VOCAB(invalid_utf8_comes_back, gemma4, "gemma-4")

/* A vocabulary without some bytes still encodes everything; what it lacks shows as U+FFFD. */
static void bytes_without_a_token_become_the_replacement_character(void **state)
{
    (void)state;
    char path[600];
    struct tokenizer *t = load_vocab("falcon", path, sizeof path);
    size_t count;
    int32_t *ids = encode(t,
                          "a\xff"
                          "b",
                          3, 0, &count);
    struct text back;
    text_init(&back);
    tokenizer_decode(t, ids, count, true, &back);
    assert_string_equal(back.data, "a\xef\xbf\xbd"
                                   "b");
    text_free(&back);
    free(ids);
    tokenizer_free(t);
}

static struct tokenizer *load_smollm(void)
{
    char path[600];
    cache_path(path, sizeof path, "models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (access(path, R_OK) != 0) {
        if (required("OATO_REQUIRE_MODEL"))
            fail_msg("%s is missing (OATO_REQUIRE_MODEL=1)", path);
        print_message("%s is missing: skipped\n", path);
        skip();
    }
    return load(path);
}

static void smollm_ids_equal_those_of_llama_tokenize(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int flags;
        int32_t ids[32];
    } cases[] = {
        {"Hello world", 0, {19556, 905, -1}},
        {"The quick brown fox jumps over 13 lazy dogs in 2024.",
         0,
         {504, 2365, 6354, 16438, 27003, 690, 216, 33, 35, 23790, 5046, 281, 216, 34, 32, 34, 36,
          30, -1}},
        {"  def f(x):\n\treturn x**2  # größe 北京 🚀",
         TOKENIZE_ADD_SPECIAL,
         {216,  753,  275,   24, 104,   727, 198, 197,   5406, 1792,  828, 34,  216, 907,
          1665, 7466, 34878, 85, 13223, 230, 241, 16736, 122,  15107, 244, 218, -1}},
        {"<|im_start|>user\nHi<|im_end|>", TOKENIZE_PARSE_SPECIAL, {1, 4093, 198, 26843, 2, -1}},
        {"<|im_start|>user\nHi<|im_end|>",
         0,
         {44, 108, 306, 79, 3738, 108, 46, 4093, 198, 26843, 44, 108, 306, 79, 486, 108, 46, -1}},
    };
    struct tokenizer *t = load_smollm();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t count, want = 0;
        int32_t *ids = encode(t, cases[i].text, strlen(cases[i].text), cases[i].flags, &count);
        while (cases[i].ids[want] >= 0)
            want++;
        assert_int_equal(count, want);
        assert_memory_equal(ids, cases[i].ids, want * sizeof *ids);
        free(ids);
    }
    assert_int_equal(tokenizer_size(t), 49152);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_true(tokenizer_is_end(t, 0)); /* <|endoftext|> */
    assert_false(tokenizer_is_end(t, 1));
    assert_true(tokenizer_is_end(t, 2)); /* <|im_end|> */
    tokenizer_free(t);
}

static void smollm_encodes_the_gpl_to_7639_tokens(void **state)
{
    (void)state;
    static const char gpl[] = "/usr/share/common-licenses/GPL-3";
    if (access(gpl, R_OK) != 0)
        skip();
    struct tokenizer *t = load_smollm();
    size_t n, count;
    char *s = read_file(gpl, &n);
    uint64_t begin = now_ns();
    int32_t *ids = encode(t, s, n, 0, &count);
    print_message("%zu bytes to %zu tokens in %.1f ms\n", n, count,
                  (double)(now_ns() - begin) / 1e6);
    assert_int_equal(count, 7639);
    free(ids);
    free(s);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_match_gpt2),
        cmocka_unit_test(vectors_match_llama_bpe),
        cmocka_unit_test(vectors_match_llama_spm),
        cmocka_unit_test(vectors_match_qwen2),
        cmocka_unit_test(vectors_match_falcon),
        cmocka_unit_test(vectors_match_deepseek_coder),
        cmocka_unit_test(vectors_match_deepseek_llm),
        cmocka_unit_test(vectors_match_starcoder),
        cmocka_unit_test(vectors_match_refact),
        cmocka_unit_test(vectors_match_qwen35),
        cmocka_unit_test(vectors_match_phi3),
        cmocka_unit_test(vectors_match_command_r),
        cmocka_unit_test(vectors_match_mpt),
        cmocka_unit_test(vectors_match_gemma4),
        cmocka_unit_test(vectors_match_bert_bge),
        cmocka_unit_test(random_texts_come_back_gpt2),
        cmocka_unit_test(random_texts_come_back_llama_bpe),
        cmocka_unit_test(random_texts_come_back_llama_spm),
        cmocka_unit_test(random_texts_come_back_qwen2),
        cmocka_unit_test(random_texts_come_back_falcon),
        cmocka_unit_test(random_texts_come_back_deepseek_coder),
        cmocka_unit_test(random_texts_come_back_deepseek_llm),
        cmocka_unit_test(random_texts_come_back_gemma4),
        cmocka_unit_test(invalid_utf8_comes_back_gpt2),
        cmocka_unit_test(invalid_utf8_comes_back_llama_bpe),
        cmocka_unit_test(invalid_utf8_comes_back_llama_spm),
        cmocka_unit_test(invalid_utf8_comes_back_qwen2),
        cmocka_unit_test(invalid_utf8_comes_back_gemma4),
        cmocka_unit_test(bytes_without_a_token_become_the_replacement_character),
        cmocka_unit_test(smollm_ids_equal_those_of_llama_tokenize),
        cmocka_unit_test(smollm_encodes_the_gpl_to_7639_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
