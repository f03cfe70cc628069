/*
 * open.c - joining the ranks: the module of the launcher's MPI, who runs where, and
 * agreement on what each found while it opened its part.
 */
#include "kernels/ranks/collective_internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TELL_NS = 500000000 };
enum { JOIN_S = 60, JOIN_MOST_S = 86400 }; /* OATO_MPI_WAIT */

int32_t collective_rank(const struct collective *c)
{
    return c->rank;
}

int32_t collective_ranks(const struct collective *c)
{
    return c->ranks;
}

/* ----------------------------------------------------------------------------- opening ---- */

/* What a launcher says of itself, and the module for its MPI. */
static const char *module_wanted(void)
{
    const char *forced = getenv("OATO_MPI");
    if (forced && *forced)
        return forced;
    if (getenv("OMPI_COMM_WORLD_SIZE"))
        return "openmpi";
    return getenv("PMI_SIZE") && getenv("PMI_RANK") ? "mpich" : NULL;
}

/* Beside the program, bin/../lib/oato, or where it was installed. A name with a '/' is a path. */
static void module_path(const char *name, char path[640])
{
    enum { PATH = 640 };
    char own[512] = "";
    if (strchr(name, '/')) {
        snprintf(path, PATH, "%s", name);
    } else {
        const ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
        own[n > 0 ? n : 0] = 0;
        char *slash = strrchr(own, '/');
        if (slash)
            *slash = 0;
        snprintf(path, PATH, "%s/../lib/oato/oato-%.32s.so", own, name);
        if (access(path, R_OK))
            snprintf(path, PATH, "%s/oato-%.32s.so", OATO_MODULES, name);
    }
}

const char *collective_module(int i, char *why, size_t why_bytes)
{
    static const char *const names[] = {"openmpi", "mpich"};
    if (i >= (int)ARRAY_LEN(names))
        return NULL;
    char path[640];
    module_path(names[i], path);
    void *module = access(path, R_OK) ? NULL : dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    snprintf(why, why_bytes, "%s",
             module                ? ""
             : !access(path, R_OK) ? or_empty(dlerror())
                                   : "this build has no module for it");
    if (module)
        dlclose(module);
    return names[i];
}

static oato_status module_open(struct collective *c, const char *name, struct oato_error *err)
{
    char path[640];
    module_path(name, path);
    /* OpenMPI's own plug-ins look for its symbols among the global ones */
    c->module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    c->transport = c->module ? dlsym(c->module, TRANSPORT_SYMBOL) : NULL;
    if (c->transport && c->transport->version == TRANSPORT_VERSION)
        return OATO_OK;
    const char *why = c->transport ? "it is of another version" : dlerror();
    c->transport = NULL;
    return oato_fail(err, OATO_EDEVICE,
                     "started by the mpirun of %.32s, but its module does not open: %.300s; build "
                     "OATO where that MPI's headers are installed",
                     name, why ? why : "");
}

static oato_status sums_choose(struct collective *c, struct oato_error *err)
{
    const char *wanted = getenv("OATO_COLLECTIVE");
    int i = 0;
    while (wanted && i < SUM_HOST_WAYS && strcmp(wanted, sum_way_name[i]) != 0)
        i++;
    c->forced = wanted;
    c->choice[0] = (struct sum_choice){UINT64_MAX, (enum sum_way)i, DT_F32};
    c->n_choices = 1;
    return i < SUM_HOST_WAYS
               ? OATO_OK
               : oato_fail(err, OATO_EUSAGE,
                           "OATO_COLLECTIVE is %.40s; it can be tree, allreduce or reduce", wanted);
}

oato_status collective_choose(struct collective *c, const struct sum_choice *choice, int32_t n,
                              struct oato_error *err)
{
    const enum sum_way way = c->choice[0].way;
    if (c->forced && way && n && choice->wire != DT_F32)
        return oato_fail(
            err, OATO_EUSAGE,
            "OATO_COLLECTIVE is %s, which sums F32, but the plan's sums are %s between "
            "hosts; unset it, or plan without --wire",
            sum_way_name[way], dtype_name(choice->wire));
    if (c->forced && n && choice->way == SUM_ACCELERATORS)
        return oato_fail(err, OATO_EUSAGE,
                         "OATO_COLLECTIVE is %s, but the plan has accelerators sum by themselves; "
                         "unset it",
                         sum_way_name[way]);
    c->n_choices = c->forced || !n ? c->n_choices : n;
    for (int32_t i = 0; i < n && !c->forced; i++)
        c->choice[i] = choice[i];
    return OATO_OK;
}

int32_t collective_hosts(const struct collective *c, int32_t host[RANKS_MAX])
{
    host[0] = 0;
    for (int i = 1; i < c->ranks; i++)
        host[i] = host[i - 1] + (strcmp(c->host[i], c->host[i - 1]) != 0);
    return host[c->ranks - 1] + 1;
}

/* Each rank alone, until the plan says more. */
static void groups_single(struct collective *c)
{
    c->n_groups = c->ranks;
    c->group = c->rank;
    for (int i = 0; i <= c->ranks; i++)
        c->leader[i] = i;
}

/* Everybody learns the names of all hosts. */
static oato_status hosts_exchange(struct collective *c, struct oato_error *err)
{
    oato_status status = OATO_OK;
    const size_t all = (size_t)c->ranks * sizeof *c->host;
    if (c->rank)
        status = message_send(c, 0, c->host[c->rank], sizeof *c->host, WAITS_EVER, err);
    for (int i = 1; i < c->ranks && !c->rank && !status; i++)
        status = message_receive(c, i, c->host[i], sizeof *c->host, NULL, WAITS_EVER, err);
    for (int i = 1; i < c->ranks && !c->rank && !status; i++)
        status = message_send(c, i, c->host, all, WAITS_EVER, err);
    if (c->rank && !status)
        status = message_receive(c, 0, c->host, all, NULL, WAITS_EVER, err);
    return status;
}

/* MPI_Init waits for ever for a rank that has stopped or never calls it, and nothing but a thread
 * can end that. */
struct joining {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool joined;
    int32_t seconds;
    void (*on_lost)(const struct oato_error *err);
};

/* The lower ones say it first; the launcher then ends the others. */
static int32_t rank_told(void)
{
    const char *names[] = {getenv("OMPI_COMM_WORLD_RANK"), getenv("PMI_RANK")};
    int64_t rank = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (names[i] && parse_i64(names[i], 0, INT32_MAX, &rank))
            break;
    return (int32_t)rank;
}

static void *join_watch(void *arg)
{
    struct joining *j = arg;
    struct oato_error err;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += j->seconds + 2 * min_i64(rank_told(), 10);
    pthread_mutex_lock(&j->lock);
    while (!j->joined && pthread_cond_timedwait(&j->wake, &j->lock, &until) != ETIMEDOUT) {
    }
    if (!j->joined) {
        oato_fail(&err, OATO_EDEVICE,
                  "not all ranks have joined within %d s: one has stopped or is another program; "
                  "OATO_MPI_WAIT allows more seconds",
                  j->seconds);
        j->on_lost(&err);
    }
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* transport->open, within so many seconds. */
static oato_status transport_open(struct collective *c, char host[TRANSPORT_HOST],
                                  void (*on_lost)(const struct oato_error *err),
                                  struct oato_error *err)
{
    struct joining j = {.on_lost = on_lost};
    const char *wanted = getenv("OATO_MPI_WAIT");
    int64_t seconds = JOIN_S;
    if (wanted && !parse_i64(wanted, 1, JOIN_MOST_S, &seconds))
        return oato_fail(err, OATO_EUSAGE, "OATO_MPI_WAIT is %.40s; it can be 1 to %d seconds",
                         wanted, JOIN_MOST_S);
    j.seconds = (int32_t)seconds;
    pthread_mutex_init(&j.lock, NULL);
    pthread_cond_init(&j.wake, NULL);
    const bool watched = on_lost && !pthread_create(&j.thread, NULL, join_watch, &j);
    const int failed = c->transport->open(&c->rank, &c->ranks, host);
    pthread_mutex_lock(&j.lock);
    j.joined = true;
    pthread_cond_signal(&j.wake);
    pthread_mutex_unlock(&j.lock);
    if (watched)
        pthread_join(j.thread, NULL);
    pthread_cond_destroy(&j.wake);
    pthread_mutex_destroy(&j.lock);
    return failed
               ? oato_fail(err, OATO_EDEVICE, "the ranks cannot be joined: %s", c->transport->why())
               : OATO_OK;
}

static oato_status ranks_join(struct collective *c, void (*on_lost)(const struct oato_error *err),
                              struct oato_error *err)
{
    char host[TRANSPORT_HOST] = "";
    if (transport_open(c, host, on_lost, err))
        return err->status;
    if (c->ranks > RANKS_MAX)
        return oato_fail(err, OATO_EUSAGE, "%d ranks; at most %d are possible", c->ranks,
                         RANKS_MAX);
    for (int i = 0; i < c->ranks; i++) /* until they tell */
        snprintf(c->host[i], sizeof c->host[i], "an unknown host");
    memcpy(c->host[c->rank], host, sizeof host);
    groups_single(c);
    c->sum = pages_alloc(SLOT_BYTES);
    c->others = pages_alloc((size_t)c->ranks * SLOT_BYTES);
    c->packed = pages_alloc(SLOT_BYTES);
    c->next = pages_alloc(SLOT_BYTES);
    if (!c->sum || !c->others || !c->packed || !c->next)
        return oato_fail_memory(err, SLOT_BYTES, "sums of ranks");
    if (watch_begin(c, on_lost, err) || hosts_exchange(c, err)) /* a rank may stop at once */
        return err->status;
    return collective_agree(c, sums_choose(c, err), err);
}

oato_status collective_open(struct collective **out, void (*on_lost)(const struct oato_error *err),
                            struct oato_error *err)
{
    const char *wanted = module_wanted();
    struct collective *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return oato_fail_memory(err, sizeof *c, "the ranks");
    c->ranks = 1;
    c->lost = -1;
    groups_single(c);
    oato_status status = wanted ? module_open(c, wanted, err) : OATO_OK;
    if (!status && c->transport)
        status = ranks_join(c, on_lost, err);
    if (status) {
        c->failed = true;
        collective_close(c);
        return status;
    }
    *out = c;
    return OATO_OK;
}

void collective_close(struct collective *c)
{
    if (!c)
        return;
    if (c->ranks > 1)
        program_closes("rank %d waits until the others have closed, too", c->rank);
    watch_end(c);
    if (c->shared)
        munmap(c->shared, c->shared_bytes);
    if (c->transport && !c->failed) {
        program_closes("rank %d leaves the others, by MPI_Finalize", c->rank);
        c->transport->close(); /* the module stays: MPI has threads and exit handlers of its own */
    }
    if (c->sum)
        pages_free(c->sum, SLOT_BYTES);
    if (c->others)
        pages_free(c->others, (size_t)c->ranks * SLOT_BYTES);
    if (c->packed)
        pages_free(c->packed, SLOT_BYTES);
    if (c->next)
        pages_free(c->next, SLOT_BYTES);
    free(c->bounce);
    if (c->told) { /* the launcher ends rank 0, too, when this one ends with an error */
        struct timespec left = {.tv_nsec = TELL_NS};
        RETRY(nanosleep(&left, &left));
    }
    free(c);
}

void collective_leave(struct collective *c, struct oato_error *err)
{
    const struct oato_error own = *err;
    if (c->ranks > 1 && !c->failed)
        oato_fail(err, own.status, "rank %d on %s: %.400s", c->rank, c->host[c->rank], own.text);
    c->failed = true;
}

/* ------------------------------------------------------------------------- agreement ------ */

struct verdict {
    int32_t rank; /* -1: all is well */
    oato_status status;
    char text[sizeof((struct oato_error *)0)->text];
};

/* Rank 0 hears all, in order, and tells everybody. */
static oato_status verdicts_exchange(struct collective *c, struct verdict *v,
                                     struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct verdict other;
    if (c->rank) {
        status = message_send(c, 0, v, sizeof *v, WAITS_EVER, err);
        return status ? status : message_receive(c, 0, v, sizeof *v, NULL, WAITS_EVER, err);
    }
    for (int i = 1; i < c->ranks && !status; i++) {
        status = message_receive(c, i, &other, sizeof other, NULL, WAITS_EVER, err);
        if (!status && v->rank < 0)
            *v = other;
    }
    for (int i = 1; i < c->ranks && !status; i++)
        status = message_send(c, i, v, sizeof *v, WAITS_EVER, err);
    return status;
}

oato_status collective_agree(struct collective *c, oato_status own, struct oato_error *err)
{
    struct verdict v = {.rank = own ? c->rank : -1, .status = own};
    struct oato_error lost;
    if (c->ranks == 1 || c->failed)
        return own;
    if (own)
        memcpy(v.text, err->text, sizeof v.text);
    if (verdicts_exchange(c, &v, &lost)) {
        if (!own)
            *err = lost;
        return own ? own : lost.status;
    }
    if (v.rank < 0)
        return OATO_OK;
    if (v.rank)
        oato_fail(err, v.status, "rank %d on %s: %.400s", v.rank, c->host[v.rank], v.text);
    else
        oato_fail(err, v.status, "%s", v.text);
    c->told = c->rank;
    if (c->told)
        err->text[0] = 0;
    return v.status;
}

oato_status collective_same(struct collective *c, const char *what, uint64_t value,
                            struct oato_error *err)
{
    uint64_t first = value;
    oato_status status = collective_agree(c, OATO_OK, err); /* until all are here */
    if (!status)
        status = collective_broadcast(c, &first, sizeof first, WAITS_AWAKE, err);
    if (c->failed)
        return status;
    if (!status && first != value)
        status = oato_fail(err, OATO_EFILE,
                           "its %s differs from that of rank 0; give all ranks the same", what);
    return collective_agree(c, status, err);
}
