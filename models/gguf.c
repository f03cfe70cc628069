/*
 * gguf.c - an open model file: joins the parts of a split model into one handle and answers
 * lookups and typed reads. gguf_parse.c checks the header of each part; this file checks that
 * the parts belong together. Names are found by binary search in a sorted index, which also
 * gives gguf_hash.c its order.
 */
#include "models/gguf_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT_SUFFIX "-%05d-of-%05d.gguf" /* counted from 1, as llama-gguf-split names them */
enum { SPLIT_MOST = 99999 };

struct split {
    int64_t no, count; /* of one: 0 of 1 */
};

/* One array of all tensors, part after part, and their sum. */
static oato_status join_tensors(struct gguf *g, struct oato_error *err)
{
    for (const struct gguf_part *p = g->parts; p; p = p->next)
        g->n_tensors += p->header.n_tensors;
    g->tensors = g->named.header.tensors;
    if (g->n_tensors > g->named.header.n_tensors) {
        g->tensors = arena_alloc(&g->arena, g->n_tensors, sizeof *g->tensors);
        if (!g->tensors)
            return oato_fail_memory(err, g->n_tensors * sizeof *g->tensors, "the tensors");
        size_t n = 0;
        for (const struct gguf_part *p = g->parts; p; p = p->next) {
            if (p->header.n_tensors)
                memcpy(g->tensors + n, p->header.tensors, p->header.n_tensors * sizeof *g->tensors);
            n += p->header.n_tensors;
        }
    }
    for (size_t i = 0; i < g->n_tensors; i++)
        if (__builtin_add_overflow(g->data_bytes, g->tensors[i].bytes, &g->data_bytes))
            return oato_fail(err, OATO_EFILE, "%s: the sum of tensor sizes overflows", g->path);
    g->by_name = name_index(&g->arena, g->tensors, g->n_tensors, sizeof *g->tensors, "tensor", err);
    return g->by_name ? OATO_OK : oato_fail_at(err, "%s", g->path);
}

static oato_status part_parse(struct gguf *g, struct gguf_part *p, const char *path,
                              struct oato_error *err)
{
    uint64_t needs = 0;
    if (!gguf_parse(&p->file, &g->arena, &p->header, g->head ? &needs : NULL, err))
        return OATO_OK;
    if (needs)
        return oato_fail(err, OATO_EFILE,
                         "%s: its %.2f MB end inside the header: of the file at least the first "
                         "%.2f MB are needed, perhaps more; vocabularies make 1 to 20 MB",
                         path, (double)p->file.bytes * 1e-6, ceil((double)needs * 1e-4) * 1e-2);
    return oato_fail_at(err, "%s", path);
}

/* Maps and parses one file. On failure nothing is mapped. */
static oato_status part_open(struct gguf *g, struct gguf_part *p, const char *path,
                             struct oato_error *err)
{
    oato_status status = file_map(path, &p->file, err);
    if (status)
        return status;
    status = part_parse(g, p, path, err);
    if (status)
        file_unmap(&p->file);
    p->mapped = !status;
    return status;
}

static bool header_i64(const struct gguf_header *h, const char *key, int64_t *out)
{
    const struct gguf_value *v = gguf_header_find(h, key);
    return v && v->type != GGUF_ARRAY && gguf_value_i64(v, 0, out);
}

static oato_status read_split(const struct gguf_header *h, const char *path, struct split *out,
                              struct oato_error *err)
{
    *out = (struct split){0, 1};
    if (!gguf_header_find(h, GGUF_KEY_SPLIT_COUNT))
        return OATO_OK;
    if (!header_i64(h, GGUF_KEY_SPLIT_COUNT, &out->count) || out->count < 0 ||
        out->count > SPLIT_MOST)
        return oato_fail(err, OATO_EFILE,
                         "%s: key '" GGUF_KEY_SPLIT_COUNT "' must be an integer from 0 to %d", path,
                         SPLIT_MOST);
    if (out->count <= 1) {
        out->count = 1;
        return OATO_OK;
    }
    if (!header_i64(h, GGUF_KEY_SPLIT_NO, &out->no) || out->no < 0 || out->no >= out->count)
        return oato_fail(err, OATO_EFILE,
                         "%s: key '" GGUF_KEY_SPLIT_NO "' must be an integer from 0 to %" PRId64,
                         path, out->count - 1);
    return OATO_OK;
}

/* Opens part i of the model whose part `known` is open already. p is mapped even if it then turns
 * out to be the wrong one. */
static oato_status open_sibling(struct gguf *g, const char *stem, struct split known, int64_t i,
                                struct gguf_part *p, struct oato_error *err)
{
    struct text path;
    struct split s = {0};
    text_init(&path);
    text_printf(&path, "%s" SPLIT_SUFFIX, stem, (int)i + 1, (int)known.count);
    oato_status status = path.failed ? oato_fail_memory(err, strlen(stem), "a file name")
                                     : part_open(g, p, path.data, err);
    if (status)
        oato_fail_at(err, "part %" PRId64 " of %" PRId64 " of a split model", i + 1, known.count);
    else
        status = read_split(&p->header, path.data, &s, err);
    if (!status && (s.no != i || s.count != known.count))
        status = oato_fail(err, OATO_EFILE,
                           "%s: its header says part %" PRId64 " of %" PRId64
                           ", its name says otherwise: fetch the parts again",
                           path.data, s.no + 1, s.count);
    text_free(&path);
    return status;
}

static oato_status check_parts(const struct gguf *g, struct oato_error *err)
{
    int64_t total;
    size_t n = 0;
    for (const struct gguf_part *p = g->parts; p; p = p->next) {
        n += p->header.n_tensors;
        if (p->header.header_only != g->first->header_only)
            return oato_fail(err, OATO_EFILE,
                             "%s: some parts of this split model have data, others are marked "
                             "'" GGUF_KEY_HEADER_ONLY "': use parts of one kind",
                             g->path);
    }
    if (header_i64(g->first, GGUF_KEY_SPLIT_TOTAL, &total) && (total < 0 || (size_t)total != n))
        return oato_fail(err, OATO_EFILE,
                         "%s: the parts of this split model hold %zu tensors, but the first says "
                         "%" PRId64 ": fetch the parts again",
                         g->path, n, total);
    return OATO_OK;
}

/* The path without its "-00001-of-00003.gguf"; NULL with a message when it has none. */
static const char *split_stem(struct gguf *g, struct split s, struct oato_error *err)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, SPLIT_SUFFIX, (int)s.no + 1, (int)s.count);
    size_t n = strlen(g->path), n_suffix = strlen(suffix);
    if (n < n_suffix || strcmp(g->path + n - n_suffix, suffix) != 0) {
        oato_fail(err, OATO_EFILE,
                  "%s: is part %" PRId64 " of %" PRId64
                  ": its name must end in '%s' so that the others can be found",
                  g->path, s.no + 1, s.count, suffix);
        return NULL;
    }
    char *stem = arena_strndup(&g->arena, g->path, n - n_suffix);
    if (!stem)
        oato_fail_memory(err, n, "a file name");
    return stem;
}

static oato_status open_parts(struct gguf *g, struct oato_error *err)
{
    struct split s = {0, 1};
    oato_status status = part_open(g, &g->named, g->path, err);
    if (!status)
        status = read_split(&g->named.header, g->path, &s, err);
    if (status || s.count == 1)
        return status;
    const char *stem = split_stem(g, s, err);
    if (!stem)
        return err->status;
    struct gguf_part **at = &g->parts; /* where part i belongs; what is listed gets unmapped */
    for (int64_t i = 0; i < s.count && !status; i++) {
        struct gguf_part *p = &g->named;
        if (i != s.no) {
            p = arena_alloc(&g->arena, 1, sizeof *p);
            if (!p)
                return oato_fail_memory(err, sizeof *p, "a file");
            p->next = *at;
            *at = p;
            status = open_sibling(g, stem, s, i, p, err);
        }
        at = &p->next;
    }
    g->first = &g->parts->header;
    return status ? status : check_parts(g, err);
}

static struct gguf *gguf_create(const char *path, struct oato_error *err)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (g) {
        arena_init(&g->arena);
        g->parts = &g->named;
        g->first = &g->named.header;
        g->path = arena_strndup(&g->arena, path, strlen(path));
    }
    if (!g || !g->path) {
        gguf_close(g);
        oato_fail_memory(err, sizeof *g, "a model file");
        return NULL;
    }
    return g;
}

/* Hands on the model whose parts are open; closes it if they are not, or do not belong together. */
static oato_status gguf_finish(struct gguf *g, oato_status status, struct gguf **out,
                               struct oato_error *err)
{
    status = status ? status : join_tensors(g, err);
    if (status)
        gguf_close(g);
    else
        *out = g;
    return status;
}

static oato_status open_path(const char *path, bool head, struct gguf **out, struct oato_error *err)
{
    *out = NULL;
    struct gguf *g = gguf_create(path, err);
    if (!g)
        return err->status;
    g->head = head;
    return gguf_finish(g, open_parts(g, err), out, err);
}

oato_status gguf_open(const char *path, struct gguf **out, struct oato_error *err)
{
    return open_path(path, false, out, err);
}

oato_status gguf_open_head(const char *path, struct gguf **out, struct oato_error *err)
{
    return open_path(path, true, out, err);
}

static oato_status open_memory(const void *data, size_t bytes, const char *name, bool head,
                               struct gguf **out, struct oato_error *err)
{
    *out = NULL;
    struct gguf *g = gguf_create(name, err);
    if (!g)
        return err->status;
    struct split s = {0, 1};
    g->head = head;
    g->named.file = (struct mapped_file){.data = data, .bytes = bytes};
    oato_status status = part_parse(g, &g->named, name, err);
    if (!status)
        status = read_split(g->first, name, &s, err);
    if (!status && s.count > 1)
        status = oato_fail(err, OATO_EFILE,
                           "%s: is part %" PRId64 " of %" PRId64 " of a split model: open it by "
                           "its file name",
                           name, s.no + 1, s.count);
    return gguf_finish(g, status, out, err);
}

oato_status gguf_open_memory(const void *data, size_t bytes, const char *name, struct gguf **out,
                             struct oato_error *err)
{
    return open_memory(data, bytes, name, false, out, err);
}

oato_status gguf_open_head_memory(const void *data, size_t bytes, const char *name,
                                  struct gguf **out, struct oato_error *err)
{
    return open_memory(data, bytes, name, true, out, err);
}

oato_status gguf_head_needs(const void *data, size_t bytes, const char *name, uint64_t *needs,
                            struct oato_error *err)
{
    const struct mapped_file file = {.data = data, .bytes = bytes};
    struct gguf_header header;
    struct arena arena;
    *needs = 0;
    arena_init(&arena);
    oato_status status = gguf_parse(&file, &arena, &header, needs, err);
    arena_free(&arena);
    if (*needs)
        status = err->status = OATO_OK;
    return status ? oato_fail_at(err, "%s", name) : OATO_OK;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    for (struct gguf_part *p = g->parts; p; p = p->next)
        if (p->mapped)
            file_unmap(&p->file);
    arena_free(&g->arena);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

bool gguf_powerinfer(const struct gguf *g)
{
    return !memcmp(g->named.file.data, GGUF_POWERINFER, strlen(GGUF_POWERINFER));
}

bool gguf_header_only(const struct gguf *g)
{
    return g->first->header_only;
}

size_t gguf_kv_count(const struct gguf *g)
{
    return g->first->n_kv;
}

const char *gguf_kv_key(const struct gguf *g, size_t i)
{
    return g->first->kv[i].key;
}

const struct gguf_value *gguf_kv_value(const struct gguf *g, size_t i)
{
    return &g->first->kv[i].value;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    return gguf_header_find(g->first, key);
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    return name_find(g->by_name, g->n_tensors, name);
}

uint64_t gguf_data_bytes(const struct gguf *g)
{
    return g->data_bytes;
}

/* The raw element: i of an array, or the scalar. NULL when there is none. */
static const uint8_t *value_element(const struct gguf_value *v, uint64_t i)
{
    if (v->type != GGUF_ARRAY)
        i = 0;
    if (i >= v->count || v->elem == GGUF_STRING)
        return NULL;
    return v->data + i * gguf_scalar_bytes(v->elem);
}

bool gguf_value_i64(const struct gguf_value *v, uint64_t i, int64_t *out)
{
    const uint8_t *p = value_element(v, i);
    if (!p)
        return false;
    uint64_t u = 0; /* little-endian: the low bytes are the value, signs are put in below */
    memcpy(&u, p, gguf_scalar_bytes(v->elem));
    switch (v->elem) {
    case GGUF_I8: *out = u < 128 ? (int64_t)u : (int64_t)u - 256; return true;
    case GGUF_I16: *out = (int16_t)u; return true;
    case GGUF_I32: *out = (int32_t)u; return true;
    case GGUF_I64: *out = (int64_t)u; return true;
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        if (u > INT64_MAX)
            return false;
        *out = (int64_t)u;
        return true;
    default: return false;
    }
}

bool gguf_value_f64(const struct gguf_value *v, uint64_t i, double *out)
{
    const uint8_t *p = value_element(v, i);
    int64_t n;
    uint64_t u;
    float f;
    if (!p)
        return false;
    switch (v->elem) {
    case GGUF_F32:
        memcpy(&f, p, sizeof f);
        *out = f;
        return true;
    case GGUF_F64: memcpy(out, p, sizeof *out); return true;
    case GGUF_U64: /* may be beyond int64 */
        memcpy(&u, p, sizeof u);
        *out = (double)u;
        return true;
    default:
        if (!gguf_value_i64(v, i, &n))
            return false;
        *out = (double)n;
        return true;
    }
}

bool gguf_get_i64(const struct gguf *g, const char *key, int64_t *out)
{
    return header_i64(g->first, key, out);
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v || v->type != GGUF_BOOL)
        return false;
    *out = *v->data != 0;
    return true;
}

bool gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v || v->type != GGUF_STRING)
        return false;
    *out = v->strings[0];
    return true;
}
