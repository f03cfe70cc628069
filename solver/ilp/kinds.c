/*
 * kinds.c - equal accelerators are interchangeable, so a search does not tell them apart: it sees
 * one device of each kind, with the memory of all. That is a relaxation: copies between devices of
 * a kind, the fixed prices of all but the first, and what remains at the end of each memory cost
 * nothing. So its bound holds, and it is no larger than the problem of one device of each kind.
 * deal.c makes placements of its solutions.
 *
 * Devices are of a kind when exchanging them changes no price; how much memory they have may
 * differ.
 */
#include "solver/ilp/kinds_internal.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------ equal devices ---- */

static bool same_whole(const struct unit *u, int32_t a, int32_t b)
{
    const struct option *x = &u->options[a], *y = &u->options[b];
    return x->allowed == y->allowed && x->bytes[a] == y->bytes[b] &&
           price_equal(&x->price, &y->price);
}

static bool same_ways(const struct instance *in, const struct edge *e, int32_t a, int32_t b)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        if (!price_equal(&e->leave[phase][a], &e->leave[phase][b]) ||
            !price_equal(&e->enter[phase][a], &e->enter[phase][b]))
            return false;
        for (int32_t d = 0; d < in->n_devices && e->direct; d++) {
            const int32_t other = d == a ? b : d == b ? a : d; /* as b sees it */
            if (!price_equal(&e->direct[phase][a][d], &e->direct[phase][b][other]) ||
                !price_equal(&e->direct[phase][d][a], &e->direct[phase][other][b]))
                return false;
        }
    }
    return true;
}

bool kinds_alike(const struct problem *p, int32_t a, int32_t b)
{
    const struct instance *in = &p->instance;
    const int32_t host = p->device[in->host];
    bool same = !in->is_host[a] && !in->is_host[b] && in->usable[a] == in->usable[b] &&
                in->staging[a] == in->staging[b] && in->rooms[a] == in->rooms[b] &&
                price_equal(&in->fixed[a], &in->fixed[b]) &&
                cost_of_stream(p->cost, host, p->device[a], 1e9) ==
                    cost_of_stream(p->cost, host, p->device[b], 1e9);
    for (int32_t d = 0; d < in->n_devices && same; d++)
        if (d != a && d != b)
            same = in->direct[a][d] == in->direct[b][d] && in->direct[d][a] == in->direct[d][b];
    for (int32_t u = 0; u < in->n_units && same; u++)
        same = same_whole(&in->units[u], a, b);
    for (int32_t e = 0; e < in->n_edges && same; e++)
        same = same_ways(in, &in->edges[e], a, b);
    return same && in->direct[a][b] == in->direct[b][a];
}

/* ------------------------------------------------------------------------------- kinds ----- */

static void find_kinds(struct kinds *k, const struct problem *p, uint32_t devices, bool apart)
{
    const struct instance *in = &p->instance;
    memset(k->of, -1, sizeof k->of);
    for (int32_t d = 0; d < in->n_devices; d++) {
        int32_t kind = 0;
        if (d != in->host && (!in->usable[d] || !(in->is_host[d] || devices >> d & 1)))
            continue;
        while (kind < k->n && (apart || !kinds_alike(p, k->member[kind][0], d)))
            kind++;
        k->n += kind == k->n;
        k->of[d] = kind;
        k->member[kind][k->n_members[kind]++] = d;
    }
}

static uint32_t kinds_of(const struct kinds *k, uint32_t devices)
{
    uint32_t kinds = 0;
    for (int32_t d = 0; d < SOLVER_DEVICES; d++)
        kinds |= devices >> d & 1 ? 1u << k->of[d] : 0;
    return kinds;
}

/* Teams of as many of a kind are one, too. */
static void find_teams(struct kinds *k)
{
    const struct instance *in = k->real;
    for (int32_t t = 0; t < in->n_teams; t++) {
        const uint32_t devices = in->team[t];
        const int32_t end = in->n_devices + t;
        bool counts = true;
        int32_t like = 0;
        for (int32_t d = 0; d < in->n_devices; d++)
            counts = counts && (!(devices >> d & 1) || k->of[d] >= 0);
        const uint32_t kinds = counts ? kinds_of(k, devices) : 0;
        while (counts && like < k->in.n_teams &&
               (k->in.team[like] != kinds ||
                __builtin_popcount(in->team[k->team[like]]) != __builtin_popcount(devices)))
            like++;
        if (!counts)
            continue;
        if (like == k->in.n_teams) {
            k->team[like] = t;
            k->in.team[k->in.n_teams++] = kinds;
        }
        k->of[end] = k->n + like;
    }
}

/* One of the ends that a kind, or teams that are one, stand for. */
static int32_t end_of(const struct kinds *k, int32_t end)
{
    return end < k->n ? k->member[end][0] : k->real->n_devices + k->team[end - k->n];
}

/* Whether the option uses only devices that count. *n: accelerators. *first: of each kind the first
 * ones. */
static bool counts(const struct kinds *k, const struct option *o, int32_t *n, bool *first)
{
    *n = 0;
    *first = true;
    if (o->team && k->of[o->team] < 0)
        return false;
    for (int32_t d = 0; d < SOLVER_DEVICES; d++) {
        if (o->uses >> d & 1 && k->of[d] < 0)
            return false;
        *n += o->uses >> d & 1 && d != k->real->host;
    }
    for (int32_t kind = 0; kind < k->n; kind++)
        for (int32_t i = 1; i < k->n_members[kind]; i++)
            *first = *first && (!(o->uses >> k->member[kind][i] & 1) ||
                                o->uses >> k->member[kind][i - 1] & 1);
    return true;
}

static struct option fold_option(const struct kinds *k, const struct option *o)
{
    struct option to = *o;
    memset(to.bytes, 0, sizeof to.bytes);
    memset(to.share, 0, sizeof to.share);
    for (int32_t d = 0; d < SOLVER_DEVICES; d++) {
        if (k->of[d] < 0)
            continue;
        to.bytes[k->of[d]] += o->bytes[d];
        to.share[k->of[d]] = (uint16_t)(to.share[k->of[d]] + o->share[d]);
    }
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        to.in[phase] = (int16_t)k->of[o->in[phase]];
        to.out[phase] = (int16_t)k->of[o->out[phase]];
    }
    to.stream = (int16_t)(o->stream < 0 ? -1 : k->of[o->stream]);
    to.team = (int16_t)(o->team ? k->of[o->team] : 0);
    to.uses = kinds_of(k, o->uses);
    return to;
}

static bool same_image(const struct option *a, const struct option *b)
{
    return price_equal(&a->price, &b->price) && a->uses == b->uses && a->stream == b->stream &&
           a->team == b->team && a->staged == b->staged && a->rooms == b->rooms &&
           a->stores == b->stores && option_lies_as(a, b) &&
           !memcmp(a->bytes, b->bytes, sizeof a->bytes) &&
           !memcmp(a->share, b->share, sizeof a->share);
}

/* Lists a unit's options of kinds, whole ones first, and where they come from. What one device can
 * do the first of its kind can, too. Not any two share units: of those that do, in whatever place
 * among their kinds, all that differ are listed. */
static int32_t list_options(const struct kinds *k, const struct unit *from, struct option *list,
                            int32_t *origin)
{
    int32_t n = 0;
    for (int32_t kind = 0; kind < k->n; kind++) {
        origin[n] = k->member[kind][0];
        list[n++] = fold_option(k, &from->options[k->member[kind][0]]);
    }
    for (int32_t i = k->real->n_devices; i < from->n_options; i++) {
        int32_t accelerators, like;
        bool first;
        if (!counts(k, &from->options[i], &accelerators, &first) || (accelerators < 2 && !first))
            continue;
        origin[n] = i;
        list[n] = fold_option(k, &from->options[i]);
        for (like = first ? n : 0; like < n && !same_image(&list[like], &list[n]);)
            like++;
        n += like == n;
    }
    return n;
}

/* Units that share their options go on to do so. */
static bool fold_unit(struct kinds *k, const struct instance *in, int32_t u, struct option *list,
                      int32_t *origin)
{
    const struct unit *from = &in->units[u];
    struct unit *to = &k->in.units[u];
    for (int32_t v = u - 1; v >= 0; v--)
        if (in->units[v].options == from->options && in->units[v].n_options == from->n_options) {
            *to = k->in.units[v];
            to->layer = from->layer;
            k->origin[u] = k->origin[v];
            return true;
        }
    const size_t n = (size_t)list_options(k, from, list, origin);
    to->layer = from->layer;
    to->n_options = (int32_t)n;
    to->options = arena_alloc(&k->arena, n + 1, sizeof *to->options);
    k->origin[u] = arena_alloc(&k->arena, n + 1, sizeof **k->origin);
    if (!to->options || !k->origin[u])
        return false;
    memcpy(to->options, list, n * sizeof *list);
    memcpy(k->origin[u], origin, n * sizeof *origin);
    return true;
}

static bool fold_units(struct kinds *k, const struct instance *in)
{
    size_t most = 0;
    for (int32_t u = 0; u < in->n_units; u++)
        most = (size_t)in->units[u].n_options > most ? (size_t)in->units[u].n_options : most;
    struct option *list = malloc((most + 1) * sizeof *list);
    int32_t *origin = malloc((most + 1) * sizeof *origin);
    k->in.units = arena_alloc(&k->arena, (size_t)in->n_units + 1, sizeof *k->in.units);
    k->origin = arena_alloc(&k->arena, (size_t)in->n_units + 1, sizeof *k->origin);
    bool good = list && origin && k->in.units && k->origin;
    for (int32_t u = 0; good && u < in->n_units; u++)
        good = fold_unit(k, in, u, list, origin);
    free(list);
    free(origin);
    return good;
}

static void fold_edge(const struct kinds *k, const struct edge *from, struct edge *to)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t a = 0; a < instance_ends(&k->in); a++) {
            const int32_t d = end_of(k, a);
            to->leave[phase][a] = from->leave[phase][d];
            to->enter[phase][a] = from->enter[phase][d];
            for (int32_t b = 0; to->direct && b < instance_ends(&k->in); b++)
                to->direct[phase][a][b] = from->direct[phase][d][end_of(k, b)];
        }
}

static bool fold_edges(struct kinds *k, const struct instance *in)
{
    const size_t n = (size_t)in->n_edges;
    const bool direct = n && in->edges[0].direct;
    struct price(*ways)[SOLVER_DEVICES][SOLVER_DEVICES] =
        direct ? arena_alloc(&k->arena, PHASE_COUNT * n + 1, sizeof *ways) : NULL;
    k->in.edges = arena_alloc(&k->arena, n + 1, sizeof *k->in.edges);
    if (!k->in.edges || (direct && !ways))
        return false;
    for (size_t e = 0; e < n; e++) {
        struct edge *to = &k->in.edges[e];
        *to = in->edges[e];
        to->direct = direct ? &ways[PHASE_COUNT * e] : NULL;
        fold_edge(k, &in->edges[e], to);
    }
    return true;
}

static void fold_devices(struct kinds *k, const struct instance *in)
{
    struct instance *to = &k->in;
    to->host = k->of[in->host];
    memset(to->direct, 0, sizeof to->direct);
    for (int32_t a = 0; a < k->n; a++) {
        const int32_t d = k->member[a][0];
        to->is_host[a] = in->is_host[d];
        to->usable[a] = in->usable[d];
        to->staging[a] = in->staging[d];
        to->rooms[a] = in->rooms[d];
        to->fixed[a] = in->fixed[d];
        to->capacity[a] = 0;
        for (int32_t i = 0; i < k->n_members[a]; i++)
            to->capacity[a] += in->capacity[k->member[a][i]];
    }
    for (int32_t a = 0; a < instance_ends(to); a++)
        for (int32_t b = 0; b < instance_ends(to); b++)
            to->direct[a][b] = a != b && in->direct[end_of(k, a)][end_of(k, b)];
}

oato_status kinds_fold(struct kinds *k, const struct problem *p, uint32_t devices, bool apart,
                       struct oato_error *err)
{
    const struct instance *in = &p->instance;
    memset(k, 0, sizeof *k);
    arena_init(&k->arena);
    k->real = in;
    k->in = *in;
    find_kinds(k, p, devices, apart);
    if (k->n == in->n_devices) /* all differ, and all count */
        return OATO_OK;
    k->in.n_devices = k->n;
    k->in.n_teams = 0;
    find_teams(k);
    fold_devices(k, in);
    const bool good = fold_units(k, in) && fold_edges(k, in);
    return good ? OATO_OK : oato_fail_memory(err, k->arena.used_bytes, "the kinds of devices");
}

void kinds_free(struct kinds *k)
{
    arena_free(&k->arena);
}
