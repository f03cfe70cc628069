/*
 * values.c - brings values to where they are read. A value that another device reads is copied
 * there once, by an upload or download record on the accelerator's queue, or by a peer record on
 * the queue of the accelerator that reads it. Parts are merged on each device that reads the whole
 * value. A device may have values as F16; what leaves it, or is read as float32, is converted there
 * once.
 *
 * What a record must wait for is tracked as vector clocks (per record: the last record of every
 * other queue that is known complete), which make redundant waits unnecessary and later tell
 * arena.c which buffers may share memory.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- records and waits */

void *room_for(struct lowering *l, void *array, int32_t n, int32_t *cap, size_t size,
               const char *what)
{
    const int32_t more = *cap ? *cap * 2 : 256;
    if (n < *cap)
        return array;
    void *p = realloc(array, (size_t)more * size);
    if (!p) {
        oato_fail_memory(l->err, (size_t)more * size, what);
        return NULL;
    }
    *cap = more;
    return p;
}

struct queued *record_add(struct lowering *l, int32_t device, enum record_kind kind)
{
    struct queue *q = &l->queue[device];
    struct queued *p = room_for(l, q->records, q->n, &q->cap, sizeof *p, "a program");
    if (!p)
        return NULL;
    q->records = p;
    struct queued *r = &q->records[q->n++];
    memset(r, 0, sizeof *r);
    r->record.kind = (uint8_t)kind;
    r->record.kv_layer = -1;
    r->record.parts = 1;
    r->record.graph_op = r->record.value = UINT32_MAX;
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r->record.weight[i] = UINT32_MAX;
    return r;
}

void record_wait(struct lowering *l, int32_t device, struct queued *r, int32_t other, int32_t on)
{
    struct queue *q = &l->queue[device];
    if (other == device || q->known[other] >= on)
        return;
    struct queued *awaited = &l->queue[other].records[on];
    awaited->signals = true;
    int i = 0;
    while (i < r->record.n_waits && r->wait_device[i] != other)
        i++;
    r->wait_device[i] = other;
    r->wait_record[i] = on;
    if (i == r->record.n_waits)
        r->record.n_waits++;
    for (int d = 0; d < DEVICES_MAX; d++)
        if (awaited->known[d] > q->known[d] && d != device)
            q->known[d] = awaited->known[d];
    q->known[other] = on;
}

int32_t record_done(struct lowering *l, int32_t device, struct queued *r)
{
    struct queue *q = &l->queue[device];
    memcpy(r->known, q->known, sizeof r->known);
    q->known[device] = q->n - 1;
    return q->n - 1;
}

static int32_t buffer_add(struct lowering *l, int32_t device, int32_t width, oato_dtype type,
                          int32_t rows, int32_t queue)
{
    struct buffer *p =
        room_for(l, l->buffers, l->n_buffers, &l->buffers_cap, sizeof *p, "activation buffers");
    if (!p)
        return -1;
    l->buffers = p;
    struct buffer *b = &l->buffers[l->n_buffers];
    *b = (struct buffer){
        .device = device,
        .type = type,
        .width = width,
        .rows = (uint8_t)rows,
        .other = nowhere,
        .bytes = size_align((size_t)rows_most(l, rows) * (size_t)width * value_type_bytes(type),
                            BUFFER_ALIGN),
        .def_queue = queue,
        .def_record = l->queue[queue].n - 1,
    };
    for (int i = 0; i < DEVICES_MAX; i++)
        b->last_use[i] = -1;
    b->last_use[queue] = b->def_record;
    return l->n_buffers++;
}

void record_reads(struct lowering *l, int32_t device, struct queued *r, int i, struct home h,
                  int32_t width)
{
    record_wait(l, device, r, h.queue, h.record);
    r->in[i] = h.buffer;
    r->record.in_type[i] = (uint8_t)l->buffers[h.buffer].type;
    r->record.in_width[i] = width;
    r->record.n_in = (uint8_t)(i + 1);
    l->buffers[h.buffer].last_use[device] = l->queue[device].n - 1;
}

void record_makes(struct lowering *l, int32_t worker, int32_t device, struct queued *r, int i,
                  int32_t width, int32_t rows)
{
    const oato_dtype type = r->record.kind == RECORD_RUN
                                ? value_type_out(l->in->facts->values[device], &r->record.op, i)
                                : DT_F32;
    r->record.out_type[i] = (uint8_t)type;
    r->out[i] = buffer_add(l, device, width, type, rows, worker);
    r->record.n_out = (uint8_t)(i + 1);
}

uint8_t value_rows(const struct lowering *l, int32_t value)
{
    const enum row_class rows = l->graph->values[value].rows;
    const bool other = l->some_rows && (value != l->in->state || l->some_rows == ROWS_STATES);
    return (uint8_t)(rows == ROWS_LOGITS && other ? l->some_rows : rows);
}

/* Completes a record of queue `worker`: its output is on `device` and belongs to the value. */
static struct home output_add(struct lowering *l, int32_t worker, int32_t device, struct queued *r,
                              int32_t value, int32_t width)
{
    r->record.value = (uint32_t)value;
    r->record.rows = value_rows(l, value);
    record_makes(l, worker, device, r, 0, width, r->record.rows);
    return (struct home){r->out[0], worker, record_done(l, worker, r)};
}

struct home home_as(struct lowering *l, int32_t value, struct home h, oato_dtype type)
{
    if (failed(l) || h.buffer < 0 || l->buffers[h.buffer].type == type)
        return h;
    const struct buffer from = l->buffers[h.buffer];
    struct queued *r = from.other.buffer < 0 ? record_add(l, from.device, RECORD_RUN) : NULL;
    if (!r)
        return from.other;
    r->record.op = (struct oato_op){
        .kind = OP_CONVERT, .dtype = (uint16_t)type, .k = from.width, .n = from.width};
    r->record.value = (uint32_t)value;
    r->record.rows = from.rows; /* whoever asks first */
    record_reads(l, from.device, r, 0, h, from.width);
    record_makes(l, from.device, from.device, r, 0, from.width, from.rows);
    const struct home made = {r->out[0], from.device, record_done(l, from.device, r)};
    l->buffers[h.buffer].other = made;
    return made;
}

struct home run_emit(struct lowering *l, int32_t device, struct oato_op op, int32_t value,
                     const struct home *in, const int32_t *widths, int n)
{
    struct home typed[RECORD_INPUTS] = {{0}};
    for (int i = 0; i < n; i++)
        typed[i] = home_as(l, value, in[i], value_type_in(l->in->facts->values[device], &op, i));
    struct queued *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return nowhere;
    r->record.op = op;
    for (int i = 0; i < n; i++)
        record_reads(l, device, r, i, typed[i], widths[i]);
    return output_add(l, device, device, r, value, op.n);
}

/* ------------------------------------------------------------------------------- copies */

/* Whether a part of a value leaves on its maker's queue for another accelerator: of three and more
 * that come together, so that they come at the same time. */
static bool is_pushed(const struct lowering *l, int32_t value, int32_t from, int32_t to)
{
    const struct lowered_value *v = &l->values[value];
    int32_t here = 0;
    for (int32_t i = 0; i < v->n_parts; i++)
        here += v->part_device[i] >= 0 && v->part_device[i] != l->in->facts->host;
    return here > 2 && l->in->facts->reaches[from][to];
}

/* Runs on the accelerator's queue; between two accelerators on the reader's, or the maker's. Links
 * carry float32. */
struct home copy_emit(struct lowering *l, int32_t value, int32_t part, int32_t width,
                      struct home from, int32_t to)
{
    from = home_as(l, value, from, DT_F32);
    if (failed(l))
        return from;
    const int32_t host = l->in->facts->host, from_device = l->buffers[from.buffer].device;
    const bool pushed = from_device != host && to != host && is_pushed(l, value, from_device, to);
    const int32_t worker = to == host || pushed ? from_device : to;
    struct queued *r = record_add(l, worker,
                                  from_device == host ? RECORD_UPLOAD
                                  : to == host        ? RECORD_DOWNLOAD
                                  : pushed            ? RECORD_PUSH
                                                      : RECORD_PEER);
    if (!r)
        return from;
    r->record.peer = (uint8_t)(r->record.kind == RECORD_PEER   ? from_device
                               : r->record.kind == RECORD_PUSH ? to
                                                               : 0);
    r->record.op = (struct oato_op){.dtype = DT_F32, .k = width, .n = width};
    r->record.part = (uint8_t)part;
    r->record.parts = (uint8_t)l->values[value].n_parts;
    record_reads(l, worker, r, 0, from, width);
    return output_add(l, worker, to, r, value, width);
}

static struct home part_fetch(struct lowering *l, int32_t value, int32_t part, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    const int32_t from = v->part_device[part], host = l->in->facts->host;
    struct home *h = &v->part[part][device];
    if (h->buffer < 0 && !failed(l)) {
        struct home source = v->part[part][from];
        /* accelerators that cannot reach each other copy through host memory */
        if (from != host && device != host && !l->in->facts->reaches[device][from])
            source = part_fetch(l, value, part, host);
        if (!failed(l))
            *h = copy_emit(l, value, part, v->part_width[part], source, device);
    }
    return *h;
}

struct home part_read(struct lowering *l, int32_t value, int32_t part, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    if (device != v->part_device[part] && !v->counted[part][device]) {
        v->counted[part][device] = true;
        copy_count(l, v->part_width[part]);
    }
    return part_fetch(l, value, part, device);
}

/* ---------------------------------------------------------------------- wholes and parts */

static const char *const members_name[] = {
    [PARTS_NEURONS] = "neurons", [PARTS_EXPERTS] = "experts"};

/* A summand: its home, and the rank and host that it is of. */
struct summand {
    struct home home;
    int32_t rank, host;
};

static struct home sum_emit(struct lowering *l, int32_t value, int32_t device,
                            const struct summand *s, int n, oato_dtype wire)
{
    const int32_t width = l->graph->values[value].width;
    const struct oato_op op = {
        .kind = OP_MERGE_SUM, .dtype = (uint16_t)wire, .k = width * n, .n = width};
    struct home in[PARTS_MAX];
    int32_t widths[PARTS_MAX];
    for (int i = 0; i < n; i++) {
        in[i] = s[i].home;
        widths[i] = width;
    }
    return run_emit(l, device, op, value, in, widths, n);
}

/* Sums neighbours of one rank or, by_host, of one host; returns how many sums there are. */
static int sums_emit(struct lowering *l, int32_t value, int32_t device, struct summand *s, int n,
                     bool by_host)
{
    int sums = 0;
    for (int i = 0, end; i < n && !failed(l); i = end) {
        for (end = i + 1; end < n; end++)
            if (by_host ? s[end].host != s[i].host : s[end].rank != s[i].rank)
                break;
        struct summand sum = s[i];
        if (end - i > 1)
            sum.home = sum_emit(l, value, device, s + i, end - i, DT_F32);
        s[sums++] = sum;
    }
    return sums;
}

bool value_is_of_one_rank(const struct lowered_value *v)
{
    bool one = !v->everywhere;
    for (int i = 1; i < v->n_parts; i++)
        one = one && v->part_rank[i] == v->part_rank[0];
    return one;
}

bool value_is_shared(const struct lowered_value *v)
{
    bool elsewhere = false;
    for (int i = 0; i < v->n_parts; i++)
        elsewhere = elsewhere || v->part_device[i] < 0;
    return elsewhere && !value_is_of_one_rank(v);
}

/* The sum of the parts here: those of a rank, then the ranks of a host, then the hosts, as ranks
 * would add them if they ran it together. */
static struct home merge_sum(struct lowering *l, int32_t value, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    struct summand s[PARTS_MAX];
    int n = 0;
    for (int i = 0; i < v->n_parts; i++)
        if (v->part_device[i] >= 0)
            s[n++] =
                (struct summand){part_read(l, value, i, device), v->part_rank[i], v->part_host[i]};
    n = sums_emit(l, value, device, s, n, false);
    n = sums_emit(l, value, device, s, n, true);
    /* what one rank has of a sum is rounded, if at all, on its way */
    const oato_dtype wire = value_is_shared(v) ? DT_F32 : l->in->placements->wire;
    if (!n)
        return nowhere;
    return (n == 1 && wire == DT_F32) || failed(l) ? s[0].home
                                                   : sum_emit(l, value, device, s, n, wire);
}

struct home merge_columns(struct lowering *l, int32_t value, int32_t device, int32_t *width)
{
    struct lowered_value *v = &l->values[value];
    struct home parts[PARTS_MAX] = {{0}};
    int32_t widths[PARTS_MAX] = {0};
    int n = 0;
    *width = 0;
    for (int i = 0; i < v->n_parts; i++) {
        if (v->part_device[i] < 0)
            continue;
        *width += widths[n] = v->part_width[i];
        parts[n++] = part_read(l, value, i, device);
    }
    const struct oato_op op = {.kind = OP_MERGE, .dtype = DT_F32, .k = *width, .n = *width};
    return !n ? nowhere : n == 1 ? parts[0] : run_emit(l, device, op, value, parts, widths, n);
}

static struct home merge_emit(struct lowering *l, int32_t value, int32_t device, int32_t *width)
{
    struct lowered_value *v = &l->values[value];
    *width = l->graph->values[value].width;
    if (v->parts >= PARTS_NEURONS) {
        oato_fail(l->err, OATO_EFILE,
                  "value %d is split by %s but read as a whole; run oato-plan again", value,
                  members_name[v->parts]);
        return nowhere;
    }
    return v->parts == PARTS_SUMMANDS ? merge_sum(l, value, device)
                                      : merge_columns(l, value, device, width);
}

struct home share_emit(struct lowering *l, enum record_kind kind, int32_t value, struct home own,
                       int32_t own_width, int32_t width)
{
    const int32_t host = l->in->facts->host;
    const bool sums = kind == RECORD_REDUCE;
    struct queued *r = failed(l) ? NULL : record_add(l, host, kind);
    if (!r)
        return nowhere;
    r->record.op = (struct oato_op){
        .dtype = (uint16_t)(sums ? l->in->placements->wire : DT_F32), .k = width, .n = width};
    r->record.to_first = !sums && l->to_first;
    if (own.buffer >= 0)
        record_reads(l, host, r, 0, own, own_width);
    return output_add(l, host, host, r, value, width);
}

/* A record of the device that exchanges the value, or something of its rows, with the rank. */
static struct queued *pass_add(struct lowering *l, int32_t device, enum record_kind kind,
                               int32_t value, int32_t rank, int32_t width)
{
    struct queued *r = failed(l) ? NULL : record_add(l, device, kind);
    if (!r)
        return NULL;
    r->record.op = (struct oato_op){.dtype = DT_F32, .k = width, .n = width};
    r->record.peer = (uint8_t)rank;
    r->record.value = (uint32_t)value;
    r->record.rows = value_rows(l, value);
    return r;
}

/* Where the ranks put the value together. */
static int32_t shared_on(const struct lowering *l, const struct lowered_value *v)
{
    return v->parts == PARTS_SUMMANDS ? l->in->placements->sums_on : l->in->facts->host;
}

static int part_of_rank(const struct lowered_value *v, int32_t rank)
{
    int i = 0;
    while (i < v->n_parts && v->part_rank[i] != rank)
        i++;
    return i < v->n_parts ? i : -1;
}

/* What this rank has goes to the other one, and what that has comes from there; either may have
 * nothing. */
static struct home swap_emit(struct lowering *l, int32_t value, int32_t device, int32_t rank,
                             struct home own)
{
    const int32_t width = l->graph->values[value].width;
    const bool receives = part_of_rank(&l->values[value], rank) >= 0;
    own = home_as(l, value, own, DT_F32);
    struct queued *r =
        own.buffer >= 0 || receives ? pass_add(l, device, RECORD_SWAP, value, rank, width) : NULL;
    if (!r)
        return nowhere;
    if (own.buffer >= 0)
        record_reads(l, device, r, 0, own, width);
    if (receives)
        return output_add(l, device, device, r, value, width);
    record_done(l, device, r);
    return nowhere;
}

/* The sums of all ranks, by accelerators: each gets those of the others, and adds them as one
 * process would. */
static struct home value_swap(struct lowering *l, int32_t value, int32_t device, struct home own)
{
    const struct lowered_value *v = &l->values[value];
    struct summand s[PARTS_MAX];
    int n = 0;
    for (int32_t rank = 0; rank < l->in->placements->ranks && !failed(l); rank++) {
        const int part = part_of_rank(v, rank);
        const struct home h =
            rank == l->in->placements->rank ? own : swap_emit(l, value, device, rank, own);
        if (part >= 0)
            s[n++] = (struct summand){h, rank, v->part_host[part]};
    }
    n = sums_emit(l, value, device, s, n, true);
    return n == 1 || failed(l) ? s[0].home : sum_emit(l, value, device, s, n, DT_F32);
}

void value_share(struct lowering *l, int32_t value)
{
    const struct lowered_value *v = &l->values[value];
    const int32_t device = shared_on(l, v);
    struct home *h = &l->values[value].merged[device];
    int32_t own_width;
    if (h->buffer >= 0 || !value_is_shared(v) || failed(l))
        return;
    const struct home own = merge_emit(l, value, device, &own_width);
    if (failed(l))
        return;
    if (device != l->in->facts->host)
        *h = value_swap(l, value, device, own);
    else
        *h = share_emit(l, v->parts == PARTS_SUMMANDS ? RECORD_REDUCE : RECORD_GATHER, value, own,
                        own_width, l->graph->values[value].width);
}

void send_emit(struct lowering *l, int32_t value, int32_t rank, struct home h, int32_t width)
{
    struct queued *r = pass_add(l, l->in->facts->host, RECORD_SEND, value, rank, width);
    if (!r)
        return;
    record_reads(l, l->in->facts->host, r, 0, h, width);
    record_done(l, l->in->facts->host, r);
}

struct home receive_emit(struct lowering *l, int32_t value, int32_t rank, int32_t width)
{
    const int32_t host = l->in->facts->host;
    struct queued *r = pass_add(l, host, RECORD_RECEIVE, value, rank, width);
    return r ? output_add(l, host, host, r, value, width) : nowhere;
}

static void value_send(struct lowering *l, int32_t value, int32_t rank)
{
    send_emit(l, value, rank, value_read(l, value, l->in->facts->host),
              l->graph->values[value].width);
    l->values[value].sent |= UINT64_C(1) << rank;
}

/* From then on it is as if this rank's host had made it. */
static void value_receive(struct lowering *l, int32_t value)
{
    struct lowered_value *v = &l->values[value];
    const int32_t host = l->in->facts->host, width = l->graph->values[value].width;
    v->part[0][host] = receive_emit(l, value, v->part_rank[0], width);
    v->n_parts = 1;
    v->parts = PARTS_COLUMNS;
    v->part_device[0] = host;
    v->part_begin[0] = 0;
    v->part_end[0] = v->part_width[0] = width;
    v->everywhere = true;
}

static void pass_to(struct lowering *l, int32_t value, int32_t rank)
{
    const struct lowered_value *v = &l->values[value];
    const int32_t own = l->in->placements->rank, from = v->part_rank[0];
    if (failed(l) || !l->in->placements->ranks || !value_is_of_one_rank(v) || from == rank)
        return;
    if (v->part_device[0] < 0 && rank == own)
        value_receive(l, value);
    else if (v->part_device[0] >= 0 && from == own && !(v->sent >> rank & 1))
        value_send(l, value, rank);
}

void value_pass(struct lowering *l, int32_t value, const struct placed_part *reader)
{
    const int32_t first = reader->everywhere ? 0 : reader->rank,
                  last = reader->everywhere ? l->in->placements->ranks - 1 : reader->rank;
    for (int32_t rank = first; rank <= last; rank++)
        pass_to(l, value, rank);
}

struct home value_read(struct lowering *l, int32_t value, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    struct home *h = &v->merged[device];
    int32_t width;
    if (v->n_parts == 1)
        return part_read(l, value, 0, device);
    value_share(l, value);
    if (h->buffer < 0 && !failed(l) && value_is_shared(v)) {
        width = l->graph->values[value].width;
        copy_count(l, width);
        *h = copy_emit(l, value, 0, width, v->merged[shared_on(l, v)], device);
    } else if (h->buffer < 0 && !failed(l)) {
        *h = merge_emit(l, value, device, &width);
    }
    return *h;
}

int32_t part_find(const struct lowered_value *v, enum value_parts parts, int32_t begin, int32_t end)
{
    for (int32_t i = 0; v->parts == parts && i < v->n_parts; i++)
        if (v->part_begin[i] == begin && v->part_end[i] == end)
            return i;
    return -1;
}

int32_t rank_part_find(const struct lowering *l, int32_t value, int32_t begin, int32_t end,
                       int32_t rank)
{
    const struct lowered_value *v = &l->values[value];
    const int32_t part = part_find(v, PARTS_COLUMNS, begin, end);
    return part >= 0 && v->part_rank[part] == rank ? part : -1;
}

struct home members_read(struct lowering *l, int32_t value, enum value_parts parts, int32_t begin,
                         int32_t end, int32_t device)
{
    const int32_t part = part_find(&l->values[value], parts, begin, end);
    if (part >= 0)
        return part_read(l, value, part, device);
    oato_fail(l->err, OATO_EFILE,
              "%s %d to %d read value %d, which is split differently; run oato-plan again",
              members_name[parts], begin, end, value);
    return nowhere;
}

void values_init(struct lowering *l)
{
    for (int d = 0; d < DEVICES_MAX; d++)
        for (int o = 0; o < DEVICES_MAX; o++)
            l->queue[d].known[o] = -1;
    for (int32_t v = 0; v < l->graph->n_values; v++)
        for (int d = 0; d < DEVICES_MAX; d++) {
            l->values[v].merged[d].buffer = -1;
            for (int p = 0; p < PARTS_MAX; p++)
                l->values[v].part[p][d].buffer = -1;
        }
}
