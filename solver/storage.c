/*
 * storage.c - what does not fit into memory is read from the file of prepared weights at every
 * step. Weights of a dense model are read once a step, so each byte that is resident saves the same
 * time wherever it lies; what counts is that the ring is small, that as much as possible is
 * resident, and that what is not is spread over the layers, so that storage never waits for a place
 * while a run of resident layers computes.
 *
 * All matrices of the host are streamed at first. Then those outside of layers become resident, for
 * their size decides about the ring, then the larger ones, each in layers as far from each other as
 * can be, as long as all of it fits.
 */
#include "solver/planning_internal.h"

#include <stdlib.h>
#include <string.h>

static bool can_be_stored(const struct graph_op *o)
{
    return op_weight_use(&o->op) == WEIGHT_MATRIX && o->n_weights;
}

/* What a step reads of an operator that is streamed. */
static uint64_t stored_bytes(const struct problem *p, int32_t i)
{
    const uint64_t bytes = p->price[i * p->n_devices + p->instance.host].weight_bytes;
    return bytes + (uint64_t)p->graph.ops[i].n_weights * READ_ALIGN;
}

/* The ring for those operators that are streamed; 0: none are. */
static uint64_t ring_of(const struct problem *p, struct stream_group *room)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        if (p->stored[i])
            room[n++] = (struct stream_group){p->graph.ops[i].layer, stored_bytes(p, i)};
    return stream_ring_bytes(room, n);
}

/* An operator in the order in which they become resident. */
struct candidate {
    bool layered;
    uint64_t bytes;
    uint32_t spread; /* of its layer, bits reversed */
    int32_t op;
};

static int by_turn(const void *va, const void *vb)
{
    const struct candidate *a = va, *b = vb;
    if (a->layered != b->layered)
        return a->layered ? 1 : -1;
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

static int32_t candidates_list(const struct problem *p, struct candidate *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const int32_t layer = p->graph.ops[i].layer;
        const bool layered = layer >= 0 && layer < p->graph.n_layers;
        if (p->stored[i])
            c[n++] = (struct candidate){layered, stored_bytes(p, i),
                                        layered ? bits_reversed((uint32_t)layer) : 0, i};
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
        const struct op_price *price = &p->price[i * p->n_devices + host];
        if (place && place[p->unit_of[i]] != host)
            continue;
        sum += price->kv_bytes + (p->stored[i] ? 0 : price->weight_bytes);
    }
    return sum;
}

/* Units that are alike share their options: from now on each has its own. */
static bool options_part(struct problem *p)
{
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        struct unit *unit = &p->instance.units[u];
        struct option *own = arena_alloc(&p->arena, (size_t)unit->n_options, sizeof *own);
        if (!own)
            return false;
        memcpy(own, unit->options, (size_t)unit->n_options * sizeof *own);
        unit->options = own;
    }
    return true;
}

/* The host's option of each unit, as what is streamed makes it: storage and arithmetic overlap, so
 * the slower one counts. */
static void options_set(struct problem *p)
{
    const int32_t host = p->instance.host;
    const double rate = profile_storage_rate(p->profile);
    const double passes = (double)request_prefill_steps(&p->request) * p->request.batch;
    for (int32_t u = 0; u < p->instance.n_units; u++) {
        struct option *o = &p->instance.units[u].options[host];
        o->bytes[host] = 0;
        o->price = (struct price){0};
    }
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct op_price *own = &p->price[i * p->n_devices + host];
        struct option *o = &p->instance.units[p->unit_of[i]].options[host];
        const int64_t ns = p->stored[i] ? whole_ns((double)stored_bytes(p, i) / rate * 1e9) : 0;
        const struct price price =
            request_price(&p->request, max_i64(own->prefill_ns, whole_ns((double)ns * passes)),
                          max_i64(own->decode_ns, ns));
        price_add(&o->price, &price);
        o->bytes[host] += own->kv_bytes + (p->stored[i] ? 0 : own->weight_bytes);
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

oato_status storage_set(struct problem *p, struct oato_error *err)
{
    struct stream_group *room = calloc((size_t)p->graph.n_ops + 1, sizeof *room);
    if (!room || !options_part(p)) {
        free(room);
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *room, "streaming");
    }
    ring_set(p, ring_of(p, room));
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
        p->stored[i] = can_be_stored(&p->graph.ops[i]) && (!place || place[p->unit_of[i]] == host);
    const uint64_t all =
        p->budget[host] - least_bytes(p->reserve[host] - p->ring_bytes, p->budget[host]);
    const int32_t many = candidates_list(p, c);
    uint64_t resident = resident_bytes(p, place);
    for (int32_t i = 0; i < many; i++) {
        const uint64_t more = p->price[c[i].op * p->n_devices + host].weight_bytes;
        p->stored[c[i].op] = false;
        if (resident + more + ring_of(p, room) <= all)
            resident += more;
        else
            p->stored[c[i].op] = true;
    }
    free(c);
    free(room);
    return storage_set(p, err);
}
