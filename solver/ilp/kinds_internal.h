/*
 * kinds_internal.h - equal devices searched as one: kinds.c makes the smaller problem, deal.c
 * placements of its solutions.
 */
#ifndef OATO_KINDS_INTERNAL_H
#define OATO_KINDS_INTERNAL_H

#include "solver/ilp/ilp_internal.h"
#include "solver/planning_internal.h"

struct kinds {
    const struct instance *real;
    struct instance in; /* its devices are the kinds */
    int32_t n;          /* kinds, the host's among them */
    int32_t
        of[SOLVER_DEVICES]; /* a device's kind, or a team's end in `in`; -1: it does not count */
    int32_t member[SOLVER_DEVICES][SOLVER_DEVICES], n_members[SOLVER_DEVICES]; /* by kind */
    int32_t team[SOLVER_DEVICES]; /* of each team of `in` the first of the real ones */
    int32_t **origin; /* [unit][option of `in`]: option of `real`; NULL: `in` is `real` */
    struct arena arena;
};

/* True when exchanging the two accelerators changes no price; their memory may differ. */
bool kinds_alike(const struct problem *p, int32_t a, int32_t b);
/* The problem with the kinds of these devices, a bit each, and no others but the host; apart: each
 * is a kind. Call kinds_free in every case. */
oato_status kinds_fold(struct kinds *k, const struct problem *p, uint32_t devices, bool apart,
                       struct oato_error *err);
void kinds_free(struct kinds *k);

/* When the next devices of a kind get their turn: before a layer that does not fit, before a unit
 * that does not, or once these are full, though they must share units unevenly for that. */
enum deal_way { DEAL_LAYERS, DEAL_UNITS, DEAL_FILLS, DEAL_WAYS };
/* Makes a placement of one of k->in where `streams`, devices, are streamed to: each unit on devices
 * of its kinds, the same as long as they have room. lost[kind] gets the bytes that were left over
 * on devices that some unit did not fit. False: the whole does not fit. */
bool kinds_deal(const struct kinds *k, uint32_t streams, enum deal_way way, const int32_t *folded,
                int32_t *place, uint64_t *lost);
/* Moves single units of a placement as long as that is faster and fits. False: memory is short. */
bool kinds_polish(const struct instance *in, struct ilp_clock *clock, int32_t *place);

#endif
