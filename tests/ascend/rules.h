/*
 * rules.h - the rules of the stand-in, and what every entry of AscendCL does first. A broken rule
 * is counted, reported by name and kept as the thread's error text, so that a test can say which
 * rule caught a mistake.
 */
#ifndef STAND_RULES_H
#define STAND_RULES_H

#include "acl/acl.h"
#include "stand.h"

enum stand_rule {
    RULE_INITIALISE,      /* aclInit before all else */
    RULE_INITIALISE_ONCE, /* aclInit once, aclFinalize once */
    RULE_DEVICE_ID,
    RULE_DEVICE_SET, /* each thread sets its device */
    RULE_ARGUMENT,   /* of the runtime: null results, sizes of 0, flags */
    RULE_HANDLE,     /* a live object of the right kind */
    RULE_DOUBLE_DESTROY,
    RULE_DOUBLE_FREE,
    RULE_FREE_KIND, /* device memory by aclrtFree, host memory by aclrtFreeHost */
    RULE_COPY_KIND,
    RULE_COPY_BOUNDS,
    RULE_BOUNDS,         /* an operator stays inside the allocation */
    RULE_USE_AFTER_FREE, /* a task of freed memory */
    RULE_FREED_IN_USE,   /* memory is freed after the stream has run */
    RULE_SYNCHRONISE,    /* the host touches what a pending task uses only after it */
    RULE_SOURCE_KEPT,    /* the source of an asynchronous copy stays as it is until it ran */
    RULE_ORDER,          /* streams that share memory are ordered by events */
    RULE_STREAM_DEVICE,  /* a stream is used on its device */
    RULE_STREAM_BUSY,    /* a stream is destroyed empty */
    RULE_EVENT_RECORDED, /* waits and times need a record */
    RULE_EVENT_REUSED,   /* reset before the next record, where it was made so */
    RULE_EVENT_FLAGS,    /* waits, resets and times need events made for them */
    RULE_EVENT_TIME,     /* elapsed times need complete events */
    RULE_EVENT_LIMIT,
    RULE_PEER_ACCESS,
    RULE_CAPTURE_CALL,      /* no waiting, no copy that waits, while capturing */
    RULE_CAPTURE_PAIR,      /* begin and end match, forks are joined */
    RULE_GRAPH_BUSY,        /* a graph is destroyed after it ran */
    RULE_EXECUTOR_ONCE,     /* one launch for each first phase */
    RULE_EXECUTOR_OPERATOR, /* by the same operator's second phase */
    RULE_TENSOR_KEPT,       /* operands live until the second phase */
    RULE_WORKSPACE_SIZE,
    RULE_WORKSPACE_FREED,   /* only after the stream has run */
    RULE_WORKSPACE_APART,   /* overlaps no operand */
    RULE_OPERAND_NULL,      /* 161001 */
    RULE_OPERAND_ADDRESS,   /* of the stream's device */
    RULE_OPERAND_ALIGNMENT, /* 32 bytes */
    RULE_OPERAND_TYPE,
    RULE_OPERAND_SHAPE,
    RULE_OPERAND_STORAGE, /* a view lies inside its storage */
    RULE_OPERAND_VALUE,   /* an index in range */
    RULE_CHIP,            /* 561003, 207000: the chip has it */
    RULES
};

/* What an entry needs (flags of stand_enter). */
enum {
    NEEDS_INIT = 1,
    NEEDS_DEVICE = 2 | NEEDS_INIT,
    NEEDS_NO_CAPTURE = 4, /* refused while a capture forbids it */
    NEEDS_HEALTH = 8      /* refused once the thread's device has died */
};

/* Takes the stand-in's lock, which stand_leave gives back whatever this returns. The code is 0, or
 * that of an injected error or of a need not met. Nested calls are allowed. */
STAND_API int stand_enter(const char *symbol, unsigned needs);
STAND_API int stand_leave(int code);
/* Counts a broken rule, reports it and keeps the text; the code, which a reader of the caller sees.
 */
#define stand_break(rule, code, ...) stand_code(stand_count_broken(rule, code, __VA_ARGS__), code)
/* An error that is no mistake of the client (out of memory, injected): text and code, not counted.
 */
#define stand_error(code, ...) stand_code(stand_keep_error(code, __VA_ARGS__), code)
STAND_API int stand_count_broken(enum stand_rule rule, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
STAND_API int stand_keep_error(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline int stand_code(int told, int code)
{
    (void)told;
    return code;
}

/* The injected end of a task that is about to run: 0, a code, or INJECTED_HANG. */
enum { INJECTED_HANG = -1 };
int injected_end(const char *task);
void injections_read(void);

/* The setting, or NULL; and as a number with k, M, G. */
const char *setting(const char *name);
uint64_t setting_bytes(const char *name, uint64_t otherwise);

/* A line for the report. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void rules_reset(void);
/* The rules that were broken, to the report. */
void rules_report(void);

#endif
