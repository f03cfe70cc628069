/*
 * deal.c - deals what a solution of kinds.c puts on a kind of devices to the devices. Units are
 * dealt in order, to the device that had the last one as long as it has room, so that values are
 * copied seldom. Devices that share units are a team: 0 and 1, 2 and 3 where two share them; of a
 * team each takes its turn as the one that reads and writes. What fits nowhere as the solution has
 * it gets the fastest option that does fit.
 */
#include "solver/ilp/kinds_internal.h"

#include <stdlib.h>
#include <string.h>

struct dealing {
    const struct kinds *kinds;
    struct instance in; /* the real one, less what staging takes */
    uint64_t used[SOLVER_DEVICES];
    int32_t current[SOLVER_DEVICES]; /* by kind: the member that had the last unit */
    int32_t team[SOLVER_DEVICES];    /* and how many shared one of late */
    bool full[SOLVER_DEVICES];       /* devices that some unit did not fit */
    bool fills; /* units are shared unevenly rather than leave a team with room */
};

static bool has_room(const struct dealing *x, const struct option *o)
{
    for (int32_t d = 0; d < x->in.n_devices; d++)
        if (o->bytes[d] > x->in.capacity[d] - x->used[d])
            return false;
    return true;
}

/* A real option as it should be; shares are met as closely as possible, or as there is room. */
static int32_t find_option(const struct dealing *x, int32_t unit, const struct option *want,
                           bool as_room)
{
    const struct unit *u = &x->in.units[unit];
    int32_t best = -1, least = INT32_MAX;
    for (int32_t i = 0; i < u->n_options && least; i++) {
        const struct option *o = &u->options[i];
        int32_t off = 0;
        if (o->uses != want->uses || o->stream != want->stream || o->filed != want->filed ||
            !o->rooms != !want->rooms || o->team != want->team || !option_lies_as(o, want) ||
            option_divided(o) != option_divided(want))
            continue;
        for (int32_t d = 0; d < x->in.n_devices; d++)
            off += abs(o->share[d] - want->share[d]);
        if (off < least && instance_allows(&x->in, unit, i) && (!as_room || has_room(x, o))) {
            least = off;
            best = i;
        }
    }
    return best;
}

/* The end that takes the place of another one; -1: there is no such team. */
static int16_t move_end(const struct instance *in, int32_t end, const int32_t *to)
{
    uint32_t devices = 0;
    int32_t t = 0;
    if (end < in->n_devices)
        return (int16_t)to[end];
    for (int32_t d = 0; d < in->n_devices; d++)
        devices |= in->team[end - in->n_devices] >> d & 1 ? 1u << to[d] : 0;
    while (t < in->n_teams && in->team[t] != devices)
        t++;
    return (int16_t)(t < in->n_teams ? in->n_devices + t : -1);
}

/* The option on other devices: to[d] takes the part of device d. */
static struct option move_option(const struct instance *in, const struct option *o,
                                 const int32_t *to)
{
    struct option moved = {.filed = o->filed, .rooms = o->rooms, .stream = -1};
    moved.team = o->team ? move_end(in, o->team, to) : 0;
    for (int32_t d = 0; d < in->n_devices; d++) {
        moved.uses |= o->uses >> d & 1 ? 1u << to[d] : 0;
        if (o->share[d])
            moved.share[to[d]] = o->share[d];
    }
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        moved.in[phase] = move_end(in, o->in[phase], to);
        moved.out[phase] = move_end(in, o->out[phase], to);
    }
    if (o->stream >= 0)
        moved.stream = (int16_t)to[o->stream];
    return moved;
}

/* The i-th choice for the member of a kind that reads and writes: the current one, its team, then
 * the teams behind in a circle. */
static int32_t choose_first(const struct dealing *x, int32_t kind, int32_t size, int32_t i)
{
    const int32_t now = x->current[kind];
    const int32_t team = size > x->team[kind] ? size : x->team[kind]; /* at least 1 */
    const int32_t begin = now / team * team, behind = now - begin;
    if (i < team) /* of its own team, itself first */
        return begin + (behind + i) % team;
    return begin + i;
}

/* to[d]: who takes the part of device d if `first` reads and writes, or takes the first part. */
static void seat(const struct dealing *x, const struct option *o, int32_t kind, int32_t size,
                 int32_t first, int32_t *to)
{
    const int32_t *member = x->kinds->member[kind], n = x->kinds->n_members[kind];
    const int32_t begin = first / size * size;
    int32_t part[SOLVER_DEVICES] = {0}, parts = 0, base = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(o->uses >> member[i] & 1))
            continue;
        base = member[i] == o->in[PHASE_DECODE] || (o->team && member[i] == o->out[PHASE_DECODE])
                   ? parts
                   : base;
        part[parts++] = member[i];
    }
    for (int32_t i = 0; i < parts; i++)
        to[part[(base + i) % size]] = member[(begin + (first - begin + i) % size) % n];
}

/* How many of the kind's devices the option uses. */
static int32_t size_in(const struct kinds *k, const struct option *o, int32_t kind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < k->n_members[kind]; i++)
        n += o->uses >> k->member[kind][i] & 1;
    return n;
}

/* Tries to deal the unit as the option has it, its parts in a kind beginning with choice i. */
static bool try_seats(struct dealing *x, int32_t unit, const struct option *o, int32_t kind,
                      int32_t i, bool as_room, int32_t *place)
{
    const struct kinds *k = x->kinds;
    int32_t to[SOLVER_DEVICES], first[SOLVER_DEVICES] = {0};
    for (int32_t d = 0; d < x->in.n_devices; d++)
        to[d] = d;
    for (int32_t j = 0; j < k->n; j++) {
        const int32_t size = size_in(k, o, j), n = k->n_members[j];
        if (!size)
            continue;
        first[j] = choose_first(x, j, size, j == kind ? i : 0) % n;
        seat(x, o, j, size, first[j], to);
    }
    const struct option want = move_option(&x->in, o, to);
    const int32_t found = find_option(x, unit, &want, as_room);
    if (found < 0 || !has_room(x, &x->in.units[unit].options[found]))
        return false;
    place[unit] = found;
    for (int32_t j = 0; j < k->n; j++) {
        const int32_t size = size_in(k, o, j);
        if (!size)
            continue;
        x->current[j] = first[j];
        x->team[j] = size > 1 || x->team[j] <= 1 ? size : x->team[j];
    }
    return true;
}

/* The fastest option that fits. */
static bool make_do(struct dealing *x, int32_t unit, int32_t *place)
{
    const struct unit *u = &x->in.units[unit];
    int32_t best = -1;
    for (int32_t i = 0; i < u->n_options; i++)
        if (instance_allows(&x->in, unit, i) && has_room(x, &u->options[i]) &&
            (best < 0 || u->options[i].price.objective_ns < u->options[best].price.objective_ns))
            best = i;
    place[unit] = best;
    return best >= 0;
}

static bool deal_unit(struct dealing *x, int32_t unit, const struct option *o, int32_t *place)
{
    const struct kinds *k = x->kinds;
    bool dealt = try_seats(x, unit, o, -1, 0, false, place);
    for (int32_t kind = 0; kind < k->n && !dealt; kind++) {
        const int32_t size = size_in(k, o, kind);
        for (int32_t i = 1; size && i < k->n_members[kind] && !dealt; i++) {
            x->full[k->member[kind][x->current[kind]]] = true;
            if (x->fills && i == max_i64(size, x->team[kind])) /* before it leaves the team */
                for (int32_t j = 0; j < i && !dealt; j++)
                    dealt = try_seats(x, unit, o, kind, j, true, place);
            dealt = dealt || try_seats(x, unit, o, kind, i, false, place);
        }
    }
    for (int32_t kind = 0; kind < k->n && !dealt; kind++)
        for (int32_t i = 0; i < k->n_members[kind] && size_in(k, o, kind) && !dealt; i++)
            dealt = try_seats(x, unit, o, kind, i, true, place);
    if (!dealt && !make_do(x, unit, place))
        return false;
    const struct option *taken = &x->in.units[unit].options[place[unit]];
    for (int32_t d = 0; d < x->in.n_devices; d++)
        x->used[d] += taken->bytes[d];
    return true;
}

static bool deal_units(struct dealing *x, int32_t begin, int32_t end, const int32_t *folded,
                       int32_t *place)
{
    const struct kinds *k = x->kinds;
    bool dealt = true;
    for (int32_t u = begin; u < end && dealt; u++)
        dealt = deal_unit(x, u, &x->in.units[u].options[k->origin[u][folded[u]]], place);
    return dealt;
}

static bool moved(const struct dealing *x, const struct dealing *before)
{
    return memcmp(x->current, before->current, sizeof x->current) != 0;
}

/* The units of a layer that does not fit the current devices begin on the next ones, if they do fit
 * these. */
static bool deal_layer(struct dealing *x, int32_t begin, int32_t end, const int32_t *folded,
                       int32_t *place)
{
    const struct dealing before = *x;
    bool dealt = deal_units(x, begin, end, folded, place);
    if (!dealt || !moved(x, &before))
        return dealt;
    struct dealing next = before;
    memcpy(next.current, x->current, sizeof next.current);
    memcpy(next.full, x->full, sizeof next.full);
    const struct dealing begun = next;
    dealt = deal_units(&next, begin, end, folded, place) && !moved(&next, &begun);
    *x = dealt ? next : before;
    return dealt || deal_units(x, begin, end, folded, place);
}

bool kinds_deal(const struct kinds *k, uint32_t streams, enum deal_way way, const int32_t *folded,
                int32_t *place, uint64_t *lost)
{
    struct dealing x = {.kinds = k, .fills = way == DEAL_FILLS};
    if (!instance_with_streams(k->real, streams, &x.in))
        return false;
    for (int32_t d = 0; d < x.in.n_devices; d++)
        x.in.usable[d] = x.in.usable[d] && k->of[d] >= 0;
    bool dealt = true;
    for (int32_t u = 0, end; u < x.in.n_units && dealt; u = end) {
        end = u + 1;
        while (end < x.in.n_units && x.in.units[end].layer == x.in.units[u].layer)
            end++;
        dealt = way == DEAL_LAYERS ? deal_layer(&x, u, end, folded, place)
                                   : deal_units(&x, u, end, folded, place);
    }
    for (int32_t kind = 0; kind < k->n; kind++) {
        lost[kind] = 0;
        for (int32_t i = 0; i < k->n_members[kind]; i++) {
            const int32_t d = k->member[kind][i];
            lost[kind] += x.full[d] ? x.in.capacity[d] - x.used[d] : 0;
        }
    }
    return dealt;
}

/* ------------------------------------------------------------------------------ polish ----- */

struct polishing {
    const struct instance *in;
    struct edges_around around;
    uint64_t left[SOLVER_DEVICES];
    int32_t *place;
};

static bool fits_instead(const struct polishing *x, const struct option *o,
                         const struct option *was)
{
    for (int32_t d = 0; d < x->in->n_devices; d++)
        if (o->bytes[d] > x->left[d] + was->bytes[d])
            return false;
    return true;
}

/* The best option of a unit where all others stay; true: it is another one. */
static bool polish_unit(struct polishing *x, int32_t unit)
{
    const struct unit *u = &x->in->units[unit];
    const uint32_t uses = instance_uses(x->in, x->place);
    const int32_t was = x->place[unit];
    const struct option *from = &u->options[was];
    const int64_t copies_ns = edges_around_ns(x->in, &x->around, unit, x->place);
    int64_t least = ns_add(from->price.objective_ns, copies_ns);
    int32_t best = was;
    for (int32_t i = 0; i < u->n_options; i++) {
        const struct option *o = &u->options[i];
        if (o->price.objective_ns >= least || o->uses & ~uses || !fits_instead(x, o, from) ||
            !instance_allows(x->in, unit, i))
            continue;
        x->place[unit] = i;
        const int64_t ns =
            ns_add(o->price.objective_ns, edges_around_ns(x->in, &x->around, unit, x->place));
        best = ns < least ? i : best;
        least = min_i64(ns, least);
    }
    x->place[unit] = best;
    for (int32_t d = 0; d < x->in->n_devices; d++)
        x->left[d] = x->left[d] + from->bytes[d] - u->options[best].bytes[d];
    return best != was;
}

bool kinds_polish(const struct instance *in, struct ilp_clock *clock, int32_t *place)
{
    enum { SWEEPS = 4 };
    struct polishing x = {.in = in, .place = place};
    struct arena a;
    uint64_t used[SOLVER_DEVICES];
    arena_init(&a);
    const bool good = edges_around_find(in, &a, &x.around);
    if (good && instance_fits(in, place, used)) {
        bool moves = true;
        for (int32_t d = 0; d < in->n_devices; d++)
            x.left[d] = in->capacity[d] - used[d];
        for (int sweep = 0; sweep < SWEEPS && moves; sweep++) {
            moves = false;
            for (int32_t u = 0; u < in->n_units && !ilp_late(clock); u++)
                moves = polish_unit(&x, u) || moves;
        }
    }
    arena_free(&a);
    return good;
}
