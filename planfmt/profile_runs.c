/*
 * profile_runs.c - which kinds and types of operators a device runs, timed or not, and what they
 * take in scratch memory: asked of the device by ordinary operators of each, and as the text of a
 * profile.
 */
#include "planfmt/planfmt_internal.h"

#include <math.h>
#include <string.h>

/* Each bit is a type's number. */
_Static_assert(DT_COUNT <= 64, "the types of a kind are the bits of a uint64_t");

bool profile_put_runs(struct profile *p, int32_t device,
                      bool (*runs)(const void *user, const struct oato_op *op), const void *user)
{
    struct oato_op op;
    uint64_t *all = arena_alloc(&p->arena, OP_KIND_COUNT, sizeof *all);
    if (!all)
        return false;
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++)
        for (int type = 0; type < DT_COUNT; type++)
            if (op_example((enum op_kind)kind, (oato_dtype)type, &op) && runs(user, &op))
                all[kind] |= UINT64_C(1) << type;
    p->devices[device].runs = all;
    return true;
}

/* Whether the kind has types at all. */
static bool is_typed(int kind)
{
    struct oato_op op;
    for (int type = 0; type < DT_COUNT; type++)
        if (type != DT_F32 && op_example((enum op_kind)kind, (oato_dtype)type, &op))
            return true;
    return false;
}

void runs_text_write(int kind, uint64_t types, struct text *out)
{
    for (int type = 0; type < DT_COUNT && is_typed(kind); type++)
        if (types >> type & 1)
            text_printf(out, "%s%s", out->len ? " " : "", dtype_name((oato_dtype)type));
}

bool runs_text_read(int kind, const char *text, uint64_t *types, char bad[24])
{
    struct oato_op op;
    *types = *text ? 0 : UINT64_C(1) << DT_F32;
    bad[0] = 0;
    if (!*text)
        return !is_typed(kind);
    while (*text) {
        oato_dtype type;
        const size_t n = strcspn(text, " ");
        snprintf(bad, 24, "%.*s", (int)(n < 23 ? n : 23), text);
        if (!is_typed(kind) || !dtype_parse(bad, &type) || *types >> type & 1 ||
            !op_example((enum op_kind)kind, type, &op))
            return false;
        *types |= UINT64_C(1) << type;
        text += n + (text[n] == ' ');
    }
    return true;
}

/* ----------------------------------------------------------------------------------- values -- */

bool profile_put_values(struct profile *p, int32_t device, const struct value_types *values)
{
    struct value_types *copy = values ? arena_alloc(&p->arena, OP_KIND_COUNT, sizeof *copy) : NULL;
    for (int kind = 0; copy && kind < OP_KIND_COUNT; kind++)
        if (p->devices[device].runs && p->devices[device].runs[kind])
            copy[kind] = values[kind];
    p->devices[device].values = copy;
    return copy || !values;
}

/* How many are named. */
static int named(const uint8_t *types, int n)
{
    while (n && types[n - 1] == DT_F32)
        n--;
    return n;
}

void values_text_write(const struct value_types *v, struct text *out)
{
    const int in = named(v->in, OP_INPUTS), made = named(v->out, OP_OUTPUTS);
    for (int i = 0; i < in; i++)
        text_printf(out, "%s ", dtype_name((oato_dtype)v->in[i]));
    if (in || made)
        text_printf(out, ">");
    for (int i = 0; i < made; i++)
        text_printf(out, " %s", dtype_name((oato_dtype)v->out[i]));
}

bool values_text_read(const char *text, struct value_types *v)
{
    uint8_t *at = v->in, *end = at + OP_INPUTS;
    memset(v, DT_F32, sizeof *v);
    for (; *text; text += strcspn(text, " "), text += strspn(text, " ")) {
        const size_t n = strcspn(text, " ");
        const bool half = n == 3 && !memcmp(text, "F16", n);
        if (n == 1 && *text == '>' && end == v->in + OP_INPUTS) {
            at = v->out;
            end = at + OP_OUTPUTS;
        } else if (at == end || (!half && (n != 3 || memcmp(text, "F32", n) != 0))) {
            return false;
        } else {
            *at++ = half ? DT_F16 : DT_F32;
        }
    }
    return end == v->out + OP_OUTPUTS;
}

/* -------------------------------------------------------------------------------- workspace -- */

enum {
    SPLIT_ROWS = 16, /* attention of more rows divides no context */
    ALIGNED = 4096,  /* what devices take more because they align it */
};

/* The roomiest that was measured, a little rounded up. Products keep their input packed, at most as
 * F16, and what gate is multiplied with; experts a row for each of a token's choices; attention its
 * output packed and 128 partial results of a divided context. */
static const struct profile_workspace usual[OP_KIND_COUNT] = {
    [OP_ATTENTION] = {ALIGNED, 0, 2, 512}, [OP_HEAD_MUL_MAT] = {ALIGNED, 2, 0, 0},
    [OP_MUL_MAT] = {ALIGNED, 2, 0, 0},     [OP_QKV] = {ALIGNED, 2, 0, 0},
    [OP_GATE_UP] = {ALIGNED, 2, 4, 0},     [OP_EXPERT_GATE_UP] = {ALIGNED, 2, 4, 0},
    [OP_EXPERT_DOWN] = {ALIGNED, 2, 4, 0}};

static double inputs_of(const struct oato_op *op)
{
    const double k = op->k;
    return op->kind == OP_ATTENTION      ? 0
           : op->kind == OP_HEAD_MUL_MAT ? k * op->heads
           : op->kind == OP_EXPERT_DOWN  ? k * op->experts_used
                                         : k;
}

/* Behind each expert's row there are what it is, and its weight. */
static double outputs_of(const struct oato_op *op)
{
    return op_has_experts(op) ? ((double)op->n + 4) * op->experts_used : op->n;
}

static double partials_of(const struct oato_op *op, int32_t rows)
{
    return op->kind == OP_ATTENTION
               ? (double)min_i64(rows, SPLIT_ROWS) * op->heads * ((double)op_v_dim(op) + 2)
               : 0;
}

static double workspace_of(const struct profile_workspace *w, const struct oato_op *op,
                           int32_t rows)
{
    return w->bytes + rows * (inputs_of(op) * w->per_input + outputs_of(op) * w->per_output) +
           partials_of(op, rows) * w->per_partial;
}

uint64_t profile_workspace_bytes(const struct profile_device *d, const struct oato_op *op,
                                 int32_t rows)
{
    if (d->is_host && !d->workspaces)
        return 0;
    const struct profile_workspace *all = d->workspaces ? d->workspaces : usual;
    return (uint64_t)fmin(workspace_of(&all[op->kind], op, rows), 0x1p62);
}

bool profile_put_workspaces(struct profile *p, int32_t device,
                            uint64_t (*bytes)(const void *user, const struct oato_op *op,
                                              const struct op_size *size),
                            const void *user)
{
    const struct profile_device *d = &p->devices[device];
    struct profile_workspace *all = arena_alloc(&p->arena, OP_KIND_COUNT, sizeof *all);
    const struct op_size sizes[2] = {
        {.rows = SPLIT_ROWS, .seqs = 1, .kv_positions = SPLIT_ROWS},
        {.rows = 2 * SPLIT_ROWS, .seqs = 1, .kv_positions = 2 * SPLIT_ROWS}};
    struct oato_op op[4]; /* wider in k, wider in n, of more rows */
    if (!all)
        return false;
    for (int at = 0; at < OP_KIND_COUNT * DT_COUNT; at++) {
        const int kind = at / DT_COUNT, type = at % DT_COUNT;
        struct profile_workspace *w = &all[kind];
        if (!profile_runs(d, kind, type) || !usual[kind].bytes ||
            !op_example((enum op_kind)kind, (oato_dtype)type, &op[0]))
            continue;
        w->bytes = fmax(w->bytes, ALIGNED);
        double got[4];
        op[1] = op[2] = op[3] = op[0];
        op[1].k *= 2;
        op[2].n *= 2;
        for (int i = 0; i < 4; i++)
            got[i] = (double)bytes(user, &op[i], &sizes[i / 3]);
        const double in = inputs_of(&op[0]) * SPLIT_ROWS, out = outputs_of(&op[0]) * SPLIT_ROWS,
                     wider = outputs_of(&op[2]) * SPLIT_ROWS - out;
        const bool attention = kind == OP_ATTENTION; /* whose sizes depend on each other */
        w->per_input = attention ? 0 : fmax(w->per_input, (got[1] - got[0]) / in);
        w->per_output =
            fmax(w->per_output, attention ? (got[3] - got[0]) / out : (got[2] - got[0]) / wider);
        if (attention)
            w->per_partial = fmax(w->per_partial, got[0] / partials_of(&op[0], SPLIT_ROWS));
        for (int i = 0; i < 4; i += attention ? 3 : 1)
            w->bytes += fmax(got[i] - workspace_of(w, &op[i], sizes[i / 3].rows), 0);
    }
    p->devices[device].workspaces = all;
    return true;
}
