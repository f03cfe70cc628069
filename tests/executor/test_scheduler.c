/*
 * test_scheduler.c - the scheduler's decisions: order, victims and ways by policy; nobody starves;
 * clients that keep asking get the same; what a log tells is decided again.
 */
#include "executor/scheduler.h"
#include "scheduler_world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MS = 1000000, SECOND = 1000000000 };

static int asked; /* for costs */

static struct restore_cost cost_of(void *user, struct batch_view *v)
{
    (void)user;
    asked++;
    return *(const struct restore_cost *)v->user;
}

static struct scheduler *scheduler_of(enum scheduler_policy policy, uint64_t swap_bytes)
{
    struct scheduler *s = scheduler_create(
        &(struct scheduler_options){.policy = policy, .swap_bytes = swap_bytes, .cost = cost_of});
    assert_non_null(s);
    return s;
}

/* Four running requests that fill 8 pages, each about to take one more. */
struct four {
    struct batch_view v[4];
    struct batch_memo memo[4];
    struct restore_cost cost[4];
    struct batch_room room;
};

static void four_fill(struct four *f)
{
    static const struct restore_cost costs[4] = {
        {5 * MS, 3 * MS}, {4 * MS, 2 * MS}, {1 * MS, 9 * MS}, {6 * MS, 7 * MS}};
    memset(f, 0, sizeof *f);
    f->room = (struct batch_room){8, 0, 4, 64, 100 * MS};
    for (int i = 0; i < 4; i++) {
        f->cost[i] = costs[i];
        f->v[i] = (struct batch_view){.id = (uint64_t)i,
                                      .user = &f->cost[i],
                                      .state = BATCH_RUNNING,
                                      .prompt = 100,
                                      .generated = 29,
                                      .most = 200,
                                      .fed = 128,
                                      .length = 128,
                                      .pages = 2,
                                      .bytes = 1000,
                                      .extents = 1,
                                      .arrived_ns = (uint64_t)i * MS,
                                      .memo = &f->memo[i]};
    }
}

/* The ids of those with the action, as bits. */
static unsigned with_action(const struct four *f, enum batch_action which)
{
    unsigned ids = 0;
    for (int32_t i = 0; i < 4; i++)
        if (f->v[i].action == which)
            ids |= 1u << f->v[i].id;
    return ids;
}

/* Of four two give way: the pages of the first are one less than the other three take. */
static void each_policy_has_its_victims_and_its_way(void **state)
{
    enum { SECOND_ID = 1 << 1, THIRD = 1 << 2, FOURTH = 1 << 3 };
    static const struct {
        enum scheduler_policy policy;
        uint64_t swap_bytes;
        unsigned swapped, evicted;
    } rows[] = {
        {POLICY_ADAPTIVE, 1 << 20, THIRD, SECOND_ID}, /* 1 ms by swapping, 2 ms by computing */
        {POLICY_ADAPTIVE, 0, 0, SECOND_ID | FOURTH},  /* no room for swapping: 2 and 7 ms */
        {POLICY_RECOMPUTE, 1 << 20, 0, THIRD | FOURTH},
        {POLICY_SWAP, 1 << 20, THIRD | FOURTH, 0},
        {POLICY_SWAP, 1500, FOURTH, THIRD}, /* room for one */
        {POLICY_FCFS, 1 << 20, THIRD | FOURTH, 0},
        {POLICY_VTC, 1 << 20, THIRD | FOURTH, 0},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct four f;
        struct scheduler *s = scheduler_of(rows[i].policy, rows[i].swap_bytes);
        four_fill(&f);
        scheduler_run(s, f.v, 4, &f.room);
        assert_int_equal(with_action(&f, BATCH_SWAP_OUT), rows[i].swapped);
        assert_int_equal(with_action(&f, BATCH_EVICT), rows[i].evicted);
        assert_int_equal(f.v[0].id, 0); /* the first in order goes on */
        scheduler_free(s);
    }
}

/* To find them out takes time, and they count only when pages run short. */
static void costs_are_asked_for_when_they_count(void **state)
{
    (void)state;
    for (int32_t free = 3; free < 5; free++) {
        struct four f;
        struct scheduler *s = scheduler_of(POLICY_ADAPTIVE, 1 << 20);
        four_fill(&f);
        f.room.pages = 12;
        f.room.pages_free = free;
        asked = 0;
        scheduler_run(s, f.v, 4, &f.room);
        assert_int_equal(asked, free < 4 ? 4 : 0);
        assert_int_equal(with_action(&f, BATCH_KEEP) == 15, free == 4);
        scheduler_free(s);
    }
}

/* Weighted turnaround lets a short request that came later go first; arrival does not. */
static void requests_are_served_in_their_order(void **state)
{
    struct batch_room room = {100, 100, 1, 64, 1 * SECOND};
    struct restore_cost none = {0, 0};
    (void)state;
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        struct batch_memo memo[3] = {{0}};
        struct batch_view v[3] = {
            {.id = 1, .prompt = 1000, .arrived_ns = 0},
            {.id = 2, .prompt = 10, .arrived_ns = 900 * MS},
            {.id = 3, .prompt = 10, .arrived_ns = 950 * MS},
        };
        const bool fair = policy <= POLICY_SWAP;
        struct scheduler *s = scheduler_of((enum scheduler_policy)policy, 0);
        for (int i = 0; i < 3; i++) {
            v[i].memo = &memo[i];
            v[i].user = &none;
            v[i].most = 20;
        }
        scheduler_run(s, v, 3, &room);
        assert_int_equal(v[0].id, fair ? 2 : 1);
        assert_int_equal(v[1].id, fair ? 3 : 2);
        assert_int_equal(v[0].action, BATCH_RUN);
        assert_int_equal(v[1].action, BATCH_KEEP);
        scheduler_free(s);
    }
}

/* Nobody is admitted whose growth, beside that of the others, exceeds the cache. */
static void the_peak_is_projected(void **state)
{
    enum { PAGES = 8, LEFT = 100 };
    struct restore_cost none = {0, 0};
    struct batch_room room = {PAGES, PAGES - 2, 4, 64, 1 * SECOND};
    int admitted = 0;
    (void)state;
    for (int32_t most = 60; most <= 600; most += 20) {
        struct batch_memo memo[2] = {{0}};
        struct batch_view v[2] = {
            {.id = 1,
             .state = BATCH_RUNNING,
             .prompt = 120,
             .generated = 8,
             .fed = 127,
             .length = 127,
             .pages = 2,
             .most = 8 + LEFT},
            {.id = 2, .prompt = 64, .most = most, .arrived_ns = 1},
        };
        struct scheduler *s = scheduler_of(POLICY_FCFS, 0);
        for (int i = 0; i < 2; i++) {
            v[i].memo = &memo[i];
            v[i].user = &none;
        }
        for (int i = 0; i < 2000; i++)
            scheduler_ended(s, 1000); /* nobody is expected to end before its limit */
        scheduler_run(s, v, 2, &room);
        const int32_t first = most < LEFT ? most : LEFT; /* tokens until one of them ends */
        const int32_t both = kv_pages_of(128 + first) + kv_pages_of(64 + first);
        const int32_t alone = most < LEFT ? kv_pages_of(128 + LEFT) : kv_pages_of(64 + most);
        const bool fits = both <= PAGES && alone <= PAGES;
        assert_int_equal(v[1].action, fits ? BATCH_RUN : BATCH_KEEP);
        admitted += fits;
        scheduler_free(s);
    }
    assert_in_range(admitted, 10, 25);
}

/* ----------------------------------------------------------------------------- simulations */

static const struct simulated_machine machine = {.pages = 64,
                                                 .seqs = 16,
                                                 .ubatch = 256,
                                                 .weights_ns = 2e6,
                                                 .token_ns = 1e5,
                                                 .position_ns = 100,
                                                 .page_bytes = 1 << 20,
                                                 .swap_bytes_per_s = 4e8,
                                                 .extent_ns = 1e4,
                                                 .swap_bytes = (uint64_t)1 << 40};

static void run(enum scheduler_policy policy, struct simulated_request *r, int32_t n,
                int32_t clients, FILE *log, struct simulated_result *out)
{
    struct oato_error err;
    if (simulate(&machine, policy, 0.02, r, n, clients, log, out, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < n; i++)
        assert_true(r[i].end_ns >= r[i].first_ns && r[i].first_ns > r[i].arrive_ns);
}

enum { REQUESTS = 600 };

static void pressure(struct simulated_request *r, double variation)
{
    const struct simulated_load load = {.per_s = 14,
                                        .variation = variation,
                                        .prompt_mean = 160,
                                        .prompt_sigma = 1,
                                        .answer_mean = 200,
                                        .answer_sigma = 0.8,
                                        .prompt_most = 2000,
                                        .answer_most = 1500,
                                        .clients = 2,
                                        .seed = 7};
    simulated_load_make(&load, r, REQUESTS);
}

static void loads_are_distributed_as_said(void **state)
{
    enum { N = 20000 };
    struct simulated_request *r = calloc(N, sizeof *r);
    (void)state;
    assert_non_null(r);
    for (int variation = 1; variation <= 4; variation *= 2) {
        double mean = 0, square = 0, prompts = 0;
        const struct simulated_load load = {.per_s = 5,
                                            .variation = variation,
                                            .prompt_mean = 100,
                                            .prompt_sigma = 0.5,
                                            .answer_mean = 50,
                                            .answer_sigma = 0.5,
                                            .prompt_most = 10000,
                                            .answer_most = 10000,
                                            .clients = 3,
                                            .seed = 1};
        simulated_load_make(&load, r, N);
        for (int32_t i = 1; i < N; i++) {
            const double gap = (double)(r[i].arrive_ns - r[i - 1].arrive_ns) * 1e-9;
            mean += gap / (N - 1);
            square += gap * gap / (N - 1);
            prompts += r[i].prompt / (N - 1.0);
            assert_in_range(r[i].client, 0, 2);
        }
        assert_true(fabs(mean * 5 - 1) < 0.1);
        assert_true(fabs(sqrt(square - mean * mean) / mean / variation - 1) < 0.15);
        assert_true(fabs(prompts / 100 - 1) < 0.05);
    }
    free(r);
}

/* Long requests among short ones that never stop coming: each one ends, and no later than a
 * multiple of its length after it came. */
static void nobody_starves(void **state)
{
    enum { N = 2000 };
    static struct simulated_request r[N];
    struct simulated_result x;
    double worst = 0;
    (void)state;
    for (int32_t i = 0; i < N; i++)
        r[i] = (struct simulated_request){.arrive_ns = (uint64_t)i * 25 * MS,
                                          .prompt = i % 100 == 50 ? 1500 : 30,
                                          .answer = i % 100 == 50 ? 500 : 40};
    run(POLICY_ADAPTIVE, r, N, 1, NULL, &x);
    for (int32_t i = 50; i < N; i += 100)
        worst = fmax(worst, (double)(r[i].end_ns - r[i].arrive_ns) / 2000);
    print_message("weighted turnaround %.2f ms a token, of long ones at most %.2f\n",
                  x.turnaround * 1e-6, worst * 1e-6);
    assert_true(worst < 4 * x.turnaround + 10 * MS);
}

/* Two clients with work all the time, one of long and one of short requests: what they got differs
 * by twice the cache at most (Sheng et al. 2024, theorem 4.4, in tokens of weight 2). */
static void clients_get_the_same(void **state)
{
    enum { N = 1200 };
    static struct simulated_request r[N];
    struct simulated_result x;
    int64_t got[2] = {0};
    uint64_t last[2] = {0};
    (void)state;
    for (int32_t i = 0; i < N; i++)
        r[i] = (struct simulated_request){.arrive_ns = (uint64_t)i,
                                          .prompt = i % 4 ? 40 : 600,
                                          .answer = i % 4 ? 60 : 200,
                                          .client = i % 4 == 0};
    run(POLICY_VTC, r, N, 2, NULL, &x);
    for (int32_t i = 0; i < N; i++)
        last[r[i].client] = r[i].end_ns > last[r[i].client] ? r[i].end_ns : last[r[i].client];
    const uint64_t end = last[0] < last[1] ? last[0] : last[1];
    for (int32_t i = 0; i < N; i++)
        if (r[i].end_ns <= end / 2)
            got[r[i].client] += r[i].prompt + 2 * r[i].answer;
    print_message("tokens by weight: %lld and %lld\n", (long long)got[0], (long long)got[1]);
    assert_true(got[0] > 0 && got[1] > 0);
    assert_true(llabs(got[0] - got[1]) <= 2 * 2 * (int64_t)machine.pages * KV_PAGE_POSITIONS);
}

/* Under pressure preemption happens; the adaptive policy is as fast as either fixed one, its order
 * has less weighted turnaround than that of arrival, and its regret is small. */
static void adaptive_is_no_worse(void **state)
{
    static struct simulated_request r[REQUESTS];
    struct simulated_result x[POLICY_COUNT];
    (void)state;
    for (int variation = 1; variation <= 4; variation *= 2) {
        for (int policy = 0; policy < POLICY_COUNT; policy++) {
            const struct simulated_result *y = &x[policy];
            pressure(r, variation);
            run((enum scheduler_policy)policy, r, REQUESTS, 2, NULL, &x[policy]);
            print_message("CV %d %-9s %7.1f tokens/s, weighted turnaround %6.2f ms, TTFT p95 "
                          "%6.2f s, %lld swaps, %lld evictions, regret %.1f %%\n",
                          variation, scheduler_policy_names[policy], y->tokens_per_s,
                          y->turnaround * 1e-6, y->ttft_p95_s, (long long)y->swaps,
                          (long long)y->evictions, 100 * y->regret);
        }
        const struct simulated_result *a = &x[POLICY_ADAPTIVE];
        assert_true(a->swaps + a->evictions > 0);
        assert_true(a->tokens_per_s >= 0.99 * x[POLICY_RECOMPUTE].tokens_per_s);
        assert_true(a->tokens_per_s >= 0.99 * x[POLICY_SWAP].tokens_per_s);
        assert_true(a->turnaround <= 0.8 * x[POLICY_FCFS].turnaround);
        assert_true(a->regret <= 0.02);
    }
}

static void a_log_is_decided_again(void **state)
{
    static struct simulated_request r[REQUESTS];
    struct simulated_result x;
    struct oato_error err;
    int64_t decisions;
    (void)state;
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        FILE *log = tmpfile();
        assert_non_null(log);
        pressure(r, 2);
        run((enum scheduler_policy)policy, r, REQUESTS, 2, log, &x);
        rewind(log);
        if (scheduler_replay(log, "log", &decisions, &err))
            fail_msg("%s", err.text);
        assert_true(decisions > REQUESTS / 2);
        fclose(log);
    }
    static const char line[] =
        "{\"now_ns\":5,\"policy\":\"fcfs\",\"pages\":8,\"free\":8,\"seqs\":4,\"ubatch\":64,"
        "\"swap_bytes\":0,\"mean_answer\":9,\"requests\":[[1,\"waiting\",3,0,5,0,0,0,0,0,0,false,"
        "0,0,0,\"%s\"]]}\n";
    static const struct {
        const char *action;
        oato_status status;
    } rows[] = {{"run", OATO_OK}, {"keep", OATO_NEGATIVE}, {"jump", OATO_EFILE}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        FILE *log = tmpfile();
        assert_non_null(log);
        fprintf(log, line, "run");
        fprintf(log, line, rows[i].action);
        rewind(log);
        assert_int_equal(scheduler_replay(log, "log", &decisions, &err), rows[i].status);
        assert_int_equal(decisions, rows[i].status ? 1 : 2);
        if (rows[i].status)
            assert_non_null(strstr(err.text, "log:2: "));
        fclose(log);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_policy_has_its_victims_and_its_way),
        cmocka_unit_test(costs_are_asked_for_when_they_count),
        cmocka_unit_test(requests_are_served_in_their_order),
        cmocka_unit_test(the_peak_is_projected),
        cmocka_unit_test(loads_are_distributed_as_said),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(clients_get_the_same),
        cmocka_unit_test(adaptive_is_no_worse),
        cmocka_unit_test(a_log_is_decided_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
