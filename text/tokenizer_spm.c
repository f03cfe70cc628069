/*
 * tokenizer_spm.c - SentencePiece with scores and byte fallback (tokenizer.ggml.model = llama).
 *
 * The text starts as single characters; of all neighbours that together are a token, those with
 * the highest score merge first (of equals the leftmost). A character that no token covers is
 * written as its bytes, <0x00> to <0xFF>, or as the unknown token.
 *
 * SentencePiece writes a space as U+2581. Here U+2581 becomes a space instead, in the vocabulary
 * and in the text, so that the bytes of a piece are the bytes it prints.
 *
 * Gemma 4 (gemma4, or gpt2 with a pre-tokeniser of that kind) has such a vocabulary, whose
 * neighbours merge by the rank of their pair instead. Nothing is cut: the whole text is one piece.
 * (llama.cpp cuts it at line ends, which no merge crosses.)
 */
#include "text/tokens_internal.h"

#include <stdlib.h>
#include <string.h>

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { SPACE_MARK_LEN = 3 };

/* token_undo_fn */
bool space_undo(const char *s, size_t len, char *out, size_t *n)
{
    size_t k = 0;
    for (size_t i = 0; i < len;) {
        if (len - i >= SPACE_MARK_LEN && memcmp(s + i, space_mark, SPACE_MARK_LEN) == 0) {
            out[k++] = ' ';
            i += SPACE_MARK_LEN;
        } else {
            out[k++] = s[i++];
        }
    }
    *n = k;
    return true;
}

/* Fills byte_id with the tokens <0x00> to <0xFF>, or else with tokens of one byte. */
static void byte_ids_load(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = piece_map_find(&t->pieces, t->tokens, &byte, 1);
    }
    for (int32_t i = t->n_tokens - 1; i >= 0; i--) {
        if (t->tokens[i].type == TOKEN_BYTE)
            t->byte_id[(uint8_t)t->tokens[i].bytes[0]] = i;
    }
}

oato_status spm_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    t->add_bos = true;
    t->add_space_prefix = true;
    (void)gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix);
    oato_status s = vocab_load(t, g, space_undo, err);
    if (s != OATO_OK)
        return s;
    /* The ids that SentencePiece gives when it is not told otherwise. */
    if (t->bos < 0 && !gguf_find(g, "tokenizer.ggml.bos_token_id") && t->n_tokens > 1 &&
        t->tokens[1].type == TOKEN_CONTROL)
        t->bos = 1;
    if (t->eos < 0 && !gguf_find(g, "tokenizer.ggml.eos_token_id") && t->n_tokens > 2 &&
        t->tokens[2].type == TOKEN_CONTROL) {
        t->eos = 2;
        t->tokens[2].end = true;
    }
    if (t->unknown < 0 && t->tokens[0].type == TOKEN_UNKNOWN)
        t->unknown = 0;

    byte_ids_load(t);
    return OATO_OK;
}

/* Maps scores to integers in reverse order: the highest score gives the lowest number. */
static uint32_t score_order(float score)
{
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000 ? bits : ~(bits | 0x80000000);
}

/* merge_find_fn */
static bool merge_by_score(const struct tokenizer *t, const char *text, const struct symbol *left,
                           const struct symbol *right, uint32_t *priority, int32_t *id)
{
    *id =
        piece_map_find(&t->pieces, t->tokens, text + left->offset, (size_t)left->len + right->len);
    if (*id < 0)
        return false;
    *priority = score_order(t->tokens[*id].score);
    return true;
}

bool buffer_reserve(struct encode_work *w, size_t n)
{
    if (w->cap_buffer >= n)
        return true;
    free(w->buffer);
    w->buffer = malloc(n);
    w->cap_buffer = w->buffer ? n : 0;
    return w->buffer;
}

/* The text as it is looked up: spaces for U+2581 and one in front; NULL when memory is short. */
static const char *text_prepare(struct encode_work *w, const char *text, size_t n, bool prefix,
                                size_t *len)
{
    if (!buffer_reserve(w, n + 1))
        return NULL;
    w->buffer[0] = ' ';
    (void)space_undo(text, n, w->buffer + prefix, len);
    *len += prefix;
    return w->buffer;
}

static oato_status bytes_encode(const struct tokenizer *t, const char *bytes, size_t n,
                                struct id_list *out, struct oato_error *err)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        int32_t id = t->byte_id[byte];
        if (id < 0) {
            /* One unknown token stands for the whole character. */
            id = t->unknown;
            i = n - 1;
        }
        if (id < 0)
            return oato_fail(err, OATO_EUSAGE,
                             "the vocabulary has no token for the byte 0x%02X of the text, and no "
                             "unknown token",
                             byte);
        id_list_push(out, id);
    }
    return OATO_OK;
}

/* Merges from single characters up, with a space in front when prefix is set. What no token covers
 * is written as bytes, or as the unknown token. */
static oato_status chars_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                                size_t n, bool prefix, merge_find_fn *find, struct id_list *out,
                                struct oato_error *err)
{
    size_t len = n + 1;
    if (merge_afford(w, len, err))
        return err->status;
    const char *s = text_prepare(w, text, n, prefix, &len);
    if (!s || !merge_reserve(&w->merge, len))
        return oato_fail_memory(err, len * sizeof(struct symbol), "the symbols of the text");
    for (size_t i = 0; i < len;) {
        int k = utf8_char(s + i, len - i);
        size_t step = k > 0 ? (size_t)k : 1;
        merge_add(&w->merge, (uint32_t)i, (uint32_t)step,
                  piece_map_find(&t->pieces, t->tokens, s + i, step));
        i += step;
    }
    merge_run(&w->merge, t, s, find);
    for (int32_t i = 0; i >= 0; i = w->merge.symbols[i].next) {
        const struct symbol *y = &w->merge.symbols[i];
        if (y->id >= 0) {
            id_list_push(out, y->id);
            continue;
        }
        oato_status st = bytes_encode(t, s + y->offset, y->len, out, err);
        if (st != OATO_OK)
            return st;
    }
    return OATO_OK;
}

oato_status spm_encode(const struct tokenizer *t, struct encode_work *w, const char *text, size_t n,
                       bool after_special, struct id_list *out, struct oato_error *err)
{
    return chars_encode(t, w, text, n, after_special && t->add_space_prefix, merge_by_score, out,
                        err);
}

oato_status raw_bpe_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    if (vocab_load(t, g, space_undo, err) || merges_load(t, g, space_undo, err))
        return err->status;
    byte_ids_load(t);
    /* Files of Gemma 4 made before its tokenizer was corrected say that there is no BOS. */
    struct gguf_string pre = {"", 0}, model = {"", 0};
    (void)gguf_get_string(g, "tokenizer.ggml.pre", &pre);
    (void)gguf_get_string(g, "tokenizer.ggml.model", &model);
    if (gguf_string_is(pre, "gemma4") || gguf_string_is(model, "gemma4"))
        t->add_bos = true;
    return OATO_OK;
}

oato_status raw_bpe_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                           size_t n, bool after_special, struct id_list *out,
                           struct oato_error *err)
{
    (void)after_special;
    return chars_encode(t, w, text, n, false, merge_by_rank, out, err);
}
