/*
 * collective_internal.h - the ranks as collective.c (messages, groups, sums) and open.c
 * (joining, agreement) see them.
 */
#ifndef OATO_COLLECTIVE_INTERNAL_H
#define OATO_COLLECTIVE_INTERNAL_H

#include "kernels/core/wire.h"
#include "kernels/ranks/collective.h"
#include "kernels/ranks/transport.h"

#include <stdatomic.h>

/* Who is silent for so long has stopped: a rank computes at most part of a layer between two of its
 * answers, and its watch answers whatever it does. Who waits for a rank that itself waits for
 * others lets that one name who is silent, and the launcher end this one. */
enum { ANSWER_S = 6, RELAY_S = ANSWER_S + 2 };

enum { SLOT_FLOATS = 1 << 16, SLOT_BYTES = SLOT_FLOATS * (int)sizeof(float) };

struct shared {
    struct {
        _Alignas(64) _Atomic uint64_t filled; /* counts the rank's calls */
        bool adds;                            /* there is something in the slot */
    } rank[RANKS_MAX];
    _Alignas(64) _Atomic uint64_t out;
    _Alignas(64) float slot[]; /* SLOT_FLOATS for the total, then for each rank of the group */
};

struct collective {
    const struct transport_ops *transport; /* NULL: one rank */
    void *module;
    int rank, ranks;
    char host[RANKS_MAX][TRANSPORT_HOST];
    _Atomic bool failed;
    _Atomic int32_t lost; /* rank; -1: all are there */
    struct watch *watch;  /* NULL: one rank */
    bool told;            /* another rank says why this one ends */
    bool forced;          /* OATO_COLLECTIVE says how all sums are made */
    struct sum_choice choice[SUM_CHOICES];
    int32_t n_choices;
    int n_groups, group;       /* group: this rank's */
    int leader[RANKS_MAX + 1]; /* first rank of each group; [n_groups] = ranks */
    struct shared *shared;     /* NULL: the group is this rank alone */
    size_t shared_bytes;
    uint64_t calls; /* in the group so far */
    /* of the leader: a piece each; others: one for each group; packed, next: of other than F32 */
    float *sum, *others, *packed, *next;
    float *bounce;                 /* rows on their way */
    const char *fetch, *fetch_end; /* what is prefetched while waiting */
    size_t bounce_floats;
};

/* Waits for a message to or from the rank, which borrows `data` meanwhile. bytes may be NULL. */
oato_status message_send(struct collective *c, int to, const void *data, size_t bytes,
                         enum waits how, struct oato_error *err);
oato_status message_receive(struct collective *c, int from, void *data, size_t most, size_t *bytes,
                            enum waits how, struct oato_error *err);

/* The first rank that is left says which one is lost. */
static inline bool lost_speaks(const struct collective *c, int lost)
{
    return c->rank == (lost ? 0 : 1);
}

/* watch.c: from joining to leaving. Its end, unless a rank is lost, waits for theirs. */
oato_status watch_begin(struct collective *c, void (*on_lost)(const struct oato_error *err),
                        struct oato_error *err);
void watch_end(struct collective *c);

#endif
