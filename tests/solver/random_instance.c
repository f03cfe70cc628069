/*
 * random_instance.c - problems whose best placement is not obvious: accelerators that are faster at
 * most units but small, copies that cost about what a unit saves, and some units they cannot run.
 */
#include "tests/solver/random_instance.h"

#include <math.h>
#include <stdlib.h>
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

static struct option *add_option(struct random_instance *r, struct unit *u)
{
    struct option *o = &r->options[r->n_options++];
    if (!u->n_options)
        u->options = o;
    u->n_options++;
    memset(o, 0, sizeof *o);
    o->allowed = true;
    o->stream = -1;
    return o;
}

static void random_unit(struct random_instance *r, struct unit *u)
{
    int64_t host_ns = random_in(&r->state, 50, 1000);
    uint64_t bytes = random_in(&r->state, 0, 3) ? (uint64_t)random_in(&r->state, 1, 60) : 0;
    for (int32_t d = 0; d < r->instance.n_devices; d++) {
        bool host = r->instance.is_host[d];
        struct option *o = add_option(r, u);
        o->allowed = host || random_in(&r->state, 0, 9) > 0;
        o->price.objective_ns = host ? host_ns : host_ns * random_in(&r->state, 10, 120) / 100;
        o->bytes[d] = bytes + (uint64_t)random_in(&r->state, 0, 3);
        option_lie(o, d, d);
        o->uses = (uint8_t)(1u << d);
    }
}

/* Now and then: on the host, but prefill elsewhere with weights that are streamed. */
static void random_stream(struct random_instance *r, struct unit *u)
{
    int32_t h = r->instance.host;
    for (int32_t d = 0; d < r->instance.n_devices; d++) {
        if (d == h || random_in(&r->state, 0, 2))
            continue;
        const struct option whole = u->options[h];
        struct option *o = add_option(r, u);
        *o = whole;
        o->stream = (int16_t)d;
        o->in[PHASE_PREFILL] = o->out[PHASE_PREFILL] = (int16_t)d;
        o->uses |= (uint8_t)(1u << d);
        o->price.objective_ns = whole.price.objective_ns * random_in(&r->state, 40, 110) / 100;
    }
}

static struct edge *add_edge(struct random_instance *r, int32_t producer)
{
    struct instance *in = &r->instance;
    struct edge *e = &r->edges[in->n_edges];
    memset(e, 0, sizeof *e);
    e->direct = r->direct[in->n_edges++];
    e->producer = producer;
    e->first_reader = in->n_readers;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t d = 0; d < in->n_devices; d++) {
            e->leave[phase][d].objective_ns = in->is_host[d] ? 0 : random_in(&r->state, 0, 75);
            e->enter[phase][d].objective_ns = in->is_host[d] ? 0 : random_in(&r->state, 0, 75);
            for (int32_t f = 0; f < in->n_devices; f++)
                if (in->direct[d][f])
                    e->direct[phase][d][f].objective_ns = random_in(&r->state, 0, 75);
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
    /* in half of the instances some accelerators reach each other, not always both ways */
    const bool reach = random_in(&r->state, 0, 1);
    for (int32_t d = 0; d < devices && reach; d++)
        for (int32_t f = 0; f < devices; f++)
            in->direct[d][f] =
                d != f && d != in->host && f != in->host && random_in(&r->state, 0, 2);
}

/* Accelerators hold a part of the units; now and then the host is too small as well. */
static void set_capacities(struct random_instance *r)
{
    struct instance *in = &r->instance;
    for (int32_t d = 0; d < in->n_devices; d++) {
        uint64_t all = 0;
        for (int32_t u = 0; u < in->n_units; u++)
            all += in->units[u].options[d].bytes[d];
        int64_t percent = d != in->host                     ? random_in(&r->state, 0, 80)
                          : random_in(&r->state, 0, 3) == 0 ? random_in(&r->state, 50, 99)
                                                            : 100;
        in->capacity[d] = all * (uint64_t)percent / 100;
        in->usable[d] = d == in->host || random_in(&r->state, 0, 19) > 0;
        in->fixed[d].objective_ns = random_in(&r->state, 0, 100);
        in->staging[d] = in->capacity[d] / 8;
    }
}

void random_dag(struct random_instance *r, uint64_t seed, int32_t units, int32_t devices)
{
    begin(r, seed, units, devices);
    for (int32_t u = 0; u < units; u++) {
        random_unit(r, &r->units[u]);
        random_stream(r, &r->units[u]);
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

/* Each layer a chain of units, with a value that goes around its middle. */
static void chain_layers(struct random_instance *r, int32_t layers, int32_t size, bool equal)
{
    for (int32_t u = 0; u + 1 < layers * size; u++) {
        struct edge *e = add_edge(r, u);
        if (equal && e > r->edges + size) {
            memcpy(e->leave, e[-size].leave, sizeof e->leave);
            memcpy(e->enter, e[-size].enter, sizeof e->enter);
            e->direct = e[-size].direct;
        }
        add_reader(r, e, u + 1);
        if (u % size == 0)
            add_reader(r, e, u + size - 1);
    }
    add_edge(r, layers * size - 1)->host_reads = true;
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
            random_stream(r, &r->units[u]);
        }
    }
    chain_layers(r, layers, LAYER, equal);
}

enum { GROUPS_MAX = 16 };

/* The middle unit of a layer with its groups on the devices that `at` names, read and written on
 * one of them: parts run at the same time, what is not there pays for its way. */
static void add_division(struct random_instance *r, struct unit *u, const int64_t *work,
                         int32_t groups, const int64_t *ns, const int64_t *way, const int32_t *at,
                         int32_t base)
{
    int64_t each[SOLVER_DEVICES] = {0}, most = 0;
    struct option *o = add_option(r, u);
    for (int32_t i = 0; i < groups; i++) {
        each[at[i]] += work[i] * ns[at[i]];
        o->bytes[at[i]] += 20;
        o->uses |= (uint8_t)(1u << at[i]);
        o->share[at[i]]++;
    }
    for (int32_t d = 0; d < r->instance.n_devices; d++) {
        if (o->share[d] && d != base)
            each[d] += way[d] + way[base];
        most = each[d] > most ? each[d] : most;
    }
    option_lie(o, base, base);
    o->uses |= (uint8_t)(1u << base);
    o->price.objective_ns = most;
}

static void divide_unit(struct random_instance *r, struct unit *u, const int64_t *work,
                        int32_t groups, const int64_t *ns, const int64_t *way, bool free)
{
    int32_t n = r->instance.n_devices, at[GROUPS_MAX];
    if (n < 1)
        abort();                      /* there is a host */
    for (int32_t d = 0; d < n; d++) { /* whole ones come first */
        for (int32_t i = 0; i < groups; i++)
            at[i] = d;
        add_division(r, u, work, groups, ns, way, at, d);
    }
    int64_t all = 1;
    for (int32_t i = 0; i < groups; i++)
        all *= n;
    for (int64_t code = 0; code < all; code++) {
        bool cut = true, whole = true;
        int64_t rest = code;
        for (int32_t i = 0; i < groups; i++, rest /= n) {
            at[i] = (int32_t)(rest % n);
            /* accelerators in their order, then the host */
            int32_t rank = at[i] == r->instance.host ? n : at[i];
            int32_t last = i && at[i - 1] == r->instance.host ? n : i ? at[i - 1] : -1;
            cut = cut && rank >= last;
            whole = whole && at[i] == at[0];
        }
        for (int32_t base = 0; base < n && !whole && (cut || free); base++)
            add_division(r, u, work, groups, ns, way, at, base);
    }
}

void random_groups(struct random_instance *r, uint64_t seed, int32_t layers, int32_t devices,
                   int32_t groups, bool free)
{
    enum { LAYER = 3 };
    int64_t ns[SOLVER_DEVICES] = {0}, way[SOLVER_DEVICES] = {0}, work[GROUPS_MAX] = {0};
    begin(r, seed, layers * LAYER, devices);
    r->instance.n_layers = layers;
    for (int32_t d = 0; d < devices; d++) {
        ns[d] = d == r->instance.host ? 10 : random_in(&r->state, 1, 8);
        way[d] = d == r->instance.host ? 0 : random_in(&r->state, 0, 200);
    }
    for (int32_t u = 0; u < layers * LAYER; u++) {
        r->units[u].layer = u / LAYER;
        if (u % LAYER != 1) {
            random_unit(r, &r->units[u]);
            continue;
        }
        double hot = (double)random_in(&r->state, 30, 100) / 100;
        double rate = (double)random_in(&r->state, 20, 100);
        for (int32_t i = 0; i < groups; i++, rate *= hot)
            work[i] = 1 + (int64_t)rate;
        divide_unit(r, &r->units[u], work, groups, ns, way, free);
    }
    chain_layers(r, layers, LAYER, false);
}

void random_knapsack(struct random_instance *r, uint64_t seed, int32_t layers, int32_t groups,
                     int32_t capacity)
{
    struct instance *in = &r->instance;
    begin(r, seed, layers, 2);
    in->host = 0;
    in->is_host[0] = true;
    in->is_host[1] = false;
    in->usable[0] = in->usable[1] = true;
    in->capacity[0] = UINT64_MAX;
    in->capacity[1] = (uint64_t)capacity;
    in->n_layers = layers;
    for (int32_t u = 0; u < layers; u++) {
        double keep = (double)random_in(&r->state, 980, 1000) / 1000, hot = 0, all = 0, rate = 1;
        r->units[u].layer = u;
        for (int32_t i = 0; i < groups; i++, rate *= keep)
            all += rate;
        rate = 1;
        for (int32_t c = 0; c <= groups; c++, rate *= keep) {
            /* all on the host and all on the accelerator come first, as everywhere */
            struct option *o = add_option(r, &r->units[u]);
            double slowest = fmax((all - hot) * 100000 / all, c ? hot * 9000 / all + 500 : 0);
            o->price.objective_ns = llround(slowest) + random_in(&r->state, 0, 20);
            o->bytes[1] = (uint64_t)c;
            o->uses = (uint8_t)(c == 0 ? 1 : c == groups ? 2 : 3);
            option_lie(o, c == groups, c == groups);
            hot += rate;
        }
        struct option whole = r->units[u].options[groups];
        memmove(r->units[u].options + 2, r->units[u].options + 1,
                sizeof whole * (size_t)(groups - 1));
        r->units[u].options[1] = whole;
    }
}

int64_t knapsack_least(const struct random_instance *r)
{
    const struct instance *in = &r->instance;
    const size_t room = (size_t)in->capacity[1] + 1;
    int64_t *now = calloc(room, sizeof *now), *next = calloc(room, sizeof *next);
    int64_t least = -1;
    for (int32_t u = 0; now && next && u < in->n_units; u++) {
        for (size_t k = 0; k < room; k++)
            next[k] = INT64_MAX;
        for (int32_t i = 0; i < in->units[u].n_options; i++) {
            const struct option *o = &in->units[u].options[i];
            for (size_t k = (size_t)o->bytes[1]; k < room; k++)
                next[k] = min_i64(next[k], now[k - o->bytes[1]] + o->price.objective_ns);
        }
        int64_t *swap = now;
        now = next;
        next = swap;
    }
    if (now && next)
        least = now[room - 1];
    free(now);
    free(next);
    return least;
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
        while (u < in->n_units && ++place[u] == in->units[u].n_options)
            place[u++] = 0;
        if (u == in->n_units)
            return found;
    }
}
