/*
 * search_internal.h - the search for placements: search.c says which problems are solved, rooms.c
 * which sizes of rooms they have, and what is proven of all of them.
 */
#ifndef OATO_SEARCH_INTERNAL_H
#define OATO_SEARCH_INTERNAL_H

#include "solver/ilp/kinds_internal.h"

/* A problem where some devices are streamed to, and have rooms of some size set aside for it. */
struct streaming {
    struct instance in;
    int64_t bound_ns; /* no placement of it is faster; 0: unknown, INT64_MAX: none fits */
};

struct search {
    struct problem *p;
    const struct kinds *kinds; /* the step's problem is that of kinds; NULL: of all devices */
    struct ilp_options options;
    struct ilp_result *result;        /* of all; its bound: of the last step */
    struct streaming *all;            /* the problems of a step */
    int32_t *best, *scratch, *folded; /* placements; folded: of kinds */
    int32_t *roomy;    /* the best before rooms of all sizes were searched, or NULL */
    bool known;        /* there is a best one, of result.objective_ns */
    bool rough;        /* of rooms a few sizes will do: the bound is not wanted */
    int64_t enough_ns; /* of the options: any that is slower is of no use; 0: none */
};

const struct instance *search_instance(const struct search *s);
/* The devices before d that are like it and have as much memory, a bit each. */
uint32_t search_like_before(const struct problem *p, int32_t d);
/* What a placement must be faster than to be of use; 0: any is. */
int64_t search_enough_ns(const struct search *s);
/* True when nothing within this bound is better than that by more than the gap. */
bool search_settles(const struct search *s, int64_t bound_ns);
/* Keeps s->scratch if that is better than the best. */
void search_take(struct search *s, int64_t objective_ns);
/* Solves (or only relaxes) one problem from the best placement so far, if that fits, keeps what is
 * better, and raises the problem's bound. */
oato_status search_attempt(struct search *s, struct streaming *x, struct ilp_options options,
                           struct oato_error *err);

/* Searches all sizes of rooms for what the step's problem streams or reads from a file; the first n
 * of s->all are problems of some sizes whose bounds are known. *bound_ns: nothing that fits is
 * faster, whatever it streams or reads. With relax_only it is that of all sizes at once. */
oato_status search_rooms(struct search *s, int32_t n, int64_t *bound_ns, struct oato_error *err);

#endif
