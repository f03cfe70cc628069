/*
 * collective.c - sums, gathered rows and broadcasts between ranks: see collective.h for the tree.
 *
 * A group's shared memory has a slot for each of its ranks and one for the total. A rank fills its
 * slot and raises its counter; the leader reads the slots in order of rank, fills the total's and
 * raises `out`. A rank fills its slot again only after it has seen `out` rise, and the leader the
 * total's only after all counters have, which each rank raises after it has copied the total: so
 * one slot each suffices. Long values go in pieces of a slot.
 */
#include "kernels/ranks/collective_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Who waits for the next step sleeps between looks after a while. */
#define AWAKE_NS 20000000u
#define NAP_NS   100000
/* Cache lines prefetched at each look */
enum { LINE = 64, FETCH_LINES = 64 };

/* --------------------------------------------------------------------------- waiting ------ */

struct waiting {
    uint64_t begin_ns, looks, limit_ns;
    enum waits how;
};

void collective_fetch(struct collective *c, const void *at, size_t bytes)
{
    c->fetch = at;
    c->fetch_end = c->fetch + bytes;
}

/* False: too long, or a rank is lost. */
static bool wait_more(struct collective *c, struct waiting *w)
{
    for (int i = 0; i < FETCH_LINES && c->fetch < c->fetch_end; i++, c->fetch += LINE)
        __builtin_prefetch(c->fetch, 0, 2);
    if (++w->looks < 64)
        return true;
    const uint64_t waited_ns = now_ns() - w->begin_ns;
    const struct timespec nap = {0, NAP_NS};
    if (waited_ns > AWAKE_NS && w->how == WAITS_EVER)
        nanosleep(&nap, NULL);
    else
        sched_yield();
    return atomic_load(&c->lost) < 0 && (w->how == WAITS_EVER || waited_ns < w->limit_ns);
}

/* For an answer of that rank. */
static struct waiting wait_begin(const struct collective *c, int rank, enum waits how)
{
    const bool relays = rank == c->leader[c->group] || !rank;
    return (struct waiting){now_ns(), 0, (relays ? RELAY_S : ANSWER_S) * UINT64_C(1000000000), how};
}

static oato_status fail_silent(struct collective *c, int rank, struct oato_error *err)
{
    const int lost = atomic_load(&c->lost);
    rank = lost < 0 ? rank : lost;
    c->failed = true;
    oato_fail(err, OATO_EDEVICE,
              "rank %d on %s has not answered for %d s; it has stopped, or its host cannot "
              "be reached",
              rank, c->host[rank], ANSWER_S);
    c->told = lost >= 0 && !lost_speaks(c, lost);
    if (c->told)
        err->text[0] = 0;
    return OATO_EDEVICE;
}

static oato_status fail_message(struct collective *c, int rank, struct oato_error *err)
{
    c->failed = true;
    return oato_fail(err, OATO_EDEVICE, "rank %d on %s cannot be reached: %s", rank, c->host[rank],
                     c->transport->why());
}

static oato_status message_wait(struct collective *c, int handle, int rank, size_t *bytes,
                                enum waits how, struct oato_error *err)
{
    struct waiting w = wait_begin(c, rank, how);
    int done = handle < 0 ? -1 : 0;
    while (!done && !(done = c->transport->test(handle, bytes)))
        if (!wait_more(c, &w))
            return fail_silent(c, rank, err);
    return done < 0 ? fail_message(c, rank, err) : OATO_OK;
}

oato_status message_send(struct collective *c, int to, const void *data, size_t bytes,
                         enum waits how, struct oato_error *err)
{
    return message_wait(c, c->transport->send(CHANNEL_STEPS, to, data, bytes), to, NULL, how, err);
}

oato_status message_receive(struct collective *c, int from, void *data, size_t most, size_t *bytes,
                            enum waits how, struct oato_error *err)
{
    return message_wait(c, c->transport->receive(CHANNEL_STEPS, from, data, most), from, bytes, how,
                        err);
}

static oato_status counter_wait(struct collective *c, _Atomic uint64_t *counter, int rank,
                                enum waits how, struct oato_error *err)
{
    struct waiting w = wait_begin(c, rank, how);
    while (atomic_load_explicit(counter, memory_order_acquire) < c->calls)
        if (!wait_more(c, &w))
            return fail_silent(c, rank, err);
    return OATO_OK;
}

oato_status collective_alive(struct collective *c, struct oato_error *err)
{
    return atomic_load(&c->lost) < 0 ? OATO_OK : fail_silent(c, 0, err);
}

static oato_status still_joined(const struct collective *c, struct oato_error *err)
{
    return c->failed
               ? oato_fail(err, OATO_EDEVICE, "the ranks have lost each other; start them again")
               : OATO_OK;
}

/* ---------------------------------------------------------------------------- groups ------ */

/* The leader makes the memory and tells its name, which is gone once all have mapped it. */
static oato_status shared_map(struct collective *c, int count, struct oato_error *err)
{
    static int made;
    const int leader = c->leader[c->group];
    char name[64];
    oato_status status = OATO_OK;
    int file = -1;
    c->shared_bytes = sizeof(struct shared) + (size_t)(count + 1) * SLOT_BYTES;
    if (c->rank == leader) {
        snprintf(name, sizeof name, "/oato-%d-%d", (int)getpid(), made++);
        file = RETRY(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600));
        if (file >= 0 && fd_allocate(file, c->shared_bytes)) /* else SIGBUS where it is full */
            status = oato_fail(err, OATO_EIO,
                               "no shared memory of %zu bytes: %s; make room in /dev/shm, or make "
                               "it larger",
                               c->shared_bytes, strerror(errno));
        struct oato_error unsent = {0}; /* without memory, too: the others wait for a name */
        for (int i = 1; i < count && !unsent.status; i++)
            message_send(c, leader + i, name, sizeof name, WAITS_EVER, &unsent);
        if (!status && unsent.status)
            *err = unsent;
        status = status ? status : unsent.status;
    } else {
        status = message_receive(c, leader, name, sizeof name, NULL, WAITS_EVER, err);
        if (!status)
            file = RETRY(shm_open(name, O_RDWR, 0600));
    }
    if (!status && file < 0)
        status = oato_fail(err, OATO_EIO, "no shared memory '%s': %s", name, strerror(errno));
    void *p = status ? MAP_FAILED
                     : mmap(NULL, c->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (!status && p == MAP_FAILED)
        status = oato_fail(err, OATO_EIO, "shared memory cannot be mapped: %s", strerror(errno));
    c->shared = p == MAP_FAILED ? NULL : p;
    if (file >= 0)
        close(file);
    status = collective_agree(c, status, err);
    if (c->rank == leader)
        shm_unlink(name);
    return status;
}

oato_status collective_group(struct collective *c, const int32_t *host, struct oato_error *err)
{
    oato_status status = still_joined(c, err);
    if (status || c->ranks == 1)
        return status;
    status = collective_same(c, "OATO_COLLECTIVE", c->forced ? 1 + c->choice[0].way : 0, err);
    c->n_groups = 0;
    for (int i = 0; i < c->ranks && !status; i++) {
        if (!i || host[i] != host[i - 1])
            c->leader[c->n_groups++] = i;
        else if (strcmp(c->host[i], c->host[i - 1]) != 0)
            status = oato_fail(err, OATO_EFILE,
                               "the plan has ranks %d and %d on one host, but they run on %s and "
                               "%s; plan with --hosts, or place the ranks by slot",
                               i - 1, i, c->host[i - 1], c->host[i]);
        if (i == c->rank)
            c->group = c->n_groups - 1;
    }
    c->leader[c->n_groups] = c->ranks;
    status = collective_agree(c, status, err);
    if (status || c->n_groups == c->ranks)
        return status;
    const int count = c->leader[c->group + 1] - c->leader[c->group];
    return count > 1 ? shared_map(c, count, err) : collective_agree(c, OATO_OK, err);
}

static float *slot_of(const struct collective *c, int rank)
{
    return c->shared->slot + (size_t)(rank - c->leader[c->group] + 1) * SLOT_FLOATS;
}

static bool is_leader(const struct collective *c)
{
    return c->rank == c->leader[c->group];
}

/* A rank that leads nobody: its summand, or only that it is ready, and the total. */
static oato_status group_follow(struct collective *c, const float *own, void *out, size_t bytes,
                                enum waits how, struct oato_error *err)
{
    const int member = c->rank - c->leader[c->group];
    if (own)
        memcpy(slot_of(c, c->rank), own, bytes);
    c->shared->rank[member].adds = own != NULL;
    atomic_store_explicit(&c->shared->rank[member].filled, c->calls, memory_order_release);
    const oato_status status = counter_wait(c, &c->shared->out, c->leader[c->group], how, err);
    if (!status)
        memcpy(out, c->shared->slot, bytes);
    return status;
}

static void add(float *sum, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* Adds x to what is there, or begins with it. */
static void take(float *sum, bool *any, const float *x, size_t n)
{
    if (*any)
        add(sum, x, n);
    else if (sum != x)
        memcpy(sum, x, n * sizeof *sum);
    *any = true;
}

/* The leader: waits for the group's ranks and adds their summands, in order. */
static oato_status group_collect(struct collective *c, float *sum, bool *any, size_t n,
                                 enum waits how, struct oato_error *err)
{
    const int leader = c->leader[c->group], end = c->leader[c->group + 1];
    oato_status status = OATO_OK;
    for (int i = leader + 1; i < end && !status; i++) {
        status = counter_wait(c, &c->shared->rank[i - leader].filled, i, how, err);
        if (!status && c->shared->rank[i - leader].adds)
            take(sum, any, slot_of(c, i), n);
    }
    return status;
}

static void group_publish(struct collective *c, const void *data, size_t bytes)
{
    if (!c->shared)
        return;
    memcpy(c->shared->slot, data, bytes);
    atomic_store_explicit(&c->shared->out, c->calls, memory_order_release);
}

/* ------------------------------------------------------------------------------ sums ------ */

/* What goes over the wire for x, which becomes what others make of it. */
static const void *pack(struct collective *c, float *x, size_t n, oato_dtype wire)
{
    if (wire == DT_F32)
        return x;
    wire_pack(wire, c->packed, x, n);
    wire_unpack(wire, x, c->packed, n);
    return c->packed;
}

static void take_packed(struct collective *c, float *sum, bool *any, const float *from, size_t n,
                        oato_dtype wire)
{
    if (wire != DT_F32) {
        wire_unpack(wire, c->next, from, n);
        from = c->next;
    }
    take(sum, any, from, n);
}

/* Two leaders: each has both sums after one message each way. */
static oato_status leaders_exchange(struct collective *c, float *sum, bool *any, size_t n,
                                    oato_dtype wire, struct oato_error *err)
{
    const int other = c->leader[1 - c->group];
    const size_t all = wire_bytes(wire, n);
    size_t bytes = 0;
    const void *own = *any ? pack(c, sum, n, wire) : sum;
    const int sent = c->transport->send(CHANNEL_STEPS, other, own, *any ? all : 0);
    oato_status status = message_receive(c, other, c->others, all, &bytes, WAITS_AWAKE, err);
    if (!status)
        status = message_wait(c, sent, other, NULL, WAITS_AWAKE, err);
    if (!status && bytes)
        take_packed(c, sum, any, c->others, n, wire);
    wire_round(wire, sum, n);
    return status;
}

/* The first leader adds what the others send, in order, and sends them the total. */
static oato_status leaders_star(struct collective *c, float *sum, bool *any, size_t n,
                                oato_dtype wire, struct oato_error *err)
{
    const size_t all = wire_bytes(wire, n);
    int handle[RANKS_MAX] = {0};
    size_t bytes = 0;
    oato_status status = OATO_OK;
    const void *own = *any ? pack(c, sum, n, wire) : sum;
    if (c->group) {
        status = message_send(c, 0, own, *any ? all : 0, WAITS_AWAKE, err);
        float *total = wire == DT_F32 ? sum : c->others;
        if (!status)
            status = message_receive(c, 0, total, all, NULL, WAITS_AWAKE, err);
        if (!status && wire != DT_F32)
            wire_unpack(wire, sum, total, n);
        *any = true;
        return status;
    }
    for (int g = 1; g < c->n_groups; g++)
        handle[g] = c->transport->receive(CHANNEL_STEPS, c->leader[g],
                                          c->others + (size_t)g * SLOT_FLOATS, all);
    for (int g = 1; g < c->n_groups && !status; g++) {
        status = message_wait(c, handle[g], c->leader[g], &bytes, WAITS_AWAKE, err);
        if (!status && bytes)
            take_packed(c, sum, any, c->others + (size_t)g * SLOT_FLOATS, n, wire);
    }
    const void *total = pack(c, sum, n, wire);
    for (int g = 1; g < c->n_groups && !status; g++)
        handle[g] = c->transport->send(CHANNEL_STEPS, c->leader[g], total, all);
    for (int g = 1; g < c->n_groups && !status; g++)
        status = message_wait(c, handle[g], c->leader[g], NULL, WAITS_AWAKE, err);
    return status;
}

static oato_status piece_reduce(struct collective *c, const float *own, float *sum, size_t n,
                                oato_dtype wire, struct oato_error *err)
{
    bool any = false;
    c->calls++;
    if (!is_leader(c))
        return group_follow(c, own, sum, n * sizeof *sum, WAITS_AWAKE, err);
    if (own)
        take(c->sum, &any, own, n);
    oato_status status = group_collect(c, c->sum, &any, n, WAITS_AWAKE, err);
    if (!status && c->n_groups == 2)
        status = leaders_exchange(c, c->sum, &any, n, wire, err);
    else if (!status && c->n_groups > 2)
        status = leaders_star(c, c->sum, &any, n, wire, err);
    if (status)
        return status;
    memcpy(sum, c->sum, n * sizeof *sum);
    group_publish(c, sum, n * sizeof *sum);
    return OATO_OK;
}

static enum sum_way way_of(const struct collective *c, size_t bytes)
{
    int32_t i = 0;
    while (i + 1 < c->n_choices && bytes > c->choice[i].bytes)
        i++;
    return c->choice[i].way;
}

static oato_status library_reduce(struct collective *c, const float *own, float *sum, size_t n,
                                  enum sum_way way, struct oato_error *err)
{
    if (!own)
        memset(sum, 0, n * sizeof *sum);
    else if (own != sum)
        memcpy(sum, own, n * sizeof *sum);
    if (!c->transport->sum(sum, n, way == SUM_REDUCE))
        return OATO_OK;
    c->failed = true;
    return oato_fail(err, OATO_EDEVICE, "the ranks cannot sum: %s", c->transport->why());
}

oato_status collective_reduce(struct collective *c, const float *own, float *sum, size_t n,
                              oato_dtype wire, struct oato_error *err)
{
    oato_status status = still_joined(c, err);
    const enum sum_way way = c->ranks > 1 ? way_of(c, n * sizeof *sum) : SUM_TREE;
    if (c->ranks == 1 && own && own != sum)
        memcpy(sum, own, n * sizeof *sum);
    if (way && !status)
        return library_reduce(c, own, sum, n, way, err);
    for (size_t at = 0; at < n && c->ranks > 1 && !status; at += SLOT_FLOATS) {
        const size_t piece = n - at < SLOT_FLOATS ? n - at : SLOT_FLOATS;
        status = piece_reduce(c, own ? own + at : NULL, sum + at, piece, wire, err);
    }
    return status;
}

/* ------------------------------------------------------------------ broadcasts, gathers --- */

static oato_status piece_broadcast(struct collective *c, void *data, size_t bytes, enum waits how,
                                   struct oato_error *err)
{
    oato_status status = OATO_OK;
    bool none = false;
    c->calls++;
    if (!is_leader(c))
        return group_follow(c, NULL, data, bytes, how, err);
    if (c->group)
        status = message_receive(c, 0, data, bytes, NULL, how, err);
    for (int g = 1; g < c->n_groups && !c->group && !status; g++)
        status = message_send(c, c->leader[g], data, bytes, WAITS_EVER, err);
    if (!status) /* all have copied the last total */
        status = group_collect(c, c->sum, &none, 0, WAITS_EVER, err);
    if (!status)
        group_publish(c, data, bytes);
    return status;
}

oato_status collective_broadcast(struct collective *c, void *data, size_t bytes, enum waits how,
                                 struct oato_error *err)
{
    oato_status status = still_joined(c, err);
    for (size_t at = 0; at < bytes && c->ranks > 1 && !status; at += SLOT_BYTES) {
        const size_t piece = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        status = piece_broadcast(c, (char *)data + at, piece, how, err);
    }
    return status;
}

static oato_status rank_check(const struct collective *c, int32_t rank, struct oato_error *err)
{
    if (still_joined(c, err))
        return err->status;
    return rank >= 0 && rank < c->ranks && rank != c->rank
               ? OATO_OK
               : oato_fail(err, OATO_EDEVICE, "rank %d of %d cannot exchange values with rank %d",
                           c->rank, c->ranks, rank);
}

oato_status collective_send(struct collective *c, int32_t to, const float *x, size_t n,
                            struct oato_error *err)
{
    return rank_check(c, to, err) ? err->status
                                  : message_send(c, to, x, n * sizeof *x, WAITS_EVER, err);
}

oato_status collective_receive(struct collective *c, int32_t from, float *x, size_t n,
                               struct oato_error *err)
{
    size_t bytes = 0;
    if (rank_check(c, from, err) ||
        message_receive(c, from, x, n * sizeof *x, &bytes, WAITS_EVER, err))
        return err->status;
    return bytes == n * sizeof *x
               ? OATO_OK
               : oato_fail(err, OATO_EDEVICE, "rank %d sends %zu bytes instead of %zu", from, bytes,
                           n * sizeof *x);
}

oato_status collective_ping(struct collective *c, void *data, size_t bytes, struct oato_error *err)
{
    const int last = c->leader[c->n_groups - 1];
    oato_status status = still_joined(c, err);
    if (status || !last || (c->rank && c->rank != last))
        return status;
    status = c->rank ? message_receive(c, 0, data, bytes, NULL, WAITS_AWAKE, err)
                     : message_send(c, last, data, bytes, WAITS_AWAKE, err);
    if (!status)
        status = c->rank ? message_send(c, 0, data, bytes, WAITS_AWAKE, err)
                         : message_receive(c, last, data, bytes, NULL, WAITS_AWAKE, err);
    return status;
}

static void columns_put(float *all, int32_t width, int32_t at, const float *x, int32_t n,
                        int32_t rows)
{
    for (int32_t t = 0; t < rows && n; t++)
        memcpy(all + (size_t)t * (size_t)width + at, x + (size_t)t * (size_t)n,
               (size_t)n * sizeof *x);
}

/* Rank 0: the columns of each rank as they come, in order. */
static oato_status columns_collect(struct collective *c, const float *own, int32_t own_width,
                                   float *all, int32_t width, int32_t rows, struct oato_error *err)
{
    const size_t most = (size_t)width * (size_t)rows;
    oato_status status = OATO_OK;
    int32_t at = own_width;
    if (c->bounce_floats < most) {
        float *p = realloc(c->bounce, most * sizeof *p);
        if (!p)
            return oato_fail_memory(err, most * sizeof *p, "rows of other ranks");
        c->bounce = p;
        c->bounce_floats = most;
    }
    columns_put(all, width, 0, own, own_width, rows);
    for (int i = 1; i < c->ranks && !status; i++) {
        size_t bytes = 0;
        status = message_receive(c, i, c->bounce, most * sizeof *own, &bytes, WAITS_AWAKE, err);
        const int32_t n = (int32_t)(bytes / sizeof *own / (size_t)rows);
        if (!status && n > width - at)
            status = oato_fail(err, OATO_EDEVICE, "rank %d sends %d columns of %d that are left", i,
                               n, width - at);
        if (!status)
            columns_put(all, width, at, c->bounce, n, rows);
        at += n;
    }
    return status;
}

oato_status collective_gather(struct collective *c, const float *own, int32_t own_width, float *all,
                              int32_t width, int32_t rows, bool to_first, struct oato_error *err)
{
    oato_status status = still_joined(c, err);
    const size_t floats = (size_t)own_width * (size_t)rows;
    if (status || !rows)
        return status;
    if (c->ranks == 1)
        columns_put(all, width, 0, own, own_width, rows);
    else if (c->rank)
        status = message_send(c, 0, own, floats * sizeof *own, WAITS_AWAKE, err);
    else
        status = columns_collect(c, own, own_width, all, width, rows, err);
    if (!status && !to_first)
        status = collective_broadcast(c, all, (size_t)width * (size_t)rows * sizeof *all,
                                      WAITS_AWAKE, err);
    return status;
}
