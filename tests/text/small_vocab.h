/*
 * small_vocab.h - vocabularies small enough to see, as files and as tokenizers, and what a
 * tokenizer makes of a text; for the tests of tokenizers.
 */
#ifndef OATO_SMALL_VOCAB_H
#define OATO_SMALL_VOCAB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/tokens_internal.h"

enum { MAX_TOKENS = 400 };

/* A vocabulary to be; what is NULL, empty or -2 is not written. */
struct vocab {
    const char *model, *pre, *name;
    const char *texts[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    int n, n_types, n_scores;
    const char *merges[16];
    int n_merges;
    int32_t bos, eos, unknown;
    const uint8_t *map; /* precompiled_charsmap */
    size_t n_map;
    int add_bos, add_eos, add_space_prefix, lowercase, merge_spaces; /* -1: not written */
};

static char byte_texts[256][8];

static inline void vocab_init(struct vocab *v, const char *model)
{
    *v = (struct vocab){.model = model, .bos = -2, .eos = -2, .unknown = -2};
    v->add_bos = v->add_eos = v->add_space_prefix = v->lowercase = v->merge_spaces = -1;
}

static inline int add(struct vocab *v, const char *text, int32_t type, float score)
{
    v->texts[v->n] = text;
    v->types[v->n_types++] = type;
    v->scores[v->n_scores++] = score;
    return v->n++;
}

/* Byte tokens of SentencePiece. */
static inline void add_bytes(struct vocab *v)
{
    for (int b = 0; b < 256; b++) {
        snprintf(byte_texts[b], sizeof byte_texts[b], "<0x%02X>", (unsigned)b);
        add(v, byte_texts[b], TOKEN_BYTE, 0);
    }
}

static inline void write_strings(struct gguf_writer *w, const char *key, const char *const *s,
                                 int n)
{
    struct gguf_string list[MAX_TOKENS];
    for (int i = 0; i < n; i++)
        list[i] = (struct gguf_string){s[i], strlen(s[i])};
    gguf_writer_strings(w, key, list, (uint64_t)n);
}

static inline void write_u32(struct gguf_writer *w, const char *key, int32_t id)
{
    uint32_t u = (uint32_t)id;
    if (id != -2)
        gguf_writer_scalar(w, key, GGUF_U32, &u);
}

static inline void write_bool(struct gguf_writer *w, const char *key, int value)
{
    uint8_t b = value == 1;
    if (value != -1)
        gguf_writer_scalar(w, key, GGUF_BOOL, &b);
}

static inline struct gguf *saved(struct gguf_writer *w)
{
    struct oato_error err = {0};
    struct gguf *g = NULL;
    char path[] = "/tmp/oato-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    if (gguf_writer_save(w, path, &err) != OATO_OK || gguf_open(path, &g, &err) != OATO_OK)
        fail_msg("%s", err.text);
    gguf_writer_free(w);
    unlink(path);
    return g;
}

static inline struct gguf *file_of(const struct vocab *v)
{
    struct gguf_writer *w = gguf_writer_create();
    gguf_writer_string(w, "general.architecture", "llama");
    if (v->name)
        gguf_writer_string(w, "general.name", v->name);
    if (v->model)
        gguf_writer_string(w, "tokenizer.ggml.model", v->model);
    if (v->pre)
        gguf_writer_string(w, "tokenizer.ggml.pre", v->pre);
    if (v->n)
        write_strings(w, "tokenizer.ggml.tokens", v->texts, v->n);
    if (v->n_types)
        gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, v->types, (uint64_t)v->n_types);
    if (v->n_scores)
        gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, v->scores, (uint64_t)v->n_scores);
    if (v->n_merges)
        write_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    write_u32(w, "tokenizer.ggml.bos_token_id", v->bos);
    write_u32(w, "tokenizer.ggml.eos_token_id", v->eos);
    write_u32(w, "tokenizer.ggml.unknown_token_id", v->unknown);
    write_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos);
    write_bool(w, "tokenizer.ggml.add_eos_token", v->add_eos);
    write_bool(w, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
    write_bool(w, "tokenizer.ggml.normalizer.lowercase", v->lowercase);
    write_bool(w, "tokenizer.ggml.remove_extra_whitespaces", v->merge_spaces);
    if (v->map)
        gguf_writer_array(w, "tokenizer.ggml.precompiled_charsmap", GGUF_U8, v->map, v->n_map);
    return saved(w);
}

static inline struct tokenizer *made(const struct vocab *v)
{
    struct oato_error err = {0};
    struct tokenizer *t = NULL;
    struct gguf *g = file_of(v);
    if (tokenizer_create(g, &t, &err) != OATO_OK)
        fail_msg("%s", err.text);
    gguf_close(g); /* the tokenizer owns what it needs */
    return t;
}

/* Creating it fails with a line that says `what`. */
static inline void refused_file(struct gguf *g, const char *what)
{
    struct oato_error err = {0};
    struct tokenizer *t = NULL;
    assert_int_equal(tokenizer_create(g, &t, &err), OATO_EFILE);
    assert_null(t);
    if (!strstr(err.text, what) || strchr(err.text, '\n'))
        fail_msg("\"%s\" does not say \"%s\"", err.text, what);
    gguf_close(g);
}

static inline void refused(const struct vocab *v, const char *what)
{
    refused_file(file_of(v), what);
}

/* The text encodes to the ids (ended by -1); freed. */
static inline void gives(const struct tokenizer *t, const char *text, size_t n, int flags,
                         const int32_t *want)
{
    struct oato_error err = {0};
    int32_t *ids;
    size_t count, k = 0;
    if (tokenizer_encode(t, text, n, flags, &ids, &count, &err) != OATO_OK)
        fail_msg("%s", err.text);
    while (want[k] >= 0)
        k++;
    bool same = k == count;
    for (size_t i = 0; same && i < k; i++)
        same = ids[i] == want[i];
    if (!same) {
        for (size_t i = 0; i < count; i++)
            print_message(" %d", ids[i]);
        fail_msg(" are the ids of \"%.*s\"", (int)n, text);
    }
    free(ids);
}
#define GIVES(t, text, flags, ...)                                                                 \
    gives(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__, -1})

#endif
