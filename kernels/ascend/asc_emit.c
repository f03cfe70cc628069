/*
 * asc_emit.c - how a record becomes calls: tensors over addresses of the device, temporaries,
 * workspaces, and the two calls of each operator. An emission that is dry makes only the first of
 * them: that tells whether CANN takes the operator on this chip, and what workspace it needs.
 *
 * All that a record takes lies in the order of the stream: temporaries and workspaces of the next
 * record begin where this one's did.
 */
#include "kernels/ascend/asc_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum held_kind { HELD_TENSOR, HELD_SCALAR, HELD_INTS, HELD_LIST };

/* Temporaries beside the area for them; freed when no step runs. */
struct asc_spare {
    struct asc_spare *next;
    void *memory;
};

void asc_give_up(struct asc_emit *e, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (e->failed)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    e->failed = true;
    oato_fail(&e->error, OATO_EDEVICE, "%s: %s: %s", e->d->far.id, op_kind_name(e->r->op.kind),
              text);
}

static void failed(struct asc_emit *e, int error, const char *doing)
{
    char text[96];
    if (e->failed)
        return;
    e->failed = true;
    snprintf(text, sizeof text, "%s: %s", op_kind_name(e->r->op.kind), doing);
    asc_fail(e->api, error, e->d->far.id, text, &e->error);
}

void asc_emit_begin(struct asc_emit *e, struct asc_device *d, struct compiled *c,
                    const struct program_record *r, const struct step *step, bool dry)
{
    memset(e, 0, offsetof(struct asc_emit, held));
    e->n_held = 0;
    e->d = d;
    e->api = d->api;
    e->c = c;
    e->r = r;
    e->record = c ? &c->records[r - c->program->records] : NULL;
    e->step = step;
    e->dry = dry;
    e->stream = d->queue.stream;
    e->seqs = 1;
    if (!step)
        return;
    e->rows = record_rows(r, step);
    e->seqs = step->n_seqs > 0 ? step->n_seqs : 1;
    e->kv_pages = asc_kv_pages(c, step);
}

/* Destroys what is held from there on. */
static void release(struct asc_emit *e, int from)
{
    for (int i = e->n_held; i-- > from;)
        switch ((enum held_kind)e->held[i].kind) {
        case HELD_TENSOR: e->api->DestroyTensor(e->held[i].handle); break;
        case HELD_SCALAR: e->api->DestroyScalar(e->held[i].handle); break;
        case HELD_INTS: e->api->DestroyIntArray(e->held[i].handle); break;
        case HELD_LIST: e->api->DestroyTensorList(e->held[i].handle); break;
        }
    e->n_held = from;
}

void asc_rewind(struct asc_emit *e, struct asc_mark mark)
{
    release(e, mark.held);
    e->room = mark.room;
}

oato_status asc_emit_end(struct asc_emit *e, struct oato_error *err)
{
    release(e, 0);
    if (e->failed)
        *err = e->error;
    return e->failed ? e->error.status : OATO_OK;
}

/* -------------------------------------------------------------------------------- handles - */

static void *hold(struct asc_emit *e, void *handle, enum held_kind kind)
{
    if (!handle) {
        failed(e, 0, "making an argument");
        return NULL;
    }
    e->held[e->n_held].handle = handle;
    e->held[e->n_held++].kind = (uint8_t)kind;
    return handle;
}

static bool may_hold(struct asc_emit *e)
{
    if (e->n_held == ASC_HELD)
        asc_give_up(e, "it needs more than %d arguments", ASC_HELD);
    return !e->failed;
}

/* What is only tried needs addresses of the device, of the same alignment: temporaries that are not
 * there yet, and without a program everything, begin where the area does. */
static void *address_of(const struct asc_emit *e, const void *address)
{
    uint8_t *p = (uint8_t *)(uintptr_t)address, *base = e->d->rooms.base;
    const bool made_up =
        !e->c || ((uintptr_t)p >= (uintptr_t)base && (uintptr_t)p - (uintptr_t)base < e->room_most);
    return e->dry && made_up ? base + (uintptr_t)p % ASC_ALIGN : p;
}

asc_tensor *asc_view_at(struct asc_emit *e, enum asc_type type, const void *address, int n,
                        const int64_t *dims, const int64_t *strides)
{
    int64_t extent = 1; /* elements from the first to the last */
    if (!may_hold(e))
        return NULL;
    for (int i = 0; i < n; i++)
        extent += (dims[i] - 1) * strides[i];
    return hold(e,
                e->api->CreateTensor(dims, (uint64_t)n, type, strides, 0, ASC_FORMAT_ND, &extent, 1,
                                     address_of(e, address)),
                HELD_TENSOR);
}

asc_tensor *asc_tensor_at(struct asc_emit *e, enum asc_type type, const void *address, int n,
                          const int64_t *dims)
{
    int64_t strides[ASC_MOST_DIMS], step = 1;
    if (!may_hold(e))
        return NULL;
    for (int i = n; i-- > 0; step *= dims[i])
        strides[i] = step;
    return hold(e,
                e->api->CreateTensor(dims, (uint64_t)n, type, strides, 0, ASC_FORMAT_ND, dims,
                                     (uint64_t)n, address_of(e, address)),
                HELD_TENSOR);
}

asc_scalar *asc_number(struct asc_emit *e, float value)
{
    return may_hold(e) ? hold(e, e->api->CreateScalar(&value, ASC_F32), HELD_SCALAR) : NULL;
}

asc_ints *asc_int_array(struct asc_emit *e, int n, const int64_t *values)
{
    return may_hold(e) ? hold(e, e->api->CreateIntArray(values, (uint64_t)n), HELD_INTS) : NULL;
}

asc_tensors *asc_list(struct asc_emit *e, int n, asc_tensor *const *tensors)
{
    asc_tensors *list;
    if (!may_hold(e))
        return NULL;
    list = e->api->CreateTensorList((const asc_tensor *const *)tensors, (uint64_t)n);
    for (int i = 0; list && i < n; i++) /* it destroys its members */
        for (int at = 0; at < e->n_held; at++)
            if (e->held[at].handle == tensors[i])
                e->held[at] = e->held[--e->n_held];
    return hold(e, list, HELD_LIST);
}

/* --------------------------------------------------------------------------------- memory - */

void asc_spares_free(struct asc_device *d)
{
    for (struct asc_spare *s = d->spares, *next; s; s = next) {
        next = s->next;
        asc_memory_drop(d, s->memory);
        free(s);
    }
    d->spares = NULL;
}

oato_status asc_rooms_settle(struct asc_device *d, struct oato_error *err)
{
    bool moved = false;
    if (d->spares)
        d->areas_moved++;
    asc_spares_free(d);
    const oato_status status =
        asc_area_grow(d, &d->rooms, d->rooms_wanted, false, "temporaries", &moved, err);
    d->areas_moved += moved;
    return status;
}

/* Beside the area, which must not move while a step runs. */
static void *spare_room(struct asc_emit *e, uint64_t bytes)
{
    struct asc_spare *s = calloc(1, sizeof *s);
    struct oato_error *err = &e->error;
    if (!s)
        oato_fail_memory(err, sizeof *s, "temporaries");
    else if (!asc_memory_take(e->d, bytes, "temporaries", &s->memory, err)) {
        s->next = e->d->spares;
        e->d->spares = s;
        return s->memory;
    }
    free(s);
    e->failed = true;
    return NULL;
}

void *asc_room(struct asc_emit *e, uint64_t bytes)
{
    struct asc_device *d = e->d;
    const uint64_t at = e->room;
    if (e->failed)
        return NULL;
    e->room = at + size_align(bytes ? bytes : 1, ASC_ALIGN);
    e->room_most = e->room > e->room_most ? e->room : e->room_most;
    if (e->dry)
        return d->rooms.base; /* nobody writes there */
    d->rooms_wanted = e->room > d->rooms_wanted ? e->room : d->rooms_wanted;
    return e->room <= d->rooms.bytes ? d->rooms.base + at : spare_room(e, bytes);
}

/* The area of workspaces, whose old place nothing uses once the stream is idle. */
static bool workspace_grow(struct asc_emit *e)
{
    struct asc_device *d = e->d;
    bool moved = false;
    if (e->workspace <= d->workspace.bytes)
        return true;
    if (e->captures)
        asc_give_up(e, "its workspace grows while it is captured");
    else if (asc_stream_finish(d, e->stream, "growing a workspace", &e->error) ||
             asc_area_grow(d, &d->workspace, e->workspace, false, "workspace", &moved, &e->error))
        e->failed = true;
    d->areas_moved += moved;
    return !e->failed;
}

void asc_move(struct asc_emit *e, void *to, const void *from, uint64_t bytes)
{
    if (e->failed || e->dry || !bytes)
        return;
    const int error = e->api->rtMemcpyAsync(to, bytes, from, bytes, ASC_INSIDE, e->stream);
    if (error)
        failed(e, error, "copying");
}

/* ---------------------------------------------------------------------------------- calls - */

bool asc_callable(struct asc_emit *e, enum asc_operator op)
{
    e->workspace = 0;
    e->executor = NULL;
    if (!e->failed && !asc_has(e->api, op))
        asc_give_up(e, "CANN's libraries here lack %s", asc_operator_name[op]);
    return !e->failed;
}

void asc_called(struct asc_emit *e, enum asc_operator op, int error)
{
    if (!e->failed && error)
        failed(e, error, asc_operator_name[op]);
    if (e->workspace > e->workspace_most)
        e->workspace_most = e->workspace;
    if (e->failed || e->dry || !workspace_grow(e)) {
        if (!error && e->executor && e->api->DestroyAclOpExecutor)
            e->api->DestroyAclOpExecutor(e->executor);
        return;
    }
    error = e->api->run[op](e->workspace ? e->d->workspace.base : NULL, e->workspace, e->executor,
                            e->stream);
    if (error)
        failed(e, error, asc_operator_name[op]);
}

/* -------------------------------------------------------------------------------- records - */

/* Without a program addresses mean nothing, but they are the device's. */
static uint8_t *arena(const struct asc_emit *e)
{
    return e->c ? e->c->program->arena : e->d->rooms.base;
}

void *asc_in_address(struct asc_emit *e, int i)
{
    return arena(e) + (e->c ? e->r->in[i] : 0);
}

void *asc_out_address(struct asc_emit *e, int i)
{
    return arena(e) + (e->c ? e->r->out[i] : 0);
}

enum asc_type asc_in_type(const struct asc_emit *e, int i)
{
    return e->r->in_type[i] == DT_F16 ? ASC_F16 : ASC_F32;
}

enum asc_type asc_out_type(const struct asc_emit *e, int i)
{
    return e->r->out_type[i] == DT_F16 ? ASC_F16 : ASC_F32;
}

asc_tensor *asc_in(struct asc_emit *e, int i)
{
    const int64_t dims[] = {e->rows, e->r->in_width[i]};
    return asc_tensor_at(e, asc_in_type(e, i), asc_in_address(e, i), 2, dims);
}

asc_tensor *asc_out(struct asc_emit *e, int i)
{
    const int64_t dims[] = {e->rows, op_out_width(&e->r->op, i)};
    return asc_tensor_at(e, asc_out_type(e, i), asc_out_address(e, i), 2, dims);
}

bool asc_weight(struct asc_emit *e, int i, struct asc_matrix *out)
{
    const struct program_record *r = e->r;
    *out = (struct asc_matrix){0};
    if (i >= r->n_weights || (e->c && r->weight[i] == UINT32_MAX))
        return false;
    if (e->c) {
        const struct oato_weight *w = e->c->program->weights[r->weight[i]];
        *out = (struct asc_matrix){asc_form_of(e->d, w->dtype, w->use), w->rows, w->k,
                                   (uint8_t *)(uintptr_t)w->data, NULL};
    } else {
        out->values = e->d->rooms.base;
        out->form = asc_form_of(e->d, op_weight_dtype(&r->op, i), op_weight_use_at(&r->op, i));
        if (!op_weight_shape(&r->op, i, &out->rows, &out->k))
            return false;
    }
    if (out->form == ASC_FORM_NONE)
        asc_give_up(e, "a weight has a type that it does not compute with");
    if (out->form == ASC_FORM_Q8 || out->form == ASC_FORM_Q4)
        out->scales = out->values + asc_scales_at(out->form, out->rows, out->k);
    return true;
}

asc_tensor *asc_matrix_values(struct asc_emit *e, const struct asc_matrix *m, int64_t begin,
                              int64_t n)
{
    const int64_t dims[] = {m->k, n}, strides[] = {1, m->k};
    return asc_view_at(e, asc_form_type(m->form),
                       m->values + (uint64_t)begin * asc_form_row(m->form, m->k), 2, dims, strides);
}

asc_tensor *asc_matrix_scales(struct asc_emit *e, const struct asc_matrix *m, int64_t begin,
                              int64_t n)
{
    const int64_t groups = m->k / ASC_GROUP, dims[] = {groups, n}, strides[] = {1, groups};
    return asc_view_at(e, ASC_F16, m->scales + (uint64_t)(begin * groups) * sizeof(uint16_t), 2,
                       dims, strides);
}

void *asc_array_address(struct asc_emit *e, int i)
{
    return e->c ? e->c->step_memory + e->c->arrays[e->record->array[i]].offset : e->d->rooms.base;
}

void *asc_constant_address(struct asc_emit *e)
{
    return e->c ? e->record->constant : e->d->rooms.base;
}
