/*
 * runtime.h - what the files of the stand-in's runtime share: devices, regions of memory, objects,
 * streams of tasks. Everything is guarded by the lock of stand_enter.
 */
#ifndef STAND_RUNTIME_H
#define STAND_RUNTIME_H

#include "rules.h"

void stand_lock(void);
void stand_unlock(void);

/* --- devices and threads (device.c) --- */

enum { DEVICES = 16 };

struct device {
    bool used;              /* set by some thread */
    int64_t sets;           /* calls of aclrtSetDevice that no aclrtResetDevice has undone */
    uint64_t memory, taken; /* bytes */
    int died;               /* the code with which a task ended it, else 0 */
    bool peer[DEVICES];     /* may copy to and from */
};
extern struct device devices[DEVICES];

struct thread {
    uint64_t life, number; /* of the runtime that it belongs to; its own */
    int device;            /* -1: none set */
    aclmdlRICaptureMode mode;
};
STAND_API struct thread *stand_thread(void);
int device_count(void);
/* Reads the environment at the first call. */
void runtime_start(void);
bool runtime_is_initialised(void);

/* --- objects: handles that can be told from garbage (objects.c) --- */

enum stand_kind {
    KIND_STREAM = 1,
    KIND_EVENT,
    KIND_GRAPH,
    KIND_PHYSICAL,
    KIND_TENSOR,
    KIND_SCALAR,
    KIND_INT_ARRAY,
    KIND_FLOAT_ARRAY,
    KIND_BOOL_ARRAY,
    KIND_TENSOR_LIST,
    KIND_EXECUTOR,
    KINDS
};

/* Zeroed, its address in use by no other object, live or lately destroyed. */
STAND_API void *stand_object_new(enum stand_kind kind, size_t bytes);
/* 0, or the code of the broken rule: not live, or of another kind. `symbol` is for the text. */
STAND_API int stand_object_check(const void *object, enum stand_kind kind, const char *symbol);
/* Destroyed lately. */
STAND_API bool stand_object_was(const void *object, enum stand_kind kind);
STAND_API bool stand_object_is_live(const void *object, enum stand_kind kind);
/* Destroyed: its memory stays readable for a while. Broken rules as above. */
STAND_API int stand_object_end(const void *object, enum stand_kind kind, const char *symbol);
int64_t objects_live(enum stand_kind kind);
const char *objects_kind_name(enum stand_kind kind);
void objects_each(enum stand_kind kind, void (*visit)(void *object, void *context), void *context);
void objects_reset(void);

/* --- memory (memory.c) --- */

/* An allocation. The client's addresses [base, base + bytes) are unreadable; the stand-in reads
 * and writes the same bytes at alias. Of the host: base == alias, device -1. */
struct stand_region {
    uint8_t *base, *alias;
    size_t bytes; /* of a reserved range: those that are mapped */
    int device;
    bool freed;
    bool blamed;   /* a rule was already broken by freeing it */
    bool reserved; /* by aclrtReserveMemAddress */
    size_t reserved_bytes;
    struct segment *segment;
};

/* The region that holds an address, freed ones included; NULL: none of the stand-in's. A device's
 * guard bytes belong to the region before them. */
STAND_API struct stand_region *stand_region_of(const void *address);
/* The address belongs to a device, allocated or not. */
STAND_API bool stand_is_device_address(const void *address);
/* The alias of n bytes of live memory, device or host. NULL with *fault (and *rule) set otherwise.
 * Memory that no one allocated here is taken for the host's. */
STAND_API uint8_t *stand_alias(const void *address, size_t n, enum stand_rule *rule,
                               const char **fault);
/* Address space without memory, `bytes` 0 so far; NULL: none. Released with what is mapped in it.
 */
struct stand_region *region_reserve(int device, size_t bytes, size_t alignment);
void region_release(struct stand_region *);
int64_t regions_live(int64_t *bytes, int64_t *host);
void regions_reset(void);

/* --- streams and tasks (stream.c) --- */

struct access {
    const uint8_t *from;
    size_t bytes;
    bool write, workspace;
    bool sparse; /* a strided view: what lies between its elements is not touched */
};

/* What a task does; shared by executors, tasks and graphs. */
struct stand_work {
    int refs;
    const char *name; /* a literal */
    stand_kernel *kernel;
    void *state;
    int n_accesses;
    struct access *accesses;
    void *kept; /* freed with the work */
};
STAND_API struct stand_work *stand_work_new(const char *name, stand_kernel *kernel,
                                            const void *state, size_t state_bytes);
STAND_API void stand_work_access(struct stand_work *, const void *from, size_t bytes, bool write,
                                 bool workspace, bool sparse);
STAND_API void stand_work_free(struct stand_work *); /* gives back one reference */

enum { STREAMS = 128 }; /* at a time */

/* Of each stream, the number of its last task that is known to come before. */
struct clock {
    uint64_t seen[STREAMS];
};

enum task_kind { TASK_WORK, TASK_COPY, TASK_SET, TASK_RECORD, TASK_WAIT, TASK_RESET, TASK_GRAPH };

struct task {
    struct task *next;
    enum task_kind kind;
    uint64_t number; /* in its stream, from 1 */
    bool asked;      /* whether an injected error ends it */
    struct stand_work *work;
    struct event *event;
    uint64_t record; /* which record of the event */
    struct graph *graph;
    void *to; /* of copies and sets; the workspace of a work */
    const void *from;
    size_t bytes;
    int value;
    bool summed;
    uint64_t sum; /* of the host's source when the copy was given */
};

struct stream {
    int slot, device;
    struct task *first, **last;
    uint64_t numbers; /* given to tasks */
    double ns;        /* declared time at which its last task ended */
    int failed;
    bool hung;
    struct clock clock;
    struct capture *capture;
};

struct event {
    uint32_t flags;
    bool by_reset;          /* of aclrtCreateEventWithFlag: recorded again only after a reset */
    bool by_ex;             /* of aclrtCreateEventExWithFlag: complete while never recorded */
    bool reset_given;       /* since the last record, in the client's order */
    bool reset;             /* has run */
    uint64_t records, done; /* records given, the last that ran */
    double ns;
    int users; /* pending tasks that name it */
    int device;
    struct clock clock;
    struct capture *capture;
};

/* Tasks in the order in which they were captured. */
struct graph {
    struct task *first, **last;
    int runs; /* pending */
    int device;
};

struct capture {
    struct stream *origin;
    struct graph *graph;
    aclmdlRICaptureMode mode;
    uint64_t thread;
    bool invalid;
    struct capture *next;
};

struct task *task_new(enum task_kind);
void task_free(struct task *);
void task_each_access(const struct task *, void (*visit)(const struct access *, void *), void *);
/* Live, of the thread's device, not failed: 0 or a code. */
STAND_API int stand_stream_check(void *stream, const char *symbol);
/* A task at the stream's end, or in the graph that the stream is captured into; takes the task. */
int stream_put(struct stream *, struct task *);
/* Runs one task towards the end of that stream; false where none can run. */
bool stream_step(struct stream *);
/* Until the stream, or that record of an event, has run: 0, the code of a death, or a timeout
 * after `timeout_ms` where it hangs (-1: never returns). */
int stream_finish(struct stream *, int timeout_ms);
int event_finish(struct event *, int timeout_ms);
int streams_finish(int device);
/* The stream in which a record of the event is pending, or NULL. */
struct stream *event_pending_in(const struct event *, uint64_t record);
/* The strongest use of these bytes by a pending task. `loosely`: what lies between the elements of
 * a strided view counts, too. */
enum use { USE_NONE, USE_READ, USE_WRITE };
enum use pending_use(const void *from, size_t bytes, bool loosely, bool *workspace);
void streams_reset(void);
bool clock_covers(const struct clock *, int slot, uint64_t number);
void clock_join(struct clock *, const struct clock *);

/* For the second phase of an operator: adds a reference to the work. */
STAND_API int stand_put_work(void *stream, struct stand_work *, void *workspace,
                             size_t workspace_bytes);
STAND_API int stand_stream_device(const void *stream);

/* --- run.c, copy.c, graph.c --- */

struct stand_run {
    int device, code;
    const char *name;
    struct scratch *scratch;
};
/* Runs what a task does, events excepted; adds the declared time. 0 or a code. */
int task_run(struct task *, int device, double *ns);
const char *task_name(const struct task *);
int copy_run(const struct task *);
bool capture_forbids(const struct thread *);
bool captures_on(int device);
/* Takes the task. */
void capture_put(struct capture *, struct stream *, struct task *);
/* Joins a stream to a capture where it waits for an event captured there. */
void capture_follow(struct stream *, const struct event *);
void captures_reset(void);

#endif
