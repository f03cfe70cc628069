/*
 * cuda_nccl.c - GPUs of several ranks exchange values by NVIDIA's NCCL. The library is opened once
 * for the process and never closed; a device joins the ranks once, with its primary context, which
 * the CUDA runtime inside the library uses, too. Messages are queued on the device's stream like
 * kernels, so nothing waits on the host.
 *
 * A rank that stops leaves kernels of the others waiting for ever; the watch of the ranks
 * (ranks/watch.c) ends these processes.
 */
#include "kernels/cuda/cuda_device.h"
#include "kernels/ranks/collective.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { NCCL_OLDEST = 20700 }; /* 2.7.0: the first one with messages */

static struct {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define MEMBER(member, symbol, arguments) nccl_status(*member) arguments;
    CUDA_NCCL_FUNCTIONS(MEMBER)
#undef MEMBER
    const char *(*text)(nccl_status status);
} nccl;
static struct oato_error why_not; /* OATO_OK: it is open */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------------------ library --- */

static void *find_library(struct oato_error *err)
{
    static const struct cuda_library library = {"NCCL", "libnccl.so", "OATO_CUDA_NCCL", false, 2};
    const char *name = getenv(library.variable), *driver_name = getenv("OATO_CUDA_DRIVER");
    if (driver_name && *driver_name && (!name || !*name)) {
        oato_fail(err, OATO_EDEVICE, "NCCL works with NVIDIA's driver only");
        return NULL;
    }
    return cuda_library_open(&library, 0, err);
}

static void open_library(void)
{
    int version = 0;
    why_not.status = OATO_OK;
    void *found = find_library(&why_not);
    if (!found)
        return;
#define LOAD(member, symbol, arguments)                                                            \
    if (!(*(void **)&nccl.member = dlsym(found, symbol)))                                          \
        oato_fail(&why_not, OATO_EDEVICE, "NCCL has no %s; install 2.7 or newer", symbol);
    CUDA_NCCL_FUNCTIONS(LOAD)
    LOAD(text, CUDA_NCCL_TEXT, )
#undef LOAD
    if (!why_not.status && (nccl.get_version(&version) || version < NCCL_OLDEST))
        oato_fail(&why_not, OATO_EDEVICE, "NCCL is too old; install 2.7 or newer");
}

static oato_status nccl_fail(const struct cuda_device *d, nccl_status status, const char *doing,
                             struct oato_error *err)
{
    return oato_fail(err, OATO_EDEVICE, "%s: %s: NCCL: %s; NCCL_DEBUG=WARN says more", d->far.id,
                     doing, nccl.text(status));
}

/* ------------------------------------------------------------------------------- ranks ---- */

/* Rank 0's id makes the others its companions. All wait for each other here. */
static oato_status join(struct cuda_device *d, struct collective *ranks, struct oato_error *err)
{
    nccl_id id = {{0}};
    const int32_t rank = collective_rank(ranks);
    nccl_status failure = rank ? NCCL_OK : nccl.make_id(&id);
    oato_status status = failure ? nccl_fail(d, failure, "joining the ranks", err) : OATO_OK;
    status = collective_agree(ranks, status, err);
    if (!status)
        status = collective_broadcast(ranks, &id, sizeof id, WAITS_EVER, err);
    if (status)
        return status;
    cuda_enter(d);
    failure = nccl.join(&d->ranks, collective_ranks(ranks), id, rank);
    if (!failure)
        return OATO_OK;
    d->ranks = NULL;
    return nccl_fail(d, failure, "joining the ranks", err);
}

oato_status cuda_join_ranks(struct oato_device *base, struct collective *ranks,
                            struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    pthread_once(&once, open_library);
    if (why_not.status)
        *err = why_not;
    const oato_status status = collective_agree(ranks, why_not.status, err);
    return status || d->ranks ? status : collective_agree(ranks, join(d, ranks, err), err);
}

/* All leave together. After a failure the others are lost, and this process ends, too. */
void cuda_nccl_close(struct cuda_device *d)
{
    if (!d->ranks)
        return;
    cuda_enter(d);
    if (!d->hung && !atomic_load(&d->far.queue.timeline.failed))
        nccl.leave(d->ranks);
    d->ranks = NULL;
}

/* ------------------------------------------------------------------------------ records --- */

static bool is_swap_of(const struct program_record *r, uint32_t value)
{
    return r->kind == RECORD_SWAP && r->value == value;
}

oato_status cuda_swap(struct cuda_device *d, const struct compiled *c, uint32_t index, int32_t rows,
                      struct oato_error *err)
{
    const struct program *p = c->program;
    const struct program_record *r = &p->records[index], *end = &p->records[p->n_records];
    uint8_t *arena = p->arena;
    const size_t n = (size_t)rows * (size_t)r->op.n;
    if (index && is_swap_of(r - 1, r->value))
        return OATO_OK;
    if (!d->ranks)
        return oato_fail(err, OATO_EDEVICE, "%s: has not joined other ranks", d->far.id);
    nccl_status failure = nccl.group_begin();
    for (uint32_t value = r->value; r < end && is_swap_of(r, value) && !failure; r++) {
        if (r->n_in)
            failure =
                nccl.send(arena + r->in[0], n, NCCL_FLOAT32, r->peer, d->ranks, d->queue.stream);
        if (r->n_out && !failure)
            failure = nccl.receive(arena + r->out[0], n, NCCL_FLOAT32, r->peer, d->ranks,
                                   d->queue.stream);
    }
    const nccl_status ended = nccl.group_end();
    failure = failure ? failure : ended;
    return failure ? nccl_fail(d, failure, "exchanging a value with other ranks", err) : OATO_OK;
}
