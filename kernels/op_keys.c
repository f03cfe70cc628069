/*
 * op_keys.c - operators as keys of the profile. Fields are printed and read in the order of the
 * kind's row, so that a key has exactly one spelling and oato_op_parse gives back what oato_op_key
 * was given.
 */
#include "kernels/op_row.h"

#include <inttypes.h>
#include <string.h>

/* A number of a key: its letters, where it is kept and what is allowed. */
struct key_field {
    char letter;
    size_t offset;
    int32_t least, most;
    bool optional; /* left out where it is 0 */
};

/* Their ids and the widths that they multiply stay exact in float32 and within int32. */
enum { EXPERTS_MOST = 1 << 16 };

#define FIELD(letter, member, least, most)                                                         \
    {                                                                                              \
        letter, offsetof(struct oato_op, member), least, most, false                               \
    }
#define OPTIONAL(letter, member)                                                                   \
    {                                                                                              \
        letter, offsetof(struct oato_op, member), 1, INT32_MAX, true                               \
    }
static const struct key_field key_fields[] = {
    [F_K] = FIELD('k', k, 1, INT32_MAX),
    [F_N] = FIELD('n', n, 1, INT32_MAX),
    [F_N2] = FIELD('m', n2, 1, INT32_MAX),
    [F_HEADS] = FIELD('h', heads, 1, INT32_MAX),
    [F_KV_HEADS] = FIELD('g', kv_heads, 1, INT32_MAX),
    [F_HEAD_DIM] = FIELD('d', head_dim, 1, INT32_MAX),
    [F_ROPE_DIMS] = FIELD('r', rope_dims, 1, INT32_MAX),
    [F_PAIRING] = FIELD('p', rope_pairing, ROPE_ADJACENT, ROPE_HALVES),
    [F_EXPERTS] = FIELD('e', experts, 1, EXPERTS_MOST),
    [F_USED] = FIELD('u', experts_used, 1, EXPERTS_MOST),
    [F_STATE] = FIELD('s', state, 1, INT32_MAX),
    [F_CHANNELS] = FIELD('c', per_channel, 0, 1),
    [F_V_DIM] = OPTIONAL('v', v_dim),
    [F_V_IN_K] = OPTIONAL('c', v_in_k),
    [F_K_TAIL] = OPTIONAL('x', k_tail),
    [F_SHARE] = OPTIONAL('x', route_share),
    [F_SINGLE] = {'s', offsetof(struct oato_op, single), 1, 1, true},
    [F_UP_DTYPE] = OPTIONAL('y', up_dtype),
    [F_SPARSE] = {'z', offsetof(struct oato_op, sparse), 1, SPARSE_BY_ROWS, true},
};
#undef OPTIONAL
#undef FIELD

static int32_t *field_of(struct oato_op *op, const struct key_field *f)
{
    return (int32_t *)(void *)((char *)op + f->offset);
}

static int32_t field_value(const struct oato_op *op, const struct key_field *f)
{
    int32_t v;
    memcpy(&v, (const char *)op + f->offset, sizeof v);
    return v;
}

char *oato_op_key(const struct oato_op *op, const struct op_size *size, char out[OP_KEY_SIZE])
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    int n = snprintf(out, OP_KEY_SIZE, "%s", op_kind_name(op->kind));
    if (!row->name)
        return out;
    if (row->typed)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%s", dtype_name((oato_dtype)op->dtype));
    for (const uint8_t *id = row->fields; *id; id++) {
        const int32_t v = field_value(op, &key_fields[*id]);
        if (v || !key_fields[*id].optional)
            n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%c%" PRId32, key_fields[*id].letter,
                          v);
    }
    /* at most 15 + 8 + 4 * 13 bytes so far, and no kind with as many has all of what follows */
    if (size)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/t%" PRId32, size->rows);
    if (size && op_has_seqs(op->kind) && n < OP_KEY_SIZE)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/s%" PRId32,
                      (size->seqs > 1 ? size->seqs : 1));
    if (size && op->sparse && size->active > 0 && n < OP_KEY_SIZE)
        snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/a%" PRId32, size->active);
    if (size && op->kind == OP_ATTENTION && n < OP_KEY_SIZE)
        snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/kv%" PRId64, size->kv_positions);
    return out;
}

/* Reads "/" and the letters, then a number as printf writes it; *p moves behind it. */
static bool read_field(const char **p, const char *letters, int64_t least, int64_t most,
                       int64_t *out)
{
    size_t n = strlen(letters);
    const char *s = *p;
    if (*s != '/' || strncmp(s + 1, letters, n) != 0)
        return false;
    s += 1 + n;
    if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] >= '0' && s[1] <= '9'))
        return false;
    int64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (v > (INT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (*s - '0');
    }
    if (v < least || v > most)
        return false;
    *p = s;
    *out = v;
    return true;
}

/* The part of s up to the next '/' or the end, as a word; NULL when it is too long. */
static const char *read_word(const char **s, char *word, size_t size)
{
    size_t n = strcspn(*s, "/");
    if (n >= size)
        return NULL;
    memcpy(word, *s, n);
    word[n] = 0;
    *s += n;
    return word;
}

/* Sets a width that the key leaves out; false when it overflows. */
static bool set_implied(struct oato_op *op, enum width width, int32_t *out)
{
    const int64_t v = width == W_NONE ? *out : op_width(op, width);
    *out = (int32_t)v;
    return v <= INT32_MAX;
}

/* A token chooses no expert twice, and what all its experts give is one row. */
static bool choice_fits(const struct oato_op *op)
{
    int32_t widest = op->k > op->n ? op->k : op->n, row;
    return op->experts_used <= op->experts &&
           !__builtin_mul_overflow(widest, op->experts_used, &row);
}

static bool read_size(const char **p, const struct oato_op *op, struct op_size *size)
{
    int64_t v;
    if (!read_field(p, "t", 1, INT32_MAX, &v))
        return false;
    size->rows = (int32_t)v;
    if (op->sparse && **p) {
        const bool read = read_field(p, "a", 1, op_neurons(op), &v);
        size->active = (int32_t)v;
        return read;
    }
    if (!op_has_seqs(op->kind))
        return true;
    if (!read_field(p, "s", 1, INT32_MAX, &v))
        return false;
    size->seqs = (int32_t)v;
    return op->kind != OP_ATTENTION || read_field(p, "kv", 0, INT64_MAX, &size->kv_positions);
}

bool oato_op_parse(const char *key, struct oato_op *op, struct op_size *size)
{
    char word[16];
    const char *p = key;
    enum op_kind kind;
    struct oato_op o = {.dtype = DT_F32};
    struct op_size z = {.seqs = 1};
    if (!read_word(&p, word, sizeof word) || !op_kind_parse(word, &kind))
        return false;
    const struct op_kind_row *row = op_kind_row((int)kind);
    o.kind = (uint16_t)kind;
    if (row->typed) {
        oato_dtype dtype;
        if (*p++ != '/' || !read_word(&p, word, sizeof word) || !dtype_parse(word, &dtype))
            return false;
        o.dtype = (uint16_t)dtype;
    }
    for (const uint8_t *id = row->fields; *id; id++) {
        const struct key_field *f = &key_fields[*id];
        int64_t v;
        if (f->optional && (p[0] != '/' || p[1] != f->letter))
            continue;
        if (!read_field(&p, (char[]){f->letter, 0}, f->least, f->most, &v))
            return false;
        *field_of(&o, f) = (int32_t)v;
    }
    if (!set_implied(&o, row->k, &o.k) || !set_implied(&o, row->n, &o.n) || !choice_fits(&o) ||
        (*p && !read_size(&p, &o, &z)) || *p)
        return false;
    *op = o;
    *size = z;
    return true;
}

bool op_example(enum op_kind kind, oato_dtype dtype, struct oato_op *out)
{
    const struct op_kind_row *row = op_kind_row((int)kind);
    struct op_size ignored;
    char key[OP_KEY_SIZE];
    if (!row->name || (row->typed ? !dtype_info((int)dtype) : dtype != DT_F32))
        return false;
    snprintf(key, sizeof key, "%s%s%s%s%s", row->name, row->typed ? "/" : "",
             row->typed ? dtype_name(dtype) : "", *row->example ? "/" : "", row->example);
    return oato_op_parse(key, out, &ignored) && op_valid(out);
}

bool oato_op_same(const struct oato_op *a, const struct oato_op *b)
{
    const struct op_kind_row *row = op_kind_row(a->kind);
    if (a->kind != b->kind || !row->name || (row->typed && a->dtype != b->dtype))
        return false;
    for (const uint8_t *id = row->fields; *id; id++)
        if (field_value(a, &key_fields[*id]) != field_value(b, &key_fields[*id]))
            return false;
    return true;
}
