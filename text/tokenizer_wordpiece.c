/*
 * tokenizer_wordpiece.c - WordPiece as of BERT (tokenizer.ggml.model = bert).
 *
 * The text is cleaned: controls vanish; where the model is uncased, letters lose their accents and
 * their case. It is cut into words at white space, at punctuation and at Chinese characters, of
 * which each is a word. A word becomes the longest token that begins it, then the longest that goes
 * on from there, and so on; where no token goes on, the whole word is the unknown token.
 *
 * GGUF writes a token that begins a word with U+2581 in front, which becomes a space here, and one
 * that goes on (BERT's ##) as it is. What follows is Hugging Face's BertNormalizer,
 * BertPreTokenizer and WordPiece, by which the models were trained.
 */
#include "text/tokens_internal.h"

#include <string.h>
#include <utf8proc.h>

/* A longer word is the unknown token (max_input_chars_per_word). */
enum { WORD_CHARS = 100, WORD_BYTES = 1 + 4 * WORD_CHARS };

struct word {
    char bytes[WORD_BYTES]; /* a space in front */
    size_t len;
    int chars;
};

/* token_undo_fn. A token that is U+2581 alone is that character. */
static bool word_undo(const char *s, size_t len, char *out, size_t *n)
{
    const size_t mark = len > 3 && memcmp(s, "\xe2\x96\x81", 3) == 0 ? 3 : 0;
    if (mark)
        *out++ = ' ';
    memcpy(out, s + mark, len - mark);
    *n = len - mark + (mark > 0);
    return true;
}

oato_status wordpiece_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    t->add_bos = t->add_eos = true;
    t->add_space_prefix = true; /* so that decoding drops the space of the first word */
    t->lowercase = true;
    (void)gguf_get_bool(g, "tokenizer.ggml.normalizer.lowercase", &t->lowercase);
    t->strip_accents = t->lowercase;
    (void)gguf_get_bool(g, "tokenizer.ggml.normalizer.strip_accents", &t->strip_accents);
    oato_status s = vocab_load(t, g, word_undo, err);
    if (s == OATO_OK && t->unknown < 0)
        return oato_fail(err, OATO_EFILE,
                         "%s: tokenizer.ggml.unknown_token_id is missing; a vocabulary of kind "
                         "bert needs an unknown token",
                         gguf_path(g));
    return s;
}

static bool is_chinese(uint32_t c)
{
    static const uint32_t blocks[][2] = {
        {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
        {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f},
    };
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++)
        if (c >= blocks[i][0] && c <= blocks[i][1])
            return true;
    return false;
}

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

/* Symbols of ASCII count too. */
static bool is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
               (c > 'z' && c < 0x7f);
    return category(c) >= UTF8PROC_CATEGORY_PC && category(c) <= UTF8PROC_CATEGORY_PO;
}

/* A control, a format or a character for private use. */
static bool is_control(uint32_t c)
{
    return category(c) == UTF8PROC_CATEGORY_CC || category(c) == UTF8PROC_CATEGORY_CF ||
           category(c) == UTF8PROC_CATEGORY_CO;
}

enum { PARTS_MOST = 8 }; /* of a canonical decomposition; Unicode's longest have four */

/* The decomposition of c without accents (nonspacing marks); returns how many are left. */
static int without_accents(uint32_t c, uint32_t out[PARTS_MOST])
{
    utf8proc_int32_t part[PARTS_MOST];
    const utf8proc_ssize_t all =
        utf8proc_decompose_char((utf8proc_int32_t)c, part, PARTS_MOST, UTF8PROC_DECOMPOSE, NULL);
    int n = 0;
    for (int i = 0; i < PARTS_MOST && i < all; i++)
        if (utf8proc_category(part[i]) != UTF8PROC_CATEGORY_MN)
            out[n++] = (uint32_t)part[i];
    return n;
}

/* The longest token that the bytes from `at` on begin with; -1: none. */
static int32_t longest_token(const struct tokenizer *t, const struct word *word, size_t at,
                             size_t *len)
{
    size_t n = word->len - at;
    if (n > t->pieces.longest)
        n = t->pieces.longest;
    for (; n > 0; n--) {
        const bool whole = at + n == word->len || (word->bytes[at + n] & 0xc0) != 0x80;
        const int32_t id = whole ? piece_map_find(&t->pieces, t->tokens, word->bytes + at, n) : -1;
        if (id >= 0) {
            *len = n;
            return id;
        }
    }
    return -1;
}

/* Encodes the word and begins a new one. */
static void word_end(const struct tokenizer *t, struct word *word, struct id_list *out)
{
    const size_t begin = out->n;
    bool found = word->chars <= WORD_CHARS;
    for (size_t at = 0, n; word->chars > 0 && found && at < word->len; at += n) {
        const int32_t id = longest_token(t, word, at, &n);
        found = id >= 0;
        if (!found)
            break;
        id_list_push(out, id);
    }
    if (!found) {
        out->n = begin;
        id_list_push(out, t->unknown);
    }
    word->len = 1;
    word->chars = 0;
}

static void word_add(struct word *word, uint32_t c)
{
    if (word->chars < WORD_CHARS)
        word->len +=
            (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (uint8_t *)word->bytes + word->len);
    word->chars++;
}

/* A character of the cleaned text. */
static void char_add(const struct tokenizer *t, struct word *word, uint32_t c, struct id_list *out)
{
    if (char_is_white(c)) {
        word_end(t, word, out);
        return;
    }
    const bool alone = is_punctuation(c);
    if (alone)
        word_end(t, word, out);
    word_add(word, c);
    if (alone)
        word_end(t, word, out);
}

/* U+0130 is the one character whose lower case is two. */
static void lower_add(const struct tokenizer *t, struct word *word, uint32_t c, struct id_list *out)
{
    char_add(t, word, t->lowercase ? (uint32_t)utf8proc_tolower((utf8proc_int32_t)c) : c, out);
    if (t->lowercase && c == 0x130)
        char_add(t, word, 0x307, out);
}

oato_status wordpiece_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                             size_t n, bool after_special, struct id_list *out,
                             struct oato_error *err)
{
    (void)w;
    (void)err;
    (void)after_special;
    struct word word = {.bytes = " ", .len = 1};
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t code;
        const utf8proc_ssize_t len =
            utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &code);
        const uint32_t c = len > 0 ? (uint32_t)code : 0xfffd;
        i += len > 0 ? (size_t)len : 1;
        if (c == '\t' || c == '\n' || c == '\r') {
            word_end(t, &word, out);
            continue;
        }
        if (c == 0xfffd || is_control(c))
            continue;
        const bool chinese = is_chinese(c);
        if (chinese)
            word_end(t, &word, out);
        uint32_t parts[PARTS_MOST] = {c};
        const int n_parts = t->strip_accents ? without_accents(c, parts) : 1;
        for (int k = 0; k < n_parts; k++)
            lower_add(t, &word, parts[k], out);
        if (chinese)
            word_end(t, &word, out);
    }
    word_end(t, &word, out);
    return OATO_OK;
}
