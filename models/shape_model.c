/*
 * shape_model.c - the header of a model that is a shape alone: its keys, and the tensors that its
 * architecture then asks for, of the types that a file of its mix has.
 */
#include "models/models_internal.h"
#include "models/shape_internal.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_SIZE = 128, LIST_SIZE = 256 };

static const char *full_key(char full[KEY_SIZE], const char *architecture, const char *key)
{
    snprintf(full, KEY_SIZE, "%.24s.%.96s", architecture, key);
    return full;
}

static void put_u32(struct gguf_writer *w, const char *architecture, const char *key, int64_t v)
{
    char full[KEY_SIZE];
    uint32_t u = (uint32_t)v;
    gguf_writer_scalar(w, full_key(full, architecture, key), GGUF_U32, &u);
}

static void put_f32(struct gguf_writer *w, const char *architecture, const char *key, float v)
{
    char full[KEY_SIZE];
    gguf_writer_scalar(w, full_key(full, architecture, key), GGUF_F32, &v);
}

/* "1,0,0": integers of the layers; "true,false": bools. */
static void put_list(struct gguf_writer *w, const char *architecture, const char *key,
                     const char *list)
{
    char full[KEY_SIZE];
    const bool bools = *list == 't' || *list == 'f';
    int32_t v[LIST_SIZE];
    uint8_t flag[LIST_SIZE];
    uint64_t n = 0;
    for (const char *at = list; *at && n < LIST_SIZE; n++) {
        flag[n] = *at == 't';
        v[n] = bools ? 0 : (int32_t)strtol(at, NULL, 10);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    gguf_writer_array(w, full_key(full, architecture, key), bools ? GGUF_BOOL : GGUF_I32,
                      bools ? (const void *)flag : v, n);
}

static void put_words(struct gguf_writer *w, const char *architecture, const char *words)
{
    char word[SHAPE_KEYS];
    for (const char *at = words; *at; at += strspn(at, " ")) {
        const size_t n = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        at += n;
        char *value = strchr(word, '=');
        if (!value)
            continue;
        *value++ = 0;
        char full[KEY_SIZE];
        if (!strcmp(value, "true"))
            gguf_writer_scalar(w, full_key(full, architecture, word), GGUF_BOOL, &(bool){true});
        else if (strchr(value, ','))
            put_list(w, architecture, word, value);
        else if (*value >= 'a' && *value <= 'z')
            gguf_writer_string(w, full_key(full, architecture, word), value);
        else if (strchr(value, '.'))
            put_f32(w, architecture, word, strtof(value, NULL));
        else
            put_u32(w, architecture, word, strtoll(value, NULL, 10));
    }
}

void shape_put_keys(const struct shape_spec *s, const char *name, struct gguf_writer *w)
{
    const char *a = s->architecture;
    const int64_t head_dim = s->head_dim ? s->head_dim : s->width / s->heads;
    const uint32_t file_type = shape_file_type(s);
    gguf_writer_string(w, "general.architecture", a);
    gguf_writer_string(w, "general.type", "model");
    gguf_writer_string(w, "general.name", name);
    gguf_writer_scalar(w, "general.file_type", GGUF_U32, &file_type);
    put_u32(w, a, "block_count", s->layers);
    put_u32(w, a, "context_length", s->context);
    put_u32(w, a, "embedding_length", s->width);
    put_u32(w, a, "feed_forward_length", s->experts ? s->ffn * s->experts_used : s->ffn);
    if (s->experts) {
        put_u32(w, a, "expert_count", s->experts);
        put_u32(w, a, "expert_used_count", s->experts_used);
        put_u32(w, a, "expert_feed_forward_length", s->ffn);
    }
    put_u32(w, a, "attention.head_count", s->heads);
    put_u32(w, a, "attention.head_count_kv", s->kv_heads);
    put_f32(w, a, "rope.freq_base", 10000.0f);
    put_f32(w, a, "attention.layer_norm_rms_epsilon", 1e-5f);
    put_u32(w, a, "vocab_size", s->vocab);
    if (head_dim * s->heads != s->width) {
        put_u32(w, a, "attention.key_length", head_dim);
        put_u32(w, a, "attention.value_length", head_dim);
    }
    put_u32(w, a, "rope.dimension_count", head_dim);
    put_words(w, a, s->keys);
    gguf_writer_scalar(w, "general.quantization_version", GGUF_U32, &(uint32_t){2});
}

struct list {
    const struct shape_spec *shape;
    struct arena *arena;
    struct gguf_tensor **rows; /* they stay where they are while the graph is built */
    size_t n, cap;
    struct oato_error *err;
};

static bool is_wanted(const struct shape_spec *s, const char *name)
{
    return !strcmp(name, "output.weight") ? !s->tied : shape_word_in(s->optional, name);
}

static const struct gguf_tensor *list_tensor(void *context, const char *name, const int64_t ne[3],
                                             bool optional)
{
    struct list *l = context;
    if (optional && !is_wanted(l->shape, name))
        return NULL;
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->rows[i]->name, name))
            return l->rows[i];
    struct gguf_tensor *t = arena_alloc(l->arena, 1, sizeof *t);
    char *copy = arena_strndup(l->arena, name, strlen(name));
    void *rows = array_room(l->rows, l->n, &l->cap, sizeof(struct gguf_tensor *));
    if (rows)
        l->rows = rows;
    if (!t || !copy || !rows) {
        oato_fail_memory(l->err, sizeof *t, "the list of tensors");
        return NULL;
    }
    *t = (struct gguf_tensor){.name = copy,
                              .n_dims = ne[2] > 1   ? 3
                                        : ne[1] > 1 ? 2
                                                    : 1,
                              .ne = {ne[0], ne[1], ne[2], 1}};
    shape_set_types(l->shape, &t, 1); /* for the graph; of a mix it is settled below */
    return l->rows[l->n++] = t;
}

/* Bytes of each, in one array. */
static oato_status finish_list(struct list *l, struct gguf_tensor **out, struct oato_error *err)
{
    struct gguf_tensor *all = arena_alloc(l->arena, l->n, sizeof *all);
    if (!all)
        return oato_fail_memory(err, l->n * sizeof *all, "the list of tensors");
    shape_set_types(l->shape, l->rows, l->n);
    for (size_t i = 0; i < l->n; i++) {
        all[i] = *l->rows[i];
        if (!dtype_row_bytes(all[i].dtype, all[i].ne[0], &all[i].bytes) ||
            !size_mul(all[i].bytes, (size_t)all[i].ne[1], &all[i].bytes) ||
            !size_mul(all[i].bytes, (size_t)all[i].ne[2], &all[i].bytes))
            return oato_fail(err, OATO_EUSAGE, "tensor '%s' is too large", all[i].name);
    }
    *out = all;
    return OATO_OK;
}

oato_status shape_tensors(const struct shape_spec *s, struct arena *arena, struct gguf_tensor **out,
                          size_t *n, struct oato_error *err)
{
    struct list l = {.shape = s, .arena = arena, .err = err};
    struct gguf_writer *w = gguf_writer_create();
    struct gguf *keys = NULL;
    if (!w)
        return oato_fail_memory(err, sizeof *s, "a header");
    shape_put_keys(s, s->name, w);
    oato_status status = gguf_writer_open(w, s->name, &keys, err);
    gguf_writer_free(w);
    if (!status)
        status = model_list_tensors(keys, list_tensor, &l, err);
    gguf_close(keys);
    if (status == OATO_EFILE)
        status = err->status = OATO_EUSAGE;
    if (!status)
        status = finish_list(&l, out, err);
    *n = l.n;
    free(l.rows);
    return status;
}

oato_status shape_open(const struct shape_spec *s, struct gguf **out, struct oato_error *err)
{
    struct arena arena;
    struct gguf_tensor *tensors = NULL;
    char name[2 * SHAPE_NAME];
    size_t n = 0;
    *out = NULL;
    snprintf(name, sizeof name, "%s:%s", s->name, s->mix ? mix_name(s->mix) : dtype_name(s->dtype));
    arena_init(&arena);
    oato_status status = shape_tensors(s, &arena, &tensors, &n, err);
    struct gguf_writer *w = status ? NULL : gguf_writer_create();
    if (!status && !w)
        status = oato_fail_memory(err, sizeof *s, "a header");
    if (!status) {
        shape_put_keys(s, s->title, w);
        gguf_writer_string(w, "tokenizer.ggml.model", "none");
        for (size_t i = 0; tensors && i < n; i++)
            gguf_writer_tensor(w, tensors[i].name, tensors[i].dtype, tensors[i].n_dims,
                               tensors[i].ne, NULL);
        status = gguf_writer_open(w, name, out, err);
    }
    gguf_writer_free(w);
    arena_free(&arena);
    return status;
}
