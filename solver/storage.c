/*
 * storage.c - what does not fit into memory is read from the file of prepared weights at every
 * step. Weights of a dense model are read once a step, so each byte that is resident saves the same
 * time wherever it lies; what counts is that the ring is small, that as much as possible is
 * resident, and that what is not is spread over the layers, so that storage never waits for a place
 * while a run of resident layers computes. Of experts the host reads those alone that a step
 * chooses, so a byte of them saves less.
 *
 * All matrices of the host are streamed at first. Then those outside of layers become resident, for
 * their size decides about the ring, then those that are read whole, then the larger ones, each in
 * layers as far from each other as can be, as long as all of it fits.
 *
 * So does KV, which takes turns in rooms as large as a layer's: of a context that is hardly used a
 * step reads little for the memory that it saves, so that weights become resident before it.
 *
 * An accelerator may compute what is streamed, for the price of one more copy: where a chunk of a
 * prompt takes the host longer than reading does. Each has a ring of its own in the host's memory.
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool has_matrix(const struct graph_op *o)
{
    return op_weight_use(&o->op) == WEIGHT_MATRIX && o->n_weights;
}

/* It stores the KV of its own layer alone: that of others would be read again, out of turn. */
static bool has_kv(const struct graph *g, const struct graph_op *o)
{
    bool alone = o->op.kind == OP_KV_STORE;
    for (int32_t i = 0; i < g->n_ops && alone; i++)
        alone = g->ops[i].kv_layer != o->kv_layer || g->ops[i].layer == o->layer;
    return alone;
}

/* Of the host. */
static bool can_be_stored(const struct problem *p, int32_t i)
{
    return problem_counts(p, i) &&
           (has_matrix(&p->graph.ops[i]) || has_kv(&p->graph, &p->graph.ops[i]));
}

static bool is_layered(const struct problem *p, int32_t i)
{
    const int32_t layer = p->graph.ops[i].layer;
    return layer >= 0 && layer < p->graph.n_layers;
}

/* Its matrices stream from the file where the option is `filed`. Those outside of layers are too
 * large for an accelerator's staging room. */
static bool can_be_filed(const struct problem *p, int32_t i)
{
    return problem_counts(p, i) && has_matrix(&p->graph.ops[i]) && is_layered(p, i);
}

/* What a step reads of an operator that is streamed to a device. */
static uint64_t stored_bytes(const struct problem *p, int32_t i, int32_t d)
{
    const uint64_t bytes = p->price[i * p->n_devices + d].weight_bytes;
    return bytes + (uint64_t)p->graph.ops[i].n_weights * READ_ALIGN;
}

uint64_t storage_kv_room(const struct graph *g, const struct oato_op *store,
                         const struct plan_request *q)
{
    const int64_t positions = request_kv_positions(q, store->window ? graph_window(g) : 0);
    return op_kv_filed_bytes(store, q->kv) * (uint64_t)(positions / KV_PAGE_POSITIONS);
}

double storage_kv_bytes(const struct graph *g, const struct oato_op *store, oato_dtype kv,
                        const struct request_step *s)
{
    const double tokens = fmax((double)s->tokens / s->seqs, 1); /* of a sequence, */
    const double seen = (double)s->kv_positions / s->seqs;      /* by all of these together */
    const double window = store->window ? graph_window(g) : INFINITY;
    const double earlier = fmin((seen - tokens * (tokens + 1) / 2) / tokens, window);
    const double pages = ceil(fmax(earlier, 0) / KV_PAGE_POSITIONS) + /* read, and written: */
                         ceil(tokens / KV_PAGE_POSITIONS);
    return pages * s->seqs * (double)op_kv_filed_bytes(store, kv);
}

double storage_share(const struct graph_op *o, uint64_t bytes, int32_t tokens)
{
    const int32_t held = op_has_experts(&o->op) ? op_experts_held(&o->op) : 0;
    if (!held || !o->n_weights || bytes % ((uint64_t)held * (uint64_t)o->n_weights * READ_ALIGN))
        return 1;
    return fmin(op_experts_read(&o->op, tokens) / held, 1);
}

/* The same of an operator of the host; of KV, for a step of decode, what it reads and writes. */
static double share_read(const struct problem *p, int32_t i, int32_t tokens)
{
    const struct oato_op *op = &p->graph.ops[i].op;
    const struct request_step step = request_decode_step(&p->request);
    if (op->kind == OP_KV_STORE)
        return storage_kv_bytes(&p->graph, op, p->request.kv, &step) /
               (double)storage_kv_room(&p->graph, op, &p->request);
    const uint64_t bytes = p->price[i * p->n_devices + p->instance.host].weight_bytes;
    return storage_share(&p->graph.ops[i], bytes, tokens);
}

/* The device that reads the matrices of an operator from the file, if they are there. */
static int32_t reader_of(const struct problem *p, const int32_t *place, int32_t i)
{
    const struct option *o = instance_option(&p->instance, place, p->unit_of[i]);
    return o->filed ? o->stream : p->instance.host;
}

/* Whether the device's ring has room for an operator's matrices; without a placement an
 * accelerator's has for all that could be streamed to it. */
static bool is_read_by(const struct problem *p, const int32_t *place, int32_t i, int32_t d)
{
    if (!has_matrix(&p->graph.ops[i]))
        return false;
    if (place)
        return p->stored[i] && reader_of(p, place, i) == d;
    return d == p->instance.host ? p->stored[i] : can_be_filed(p, i);
}

/* The ring of a device; 0: nothing is streamed to it. */
static uint64_t ring_of(const struct problem *p, const int32_t *place, int32_t d,
                        struct stream_group *room)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        if (is_read_by(p, place, i, d))
            room[n++] = (struct stream_group){p->graph.ops[i].layer, stored_bytes(p, i, d)};
    return stream_ring_bytes(room, n);
}

/* The rooms of KV that is in a file; 0: all of it is in memory. */
static uint64_t kv_rooms(const struct problem *p)
{
    uint64_t most = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct oato_op *op = &p->graph.ops[i].op;
        if (op->kind == OP_KV_STORE && p->stored[i])
            most = (uint64_t)max_i64((int64_t)most,
                                     (int64_t)storage_kv_room(&p->graph, op, &p->request));
    }
    return KV_ROOMS * most;
}

/* All rings of a placement, and rooms; without one, the host's. */
static uint64_t rings_of(const struct problem *p, const int32_t *place, struct stream_group *room)
{
    uint64_t sum = kv_rooms(p);
    for (int32_t d = 0; d < p->n_devices; d++)
        sum += place || d == p->instance.host ? ring_of(p, place, d, room) : 0;
    return sum;
}

/* What an operator takes of the host's memory where nothing of it is in the file. */
static uint64_t memory_of(const struct problem *p, int32_t i)
{
    const struct op_price *price = &p->price[i * p->n_devices + p->instance.host];
    return price->weight_bytes + price->kv_bytes;
}

/* An operator in the order in which they become resident. */
struct candidate {
    bool layered;
    double share; /* of it that a step reads */
    uint64_t bytes;
    uint32_t spread; /* of its layer, bits reversed */
    int32_t op;
};

static int by_turn(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    if (a->layered != b->layered)
        return a->layered ? 1 : -1;
    if (a->share != b->share)
        return a->share > b->share ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    const int order = order_i64(a->spread, b->spread);
    return order ? order : order_i64(a->op, b->op);
}

static uint32_t bits_reversed(uint32_t x)
{
    uint32_t y = 0;
    for (int i = 0; i < 32; i++)
        y |= (x >> i & 1) << (31 - i);
    return y;
}

static int32_t candidates_list(const struct problem *p, const int32_t *place, struct candidate *c)
{
    const int32_t host = p->instance.host;
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const bool layered = is_layered(p, i);
        const uint32_t layer = (uint32_t)p->graph.ops[i].layer;
        if (p->stored[i] && (!place || reader_of(p, place, i) == host))
            c[n++] = (struct candidate){layered, share_read(p, i, p->request.batch),
                                        memory_of(p, i), layered ? bits_reversed(layer) : 0, i};
    }
    qsort(c, (size_t)n, sizeof *c, by_turn);
    return n;
}

/* Of all operators on the host what is not streamed, and the KV. */
static uint64_t resident_bytes(const struct problem *p, const int32_t *place)
{
    const int32_t host = p->instance.host;
    uint64_t sum = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        if (!p->stored[i] && (!place || place[p->unit_of[i]] == host))
            sum += memory_of(p, i);
    }
    return sum;
}

/* The most that a record of a unit streams to an accelerator. */
static uint64_t unit_staged(const struct problem *p, int32_t unit, int32_t d)
{
    uint64_t most = 0;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++)
        if (p->unit_of[i] == unit && can_be_filed(p, i) && stored_bytes(p, i, d) > most)
            most = stored_bytes(p, i, d);
    return most;
}

/* Whether a unit could be computed on an accelerator with matrices from the file. */
static bool unit_files(const struct problem *p, int32_t unit, int32_t d)
{
    bool any = false;
    if (p->instance.is_host[d] || !p->instance.units[unit].options[d].allowed ||
        cost_of_copy(p->cost, p->device[p->instance.host], p->device[d], 1) < 0)
        return false;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops && !any; i++)
        any = p->unit_of[i] == unit && can_be_filed(p, i);
    return any;
}

/* Units that are alike share their options: from now on each has its own, and behind them, once,
 * those with matrices from the file. */
static bool options_part(struct problem *p)
{
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        struct unit *unit = &p->instance.units[u];
        int32_t n = unit->n_options;
        while (n && unit->options[n - 1].filed)
            n--;
        struct option *own = arena_alloc(&p->arena, (size_t)n + (size_t)p->n_devices, sizeof *own);
        if (!own)
            return false;
        memcpy(own, unit->options, (size_t)n * sizeof *own);
        for (int32_t d = 0; d < p->n_devices; d++)
            if (unit_files(p, u, d)) {
                own[n] = own[d];
                own[n].filed = true;
                own[n].staged = unit_staged(p, u, d);
                own[n++].stream = (int16_t)d;
            }
        unit->options = own;
        unit->n_options = n;
    }
    return true;
}

/* Adds an operator to its unit's option on device d. Storage, copies and arithmetic overlap, so the
 * slowest counts. */
static void op_add(const struct problem *p, int32_t i, int32_t d, bool stored, struct option *o)
{
    const struct op_price *own = &p->price[i * p->n_devices + d];
    const double passes = request_prefill_total(&p->request).steps;
    const double bytes = stored ? (double)stored_bytes(p, i, d) : 0;
    const double read_ns = bytes / cost_storage_rate(p->cost) * 1e9;
    const double copy_ns =
        stored ? cost_of_copy(p->cost, p->device[p->instance.host], p->device[d], bytes) : 0;
    const bool host = d == p->instance.host;
    const int32_t chunk = (int32_t)min_i64(p->request.prompt, p->request.ubatch);
    const double prompt = host ? share_read(p, i, chunk) : 1;
    const double step = host ? share_read(p, i, p->request.batch) : 1;
    const struct price price = request_price(
        &p->request, max_i64(own->prefill_ns, whole_ns(fmax(read_ns * prompt, copy_ns) * passes)),
        max_i64(own->decode_ns, whole_ns(fmax(read_ns * step, copy_ns))));
    price_add(&o->price, &price);
    o->bytes[d] += stored ? 0 : own->kv_bytes + own->weight_bytes;
}

/* The same of an operator whose KV stays in the file. */
static void kv_add(const struct problem *p, int32_t i, struct option *o)
{
    const struct op_price *own = &p->price[i * p->n_devices + p->instance.host];
    const struct oato_op *op = &p->graph.ops[i].op;
    const struct request_step decode = request_decode_step(&p->request);
    double prompt = 0;
    for (int32_t k = 0; k < request_prefill_kinds(&p->request); k++) {
        const struct request_step s = request_prefill_kind(&p->request, k);
        prompt += storage_kv_bytes(&p->graph, op, p->request.kv, &s) * s.times;
    }
    const double byte_ns = 1e9 / cost_storage_rate(p->cost);
    const double step = storage_kv_bytes(&p->graph, op, p->request.kv, &decode);
    const struct price price =
        request_price(&p->request, max_i64(own->prefill_ns, whole_ns(prompt * byte_ns)),
                      max_i64(own->decode_ns, whole_ns(step * byte_ns)));
    price_add(&o->price, &price);
}

/* The options that what is streamed changes: each unit's on the host, and those from the file. */
static void options_set(struct problem *p)
{
    const int32_t host = p->instance.host;
    for (int32_t u = 0; u < p->instance.n_units; u++)
        for (int32_t k = 0; k < p->instance.units[u].n_options; k++) {
            struct option *o = &p->instance.units[u].options[k];
            const int32_t d = o->filed ? o->stream : k;
            if (d != host && !o->filed)
                continue;
            o->bytes[d] = 0;
            o->price = (struct price){0};
            for (int32_t i = p->first_op[u]; i < p->graph.n_ops; i++)
                if (p->unit_of[i] == u && p->stored[i] && !has_matrix(&p->graph.ops[i]) &&
                    d == host)
                    kv_add(p, i, o);
                else if (p->unit_of[i] == u)
                    op_add(p, i, d, o->filed ? can_be_filed(p, i) : p->stored[i], o);
        }
}

/* What streaming to each accelerator takes, before it is known which operators are: its staging
 * room, which holds two records' matrices, and its ring. */
static void rooms_set(struct problem *p, struct stream_group *room)
{
    for (int32_t d = 0; d < p->n_devices; d++) {
        uint64_t most = 0;
        for (int32_t i = 0; i < p->graph.n_ops && !p->instance.is_host[d]; i++)
            if (can_be_filed(p, i) && stored_bytes(p, i, d) > most)
                most = stored_bytes(p, i, d);
        p->instance.staging[d] = 2 * most;
        p->instance.filing[d] = most ? ring_of(p, NULL, d, room) : 0;
    }
}

/* Sets the ring aside, instead of what was before. */
static void ring_set(struct problem *p, uint64_t bytes)
{
    const int32_t host = p->instance.host;
    p->reserve[host] += bytes - p->ring_bytes;
    p->ring_bytes = bytes;
    p->instance.usable[host] = p->budget[host] >= p->reserve[host];
    p->instance.capacity[host] =
        p->instance.usable[host] ? least_bytes(p->budget[host] - p->reserve[host], BYTES_MAX) : 0;
}

oato_status storage_set(struct problem *p, const int32_t *place, struct oato_error *err)
{
    struct stream_group *room = calloc((size_t)p->graph.n_ops + 1, sizeof *room);
    if (!room || !options_part(p)) {
        free(room);
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *room, "streaming");
    }
    ring_set(p, rings_of(p, place, room));
    if (!place)
        rooms_set(p, room);
    options_set(p);
    free(room);
    return OATO_OK;
}

oato_status storage_choose(struct problem *p, const int32_t *place, struct oato_error *err)
{
    const size_t n = (size_t)p->graph.n_ops + 1;
    struct stream_group *room = calloc(n, sizeof *room);
    struct candidate *c = calloc(n, sizeof *c);
    if (!p->stored)
        p->stored = arena_alloc(&p->arena, n, sizeof *p->stored);
    if (!room || !c || !p->stored) {
        free(c);
        free(room);
        return oato_fail_memory(err, n * sizeof *c, "streaming");
    }
    const int32_t host = p->instance.host;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        p->stored[i] = !place || place[p->unit_of[i]] == host
                           ? can_be_stored(p, i)
                           : reader_of(p, place, i) != host && can_be_filed(p, i);
    const uint64_t all =
        p->budget[host] - least_bytes(p->reserve[host] - p->ring_bytes, p->budget[host]);
    const int32_t many = candidates_list(p, place, c);
    uint64_t resident = resident_bytes(p, place);
    for (int32_t i = 0; i < many; i++) {
        const uint64_t more = memory_of(p, c[i].op);
        p->stored[c[i].op] = false;
        if (resident + more + rings_of(p, place, room) <= all)
            resident += more;
        else
            p->stored[c[i].op] = true;
    }
    free(c);
    free(room);
    return storage_set(p, place, err);
}

oato_status storage_choose_again(struct problem *p, const int32_t *place, bool *same,
                                 struct oato_error *err)
{
    const size_t bytes = (size_t)p->graph.n_ops * sizeof *p->stored;
    bool *before = arena_alloc(&p->arena, bytes + 1, 1);
    if (!before)
        return oato_fail_memory(err, bytes, "operators");
    memcpy(before, p->stored, bytes);
    const oato_status status = storage_choose(p, place, err);
    *same = !memcmp(before, p->stored, bytes);
    return status;
}
