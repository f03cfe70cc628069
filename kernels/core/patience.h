/*
 * patience.h - how long a device may owe something, where its driver would wait for ever: whoever
 * waits looks, again and again, and gives up when nothing has come for the limit. That counts from
 * the last thing that came, not from a step's begin: a long prompt may take longer, as long as its
 * pieces arrive. Once the user has interrupted the program it is shorter. For the folders of
 * kernels/, not for other rooms.
 */
#ifndef OATO_CORE_PATIENCE_H
#define OATO_CORE_PATIENCE_H

#include "base/base.h"

enum { PATIENCE_LEAVE_S = 5 }; /* the most after an interrupt */

/* How long something has been owed; zeros: nothing yet. */
struct patience {
    uint64_t since_ns, progress;
    bool interrupted;
};

/* The limit that a variable of the environment gives in seconds, by default 120 s; 0: for ever.
 * OATO_EUSAGE: it is no such number. */
oato_status patience_limit(const char *variable, uint64_t *limit_ns, struct oato_error *err);
/* Called again and again by who waits. The limit in ns, if `progress` has been the same for longer,
 * and whether it is the one of an interrupt; 0: not yet. */
uint64_t patience_ends(struct patience *p, uint64_t progress, uint64_t limit_ns, bool *leaves);
/* Between two looks, the looks-th from 0 and the next: another thread gets the core, later a nap.
 */
void patience_pause(int looks);

#endif
