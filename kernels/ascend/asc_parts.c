/*
 * asc_parts.c - see asc_parts.h.
 */
#include "kernels/ascend/asc_parts.h"

#include <string.h>

/* --------------------------------------------------------------------------------- parts -- */

uint64_t asc_type_bytes(enum asc_type type)
{
    switch (type) {
    case ASC_I64: return 8;
    case ASC_F32:
    case ASC_I32: return 4;
    case ASC_F16:
    case ASC_BF16: return 2;
    case ASC_I8:
    case ASC_U8:
    case ASC_BOOL:
    case ASC_I4: break;
    }
    return 1;
}

struct asc_part asc_part(enum asc_type type, void *at, int n, const int64_t *dims)
{
    struct asc_part p = {.type = type, .at = at, .n = n};
    int64_t stride = 1;
    for (int i = n; i-- > 0; stride *= dims[i]) {
        p.dims[i] = dims[i];
        p.strides[i] = stride;
    }
    return p;
}

int64_t asc_part_elements(const struct asc_part *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->n; i++)
        n *= p->dims[i];
    return n;
}

struct asc_part asc_part_new(struct asc_emit *e, enum asc_type type, int n, const int64_t *dims)
{
    struct asc_part p = asc_part(type, NULL, n, dims);
    p.at = asc_room(e, (uint64_t)asc_part_elements(&p) * asc_type_bytes(type));
    return p;
}

struct asc_part asc_part_in(struct asc_emit *e, int i)
{
    return asc_part(asc_in_type(e, i), asc_in_address(e, i), ASC_DIMS(e->rows, e->r->in_width[i]));
}

struct asc_part asc_part_out(struct asc_emit *e, int i)
{
    return asc_part(asc_out_type(e, i), asc_out_address(e, i),
                    ASC_DIMS(e->rows, op_out_width(&e->r->op, i)));
}

struct asc_part asc_shaped(struct asc_part p, int n, const int64_t *dims)
{
    return asc_part(p.type, p.at, n, dims);
}

struct asc_part asc_cut(struct asc_part p, int dim, int64_t from, int64_t n)
{
    p.at += (uint64_t)(from * p.strides[dim]) * asc_type_bytes(p.type);
    p.dims[dim] = n;
    return p;
}

struct asc_part asc_turned(struct asc_part p, int a, int b)
{
    const struct asc_part old = p;
    p.dims[a] = old.dims[b];
    p.dims[b] = old.dims[a];
    p.strides[a] = old.strides[b];
    p.strides[b] = old.strides[a];
    return p;
}

asc_tensor *asc_t(struct asc_emit *e, struct asc_part p)
{
    return asc_view_at(e, p.type, p.at, p.n, p.dims, p.strides);
}

/* --------------------------------------------------------------------------------- calls -- */

/* Handles are destroyed as soon as the call is queued. */
static void done(struct asc_emit *e, int held)
{
    asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
}

void asc_add(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Add, asc_t(e, a), asc_t(e, b), asc_number(e, 1), asc_t(e, out));
    done(e, held);
}

void asc_sub(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Sub, asc_t(e, a), asc_t(e, b), asc_number(e, 1), asc_t(e, out));
    done(e, held);
}

void asc_mul(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Mul, asc_t(e, a), asc_t(e, b), asc_t(e, out));
    done(e, held);
}

void asc_div(struct asc_emit *e, struct asc_part a, struct asc_part b, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Div, asc_t(e, a), asc_t(e, b), asc_t(e, out));
    done(e, held);
}

void asc_scale(struct asc_emit *e, struct asc_part a, float by, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Muls, asc_t(e, a), asc_number(e, by), asc_t(e, out));
    done(e, held);
}

void asc_clamp(struct asc_emit *e, struct asc_part a, float least, float most, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Clamp, asc_t(e, a), asc_number(e, least), asc_number(e, most), asc_t(e, out));
    done(e, held);
}

void asc_copy(struct asc_emit *e, struct asc_part from, struct asc_part to)
{
    const int held = e->n_held;
    ASC_CALL(e, InplaceCopy, asc_t(e, to), asc_t(e, from));
    done(e, held);
}

struct asc_part asc_as(struct asc_emit *e, struct asc_part p, enum asc_type type)
{
    if (p.type == type)
        return p;
    const struct asc_part to = asc_part_new(e, type, p.n, p.dims);
    asc_copy(e, p, to);
    return to;
}

void asc_select(struct asc_emit *e, struct asc_part from, int dim, struct asc_part index,
                struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, IndexSelect, asc_t(e, from), dim, asc_t(e, index), asc_t(e, out));
    done(e, held);
}

void asc_slice(struct asc_emit *e, struct asc_part p, int dim, int64_t from, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Slice, asc_t(e, p), dim, from, from + out.dims[dim], 1, asc_t(e, out));
    done(e, held);
}

void asc_cat(struct asc_emit *e, int n, const struct asc_part *parts, int dim, struct asc_part out)
{
    asc_tensor *t[RECORD_INPUTS];
    const int held = e->n_held;
    for (int i = 0; i < n; i++)
        t[i] = asc_t(e, parts[i]);
    ASC_CALL(e, Cat, asc_list(e, n, t), dim, asc_t(e, out));
    done(e, held);
}

void asc_sum(struct asc_emit *e, struct asc_part p, int dim, bool keeps, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, ReduceSum, asc_t(e, p), asc_int_array(e, 1, &(int64_t){dim}), keeps, out.type,
             asc_t(e, out));
    done(e, held);
}

/* ---------------------------------------------------------------------------- activations -- */

static void sigmoid(struct asc_emit *e, struct asc_part a, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Sigmoid, asc_t(e, a), asc_t(e, out));
    done(e, held);
}

static void silu(struct asc_emit *e, struct asc_part a, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Silu, asc_t(e, a), asc_t(e, out));
    done(e, held);
}

static void relu(struct asc_emit *e, struct asc_part a, struct asc_part out)
{
    const int held = e->n_held;
    ASC_CALL(e, Relu, asc_t(e, a), asc_t(e, out));
    done(e, held);
}

static struct asc_part alike(struct asc_emit *e, struct asc_part p)
{
    return asc_part_new(e, p.type, p.n, p.dims);
}

/* (1 + tanh y) / 2 is s(2 y). */
static void gelu(struct asc_emit *e, struct asc_part a, struct asc_part out)
{
    const struct asc_part b = alike(e, a), c = alike(e, a);
    asc_mul(e, a, a, b);
    asc_mul(e, a, b, c);
    asc_scale(e, c, 0.044715f, b);
    asc_add(e, a, b, c);
    asc_scale(e, c, 2 * 0.7978845608f, b);
    sigmoid(e, b, c);
    asc_mul(e, a, c, out);
}

/* activation_of, to a part of the same type. */
static void activate(struct asc_emit *e, struct asc_part a, struct asc_part out)
{
    enum { GELU_TANH = 1 };
    const float scale = e->r->op.scale, most = 3.4e38f;
    const int held = e->n_held;
    switch ((enum activation)e->r->op.activation) {
    case ACT_SILU: silu(e, a, out); break;
    case ACT_GELU:
        if (e->d->chip->gelu)
            ASC_CALL(e, GeluV2, asc_t(e, a), GELU_TANH, asc_t(e, out));
        else
            gelu(e, a, out);
        break;
    case ACT_RELU: relu(e, a, out); break;
    case ACT_RELU_SQUARED: {
        const struct asc_part kept = alike(e, a);
        relu(e, a, kept);
        asc_mul(e, kept, kept, out);
        break;
    }
    case ACT_SIGMOID: sigmoid(e, a, out); break;
    case ACT_SOFT_CAP: {
        const struct asc_part less = alike(e, a), bent = alike(e, a);
        asc_scale(e, a, 1 / scale, less);
        ASC_CALL(e, Tanh, asc_t(e, less), asc_t(e, bent));
        asc_scale(e, bent, scale, out);
        break;
    }
    case ACT_CLAMPED: {
        const struct asc_part below = alike(e, a), more = alike(e, a), share = alike(e, a);
        asc_clamp(e, a, -most, 7, below);
        asc_scale(e, below, 1.702f, more);
        sigmoid(e, more, share);
        asc_mul(e, below, share, out);
        break;
    }
    case ACT_CLAMP: asc_clamp(e, a, -scale, scale, out); break;
    case ACT_NONE: asc_copy(e, a, out); break;
    case ACT_CLAMPED_SILU: {
        const struct asc_part below = alike(e, a);
        asc_clamp(e, a, -most, scale, below);
        silu(e, below, out);
        break;
    }
    case ACT_SOFTPLUS:
        ASC_CALL(e, Softplus, asc_t(e, a), asc_number(e, 1), asc_number(e, 20), asc_t(e, out));
        break;
    case ACT_SILU_CLAMPED: {
        const struct asc_part free = alike(e, a);
        silu(e, a, free);
        asc_clamp(e, free, -most, scale, out);
        break;
    }
    case ACT_COUNT: break;
    }
    done(e, held);
}

void asc_activation(struct asc_emit *e, struct asc_part gate, const struct asc_part *up,
                    struct asc_part out)
{
    const enum activation a = (enum activation)e->r->op.activation;
    const struct asc_mark mark = asc_mark(e);
    const float bound = a == ACT_CLAMPED ? 7 : e->r->op.scale;
    struct asc_part made = up || out.type != gate.type ? alike(e, gate) : out;
    activate(e, gate, made);
    if (up) {
        struct asc_part by = *up;
        if (a == ACT_CLAMPED || a == ACT_CLAMPED_SILU || a == ACT_SILU_CLAMPED) {
            by = alike(e, *up);
            asc_clamp(e, *up, -bound, bound, by);
        }
        if (a == ACT_CLAMPED) { /* 1 + up */
            const struct asc_part more = alike(e, *up);
            const int held = e->n_held;
            ASC_CALL(e, Adds, asc_t(e, by), asc_number(e, 1), asc_number(e, 1), asc_t(e, more));
            done(e, held);
            by = more;
        }
        asc_mul(e, made, by, out);
    } else if (out.type != gate.type) {
        asc_copy(e, made, out);
    }
    asc_rewind(e, mark);
}

bool asc_weight_part(struct asc_emit *e, int i, int n, const int64_t *dims, struct asc_part *out)
{
    struct asc_matrix m;
    if (!asc_weight(e, i, &m))
        return false;
    *out = asc_part(ASC_F32, m.values, n, dims);
    return true;
}
