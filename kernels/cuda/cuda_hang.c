/*
 * cuda_hang.c - how long a GPU may owe something. A kernel that does not end cannot be taken back,
 * and a driver that is asked to wait for it waits as long. So nothing here waits inside the driver:
 * whoever waits looks, again and again, and gives up when nothing has come for the limit. Then the
 * device has failed, and nothing is asked of its driver any more, which would wait for the kernel.
 * While the device is being closed, the limit is shorter.
 */
#include "kernels/cuda/cuda_device.h"

enum { CLOSE_S = 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of giving up */

void cuda_limit_close(struct cuda_device *d)
{
    const uint64_t most = CLOSE_S * UINT64_C(1000000000);
    d->limit_ns = d->limit_ns && d->limit_ns < most ? d->limit_ns : most;
}

bool cuda_hangs(struct cuda_device *d, struct patience *p, uint64_t progress)
{
    bool leaves;
    const uint64_t limit = patience_ends(p, progress, d->limit_ns, &leaves);
    if (!limit)
        return false;
    pthread_mutex_lock(&lock); /* the queue's thread and another may both wait */
    if (!d->hung && leaves)
        oato_fail(&d->why_hung, OATO_EDEVICE,
                  "%s: a kernel is still running %d s after the interrupt; leaving the GPU as it "
                  "is",
                  d->far.id, PATIENCE_LEAVE_S);
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
    struct patience p = {0};
    cu_result result;
    for (int looks = 0; (result = d->cu->stream_query(stream)) == CU_ERROR_NOT_READY; looks++) {
        if (cuda_hangs(d, &p, atomic_load(&d->filled)))
            return CU_ERROR_LAUNCH_TIMEOUT;
        patience_pause(looks);
    }
    return result;
}
