/*
 * patience.c - see patience.h.
 */
#include "kernels/core/patience.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum {
    LIMIT_S = 120, /* a step of 512 tokens of 70B is 72 TFLOP: about 10 s on the slowest cards */
    LOOKS = 2000,  /* before each further one is preceded by a nap */
    NAP_NS = 20000,
};

oato_status patience_limit(const char *variable, uint64_t *limit_ns, struct oato_error *err)
{
    const char *text = getenv(variable);
    char *end;
    const double s = text && *text ? strtod(text, &end) : LIMIT_S;
    if (text && *text && (*end || !(s >= 0 && s <= 1e6)))
        return oato_fail(err, OATO_EUSAGE,
                         "%s is '%.40s'; it can be a number of seconds up to a million, or 0 for "
                         "no limit",
                         variable, text);
    *limit_ns = (uint64_t)(s * 1e9);
    return OATO_OK;
}

uint64_t patience_ends(struct patience *p, uint64_t progress, uint64_t limit_ns, bool *leaves)
{
    const uint64_t now = now_ns(), leave_ns = PATIENCE_LEAVE_S * UINT64_C(1000000000);
    const bool interrupted = oato_interrupted;
    if (!p->since_ns || p->progress != progress || p->interrupted != interrupted)
        *p = (struct patience){now, progress, interrupted};
    *leaves = interrupted && (!limit_ns || leave_ns < limit_ns);
    const uint64_t limit = *leaves ? leave_ns : limit_ns;
    return now - p->since_ns > limit ? limit : 0;
}

void patience_pause(int looks)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    if (looks < LOOKS)
        sched_yield();
    else
        nanosleep(&nap, NULL);
}
