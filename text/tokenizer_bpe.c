/*
 * tokenizer_bpe.c - byte-level byte-pair encoding (tokenizer.ggml.model = gpt2).
 *
 * The text is cut by the model's pre-tokeniser; each piece starts as single bytes and neighbours
 * merge by the rank of their pair in tokenizer.ggml.merges. Bytes that are not UTF-8 never reach
 * the expressions: each is a piece of its own.
 *
 * The file writes bytes in the alphabet of GPT-2, which gives every byte a printable character:
 * bytes that are printable in Latin-1 stand for themselves, the 68 others are U+0100 and up.
 */
#include "text/tokens_internal.h"

#include <string.h>

enum { ALPHABET_END = 0x100 + 68 };

static bool byte_is_itself(int b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The byte that a character of the alphabet stands for; -1 when it is none. The others, in order: 0
 * to 0x20, 0x7f to 0xa0, 0xad. */
static int alphabet_byte(uint32_t c)
{
    const int other = (int)c - 0x100;
    if (c < 0x100)
        return byte_is_itself((int)c) ? (int)c : -1;
    if (c >= ALPHABET_END)
        return -1;
    return other <= 0x20 ? other : other < 67 ? other - 0x21 + 0x7f : 0xad;
}

/* token_undo_fn */
static bool alphabet_undo(const char *s, size_t len, char *out, size_t *n)
{
    const uint8_t *b = (const uint8_t *)s;
    size_t k = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t c = b[i];
        if (c >= 0x80) {
            /* The alphabet ends below U+0800: two bytes at most. */
            if (c < 0xc2 || c > 0xdf || i + 1 == len || (b[i + 1] & 0xc0) != 0x80)
                return false;
            c = (c & 0x1f) << 6 | (b[++i] & 0x3f);
        }
        int byte = alphabet_byte(c);
        if (byte < 0)
            return false;
        out[k++] = (char)byte;
    }
    *n = k;
    return true;
}

static struct pair_slot *pair_slot(const struct pair_map *m, uint64_t key)
{
    uint64_t h = key * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = (h >> 29) & m->mask;; i = (i + 1) & m->mask) {
        struct pair_slot *s = &m->slots[i];
        if (s->id < 0 || s->key == key)
            return s;
    }
}

static bool pair_map_init(struct pair_map *m, struct arena *a, size_t count)
{
    const size_t cap = map_capacity(count);
    m->slots = arena_alloc(a, cap, sizeof *m->slots);
    for (size_t i = 0; m->slots && i < cap; i++)
        m->slots[i].id = -1;
    m->mask = cap - 1;
    return m->slots;
}

/* Takes over one line "LEFT RIGHT". A merge of or to something that is no token can never show in
 * a result and is left out, as the reference implementation refuses it. */
static bool merge_load(struct tokenizer *t, token_undo_fn *undo, struct gguf_string line,
                       uint32_t rank, char *scratch)
{
    const char *space = line.len > 2 ? memchr(line.data + 1, ' ', line.len - 2) : NULL;
    if (!space)
        return false;
    size_t n_left, n_right, left_len = (size_t)(space - line.data);
    if (!undo(line.data, left_len, scratch, &n_left) ||
        !undo(space + 1, line.len - left_len - 1, scratch + n_left, &n_right))
        return true;
    int32_t left = piece_map_find(&t->pieces, t->tokens, scratch, n_left);
    int32_t right = piece_map_find(&t->pieces, t->tokens, scratch + n_left, n_right);
    int32_t both = piece_map_find(&t->pieces, t->tokens, scratch, n_left + n_right);
    if (left < 0 || right < 0 || both < 0)
        return true;
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    struct pair_slot *s = pair_slot(&t->merges, key);
    if (s->id < 0)
        *s = (struct pair_slot){key, rank, both};
    return true;
}

oato_status merges_load(struct tokenizer *t, const struct gguf *g, token_undo_fn *undo,
                        struct oato_error *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return oato_fail(err, OATO_EFILE, "%s: key %s is missing; byte-pair encoding needs it",
                         gguf_path(g), key);
    if (v->count > INT32_MAX)
        return oato_fail(err, OATO_EFILE, "%s: %s has %llu entries; at most %d are allowed",
                         gguf_path(g), key, (unsigned long long)v->count, INT32_MAX);
    size_t longest = 1;
    for (uint64_t i = 0; i < v->count; i++) {
        if (v->strings[i].len > longest)
            longest = v->strings[i].len;
    }
    char *scratch = arena_alloc(&t->arena, longest, 1);
    if (!scratch || !pair_map_init(&t->merges, &t->arena, (size_t)v->count))
        return oato_fail_memory(err, (size_t)v->count * sizeof(struct pair_slot),
                                "the merges of the tokenizer");
    for (uint64_t i = 0; i < v->count; i++) {
        struct gguf_string line = v->strings[i];
        if (!merge_load(t, undo, line, (uint32_t)i, scratch))
            return oato_fail(err, OATO_EFILE,
                             "%s: %s[%llu] is \"%.*s\"; two pieces with a space between are "
                             "expected",
                             gguf_path(g), key, (unsigned long long)i,
                             line.len < 40 ? (int)line.len : 40, line.data);
    }
    return OATO_OK;
}

oato_status bpe_load(struct tokenizer *t, const struct gguf *g, struct oato_error *err)
{
    struct pretokenizer_traits traits;
    oato_status s = pretokenizer_create(g, &t->pretokenizer, &traits, err);
    if (s != OATO_OK)
        return s;
    t->ignore_merges = traits.ignore_merges;
    t->add_bos = traits.add_bos;
    s = vocab_load(t, g, alphabet_undo, err);
    if (s != OATO_OK)
        return s;
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = piece_map_find(&t->pieces, t->tokens, &byte, 1);
    }
    return merges_load(t, g, alphabet_undo, err);
}

/* merge_find_fn */
bool merge_by_rank(const struct tokenizer *t, const char *text, const struct symbol *left,
                   const struct symbol *right, uint32_t *priority, int32_t *id)
{
    (void)text;
    const struct pair_slot *s =
        pair_slot(&t->merges, (uint64_t)(uint32_t)left->id << 32 | (uint32_t)right->id);
    if (s->id < 0)
        return false;
    *priority = s->rank;
    *id = s->id;
    return true;
}

/* A byte that the vocabulary has no token for (some leave out what valid UTF-8 of assigned
 * characters never holds) becomes U+FFFD, the character for that. */
static oato_status byte_encode(const struct tokenizer *t, uint8_t byte, struct id_list *out,
                               struct oato_error *err)
{
    static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd};
    if (t->byte_id[byte] >= 0) {
        id_list_push(out, t->byte_id[byte]);
        return OATO_OK;
    }
    for (int i = 0; i < 3; i++) {
        int32_t id = t->byte_id[replacement[i]];
        if (id < 0)
            return oato_fail(err, OATO_EUSAGE,
                             "the vocabulary has no token for the byte 0x%02X of the text, nor for "
                             "the replacement character U+FFFD",
                             byte);
        id_list_push(out, id);
    }
    return OATO_OK;
}

static oato_status piece_encode(const struct tokenizer *t, struct encode_work *w, const char *text,
                                size_t n, struct id_list *out, struct oato_error *err)
{
    if (t->ignore_merges) {
        int32_t id = piece_map_find(&t->pieces, t->tokens, text, n);
        if (id >= 0) {
            id_list_push(out, id);
            return OATO_OK;
        }
    }
    if (merge_afford(w, n, err))
        return err->status;
    if (!merge_reserve(&w->merge, n))
        return oato_fail_memory(err, n * sizeof(struct symbol), "the symbols of a long word");
    for (size_t i = 0; i < n; i++)
        merge_add(&w->merge, (uint32_t)i, 1, t->byte_id[(uint8_t)text[i]]);
    merge_run(&w->merge, t, text, merge_by_rank);
    for (int32_t i = 0; i >= 0; i = w->merge.symbols[i].next) {
        const struct symbol *s = &w->merge.symbols[i];
        if (s->id >= 0) {
            id_list_push(out, s->id);
            continue;
        }
        oato_status st = byte_encode(t, (uint8_t)text[s->offset], out, err);
        if (st != OATO_OK)
            return st;
    }
    return OATO_OK;
}

oato_status bpe_encode(const struct tokenizer *t, struct encode_work *w, const char *text, size_t n,
                       bool after_special, struct id_list *out, struct oato_error *err)
{
    (void)after_special;
    size_t at = 0;
    while (at < n) {
        size_t valid = utf8_valid_prefix(text + at, n - at);
        if (valid == 0) {
            oato_status s = byte_encode(t, (uint8_t)text[at++], out, err);
            if (s != OATO_OK)
                return s;
            continue;
        }
        const char *run = text + at;
        oato_status s = pretokenize(t->pretokenizer, &w->pre, run, valid, err);
        size_t begin = 0;
        for (size_t i = 0; s == OATO_OK && i < w->pre.spans.n; i++) {
            size_t end = w->pre.spans.ends[i];
            s = piece_encode(t, w, run + begin, end - begin, out, err);
            begin = end;
        }
        if (s != OATO_OK)
            return s;
        at += valid;
    }
    return OATO_OK;
}
