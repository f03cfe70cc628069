/*
 * budget.c - the work and memory that one request may still take.
 */
#include "base/base.h"

oato_status budget_spend(struct budget *b, uint64_t steps, size_t bytes, const char *what,
                         struct oato_error *err)
{
    if (!b)
        return OATO_OK;
    if (b->cancelled && b->cancelled(b->user))
        return oato_fail(err, OATO_EUSAGE, "%s: the request was cancelled", what);
    const bool work = steps > b->steps, room = bytes > b->bytes;
    b->steps -= work ? b->steps : steps;
    b->bytes -= room ? b->bytes : bytes;
    if (work || room)
        return oato_fail(err, OATO_EUSAGE,
                         "%s needs more %s than one request may take; make it smaller", what,
                         work ? "work" : "memory");
    return OATO_OK;
}
