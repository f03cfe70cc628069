/*
 * scheduler_internal.h - a decision and all it depends on, for scheduler.c, which decides, and
 * scheduler_log.c, which writes and replays decisions.
 */
#ifndef OATO_SCHEDULER_INTERNAL_H
#define OATO_SCHEDULER_INTERNAL_H

#include "executor/scheduler.h"

/* A request within a decision. */
struct scheduled {
    struct batch_view *v;
    struct batch_view copy; /* of *v, to reorder */
    struct restore_cost cost;
    int64_t counter;   /* of its client */
    uint64_t priority; /* ns of waiting for each token of its sequence */
    int32_t client;
    int32_t left; /* tokens of answer that are expected to come */
    bool runs;    /* once the decision is carried out */
};

/* What a decision depends on, besides the requests. */
struct decision {
    const struct scheduler_options *ask; /* whose `cost` tells costs; NULL: they are known */
    enum scheduler_policy policy;
    struct batch_room room;
    uint64_t swap_bytes, swapped_bytes; /* limit; held now */
    int32_t mean_answer;
    struct scheduled *all;
    int32_t n;
};

/* Orders the requests and sets their actions; true when one is not BATCH_KEEP. */
bool scheduler_decide(struct decision *d);
/* Writes the decision as a line. Before: of requests in the order in which they came. */
void decision_log(FILE *log, const struct decision *d);

#endif
