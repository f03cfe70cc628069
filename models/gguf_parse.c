/*
 * gguf_parse.c - the header of one GGUF file (version 2 or 3, little-endian) from untrusted
 * bytes: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 * Promises: nothing outside the file is read; a count is accepted only when the remaining
 * bytes could hold that many; no product or sum wraps; names are unique and complete; each tensor
 * is inside the file, at the padded sum of the sizes before it. Callers need no further checks.
 */
#include "models/gguf_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read in place");

enum {
    KV_LEAST_BYTES = 8 + 1 + 4 + 1,             /* key, type, value */
    TENSOR_LEAST_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* name, n_dims, ne[0], type, offset */
};

struct cursor {
    const uint8_t *data;
    size_t at, bytes;
    struct oato_error *err;
    uint64_t *needs;      /* of the beginning of a file; NULL: it is all there is */
    uint64_t after, then; /* bytes at least of what follows an item; and in its array behind it */
};

/* Notes that an item ends at `end` at the earliest, for who has only the beginning; a header that
 * would be larger than any is damaged, and nothing is noted. */
static void note_end(const struct cursor *c, uint64_t end)
{
    if (c->needs && end <= GGUF_HEAD_MOST && c->after + c->then <= GGUF_HEAD_MOST - end)
        *c->needs = end + c->after + c->then;
}

size_t gguf_scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[GGUF_TYPE_COUNT] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return type < GGUF_TYPE_COUNT ? bytes[type] : 0;
}

bool gguf_alignment_ok(uint64_t alignment)
{
    return alignment >= GGUF_MIN_ALIGNMENT && alignment <= GGUF_MAX_ALIGNMENT &&
           !(alignment & (alignment - 1));
}

bool gguf_tensor_bytes(oato_dtype dtype, int32_t n_dims, const int64_t *ne, size_t *out)
{
    size_t bytes, elements = 1;
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return false;
    for (int i = 0; i < n_dims; i++)
        if (ne[i] < 1 || !size_mul(elements, (size_t)ne[i], &elements) || elements > INT64_MAX)
            return false;
    if (!dtype_row_bytes(dtype, ne[0], &bytes))
        return false;
    return size_mul(bytes, elements / (size_t)ne[0], out) && *out <= INT64_MAX;
}

struct gguf_shown gguf_show(const char *name, size_t n)
{
    struct gguf_shown s;
    size_t shown = n < GGUF_MAX_NAME ? n : GGUF_MAX_NAME;
    for (size_t i = 0; i < shown; i++)
        s.text[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
    snprintf(s.text + shown, sizeof s.text - shown, "%s", n > shown ? "..." : "");
    return s;
}

static size_t cursor_left(const struct cursor *c)
{
    return c->bytes - c->at;
}

static oato_status take(struct cursor *c, size_t n, const char *what, void *out)
{
    if (n > cursor_left(c)) {
        note_end(c, c->at + n);
        return oato_fail(c->err, OATO_EFILE,
                         "ends at byte %zu inside %s, which begins at byte %zu: the file is cut "
                         "short or damaged, fetch it again",
                         c->bytes, what, c->at);
    }
    memcpy(out, c->data + c->at, n);
    c->at += n;
    return OATO_OK;
}

static oato_status take_string(struct cursor *c, const char *what, struct gguf_string *out)
{
    uint64_t len = 0;
    if (take(c, sizeof len, what, &len))
        return c->err->status;
    if (len > cursor_left(c)) {
        note_end(c, len <= GGUF_HEAD_MOST ? c->at + len : len);
        return oato_fail(c->err, OATO_EFILE,
                         "byte %zu: %s of %" PRIu64 " bytes, but only %zu bytes follow: the file "
                         "is cut short or damaged, fetch it again",
                         c->at - sizeof len, what, len, cursor_left(c));
    }
    out->data = (const char *)c->data + c->at;
    out->len = (size_t)len;
    c->at += out->len;
    return OATO_OK;
}

/* A key or a tensor's name: not empty, no zero byte, at most `most` bytes; copied. */
static oato_status take_name(struct cursor *c, struct arena *arena, const char *what, size_t most,
                             const char **out)
{
    struct gguf_string s = {NULL, 0};
    size_t at = c->at;
    if (take_string(c, what, &s))
        return c->err->status;
    if (s.len == 0 || s.len > most || memchr(s.data, 0, s.len))
        return oato_fail(c->err, OATO_EFILE,
                         "byte %zu: %s '%s' of %zu bytes: must be 1 to %zu non-zero bytes", at,
                         what, gguf_show(s.data, s.len).text, s.len, most);
    *out = arena_strndup(arena, s.data, s.len);
    return *out ? OATO_OK : oato_fail_memory(c->err, s.len + 1, what);
}

static oato_status take_array(struct cursor *c, struct arena *arena, const char *key,
                              struct gguf_value *v)
{
    uint32_t elem = 0;
    size_t at = c->at;
    if (take(c, sizeof elem, "an array's type", &elem) ||
        take(c, sizeof v->count, "an array's length", &v->count))
        return c->err->status;
    size_t least = elem == GGUF_STRING ? sizeof(uint64_t) : gguf_scalar_bytes(elem);
    if (!least)
        return oato_fail(c->err, OATO_EFILE,
                         "byte %zu: key '%s': array of element type %" PRIu32
                         ": 0 to 12 except 9 (array in array) can be read",
                         at, gguf_show(key, strlen(key)).text, elem);
    if (v->count > cursor_left(c) / least) {
        note_end(c, v->count <= GGUF_HEAD_MOST ? c->at + v->count * least : v->count);
        return oato_fail(c->err, OATO_EFILE,
                         "byte %zu: key '%s': array of %" PRIu64
                         " elements, but only %zu bytes follow: the file is cut short or damaged",
                         at, gguf_show(key, strlen(key)).text, v->count, cursor_left(c));
    }
    v->elem = (enum gguf_type)elem;
    v->data = c->data + c->at;
    if (elem != GGUF_STRING) {
        c->at += (size_t)v->count * least;
        return OATO_OK;
    }
    struct gguf_string *s = arena_alloc(arena, (size_t)v->count, sizeof *s);
    if (!s)
        return oato_fail_memory(c->err, (size_t)v->count * sizeof *s, "an array of strings");
    v->strings = s;
    for (size_t i = 0; i < v->count; i++) {
        c->then = (v->count - i - 1) * least;
        if (take_string(c, "a string of an array", &s[i]))
            return oato_fail_at(c->err, "key '%s'", gguf_show(key, strlen(key)).text);
    }
    return OATO_OK;
}

static oato_status take_kv(struct cursor *c, struct arena *arena, struct gguf_kv *kv)
{
    uint32_t type = 0;
    if (take_name(c, arena, "a key", GGUF_MAX_KEY, &kv->key) ||
        take(c, sizeof type, "a value's type", &type))
        return c->err->status;
    struct gguf_value *v = &kv->value;
    v->type = v->elem = (enum gguf_type)type;
    v->count = 1;
    if (type == GGUF_ARRAY)
        return take_array(c, arena, kv->key, v);
    if (type == GGUF_STRING) {
        v->strings = &kv->one;
        return take_string(c, "a string", &kv->one);
    }
    size_t bytes = gguf_scalar_bytes(type);
    if (!bytes)
        return oato_fail(c->err, OATO_EFILE,
                         "byte %zu: key '%s' has value type %" PRIu32 ": 0 to 12 are defined",
                         c->at - sizeof type, gguf_show(kv->key, strlen(kv->key)).text, type);
    uint8_t ignored[8]; /* scalars are read where they lie; take only checks the room */
    v->data = c->data + c->at;
    return take(c, bytes, "a value", ignored);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(**(const char *const *const *)a, **(const char *const *const *)b);
}

void *name_index(struct arena *arena, const void *items, size_t n, size_t size, const char *what,
                 struct oato_error *err)
{
    const void **index = arena_alloc(arena, n, sizeof *index);
    if (!index)
        oato_fail_memory(err, n * sizeof *index, "an index of names");
    for (size_t i = 0; index && i < n; i++)
        index[i] = (const char *)items + i * size;
    if (index)
        qsort(index, n, sizeof *index, compare_names);
    for (size_t i = 1; index && i < n; i++) {
        if (compare_names(&index[i - 1], &index[i]) != 0)
            continue;
        const char *name = *(const char *const *)index[i];
        oato_fail(err, OATO_EFILE, "duplicate %s '%s': convert the model again", what,
                  gguf_show(name, strlen(name)).text);
        return NULL;
    }
    return index;
}

const void *name_find(const void *index, size_t n, const char *name)
{
    const char *const *const wanted = &name;
    const void *const *hit = bsearch(&wanted, index, n, sizeof wanted, compare_names);
    return hit ? *hit : NULL;
}

const struct gguf_value *gguf_header_find(const struct gguf_header *h, const char *key)
{
    const struct gguf_kv *kv = name_find(h->kv_by_key, h->n_kv, key);
    return kv ? &kv->value : NULL;
}

static oato_status read_alignment(const struct gguf_header *h, size_t *out, struct oato_error *err)
{
    uint32_t a = GGUF_DEFAULT_ALIGNMENT;
    const struct gguf_value *v = gguf_header_find(h, GGUF_KEY_ALIGNMENT);
    if (v && v->type != GGUF_U32)
        return oato_fail(err, OATO_EFILE,
                         "key '" GGUF_KEY_ALIGNMENT "' has value type %d: it must be 4 (uint32)",
                         (int)v->type);
    if (v)
        memcpy(&a, v->data, sizeof a);
    if (!gguf_alignment_ok(a))
        return oato_fail(err, OATO_EFILE,
                         "key '" GGUF_KEY_ALIGNMENT "' is %" PRIu32
                         ": a power of two from %d to %d is allowed",
                         a, GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    *out = a;
    return OATO_OK;
}

static oato_status fail_type(struct cursor *c, const char *name, uint32_t type)
{
    struct text known;
    text_init(&known);
    for (int i = 0; i < DT_COUNT; i++)
        if (dtype_info(i))
            text_printf(&known, " %s", dtype_info(i)->name);
    oato_status status =
        oato_fail(c->err, OATO_EFILE,
                  "tensor '%s' has type %" PRIu32
                  ", which this version cannot read: quantise the model to one of%s",
                  name, type, known.data ? known.data : " the supported types");
    text_free(&known);
    return status;
}

/* Everything about a tensor except where its data lies; *offset is what the file says. */
static oato_status take_tensor(struct cursor *c, struct arena *arena, struct gguf_tensor *t,
                               uint64_t *offset)
{
    uint32_t n_dims = 0, type = 0;
    if (take_name(c, arena, "a tensor's name", GGUF_MAX_NAME, &t->name) ||
        take(c, sizeof n_dims, "a tensor's number of dimensions", &n_dims))
        return c->err->status;
    struct gguf_shown name = gguf_show(t->name, strlen(t->name));
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return oato_fail(c->err, OATO_EFILE,
                         "tensor '%s' has %" PRIu32 " dimensions: 1 to %d are allowed", name.text,
                         n_dims, GGUF_MAX_DIMS);
    t->n_dims = (int32_t)n_dims;
    for (int i = 0; i < GGUF_MAX_DIMS; i++)
        t->ne[i] = 1;
    if (take(c, n_dims * sizeof t->ne[0], "a tensor's dimensions", t->ne) ||
        take(c, sizeof type, "a tensor's type", &type) ||
        take(c, sizeof *offset, "a tensor's offset", offset))
        return c->err->status;
    const struct dtype_info *info = type < DT_COUNT ? dtype_info((int)type) : NULL;
    if (!info)
        return fail_type(c, name.text, type);
    t->dtype = (oato_dtype)type;
    if (!gguf_tensor_bytes(t->dtype, t->n_dims, t->ne, &t->bytes))
        return oato_fail(c->err, OATO_EFILE,
                         "tensor '%s' of type %s has shape %" PRId64 " x %" PRId64 " x %" PRId64
                         " x %" PRId64 ": each must be at least 1, the first a multiple of %d, "
                         "the tensor less than 2^63 bytes",
                         name.text, info->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3],
                         info->block_elems);
    return OATO_OK;
}

static oato_status take_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_kv)
{
    uint8_t magic[4];
    uint32_t version = 0;
    if (c->needs && c->bytes < sizeof magic) /* damage shows in whatever there is */
        note_end(c, sizeof magic);
    if (c->bytes < sizeof magic || (memcmp(c->data, "GGUF", sizeof magic) != 0 &&
                                    memcmp(c->data, GGUF_POWERINFER, sizeof magic) != 0))
        return oato_fail(c->err, OATO_EFILE, "does not begin with 'GGUF': it is not a GGUF file");
    if (take(c, sizeof magic, "the magic", magic) ||
        take(c, sizeof version, "the version", &version))
        return c->err->status;
    if (version && !(version & 0xffff))
        return oato_fail(c->err, OATO_EFILE,
                         "version %" PRIu32 " is byte-swapped: the file is big-endian; convert it "
                         "to little-endian (gguf-convert-endian of the gguf package)",
                         __builtin_bswap32(version));
    if (version != 2 && version != 3)
        return oato_fail(c->err, OATO_EFILE,
                         "GGUF version %" PRIu32
                         ": versions 2 and 3 can be read; convert the model "
                         "again with a current tool",
                         version);
    if (take(c, sizeof *n_tensors, "the number of tensors", n_tensors) ||
        take(c, sizeof *n_kv, "the number of keys", n_kv))
        return c->err->status;
    if (*n_kv > cursor_left(c) / KV_LEAST_BYTES ||
        *n_tensors > cursor_left(c) / TENSOR_LEAST_BYTES) {
        if (*n_kv <= GGUF_HEAD_MOST / KV_LEAST_BYTES &&
            *n_tensors <= GGUF_HEAD_MOST / TENSOR_LEAST_BYTES)
            note_end(c, c->at + *n_kv * KV_LEAST_BYTES + *n_tensors * TENSOR_LEAST_BYTES);
        return oato_fail(c->err, OATO_EFILE,
                         "claims %" PRIu64 " keys and %" PRIu64 " tensors, which do not fit in the "
                         "%zu bytes that follow: the file is cut short or damaged",
                         *n_kv, *n_tensors, cursor_left(c));
    }
    return OATO_OK;
}

/* Offsets must be what a writer that pads each tensor to the alignment makes: anything else may
 * overlap or point outside, and no tool writes it. */
static oato_status place_tensors(const struct mapped_file *file, struct gguf_header *h,
                                 const uint64_t *offsets, size_t begin, size_t alignment,
                                 struct oato_error *err)
{
    size_t at = 0, end;
    for (size_t i = 0; i < h->n_tensors; i++) {
        struct gguf_tensor *t = &h->tensors[i];
        struct gguf_shown name = gguf_show(t->name, strlen(t->name));
        if (offsets[i] != at)
            return oato_fail(err, OATO_EFILE,
                             "tensor '%s' has offset %" PRIu64 ", but those before it end at %zu "
                             "(aligned to %zu): the file is damaged",
                             name.text, offsets[i], at, alignment);
        if (!size_add(at, t->bytes, &end) || !size_add(end, begin, &end) ||
            end > SIZE_MAX - alignment)
            return oato_fail(err, OATO_EFILE,
                             "tensor '%s' of %zu bytes: the sum of sizes overflows", name.text,
                             t->bytes);
        if (!h->header_only && end > file->bytes)
            return oato_fail(err, OATO_EFILE,
                             "tensor '%s' ends at byte %zu, but the file has %zu bytes: it is cut "
                             "short, fetch it again",
                             name.text, end, file->bytes);
        t->file = file;
        t->data = h->header_only ? NULL : file->data + begin + at;
        at = size_align(at + t->bytes, alignment);
    }
    return OATO_OK;
}

oato_status gguf_parse(const struct mapped_file *file, struct arena *arena, struct gguf_header *out,
                       uint64_t *needs, struct oato_error *err)
{
    struct cursor c = {file->data, 0, file->bytes, err, needs, 0, 0};
    uint64_t n_tensors = 0, n_kv = 0;
    memset(out, 0, sizeof *out);
    if (take_header(&c, &n_tensors, &n_kv))
        return err->status;
    out->n_kv = (size_t)n_kv;
    out->n_tensors = (size_t)n_tensors;
    out->kv = arena_alloc(arena, out->n_kv, sizeof *out->kv);
    out->tensors = arena_alloc(arena, out->n_tensors, sizeof *out->tensors);
    uint64_t *offsets = arena_alloc(arena, out->n_tensors, sizeof *offsets);
    if (!out->kv || !out->tensors || !offsets)
        return oato_fail_memory(err, out->n_kv * sizeof *out->kv, "the metadata");
    for (size_t i = 0; i < out->n_kv; i++) {
        c.then = 0;
        c.after = (n_kv - i - 1) * KV_LEAST_BYTES + n_tensors * TENSOR_LEAST_BYTES;
        if (take_kv(&c, arena, &out->kv[i]))
            return err->status;
    }
    c.then = 0;
    size_t alignment = GGUF_DEFAULT_ALIGNMENT;
    out->kv_by_key = name_index(arena, out->kv, out->n_kv, sizeof *out->kv, "key", err);
    if (!out->kv_by_key || read_alignment(out, &alignment, err))
        return err->status;
    const struct gguf_value *v = gguf_header_find(out, GGUF_KEY_HEADER_ONLY);
    out->header_only = needs || (v && v->type == GGUF_BOOL && *v->data);
    for (size_t i = 0; i < out->n_tensors; i++) {
        c.after = (n_tensors - i - 1) * TENSOR_LEAST_BYTES;
        if (take_tensor(&c, arena, &out->tensors[i], &offsets[i]))
            return err->status;
    }
    return place_tensors(file, out, offsets, size_align(c.at, alignment), alignment, err);
}
