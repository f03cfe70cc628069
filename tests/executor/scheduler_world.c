/*
 * scheduler_world.c - see scheduler_world.h. A step carries what a step of the engine would: a
 * token of each decoding request, and pieces of prompts in the schedule's order up to `ubatch`
 * tokens. It takes the longer of reading the weights and computing its tokens, and reading the KV
 * that it sees. Copies for swapping come before the step, as in the engine.
 */
#include "scheduler_world.h"

#include <math.h>
#include <stdlib.h>

enum { EXTENT_PAGES = 4 };

/* -------------------------------------------------------------------------------- the load */

struct dice {
    uint64_t state;
};

/* SplitMix64 (Steele et al. 2014), as a number in (0, 1). */
static double uniform(struct dice *d)
{
    uint64_t x = d->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) * 0x1p-53;
}

static double normal(struct dice *d)
{
    const double r = sqrt(-2 * log(uniform(d)));
    return r * cos(2 * M_PI * uniform(d));
}

/* Marsaglia and Tsang 2000; shapes below 1 by a power of a uniform number. Of mean 1. */
static double gamma_one(struct dice *d, double shape)
{
    const double boost = shape < 1 ? pow(uniform(d), 1 / shape) : 1;
    const double a = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * a);
    for (;;) {
        const double x = normal(d), v = pow(1 + c * x, 3);
        if (v > 0 && log(uniform(d)) < 0.5 * x * x + a - a * v + a * log(v))
            return a * v * boost / shape;
    }
}

static int32_t length(struct dice *d, double mean, double sigma, int32_t most)
{
    const double x = mean * exp(sigma * normal(d) - sigma * sigma / 2);
    return (int32_t)fmin(fmax(1, round(x)), most);
}

void simulated_load_make(const struct simulated_load *load, struct simulated_request *r, int32_t n)
{
    struct dice d = {load->seed};
    const double shape = 1 / (load->variation * load->variation);
    double at = 0;
    for (int32_t i = 0; i < n; i++) {
        at += gamma_one(&d, shape) / load->per_s * 1e9;
        r[i] = (struct simulated_request){
            .arrive_ns = (uint64_t)at,
            .prompt = length(&d, load->prompt_mean, load->prompt_sigma, load->prompt_most),
            .answer = length(&d, load->answer_mean, load->answer_sigma, load->answer_most),
            .client = (int32_t)(uniform(&d) * load->clients)};
    }
}

/* ----------------------------------------------------------------------------- the machine */

struct live {
    struct simulated_request *of;
    enum batch_state state;
    int32_t fed, generated;
    struct batch_memo memo;
    double error; /* predicted / true cost */
};

struct simulation {
    const struct simulated_machine *m;
    const struct simulated_request *requests;
    struct scheduler *scheduler;
    struct live *live; /* in order of service */
    struct batch_view *views;
    int32_t n, pages_free;
    double now_ns;
    struct simulated_result result;
    double least_ns, chosen_ns, all_swap_ns, all_recompute_ns;
};

static double step_ns(const struct simulated_machine *m, int64_t tokens, int64_t positions)
{
    return fmax(m->weights_ns, (double)tokens * m->token_ns) + (double)positions * m->position_ns;
}

static double swap_ns(const struct simulated_machine *m, int32_t pages)
{
    const double bytes = (double)pages * (double)m->page_bytes;
    const int32_t extents = (pages + EXTENT_PAGES - 1) / EXTENT_PAGES;
    return bytes / m->swap_bytes_per_s * 1e9 + (double)extents * m->extent_ns;
}

/* Computing n tokens beside others: their arithmetic, and the KV that their pieces see. */
static double recompute_ns(const struct simulated_machine *m, int32_t n)
{
    const int64_t pieces = (n + m->ubatch - 1) / m->ubatch;
    const double positions = (double)n * (double)(pieces + 1) / 2;
    return (double)n * m->token_ns + positions * m->position_ns;
}

static struct restore_cost true_cost(const struct simulated_machine *m, const struct batch_view *v)
{
    return (struct restore_cost){(uint64_t)(2 * swap_ns(m, v->pages)),
                                 (uint64_t)recompute_ns(m, v->fed)};
}

static struct restore_cost predicted(void *user, struct batch_view *v)
{
    const struct simulation *s = user;
    const struct live *l = v->user;
    const struct restore_cost c = true_cost(s->m, v);
    return (struct restore_cost){(uint64_t)((double)c.swap_ns * l->error),
                                 (uint64_t)((double)c.recompute_ns / l->error)};
}

static int32_t client_of(void *user, const struct batch_view *v)
{
    (void)user;
    return ((const struct live *)v->user)->of->client;
}

static void view(const struct simulation *s, struct live *l, struct batch_view *v)
{
    const uint64_t page_bytes = s->m->page_bytes;
    const int32_t held = l->state == BATCH_WAITING ? 0 : l->fed;
    *v = (struct batch_view){.id = (uint64_t)(l->of - s->requests),
                             .user = l,
                             .state = l->state,
                             .prompt = l->of->prompt,
                             .generated = l->generated,
                             .most = -1,
                             .fed = l->fed,
                             .length = held,
                             .pages = kv_pages_of(held),
                             .bytes = (uint64_t)kv_pages_of(held) * page_bytes,
                             .extents = (kv_pages_of(held) + EXTENT_PAGES - 1) / EXTENT_PAGES,
                             .arrived_ns = l->of->arrive_ns,
                             .memo = &l->memo};
}

static void preempt(struct simulation *s, struct live *l, const struct batch_view *v)
{
    const struct restore_cost c = true_cost(s->m, v);
    const double swap = (double)c.swap_ns, recompute = (double)c.recompute_ns;
    s->least_ns += fmin(swap, recompute);
    s->all_swap_ns += swap;
    s->all_recompute_ns += recompute;
    s->pages_free += v->pages;
    if (v->action == BATCH_SWAP_OUT) {
        s->chosen_ns += swap;
        s->now_ns += swap_ns(s->m, v->pages);
        s->result.swaps++;
        l->state = BATCH_SWAPPED;
    } else {
        s->chosen_ns += recompute;
        s->result.evictions++;
        s->result.recomputed_tokens += l->fed;
        l->state = BATCH_WAITING;
        l->fed = 0;
    }
}

static void actions(struct simulation *s)
{
    int32_t running = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const struct batch_view *v = &s->views[i];
        if (v->state == BATCH_RUNNING && (v->action == BATCH_SWAP_OUT || v->action == BATCH_EVICT))
            preempt(s, v->user, v);
    }
    for (int32_t i = 0; i < s->n; i++)
        running += ((const struct live *)s->views[i].user)->state == BATCH_RUNNING;
    for (int32_t i = 0; i < s->n; i++) {
        const struct batch_view *v = &s->views[i];
        struct live *l = v->user;
        if (v->action != BATCH_RUN || running == s->m->seqs || v->pages > s->pages_free)
            continue;
        if (v->state == BATCH_SWAPPED) {
            s->pages_free -= v->pages;
            s->now_ns += swap_ns(s->m, v->pages);
        }
        l->state = BATCH_RUNNING;
        running++;
    }
}

/* Feeds at most n tokens of the request, as pages allow. Returns how many. */
static int32_t feed(struct simulation *s, struct live *l, int32_t n)
{
    const int64_t most = ((int64_t)kv_pages_of(l->fed) + s->pages_free) * KV_PAGE_POSITIONS;
    n = (int32_t)min_i64(n, most - l->fed);
    s->pages_free -= kv_pages_of(l->fed + n) - kv_pages_of(l->fed);
    l->fed += n;
    return n;
}

/* One step; got: which requests of the views got a token. */
static void step(struct simulation *s, bool *got)
{
    int64_t tokens = 0, positions = 0, most = s->m->ubatch;
    for (int pass = 0; pass < 2; pass++) { /* decoding requests, then prompts */
        if (tokens)
            most = min_i64(most, tokens + BATCH_BESIDE);
        for (int32_t i = 0; i < s->n; i++) {
            struct live *l = s->views[i].user;
            const int32_t due = l->of->prompt + l->generated - l->fed;
            if (l->state != BATCH_RUNNING || (due > 1) != (pass == 1) || due < 1)
                continue;
            const int32_t n = feed(s, l, (int32_t)min_i64(due, most - tokens));
            tokens += n;
            positions += n ? l->fed : 0;
            got[i] = n && n == due;
        }
    }
    if (!tokens && s->n) { /* nobody can move: as in the engine, the last one makes room */
        for (int32_t i = s->n; i-- > 0;) {
            struct live *l = s->views[i].user;
            struct batch_view v;
            if (l->state != BATCH_RUNNING || !l->fed)
                continue;
            view(s, l, &v);
            v.action = BATCH_EVICT;
            preempt(s, l, &v);
            break;
        }
    }
    s->now_ns += step_ns(s->m, tokens, positions);
    s->result.steps++;
}

static void tokens_take(struct simulation *s, const bool *got)
{
    for (int32_t i = 0; i < s->n; i++) {
        struct live *l = s->views[i].user;
        if (!got[i])
            continue;
        if (!l->generated++)
            l->of->first_ns = (uint64_t)s->now_ns;
        if (l->generated < l->of->answer)
            continue;
        l->of->end_ns = (uint64_t)s->now_ns;
        s->pages_free += kv_pages_of(l->fed);
        scheduler_ended(s->scheduler, l->generated);
    }
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n; i++)
        if (!s->live[i].of->end_ns)
            s->live[kept++] = s->live[i];
    s->n = kept;
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void results(struct simulation *s, const struct simulated_request *r, int32_t n,
                    double *scratch)
{
    struct simulated_result *x = &s->result;
    int64_t tokens = 0;
    for (int32_t i = 0; i < n; i++) {
        tokens += r[i].answer;
        x->turnaround +=
            (double)(r[i].end_ns - r[i].arrive_ns) / (double)(r[i].prompt + r[i].answer) / n;
        scratch[i] = (double)(r[i].first_ns - r[i].arrive_ns) * 1e-9;
    }
    qsort(scratch, (size_t)n, sizeof *scratch, by_number);
    x->ttft_p50_s = scratch[n / 2];
    x->ttft_p95_s = scratch[n * 19 / 20];
    x->seconds = s->now_ns * 1e-9;
    x->tokens_per_s = (double)tokens / x->seconds;
    if (s->least_ns > 0) {
        x->regret = s->chosen_ns / s->least_ns - 1;
        x->regret_swap = s->all_swap_ns / s->least_ns - 1;
        x->regret_recompute = s->all_recompute_ns / s->least_ns - 1;
    }
}

static void run(struct simulation *s, struct simulated_request *r, int32_t n, double error,
                bool *got)
{
    struct dice dice = {1};
    for (int32_t next = 0; next < n || s->n;) {
        if (!s->n && (double)r[next].arrive_ns > s->now_ns)
            s->now_ns = (double)r[next].arrive_ns;
        for (; next < n && (double)r[next].arrive_ns <= s->now_ns; next++)
            s->live[s->n++] = (struct live){.of = &r[next], .error = exp(error * normal(&dice))};
        for (int32_t i = 0; i < s->n; i++) {
            view(s, &s->live[i], &s->views[i]);
            got[i] = false;
        }
        const struct batch_room room = {s->m->pages, s->pages_free, s->m->seqs, s->m->ubatch,
                                        (uint64_t)s->now_ns};
        scheduler_run(s->scheduler, s->views, s->n, &room);
        actions(s);
        step(s, got);
        tokens_take(s, got);
    }
}

oato_status simulate(const struct simulated_machine *m, enum scheduler_policy policy, double error,
                     struct simulated_request *r, int32_t n, int32_t clients, FILE *log,
                     struct simulated_result *out, struct oato_error *err)
{
    struct simulation s = {.m = m, .requests = r, .pages_free = m->pages};
    const struct scheduler_options options = {.policy = policy,
                                              .swap_bytes = m->swap_bytes,
                                              .cost = predicted,
                                              .client = client_of,
                                              .clients = clients,
                                              .user = &s,
                                              .log = log};
    for (int32_t i = 0; i < n; i++) {
        r[i].first_ns = r[i].end_ns = 0;
        if (r[i].prompt < 1 || r[i].answer < 1 ||
            kv_pages_of((int64_t)r[i].prompt + r[i].answer) > m->pages)
            return oato_fail(err, OATO_EFIT,
                             "request %d of %d + %d tokens does not fit in %d pages", i,
                             r[i].prompt, r[i].answer, m->pages);
    }
    const size_t room = (size_t)n + 1;
    bool *got = calloc(room, sizeof *got);
    double *scratch = calloc(room, sizeof *scratch);
    s.live = calloc(room, sizeof *s.live);
    s.views = calloc(room, sizeof *s.views);
    s.scheduler = scheduler_create(&options);
    oato_status status = OATO_OK;
    if (!got || !scratch || !s.live || !s.views || !s.scheduler) {
        status = oato_fail_memory(err, room * sizeof *s.views, "a simulation");
    } else {
        run(&s, r, n, error, got);
        results(&s, r, n, scratch);
        *out = s.result;
    }
    scheduler_free(s.scheduler);
    free(s.views);
    free(s.live);
    free(scratch);
    free(got);
    return status;
}
