/*
 * tokenizer_unigram.c - SentencePiece's unigram model (tokenizer.ggml.model = t5).
 *
 * The text is normalised, then cut so that the sum of the tokens' scores, which are logarithms of
 * probabilities, is the highest: the best way to each position is known before any way beyond it
 * (Viterbi). A character that no token covers is the unknown token, ten below the lowest score;
 * several in a row are one token, or bytes where the vocabulary has byte tokens.
 *
 * Normalising replaces what a map in the file lists (mostly NFKC), the longest text first. The map
 * is a double array (Darts-clone): from the unit at `base ^ byte` of a node one comes to its child,
 * which has that byte as label; a unit with a leaf leads to the offset of the replacement, a text
 * that ends with a zero byte.
 */
#include "text/tokens_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* SentencePiece's kUnkPenalty. */
static const float unknown_penalty = 10;

/* prefix_filter_fn */
static bool has_score(const struct token *k)
{
    return k->type == TOKEN_NORMAL && isfinite(k->score);
}

/* The array of bytes: its length (4 bytes), that many bytes of units, the texts. */
static oato_status charsmap_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    static const char key[] = "tokenizer.ggml.precompiled_charsmap";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return OATO_OK;
    if (v->count == 0)
        return OATO_OK;
    uint32_t bytes = 0;
    if (v->count >= sizeof bytes)
        memcpy(&bytes, v->data, sizeof bytes);
    if (v->count < sizeof bytes || bytes % sizeof(uint32_t) || bytes == 0 ||
        bytes >= v->count - sizeof bytes || v->data[v->count - 1] != 0)
        return oato_fail(err, OATO_EFILE,
                         "%s: %s has %llu bytes and says %u of units; units and texts that end "
                         "with a zero are expected",
                         gguf_path(g), key, (unsigned long long)v->count, bytes);
    struct charsmap *m = &t->charsmap;
    m->n_units = bytes / sizeof(uint32_t);
    m->n_texts = (size_t)v->count - sizeof bytes - bytes;
    uint32_t *units = arena_alloc(&t->arena, m->n_units, sizeof *units);
    char *texts = arena_alloc(&t->arena, m->n_texts, 1);
    if (!units || !texts)
        return oato_fail_memory(err, (size_t)v->count, "the character map");
    memcpy(units, v->data + sizeof bytes, bytes);
    memcpy(texts, v->data + sizeof bytes + bytes, m->n_texts);
    m->units = units;
    m->texts = texts;
    return OATO_OK;
}

oato_status unigram_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    t->add_eos = true;
    t->add_space_prefix = true;
    (void)gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix);
    (void)gguf_get_bool(g, "tokenizer.ggml.remove_extra_whitespaces", &t->merge_spaces);
    if (vocab_load(t, g, space_undo, err) || charsmap_load(t, g, err) ||
        prefix_list_build(&t->normal, t, has_score, err))
        return err->status;
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    float lowest = INFINITY;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        const struct token *k = &t->tokens[i];
        if (has_score(k) && k->score < lowest)
            lowest = k->score;
        if (k->type == TOKEN_BYTE && t->byte_id[(uint8_t)k->bytes[0]] < 0)
            t->byte_id[(uint8_t)k->bytes[0]] = i;
        if (k->type == TOKEN_UNKNOWN && t->unknown < 0)
            t->unknown = i;
    }
    t->unknown_score = (isfinite(lowest) ? lowest : 0) - unknown_penalty;
    return OATO_OK;
}

/* Bytes at the begin of s that the map replaces, and by what; 0: none. */
static size_t charsmap_find(const struct charsmap *m, const char *s, size_t n, const char **text)
{
    size_t found = 0, node = 0;
    for (size_t i = 0; m->n_units > 0; i++) {
        const uint32_t unit = m->units[node];
        const uint32_t offset = (unit >> 10) << ((unit & (1u << 9)) >> 6);
        if (i > 0 && (unit >> 8 & 1)) { /* a leaf: its value is at label 0 */
            const size_t leaf = node ^ offset;
            const size_t at = leaf < m->n_units ? m->units[leaf] & 0x7fffffff : m->n_texts;
            if (at < m->n_texts) {
                *text = m->texts + at;
                found = i;
            }
        }
        if (i == n || s[i] == 0)
            break;
        node ^= offset ^ (uint8_t)s[i];
        if (node >= m->n_units || (m->units[node] & 0x800000ff) != (uint8_t)s[i])
            break;
    }
    return found;
}

struct normalizer {
    char *out;
    size_t n;
    bool after_space; /* more spaces are left out */
};

static void normal_add(struct normalizer *z, const struct tokenizer *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ' && z->after_space)
            continue;
        z->out[z->n++] = s[i];
        z->after_space = t->merge_spaces && s[i] == ' ';
    }
}

/* What the piece of text at s becomes. Returns the bytes of s that it stands for. */
static size_t normal_piece(const struct tokenizer *t, const char *s, size_t n, const char **piece,
                           size_t *len)
{
    const size_t mapped = charsmap_find(&t->charsmap, s, n, piece);
    const int c = utf8_char(s, n);
    if (mapped > 0) {
        *len = strlen(*piece);
        return mapped;
    }
    *piece = c > 0 ? s : "\xef\xbf\xbd";
    *len = c > 0 ? (size_t)c : 3;
    return c > 0 ? (size_t)c : 1;
}

/* Writes the text as it is looked up, with spaces for U+2581, and returns its length; with z->out
 * NULL only an upper limit of it. */
static size_t normalize(struct normalizer *z, const struct tokenizer *t, const char *s, size_t n,
                        bool prefix)
{
    const char *piece;
    size_t len, most = 1;
    z->after_space = t->merge_spaces;
    for (size_t i = 0; i < n;) {
        i += normal_piece(t, s + i, n - i, &piece, &len);
        most += len;
        if (!z->out)
            continue;
        if (z->n == 0 && prefix && !(z->after_space && len == 1 && piece[0] == ' '))
            z->out[z->n++] = ' ';
        normal_add(z, t, piece, len);
    }
    if (!z->out)
        return most;
    (void)space_undo(z->out, z->n, z->out, &z->n);
    while (t->merge_spaces && z->n > 0 && z->out[z->n - 1] == ' ')
        z->n--;
    return z->n;
}

/* The best way to a position: its last token. Sums are floats as in SentencePiece, since rounding
 * decides between ways that have the same tokens in another order. */
struct step {
    float score;
    uint32_t begin;
    int32_t id;
};

static void step_offer(struct step *s, float score, size_t begin, int32_t id)
{
    if (score > s->score)
        *s = (struct step){score, (uint32_t)begin, id};
}

static void steps_find(const struct tokenizer *t, struct step *steps, const char *s, size_t n)
{
    for (size_t i = 0; i <= n; i++)
        steps[i] = (struct step){i ? -INFINITY : 0, 0, -1};
    for (size_t i = 0, step; i < n; i += step) {
        const int c = utf8_char(s + i, n - i);
        step = c > 0 ? (size_t)c : 1;
        size_t same;
        bool covered = false;
        for (int32_t k = prefix_list_find(&t->normal, t->tokens, s + i, n - i, &same); k >= 0;
             k = t->normal.items[k].shorter) {
            const int32_t id = t->normal.items[k].id;
            const struct token *token = &t->tokens[id];
            if (token->len > same)
                continue;
            step_offer(&steps[i + token->len], steps[i].score + token->score, i, id);
            covered = covered || token->len == step;
        }
        if (!covered)
            step_offer(&steps[i + step], steps[i].score + t->unknown_score, i, t->unknown);
    }
}

static bool has_bytes(const struct tokenizer *t, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(uint8_t)s[i]] < 0)
            return false;
    return true;
}

/* Follows the steps back from the end; the tokens come out from the last one to the first. */
static oato_status steps_push(const struct tokenizer *t, const struct step *steps, const char *s,
                              size_t n, struct id_list *out, struct oato_error *err)
{
    bool unknown = false;
    for (size_t end = n; end > 0; end = steps[end].begin) {
        const struct step *k = &steps[end];
        const int32_t id =
            k->id < 0 ? t->unknown : k->id; /* a sum beyond all floats was no offer */
        if (id != t->unknown) {
            id_list_push(out, id);
        } else if (has_bytes(t, s + k->begin, end - k->begin)) {
            for (size_t i = end; i > k->begin; i--)
                id_list_push(out, t->byte_id[(uint8_t)s[i - 1]]);
        } else if (t->unknown < 0) {
            return oato_fail(err, OATO_EUSAGE,
                             "the vocabulary has no token for the byte 0x%02X of the text, and no "
                             "unknown token",
                             (uint8_t)s[k->begin]);
        } else if (!unknown) {
            id_list_push(out, t->unknown);
        }
        unknown = id == t->unknown;
    }
    return OATO_OK;
}

oato_status unigram_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                           size_t n, bool after_special, struct id_list *out,
                           struct oato_error *err)
{
    const bool prefix = after_special && t->add_space_prefix;
    struct normalizer z = {0};
    if (merge_afford(w, n, err)) /* a step of the search is about as much as a symbol */
        return err->status;
    const size_t most = normalize(&z, t, text, n, prefix);
    if (most > INT32_MAX || !buffer_reserve(w, most))
        return oato_fail_memory(err, most, "the normalised text");
    z = (struct normalizer){.out = w->buffer};
    const size_t len = normalize(&z, t, text, n, prefix);
    struct step *steps = malloc((len + 1) * sizeof *steps);
    if (!steps)
        return oato_fail_memory(err, len * sizeof *steps, "the steps of the text");
    steps_find(t, steps, w->buffer, len);
    const size_t first = out->n;
    oato_status s = steps_push(t, steps, w->buffer, len, out, err);
    free(steps);
    for (size_t i = first, k = out->n; s == OATO_OK && i + 1 < k; i++) {
        const int32_t id = out->ids[--k];
        out->ids[k] = out->ids[i];
        out->ids[i] = id;
    }
    return s;
}
