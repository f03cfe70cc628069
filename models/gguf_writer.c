/*
 * gguf_writer.c - collects keys and tensors and writes a GGUF version 3 file whose offsets are the
 * padded sums that gguf_parse.c demands. Setting a key again replaces its value. The first mistake
 * or failed allocation is kept and returned by gguf_writer_save, so that callers need not check
 * each call. When no tensor has data the file is marked oato.header_only.
 */
#include "models/gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct gguf_writer {
    struct arena arena;
    struct gguf_kv *kv;
    size_t n_kv, cap_kv;
    struct gguf_tensor *tensors;
    size_t n_tensors, cap_tensors;
    struct oato_error failure; /* status OATO_OK until something failed */
};

struct output {
    struct outfile file;
    struct text *memory; /* in place of the file */
    size_t at;
    struct oato_error *err;
};

static const uint8_t zeros[4096];

struct gguf_writer *gguf_writer_create(void)
{
    struct gguf_writer *w = calloc(1, sizeof *w);
    if (w)
        arena_init(&w->arena);
    return w;
}

void gguf_writer_free(struct gguf_writer *w)
{
    if (!w)
        return;
    free(w->kv);
    free(w->tensors);
    arena_free(&w->arena);
    free(w);
}

static void fail_memory(struct gguf_writer *w, size_t bytes)
{
    if (!w->failure.status)
        oato_fail_memory(&w->failure, bytes, "what is to be written");
}

static void *copy(struct gguf_writer *w, const void *data, size_t count, size_t size)
{
    void *p = arena_alloc(&w->arena, count, size);
    if (!p)
        fail_memory(w, count * size);
    else if (count)
        memcpy(p, data, count * size);
    return p;
}

/* The entry of key, new or with its old value dropped; NULL after a failure. */
static struct gguf_kv *put_key(struct gguf_writer *w, const char *key)
{
    size_t len = strlen(key);
    if (w->failure.status)
        return NULL;
    if (len == 0 || len > GGUF_MAX_KEY) {
        oato_fail(&w->failure, OATO_EUSAGE, "key '%s' of %zu bytes: 1 to %d are allowed",
                  gguf_show(key, len).text, len, GGUF_MAX_KEY);
        return NULL;
    }
    for (size_t i = 0; i < w->n_kv; i++)
        if (!strcmp(w->kv[i].key, key))
            return &w->kv[i];
    char *name = copy(w, key, len + 1, 1);
    struct gguf_kv *kv = name ? array_room(w->kv, w->n_kv, &w->cap_kv, sizeof *kv) : NULL;
    if (!kv) {
        fail_memory(w, w->cap_kv * sizeof *kv);
        return NULL;
    }
    w->kv = kv;
    kv[w->n_kv] = (struct gguf_kv){.key = name};
    return &kv[w->n_kv++];
}

static void put_value(struct gguf_writer *w, const char *key, struct gguf_value v)
{
    struct gguf_kv *kv = put_key(w, key);
    if (kv)
        kv->value = v;
}

static void fail_value_type(struct gguf_writer *w, const char *key, int type)
{
    if (!w->failure.status)
        oato_fail(&w->failure, OATO_EUSAGE, "key '%s': value type %d is not a scalar",
                  gguf_show(key, strlen(key)).text, type);
}

void gguf_writer_scalar(struct gguf_writer *w, const char *key, enum gguf_type type,
                        const void *value)
{
    size_t bytes = gguf_scalar_bytes(type);
    if (!bytes) {
        fail_value_type(w, key, (int)type);
        return;
    }
    const uint8_t *data = copy(w, value, bytes, 1);
    if (data)
        put_value(w, key, (struct gguf_value){type, type, 1, data, NULL});
}

void gguf_writer_array(struct gguf_writer *w, const char *key, enum gguf_type elem,
                       const void *data, uint64_t count)
{
    size_t bytes = gguf_scalar_bytes(elem);
    if (!bytes) {
        fail_value_type(w, key, (int)elem);
        return;
    }
    const uint8_t *held = copy(w, data, count, bytes);
    if (held)
        put_value(w, key, (struct gguf_value){GGUF_ARRAY, elem, count, held, NULL});
}

static struct gguf_string *copy_strings(struct gguf_writer *w, const struct gguf_string *s,
                                        uint64_t count)
{
    struct gguf_string *held = arena_alloc(&w->arena, count, sizeof *held);
    size_t bytes = 0;
    for (uint64_t i = 0; i < count; i++)
        bytes += s[i].len;
    char *at = arena_alloc(&w->arena, bytes, 1);
    if (!held || !at) {
        fail_memory(w, bytes);
        return NULL;
    }
    for (uint64_t i = 0; i < count; i++) {
        held[i] = (struct gguf_string){at, s[i].len};
        if (s[i].len)
            memcpy(at, s[i].data, s[i].len);
        at += s[i].len;
    }
    return held;
}

void gguf_writer_strings(struct gguf_writer *w, const char *key, const struct gguf_string *s,
                         uint64_t count)
{
    const struct gguf_string *held = copy_strings(w, s, count);
    if (held)
        put_value(w, key, (struct gguf_value){GGUF_ARRAY, GGUF_STRING, count, NULL, held});
}

void gguf_writer_string(struct gguf_writer *w, const char *key, const char *value)
{
    struct gguf_string s = {value, strlen(value)};
    const struct gguf_string *held = copy_strings(w, &s, 1);
    if (held)
        put_value(w, key, (struct gguf_value){GGUF_STRING, GGUF_STRING, 1, NULL, held});
}

static bool key_is_of_file(const char *key)
{
    return !strncmp(key, "split.", 6) || !strcmp(key, GGUF_KEY_ALIGNMENT) ||
           !strcmp(key, GGUF_KEY_HEADER_ONLY);
}

void gguf_writer_copy_kv(struct gguf_writer *w, const struct gguf *g)
{
    for (size_t i = 0; i < gguf_kv_count(g); i++)
        if (!key_is_of_file(gguf_kv_key(g, i)))
            put_value(w, gguf_kv_key(g, i), *gguf_kv_value(g, i));
}

void gguf_writer_tensor(struct gguf_writer *w, const char *name, oato_dtype dtype, int32_t n_dims,
                        const int64_t *ne, const void *data)
{
    struct gguf_tensor t = {.dtype = dtype, .n_dims = n_dims, .data = data};
    size_t len = strlen(name);
    if (w->failure.status)
        return;
    if (len == 0 || len > GGUF_MAX_NAME || !gguf_tensor_bytes(dtype, n_dims, ne, &t.bytes)) {
        oato_fail(
            &w->failure, OATO_EUSAGE,
            "tensor '%s' of type %s with %d dimensions: the name must have 1 to %d bytes, rows "
            "must be whole blocks, with 1 to %d dimensions of at least 1",
            gguf_show(name, len).text, dtype_name(dtype), n_dims, GGUF_MAX_NAME, GGUF_MAX_DIMS);
        return;
    }
    memcpy(t.ne, ne, (size_t)n_dims * sizeof *ne);
    t.name = copy(w, name, len + 1, 1);
    struct gguf_tensor *all =
        t.name ? array_room(w->tensors, w->n_tensors, &w->cap_tensors, sizeof t) : NULL;
    if (!all)
        fail_memory(w, w->cap_tensors * sizeof t);
    else
        (w->tensors = all)[w->n_tensors++] = t;
}

static void put(struct output *o, const void *data, size_t bytes)
{
    if (o->err->status)
        return;
    if (o->memory)
        text_add(o->memory, data, bytes);
    else
        outfile_write(&o->file, data, bytes, o->err);
    o->at += bytes;
}

static void put_u32(struct output *o, uint32_t v)
{
    put(o, &v, sizeof v);
}

static void put_u64(struct output *o, uint64_t v)
{
    put(o, &v, sizeof v);
}

static void put_string(struct output *o, const char *s, size_t n)
{
    put_u64(o, n);
    put(o, s, n);
}

static void put_padding(struct output *o, size_t alignment)
{
    for (size_t left = size_align(o->at, alignment) - o->at; left && !o->err->status;) {
        size_t n = left < sizeof zeros ? left : sizeof zeros;
        put(o, zeros, n);
        left -= n;
    }
}

static void put_kv(struct output *o, const struct gguf_kv *kv)
{
    const struct gguf_value *v = &kv->value;
    put_string(o, kv->key, strlen(kv->key));
    put_u32(o, (uint32_t)v->type);
    if (v->type == GGUF_ARRAY) {
        put_u32(o, (uint32_t)v->elem);
        put_u64(o, v->count);
    }
    if (v->elem != GGUF_STRING)
        put(o, v->data, v->count * gguf_scalar_bytes(v->elem));
    else
        for (uint64_t i = 0; i < v->count; i++)
            put_string(o, v->strings[i].data, v->strings[i].len);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void check_names(struct gguf_writer *w)
{
    const char **names = arena_alloc(&w->arena, w->n_tensors, sizeof *names);
    if (!names) {
        fail_memory(w, w->n_tensors * sizeof *names);
        return;
    }
    for (size_t i = 0; i < w->n_tensors; i++)
        names[i] = w->tensors[i].name;
    qsort(names, w->n_tensors, sizeof *names, compare_names);
    for (size_t i = 1; i < w->n_tensors; i++)
        if (!strcmp(names[i], names[i - 1]))
            oato_fail(&w->failure, OATO_EUSAGE, "tensor '%s' was added twice",
                      gguf_show(names[i], strlen(names[i])).text);
}

/* Settles what depends on the whole: the header-only mark, the alignment, unique names. */
static size_t finish(struct gguf_writer *w)
{
    size_t with_data = 0;
    uint32_t alignment = GGUF_DEFAULT_ALIGNMENT;
    for (size_t i = 0; i < w->n_tensors; i++)
        with_data += w->tensors[i].data != NULL;
    if (w->n_tensors && !with_data)
        gguf_writer_scalar(w, GGUF_KEY_HEADER_ONLY, GGUF_BOOL, &(uint8_t){1});
    else if (with_data != w->n_tensors && !w->failure.status)
        oato_fail(&w->failure, OATO_EUSAGE, "%zu of %zu tensors have data: either all or none must",
                  with_data, w->n_tensors);
    for (size_t i = 0; i < w->n_kv; i++) {
        if (strcmp(w->kv[i].key, GGUF_KEY_ALIGNMENT) != 0)
            continue;
        if (w->kv[i].value.type == GGUF_U32)
            memcpy(&alignment, w->kv[i].value.data, sizeof alignment);
        if ((w->kv[i].value.type != GGUF_U32 || !gguf_alignment_ok(alignment)) &&
            !w->failure.status)
            oato_fail(&w->failure, OATO_EUSAGE,
                      "key '" GGUF_KEY_ALIGNMENT "' must be a uint32 power of two from %d to %d",
                      GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    }
    if (!w->failure.status)
        check_names(w);
    return alignment;
}

/* Keys of ours are in headers and sidecars, which can be made again; models have none. */
static bool key_is_ours(const char *key)
{
    return !strncmp(key, "oato.", 5);
}

static bool file_is_ours(const char *path)
{
    struct oato_error err;
    struct gguf *g;
    bool ours = false;
    if (gguf_open(path, &g, &err))
        return false;
    for (size_t i = 0; i < gguf_kv_count(g); i++)
        ours |= key_is_ours(gguf_kv_key(g, i));
    gguf_close(g);
    return ours;
}

/* A file of ours replaces files of ours only; who writes a model may replace a model. */
static oato_status output_open(const struct gguf_writer *w, const char *path, struct outfile *f,
                               struct oato_error *err)
{
    bool ours = false;
    for (size_t i = 0; i < w->n_kv; i++)
        ours |= key_is_ours(w->kv[i].key);
    return !ours || file_is_ours(path) ? outfile_open_over(f, path, err)
                                       : outfile_open(f, path, err);
}

static void put_all(const struct gguf_writer *w, size_t alignment, struct output *o)
{
    put(o, "GGUF", 4);
    put_u32(o, GGUF_VERSION_WRITTEN);
    put_u64(o, w->n_tensors);
    put_u64(o, w->n_kv);
    for (size_t i = 0; i < w->n_kv; i++)
        put_kv(o, &w->kv[i]);
    uint64_t offset = 0;
    bool any_data = false;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct gguf_tensor *t = &w->tensors[i];
        put_string(o, t->name, strlen(t->name));
        put_u32(o, (uint32_t)t->n_dims);
        put(o, t->ne, (size_t)t->n_dims * sizeof t->ne[0]);
        put_u32(o, (uint32_t)t->dtype);
        put_u64(o, offset);
        offset += size_align(t->bytes, alignment);
        any_data |= t->data != NULL;
    }
    for (size_t i = 0; any_data && i < w->n_tensors; i++) {
        put_padding(o, alignment);
        put(o, w->tensors[i].data, w->tensors[i].bytes);
    }
    put_padding(o, alignment);
}

oato_status gguf_writer_save(struct gguf_writer *w, const char *path, struct oato_error *err)
{
    size_t alignment = finish(w);
    if (w->failure.status) {
        *err = w->failure;
        return oato_fail_at(err, "%s", path);
    }
    struct output o = {.err = err};
    if (output_open(w, path, &o.file, err))
        return err->status;
    err->status = OATO_OK;
    put_all(w, alignment, &o);
    /* a failed write has closed the file and taken the temporary name away already */
    return err->status ? err->status : outfile_commit(&o.file, err);
}

oato_status gguf_writer_open(struct gguf_writer *w, const char *name, struct gguf **out,
                             struct oato_error *err)
{
    size_t alignment = finish(w);
    struct text memory;
    *out = NULL;
    if (w->failure.status) {
        *err = w->failure;
        return oato_fail_at(err, "%s", name);
    }
    text_init(&memory);
    struct output o = {.memory = &memory, .err = err};
    err->status = OATO_OK;
    put_all(w, alignment, &o);
    oato_status status =
        memory.failed ? oato_fail_memory(err, memory.len, "a header") : err->status;
    if (!status)
        status = gguf_open_memory(memory.data, memory.len, name, out, err);
    if (status)
        text_free(&memory);
    else
        (*out)->owned = memory.data;
    return status;
}

oato_status gguf_save_header(const struct gguf *g, const char *path, struct oato_error *err)
{
    struct gguf_writer *w = gguf_writer_create();
    if (!w)
        return oato_fail_memory(err, sizeof *w, "a header");
    for (size_t i = 0; i < gguf_kv_count(g); i++) {
        const char *key = gguf_kv_key(g, i);
        if (!key_is_of_file(key) && strncmp(key, "tokenizer.", 10) != 0)
            put_value(w, key, *gguf_kv_value(g, i));
    }
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        gguf_writer_tensor(w, t->name, t->dtype, t->n_dims, t->ne, NULL);
    }
    oato_status status = gguf_writer_save(w, path, err);
    gguf_writer_free(w);
    return status;
}
