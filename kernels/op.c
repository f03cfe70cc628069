/*
 * op.c - the operator description: its key in profiles, the shapes of its weights, what it costs
 * in arithmetic and bytes, and which operators fuse. A kind of operator is a row of op_kinds; the
 * row's fields are printed and read in order, so that a key has exactly one spelling and
 * oato_op_parse gives back what oato_op_key was given.
 */
#include "kernels/op.h"

#include <inttypes.h>
#include <string.h>

/* A number of a key: its letters, where it is kept and what is allowed. */
struct key_field {
    char letter;
    size_t offset;
    int32_t least, most;
};

enum field_id {
    F_END,
    F_K,
    F_N,
    F_N2,
    F_HEADS,
    F_KV_HEADS,
    F_HEAD_DIM,
    F_ROPE_DIMS,
    F_PAIRING,
    F_EXPERTS,
    F_USED
};

/* Their ids and the widths that they multiply stay exact in float32 and within int32. */
enum { EXPERTS_MOST = 1 << 16 };

#define FIELD(letter, member, least, most)                                                         \
    {                                                                                              \
        letter, offsetof(struct oato_op, member), least, most                                      \
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
};
#undef FIELD

/* What a width is when the key does not name it. */
enum implied {
    IMPLIED_NONE,
    IMPLIED_N_IS_K,
    IMPLIED_K_IS_N,
    IMPLIED_HEADS,
    IMPLIED_KV_HEADS,
    IMPLIED_ROUTE
};

struct op_kind_row {
    const char *name;
    bool typed; /* the dtype is part of the key; else it is F32 */
    uint8_t fields[5];
    enum implied implied;
};

static const struct op_kind_row op_kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {"embed", true, {F_K, F_N}, IMPLIED_NONE},
    [OP_RMS_NORM] = {"rms_norm", false, {F_K}, IMPLIED_N_IS_K},
    [OP_MUL_MAT] = {"mul_mat", true, {F_K, F_N}, IMPLIED_NONE},
    [OP_BIAS] = {"bias", false, {F_K}, IMPLIED_N_IS_K},
    [OP_SCALE] = {"scale", false, {F_K}, IMPLIED_N_IS_K},
    [OP_ROPE] = {"rope", false, {F_HEADS, F_HEAD_DIM, F_ROPE_DIMS, F_PAIRING}, IMPLIED_HEADS},
    [OP_KV_STORE] = {"kv_store", true, {F_KV_HEADS, F_HEAD_DIM}, IMPLIED_KV_HEADS},
    [OP_ATTENTION] = {"attention", true, {F_HEADS, F_KV_HEADS, F_HEAD_DIM}, IMPLIED_HEADS},
    [OP_ADD] = {"add", false, {F_K}, IMPLIED_N_IS_K},
    [OP_SWIGLU] = {"swiglu", false, {F_K}, IMPLIED_N_IS_K},
    [OP_SELECT] = {"select", false, {F_K}, IMPLIED_N_IS_K},
    [OP_QKV] = {"qkv", true, {F_K, F_N, F_N2}, IMPLIED_NONE},
    [OP_GATE_UP] = {"gate_up", true, {F_K, F_N}, IMPLIED_NONE},
    [OP_ADD_NORM] = {"add_norm", false, {F_K}, IMPLIED_N_IS_K},
    [OP_MERGE] = {"merge", false, {F_N}, IMPLIED_K_IS_N},
    [OP_MERGE_SUM] = {"merge_sum", false, {F_K, F_N}, IMPLIED_NONE},
    [OP_SLICE] = {"slice", false, {F_K, F_N}, IMPLIED_NONE},
    [OP_KV_COPY] = {"kv_copy", false, {F_END}, IMPLIED_NONE},
    [OP_TOP_K] = {"top_k", false, {F_K, F_N}, IMPLIED_NONE},
    [OP_HEAD_NORM] = {"head_norm", false, {F_HEADS, F_HEAD_DIM}, IMPLIED_HEADS},
    [OP_ROUTE] = {"route", false, {F_EXPERTS, F_USED}, IMPLIED_ROUTE},
    [OP_EXPERT_GATE_UP] = {"expert_gate_up", true, {F_K, F_N, F_EXPERTS, F_USED}, IMPLIED_NONE},
    [OP_EXPERT_DOWN] = {"expert_down", true, {F_K, F_N, F_EXPERTS, F_USED}, IMPLIED_NONE},
};

const struct op_fusion op_fusions[] = {
    {"qkv", OP_QKV, 3, {OP_MUL_MAT, OP_MUL_MAT, OP_MUL_MAT}},
    {"gate_up", OP_GATE_UP, 3, {OP_MUL_MAT, OP_MUL_MAT, OP_SWIGLU}},
    {"add_norm", OP_ADD_NORM, 2, {OP_ADD, OP_RMS_NORM}},
};
const int op_fusion_count = ARRAY_LEN(op_fusions);

static const struct op_kind_row *kind_row(int kind)
{
    return kind > OP_NONE && kind < OP_KIND_COUNT ? &op_kinds[kind] : NULL;
}

const char *op_kind_name(int kind)
{
    const struct op_kind_row *row = kind_row(kind);
    return row ? row->name : "?";
}

bool op_kind_parse(const char *name, enum op_kind *out)
{
    for (int i = OP_NONE + 1; i < OP_KIND_COUNT; i++) {
        if (!strcmp(op_kinds[i].name, name)) {
            *out = (enum op_kind)i;
            return true;
        }
    }
    return false;
}

/* -------------------------------------------------------------------------------- keys ---- */

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
    const struct op_kind_row *row = kind_row(op->kind);
    int n = snprintf(out, OP_KEY_SIZE, "%s", op_kind_name(op->kind));
    if (!row)
        return out;
    if (row->typed)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%s", dtype_name((oato_dtype)op->dtype));
    for (const uint8_t *id = row->fields; *id; id++)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%c%" PRId32, key_fields[*id].letter,
                      field_value(op, &key_fields[*id]));
    /* at most 15 + 8 + 4 * 13 bytes so far */
    if (size)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/t%" PRId32, size->rows);
    if (size && op->kind == OP_ATTENTION)
        snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/s%" PRId32 "/kv%" PRId64,
                 size->seqs > 1 ? size->seqs : 1, size->kv_positions);
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

/* Sets the widths that the key leaves out; false when they overflow. */
static bool set_implied(struct oato_op *op, enum implied implied)
{
    int32_t heads = implied == IMPLIED_HEADS ? op->heads : op->kv_heads;
    switch (implied) {
    case IMPLIED_NONE: return true;
    case IMPLIED_N_IS_K: op->n = op->k; return true;
    case IMPLIED_K_IS_N: op->k = op->n; return true;
    case IMPLIED_HEADS:
    case IMPLIED_KV_HEADS:
        if (__builtin_mul_overflow(heads, op->head_dim, &op->k))
            return false;
        op->n = op->k;
        return true;
    case IMPLIED_ROUTE:
        op->k = op->experts;
        op->n = 2 * op->experts_used;
        return true;
    }
    return false;
}

/* A token chooses no expert twice, and what all its experts give is one row. */
static bool experts_fit(const struct oato_op *op)
{
    int32_t widest = op->k > op->n ? op->k : op->n, row;
    return op->experts_used <= op->experts &&
           !__builtin_mul_overflow(widest, op->experts_used, &row);
}

static bool read_size(const char **p, enum op_kind kind, struct op_size *size)
{
    int64_t v;
    if (!read_field(p, "t", 1, INT32_MAX, &v))
        return false;
    size->rows = (int32_t)v;
    if (kind != OP_ATTENTION)
        return true;
    if (!read_field(p, "s", 1, INT32_MAX, &v))
        return false;
    size->seqs = (int32_t)v;
    return read_field(p, "kv", 0, INT64_MAX, &size->kv_positions);
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
    const struct op_kind_row *row = &op_kinds[kind];
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
        if (!read_field(&p, (char[]){f->letter, 0}, f->least, f->most, &v))
            return false;
        *field_of(&o, f) = (int32_t)v;
    }
    if (!set_implied(&o, row->implied) || !experts_fit(&o) || (*p && !read_size(&p, kind, &z)) ||
        *p)
        return false;
    *op = o;
    *size = z;
    return true;
}

bool oato_op_same(const struct oato_op *a, const struct oato_op *b)
{
    const struct op_kind_row *row = kind_row(a->kind);
    if (a->kind != b->kind || !row || (row->typed && a->dtype != b->dtype))
        return false;
    for (const uint8_t *id = row->fields; *id; id++)
        if (field_value(a, &key_fields[*id]) != field_value(b, &key_fields[*id]))
            return false;
    return true;
}

/* -------------------------------------------------------------------- shapes and costs ---- */

int32_t op_experts_held(const struct oato_op *op)
{
    return op->experts_held ? op->experts_held : op->experts;
}

enum weight_use op_weight_use(const struct oato_op *op)
{
    switch (op->kind) {
    case OP_EMBED: return WEIGHT_LOOKUP;
    case OP_MUL_MAT:
    case OP_QKV:
    case OP_GATE_UP:
    case OP_EXPERT_GATE_UP:
    case OP_EXPERT_DOWN: return WEIGHT_MATRIX;
    default: return WEIGHT_VECTOR;
    }
}

int op_weight_count(const struct oato_op *op)
{
    switch (op->kind) {
    case OP_EMBED:
    case OP_RMS_NORM:
    case OP_MUL_MAT:
    case OP_BIAS:
    case OP_SCALE:
    case OP_ROPE:
    case OP_ADD_NORM:
    case OP_HEAD_NORM:
    case OP_EXPERT_DOWN: return 1;
    case OP_GATE_UP:
    case OP_EXPERT_GATE_UP: return 2;
    case OP_QKV: return 3;
    default: return 0;
    }
}

bool op_weight_shape(const struct oato_op *op, int i, int64_t *n, int64_t *k)
{
    if (i < 0 || i >= op_weight_count(op))
        return false;
    *k = op->k;
    switch (op->kind) {
    case OP_EMBED:
    case OP_MUL_MAT:
    case OP_GATE_UP: *n = op->n; break;
    case OP_QKV: *n = i ? op->n2 : op->n; break;
    case OP_ROPE:
        *n = 1;
        *k = op->rope_dims / 2;
        break;
    case OP_SCALE: *n = *k = 1; break;
    case OP_HEAD_NORM:
        *n = 1;
        *k = op->head_dim;
        break;
    case OP_EXPERT_GATE_UP:
    case OP_EXPERT_DOWN: *n = (int64_t)op_experts_held(op) * op->n; break;
    default: *n = 1; break;
    }
    return true;
}

int32_t op_out_width(const struct oato_op *op, int i)
{
    switch (op->kind) {
    case OP_KV_STORE:
    case OP_KV_COPY: return 0;
    case OP_EMBED: return i == 0 ? op->k : 0;
    case OP_QKV: return i == 0 ? op->n : i < 3 ? op->n2 : 0;
    case OP_ADD_NORM: return i < 2 ? op->n : 0;
    case OP_EXPERT_GATE_UP: return i == 0 ? op->experts_used * op->n : 0;
    default: return i == 0 && kind_row(op->kind) ? op->n : 0;
    }
}

bool op_has_experts(const struct oato_op *op)
{
    return op->kind == OP_EXPERT_GATE_UP || op->kind == OP_EXPERT_DOWN;
}

/* The share of the chosen experts that the weights are expected to be of. */
static double share_held(const struct oato_op *op)
{
    return op_has_experts(op) ? (double)op_experts_held(op) / op->experts : 1;
}

double op_flops(const struct oato_op *op, const struct op_size *size)
{
    double t = size->rows, k = op->k, n = op->n, used = op->experts_used * share_held(op);
    switch (op->kind) {
    case OP_EMBED:
    case OP_BIAS:
    case OP_SCALE:
    case OP_TOP_K: /* a comparison each */
    case OP_ADD: return t * k;
    case OP_RMS_NORM:
    case OP_HEAD_NORM: return t * 4 * k; /* square and add, scale, weight */
    case OP_ADD_NORM: return t * 5 * k;
    case OP_MUL_MAT: return t * 2 * k * n;
    case OP_MERGE_SUM: return t * (k - n);
    case OP_QKV: return t * 2 * k * (n + 2.0 * op->n2);
    case OP_GATE_UP: return t * (4 * k * n + 5 * n);
    case OP_SWIGLU:
    case OP_ROUTE: return t * 5 * k; /* exp counts as two */
    case OP_EXPERT_GATE_UP: return t * used * (4 * k * n + 5 * n);
    case OP_EXPERT_DOWN: return t * used * (2 * k * n + 2 * n);
    case OP_ROPE: return t * 3.0 * op->heads * op->rope_dims; /* six for a pair */
    case OP_KV_STORE: return t * 2.0 * op->kv_heads * op->head_dim;
    case OP_ATTENTION: /* q.K and its sum with V, for every position that is read */
        return 4.0 * op->heads * op->head_dim * (double)size->kv_positions;
    default: return 0;
    }
}

static double row_bytes(const struct oato_op *op, double elements)
{
    const struct dtype_info *d = dtype_info(op->dtype);
    return d ? elements * d->block_bytes / d->block_elems : 4 * elements;
}

/* Positions of KV in all sequences together. A row reads its sequence up to itself, so the last of
 * q rows reads (q - 1) / 2 more than they do on average; q = T / S when sequences are alike. */
static double kv_positions_once(const struct op_size *size)
{
    double t = size->rows, s = size->seqs > 1 ? size->seqs : 1;
    if (t <= 0)
        return 0;
    if (s > t)
        s = t;
    double positions = (double)size->kv_positions / t * s + (t - s) / 2;
    return positions < (double)size->kv_positions ? positions : (double)size->kv_positions;
}

/* By squaring: the same bits everywhere, which no libm promises. */
double op_experts_read(const struct oato_op *op, int32_t tokens)
{
    if (!op_has_experts(op))
        return 0;
    double all = op->experts, missed = 1, power = 1 - op->experts_used / all;
    for (int32_t t = tokens; t > 0; t /= 2, power *= power)
        if (t % 2)
            missed *= power;
    return op_experts_held(op) * (1 - missed);
}

double op_bytes(const struct oato_op *op, const struct op_size *size)
{
    double t = size->rows, k = op->k, n = op->n;
    switch (op->kind) {
    case OP_EMBED: return t * row_bytes(op, k);
    case OP_RMS_NORM:
    case OP_BIAS:
    case OP_ADD_NORM: return 4 * k;
    case OP_MUL_MAT: return n * row_bytes(op, k);
    case OP_QKV: return (n + 2.0 * op->n2) * row_bytes(op, k);
    case OP_GATE_UP: return 2 * n * row_bytes(op, k);
    case OP_HEAD_NORM: return 4.0 * op->head_dim;
    case OP_EXPERT_GATE_UP: return op_experts_read(op, size->rows) * 2 * n * row_bytes(op, k);
    case OP_EXPERT_DOWN: return op_experts_read(op, size->rows) * n * row_bytes(op, k);
    case OP_KV_STORE: return t * 2 * row_bytes(op, (double)op->kv_heads * op->head_dim);
    case OP_ATTENTION:
        return kv_positions_once(size) * 2 * row_bytes(op, (double)op->kv_heads * op->head_dim);
    default: return 0;
    }
}
