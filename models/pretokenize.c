/*
 * pretokenize.c - cuts a text into the pieces within which byte-level BPE may merge.
 *
 * Each model family has its own regular expressions, published in its tokenizer.json and named in
 * the GGUF by tokenizer.ggml.pre; they are the table below, and PCRE2 runs them. A row has one or
 * more expressions, applied in turn: each splits every piece that the previous ones left, into
 * matches and the text between matches. An expression sees a piece as if it were the whole text.
 *
 * \s is written out: PCRE2 counts U+180E (Mongolian vowel separator) as a space, Unicode and the
 * models do not.
 */
#include "models/tokenizer_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* White_Space of Unicode, to be put between brackets: [SPACE] is \s, [^SPACE] is \S. */
#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])"
#define LINE_ENDS      "[" SPACE "]*[\\r\\n]+"
#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" TRAILING_SPACE
/* GPT-4's expression, in which models differ by what a word is made of and how digits group. */
#define GPT4(letter, digits)                                                                       \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits                     \
    "| ?[^" SPACE letter "\\p{N}]+[\\r\\n]*|" LINE_ENDS "|" TRAILING_SPACE "|[" SPACE "]+"

/* The letters with case that DeepSeek LLM lists one by one. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"    \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}"                 \
    "\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}"                 \
    "\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}"         \
    "\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"        \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"                 \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}"         \
    "\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}"         \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}"                   \
    "\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"                  \
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                 \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                 \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_CJK "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"

enum { MAX_NAMES = 12, MAX_EXPRESSIONS = 6 };

struct pretokenizer_row {
    const char *names[MAX_NAMES + 1]; /* values of tokenizer.ggml.pre */
    const char *expressions[MAX_EXPRESSIONS + 1];
    struct pretokenizer_traits traits;
};

static const struct pretokenizer_row rows[] = {
    {{"default"}, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, {0}},
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "trillion", "granite-docling",
      "exaone4"},
     {GPT2},
     {0}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     {GPT4("\\p{L}", "\\p{N}{1,3}")},
     {.ignore_merges = true, .add_bos = true}},
    {{"dbrx", "smaug-bpe"}, {GPT4("\\p{L}", "\\p{N}{1,3}")}, {0}},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo"},
     {GPT4("\\p{L}", "\\p{N}")},
     {0}},
    {{"qwen35"}, {GPT4("\\p{L}\\p{M}", "\\p{N}")}, {0}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {"\\p{N}", GPT2},
     {0}},
    {{"falcon"}, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, {0}},
    /* Of the published \s+$ only the begin of a run of spaces can match; saying so keeps a long
     * run from being tried at each of its characters. */
    {{"deepseek-llm"},
     {"[\\r\\n]", "[" SPACE "]?[" DEEPSEEK_LETTERS "]+",
      "[" SPACE
      "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
      "(?<![" SPACE "])[" SPACE "]++$", DEEPSEEK_CJK, "\\p{N}+"},
     {0}},
    {{"deepseek-coder"},
     {"[\\r\\n]", "[" SPACE "]?\\p{L}+", "[" SPACE "]?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"},
     {0}},
    {{"deepseek-v3"},
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINE_ENDS "|" TRAILING_SPACE "|[" SPACE "]+"},
     {0}},
};

struct pretokenizer {
    const char *name;
    pcre2_code *code[MAX_EXPRESSIONS];
    int n;
};

static const struct pretokenizer_row *row_find(struct gguf_string name, const char **spelt)
{
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (const char *const *n = rows[i].names; *n; n++) {
            if (strlen(*n) == name.len && memcmp(*n, name.data, name.len) == 0) {
                *spelt = *n;
                return &rows[i];
            }
        }
    }
    return NULL;
}

static oato_status fail_unknown(const struct gguf *g, struct gguf_string name,
                                struct oato_error *err)
{
    struct text known;
    text_init(&known);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        text_printf(&known, "%s%s", i ? ", " : "", rows[i].names[0]);
    oato_fail(err, OATO_EFILE,
              "%s: tokenizer.ggml.pre is \"%.*s\", an unknown pre-tokeniser; known: "
              "%s and their aliases",
              gguf_path(g), name.len < 40 ? (int)name.len : 40, name.data,
              known.data ? known.data : "");
    text_free(&known);
    return err->status;
}

oato_status pretokenizer_create(const struct gguf *g, struct pretokenizer **out,
                                struct pretokenizer_traits *traits, struct oato_error *err)
{
    struct gguf_string name;
    if (!gguf_get_string(g, "tokenizer.ggml.pre", &name))
        name = (struct gguf_string){"default", 7};
    const char *spelt;
    const struct pretokenizer_row *row = row_find(name, &spelt);
    if (!row)
        return fail_unknown(g, name, err);

    struct pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return oato_fail_memory(err, sizeof *p, "the pre-tokeniser");
    p->name = spelt;
    for (; p->n < MAX_EXPRESSIONS && row->expressions[p->n]; p->n++) {
        int code;
        PCRE2_SIZE where;
        pcre2_code *c =
            pcre2_compile((PCRE2_SPTR)row->expressions[p->n], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &where, NULL);
        if (!c) {
            oato_fail(err, OATO_EFIT,
                      "PCRE2 rejects expression %d of pre-tokeniser %s at offset %zu (error %d); "
                      "use a PCRE2 built with Unicode support",
                      p->n + 1, spelt, (size_t)where, code);
            pretokenizer_free(p);
            return err->status;
        }
        /* Where compiling to machine code is not possible PCRE2 interprets. */
        (void)pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
        p->code[p->n] = c;
    }
    *traits = row->traits;
    *out = p;
    return OATO_OK;
}

bool pretokenizer_adds_bos(const struct gguf *g)
{
    struct gguf_string name = {"default", 7};
    const char *spelt;
    (void)gguf_get_string(g, "tokenizer.ggml.pre", &name);
    const struct pretokenizer_row *row = row_find(name, &spelt);
    return row && row->traits.add_bos;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

static void span_push(struct span_list *l, size_t end)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 256;
        uint32_t *ends = realloc(l->ends, cap * sizeof *ends);
        if (!ends) {
            l->failed = true;
            return;
        }
        l->ends = ends;
        l->cap = cap;
    }
    l->ends[l->n++] = (uint32_t)end;
}

/* Splits the piece [begin, end) of text. Returns a negative PCRE2 code on failure. */
static int split_piece(const pcre2_code *code, pcre2_match_data *match, pcre2_match_context *limits,
                       const char *text, size_t begin, size_t end, struct span_list *out)
{
    PCRE2_SPTR piece = (PCRE2_SPTR)text + begin;
    size_t n = end - begin, done = 0;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(match);
    while (done < n) {
        int rc =
            pcre2_match(code, piece, n, done, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, limits);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return rc;
        if (at[0] > done)
            span_push(out, begin + at[0]);
        span_push(out, begin + at[1]);
        done = at[1];
    }
    if (done < n)
        span_push(out, end);
    return 0;
}

oato_status pretokenize(const struct pretokenizer *p, struct pretokenize_work *w, const char *text,
                        size_t n, struct oato_error *err)
{
    int rc = 0;
    w->spans.n = 0;
    span_push(&w->spans, n);
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    if (!w->match)
        w->match = pcre2_match_data_create(1, NULL);
    if (!limits || !w->match)
        goto out;
    /* The expressions need a few steps a character; the limit is there so that what should not
     * happen ends. */
    pcre2_set_match_limit(limits, 10000000 + (uint32_t)n);
    for (int i = 0; i < p->n && rc == 0; i++) {
        size_t begin = 0;
        w->spare.n = 0;
        for (size_t k = 0; k < w->spans.n && rc == 0; k++) {
            rc =
                split_piece(p->code[i], w->match, limits, text, begin, w->spans.ends[k], &w->spare);
            begin = w->spans.ends[k];
        }
        struct span_list swap = w->spans;
        w->spans = w->spare;
        w->spare = swap;
    }
out:
    if (!limits || !w->match || w->spans.failed || w->spare.failed)
        oato_fail_memory(err, n, "the pieces of the text");
    else if (rc < 0)
        oato_fail(err, OATO_EUSAGE,
                  "a text of %zu bytes cannot be split by pre-tokeniser %s: PCRE2 error %d (match "
                  "or memory limit exceeded); pass the text in smaller parts",
                  n, p->name, rc);
    bool ok = limits && w->match && !w->spans.failed && !w->spare.failed && rc == 0;
    pcre2_match_context_free(limits);
    return ok ? OATO_OK : err->status;
}

void pretokenize_work_free(struct pretokenize_work *w)
{
    free(w->spans.ends);
    free(w->spare.ends);
    pcre2_match_data_free(w->match);
    *w = (struct pretokenize_work){0};
}
