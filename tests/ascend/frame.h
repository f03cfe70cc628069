/* frame.h - the first phase of an operator while it is being declared: frame.c and check.c. */
#ifndef STAND_FRAME_H
#define STAND_FRAME_H

#include "meta.h"

struct stand_call {
    const char *name;
    uint64_t *workspace_bytes;
    aclOpExecutor **executor;
    int code;    /* of the first fault */
    bool tiling; /* see stand_tiling */
    struct stand_work *work;
    int n, room;
    const void **operands;
    /* The names of views, for texts: by the address that the declaration returned is unknown, so
     * by what they are. */
    struct named {
        const char *name;
        struct stand_view view;
    } * views;
    int n_views;
};

/* Keeps the first fault. */
void call_fault(struct stand_call *, enum stand_rule rule, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The name with which a view was declared, or "operand". */
const char *call_name_of(const struct stand_call *, const struct stand_view *);

#endif
