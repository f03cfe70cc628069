/*
 * storage.c - what does not fit into memory is read from the file of prepared weights at every
 * step: what that costs each unit, as options of the unit, and the memory that it takes. Every step
 * reads all matrices of the host that are in the file, and of experts those alone that it chooses.
 * What an accelerator reads costs one more copy: where a chunk of a prompt takes the host longer
 * than reading does, that pays. KV in a file takes turns in rooms as large as a layer's; of a
 * context that is hardly used a step reads little for the memory that it saves.
 *
 * The times of options add up, but not their memory: each device has one ring in the host's memory
 * for all that it reads, as large as the largest layer's part and the largest operator's
 * (stream_ring_bytes). So what is in the file is searched at given sizes of rooms
 * (ilp/rooms.c).
 *
 * The rule for heuristics: all matrices of the host are streamed at first. Then those outside of
 * layers become resident, for their size decides about the ring, then those that are read whole,
 * then the larger ones, each in layers as far from each other as can be, as long as all of it fits.
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

bool storage_takes(const struct problem *p, int32_t i)
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

int32_t storage_of_unit(const struct problem *p, int32_t unit, int32_t ops[STORES_MAX])
{
    int32_t n = 0;
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops && n < STORES_MAX; i++)
        if (p->unit_of[i] == unit && storage_takes(p, i))
            ops[n++] = i;
    return n;
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

/* ------------------------------------------------------------------------------- prices ---- */

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

/* Whether the option reads the k-th of the unit's operators that can be in a file from there. */
static bool reads_file(uint32_t stores, const int32_t *ops, int32_t n, int32_t op)
{
    for (int32_t k = 0; k < n; k++)
        if (ops[k] == op)
            return stores >> k & 1;
    return false;
}

/* The unit whole on device d, its own host's or another, with these operators from the file. */
static struct option option_with(const struct problem *p, int32_t unit, int32_t d, uint32_t stores)
{
    int32_t ops[STORES_MAX];
    const int32_t n = storage_of_unit(p, unit, ops);
    struct option o = p->instance.units[unit].options[d];
    o.stores = (uint8_t)stores;
    o.filed = d != p->instance.host;
    o.stream = o.filed ? (int16_t)d : -1;
    o.bytes[d] = 0;
    o.price = (struct price){0};
    for (int32_t i = p->first_op[unit]; i < p->graph.n_ops; i++) {
        if (p->unit_of[i] != unit)
            continue;
        const bool stored = reads_file(stores, ops, n, i);
        if (stored && !has_matrix(&p->graph.ops[i]))
            kv_add(p, i, &o);
        else
            op_add(p, i, d, stored, &o);
        if (stored && o.filed && stored_bytes(p, i, d) > o.staged)
            o.staged = stored_bytes(p, i, d);
    }
    return o;
}

/* What an accelerator can read from the file of a unit. */
static uint32_t filed_by(const struct problem *p, int32_t unit, int32_t d)
{
    int32_t ops[STORES_MAX];
    uint32_t stores = 0;
    const int32_t n = storage_of_unit(p, unit, ops);
    if (p->instance.is_host[d] || !p->instance.units[unit].options[d].allowed ||
        cost_of_copy(p->cost, p->device[p->instance.host], p->device[d], 1) < 0)
        return 0;
    for (int32_t k = 0; k < n; k++)
        stores |= can_be_filed(p, ops[k]) ? 1u << k : 0;
    return stores;
}

/* Units that are alike share their options: from now on each has its own. */
oato_status storage_open(struct problem *p, struct oato_error *err)
{
    struct instance *in = &p->instance;
    const int32_t host = in->host;
    p->stored = arena_alloc(&p->arena, (size_t)p->graph.n_ops + 1, sizeof *p->stored);
    memset(in->rooms, 0, sizeof in->rooms);
    for (int32_t u = 0; u < in->n_units; u++) {
        struct unit *unit = &in->units[u];
        int32_t ops[STORES_MAX], n = unit->n_options;
        const uint32_t all = 1u << storage_of_unit(p, u, ops);
        const size_t most = (size_t)n + all + (size_t)p->n_devices;
        struct option *own = arena_alloc(&p->arena, most, sizeof *own);
        if (!own || !p->stored)
            return oato_fail_memory(err, most * sizeof *own, "the options of a unit");
        n = 0;
        for (int32_t i = 0; i < unit->n_options; i++) /* streamed KV goes with no file (lowering) */
            if (!unit->options[i].rooms)
                own[n++] = unit->options[i];
        for (uint32_t stores = 1; stores < all && own[host].allowed; stores++)
            own[n++] = option_with(p, u, host, stores);
        for (int32_t d = 0; d < p->n_devices; d++)
            if (filed_by(p, u, d))
                own[n++] = option_with(p, u, d, filed_by(p, u, d));
        unit->options = own;
        unit->n_options = n;
    }
    return OATO_OK;
}

int32_t storage_option(const struct problem *p, int32_t unit, int32_t d, const bool *stored)
{
    const struct unit *u = &p->instance.units[unit];
    int32_t ops[STORES_MAX];
    uint32_t stores = 0;
    const int32_t n = storage_of_unit(p, unit, ops);
    for (int32_t k = 0; k < n; k++)
        stores |= stored[ops[k]] ? 1u << k : 0;
    for (int32_t i = p->n_devices; i < u->n_options && stores; i++)
        if (u->options[i].stores == stores && u->options[i].in[PHASE_DECODE] == d)
            return i;
    return stores ? -1 : d;
}

/* -------------------------------------------------------------------------------- rooms ---- */

/* The device that reads the matrices of an operator from the file, if they are there. */
static int32_t reader_of(const struct problem *p, const int32_t *place, int32_t i)
{
    const struct option *o = instance_option(&p->instance, place, p->unit_of[i]);
    return o->filed ? o->stream : p->instance.host;
}

/* Whether the device's ring has room for an operator's matrices; without a placement an
 * accelerator's has for all that could be read by it. */
static bool is_read_by(const struct problem *p, const int32_t *place, int32_t i, int32_t d)
{
    if (!has_matrix(&p->graph.ops[i]) || !p->stored[i])
        return false;
    return place ? reader_of(p, place, i) == d : d == p->instance.host || can_be_filed(p, i);
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

uint64_t storage_room(const struct problem *p, int32_t op, int32_t d)
{
    const struct oato_op *store = &p->graph.ops[op].op;
    return has_matrix(&p->graph.ops[op])
               ? 2 * stored_bytes(p, op, d)
               : KV_ROOMS * storage_kv_room(&p->graph, store, &p->request);
}

/* Sets the rings and rooms aside, instead of what was before. */
static void ring_set(struct problem *p, uint64_t bytes)
{
    const int32_t host = p->instance.host;
    p->reserve[host] += bytes - p->ring_bytes;
    p->ring_bytes = bytes;
    p->instance.usable[host] = p->budget[host] >= p->reserve[host];
    p->instance.capacity[host] =
        p->instance.usable[host] ? least_bytes(p->budget[host] - p->reserve[host], BYTES_MAX) : 0;
}

static void stored_set(struct problem *p, const int32_t *place)
{
    memset(p->stored, 0, sizeof *p->stored * (size_t)p->graph.n_ops);
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        int32_t ops[STORES_MAX];
        const int32_t n = storage_of_unit(p, u, ops);
        for (int32_t k = 0; k < n; k++)
            p->stored[ops[k]] = instance_option(&p->instance, place, u)->stores >> k & 1;
    }
}

oato_status storage_settle(struct problem *p, const int32_t *place, struct oato_error *err)
{
    struct stream_group *room = calloc((size_t)p->graph.n_ops + 1, sizeof *room);
    if (!room)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *room, "streaming");
    stored_set(p, place);
    ring_set(p, rings_of(p, place, room));
    free(room);
    return OATO_OK;
}

void storage_unset(struct problem *p)
{
    ring_set(p, 0);
}

/* ------------------------------------------------------------------- what is in memory ----- */

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

/* The host's memory beside activations, rings and rooms included. */
static uint64_t host_bytes(const struct problem *p)
{
    const int32_t host = p->instance.host;
    return p->budget[host] - least_bytes(p->reserve[host] - p->ring_bytes, p->budget[host]);
}

/* Takes operators out of the file, one by one, as long as all fits; resident: the bytes of those
 * that are not there. */
static oato_status take_out(struct problem *p, const int32_t *place, uint64_t *resident,
                            struct oato_error *err)
{
    const size_t n = (size_t)p->graph.n_ops + 1;
    struct stream_group *room = calloc(n, sizeof *room);
    struct candidate *c = calloc(n, sizeof *c);
    if (!room || !c) {
        free(c);
        free(room);
        return oato_fail_memory(err, n * sizeof *c, "streaming");
    }
    const int32_t many = candidates_list(p, place, c);
    bool again = true;
    while (again) { /* what leaves may make the rings smaller for others */
        again = false;
        for (int32_t i = 0; i < many; i++) {
            const uint64_t more = memory_of(p, c[i].op);
            if (!p->stored[c[i].op])
                continue;
            p->stored[c[i].op] = false;
            if (*resident + more + rings_of(p, place, room) <= host_bytes(p)) {
                *resident += more;
                again = true;
            } else {
                p->stored[c[i].op] = true;
            }
        }
    }
    free(c);
    free(room);
    return OATO_OK;
}

oato_status storage_refine(struct problem *p, int32_t *place, bool *fits, struct oato_error *err)
{
    struct instance *in = &p->instance;
    uint64_t used[SOLVER_DEVICES], staging[SOLVER_DEVICES], rooms[SOLVER_DEVICES];
    uint32_t links = 0, files = 0;
    if (storage_settle(p, place, err))
        return err->status;
    instance_fits(in, place, used);
    if (take_out(p, place, &used[in->host], err))
        return err->status;
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct option *o = instance_option(in, place, u);
        if (o->stores && !o->filed)
            place[u] = storage_option(p, u, in->host, p->stored);
        if (o->stream >= 0)
            *(o->filed ? &files : &links) |= 1u << o->stream;
    }
    if (storage_settle(p, place, err))
        return err->status;
    instance_streams(in, place, staging, rooms);
    *fits = !(links & files) && used[in->host] + p->ring_bytes <= host_bytes(p);
    for (int32_t d = 0; d < p->n_devices; d++)
        *fits = *fits && (d == in->host || used[d] + staging[d] <= in->capacity[d]);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ the rule --- */

/* Exchanges option `host` of each unit with the one in rule->at, which is hidden meanwhile. */
static void rule_swap(struct problem *p, const struct storage_rule *rule)
{
    const int32_t host = p->instance.host;
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        struct option *options = p->instance.units[u].options;
        const struct option was = options[host];
        options[host] = options[rule->at[u]];
        options[rule->at[u]] = was;
    }
}

oato_status storage_rule_begin(struct problem *p, struct storage_rule *rule, struct oato_error *err)
{
    struct instance *in = &p->instance;
    const size_t n = (size_t)in->n_units + 1;
    uint64_t resident = 0;
    rule->at = arena_alloc(&p->arena, n, sizeof *rule->at);
    rule->n_options = arena_alloc(&p->arena, n, sizeof *rule->n_options);
    if (!rule->at || !rule->n_options)
        return oato_fail_memory(err, n * sizeof *rule->at, "the units");
    for (int32_t u = 0; u < in->n_units; u++) {
        int32_t ops[STORES_MAX];
        const int32_t many = storage_of_unit(p, u, ops);
        for (int32_t k = 0; k < many; k++)
            p->stored[ops[k]] = in->units[u].options[in->host].allowed;
    }
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        resident += p->stored[i] ? 0 : memory_of(p, i);
    if (take_out(p, NULL, &resident, err))
        return err->status;
    for (int32_t u = 0; u < in->n_units; u++) {
        struct unit *unit = &in->units[u];
        rule->at[u] = storage_option(p, u, in->host, p->stored);
        rule->n_options[u] = unit->n_options;
        while (unit->options[unit->n_options - 1].stores)
            unit->n_options--;
    }
    rule_swap(p, rule);
    struct stream_group *room = calloc((size_t)p->graph.n_ops + 1, sizeof *room);
    if (!room)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *room, "streaming");
    ring_set(p, rings_of(p, NULL, room));
    free(room);
    return OATO_OK;
}

void storage_rule_end(struct problem *p, const struct storage_rule *rule, int32_t *place)
{
    if (!place) {
        rule_swap(p, rule);
        for (int32_t u = 0; u < p->instance.n_units; u++)
            p->instance.units[u].n_options = rule->n_options[u];
        ring_set(p, 0);
    }
    for (int32_t u = 0; u < p->instance.n_units && place; u++)
        if (place[u] == p->instance.host)
            place[u] = rule->at[u];
}

/* ------------------------------------------------------------------------------- doubts ---- */

/* What copies of the unit's values can cost at most, wherever it and the others are. */
static int64_t copies_most(const struct problem *p, int32_t unit)
{
    const struct instance *in = &p->instance;
    int64_t sum = 0;
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct edge *e = &in->edges[i];
        bool touches = e->producer == unit;
        for (int32_t r = 0; r < e->n_readers && !touches; r++)
            touches = in->readers[e->first_reader + r] == unit;
        for (int32_t at = 0; touches && at < PHASE_COUNT * in->n_devices; at++) {
            const int phase = at / in->n_devices, d = at % in->n_devices;
            sum = ns_add(sum,
                         ns_add(e->leave[phase][d].objective_ns, e->enter[phase][d].objective_ns));
            for (int32_t to = 0; to < in->n_devices && e->direct; to++)
                sum = ns_add(sum, e->direct[phase][d][to].objective_ns);
        }
    }
    return sum;
}

/* True if the unit has an option that is not slower than reading it from the file on an
 * accelerator, and takes no more of that one's memory. */
static bool unit_does_without(const struct problem *p, int32_t unit, int32_t d)
{
    const struct instance *in = &p->instance;
    const struct option filed = option_with(p, unit, d, filed_by(p, unit, d));
    const int64_t most_ns = copies_most(p, unit);
    for (int32_t i = 0; i < in->units[unit].n_options; i++) {
        const struct option *o = &in->units[unit].options[i];
        const bool there = o->stream == d && o->staged <= filed.staged && !o->rooms;
        bool same = o->allowed && (o->stream < 0 || there);
        for (int32_t e = 0; e < in->n_devices; e++)
            same = same && (!o->bytes[e] || e == in->host);
        if (same && ns_add(o->price.objective_ns, most_ns) <= filed.price.objective_ns)
            return true;
    }
    return false;
}

/* Where the host has room for everything, memory is no reason to read from a file; on an
 * accelerator a unit must be faster, by more than copies can cost, than otherwise. */
bool storage_may_help(struct problem *p)
{
    const struct instance *in = &p->instance;
    uint64_t all = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        uint64_t most = 0;
        for (int32_t k = 0; k < in->units[u].n_options; k++)
            if (in->units[u].options[k].bytes[in->host] > most)
                most = in->units[u].options[k].bytes[in->host];
        all += most;
    }
    if (all > in->capacity[in->host])
        return true;
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t d = 0; d < p->n_devices; d++)
            if (in->usable[d] && filed_by(p, u, d) && !unit_does_without(p, u, d))
                return true;
    return false;
}
