/*
 * gguf_hash.c - the identity of a model, as plans and sidecars store it.
 *
 * Both hashes fold items one after the other: h' = XXH64(h, XXH64(item)), 16 bytes, from h = 0.
 * Structure: the architecture's name A; of each key "A.*" that holds numbers or booleans, in order
 * of key: the key, its kind ('i', 'f', 'b') and the values widened to 8 bytes; of each tensor, in
 * order of name: the name, then type and the four dimensions as 8-byte integers. So the hash
 * depends neither on the width of integers nor on order, split files, texts or the tokenizer.
 * Content: of each tensor, in order of name, its size and its sampled bytes. Nothing is allocated.
 */
#include "base/pages.h"
#include "models/gguf_internal.h"

#include <string.h>

enum { SAMPLE_BYTES = 4096 };

static uint64_t fold(uint64_t h, const void *item, size_t bytes)
{
    uint64_t pair[2] = {h, hash_bytes(item, bytes)};
    return hash_bytes(pair, sizeof pair);
}

static uint64_t fold_u64(uint64_t h, uint64_t v)
{
    return fold(h, &v, sizeof v);
}

/* 'i', 'f', 'b', or 0 for what is no shape. */
static char value_kind(const struct gguf_value *v)
{
    switch (v->elem) {
    case GGUF_STRING: return 0;
    case GGUF_BOOL: return 'b';
    case GGUF_F32:
    case GGUF_F64: return 'f';
    default: return 'i';
    }
}

static uint64_t fold_value(uint64_t h, const struct gguf_value *v, char kind)
{
    h = fold_u64(fold_u64(h, (uint64_t)kind), v->count);
    for (uint64_t i = 0; i < v->count; i++) {
        uint64_t bits = 0;
        int64_t n;
        double f;
        if (kind == 'f' && gguf_value_f64(v, i, &f))
            memcpy(&bits, &f, sizeof bits);
        else if (kind == 'b')
            bits = v->data[i] != 0;
        else if (gguf_value_i64(v, i, &n))
            bits = (uint64_t)n;
        else /* an unsigned number beyond int64 */
            memcpy(&bits, v->data + i * sizeof bits, sizeof bits);
        h = fold_u64(h, bits);
    }
    return h;
}

uint64_t gguf_structure_hash(const struct gguf *g)
{
    struct gguf_string a = {"", 0};
    gguf_get_string(g, GGUF_KEY_ARCHITECTURE, &a);
    uint64_t h = fold(0, a.data, a.len);
    for (size_t i = 0; a.len && i < g->first->n_kv; i++) {
        const struct gguf_kv *kv = g->first->kv_by_key[i];
        char kind = value_kind(&kv->value);
        if (kind && !strncmp(kv->key, a.data, a.len) && kv->key[a.len] == '.')
            h = fold_value(fold(h, kv->key, strlen(kv->key)), &kv->value, kind);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = g->by_name[i];
        int64_t shape[1 + GGUF_MAX_DIMS] = {(int64_t)t->dtype};
        memcpy(shape + 1, t->ne, sizeof t->ne);
        h = fold(fold(h, t->name, strlen(t->name)), shape, sizeof shape);
    }
    return h;
}

static uint64_t fold_samples(uint64_t h, const struct gguf_tensor *t)
{
    h = fold_u64(h, t->bytes);
    if (t->bytes <= (size_t)3 * SAMPLE_BYTES)
        return fold(h, t->data, t->bytes);
    h = fold(h, t->data, SAMPLE_BYTES);
    h = fold(h, t->data + t->bytes / 2, SAMPLE_BYTES);
    return fold(h, t->data + t->bytes - SAMPLE_BYTES, SAMPLE_BYTES);
}

uint64_t gguf_content_hash(const struct gguf *g)
{
    _Atomic uint64_t *kept = &((struct gguf *)g)->content_hash;
    uint64_t h = *kept;
    if (h || gguf_header_only(g))
        return h;
    for (const struct gguf_part *p = g->parts; p; p = p->next)
        file_use(&p->file, FILE_SCATTERED); /* it may be larger than the memory */
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = g->by_name[i];
        h = fold_samples(h, t);
        file_release(t->file, (size_t)(t->data - t->file->data), t->bytes);
    }
    for (const struct gguf_part *p = g->parts; p; p = p->next)
        file_use(&p->file, FILE_USUAL);
    *kept = h ? h : 1; /* 0 means "not known" */
    return *kept;
}
