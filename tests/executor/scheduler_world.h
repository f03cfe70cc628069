/*
 * scheduler_world.h - the scheduler on a machine that is only numbers: discrete events, a step of
 * the engine each. What the engine does with a schedule (executor/batch.h) is done here to
 * counters.
 */
#ifndef OATO_SCHEDULER_WORLD_H
#define OATO_SCHEDULER_WORLD_H

#include "executor/scheduler.h"

/* What a step and a swap take. */
struct simulated_machine {
    int32_t pages, seqs, ubatch;
    double weights_ns;  /* of a step, to read the weights: its least */
    double token_ns;    /* of a token, for arithmetic: weights or tokens, whichever takes longer */
    double position_ns; /* to read the KV of a position that a sequence of the step sees */
    uint64_t page_bytes;
    double swap_bytes_per_s, extent_ns; /* one way; pages of a sequence are one extent in four */
    uint64_t swap_bytes;                /* host memory for what is swapped out */
};

struct simulated_request {
    uint64_t arrive_ns;
    int32_t prompt, answer, client;
    uint64_t first_ns, end_ns; /* results: first token, last token */
};

struct simulated_load {
    double per_s;     /* arrivals a second */
    double variation; /* coefficient of variation of the time between arrivals: Gamma */
    double prompt_mean, prompt_sigma, answer_mean,
        answer_sigma; /* medians' exponents: log-normal */
    int32_t prompt_most, answer_most, clients;
    uint64_t seed;
};
/* Fills n requests in order of arrival. */
void simulated_load_make(const struct simulated_load *load, struct simulated_request *r, int32_t n);

struct simulated_result {
    double seconds;      /* until the last answer ended */
    double tokens_per_s; /* of answers */
    double turnaround;   /* weighted: mean of ns from arrival to end / tokens of the sequence */
    double ttft_p50_s, ttft_p95_s;
    int64_t swaps, evictions, recomputed_tokens, steps;
    /* Of all preemptions: what they took beyond the cheaper of the two ways, relative to that. */
    double regret, regret_swap, regret_recompute; /* as chosen; had all been done one way */
};

/* Runs all requests by the policy. error: standard deviation of the logarithm of predicted / true
 * costs. log: the decisions; NULL: none. The same arguments give the same result. */
oato_status simulate(const struct simulated_machine *m, enum scheduler_policy policy, double error,
                     struct simulated_request *r, int32_t n, int32_t clients, FILE *log,
                     struct simulated_result *out, struct oato_error *err);

#endif
