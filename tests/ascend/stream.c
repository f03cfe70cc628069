/*
 * stream.c - streams of tasks. Nothing runs until the client waits for something; then, in the
 * order that STAND_ORDER names, only what the wait needs. So what a client forgot to wait for has
 * not happened. Beside that, vector clocks tell whether two streams that use the same bytes are
 * ordered by events, whatever the order in which they happen to run.
 */
#include "control.h"
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct stream *streams[STREAMS];
static uint64_t numbers[STREAMS]; /* last number of a slot: clocks outlive streams */
static uint64_t random_state;
static struct stream *defaults[DEVICES]; /* what NULL stands for, from its first use on */

enum order { ORDER_LATE, ORDER_OTHERS, ORDER_RANDOM, ORDER_EAGER };

static enum order order_now(void)
{
    const char *name = setting("STAND_ORDER");
    if (!name)
        return ORDER_LATE;
    return strcmp(name, "others") == 0   ? ORDER_OTHERS
           : strcmp(name, "random") == 0 ? ORDER_RANDOM
           : strcmp(name, "eager") == 0  ? ORDER_EAGER
                                         : ORDER_LATE;
}

static uint64_t random_next(void)
{
    if (!random_state)
        random_state = setting_bytes("STAND_SEED", 1) * 2 + 1;
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random_state >> 33;
}

bool clock_covers(const struct clock *clock, int slot, uint64_t number)
{
    return clock->seen[slot] >= number;
}

void clock_join(struct clock *to, const struct clock *from)
{
    for (int i = 0; i < STREAMS; i++)
        if (from->seen[i] > to->seen[i])
            to->seen[i] = from->seen[i];
}

/* --- tasks --- */

struct task *task_new(enum task_kind kind)
{
    struct task *task = calloc(1, sizeof *task);
    if (!task)
        abort();
    task->kind = kind;
    return task;
}

void task_free(struct task *task)
{
    if (task->work)
        stand_work_free(task->work);
    if (task->graph)
        task->graph->runs--;
    if (task->event)
        task->event->users--;
    free(task);
}

struct stand_work *stand_work_new(const char *name, stand_kernel *kernel, const void *state,
                                  size_t state_bytes)
{
    struct stand_work *work = calloc(1, sizeof *work);
    if (!work || !(work->state = malloc(state_bytes ? state_bytes : 1)))
        abort();
    work->refs = 1;
    work->name = name;
    work->kernel = kernel;
    if (state_bytes)
        memcpy(work->state, state, state_bytes);
    return work;
}

void stand_work_access(struct stand_work *work, const void *from, size_t bytes, bool write,
                       bool workspace, bool sparse)
{
    struct access *grown = realloc(work->accesses, (size_t)(work->n_accesses + 1) * sizeof *grown);
    if (!grown)
        abort();
    work->accesses = grown;
    grown[work->n_accesses++] = (struct access){from, bytes, write, workspace, sparse};
}

void stand_work_free(struct stand_work *work)
{
    if (--work->refs)
        return;
    while (work->kept) {
        void **kept = work->kept;
        work->kept = *kept;
        free(kept);
    }
    free(work->state);
    free(work->accesses);
    free(work);
}

void task_each_access(const struct task *task, void (*visit)(const struct access *, void *),
                      void *context)
{
    if (task->kind == TASK_WORK) {
        for (int i = 0; i < task->work->n_accesses; i++)
            visit(&task->work->accesses[i], context);
        if (task->to)
            visit(&(struct access){task->to, task->bytes, true, true, false}, context);
    } else if (task->kind == TASK_COPY || task->kind == TASK_SET) {
        visit(&(struct access){task->to, task->bytes, true, false, false}, context);
        if (task->kind == TASK_COPY)
            visit(&(struct access){task->from, task->bytes, false, false, false}, context);
    } else if (task->kind == TASK_GRAPH) {
        for (const struct task *t = task->graph->first; t; t = t->next)
            task_each_access(t, visit, context);
    }
}

/* --- who uses what --- */

struct search {
    const struct access *access; /* looked for */
    bool loosely;
    enum use use;
    bool workspace;
};

static void search_visit(const struct access *a, void *context)
{
    struct search *search = context;
    const struct access *b = search->access;
    uintptr_t from = (uintptr_t)a->from, other = (uintptr_t)b->from;
    if (from >= other + b->bytes || other >= from + a->bytes)
        return;
    if (!search->loosely && (a->sparse || b->sparse))
        return;
    enum use use = a->write ? USE_WRITE : USE_READ;
    if (use > search->use)
        search->use = use;
    search->workspace = search->workspace || a->workspace;
}

enum use pending_use(const void *from, size_t bytes, bool loosely, bool *workspace)
{
    const struct access access = {from, bytes, false, false, false};
    struct search search = {&access, loosely, USE_NONE, false};
    for (int i = 0; i < STREAMS; i++)
        for (const struct task *t = streams[i] ? streams[i]->first : NULL; t; t = t->next)
            task_each_access(t, search_visit, &search);
    if (workspace)
        *workspace = search.workspace;
    return search.use;
}

struct races {
    const struct stream *stream;
    int found;
};

/* Another stream's pending tasks that use this and are not known to come before. */
static void race_visit(const struct access *access, void *context)
{
    struct races *races = context;
    for (int i = 0; i < STREAMS; i++) {
        const struct stream *other = streams[i];
        if (!other || other == races->stream)
            continue;
        for (const struct task *t = other->first; t; t = t->next) {
            if (clock_covers(&races->stream->clock, i, t->number))
                continue;
            struct search search = {access, false, USE_NONE, false};
            task_each_access(t, search_visit, &search);
            races->found += search.use == USE_WRITE || (search.use && access->write);
        }
    }
}

/* --- streams --- */

static void begin(struct stream *stream, int slot)
{
    stream->slot = slot;
    stream->device = stand_thread()->device;
    stream->last = &stream->first;
    stream->numbers = stream->clock.seen[slot] = numbers[slot];
    streams[slot] = stream;
}

static int free_slot(void)
{
    int slot = 0;
    while (slot < STREAMS && streams[slot])
        slot++;
    return slot;
}

void *stand_stream(void *handle)
{
    int device = stand_thread()->device;
    if (handle || device < 0)
        return handle;
    int slot = free_slot();
    if (!defaults[device] && slot < STREAMS) {
        defaults[device] = calloc(1, sizeof *defaults[device]);
        if (!defaults[device])
            abort();
        begin(defaults[device], slot);
    }
    return defaults[device];
}

static bool is_default(const void *stream)
{
    for (int i = 0; i < DEVICES; i++)
        if (stream && stream == defaults[i])
            return true;
    return false;
}

int stand_stream_check(void *handle, const char *symbol)
{
    if (is_default(handle) && capture_forbids(stand_thread()))
        return stand_break(RULE_CAPTURE_CALL, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
                           "%s: on the default stream while a stream is captured", symbol);
    int code = is_default(handle) ? 0 : stand_object_check(handle, KIND_STREAM, symbol);
    if (code)
        return code;
    const struct stream *stream = handle;
    if (stream->device != stand_thread()->device)
        return stand_break(RULE_STREAM_DEVICE, ACL_ERROR_RT_STREAM_CONTEXT,
                           "%s: a stream of device %d in a thread of device %d", symbol,
                           stream->device, stand_thread()->device);
    return stream->failed ? stand_error(stream->failed, "EZ9999: %s: the stream has failed", symbol)
                          : 0;
}

int stand_stream_device(const void *stream)
{
    return ((const struct stream *)stream)->device;
}

static void run_eagerly(struct stream *stream)
{
    enum order order = order_now();
    if (order == ORDER_EAGER)
        while (stream_step(stream))
            ;
    else if (order == ORDER_RANDOM && random_next() % 2)
        for (uint64_t n = random_next() % 4; n--;)
            stream_step(stream);
}

int stream_put(struct stream *stream, struct task *task)
{
    struct event *event = task->event;
    if (event)
        event->users++;
    if (task->graph)
        task->graph->runs++;
    if (event && task->kind == TASK_WAIT && event->capture)
        capture_follow(stream, event);
    task->number = ++stream->numbers;
    numbers[stream->slot] = task->number;
    if (event && task->kind == TASK_WAIT) {
        clock_join(&stream->clock, &event->clock);
        task->record = event->records;
    }
    if (!stream->capture) {
        struct races races = {stream, 0};
        task_each_access(task, race_visit, &races);
        if (races.found)
            stand_break(RULE_ORDER, 0,
                        "%s uses memory of another stream's task without waiting for it",
                        task_name(task));
    }
    stream->clock.seen[stream->slot] = task->number;
    if (event && task->kind == TASK_RECORD) {
        task->record = ++event->records;
        event->clock = stream->clock;
        event->capture = stream->capture;
    }
    if (stream->capture) {
        capture_put(stream->capture, stream, task);
        return 0;
    }
    task->next = NULL;
    *stream->last = task;
    stream->last = &task->next;
    run_eagerly(stream);
    return stream->failed;
}

int stand_put_work(void *stream, struct stand_work *work, void *workspace, size_t bytes)
{
    struct task *task = task_new(TASK_WORK);
    task->work = work;
    work->refs++;
    task->to = bytes ? workspace : NULL;
    task->bytes = bytes;
    return stream_put(stream, task);
}

static void pop(struct stream *stream)
{
    struct task *task = stream->first;
    stream->first = task->next;
    if (!stream->first)
        stream->last = &stream->first;
    task_free(task);
}

static void drop(struct stream *stream)
{
    while (stream->first)
        pop(stream);
}

/* A device dies with all its streams. */
static void die(int device, int code)
{
    devices[device].died = code;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i] && streams[i]->device == device) {
            streams[i]->failed = code;
            drop(streams[i]);
        }
}

struct stream *event_pending_in(const struct event *event, uint64_t record)
{
    for (int i = 0; i < STREAMS; i++)
        for (const struct task *t = streams[i] ? streams[i]->first : NULL; t; t = t->next)
            if (t->kind == TASK_RECORD && t->event == event && t->record == record)
                return streams[i];
    return NULL;
}

bool stream_step(struct stream *stream)
{
    struct task *task = stream->first;
    if (!task || stream->hung)
        return false;
    int code = 0;
    if (!task->asked) {
        task->asked = true;
        code = injected_end(task_name(task));
    }
    if (code == INJECTED_HANG) {
        stream->hung = true;
        report("hang: %s", task_name(task));
        return false;
    }
    struct event *event = task->event;
    if (!code && task->kind == TASK_WAIT && event->done < task->record) {
        struct stream *other = event_pending_in(event, task->record);
        if (other && other != stream)
            return stream_step(other);
        /* The record was dropped with a device that died: what waits for it never runs. */
        stream->hung = true;
        return false;
    }
    if (code) {
        stand_error(code, "EZ9999: %s: injected error on device %d", task_name(task),
                    stream->device);
    } else if (task->kind == TASK_WAIT) {
        stream->ns = event->ns > stream->ns ? event->ns : stream->ns;
    } else if (task->kind == TASK_RECORD) {
        event->done = task->record > event->done ? task->record : event->done;
        event->ns = stream->ns;
        event->reset = false;
    } else if (task->kind == TASK_RESET) {
        event->reset = true;
    } else {
        code = task_run(task, stream->device, &stream->ns);
    }
    if (code)
        die(stream->device, code);
    else
        pop(stream);
    return true;
}

static bool step_others(const struct stream *but)
{
    bool any = false;
    for (int i = 0; i < STREAMS; i++)
        while (streams[i] && streams[i] != but && stream_step(streams[i]))
            any = true;
    return any;
}

/* One step towards what a wait needs: in the order of STAND_ORDER, `wanted` last or only. */
static bool step_towards(struct stream *wanted)
{
    switch (order_now()) {
    case ORDER_OTHERS: return step_others(wanted) || stream_step(wanted);
    case ORDER_RANDOM: {
        struct stream *any = streams[random_next() % STREAMS];
        return (any && stream_step(any)) || stream_step(wanted);
    }
    case ORDER_LATE:
    case ORDER_EAGER: break;
    }
    return stream_step(wanted);
}

/* Nothing moves any more: the client waits, in vain. */
static int wait_in_vain(int timeout_ms, int code)
{
    struct timespec pause = {0, 5000000};
    uint64_t life = stand_thread()->life;
    for (int ms = 0; timeout_ms < 0 || ms < timeout_ms; ms += 5) {
        stand_unlock();
        nanosleep(&pause, NULL);
        stand_lock();
        if (stand_thread()->life != life)
            break;
    }
    return stand_error(code, "EZ9999: the stream did not end in %d ms", timeout_ms);
}

int stream_finish(struct stream *stream, int timeout_ms)
{
    while (stream->first && !stream->failed)
        if (!step_towards(stream))
            return wait_in_vain(timeout_ms, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    return stream->failed;
}

int event_finish(struct event *event, int timeout_ms)
{
    uint64_t record = event->records;
    while (event->done < record) {
        struct stream *in = event_pending_in(event, record);
        if (!in)
            return devices[event->device].died;
        if (!step_towards(in))
            return wait_in_vain(timeout_ms, ACL_ERROR_RT_EVENT_SYNC_TIMEOUT);
    }
    return 0;
}

int streams_finish(int device)
{
    int code = 0;
    for (int i = 0; i < STREAMS && !code; i++)
        if (streams[i] && streams[i]->device == device)
            code = stream_finish(streams[i], -1);
    return code;
}

int64_t stand_pending(void)
{
    int64_t n = 0;
    stand_lock();
    for (int i = 0; i < STREAMS; i++)
        for (const struct task *t = streams[i] ? streams[i]->first : NULL; t; t = t->next)
            n++;
    stand_unlock();
    return n;
}

void streams_reset(void)
{
    for (int i = 0; i < STREAMS; i++) {
        if (streams[i])
            drop(streams[i]);
        streams[i] = NULL;
    }
    for (int i = 0; i < DEVICES; i++) {
        free(defaults[i]);
        defaults[i] = NULL;
    }
    captures_reset();
    random_state = 0;
}

/* --- AscendCL --- */

static int create(aclrtStream *to, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    if (!code && !to)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    int slot = free_slot();
    if (!code && slot == STREAMS)
        code = stand_error(207008, "EZ9999: %s: %d streams exist", symbol, STREAMS);
    if (!code) {
        struct stream *stream = stand_object_new(KIND_STREAM, sizeof *stream);
        begin(stream, slot);
        *to = stream;
    }
    return stand_leave(code);
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    return create(stream, "aclrtCreateStream");
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    (void)priority;
    (void)flag;
    return create(stream, "aclrtCreateStreamWithConfig");
}

aclError aclrtDestroyStream(aclrtStream handle)
{
    int code = stand_enter("aclrtDestroyStream", NEEDS_INIT);
    code = code ? code : stand_object_end(handle, KIND_STREAM, "aclrtDestroyStream");
    if (!code) {
        struct stream *stream = handle;
        if (stream->first || stream->capture)
            code = stand_break(RULE_STREAM_BUSY, ACL_ERROR_RT_PARAM_INVALID,
                               "aclrtDestroyStream: %s has not run",
                               stream->first ? task_name(stream->first) : "a capture");
        drop(stream);
        streams[stream->slot] = NULL;
    }
    return stand_leave(code);
}

static int synchronise(aclrtStream stream, int timeout_ms, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE);
    stream = stand_stream(stream);
    code = code ? code : stand_stream_check(stream, symbol);
    if (!code && ((struct stream *)stream)->capture)
        code = stand_break(RULE_CAPTURE_CALL, ACL_ERROR_RT_STREAM_CAPTURED,
                           "%s: the stream is captured", symbol);
    return stand_leave(code ? code : stream_finish(stream, timeout_ms));
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    return synchronise(stream, -1, "aclrtSynchronizeStream");
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout)
{
    return synchronise(stream, timeout, "aclrtSynchronizeStreamWithTimeout");
}

/* Each query lets one task run, after it has answered. */
aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status)
{
    int code = stand_enter("aclrtStreamQuery", NEEDS_DEVICE);
    handle = stand_stream(handle);
    code = code ? code : stand_stream_check(handle, "aclrtStreamQuery");
    if (!code && !status)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID,
                           "aclrtStreamQuery: the result is NULL");
    if (!code) {
        struct stream *stream = handle;
        *status = stream->first ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
        step_towards(stream);
        code = stream->failed;
    }
    return stand_leave(code);
}
