/*
 * scheduler.h - who runs in the next step, and when memory runs short who gives way and how. A pure
 * function of numbers: no clock, no device; the server and the simulation run this same code. It is
 * the `schedule` of executor/batch.h.
 *
 * Following AdaptiveLLM: a victim is swapped out or recomputed, whichever its predicted cost says
 * (its Algorithm 1), and requests are served in order of their weighted turnaround so far (its
 * Algorithm 2): time since arrival / tokens of the sequence, the largest first. Whoever waits gains
 * on all others, and short ones gain faster, so that nobody starves and the mean is small.
 */
#ifndef OATO_SCHEDULER_H
#define OATO_SCHEDULER_H

#include "executor/batch.h"

enum scheduler_policy {
    POLICY_ADAPTIVE,  /* weighted turnaround; the cheaper way for the cheapest victim */
    POLICY_RECOMPUTE, /* the same order; the last victim, always recomputed */
    POLICY_SWAP,      /* the same order; the last victim, always swapped out */
    POLICY_FCFS,      /* order of arrival; the last victim, the cheaper way */
    POLICY_VTC,       /* virtual token counters: the client that got least; the cheaper way */
    POLICY_COUNT
};
extern const char *const scheduler_policy_names[POLICY_COUNT + 1]; /* NULL at the end */

/* What it would take to bring a request back: after swapping it (out and in), or by computing. */
struct restore_cost {
    uint64_t swap_ns, recompute_ns;
};

struct scheduler_options {
    enum scheduler_policy policy;
    uint64_t swap_bytes; /* of host memory for requests that are swapped out, all together */
    /* Of a running request, asked only when pages run short; sees to it that pages and bytes of
     * the view are known. NULL: both ways cost nothing, and nothing is ever swapped. */
    struct restore_cost (*cost)(void *user, struct batch_view *v);
    int32_t (*client)(void *user, const struct batch_view *v); /* from 0 on; NULL: all are one */
    int32_t clients;
    void *user;
    FILE *log; /* a line of JSON for each decision that changes something; NULL: none */
};

struct scheduler;
/* NULL: memory is short. */
struct scheduler *scheduler_create(const struct scheduler_options *o);
void scheduler_free(struct scheduler *s);
/* batch_options.schedule; s is a struct scheduler. Allocates only when there are more requests than
 * ever before; where that fails, nobody is admitted in this step. */
void scheduler_run(void *s, struct batch_view *v, int32_t n, const struct batch_room *room);
/* A request has ended with so many tokens of answer: what others are expected to need. */
void scheduler_ended(struct scheduler *s, int32_t generated);
/* Decides once more what a log tells, line by line. OATO_NEGATIVE when a decision differs, and
 * OATO_EFILE when a line cannot be read; both name the line. *decisions: lines that agree. */
oato_status scheduler_replay(FILE *log, const char *name, int64_t *decisions,
                             struct oato_error *err);

#endif
