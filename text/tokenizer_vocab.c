/*
 * tokenizer_vocab.c - loads the vocabulary: texts, types, scores, special ids.
 *
 * Everything is checked here, so that the other files may index by any id: arrays have an entry per
 * token, ids are in range, a byte token names a byte. When several tokens have the same bytes,
 * encoding uses the first. Everything is copied: the GGUF may be closed.
 */
#include "text/tokens_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Tokens that end a generation whatever the special ids say; a file that calls one of them a
 * normal token is mistaken. The last rows separate files and padding in code models. */
static const char *const end_texts[] = {"<|eot_id|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<|calls|>",
                                        "<|flush|>",
                                        "<turn|>",
                                        "<|tool_response>",
                                        "[EOT]",
                                        "[e~[",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|eom_id|>",
                                        "<|end_of_text|>",
                                        "<|EOT|>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "<end_of_utterance>",
                                        "<｜end▁of▁sentence｜>",
                                        "<|fim_pad|>",
                                        "<fim_pad>",
                                        "<fim-pad>",
                                        "<|repo_name|>",
                                        "<reponame>",
                                        "<fim-repo>",
                                        "<|file_sep|>"};

static bool has_byte_tokens(const struct tokenizer *t)
{
    return t->kind == TOKENIZER_SPM || t->kind == TOKENIZER_RAW_BPE || t->kind == TOKENIZER_UNIGRAM;
}

static bool is_end_text(struct gguf_string s)
{
    if (s.len == 0 || (s.data[0] != '<' && s.data[0] != '_' && s.data[0] != '['))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(end_texts); i++) {
        if (gguf_string_is(s, end_texts[i]))
            return true;
    }
    return false;
}

/* Where a turn has several messages (gpt-oss, Solar Open), <|end|> ends a message only; those
 * vocabularies have tokens for the end of the turn and for calls. */
static void ends_correct(struct tokenizer *t, const struct gguf_string *texts)
{
    bool last = false, call = false;
    int32_t end = -1;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if (!t->tokens[i].end)
            continue;
        last |= gguf_string_is(texts[i], "<|return|>") || gguf_string_is(texts[i], "<|flush|>");
        call |= gguf_string_is(texts[i], "<|call|>") || gguf_string_is(texts[i], "<|calls|>");
        end = gguf_string_is(texts[i], "<|end|>") ? i : end;
    }
    if (last && call && end >= 0)
        t->tokens[end].end = false;
}

/* An array of numbers at least as long as the vocabulary; *out NULL when the key is missing. */
static oato_status number_array(const struct tokenizer *t, const struct gguf *g, const char *key,
                                const struct gguf_value **out, struct oato_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    *out = v;
    if (!v)
        return OATO_OK;
    if (v->count < (uint64_t)t->n_tokens)
        return oato_fail(err, OATO_EFILE, "%s: %s has %llu entries for %d tokens", gguf_path(g),
                         key, (unsigned long long)v->count, t->n_tokens);
    return OATO_OK;
}

static oato_status scores_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    const struct gguf_value *v;
    oato_status s = number_array(t, g, "tokenizer.ggml.scores", &v, err);
    if (s != OATO_OK)
        return s;
    if (!v)
        return oato_fail(err, OATO_EFILE,
                         "%s: tokenizer.ggml.scores is missing; a vocabulary of this kind "
                         "needs a score for each token",
                         gguf_path(g));
    for (int32_t i = 0; i < t->n_tokens; i++) {
        double x = 0;
        (void)gguf_value_f64(v, (uint64_t)i, &x);
        /* Adding zero makes -0 equal to 0 bit for bit. */
        t->tokens[i].score = isnan(x) ? -INFINITY : (float)x + 0.0F;
    }
    return OATO_OK;
}

/* "<0xAF>": exactly that form; -1 otherwise. */
static int byte_token(struct gguf_string s)
{
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return -1;
    const char hex[3] = {s.data[3], s.data[4]};
    return strspn(hex, "0123456789abcdefABCDEF") == 2 ? (int)strtol(hex, NULL, 16) : -1;
}

static oato_status types_load(struct tokenizer *t, const struct gguf *g,
                              const struct gguf_string *texts, struct oato_error *err)
{
    const struct gguf_value *v;
    oato_status s = number_array(t, g, "tokenizer.ggml.token_type", &v, err);
    if (s != OATO_OK)
        return s;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        struct token *k = &t->tokens[i];
        int64_t type = TOKEN_NORMAL;
        if (v && !gguf_value_i64(v, (uint64_t)i, &type))
            type = INT64_MAX; /* or more */
        if (type < TOKEN_UNDEFINED || type > TOKEN_BYTE)
            return oato_fail(err, OATO_EFILE,
                             "%s: tokenizer.ggml.token_type[%d] is %lld; 0 to 6 are defined",
                             gguf_path(g), i, (long long)type);
        bool is_byte = has_byte_tokens(t) && byte_token(texts[i]) >= 0;
        if (!v && is_byte)
            type = TOKEN_BYTE;
        if (type == TOKEN_BYTE && has_byte_tokens(t) && !is_byte)
            return oato_fail(err, OATO_EFILE,
                             "%s: token %d is a byte by its type, but its text \"%.*s\" is not of "
                             "the form <0x00> to <0xFF>",
                             gguf_path(g), i, texts[i].len < 40 ? (int)texts[i].len : 40,
                             texts[i].data);
        if (is_end_text(texts[i])) {
            type = TOKEN_CONTROL;
            k->end = true;
        }
        k->type = (uint8_t)type;
    }
    ends_correct(t, texts);
    return OATO_OK;
}

/* prefix_filter_fn */
static bool token_is_special(const struct token *k)
{
    return k->type == TOKEN_CONTROL || k->type == TOKEN_USER_DEFINED || k->type == TOKEN_UNKNOWN;
}

/* Writes every token's bytes and enters those that merging can produce. */
static oato_status texts_load(struct tokenizer *t, const struct gguf_string *texts,
                              token_undo_fn *undo, struct oato_error *err)
{
    size_t bytes = 1;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if (texts[i].len > UINT32_MAX || !size_add(bytes, texts[i].len, &bytes))
            return oato_fail_memory(err, SIZE_MAX, "the texts of the tokens");
    }
    char *blob = arena_alloc(&t->arena, bytes, 1);
    if (!blob || !piece_map_init(&t->pieces, &t->arena, (size_t)t->n_tokens))
        return oato_fail_memory(err, bytes, "the texts of the tokens");
    for (int32_t i = 0; i < t->n_tokens; i++) {
        struct token *k = &t->tokens[i];
        size_t n = texts[i].len;
        bool merges = false;
        int byte = k->type == TOKEN_BYTE ? byte_token(texts[i]) : -1;
        if (byte >= 0) {
            blob[0] = (char)byte;
            n = 1;
        } else if (token_is_special(k)) {
            memcpy(blob, texts[i].data, n);
        } else {
            merges = undo(texts[i].data, texts[i].len, blob, &n);
            if (!merges)
                memcpy(blob, texts[i].data, n = texts[i].len);
        }
        k->bytes = blob;
        k->len = (uint32_t)n;
        blob += n;
        if (merges && n > 0)
            (void)piece_map_add(&t->pieces, t->tokens, i);
    }
    return OATO_OK;
}

/* Control and user-defined tokens, and the unknown one. */
static oato_status specials_load(struct tokenizer *t, struct oato_error *err)
{
    oato_status s = prefix_list_build(&t->specials, t, token_is_special, err);
    for (int32_t i = 0; s == OATO_OK && i < t->specials.n; i++) {
        const struct token *k = &t->tokens[t->specials.items[i].id];
        t->special_begin[(uint8_t)k->bytes[0]] |=
            k->type == TOKEN_USER_DEFINED ? SPECIAL_USER : SPECIAL_CONTROL;
    }
    return s;
}

/* -1 and 2^32 - 1 are how some writers say "none". */
static oato_status special_id(const struct tokenizer *t, const struct gguf *g, const char *key,
                              int32_t *id, struct oato_error *err)
{
    int64_t x;
    if (!gguf_find(g, key))
        return OATO_OK;
    if (!gguf_get_i64(g, key, &x))
        x = INT64_MAX; /* or more */
    if (x == -1 || x == UINT32_MAX) {
        *id = -1;
        return OATO_OK;
    }
    if (x < 0 || x >= t->n_tokens)
        return oato_fail(err, OATO_EFILE, "%s: %s is %lld; the vocabulary has %d tokens",
                         gguf_path(g), key, (long long)x, t->n_tokens);
    *id = (int32_t)x;
    return OATO_OK;
}

static oato_status special_ids_load(struct tokenizer *t, const struct gguf *g,
                                    struct oato_error *err)
{
    int32_t turn = -1, message = -1, class = -1, separator = -1;
    const struct {
        const char *key;
        int32_t *id;
        bool end;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &t->bos, false},
        {"tokenizer.ggml.eos_token_id", &t->eos, true},
        {"tokenizer.ggml.eot_token_id", &turn, true},
        {"tokenizer.ggml.eom_token_id", &message, true},
        {"tokenizer.ggml.unknown_token_id", &t->unknown, false},
        {"tokenizer.ggml.cls_token_id", &class, false},
        {"tokenizer.ggml.seperator_token_id", &separator, false}, /* as GGUF spells it */
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        oato_status s = special_id(t, g, ids[i].key, ids[i].id, err);
        if (s != OATO_OK)
            return s;
        if (ids[i].end && *ids[i].id >= 0)
            t->tokens[*ids[i].id].end = true;
    }
    if (t->kind == TOKENIZER_WORDPIECE) { /* a text stands between these two */
        t->bos = class >= 0 ? class : t->bos;
        t->eos = separator >= 0 ? separator : t->eos;
    }
    (void)gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos);
    (void)gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos);
    return OATO_OK;
}

/* The tokenizer of Phi-3 takes the white space after its special tokens with them, except after
 * the three that plain text models have. The GGUF does not say so; the model's name tells. */
static void strips_load(struct tokenizer *t, const struct gguf *g)
{
    struct gguf_string name;
    if (!gguf_get_string(g, "general.name", &name))
        return;
    bool phi3 = false;
    for (size_t i = 0; !phi3 && i + 4 <= name.len; i++)
        phi3 = strncasecmp(name.data + i, "phi3", 4) == 0 ||
               (i + 5 <= name.len && strncasecmp(name.data + i, "phi-3", 5) == 0);
    for (int32_t i = 0; phi3 && i < t->n_tokens; i++) {
        struct token *k = &t->tokens[i];
        struct gguf_string s = {k->bytes, k->len};
        k->strips_right = token_is_special(k) && !gguf_string_is(s, "<unk>") &&
                          !gguf_string_is(s, "<s>") && !gguf_string_is(s, "<|endoftext|>");
    }
}

oato_status vocab_load(struct tokenizer *t, const struct gguf *g, token_undo_fn *undo,
                       struct oato_error *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return oato_fail(err, OATO_EFILE, "%s: key %s is missing", gguf_path(g), key);
    if (v->count == 0 || v->count > INT32_MAX / 2)
        return oato_fail(err, OATO_EFILE, "%s: %s has %llu entries; 1 to %d are allowed",
                         gguf_path(g), key, (unsigned long long)v->count, INT32_MAX / 2);
    t->n_tokens = (int32_t)v->count;
    t->tokens = arena_alloc(&t->arena, (size_t)v->count, sizeof *t->tokens);
    if (!t->tokens)
        return oato_fail_memory(err, (size_t)v->count * sizeof *t->tokens, "the tokens");

    const bool scores = t->kind == TOKENIZER_SPM || t->kind == TOKENIZER_UNIGRAM;
    if (types_load(t, g, v->strings, err) || special_ids_load(t, g, err) ||
        (scores && scores_load(t, g, err)) || texts_load(t, v->strings, undo, err) ||
        specials_load(t, err))
        return err->status;
    strips_load(t, g);
    return OATO_OK;
}
