/*
 * pretokenize_rows.c - the regular expressions of the model families, as a table.
 *
 * Each row is what the model's maker publishes in its tokenizer.json, under the names that GGUF
 * files give it. Two things are written differently without changing what matches:
 * - \s is written out: PCRE2 counts U+180E (Mongolian vowel separator) as a space, Unicode and the
 *   models do not.
 * - No expression looks from every character of a run to the end of the run, and none repeats a
 *   group that has to be remembered for backtracking: a megabyte of one character takes a moment.
 *   Where a published expression does, a comment at the row says what replaces it.
 *
 * Where llama.cpp simplifies an expression because its engine lacks letter case or lookbehind, the
 * maker's is used: the rows of gpt-4o, tekken, kimi-k2, tiny_aya and youtu differ from llama.cpp in
 * rare texts.
 */
#include "text/tokens_internal.h"

/* White_Space of Unicode, to be put between brackets: [SPACE] is \s, [^SPACE] is \S. */
#define SPACE                                                                                      \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define SPACE_IN_LINE                                                                              \
    "\\t\\x{b}\\x{c} "                                                                             \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"               \
    "\\x{3000}"
#define TRAILING_SPACE "[" SPACE "]+(?![^" SPACE "])"
#define BLOCK(n)       "[" SPACE "]{" n "}(?![^" SPACE "])|"
#define LINE_ENDS      "[" SPACE "]*[\\r\\n]+"
#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" TRAILING_SPACE
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ANY_SPACE   LINE_ENDS "|" TRAILING_SPACE "|[" SPACE "]+"
/* GPT-4's expression, in which models differ by what a word is made of and how digits group. */
#define GPT4_WORDS(letter, digits)                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits "| ?[^" SPACE letter                             \
    "\\p{N}]+[\\r\\n]*|" ANY_SPACE
#define GPT4(letter, digits) CONTRACTION "|" GPT4_WORDS(letter, digits)

/* GPT-4o's: words change from upper to lower case once. Letters without case and marks are both. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(upper, lower, suffix)                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" upper "*" lower "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" upper "+" lower  \
    "*" suffix
#define CASED(suffix, digits)                                                                      \
    CASED_WORDS(UPPER, LOWER, suffix)                                                              \
    "|" digits "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|" ANY_SPACE
#define GPT4O CASED(CONTRACTION "?", "\\p{N}{1,3}")
/* The same two without Han. A class has no intersection: these are what remains when all other
 * categories and Han are excluded. */
#define UPPER_NO_HAN "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER_NO_HAN "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"

/* Runs of digits cut into threes from the right. The published form, \d{1,3}(?=(?:\d{3})*\b),
 * looks to the end of the run for each group. Looking once is enough: behind a first group that
 * leaves a multiple of three, every group has three digits. `end`: what may not follow the run. */
#define DIGITS_FROM_RIGHT(digit, end)                                                              \
    "(?<=" digit ")\\G" digit "{3}|(?<!" digit ")" digit "{1,3}(?=(?:" digit "{3})*+(?!" end "))"
/* What \b of Oniguruma, the engine that tokenizer.json files are written for, takes for a letter of
 * a word: \w, and the superscripts and fractions of Latin-1. */
#define WORD                                                                                       \
    "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"    \
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]"

/* Punctuation in front of Latin letters, words, punctuation: DeepSeek V3. */
#define DEEPSEEK3_WORDS                                                                            \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define CJK_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
/* Words end at punctuation of several scripts; the class holds "(", "|" and ")" too. */
#define BLOOM_WORDS                                                                                \
    " ?[^(" SPACE "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

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

const struct pretokenizer_row pretokenizer_rows[] = {
    {{"default"}, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, {0}},
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "mellum", "trillion", "granite-docling",
      "exaone4", "a.x-4.0", "modern-bert", "roberta-bpe", "jina-es", "jina-de", "jina-v1-en",
      "jina-v2-es", "jina-v2-de", "jina-v2-code"},
     {GPT2},
     {0}},
    {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
      "jina-v5-nano"},
     {GPT4("\\p{L}", "\\p{N}{1,3}")},
     {.ignore_merges = true, .add_bos = true}},
    {{"glm4", "glm5"}, {GPT4("\\p{L}", "\\p{N}{1,3}")}, {.ignore_merges = true}},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {GPT4("\\p{L}", "\\p{N}{1,3}")}, {0}},
    /* bailingmoe publishes '(?i:[sdmt]|ll|ve|re) and \s*[\r\n], which match the same. */
    {{"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "kormo",
      "grok-2", "f2llmv2", "bailingmoe", "bailingmoe2", "llada-moe"},
     {GPT4("\\p{L}", "\\p{N}")},
     {0}},
    {{"qwen35"}, {GPT4("\\p{L}\\p{M}", "\\p{N}")}, {0}},
    /* Turkish suffixes behind an apostrophe are no contractions. */
    {{"ufakzeka"}, {GPT4_WORDS("\\p{L}", "\\p{N}")}, {0}},
    {{"laguna"}, {"[^\\n]+|\\n+", GPT4("\\p{L}", "\\p{N}")}, {0}},
    {{"minicpm5"}, {"\\p{N}{1,3}", GPT4("\\p{L}", "\\p{N}+")}, {.ignore_merges = true}},
    {{"seed-coder"},
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACE
                  "\\p{L}\\p{N}\\r\\n]+|" ANY_SPACE},
     {0}},
    /* Words and the single spaces between them are one piece. Published as
     * (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+, which is this with two ways to read each word. */
    {{"exaone-moe"},
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}\\p{M}*+(?: ?+\\p{L}\\p{M}*+)*+|\\p{N}| ?[^" SPACE
                  "\\p{L}\\p{N}]+[\\r\\n/]?|" ANY_SPACE},
     {0}},
    /* Spaces in blocks of powers of two. Line ends are looked for only where a run of spaces or
     * line ends begins, since a block of spaces was taken because none followed. */
    {{"jais-2"},
     {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" SPACE
                  "\\p{L}\\p{N}]+[\\r\\n]*|(?<![" SPACE_IN_LINE "])" LINE_ENDS "|(?:" BLOCK("512")
                      BLOCK("256") BLOCK("128") BLOCK("64") BLOCK("32") BLOCK("16") BLOCK("8")
                          BLOCK("4") BLOCK("1,2") "[" SPACE "])"},
     {0}},
    {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {GPT4O}, {0}},
    {{"granite-embed-multi-97m"}, {GPT4O}, {.ignore_merges = true}},
    {{"tekken"}, {CASED("", "\\p{N}")}, {.ignore_merges = true, .add_bos = true}},
    {{"tiny_aya", "cohere2moe"}, {DIGITS_FROM_RIGHT("\\p{Nd}", WORD), GPT4O}, {0}},
    {{"youtu"},
     {"[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}"
      "\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+|"
      "[\\x{3105}-\\x{312f}]+|" CJK_KANA,
      CASED(CONTRACTION "?", "\\p{N}")},
     {.ignore_merges = true}},
    {{"kimi-k2"},
     {"\\p{sc:Han}+|" CASED_WORDS(UPPER_NO_HAN, LOWER_NO_HAN,
                                  CONTRACTION "?") "|\\p{N}{1,3}| ?[^" SPACE
                                                   "\\p{L}\\p{N}]+[\\r\\n]*|" ANY_SPACE},
     {0}},
    /* Cuts of no width, (?=(\d{3})+(?!\d)), inside runs of numbers; words are not cut apart. */
    {{"superbpe"},
     {"\\p{N}++|\\P{N}++", "(?<=\\p{Nd})\\G\\p{Nd}{3}|(?<!\\p{Nd})\\p{Nd}{0,2}"
                           "(?=(?:\\p{Nd}{3})++(?!\\p{Nd}))\\K\\p{Nd}{3}"},
     {.cuts_before = true}},
    {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {"\\p{N}", GPT2},
     {0}},
    {{"falcon"}, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, {0}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {BLOOM_WORDS}, {0}},
    {{"viking"}, {BLOOM_WORDS, "\\p{N}"}, {0}},
    {{"chameleon"},
     {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", "[\\t\\n]|    |  ", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", GPT2},
     {.add_bos = true}},
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
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3_WORDS "[\\r\\n]*|" ANY_SPACE},
     {0}},
    {{"spark2_5"},
     {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3_WORDS "|[\\r\\n]|" TRAILING_SPACE "|[" SPACE "]+",
      "\\p{N}"},
     {0}},
    /* Digits by threes from the right, then runs of the scripts without spaces between words. */
    {{"afmoe"},
     {DIGITS_FROM_RIGHT("\\p{N}", "\\p{N}"),
      "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{30ff}\\x{ff65}-\\x{"
      "ff9f}"
      "\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{eff}\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{"
      "aa7f}"
      "\\x{a9e0}-\\x{a9ff}\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+",
      DEEPSEEK3_WORDS "[\\r\\n]*|" ANY_SPACE},
     {0}},
};
const size_t n_pretokenizer_rows = ARRAY_LEN(pretokenizer_rows);
