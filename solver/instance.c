/*
 * instance.c - the abstract placement problem: what a placement costs and whether it fits, and
 * the baselines that need no search. An option of a unit says where its inputs are read and its
 * outputs are made; a value costs one copy out of its producer's memory if anything elsewhere
 * reads it, and one copy into each such memory, or a single copy over a direct link.
 */
#include "solver/solver.h"

#include <string.h>

void price_add(struct price *sum, const struct price *p)
{
    sum->objective_ns = ns_add(sum->objective_ns, p->objective_ns);
    sum->prefill_ns = ns_add(sum->prefill_ns, p->prefill_ns);
    sum->decode_ns = ns_add(sum->decode_ns, p->decode_ns);
}

bool price_equal(const struct price *a, const struct price *b)
{
    return a->prefill_ns == b->prefill_ns && a->decode_ns == b->decode_ns;
}

void option_lie(struct option *o, int32_t in, int32_t out)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        o->in[phase] = (int16_t)in;
        o->out[phase] = (int16_t)out;
    }
}

bool instance_allows(const struct instance *in, int32_t unit, int32_t option)
{
    const struct option *o = &in->units[unit].options[option];
    bool allowed = o->allowed && (in->n_teams || (!o->team && !o->shared)) &&
                   (o->stream < 0 ||
                    (in->streams >> o->stream & 1 && 2 * o->staged <= in->staging[o->stream] &&
                     o->rooms <= in->rooms[o->stream]));
    for (int32_t d = 0; allowed && d < in->n_devices; d++)
        allowed = (in->usable[d] || !(o->uses >> d & 1)) && o->bytes[d] <= in->capacity[d];
    return allowed;
}

bool instance_with_streams(const struct instance *in, uint32_t streams, struct instance *out)
{
    *out = *in;
    out->streams = streams;
    for (int32_t d = 0; d < in->n_devices; d++) {
        if (!(streams >> d & 1))
            continue;
        if (!in->usable[d] || in->staging[d] + in->rooms[d] > in->capacity[d])
            return false;
        out->capacity[d] -= in->staging[d] + in->rooms[d];
    }
    return true;
}

uint32_t instance_uses(const struct instance *in, const int32_t *place)
{
    uint32_t uses = 1u << in->host;
    for (int32_t u = 0; u < in->n_units; u++)
        uses |= instance_option(in, place, u)->uses;
    return uses;
}

uint32_t instance_streams(const struct instance *in, const int32_t *place,
                          uint64_t staging[SOLVER_DEVICES], uint64_t rooms[SOLVER_DEVICES])
{
    uint32_t streams = 0;
    memset(staging, 0, SOLVER_DEVICES * sizeof *staging);
    memset(rooms, 0, SOLVER_DEVICES * sizeof *rooms);
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct option *o = instance_option(in, place, u);
        if (o->stream < 0)
            continue;
        streams |= 1u << o->stream;
        if (2 * o->staged > staging[o->stream])
            staging[o->stream] = 2 * o->staged;
        if (o->rooms > rooms[o->stream])
            rooms[o->stream] = o->rooms;
    }
    return streams;
}

struct price edge_price(const struct instance *in, const struct edge *e, const int32_t *place)
{
    struct price sum = {0};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        int32_t home = instance_option(in, place, e->producer)->out[phase];
        uint32_t entered = 1u << home;
        bool left = e->host_reads;
        for (int32_t i = 0; i < e->n_readers; i++) {
            int32_t reader = in->readers[e->first_reader + i];
            int32_t d = instance_option(in, place, reader)->in[phase];
            const bool direct = in->direct[home][d];
            if (d == home)
                continue;
            left = left || !direct;
            if (entered >> d & 1)
                continue;
            entered |= 1u << d;
            price_add(&sum, direct ? &e->direct[phase][home][d] : &e->enter[phase][d]);
        }
        if (left)
            price_add(&sum, &e->leave[phase][home]);
    }
    return sum;
}

bool edges_around_find(const struct instance *in, struct arena *a, struct edges_around *out)
{
    const size_t n = (size_t)in->n_edges + (size_t)in->n_readers;
    int32_t *first = arena_alloc(a, (size_t)in->n_units + 2, sizeof *first);
    out->edges = arena_alloc(a, n + 1, sizeof *out->edges);
    out->first = first; /* counts, then ends, which filling moves to the beginnings */
    if (!first || !out->edges)
        return false;
    for (int32_t i = 0; i < in->n_edges; i++)
        first[in->edges[i].producer]++;
    for (int32_t r = 0; r < in->n_readers; r++)
        first[in->readers[r]]++;
    for (int32_t u = 1; u <= in->n_units; u++)
        first[u] += first[u - 1];
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct edge *e = &in->edges[i];
        out->edges[--first[e->producer]] = i;
        for (int32_t r = 0; r < e->n_readers; r++)
            out->edges[--first[in->readers[e->first_reader + r]]] = i;
    }
    return true;
}

int64_t edges_around_ns(const struct instance *in, const struct edges_around *x, int32_t unit,
                        const int32_t *place)
{
    int64_t sum = 0;
    for (int32_t i = x->first[unit]; i < x->first[unit + 1]; i++)
        sum = ns_add(sum, edge_price(in, &in->edges[x->edges[i]], place).objective_ns);
    return sum;
}

struct price instance_price(const struct instance *in, const int32_t *place)
{
    struct price sum = {0};
    const uint32_t used = instance_uses(in, place);
    for (int32_t u = 0; u < in->n_units; u++)
        price_add(&sum, &instance_option(in, place, u)->price);
    for (int32_t d = 0; d < in->n_devices; d++)
        if (used >> d & 1)
            price_add(&sum, &in->fixed[d]);
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
        const struct option *o = instance_option(in, place, u);
        fits = fits && instance_allows(in, u, place[u]);
        for (int32_t d = 0; d < in->n_devices; d++)
            bytes[d] += o->bytes[d];
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        fits = fits && bytes[d] <= in->capacity[d];
    if (used)
        memcpy(used, bytes, sizeof bytes);
    return fits;
}

/* Options that deal out the groups alike, but read and write elsewhere. */
static bool same_division(const struct option *a, const struct option *b)
{
    if (a->team || b->team)
        return a->team == b->team;
    return a->stream == b->stream && a->in[PHASE_DECODE] == a->out[PHASE_DECODE] &&
           b->in[PHASE_DECODE] == b->out[PHASE_DECODE] &&
           !memcmp(a->share, b->share, sizeof a->share);
}

bool option_divided(const struct option *o)
{
    static const uint16_t none[SOLVER_DEVICES];
    return memcmp(o->share, none, sizeof none) != 0;
}

void instance_settle(const struct instance *in, int32_t *place)
{
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct unit *unit = &in->units[u];
        const struct option *was = instance_option(in, place, u);
        int32_t best = place[u];
        if (!option_divided(was) && !was->team)
            continue;
        int64_t best_ns = instance_price(in, place).objective_ns;
        for (int32_t i = in->n_devices; i < unit->n_options; i++) {
            if (!same_division(&unit->options[i], was))
                continue;
            place[u] = i;
            int64_t ns = instance_price(in, place).objective_ns;
            if (ns < best_ns || (ns == best_ns && i < best)) {
                best_ns = ns;
                best = i;
            }
        }
        place[u] = best;
    }
}

bool solve_cpu(const struct instance *in, int32_t *place)
{
    for (int32_t u = 0; u < in->n_units; u++)
        place[u] = in->host;
    return instance_fits(in, place, NULL);
}

bool instance_take_layer(const struct instance *in, int32_t layer, unit_filter *wanted,
                         const void *user, int32_t d, uint64_t *used, int32_t *place)
{
    uint64_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t u = 0; u < in->n_units; u++) {
            const struct option *whole = &in->units[u].options[d];
            if (in->units[u].layer != layer || !whole->allowed || (wanted && !wanted(user, u)))
                continue;
            bytes += pass ? 0 : whole->bytes[d];
            if (pass)
                place[u] = d;
        }
        if (!pass && bytes > in->capacity[d] - used[d])
            return false;
    }
    used[d] += bytes;
    return true;
}

void instance_take_layers(const struct instance *in, unit_filter *wanted, const void *user,
                          uint64_t *used, int32_t *place)
{
    int32_t d = 0;
    for (int32_t layer = in->n_layers; layer >= 0 && d < in->n_devices;) {
        if (in->is_host[d] || !in->usable[d] ||
            !instance_take_layer(in, layer, wanted, user, d, used, place))
            d++; /* full: the next device takes over */
        else
            layer--;
    }
}

bool solve_layers(const struct instance *in, int32_t *place)
{
    uint64_t used[SOLVER_DEVICES] = {0};
    solve_cpu(in, place);
    instance_take_layers(in, NULL, NULL, used, place);
    return instance_fits(in, place, NULL);
}
