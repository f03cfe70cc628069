/*
 * bench_scheduler.c - every policy at the scale of AdaptiveLLM's evaluation: models of 7B to 30B on
 * GPUs that are known from data sheets, by the simulation (scheduler_world.h). Prints the tables of
 * docs/benchmarks/serving.md; the same build prints the same. Each cell is the mean of a few loads:
 * of a single one the last requests decide, and what is better by 3 % is mere luck.
 *
 * What a step takes: half of the arithmetic of the data sheet and 80 % of its bandwidth, copies
 * at 75 % of the link's rate as in docs/hardware; KV in F16; 10 % of the memory is for activations.
 */
#include "scheduler_world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 600, LOADS = 5, SEQS = 128, UBATCH = 512, CLIENTS = 4, CONTEXT = 2048 };
static const double prediction_error = 0.05; /* what the predictors may be wrong by */

struct llm {
    const char *name;
    double parameters;
    int32_t layers, width; /* of a position: 2 x layers x width values */
};

/* Of the papers of Llama and OPT: attention without groups. */
static const struct llm llama_7b = {"Llama 7B", 6.7e9, 32, 4096},
                        opt_13b = {"OPT 13B", 13e9, 40, 5120},
                        opt_30b = {"OPT 30B", 30e9, 48, 7168};

struct bench_machine {
    const char *name;
    const struct llm *llm;
    double memory_gib, read_gb_per_s, tflops, link_gb_per_s;
};

/* docs/hardware, and NVIDIA's data sheets of the A100 and the H100 (SXM, dense F16). The last row:
 * a link that others use too, where computing is the cheaper way. */
static const struct bench_machine machines[] = {
    {"RTX 4090", &llama_7b, 24, 1008, 165, 32},
    {"A100 40 GB", &opt_13b, 40, 1555, 312, 32},
    {"H100 80 GB", &opt_30b, 80, 3350, 989, 64},
    {"H100 80 GB, an eighth of its link", &opt_30b, 80, 3350, 989, 8},
};

/* Log-normal lengths: means as the papers print them, sigma from mean and median where both are
 * known (Azure: medians 1020 and 129), otherwise 1; scripts/bench-serve has the same.
 * ShareGPT: Kwon et al. 2023 (vLLM), figure 11. LMSYS-Chat-1M: Zheng et al. 2024, table 1.
 * Azure, conversations: Patel et al. 2024 (Splitwise), figure 3, and its published trace. */
static const struct {
    const char *name;
    double prompt_mean, prompt_sigma, answer_mean, answer_sigma;
} traces[] = {
    {"ShareGPT", 161, 1, 338, 1}, {"LMSYS", 70, 1, 215, 1}, {"Azure chat", 1155, 0.5, 211, 1}};

static struct simulated_machine machine_of(const struct bench_machine *b)
{
    const double weights = 2 * b->llm->parameters;
    const double position = 4.0 * b->llm->layers * b->llm->width;
    const double read = 0.8 * b->read_gb_per_s, page = position * KV_PAGE_POSITIONS;
    return (struct simulated_machine){
        .pages = (int32_t)((0.9 * b->memory_gib * 0x1p30 - weights) / page),
        .seqs = SEQS,
        .ubatch = UBATCH,
        .weights_ns = weights / read,
        .token_ns = 2 * b->llm->parameters / (0.5e3 * b->tflops),
        .position_ns = position / read,
        .page_bytes = (uint64_t)page,
        .swap_bytes_per_s = 0.75e9 * b->link_gb_per_s,
        .extent_ns = 1e4,
        .swap_bytes = (uint64_t)64 << 30};
}

static void run(const struct simulated_machine *m, enum scheduler_policy policy,
                const struct simulated_load *load, struct simulated_request *r,
                struct simulated_result *out)
{
    struct oato_error err;
    simulated_load_make(load, r, REQUESTS);
    if (simulate(m, policy, prediction_error, r, REQUESTS, CLIENTS, NULL, out, &err)) {
        fprintf(stderr, "oato-bench-scheduler: %s\n", err.text);
        exit(err.status);
    }
}

/* Requests a second that the machine answers when all have come at once. */
static double capacity(const struct simulated_machine *m, struct simulated_load load,
                       struct simulated_request *r)
{
    struct simulated_result x;
    load.per_s = 1e6;
    run(m, POLICY_RECOMPUTE, &load, r, &x);
    return REQUESTS / x.seconds;
}

/* The mean over loads of different seeds; tokens_per_s: all tokens in all seconds. */
static struct simulated_result mean_of(const struct simulated_machine *m,
                                       enum scheduler_policy policy, struct simulated_load load,
                                       struct simulated_request *r)
{
    struct simulated_result mean = {0};
    double tokens = 0;
    for (int i = 0; i < LOADS; i++, load.seed += 1000) {
        struct simulated_result x;
        run(m, policy, &load, r, &x);
        tokens += x.tokens_per_s * x.seconds;
        mean.seconds += x.seconds;
        mean.swaps += x.swaps;
        mean.evictions += x.evictions;
        mean.turnaround += x.turnaround / LOADS;
        mean.ttft_p95_s += x.ttft_p95_s / LOADS;
        mean.regret += x.regret / LOADS;
        mean.regret_swap += x.regret_swap / LOADS;
        mean.regret_recompute += x.regret_recompute / LOADS;
    }
    mean.tokens_per_s = tokens / mean.seconds;
    return mean;
}

/* Of all cells: tokens/s of `adaptive` relative to each other policy, and weighted turnaround. */
static struct {
    double least[POLICY_COUNT], sum[POLICY_COUNT], turnaround[POLICY_COUNT];
    int cells;
} all;

static void row(const struct simulated_machine *m, const struct simulated_load *load,
                const char *name, double share, struct simulated_request *r)
{
    struct simulated_result x[POLICY_COUNT];
    const struct simulated_result *a = &x[POLICY_ADAPTIVE];
    printf("| %s, %.0f %%, CV %.0f |", name, 100 * share, load->variation);
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        x[policy] = mean_of(m, (enum scheduler_policy)policy, *load, r);
        printf(" %.0f |", x[policy].tokens_per_s);
        const double ratio = a->tokens_per_s / x[policy].tokens_per_s;
        all.least[policy] = all.cells ? fmin(all.least[policy], ratio) : ratio;
        all.sum[policy] += ratio;
        all.turnaround[policy] += a->turnaround / x[policy].turnaround;
    }
    all.cells++;
    for (int policy = 0; policy < POLICY_COUNT; policy++)
        printf(" %.1f |", x[policy].turnaround * 1e-6);
    printf(" %.1f, %.1f | %lld + %lld | %.1f, %.0f, %.0f |\n", a->ttft_p95_s,
           x[POLICY_FCFS].ttft_p95_s, (long long)a->swaps / LOADS, (long long)a->evictions / LOADS,
           100 * a->regret, 100 * a->regret_swap, 100 * a->regret_recompute);
}

static void table_of(const struct bench_machine *b, struct simulated_request *r)
{
    const struct simulated_machine m = machine_of(b);
    printf("\n### %s on %s\n\n%d positions of KV; a position takes %.0f us to copy out and in, "
           "and %.0f us to compute.\n\n"
           "| load | tokens/s: adaptive | recompute | swap | fcfs | vtc "
           "| turnaround: adaptive | recompute | swap | fcfs | vtc "
           "| TTFT p95: adaptive, fcfs | swapped + evicted | regret: chosen, all swapped, all "
           "recomputed |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
           b->llm->name, b->name, m.pages * KV_PAGE_POSITIONS,
           2e6 * (double)m.page_bytes / KV_PAGE_POSITIONS / m.swap_bytes_per_s, m.token_ns * 1e-3);
    for (size_t t = 0; t < ARRAY_LEN(traces); t++) {
        static const double shares[] = {0.7, 1.2}; /* below and above what it can answer */
        struct simulated_load load = {.variation = 1,
                                      .prompt_mean = traces[t].prompt_mean,
                                      .prompt_sigma = traces[t].prompt_sigma,
                                      .answer_mean = traces[t].answer_mean,
                                      .answer_sigma = traces[t].answer_sigma,
                                      .prompt_most = CONTEXT,
                                      .answer_most = CONTEXT,
                                      .clients = CLIENTS,
                                      .seed = 29};
        const double most = capacity(&m, load, r);
        for (size_t s = 0; s < ARRAY_LEN(shares); s++) {
            for (int variation = 1; variation <= 4; variation *= 2) {
                load.variation = variation;
                load.per_s = shares[s] * most;
                row(&m, &load, traces[t].name, shares[s], r);
            }
        }
    }
}

int main(void)
{
    struct simulated_request *r = calloc(REQUESTS, sizeof *r);
    if (!r)
        return OATO_EFIT;
    for (size_t i = 0; i < ARRAY_LEN(machines); i++)
        table_of(&machines[i], r);
    printf("\n| `adaptive` against | tokens/s, worst cell | mean | weighted turnaround, mean |\n"
           "|---|---|---|---|\n");
    for (int policy = 1; policy < POLICY_COUNT; policy++)
        printf("| %s | %.3f | %.3f | %.3f |\n", scheduler_policy_names[policy], all.least[policy],
               all.sum[policy] / all.cells, all.turnaround[policy] / all.cells);
    free(r);
    return 0;
}
