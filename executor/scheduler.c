/*
 * scheduler.c - see scheduler.h. A decision has three steps: requests are ordered by the policy;
 * while those that run need more pages in the next step than are free, one of them gives way; and
 * if none had to, the next in order are admitted as long as the projected peak of the KV cache
 * fits.
 *
 * The peak is projected by expected ends: at each of them the requests that end later hold what
 * they hold then. Nobody is admitted past a request that does not fit: it would starve.
 */
#include "executor/scheduler_internal.h"

#include <math.h>
#include <stdlib.h>

enum {
    FIRST_ANSWER = 128, /* expected tokens of an answer, before any has ended */
    ANSWER_WEIGHT = 16, /* one more answer moves the mean by a 16th */
    VTC_PROMPT = 1,     /* weights of a token, as in Sheng et al. 2024, "Fairness in Serving .." */
    VTC_ANSWER = 2,
    PREEMPTIONS_FREE = 2, /* each one beyond doubles what the next is taken to cost */
    PREEMPTIONS_MOST = 16,
};

const char *const scheduler_policy_names[POLICY_COUNT + 1] = {"adaptive", "recompute", "swap",
                                                              "fcfs",     "vtc",       NULL};

struct scheduler {
    struct scheduler_options options;
    struct scheduled *all; /* room for n_all */
    int32_t n_all;
    int64_t *counters;  /* of the clients: weighted tokens that each got */
    bool *busy;         /* clients with requests at the last decision */
    int64_t answers_16; /* mean tokens of an answer, times ANSWER_WEIGHT */
};

struct scheduler *scheduler_create(const struct scheduler_options *o)
{
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->options = *o;
    if (!o->client || o->clients < 1)
        s->options.clients = 1;
    s->answers_16 = FIRST_ANSWER * ANSWER_WEIGHT;
    s->counters = calloc((size_t)s->options.clients, sizeof *s->counters);
    s->busy = calloc((size_t)s->options.clients, sizeof *s->busy);
    if (!s->counters || !s->busy) {
        scheduler_free(s);
        return NULL;
    }
    return s;
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    free(s->all);
    free(s->counters);
    free(s->busy);
    free(s);
}

void scheduler_ended(struct scheduler *s, int32_t generated)
{
    s->answers_16 += generated - s->answers_16 / ANSWER_WEIGHT;
}

/* ------------------------------------------------------------------------------------ order */

static int64_t tokens_of(const struct batch_view *v)
{
    return (int64_t)v->prompt + v->generated;
}

static int by_arrival(const struct scheduled *x, const struct scheduled *y)
{
    if (x->v->arrived_ns != y->v->arrived_ns)
        return x->v->arrived_ns < y->v->arrived_ns ? -1 : 1;
    return x->v->id < y->v->id ? -1 : x->v->id > y->v->id;
}

static int by_turnaround(const void *a, const void *b)
{
    const struct scheduled *x = a, *y = b;
    if (x->priority != y->priority)
        return x->priority > y->priority ? -1 : 1;
    return by_arrival(x, y);
}

static int by_age(const void *a, const void *b)
{
    return by_arrival(a, b);
}

static int by_counter(const void *a, const void *b)
{
    const struct scheduled *x = a, *y = b;
    if (x->counter != y->counter)
        return x->counter < y->counter ? -1 : 1;
    return by_arrival(x, y);
}

static int (*const orders[POLICY_COUNT])(const void *, const void *) = {
    [POLICY_ADAPTIVE] = by_turnaround, [POLICY_RECOMPUTE] = by_turnaround,
    [POLICY_SWAP] = by_turnaround,     [POLICY_FCFS] = by_age,
    [POLICY_VTC] = by_counter,
};

static void look(const struct decision *d, struct scheduled *x)
{
    const struct batch_view *v = x->v;
    const uint64_t waits = d->room.now_ns > v->arrived_ns ? d->room.now_ns - v->arrived_ns : 0;
    const int64_t most = v->most < 0 ? INT32_MAX : v->most;
    const int64_t expected = min_i64(most, max_i64(d->mean_answer, v->generated + 1));
    x->priority = waits / (uint64_t)max_i64(1, tokens_of(v));
    x->left = (int32_t)max_i64(1, expected - v->generated);
    x->runs = v->state == BATCH_RUNNING;
    x->v->action = BATCH_KEEP;
}

/* ----------------------------------------------------------------------------------- memory */

/* Pages that a running request takes in the next step; of a prompt's piece, at least the first. */
static int32_t pages_next(const struct decision *d, const struct scheduled *x)
{
    const int64_t due = max_i64(1, tokens_of(x->v) - x->v->fed);
    const int64_t step = min_i64(due, d->room.ubatch);
    return kv_pages_of(x->v->length + step) - kv_pages_of(x->v->length);
}

static int32_t pages_short(const struct decision *d)
{
    int64_t wanted = 0, freed = 0;
    for (int32_t i = 0; i < d->n; i++) {
        const struct scheduled *x = &d->all[i];
        if (x->runs)
            wanted += pages_next(d, x);
        else if (x->v->state == BATCH_RUNNING)
            freed += x->v->pages; /* gives way */
    }
    return (int32_t)(wanted - freed - d->room.pages_free);
}

/* The most pages that those who run, and `also` (NULL: nobody), are expected to hold at a time. */
static int64_t peak(const struct decision *d, const struct scheduled *also)
{
    int64_t most = 0;
    for (int32_t i = 0; i < d->n; i++) {
        const struct scheduled *at = &d->all[i];
        int64_t pages = 0;
        if (!at->runs && at != also)
            continue;
        for (int32_t j = 0; j < d->n; j++) {
            const struct scheduled *x = &d->all[j];
            if ((x->runs || x == also) && x->left >= at->left)
                pages += kv_pages_of(tokens_of(x->v) + at->left);
        }
        most = max_i64(most, pages);
    }
    return most;
}

/* ---------------------------------------------------------------------------------- victims */

static bool swaps(const struct decision *d, const struct scheduled *x)
{
    const bool room =
        d->swapped_bytes < d->swap_bytes && x->v->bytes <= d->swap_bytes - d->swapped_bytes;
    if (d->policy == POLICY_RECOMPUTE || !room)
        return false;
    return d->policy == POLICY_SWAP || x->cost.swap_ns < x->cost.recompute_ns;
}

/* Nanoseconds for a page that is freed, more for those who have waited long already or were
 * preempted often. mean: of the priorities. */
static double score(const struct decision *d, const struct scheduled *x, double mean)
{
    const uint64_t ns = swaps(d, x) ? x->cost.swap_ns : x->cost.recompute_ns;
    const int32_t often = x->v->memo->preempted - PREEMPTIONS_FREE;
    const double again = ldexp(1, (int)min_i64(max_i64(often, 0), PREEMPTIONS_MOST));
    const double debt = 1 + (mean > 0 ? (double)x->priority / mean : 0);
    return (double)ns * again * debt / (double)max_i64(1, x->v->pages);
}

/* The request that gives way; NULL: there is none, because one must go on. */
static struct scheduled *victim(const struct decision *d)
{
    struct scheduled *best = NULL;
    const struct scheduled *first = NULL;
    double best_score = 0, mean = 0;
    for (int32_t i = 0; i < d->n; i++)
        mean += (double)d->all[i].priority / d->n;
    for (int32_t i = 0; i < d->n; i++) {
        struct scheduled *x = &d->all[i];
        if (!x->runs)
            continue;
        if (!first) {
            first = x; /* whatever happens, the first in order goes on */
            continue;
        }
        if (x->v->pinned)
            continue;
        const double s = d->policy == POLICY_ADAPTIVE ? score(d, x, mean) : 0;
        if (!best || s <= best_score) { /* of equals the last in order */
            best = x;
            best_score = s;
        }
    }
    return best;
}

static void costs_ask(struct decision *d)
{
    for (int32_t i = 0; d->ask && d->ask->cost && i < d->n; i++)
        if (d->all[i].v->state == BATCH_RUNNING)
            d->all[i].cost = d->ask->cost(d->ask->user, d->all[i].v);
}

/* True when somebody gives way. */
static bool make_room(struct decision *d)
{
    bool any = false;
    if (pages_short(d) > 0)
        costs_ask(d);
    while (pages_short(d) > 0) {
        struct scheduled *x = victim(d);
        if (!x)
            break;
        x->v->action = swaps(d, x) ? BATCH_SWAP_OUT : BATCH_EVICT;
        x->v->memo->preempted++;
        x->runs = false;
        if (x->v->action == BATCH_SWAP_OUT)
            d->swapped_bytes += x->v->bytes;
        any = true;
    }
    return any;
}

static void admit(struct decision *d)
{
    int32_t running = 0;
    int64_t free = d->room.pages_free;
    for (int32_t i = 0; i < d->n; i++) {
        running += d->all[i].runs;
        free -= d->all[i].runs ? pages_next(d, &d->all[i]) : 0;
    }
    for (int32_t i = 0; i < d->n && running < d->room.seqs; i++) {
        struct scheduled *x = &d->all[i];
        if (x->runs)
            continue;
        const int64_t now = kv_pages_of(tokens_of(x->v) + 1);
        if (running && (now > free || peak(d, x) > d->room.pages))
            break;
        x->v->action = BATCH_RUN;
        x->runs = true;
        free -= now;
        running++;
    }
}

bool scheduler_decide(struct decision *d)
{
    bool any = false;
    for (int32_t i = 0; i < d->n; i++)
        look(d, &d->all[i]);
    qsort(d->all, (size_t)d->n, sizeof *d->all, orders[d->policy]);
    if (!make_room(d))
        admit(d);
    for (int32_t i = 0; i < d->n; i++)
        any = any || d->all[i].v->action != BATCH_KEEP;
    return any;
}

/* ------------------------------------------------------------------------ between decisions */

/* Charges what requests got since the last decision to their clients. A client that comes back is
 * lifted to the least of the others, so that it cannot save up. */
static void clients_charge(struct scheduler *s, const struct scheduled *all, int32_t n)
{
    int64_t least = INT64_MAX;
    for (int32_t c = 0; c < s->options.clients; c++)
        if (s->busy[c])
            least = min_i64(least, s->counters[c]);
    for (int32_t i = 0; i < n; i++) {
        const int32_t c = all[i].client;
        if (!s->busy[c] && least < INT64_MAX && s->counters[c] < least)
            s->counters[c] = least;
    }
    for (int32_t c = 0; c < s->options.clients; c++)
        s->busy[c] = false;
    for (int32_t i = 0; i < n; i++) {
        const struct batch_view *v = all[i].v;
        const int64_t got =
            VTC_PROMPT * (int64_t)min_i64(v->fed, v->prompt) + VTC_ANSWER * (int64_t)v->generated;
        if (got > v->memo->charged) { /* what is computed again is not paid for again */
            s->counters[all[i].client] += got - v->memo->charged;
            v->memo->charged = got;
        }
        s->busy[all[i].client] = true;
    }
}

static bool models_room(struct scheduler *s, int32_t n)
{
    if (n <= s->n_all)
        return true;
    const int32_t more = 2 * n;
    struct scheduled *all = realloc(s->all, (size_t)more * sizeof *all);
    if (!all)
        return false;
    s->all = all;
    s->n_all = more;
    return true;
}

void scheduler_run(void *user, struct batch_view *v, int32_t n, const struct batch_room *room)
{
    struct scheduler *s = user;
    const struct scheduler_options *o = &s->options;
    if (!n || !models_room(s, n))
        return;
    struct decision d = {.ask = o,
                         .policy = o->policy,
                         .room = *room,
                         .swap_bytes = o->cost ? o->swap_bytes : 0,
                         .mean_answer = (int32_t)(s->answers_16 / ANSWER_WEIGHT),
                         .all = s->all,
                         .n = n};
    for (int32_t i = 0; i < n; i++) {
        const int32_t client = o->client ? o->client(o->user, &v[i]) : 0;
        s->all[i] = (struct scheduled){.v = &v[i],
                                       .client = client >= 0 && client < o->clients ? client : 0};
        d.swapped_bytes += v[i].state == BATCH_SWAPPED ? v[i].bytes : 0;
    }
    clients_charge(s, s->all, n);
    for (int32_t i = 0; i < n; i++)
        s->all[i].counter = s->counters[s->all[i].client];
    if (scheduler_decide(&d) && o->log)
        decision_log(o->log, &d);
    /* the batch serves them in this order */
    for (int32_t i = 0; i < n; i++)
        s->all[i].copy = *s->all[i].v;
    for (int32_t i = 0; i < n; i++)
        v[i] = s->all[i].copy;
}
