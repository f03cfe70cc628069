/*
 * cuda_hang.c - how long a GPU may owe something. A kernel that does not end cannot be taken back,
 * and a driver that is asked to wait for it waits as long. So nothing here waits inside the driver:
 * whoever waits looks, again and again, and gives up when nothing has come for the limit. Then the
 * device has failed, and nothing is asked of its driver any more, which would wait for the kernel.
 *
 * The limit counts from the last thing that came, not from a step's begin: a long prompt may take
 * longer, as long as its pieces arrive. Once the user has interrupted the program, or the device is
 * being closed, it is shorter.
 */
#include "kernels/cuda/cuda_device.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum {
    LIMIT_S = 120, /* a step of 512 tokens of 70B is 72 TFLOP: about 10 s on the slowest cards */
    LEAVE_S = 5,
    CLOSE_S = 10,
    LOOKS = 2000, /* before each further one is preceded by a nap */
    NAP_NS = 20000,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of giving up */

oato_status cuda_limit_read(struct cuda_device *d, struct oato_error *err)
{
    const char *text = getenv("OATO_CUDA_STEP_LIMIT");
    char *end;
    const double s = text && *text ? strtod(text, &end) : LIMIT_S;
    if (text && *text && (*end || !(s >= 0 && s <= 1e6)))
        return oato_fail(err, OATO_EUSAGE,
                         "OATO_CUDA_STEP_LIMIT is '%.40s'; it can be a number of seconds up to a "
                         "million, or 0 for no limit",
                         text);
    d->limit_ns = (uint64_t)(s * 1e9);
    return OATO_OK;
}

void cuda_limit_close(struct cuda_device *d)
{
    const uint64_t most = CLOSE_S * UINT64_C(1000000000);
    d->limit_ns = d->limit_ns && d->limit_ns < most ? d->limit_ns : most;
}

bool cuda_hangs(struct cuda_device *d, struct cuda_patience *p, uint64_t progress)
{
    const uint64_t now = now_ns(), leave_ns = LEAVE_S * UINT64_C(1000000000);
    const bool interrupted = oato_interrupted;
    if (!p->since_ns || p->progress != progress || p->interrupted != interrupted)
        *p = (struct cuda_patience){now, progress, interrupted};
    const bool leaves = interrupted && (!d->limit_ns || leave_ns < d->limit_ns);
    const uint64_t limit = leaves ? leave_ns : d->limit_ns;
    if (!limit || now - p->since_ns <= limit)
        return false;
    pthread_mutex_lock(&lock); /* the queue's thread and another may both wait */
    if (!d->hung && leaves)
        oato_fail(&d->why_hung, OATO_EDEVICE,
                  "%s: a kernel is still running %d s after the interrupt; leaving the GPU as it "
                  "is",
                  d->far.id, LEAVE_S);
    else if (!d->hung)
        oato_fail(&d->why_hung, OATO_EDEVICE,
                  "%s: the GPU has been at the same work for %.3g s and is left as it is; look "
                  "for its error in the kernel's log (dmesg), or raise OATO_CUDA_STEP_LIMIT",
                  d->far.id, (double)limit * 1e-9);
    d->hung = true;
    d->cu = cuda_driver_none();
    pthread_mutex_unlock(&lock);
    return true;
}

cu_result cuda_stream_finish(struct cuda_device *d, cu_stream stream)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    struct cuda_patience p = {0};
    cu_result result;
    for (int looks = 0; (result = d->cu->stream_query(stream)) == CU_ERROR_NOT_READY; looks++) {
        if (cuda_hangs(d, &p, atomic_load(&d->filled)))
            return CU_ERROR_LAUNCH_TIMEOUT;
        if (looks < LOOKS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
    return result;
}
