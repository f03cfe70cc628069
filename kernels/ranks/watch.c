/*
 * watch.c - whether the other ranks are there, whatever this one does: it may load for
 * minutes, wait for its user, or sit in a sum of MPI's own, which has no limit. A thread of rank 0
 * and one of each other rank send each other a beat every half second. Rank 0 tells all who is
 * silent; a silent rank 0 each finds out by itself.
 *
 * Who waits for a message sees that a rank is lost, and fails. For whom does not look soon the
 * thread calls on_lost.
 */
#include "kernels/ranks/collective_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define BEAT_NS UINT64_C(500000000)
#define TURN_NS 20000000
#define END_NS  1000000
/* For who waits to see it; others than who says it let that one be first. */
#define NOTICE_NS UINT64_C(300000000)
#define OTHERS_NS UINT64_C(1000000000)

/* Instead of a lost rank: */
enum { ALL_WELL = -1, NO_MORE_BEATS = -2 };

struct watched {       /* another rank */
    int send, receive; /* messages on their way; -1: none */
    int32_t in, out;   /* what they say */
    bool gone;         /* it has said that it ends */
    uint64_t heard_ns, told_ns;
};

struct watch {
    pthread_t thread;
    atomic_bool ends;
    void (*on_lost)(const struct oato_error *err);
    int32_t lost; /* -1: nobody; the collective's own follows later */
    int n;
    struct watched rank[RANKS_MAX]; /* of rank 0: all but itself; of others: rank 0 */
};

static void hear(struct collective *c, struct watch *w, struct watched *from, int rank,
                 uint64_t now)
{
    const struct transport_ops *t = c->transport;
    if (from->gone)
        return;
    if (from->receive < 0)
        from->receive = t->receive(CHANNEL_WATCH, rank, &from->in, sizeof from->in);
    const int done = from->receive < 0 ? -1 : t->test(from->receive, NULL);
    if (done > 0) {
        from->heard_ns = now;
        from->gone = from->in == NO_MORE_BEATS;
        if (from->in >= 0 && w->lost < 0)
            w->lost = from->in;
    }
    if (done)
        from->receive = -1; /* after an error it is silent */
}

static void tell(struct collective *c, struct watched *to, int rank, int32_t what, uint64_t now)
{
    const struct transport_ops *t = c->transport;
    if (to->send >= 0 && t->test(to->send, NULL))
        to->send = -1;
    if (to->send >= 0 || to->out == NO_MORE_BEATS ||
        (what == to->out && now - to->told_ns < BEAT_NS))
        return;
    to->out = what;
    to->told_ns = now;
    to->send = t->send(CHANNEL_WATCH, rank, &to->out, sizeof to->out);
}

/* False: all have said that they end. */
static bool turn(struct collective *c, struct watch *w, bool ends)
{
    const uint64_t now = now_ns();
    bool more = false;
    for (int i = 0; i < w->n; i++) {
        const int rank = c->rank ? 0 : i + 1;
        struct watched *of = &w->rank[i];
        hear(c, w, of, rank, now);
        if (!of->gone && now - of->heard_ns > ANSWER_S * UINT64_C(1000000000) && w->lost < 0)
            w->lost = rank;
        if (rank != w->lost)
            tell(c, of, rank, w->lost >= 0 ? w->lost : ends ? NO_MORE_BEATS : ALL_WELL, now);
        more = more || !of->gone || of->send >= 0 || of->out != NO_MORE_BEATS;
    }
    return more;
}

/* True: to end. */
static bool nap(struct watch *w)
{
    const bool ends = atomic_load(&w->ends);
    nanosleep(&(struct timespec){.tv_nsec = ends ? END_NS : TURN_NS}, NULL);
    return ends;
}

/* Goes on telling meanwhile. False: this rank ends anyway. */
static bool grace(struct collective *c, struct watch *w, uint64_t ns)
{
    const uint64_t begin_ns = now_ns();
    while (now_ns() - begin_ns < ns) {
        turn(c, w, false);
        if (nap(w) || atomic_load(&c->failed))
            return false;
    }
    return true;
}

static void *watch_run(void *collective)
{
    struct collective *c = collective;
    struct watch *w = c->watch;
    struct oato_error err;
    bool ends = false;
    while (w->lost < 0) {
        if (atomic_load(&c->failed) || !turn(c, w, ends))
            return NULL;
        ends = nap(w);
    }
    const bool goes_on = lost_speaks(c, w->lost) || grace(c, w, OTHERS_NS);
    atomic_store(&c->lost, w->lost);
    if (goes_on && grace(c, w, NOTICE_NS) && w->on_lost && collective_alive(c, &err))
        w->on_lost(&err);
    return NULL;
}

oato_status watch_begin(struct collective *c, void (*on_lost)(const struct oato_error *err),
                        struct oato_error *err)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return oato_fail_memory(err, sizeof *w, "the ranks");
    w->on_lost = on_lost;
    w->lost = -1;
    w->n = c->rank ? 1 : c->ranks - 1;
    for (int i = 0; i < w->n; i++)
        w->rank[i] =
            (struct watched){.send = -1, .receive = -1, .out = ALL_WELL, .heard_ns = now_ns()};
    c->watch = w;
    if (!pthread_create(&w->thread, NULL, watch_run, c))
        return OATO_OK;
    c->watch = NULL;
    free(w);
    return oato_fail(err, OATO_EIO, "cannot start a thread that watches the other ranks");
}

void watch_end(struct collective *c)
{
    struct watch *w = c->watch;
    if (!w)
        return;
    atomic_store(&w->ends, true);
    pthread_join(w->thread, NULL);
    if (atomic_load(&c->lost) >= 0)
        c->failed = true;
    c->watch = NULL;
    free(w);
}
