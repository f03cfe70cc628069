/*
 * fuzz_gguf.c - whatever the bytes, the GGUF reader refuses them or gives a handle of which every
 * key, string and tensor can be read; both hashes can be taken. Its vocabulary is refused too, or
 * encodes a text to ids that it has; and it is refused as a model, or its graph can be built.
 */
#include "text/text.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static volatile uint64_t sink;

/* The sanitizers watch the reads; the sum keeps the compiler from leaving them out. */
static uint64_t read_all(const struct gguf *g)
{
    uint64_t sum = gguf_structure_hash(g) + gguf_content_hash(g) + gguf_data_bytes(g);
    for (size_t i = 0; i < gguf_kv_count(g); i++) {
        const struct gguf_value *v = gguf_kv_value(g, i);
        if (gguf_find(g, gguf_kv_key(g, i)) != v)
            abort();
        for (uint64_t j = 0; j < v->count; j++) {
            double f;
            if (v->elem == GGUF_STRING)
                sum += hash_bytes(v->strings[j].data, v->strings[j].len);
            else if (gguf_value_f64(v, j, &f))
                sum += f > 0;
        }
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        if (gguf_tensor(g, t->name) != t)
            abort();
        if (t->data)
            sum += hash_bytes(t->data, t->bytes);
    }
    return sum;
}

static void tokenize(const struct gguf *g)
{
    static const char text[] =
        "a b  ab\n\xc3\x81\xcc\x81'LL 1234\xe4\xb8\xad\xff<|im_end|>\xe2\x96\x81.";
    struct oato_error err;
    struct tokenizer *t;
    int32_t *ids;
    size_t n;
    if (tokenizer_create(g, &t, &err))
        return;
    if (tokenizer_encode(t, text, sizeof text, TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, &ids,
                         &n, &err) == OATO_OK) {
        const char *piece;
        size_t len;
        for (size_t i = 0; i < n; i++)
            if (!tokenizer_piece(t, ids[i], true, &piece, &len))
                abort();
        free(ids);
    }
    tokenizer_free(t);
}

/* The same bytes as the beginning of a longer file. */
static void take_head(const uint8_t *data, size_t bytes)
{
    struct oato_error err;
    struct gguf *g;
    uint64_t needs;
    const oato_status status = gguf_head_needs(data, bytes, "fuzz", &needs, &err);
    if (status ? status != OATO_EFILE || needs : needs && needs <= bytes)
        abort();
    if (!gguf_open_head_memory(data, bytes, "fuzz", &g, &err)) {
        if (status || needs || !gguf_header_only(g))
            abort();
        sink += gguf_structure_hash(g);
        gguf_close(g);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct oato_error err;
    struct gguf *g;
    take_head(data, bytes);
    oato_status status = gguf_open_memory(data, bytes, "fuzz", &g, &err);
    if (status) {
        if (status != OATO_EFILE || err.status != OATO_EFILE || g || !err.text[0])
            abort();
        return 0;
    }
    sink += read_all(g);
    tokenize(g);
    struct model *m;
    if (model_from_gguf(g, &m, &err) && (m || !err.text[0]))
        abort();
    model_close(m);
    return 0;
}
