/*
 * program.c - what holds of a program on any device: the checks when it is compiled, the size of a
 * record's operator in a step, and the printed form for --dump-program.
 */
#include "kernels/core/core_internal.h"
#include "kernels/sums.h"

#include <inttypes.h>
#include <stdarg.h>

/* ------------------------------------------------------------------------------- sizes ---- */

int32_t record_rows(const struct program_record *r, const struct step *step)
{
    switch ((enum row_class)r->rows) {
    case ROWS_LOGITS: return step->n_rows;
    case ROWS_PICKED: return step->picks ? step->n_rows - step->n_states : 0;
    case ROWS_WHOLE: return step->picks ? 0 : step->n_rows - step->n_states;
    case ROWS_OUTPUT: return step->n_rows - step->n_states;
    case ROWS_STATES: return step->n_states ? step->n_rows : 0;
    case ROWS_TOKENS:
    case ROW_CLASSES: break;
    }
    return step->n_tokens;
}

struct op_size record_size(const struct program_record *r, const struct step *step)
{
    struct op_size size = {.rows = record_rows(r, step),
                           .seqs = step->n_seqs > 1 ? step->n_seqs : 1};
    if (r->op.kind != OP_ATTENTION)
        return size;
    /* the last token of a sequence reads kv_len positions, each before it one less */
    for (int32_t s = 0; s < step->n_seqs; s++) {
        int64_t q = step->seq[s].query_len;
        size.kv_positions += q * step->seq[s].kv_len - q * (q - 1) / 2;
    }
    return size;
}

/* ------------------------------------------------------------------------------ checks ---- */

struct check {
    const struct program *p;
    const struct value_types *values;
    int self;
    uint64_t arena_bytes;
    uint32_t index; /* of the record being checked */
    struct oato_error *err;
};

static oato_status refuse(const struct check *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static oato_status refuse(const struct check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return oato_fail(c->err, OATO_EUSAGE, "program record %" PRIu32 ": %s", c->index, text);
}

/* A value of max_rows x width elements lies inside an arena. */
static oato_status check_inside(const struct check *c, uint64_t offset, int64_t width, uint8_t rows,
                                oato_dtype type, uint64_t arena_bytes)
{
    int32_t most = program_rows(c->p, rows);
    size_t bytes, end;
    if (width <= 0 || offset % value_type_bytes(type) ||
        !size_mul((size_t)width, value_type_bytes(type), &bytes) ||
        !size_mul(bytes, (size_t)most, &bytes) || !size_add(bytes, offset, &end) ||
        end > arena_bytes)
        return refuse(c,
                      "value at offset %" PRIu64 ", %" PRId32 " rows of %" PRId64
                      " %s, is not inside the arena of %" PRIu64 " bytes",
                      offset, most, width, type == DT_F16 ? "halves" : "floats", arena_bytes);
    return OATO_OK;
}

static oato_status check_value(const struct check *c, uint64_t offset, int64_t width, uint8_t rows)
{
    return check_inside(c, offset, width, rows, DT_F32, c->arena_bytes);
}

/* The record's types are those that the device has; all F32 unless it runs an operator. */
static oato_status check_types(const struct check *c, const struct program_record *r)
{
    const bool runs = r->kind == RECORD_RUN;
    for (int i = 0; i < RECORD_INPUTS + RECORD_OUTPUTS; i++) {
        const bool in = i < RECORD_INPUTS;
        const int at = in ? i : i - RECORD_INPUTS;
        const bool used = at < (in ? r->n_in : r->n_out);
        const int type = in ? r->in_type[at] : r->out_type[at];
        const oato_dtype own = !runs || !used ? DT_F32
                               : in           ? value_type_in(c->values, &r->op, at)
                                              : value_type_out(c->values, &r->op, at);
        if (type != (int)own)
            return refuse(c, "%s %d of %s is of type %d, but here it is %s",
                          in ? "input" : "output", at, runs ? op_kind_name(r->op.kind) : "a copy",
                          type, dtype_name(own));
    }
    return OATO_OK;
}

static oato_status check_peer(const struct check *c, const struct program_record *r)
{
    if (r->peer >= DEVICES_MAX || r->peer == c->self || !c->p->peers ||
        !c->p->peers[r->peer].device)
        return refuse(c, "device %d is not reachable", r->peer);
    return check_inside(c, r->kind == RECORD_PUSH ? r->out[0] : r->in[0], r->in_width[0], r->rows,
                        DT_F32, c->p->peers[r->peer].arena_bytes);
}

static oato_status check_copy(const struct check *c, const struct program_record *r)
{
    if (r->n_in != 1 || r->n_out != 1 || r->n_weights)
        return refuse(c, "a copy must have one input, one output and no weight");
    const bool leaves = r->kind == RECORD_DOWNLOAD || r->kind == RECORD_PUSH;
    if (record_is_peer(r->kind) && check_peer(c, r))
        return c->err->status;
    if (!record_is_peer(r->kind) && !c->p->host_arena)
        return refuse(c, "a copy needs a host arena");
    return check_value(c, leaves ? r->in[0] : r->out[0], r->in_width[0], r->rows);
}

/* History of a layer of the host, to a room of its shape. */
static oato_status check_history(const struct check *c, const struct program_record *r)
{
    const struct kv_cache *to = c->p->kv, *from = c->p->host_kv;
    if (r->n_in || r->n_out)
        return refuse(c, "a stream of KV has no values");
    if (!to || !from || r->kv_layer >= to->n_layers || r->kv_from < 0 ||
        r->kv_from >= from->n_layers)
        return refuse(
            c, "streams KV layer %" PRId32 " of the host to %" PRId32 ", which are not there",
            r->kv_from, r->kv_layer);
    const struct kv_layer_shape *a = &to->layers[r->kv_layer], *b = &from->layers[r->kv_from];
    if (!a->staged || b->state || b->filed || a->kv_heads != b->kv_heads ||
        a->head_dim != b->head_dim || a->v_dim != b->v_dim || a->v_in_k != b->v_in_k ||
        a->window != b->window || to->dtype != from->dtype ||
        (a->pages ? a->pages : to->pages) != (b->pages ? b->pages : from->pages))
        return refuse(c, "KV layer %" PRId32 " is no room for layer %" PRId32 " of the host",
                      r->kv_layer, r->kv_from);
    return OATO_OK;
}

static oato_status check_stream(const struct check *c, const struct program_record *r)
{
    if (record_is_history(r))
        return check_history(c, r);
    if (r->n_in || r->n_out || !r->n_weights || r->n_weights > RECORD_WEIGHTS)
        return refuse(c, "a stream must have one to %d weights and no values", RECORD_WEIGHTS);
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] >= c->p->n_weights)
            return refuse(c, "weight %" PRIu32 " is outside the table of %" PRIu32, r->weight[i],
                          c->p->n_weights);
    return OATO_OK;
}

/* The value's width is that of the record's operator; the input's may be a part of it. */
static oato_status check_shared(const struct check *c, const struct program_record *r)
{
    if (r->n_in > 1 || r->n_out != 1 || r->n_weights)
        return refuse(c, "what ranks share has at most one input, one output and no weight");
    if (!c->p->ranks)
        return refuse(c, "there are no other ranks");
    if (!sum_wire_ok((oato_dtype)r->op.dtype, r->op.n))
        return refuse(c, "%s is no type for %" PRId32 " columns between hosts",
                      dtype_name((oato_dtype)r->op.dtype), r->op.n);
    if (r->n_in && (r->in_width[0] > r->op.n || check_value(c, r->in[0], r->in_width[0], r->rows)))
        return refuse(c, "an input of %" PRId32 " columns is not a part of %" PRId32,
                      r->in_width[0], r->op.n);
    return check_value(c, r->out[0], r->op.n, r->rows);
}

/* From one rank to another. */
static oato_status check_passed(const struct check *c, const struct program_record *r)
{
    const bool sends = r->kind == RECORD_SEND;
    if (r->n_in != sends || r->n_out != !sends || r->n_weights)
        return refuse(c, "a value that is sent has one input, one that is received one output");
    if (!c->p->ranks)
        return refuse(c, "there are no other ranks");
    if (sends && r->in_width[0] != r->op.n)
        return refuse(c, "sends %" PRId32 " columns of %" PRId32, r->in_width[0], r->op.n);
    return check_value(c, sends ? r->in[0] : r->out[0], r->op.n, r->rows);
}

static oato_status check_swap(const struct check *c, const struct program_record *r)
{
    if (r->n_in > 1 || r->n_out > 1 || !(r->n_in + r->n_out) || r->n_weights)
        return refuse(c, "a swap has one input, one output, or both, and no weight");
    if (r->n_in && (r->in_width[0] != r->op.n || check_value(c, r->in[0], r->op.n, r->rows)))
        return refuse(c, "swaps %" PRId32 " columns of %" PRId32, r->in_width[0], r->op.n);
    return r->n_out ? check_value(c, r->out[0], r->op.n, r->rows) : OATO_OK;
}

static oato_status check_inputs(const struct check *c, const struct program_record *r)
{
    const int takes = op_in_count(&r->op);
    int64_t sum = 0;
    if (takes == OP_ANY ? !r->n_in || r->n_in > RECORD_INPUTS : r->n_in != takes)
        return refuse(c, "%s cannot have %d inputs", op_kind_name(r->op.kind), r->n_in);
    for (int i = 0; i < r->n_in; i++) {
        /* select reads rows of all tokens whatever it gives */
        uint8_t rows = r->op.kind == OP_SELECT ? ROWS_TOKENS : r->rows;
        const int64_t expected = op_in_width(&r->op, i);
        if (expected != OP_ANY && r->in_width[i] != expected)
            return refuse(c, "%s takes inputs of width %" PRId64 ", not %" PRId32,
                          op_kind_name(r->op.kind), expected, r->in_width[i]);
        sum += r->in_width[i];
        if (check_inside(c, r->in[i], r->in_width[i], rows, (oato_dtype)r->in_type[i],
                         c->arena_bytes))
            return c->err->status;
    }
    const int32_t all = op_in_width(&r->op, 0) == OP_ANY ? r->op.n : r->op.k;
    if (takes == OP_ANY && sum != all)
        return refuse(c, "%s has inputs of %" PRId64 " columns instead of %" PRId32,
                      op_kind_name(r->op.kind), sum, all);
    return OATO_OK;
}

static oato_status check_weights(const struct check *c, const struct program_record *r)
{
    int most = op_weight_count(&r->op), least = op_weight_least(&r->op);
    if (r->n_weights > most || r->n_weights < least)
        return refuse(c, "%s cannot have %d weights", op_kind_name(r->op.kind), r->n_weights);
    for (int i = 0; i < r->n_weights; i++) {
        bool absent = r->weight[i] == UINT32_MAX;
        if (absent ? i < least : r->weight[i] >= c->p->n_weights)
            return refuse(c, "weight %" PRIu32 " is outside the table of %" PRIu32, r->weight[i],
                          c->p->n_weights);
    }
    return OATO_OK;
}

static bool kv_layer_holds(const struct kv_layer_shape *s, const struct oato_op *op)
{
    /* pages of a window are there no more for whoever sees beyond it */
    const bool sees_beyond = s->window && (!op->window || op->window > s->window);
    return op->kv_heads == s->kv_heads && op->head_dim == s->head_dim && op->v_in_k == s->v_in_k &&
           !sees_beyond &&
           op_v_dim(op) == (s->v_in_k  ? s->v_in_k
                            : s->v_dim ? s->v_dim
                                       : s->head_dim);
}

static oato_status check_run(const struct check *c, const struct program_record *r)
{
    const struct oato_op *op = &r->op;
    char key[OP_KEY_SIZE];
    if (op->kind == OP_NONE || op->kind >= OP_KIND_COUNT)
        return refuse(c, "unknown operator kind %d", op->kind);
    if (check_inputs(c, r) || check_weights(c, r))
        return c->err->status;
    int outputs = 0;
    while (outputs < RECORD_OUTPUTS && op_out_width(op, outputs) > 0)
        outputs++;
    if (r->n_out != outputs)
        return refuse(c, "%s has %d outputs instead of %d", op_kind_name(op->kind), r->n_out,
                      outputs);
    for (int i = 0; i < outputs; i++)
        if (check_inside(c, r->out[i], op_out_width(op, i), r->rows, (oato_dtype)r->out_type[i],
                         c->arena_bytes))
            return c->err->status;
    if (op->expert_first < 0 || op->experts_held < 0 ||
        op_experts_held(op) > op->experts - op->expert_first)
        return refuse(c, "%" PRId32 " experts from %" PRId32 " on exceed the %" PRId32 " there are",
                      op_experts_held(op), op->expert_first, op->experts);
    if ((op->expert_slots || op->kind == OP_EXPERT_SUM) &&
        (r->cache < 0 || r->cache >= c->p->n_caches))
        return refuse(c, "cache %" PRId32 " of experts is none of the %" PRId32 " there are",
                      r->cache, c->p->n_caches);
    if (!op_valid(op))
        return refuse(c, "no device runs %s", oato_op_key(op, NULL, key));
    const struct kv_cache *kv = c->p->kv;
    if (op_has_kv(op) && (!kv || r->kv_layer < 0))
        return refuse(c, "%s needs a KV layer on this device", op_kind_name(op->kind));
    if (op_state_floats(op) && (!kv || r->kv_layer < 0 || r->kv_layer >= kv->n_layers ||
                                kv->layers[r->kv_layer].state != op_state_floats(op)))
        return refuse(c, "%s needs slots of its state on this device", oato_op_key(op, NULL, key));
    if (op_has_kv(op) && (r->kv_layer >= kv->n_layers || op->dtype != kv->dtype ||
                          !kv_layer_holds(&kv->layers[r->kv_layer], op)))
        return refuse(c, "%s does not fit KV layer %" PRId32, oato_op_key(op, NULL, key),
                      r->kv_layer);
    return OATO_OK;
}

static oato_status check_events(const struct check *c, const struct program_record *r,
                                uint32_t *signalled)
{
    if (r->n_waits > RECORD_WAITS)
        return refuse(c, "%d waits exceed the limit of %d", r->n_waits, RECORD_WAITS);
    for (int i = 0; i < r->n_waits; i++) {
        const struct record_wait *w = &r->wait[i];
        if (w->device >= DEVICES_MAX || !w->ordinal ||
            (w->device == c->self && w->ordinal > *signalled))
            return refuse(c, "waits for %d#%" PRIu32 ", which is never signalled", w->device,
                          w->ordinal);
    }
    if (!r->signal)
        return OATO_OK;
    if (r->signal <= *signalled || r->signal > c->p->n_signals)
        return refuse(c, "signals %" PRIu32 " after %" PRIu32 "; signals must rise, up to %" PRIu32,
                      r->signal, *signalled, c->p->n_signals);
    *signalled = r->signal;
    return OATO_OK;
}

/* Whether one of n values of a span lies at the offset. */
static bool lies_in(const struct span_value *v, int n, uint64_t offset)
{
    bool found = false;
    for (int i = 0; i < n; i++)
        found = found || v[i].offset == offset;
    return found;
}

/* Whether a record of the span before record `end` writes there. */
static bool written_in(const struct program *p, const struct program_span *s, uint32_t end,
                       uint64_t offset)
{
    bool written = false;
    for (uint32_t i = s->begin; i < end; i++)
        for (int k = 0; k < p->records[i].n_out; k++)
            written = written || p->records[i].out[k] == offset;
    return written;
}

static oato_status check_span_record(struct check *c, const struct program_span *s)
{
    const struct program_record *r = &c->p->records[c->index];
    const struct span_value *in = &c->p->span_values[s->value];
    if (r->kind != RECORD_RUN || !op_spans(&r->op) || r->rows != c->p->records[s->begin].rows)
        return refuse(c, "cannot be in a span with record %" PRIu32, s->begin);
    if ((r->n_waits && c->index != s->begin) || (r->signal && c->index != s->end - 1))
        return refuse(c, "waits or signals inside a span");
    for (int i = 0; i < r->n_in; i++)
        if (!written_in(c->p, s, c->index, r->in[i]) && !lies_in(in, s->n_in, r->in[i]))
            return refuse(c, "reads offset %" PRIu64 ", which its span does not name", r->in[i]);
    for (int i = 0; i < r->n_out; i++)
        if (lies_in(in, s->n_in, r->out[i]))
            return refuse(c, "writes offset %" PRIu64 ", an input of its span", r->out[i]);
    return OATO_OK;
}

static oato_status check_spans(struct check *c)
{
    const struct program *p = c->p;
    uint32_t before = 0;
    for (uint32_t i = 0; i < p->n_spans; i++) {
        const struct program_span *s = &p->spans[i];
        const uint64_t values = (uint64_t)s->value + s->n_in + s->n_out;
        c->index = s->begin;
        if (s->begin < before || s->end <= s->begin || s->end > p->n_records ||
            values > p->n_span_values)
            return refuse(c, "span %" PRIu32 " is out of order or exceeds its tables", i);
        before = s->end;
        for (; c->index < s->end; c->index++)
            if (check_span_record(c, s))
                return c->err->status;
        c->index = s->begin;
        for (int k = 0; k < s->n_in + s->n_out; k++) {
            const struct span_value *v = &p->span_values[s->value + (uint32_t)k];
            if (k >= s->n_in && !written_in(p, s, s->end, v->offset))
                return refuse(c, "nothing in span %" PRIu32 " makes its result at %" PRIu64, i,
                              v->offset);
            if (check_value(c, v->offset, v->width, v->rows))
                return c->err->status;
        }
    }
    return OATO_OK;
}

oato_status program_check(const struct program *p, const struct value_types *values, int self,
                          uint64_t arena_bytes, struct oato_error *err)
{
    struct check c = {p, values, self, arena_bytes, 0, err};
    uint32_t signalled = 0;
    if (p->n_signals >= TIMELINE_RING)
        return oato_fail(err, OATO_EUSAGE, "program: %" PRIu32 " signals exceed the limit of %d",
                         p->n_signals, TIMELINE_RING - 1);
    if (p->max_tokens < 0 || p->max_rows < 0 || p->max_states < 0 || p->max_seqs < 0)
        return oato_fail(err, OATO_EUSAGE, "program: negative step limits");
    for (c.index = 0; c.index < p->n_records; c.index++) {
        const struct program_record *r = &p->records[c.index];
        oato_status s;
        if (r->numerics > NUMERICS_LIBRARY)
            s = refuse(&c, "unknown numerics %d", r->numerics);
        else if (r->kind > RECORD_SWAP || r->rows >= ROW_CLASSES)
            s = refuse(&c, "unknown record kind %d or row class %d", r->kind, r->rows);
        else
            s = r->kind == RECORD_RUN      ? check_run(&c, r)
                : r->kind == RECORD_STREAM ? check_stream(&c, r)
                : r->kind == RECORD_SWAP   ? check_swap(&c, r)
                : r->kind >= RECORD_SEND   ? check_passed(&c, r)
                : r->kind >= RECORD_REDUCE ? check_shared(&c, r)
                                           : check_copy(&c, r);
        if (s || check_types(&c, r) || check_events(&c, r, &signalled))
            return err->status;
    }
    return check_spans(&c);
}

/* ---------------------------------------------------------------------------- printing ---- */

/* "sim:0" when the program knows names, else the index. */
static void print_device(const struct program *p, int device, FILE *out)
{
    if (p->device_ids && p->device_ids[device])
        fputs(p->device_ids[device], out);
    else
        fprintf(out, "device%d", device);
}

/* "@4096", or "@4096:F16". */
static void print_values(const uint64_t *offset, const uint8_t *type, int n, const char *lead,
                         FILE *out)
{
    for (int i = 0; i < n; i++)
        fprintf(out, "%s@%" PRIu64 "%s%s", i ? " " : lead, offset[i], type[i] == DT_F32 ? "" : ":",
                type[i] == DT_F32 ? "" : dtype_name((oato_dtype)type[i]));
}

/* "v12@4096": the first output is the graph's value, further ones have only a place. */
static void print_outputs(const struct program_record *r, FILE *out)
{
    if (!r->n_out)
        return;
    fputs(" -> ", out);
    if (r->value != UINT32_MAX)
        fprintf(out, "v%" PRIu32, r->value);
    print_values(r->out, r->out_type, r->n_out, "", out);
}

static void print_record(const struct program *p, uint32_t index, FILE *out)
{
    static const char *const names[] = {"run",    "upload", "download", "stream",  "peer", "push",
                                        "reduce", "gather", "send",     "receive", "swap"};
    static const char *const rows[] = {"", " [rows]", " [picked rows]", " [whole rows]"};
    const struct program_record *r = &p->records[index];
    fprintf(out, "%5" PRIu32 " %-8s ", index, names[r->kind]);
    if (r->kind == RECORD_RUN) {
        char key[OP_KEY_SIZE];
        fputs(oato_op_key(&r->op, NULL, key), out);
        if (r->op.experts_held)
            fprintf(out, " of experts %" PRId32 " to %" PRId32, r->op.expert_first,
                    r->op.expert_first + r->op.experts_held - 1);
        if (r->op.expert_slots)
            fprintf(out, r->op.expert_slots > 0 ? " in cache %" PRId32 : " not in cache %" PRId32,
                    r->cache);
    } else if (r->kind != RECORD_STREAM) {
        fprintf(out, "v%" PRIu32 " width %" PRId32, r->value, r->n_in ? r->in_width[0] : 0);
    }
    if (r->kind >= RECORD_SEND)
        fprintf(out,
                r->kind == RECORD_SEND   ? " to rank %d"
                : r->kind == RECORD_SWAP ? " with rank %d"
                                         : " from rank %d",
                r->peer);
    else if (r->kind >= RECORD_REDUCE)
        fprintf(out, " of %" PRId32 "%s%s%s", r->op.n, r->to_first ? " to rank 0" : "",
                r->op.dtype == DT_F32 ? "" : " as ",
                r->op.dtype == DT_F32 ? "" : dtype_name((oato_dtype)r->op.dtype));
    if (record_is_peer(r->kind)) {
        fputs(r->kind == RECORD_PUSH ? " to " : " of ", out);
        print_device(p, r->peer, out);
    }
    fputs(rows[r->rows], out);
    print_values(r->in, r->in_type, r->n_in, "  ", out);
    print_outputs(r, out);
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX)
            fprintf(out, "%s%" PRIu32, i ? " w" : "  w", r->weight[i]);
    if (record_is_history(r))
        fprintf(out, "  kv%" PRId32 " of the host -> kv%" PRId32, r->kv_from, r->kv_layer);
    else if (r->kv_layer >= 0 && op_has_kv(&r->op))
        fprintf(out, "  kv%" PRId32, r->kv_layer);
    for (int i = 0; i < r->n_waits; i++) {
        fputs(i ? ", " : "  after ", out);
        print_device(p, r->wait[i].device, out);
        fprintf(out, "#%" PRIu32, r->wait[i].ordinal);
    }
    if (r->signal)
        fprintf(out, "  signals %" PRIu32, r->signal);
    fputc('\n', out);
}

/* "      span 3 to 9  @0:576 @4096:192 -> @8192:576": offsets and widths. */
static void print_span(const struct program *p, const struct program_span *s, FILE *out)
{
    fprintf(out, "      span %" PRIu32 " to %" PRIu32 " ", s->begin, s->end - 1);
    for (int k = 0; k < s->n_in + s->n_out; k++) {
        const struct span_value *v = &p->span_values[s->value + (uint32_t)k];
        fprintf(out, "%s @%" PRIu64 ":%" PRId32, k == s->n_in ? " ->" : "", v->offset, v->width);
    }
    fputc('\n', out);
}

void program_print(const struct program *p, const char *device, FILE *out)
{
    fprintf(out,
            "program of %s: %" PRIu32 " records, %" PRIu32 " weights, %" PRIu32
            " signals, at most %" PRId32 " tokens, %" PRId32 " rows, %" PRId32
            " sequences, workspace %" PRIu64 " bytes\n",
            device, p->n_records, p->n_weights, p->n_signals, p->max_tokens, p->max_rows,
            p->max_seqs, p->workspace_bytes);
    const struct program_span *span = p->spans, *end = span + p->n_spans;
    for (uint32_t i = 0; i < p->n_records; i++) {
        if (span != end && span->begin == i)
            print_span(p, span++, out);
        print_record(p, i, out);
    }
}
