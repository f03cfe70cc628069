/*
 * random_instance.c - problems whose best placement is not obvious: accelerators that are faster at
 * most units but small, copies that cost about what a unit saves, and some units they cannot run.
 */
#include "tests/solver/random_instance.h"

#include <string.h>

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t random_in(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(random_next(state) % (uint64_t)(hi - lo + 1));
}

static void random_unit(struct random_instance *r, struct unit *u)
{
    int64_t host_ns = random_in(&r->state, 50, 1000);
    uint64_t bytes = random_in(&r->state, 0, 3) ? (uint64_t)random_in(&r->state, 1, 60) : 0;
    for (int32_t d = 0; d < r->instance.n_devices; d++) {
        bool host = r->instance.is_host[d];
        u->allowed[d] = host || random_in(&r->state, 0, 9) > 0;
        u->price[d].objective_ns = host ? host_ns : host_ns * random_in(&r->state, 10, 120) / 100;
        u->bytes[d] = bytes + (uint64_t)random_in(&r->state, 0, 3);
    }
}

static struct edge *add_edge(struct random_instance *r, int32_t producer)
{
    struct instance *in = &r->instance;
    struct edge *e = &r->edges[in->n_edges++];
    memset(e, 0, sizeof *e);
    e->producer = producer;
    e->first_reader = in->n_readers;
    for (int32_t d = 0; d < in->n_devices; d++) {
        e->leave[d].objective_ns = in->is_host[d] ? 0 : random_in(&r->state, 0, 150);
        e->enter[d].objective_ns = in->is_host[d] ? 0 : random_in(&r->state, 0, 150);
    }
    return e;
}

static void add_reader(struct random_instance *r, struct edge *e, int32_t unit)
{
    r->readers[r->instance.n_readers++] = unit;
    e->n_readers++;
}

static void begin(struct random_instance *r, uint64_t seed, int32_t units, int32_t devices)
{
    struct instance *in = &r->instance;
    memset(r, 0, sizeof *r);
    r->state = seed;
    in->n_devices = devices;
    in->host = (int32_t)random_in(&r->state, 0, devices - 1);
    in->is_host[in->host] = true;
    in->units = r->units;
    in->edges = r->edges;
    in->readers = r->readers;
    in->n_units = units;
}

/* Accelerators hold a part of the units; now and then the host is too small as well. */
static void set_capacities(struct random_instance *r)
{
    struct instance *in = &r->instance;
    for (int32_t d = 0; d < in->n_devices; d++) {
        uint64_t all = 0;
        for (int32_t u = 0; u < in->n_units; u++)
            all += in->units[u].bytes[d];
        int64_t percent = d != in->host                     ? random_in(&r->state, 0, 80)
                          : random_in(&r->state, 0, 3) == 0 ? random_in(&r->state, 50, 99)
                                                            : 100;
        in->capacity[d] = all * (uint64_t)percent / 100;
        in->usable[d] = d == in->host || random_in(&r->state, 0, 19) > 0;
        in->fixed[d].objective_ns = random_in(&r->state, 0, 100);
    }
}

void random_dag(struct random_instance *r, uint64_t seed, int32_t units, int32_t devices)
{
    begin(r, seed, units, devices);
    for (int32_t u = 0; u < units; u++) {
        random_unit(r, &r->units[u]);
        r->units[u].layer = u / 3;
    }
    r->instance.n_layers = (units - 1) / 3;
    for (int32_t u = 0; u + 1 < units; u++) {
        struct edge *e = add_edge(r, u);
        add_reader(r, e, u + 1);
        for (int32_t v = u + 2; v < units; v++)
            if (random_in(&r->state, 0, 3) == 0)
                add_reader(r, e, v);
    }
    add_edge(r, units - 1)->host_reads = true;
    set_capacities(r);
}

void random_layers(struct random_instance *r, uint64_t seed, int32_t layers, int32_t devices,
                   bool equal)
{
    enum { LAYER = 4 }; /* in, middle, middle, out; the residual goes around the middle */
    begin(r, seed, layers * LAYER, devices);
    r->instance.n_layers = layers;
    for (int32_t u = 0; u < layers * LAYER; u++) {
        r->units[u].layer = u / LAYER;
        if (equal && u >= LAYER) {
            r->units[u] = r->units[u - LAYER];
            r->units[u].layer = u / LAYER;
        } else {
            random_unit(r, &r->units[u]);
        }
    }
    for (int32_t u = 0; u + 1 < layers * LAYER; u++) {
        struct edge *e = add_edge(r, u);
        if (equal && e > r->edges + LAYER) {
            memcpy(e->leave, e[-LAYER].leave, sizeof e->leave);
            memcpy(e->enter, e[-LAYER].enter, sizeof e->enter);
        }
        add_reader(r, e, u + 1);
        if (u % LAYER == 0)
            add_reader(r, e, u + LAYER - 1);
    }
    add_edge(r, layers * LAYER - 1)->host_reads = true;
    set_capacities(r);
}

bool brute_force(const struct instance *in, int64_t *least_ns)
{
    int32_t place[16] = {0};
    bool found = false;
    for (;;) {
        if (instance_fits(in, place, NULL)) {
            int64_t ns = instance_price(in, place).objective_ns;
            if (!found || ns < *least_ns)
                *least_ns = ns;
            found = true;
        }
        int32_t u = 0;
        while (u < in->n_units && ++place[u] == in->n_devices)
            place[u++] = 0;
        if (u == in->n_units)
            return found;
    }
}
