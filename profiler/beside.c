/*
 * beside.c - what the other ranks of a host do while its first one measures operators: as in a step
 * of all of them, they compute, too. An operator that alone reads from the cache that they share,
 * or at the full rate of the memory, takes up to 1.4 times as long then.
 */
#include "profiler/profiler_internal.h"

#include <pthread.h>
#include <unistd.h>

struct busy {
    const struct model *model;
    const struct profiler_options *options;
    atomic_bool stop;
};

static void *busy_run(void *busy)
{
    struct busy *b = busy;
    struct oato_error ignored; /* then this rank rests */
    layers_repeat(b->model, b->options, &b->stop, &ignored);
    return NULL;
}

static bool has_other_cores(const struct collective *ranks, int32_t threads)
{
    int32_t host[RANKS_MAX];
    const int32_t rank = collective_rank(ranks);
    collective_hosts(ranks, host);
    return !host[rank] && threads > 0 && rank < sysconf(_SC_NPROCESSORS_ONLN) / threads;
}

/* From rank 0 to all. */
static oato_status measures_tell(struct collective *ranks, bool *measures, oato_status status,
                                 struct oato_error *err)
{
    status = collective_agree(ranks, status, err);
    return status ? status
                  : collective_broadcast(ranks, measures, sizeof *measures, WAITS_EVER, err);
}

oato_status beside_announce(struct collective *ranks, bool measures, oato_status status,
                            struct oato_error *err)
{
    return measures_tell(ranks, &measures, status, err);
}

oato_status beside_first(struct collective *ranks, const struct model *m,
                         const struct profiler_options *o, oato_status status,
                         struct oato_error *err)
{
    struct busy b = {.model = m, .options = o};
    bool measures = false;
    pthread_t thread;
    status = measures_tell(ranks, &measures, status, err);
    const bool busy = !status && measures && !gguf_header_only(m->gguf) &&
                      has_other_cores(ranks, o->threads) &&
                      !pthread_create(&thread, NULL, busy_run, &b);
    if (!status)
        status = collective_agree(ranks, OATO_OK, err);
    atomic_store(&b.stop, true);
    if (busy)
        pthread_join(thread, NULL);
    return status;
}
