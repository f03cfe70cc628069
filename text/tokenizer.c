/*
 * tokenizer.c - text to ids and back; start reading here.
 *
 * Encoding has three stages: special tokens are found in the text (this file), the text between
 * them is cut into pieces (pretokenize.c, byte-level BPE only), and the pieces become tokens, for
 * most kinds by merging from single characters up (one tokenizer_KIND.c each, listed in the table
 * below). A tokenizer does not change after it was created; any number of threads may use it.
 *
 * decode(encode(x)) == x for every x, UTF-8 or not, with three exceptions: bytes that the
 * vocabulary has no token for, U+2581 in SentencePiece vocabularies (it is their space), and text
 * that spells control tokens when those are parsed. WordPiece and unigram, of which the models are
 * encoders, change the text on purpose: case, accents, compatibility characters, spaces.
 */
#include "text/tokens_internal.h"

#include <stdlib.h>
#include <string.h>

struct kind_row {
    const char *model, *pre; /* tokenizer.ggml.model and .pre; NULL: any */
    enum tokenizer_kind kind;
    load_fn *load;
    encode_fn *encode;
};

static const struct kind_row kinds[] = {
    {"gemma4", NULL, TOKENIZER_RAW_BPE, raw_bpe_load, raw_bpe_encode},
    {"gpt2", "gemma4", TOKENIZER_RAW_BPE, raw_bpe_load, raw_bpe_encode},
    {"gpt2", "granite-embed-multi-311m", TOKENIZER_RAW_BPE, raw_bpe_load, raw_bpe_encode},
    {"gpt2", "sarvam-moe", TOKENIZER_RAW_BPE, raw_bpe_load, raw_bpe_encode},
    {"gpt2", NULL, TOKENIZER_BPE, bpe_load, bpe_encode},
    {"llama", NULL, TOKENIZER_SPM, spm_load, spm_encode},
    {"bert", NULL, TOKENIZER_WORDPIECE, wordpiece_load, wordpiece_encode},
    {"t5", NULL, TOKENIZER_UNIGRAM, unigram_load, unigram_encode},
};

static const struct kind_row *kind_find(struct gguf_string model, struct gguf_string pre)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (gguf_string_is(model, kinds[i].model) &&
            (!kinds[i].pre || gguf_string_is(pre, kinds[i].pre)))
            return &kinds[i];
    return NULL;
}

/* All that tokenizers read. */
static const struct gguf_key_type keys[] = {
    {"general.name", GGUF_WANT_STRING},
    {"tokenizer.ggml.model", GGUF_WANT_STRING},
    {"tokenizer.ggml.pre", GGUF_WANT_STRING},
    {"tokenizer.ggml.tokens", GGUF_WANT_STRINGS},
    {"tokenizer.ggml.scores", GGUF_WANT_NUMBERS},
    {"tokenizer.ggml.token_type", GGUF_WANT_INTEGERS},
    {"tokenizer.ggml.merges", GGUF_WANT_STRINGS},
    {"tokenizer.ggml.precompiled_charsmap", GGUF_WANT_BYTES},
    {"tokenizer.ggml.bos_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.eos_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.eot_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.eom_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.unknown_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.cls_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.seperator_token_id", GGUF_WANT_INTEGER},
    {"tokenizer.ggml.add_bos_token", GGUF_WANT_BOOL},
    {"tokenizer.ggml.add_eos_token", GGUF_WANT_BOOL},
    {"tokenizer.ggml.add_space_prefix", GGUF_WANT_BOOL},
    {"tokenizer.ggml.remove_extra_whitespaces", GGUF_WANT_BOOL},
    {"tokenizer.ggml.normalizer.lowercase", GGUF_WANT_BOOL},
    {"tokenizer.ggml.normalizer.strip_accents", GGUF_WANT_BOOL},
};

oato_status tokenizer_create(const struct gguf *g, struct tokenizer **out, struct oato_error *err)
{
    if (gguf_check_keys(g, gguf_path(g), keys, ARRAY_LEN(keys), err))
        return err->status;
    struct gguf_string model, pre = {"", 0};
    if (!gguf_get_string(g, "tokenizer.ggml.model", &model))
        return oato_fail(err, OATO_EFILE,
                         "%s: no tokenizer.ggml.model: the file holds no vocabulary", gguf_path(g));
    (void)gguf_get_string(g, "tokenizer.ggml.pre", &pre);
    const struct kind_row *kind = kind_find(model, pre);
    if (!kind)
        return oato_fail(err, OATO_EFILE,
                         "%s: tokenizer.ggml.model is \"%.*s\"; gpt2 (byte-level BPE), llama "
                         "(SentencePiece), gemma4, bert (WordPiece) and t5 (unigram) are supported",
                         gguf_path(g), model.len < 40 ? (int)model.len : 40, model.data);

    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return oato_fail_memory(err, sizeof *t, "the tokenizer");
    arena_init(&t->arena);
    t->kind = kind->kind;
    t->encode = kind->encode;
    t->bos = t->eos = t->unknown = -1;
    oato_status s = kind->load(t, g, err);
    if (s != OATO_OK) {
        tokenizer_free(t);
        return s;
    }
    *out = t;
    return OATO_OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pretokenizer_free(t->pretokenizer);
    arena_free(&t->arena);
    free(t);
}

/* The special token that begins at text; of several the longest. -1: none. */
static int32_t special_at(const struct tokenizer *t, const char *text, size_t n, int wanted)
{
    if (!(t->special_begin[(uint8_t)text[0]] & wanted))
        return -1;
    size_t same;
    for (int32_t i = prefix_list_find(&t->specials, t->tokens, text, n, &same); i >= 0;
         i = t->specials.items[i].shorter) {
        const struct token *k = &t->tokens[t->specials.items[i].id];
        const bool user = k->type == TOKEN_USER_DEFINED;
        if (k->len <= same && wanted & (user ? SPECIAL_USER : SPECIAL_CONTROL))
            return t->specials.items[i].id;
    }
    return -1;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static oato_status text_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                               size_t n, int wanted, struct id_list *out, struct oato_error *err)
{
    size_t begin = 0;
    bool after_special = true; /* nothing is in front of the text */
    for (size_t at = 0; at < n;) {
        int32_t id = special_at(t, text + at, n - at, wanted);
        if (id < 0) {
            at++;
            continue;
        }
        oato_status s = OATO_OK;
        if (at > begin)
            s = t->encode(t, w, text + begin, at - begin, after_special, out, err);
        if (s != OATO_OK)
            return s;
        id_list_push(out, id);
        after_special = true;
        at += t->tokens[id].len;
        while (t->tokens[id].strips_right && at < n && is_space(text[at]))
            at++;
        begin = at;
    }
    return n > begin ? t->encode(t, w, text + begin, n - begin, after_special, out, err) : OATO_OK;
}

static int specials_wanted(int flags)
{
    return flags & TOKENIZE_PARSE_SPECIAL ? SPECIAL_USER | SPECIAL_CONTROL : SPECIAL_USER;
}

bool tokenizer_begins(const struct tokenizer *t, const char *text, size_t n, int flags)
{
    return n && (flags & TOKENIZE_ADD_BOS) && t->add_bos && t->bos >= 0 &&
           special_at(t, text, n, specials_wanted(flags)) == t->bos;
}

/* For any text: ids and what cuts it into words take so many bytes of memory and steps a byte. */
enum { BYTE_STEPS = 4, BYTE_BYTES = 12 };

size_t tokenizer_longest(const struct tokenizer *t)
{
    size_t longest = 4; /* an unknown token stands for a character */
    bool limited = t->kind != TOKENIZER_WORDPIECE && t->kind != TOKENIZER_UNIGRAM;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        limited = limited && !t->tokens[i].strips_right;
        longest = t->tokens[i].len > longest ? t->tokens[i].len : longest;
    }
    return limited ? longest : 0;
}

oato_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int flags,
                             int32_t **ids, size_t *count, struct oato_error *err)
{
    return tokenizer_encode_within(t, text, n, flags, NULL, ids, count, err);
}

oato_status tokenizer_encode_within(const struct tokenizer *t, const char *text, size_t n,
                                    int flags, struct budget *budget, int32_t **ids, size_t *count,
                                    struct oato_error *err)
{
    struct id_list out = {0};
    struct encode_work w = {.budget = budget};
    oato_status s = OATO_OK;
    *ids = NULL;
    *count = 0;
    if (n > INT32_MAX / 2)
        return oato_fail(err, OATO_EUSAGE, "a text of %zu bytes is too long; at most %d", n,
                         INT32_MAX / 2);
    if (budget_spend(budget, n * BYTE_STEPS, n * BYTE_BYTES, "tokenizing", err))
        return err->status;
    if ((flags & TOKENIZE_ADD_BOS) && t->add_bos && t->bos >= 0 &&
        !tokenizer_begins(t, text, n, flags))
        id_list_push(&out, t->bos);
    const int wanted = specials_wanted(flags);
    if (n > 0)
        s = text_encode(t, &w, text, n, wanted, &out, err);
    const bool ended = out.n && out.ids[out.n - 1] == t->eos;
    if ((flags & TOKENIZE_ADD_EOS) && t->add_eos && t->eos >= 0 && !ended)
        id_list_push(&out, t->eos);
    if (!out.ids && !out.failed)
        out.ids = calloc(1, sizeof *out.ids); /* no tokens, yet something to free */
    if (s == OATO_OK && (out.failed || !out.ids))
        s = oato_fail_memory(err, n * sizeof *out.ids, "the tokens of the text");

    merge_free(&w.merge);
    pretokenize_work_free(&w.pre);
    free(w.buffer);
    if (budget)
        budget->bytes += w.taken_bytes + n * BYTE_BYTES;
    if (s != OATO_OK) {
        free(out.ids);
        return s;
    }
    *ids = out.ids;
    *count = out.n;
    return OATO_OK;
}

bool tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, const char **bytes,
                     size_t *n)
{
    if (id < 0 || id >= t->n_tokens)
        return false;
    const struct token *k = &t->tokens[id];
    bool hidden = !special && (k->type == TOKEN_CONTROL || k->type == TOKEN_UNKNOWN);
    *bytes = hidden ? "" : k->bytes;
    *n = hidden ? 0 : k->len;
    return true;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                      bool strip_prefix, struct text *out)
{
    /* The space is in front of every text that encode met, so behind special tokens too. */
    bool strips = strip_prefix && t->add_space_prefix;
    bool strip = strips;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t n;
        if (!tokenizer_piece(t, ids[i], false, &bytes, &n))
            continue;
        uint8_t type = t->tokens[ids[i]].type;
        bool special = type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED;
        if (strip && !special && n > 0 && bytes[0] == ' ') {
            bytes++;
            n--;
        }
        strip = strips && special;
        text_add(out, bytes, n);
    }
}

int32_t tokenizer_size(const struct tokenizer *t)
{
    return t->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_tokens && t->tokens[id].end;
}
