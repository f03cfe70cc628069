/*
 * instance.c - the abstract placement problem: what a placement costs and whether it fits, and
 * the two baselines that need no search. A unit runs on one device; a value costs one copy out of
 * its producer's memory when anything elsewhere reads it, and one copy into each such memory.
 */
#include "solver/solver.h"

#include <string.h>

void price_add(struct price *sum, const struct price *p)
{
    sum->objective_ns += p->objective_ns;
    sum->prefill_ns += p->prefill_ns;
    sum->decode_ns += p->decode_ns;
}

bool instance_allows(const struct instance *in, int32_t unit, int32_t device)
{
    const struct unit *u = &in->units[unit];
    return in->usable[device] && u->allowed[device] && u->bytes[device] <= in->capacity[device];
}

struct price edge_price(const struct instance *in, const struct edge *e, const int32_t *place)
{
    struct price sum = {0};
    int32_t home = place[e->producer];
    uint32_t entered = 1u << home;
    bool left = e->host_reads;
    for (int32_t i = 0; i < e->n_readers; i++) {
        int32_t d = place[in->readers[e->first_reader + i]];
        if (d == home)
            continue;
        left = true;
        if (entered >> d & 1)
            continue;
        entered |= 1u << d;
        price_add(&sum, &e->enter[d]);
    }
    if (left)
        price_add(&sum, &e->leave[home]);
    return sum;
}

struct price instance_price(const struct instance *in, const int32_t *place)
{
    struct price sum = in->fixed[in->host];
    uint32_t used = 1u << in->host;
    for (int32_t u = 0; u < in->n_units; u++) {
        int32_t d = place[u];
        price_add(&sum, &in->units[u].price[d]);
        if (!(used >> d & 1))
            price_add(&sum, &in->fixed[d]);
        used |= 1u << d;
    }
    for (int32_t i = 0; i < in->n_edges; i++) {
        struct price p = edge_price(in, &in->edges[i], place);
        price_add(&sum, &p);
    }
    return sum;
}

bool instance_fits(const struct instance *in, const int32_t *place, uint64_t *used)
{
    uint64_t bytes[SOLVER_DEVICES] = {0};
    bool fits = true;
    for (int32_t u = 0; u < in->n_units; u++) {
        int32_t d = place[u];
        fits = fits && in->usable[d] && in->units[u].allowed[d];
        bytes[d] += in->units[u].bytes[d];
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        fits = fits && bytes[d] <= in->capacity[d];
    if (used)
        memcpy(used, bytes, sizeof bytes);
    return fits;
}

bool solve_cpu(const struct instance *in, int32_t *place)
{
    for (int32_t u = 0; u < in->n_units; u++)
        place[u] = in->host;
    return instance_fits(in, place, NULL);
}

/* Bytes of a layer's units that device d may hold; false when it may hold none of them. */
static bool layer_bytes(const struct instance *in, int32_t layer, int32_t d, uint64_t *bytes)
{
    bool any = false;
    *bytes = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        if (in->units[u].layer != layer || !in->units[u].allowed[d])
            continue;
        any = true;
        *bytes += in->units[u].bytes[d];
    }
    return any;
}

bool solve_layers(const struct instance *in, int32_t *place)
{
    solve_cpu(in, place);
    int32_t d = 0;
    uint64_t used = 0;
    for (int32_t layer = in->n_layers; layer >= 0 && d < in->n_devices;) {
        uint64_t bytes;
        if (in->is_host[d] || !in->usable[d]) {
            d++;
            used = 0;
            continue;
        }
        if (!layer_bytes(in, layer, d, &bytes)) {
            layer--;
            continue;
        }
        if (bytes > in->capacity[d] - used) { /* full: the next device takes over */
            d++;
            used = 0;
            continue;
        }
        used += bytes;
        for (int32_t u = 0; u < in->n_units; u++)
            if (in->units[u].layer == layer && in->units[u].allowed[d])
                place[u] = d;
        layer--;
    }
    return instance_fits(in, place, NULL);
}
