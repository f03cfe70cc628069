/*
 * ov_function.c - spans of records as compiled functions. The text of a span names no weight and
 * no place in an arena, so it is also the key: a layer whose text is equal to an earlier one's has
 * its function.
 *
 * Inputs and outputs are buffers of the function's own, bound once: a run copies rows in and out
 * (a thousandth of what it computes) and clears those that are missing. Weights stay bound, too: a
 * function has a request for each layer that uses it, for binding a layer's weights anew takes as
 * long as a tenth of its decode step. Requests share the memory of what is between.
 */
#include "kernels/openvino/ov_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_VALUES = 64,           /* that a span has in sight at a time */
    FUNCTION_BYTES = 300 << 10, /* that the library takes for each, about */
    MOST_REQUESTS = 512, /* of a function; the last of more layers bind weights in every run */
};

/* A value of the function, and its buffer. */
struct port {
    struct ov_node node;
    int32_t width;
    uint64_t offset; /* in the arena of the span that was compiled */
    float *buffer;
};

/* A request to run, and the weights that are bound to it. */
struct request {
    struct request *next;
    ov_infer_request *request;
    const void *bound[]; /* n_weights; NULL: not yet */
};

struct ov_function {
    struct ov_function *next;
    int users;
    struct ov_runtime *runtime;
    struct text text, constants;
    ov_tensor *constants_tensor;
    ov_compiled_model *compiled;
    struct request *requests; /* the last one made first */
    int n_requests;
    struct ov_function_info info;
    uint16_t n_in, n_out;
    struct port *in, *out; /* n_in, then n_out; one allocation */
    int n_weights;
    struct ov_weight_use weight[OV_SPAN_WEIGHTS];
    struct ov_node plane[OV_SPAN_WEIGHTS][OV_PLANES];
};

/* --------------------------------------------------------------------------------- spans -- */

struct ov_span ov_span_of_record(const struct program_record *r, struct span_value *values)
{
    struct ov_span span = {r, 1, values, r->n_in, r->n_out};
    for (int i = 0; i < r->n_in; i++)
        *values++ = (struct span_value){r->in[i], r->in_width[i], r->rows, r->in_type[i]};
    for (int i = 0; i < r->n_out; i++)
        *values++ =
            (struct span_value){r->out[i], op_out_width(&r->op, i), r->rows, r->out_type[i]};
    return span;
}

static bool weight_is_there(const struct program_record *r, int i)
{
    return i < r->n_weights && r->weight[i] != UINT32_MAX;
}

int ov_span_weights(const struct ov_span *span, uint32_t out[OV_SPAN_WEIGHTS])
{
    int n = 0;
    for (uint32_t r = 0; r < span->n; r++)
        for (int i = 0; i < RECORD_WEIGHTS; i++) {
            if (!weight_is_there(&span->records[r], i))
                continue;
            if (n == OV_SPAN_WEIGHTS)
                return -1;
            out[n++] = span->records[r].weight[i];
        }
    return n;
}

/* ------------------------------------------------------------------------------- writing -- */

struct writer {
    struct ov_ir ir;
    struct ov_function *f;
    int n; /* values that records may read: the last write to a place */
    struct port value[MOST_VALUES];
};

static bool value_put(struct writer *w, uint64_t offset, int32_t width, struct ov_node node)
{
    int at = 0;
    while (at < w->n && w->value[at].offset != offset)
        at++;
    if (at == MOST_VALUES)
        return false;
    w->n = at == w->n ? at + 1 : w->n;
    w->value[at] = (struct port){.node = node, .width = width, .offset = offset};
    return true;
}

static const struct port *value_at(const struct writer *w, uint64_t offset, int64_t width)
{
    for (int i = 0; i < w->n; i++)
        if (w->value[i].offset == offset && w->value[i].width == width)
            return &w->value[i];
    return NULL;
}

static bool weights_write(struct writer *w, struct ov_record *x, uint32_t record)
{
    struct ov_function *f = w->f;
    for (int i = 0; i < RECORD_WEIGHTS; i++) {
        if (!weight_is_there(x->r, i))
            continue;
        const struct ov_planes p = ov_op_planes(&x->r->op, i);
        if (f->n_weights == OV_SPAN_WEIGHTS || !p.n)
            return false;
        struct ov_node *plane = f->plane[f->n_weights];
        for (int j = 0; j < p.n; j++) {
            const int64_t dims[3] = {p.rows, p.plane[j].groups, p.plane[j].each};
            plane[j] = p.n == 1 ? ov_ir_input(&w->ir, p.plane[j].element, 2,
                                              (const int64_t[]){p.rows, p.k})
                                : ov_ir_input(&w->ir, p.plane[j].element, 3, dims);
        }
        x->weight[i] = ov_weight_write(&w->ir, &p, plane, f->runtime->asks ? OV_F16 : OV_F32);
        x->has[i] = true;
        f->weight[f->n_weights++] = (struct ov_weight_use){record, i, p};
    }
    return true;
}

static oato_status record_write(struct writer *w, const struct ov_span *span, uint32_t index,
                                struct oato_error *err)
{
    const struct program_record *r = &span->records[index];
    struct ov_record x = {.ir = &w->ir, .r = r, .rows = w->f->info.rows};
    if (r->kind != RECORD_RUN || !ov_op_known(&r->op))
        return oato_fail(err, OATO_EUSAGE, "%s cannot be compiled", op_kind_name(r->op.kind));
    for (int i = 0; i < r->n_in; i++) {
        const struct port *in = value_at(w, r->in[i], r->in_width[i]);
        if (!in)
            return oato_fail(err, OATO_EUSAGE, "input %d of %s is no value of its span", i,
                             op_kind_name(r->op.kind));
        x.in[i] = in->node;
    }
    if (!weights_write(w, &x, index))
        return oato_fail(err, OATO_EUSAGE, "a span of more than %d weights", OV_SPAN_WEIGHTS);
    ov_op_write(&x);
    for (int i = 0; i < r->n_out; i++)
        if (!value_put(w, r->out[i], op_out_width(&r->op, i), x.out[i]))
            return oato_fail(err, OATO_EUSAGE, "a span of more than %d values", MOST_VALUES);
    return OATO_OK;
}

static oato_status span_write(struct writer *w, const struct ov_span *span, struct oato_error *err)
{
    struct ov_function *f = w->f;
    for (int i = 0; i < f->n_in; i++) {
        const struct span_value *v = &span->values[i];
        const int64_t dims[] = {f->info.rows, v->width};
        f->in[i] = (struct port){.node = ov_ir_input(&w->ir, OV_F32, 2, dims), .width = v->width};
        if (!value_put(w, v->offset, v->width, f->in[i].node))
            return oato_fail(err, OATO_EUSAGE, "a span of more than %d values", MOST_VALUES);
    }
    for (uint32_t i = 0; i < span->n; i++)
        if (record_write(w, span, i, err))
            return err->status;
    for (int i = 0; i < f->n_out; i++) {
        const struct span_value *v = &span->values[f->n_in + i];
        const struct port *out = value_at(w, v->offset, v->width);
        if (!out)
            return oato_fail(err, OATO_EUSAGE, "output %d of a span is no value of it", i);
        f->out[i] = (struct port){.node = out->node, .width = v->width};
        ov_ir_result(&w->ir, out->node);
    }
    ov_ir_write(&w->ir, &f->text);
    text_add(&f->constants, or_empty(w->ir.constants.data), w->ir.constants.len);
    return f->text.failed || f->constants.failed
               ? oato_fail_memory(err, f->text.len, "the text of a function")
               : OATO_OK;
}

/* ----------------------------------------------------------------------------- compiling -- */

/* Binds memory to what the layer takes or gives. */
static oato_status bind(const struct ov_function *f, const struct request *q, struct ov_node node,
                        enum ov_element element, int rank, const int64_t *dims, const void *data,
                        struct oato_error *err)
{
    const struct ov_library *l = f->runtime->library;
    int64_t shape[3];
    char name[16];
    ov_tensor *tensor = NULL;
    memcpy(shape, dims, (size_t)rank * sizeof *dims);
    snprintf(name, sizeof name, "t%" PRId32, node.layer);
    ov_status status = l->tensor_create_from_host_ptr(
        l->element[element], (struct ov_shape){rank, shape}, (void *)(uintptr_t)data, &tensor);
    if (!status)
        status = l->infer_request_set_tensor(q->request, name, tensor);
    if (tensor)
        l->tensor_free(tensor);
    return status ? ov_fail(l, status, f->runtime->device, "binding memory to a function", err)
                  : OATO_OK;
}

static oato_status weight_bind(const struct ov_function *f, struct request *q, int w,
                               const void *data, struct oato_error *err)
{
    const struct ov_planes *p = &f->weight[w].planes;
    q->bound[w] = NULL;
    for (int i = 0; i < p->n; i++) {
        const struct ov_plane *plane = &p->plane[i];
        const int64_t two[] = {p->rows, p->k};
        const int64_t three[] = {p->rows, plane->groups, plane->each};
        if (bind(f, q, f->plane[w][i], plane->element, p->n == 1 ? 2 : 3, p->n == 1 ? two : three,
                 (const uint8_t *)data + plane->offset, err))
            return err->status;
    }
    q->bound[w] = data;
    return OATO_OK;
}

static uint64_t port_bytes(const struct ov_function *f, const struct port *p)
{
    return (uint64_t)f->info.rows * (uint64_t)p->width * sizeof(float);
}

static oato_status buffers_make(struct ov_function *f, struct oato_error *err)
{
    for (int i = 0; i < f->n_in + f->n_out; i++) {
        struct port *p = &f->in[i];
        p->buffer = pages_alloc(port_bytes(f, p));
        if (!p->buffer)
            return oato_fail_memory(err, port_bytes(f, p), "the buffers of a function");
        f->info.buffer_bytes += port_bytes(f, p);
    }
    return OATO_OK;
}

static oato_status request_make(struct ov_function *f, struct request **out, struct oato_error *err)
{
    struct ov_runtime *rt = f->runtime;
    struct request *q = calloc(1, sizeof *q + (size_t)f->n_weights * sizeof q->bound[0]);
    if (!q)
        return oato_fail_memory(err, sizeof *q, "a request");
    q->next = f->requests;
    f->requests = q;
    f->n_requests++;
    const ov_status status =
        rt->library->compiled_model_create_infer_request(f->compiled, &q->request);
    if (status)
        return ov_fail(rt->library, status, rt->device, "making a compiled function ready", err);
    for (int i = 0; i < f->n_in + f->n_out; i++) {
        const int64_t dims[] = {f->info.rows, f->in[i].width};
        if (bind(f, q, f->in[i].node, OV_F32, 2, dims, f->in[i].buffer, err))
            return err->status;
    }
    *out = q;
    return OATO_OK;
}

static void request_drop(struct ov_function *f)
{
    struct request *q = f->requests;
    f->requests = q->next;
    f->n_requests--;
    if (q->request)
        f->runtime->library->infer_request_free(q->request);
    free(q);
}

/* The request with these weights. */
static oato_status request_for(struct ov_function *f, const void *const *weights,
                               struct request **out, struct oato_error *err)
{
    const size_t bytes = (size_t)f->n_weights * sizeof *weights;
    for (struct request *q = f->requests; q; q = q->next)
        if (!memcmp(q->bound, weights, bytes)) {
            *out = q;
            return OATO_OK;
        }
    struct request *q = f->requests;
    oato_status status = OATO_OK;
    if (!q || f->n_requests < MOST_REQUESTS)
        status = request_make(f, &q, err);
    for (int i = 0; i < f->n_weights && !status && q; i++)
        if (q->bound[i] != weights[i])
            status = weight_bind(f, q, i, weights[i], err);
    *out = q;
    return status;
}

static oato_status function_compile(struct ov_function *f, struct oato_error *err)
{
    struct ov_runtime *rt = f->runtime;
    const uint64_t begin = now_ns();
    if (ov_runtime_compile(rt, f->text.data, f->text.len, f->constants.data, f->constants.len,
                           &f->constants_tensor, &f->compiled, err))
        return err->status;
    f->info.compile_seconds = (double)(now_ns() - begin) * 1e-9;
    return buffers_make(f, err);
}

static void function_free(struct ov_function *f)
{
    const struct ov_library *l = f->runtime->library;
    while (f->requests)
        request_drop(f);
    if (f->compiled)
        l->compiled_model_free(f->compiled);
    if (f->constants_tensor)
        l->tensor_free(f->constants_tensor);
    for (int i = 0; f->in && i < f->n_in + f->n_out; i++)
        pages_free(f->in[i].buffer, port_bytes(f, &f->in[i]));
    text_free(&f->text);
    text_free(&f->constants);
    free(f->in);
    free(f);
}

static bool function_same(const struct ov_function *a, const struct ov_function *b)
{
    return a->text.len == b->text.len && a->constants.len == b->constants.len &&
           memcmp(or_empty(a->text.data), or_empty(b->text.data), a->text.len) == 0 &&
           memcmp(or_empty(a->constants.data), or_empty(b->constants.data), a->constants.len) == 0;
}

/* The check, which says what the function is worth. */
static oato_status function_check(struct ov_function *f, const struct ov_span *span,
                                  const void *const *weights, struct oato_error *err)
{
    char key[OP_KEY_SIZE];
    const uint64_t begin = now_ns();
    if (ov_check(f, span, f->weight, f->n_weights, f->info.rows, weights, &f->info.nmse, err))
        return err->status;
    f->info.check_seconds = (double)(now_ns() - begin) * 1e-9;
    if (!weights)
        request_drop(f); /* its weights are no more */
    if (f->info.nmse <= f->runtime->nmse)
        return OATO_OK;
    return oato_fail(err, OATO_EDEVICE,
                     "%s: a compiled function of %" PRIu32 " operators from %s on, %" PRId32
                     " rows, computes something else than the reference: NMSE %.2g, where %s "
                     "allows %.0e; place them elsewhere, or use another OpenVINO or driver",
                     f->runtime->device, span->n, oato_op_key(&span->records[0].op, NULL, key),
                     f->info.rows, f->info.nmse, f->runtime->numerics, f->runtime->nmse);
}

uint64_t ov_temporary_bytes(const struct oato_op *op, int32_t rows)
{
    const int64_t values = op->kind == OP_GATE_UP ? 3 : 1; /* both products, and theirs */
    int64_t floats = 0;
    for (int i = 0; i < op_weight_count(op); i++) {
        const struct ov_planes p = ov_op_planes(op, i);
        if (p.n && op_weight_use_at(op, i) == WEIGHT_MATRIX && p.plane[0].element != OV_F32)
            floats += p.rows * p.k;
    }
    return (uint64_t)(floats + rows * values * op->n) * sizeof(float) + FUNCTION_BYTES;
}

oato_status ov_function_open(struct ov_runtime *rt, const struct ov_span *span, int32_t rows,
                             const void *const *weights, struct ov_function **out,
                             struct oato_error *err)
{
    struct ov_function *f = calloc(1, sizeof *f);
    struct writer *w = calloc(1, sizeof *w);
    struct port *ports = calloc((size_t)span->n_in + span->n_out + 1, sizeof *ports);
    if (!f || !w || !ports) {
        oato_fail_memory(err, sizeof *f + sizeof *w, "a compiled function");
        free(f);
        free(ports);
        goto out;
    }
    f->runtime = rt;
    f->users = 1;
    f->n_in = span->n_in;
    f->n_out = span->n_out;
    f->in = ports;
    f->out = ports + span->n_in;
    f->info.rows = rows;
    w->f = f;
    if (span_write(w, span, err)) {
        oato_fail_at(err, "%s", rt->device);
        goto failed;
    }
    for (struct ov_function *g = rt->functions; g; g = g->next) {
        if (!function_same(f, g))
            continue;
        g->users++;
        *out = g;
        function_free(f);
        ov_ir_free(&w->ir);
        free(w);
        return OATO_OK;
    }
    for (uint32_t i = 0; i < span->n; i++)
        f->info.temporary_bytes =
            (uint64_t)max_i64((int64_t)f->info.temporary_bytes,
                              (int64_t)ov_temporary_bytes(&span->records[i].op, rows));
    if (function_compile(f, err) || function_check(f, span, weights, err))
        goto failed;
    f->next = rt->functions;
    *out = rt->functions = f;
    err->status = OATO_OK;
    goto out;
failed:
    function_free(f);
out:
    if (w)
        ov_ir_free(&w->ir);
    free(w);
    return err->status;
}

void ov_function_close(struct ov_function *f)
{
    if (!f || --f->users)
        return;
    struct ov_function **at = &f->runtime->functions;
    while (*at != f)
        at = &(*at)->next;
    *at = f->next;
    function_free(f);
}

struct ov_function_info ov_function_info(const struct ov_function *f)
{
    return f->info;
}

oato_status ov_function_bind(struct ov_function *f, const void *const *weights,
                             struct oato_error *err)
{
    struct request *q;
    return request_for(f, weights, &q, err);
}

oato_status ov_function_run(struct ov_function *f, int32_t rows, const float *const *in,
                            const void *const *weights, float *const *out, struct oato_error *err)
{
    const struct ov_library *l = f->runtime->library;
    struct request *q = NULL;
    const oato_status bound = request_for(f, weights, &q, err);
    if (bound || !q)
        return bound;
    for (int i = 0; i < f->n_in; i++) {
        const size_t floats = (size_t)rows * (size_t)f->in[i].width;
        memcpy(f->in[i].buffer, in[i], floats * sizeof(float));
        memset(f->in[i].buffer + floats, 0, port_bytes(f, &f->in[i]) - floats * sizeof(float));
    }
    const ov_status status = l->infer_request_infer(q->request);
    if (status)
        return ov_fail(l, status, f->runtime->device, "running a compiled function", err);
    for (int i = 0; i < f->n_out; i++)
        memcpy(out[i], f->out[i].buffer, (size_t)rows * (size_t)f->out[i].width * sizeof(float));
    return OATO_OK;
}
