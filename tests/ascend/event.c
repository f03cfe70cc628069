/*
 * event.c - events: a record is complete when the stream has come to it. The status is inverted
 * (NOT_READY is 0). Times between events are declared by the tasks that ran, not measured.
 */
#include "runtime.h"

static void count_visit(void *event, void *count)
{
    *(int *)count += (((struct event *)event)->flags & ACL_EVENT_SYNC) != 0;
}

/* Those that synchronise streams are of the chip; others are not limited. */
static int limited_events(void)
{
    int n = 0;
    if (objects_live(KIND_EVENT) >= stand_chip()->events)
        objects_each(KIND_EVENT, count_visit, &n);
    return n;
}

static int create(aclrtEvent *to, struct event like, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    const uint32_t known = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE;
    if (!code && (!to || !like.flags || (like.flags & ~known)))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: flag %#x", symbol,
                           like.flags);
    if (!code && (like.flags & ACL_EVENT_SYNC) && limited_events() >= stand_chip()->events)
        code = stand_break(RULE_EVENT_LIMIT, ACL_ERROR_RT_NO_EVENT_RESOURCE,
                           "%s: %d events exist, the most that %s has", symbol, limited_events(),
                           stand_chip()->soc);
    if (!code) {
        struct event *event = stand_object_new(KIND_EVENT, sizeof *event);
        *event = like;
        event->device = stand_thread()->device;
        *to = event;
    }
    return stand_leave(code);
}

aclError aclrtCreateEvent(aclrtEvent *event)
{
    const struct event like = {.flags = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS |
                                        ACL_EVENT_TIME_LINE};
    return create(event, like, "aclrtCreateEvent");
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag)
{
    const struct event like = {.flags = flag, .by_reset = flag & ACL_EVENT_SYNC};
    return create(event, like, "aclrtCreateEventWithFlag");
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    const struct event like = {.flags = flag, .by_ex = true};
    return create(event, like, "aclrtCreateEventExWithFlag");
}

/* Its pending tasks still run. */
aclError aclrtDestroyEvent(aclrtEvent handle)
{
    int code = stand_enter("aclrtDestroyEvent", NEEDS_INIT);
    code = code ? code : stand_object_end(handle, KIND_EVENT, "aclrtDestroyEvent");
    return stand_leave(code);
}

static int check_use(struct event *event, enum task_kind kind, const char *symbol)
{
    if (kind == TASK_WAIT && !(event->flags & ACL_EVENT_SYNC))
        return stand_break(RULE_EVENT_FLAGS, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: the event does not synchronise (ACL_EVENT_SYNC)", symbol);
    if (kind == TASK_RESET && !event->by_reset)
        return stand_break(RULE_EVENT_FLAGS, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: only events of aclrtCreateEventWithFlag that synchronise are reset",
                           symbol);
    if (kind == TASK_WAIT && !event->by_ex && (!event->records || event->reset_given))
        return stand_break(RULE_EVENT_RECORDED, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: the event was not recorded", symbol);
    if (kind == TASK_RECORD && event->by_reset && event->records && !event->reset_given)
        stand_break(RULE_EVENT_REUSED, 0, "%s: the event was not reset since its last record",
                    symbol);
    return 0;
}

/* A task of an event in a stream. */
static int put(aclrtEvent handle, aclrtStream stream, enum task_kind kind, const char *symbol)
{
    struct event *event = handle;
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_object_check(handle, KIND_EVENT, symbol);
    code = code ? code : stand_stream_check(stream, symbol);
    code = code ? code : check_use(event, kind, symbol);
    if (!code) {
        struct task *task = task_new(kind);
        task->event = event;
        if (kind != TASK_WAIT)
            event->reset_given = kind == TASK_RESET;
        code = stream_put(stream, task);
    }
    return stand_leave(code);
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    return put(event, stream, TASK_RECORD, "aclrtRecordEvent");
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream)
{
    return put(event, stream, TASK_RESET, "aclrtResetEvent");
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    return put(event, stream, TASK_WAIT, "aclrtStreamWaitEvent");
}

static int check(aclrtEvent event, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_object_check(event, KIND_EVENT, symbol);
    if (!code && ((struct event *)event)->capture)
        code = stand_break(RULE_CAPTURE_CALL, 107028, "%s: the event was captured", symbol);
    return code;
}

static int synchronise(aclrtEvent event, int timeout_ms, const char *symbol)
{
    int code = check(event, symbol);
    if (!code && !((struct event *)event)->records && !((struct event *)event)->by_ex)
        code = stand_break(RULE_EVENT_RECORDED, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: the event was not recorded", symbol);
    return stand_leave(code ? code : event_finish(event, timeout_ms));
}

aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    return synchronise(event, -1, "aclrtSynchronizeEvent");
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout)
{
    return synchronise(event, timeout, "aclrtSynchronizeEventWithTimeout");
}

static bool complete(const struct event *event)
{
    if (!event->records)
        return event->by_ex;
    return event->done >= event->records && !event->reset;
}

/* Each query lets one task run, after it has answered. */
aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    const char *symbol = "aclrtQueryEventStatus";
    int code = check(handle, symbol);
    if (!code && !status)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    if (!code) {
        const struct event *event = handle;
        *status = complete(event) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                  : ACL_EVENT_RECORDED_STATUS_NOT_READY;
        struct stream *in = event_pending_in(event, event->records);
        if (in)
            stream_step(in);
    }
    return stand_leave(code);
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent)
{
    const char *symbol = "aclrtEventElapsedTime";
    int code = check(startEvent, symbol);
    code = code ? code : stand_object_check(endEvent, KIND_EVENT, symbol);
    if (!code && !ms)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    const struct event *start = startEvent, *end = endEvent;
    if (!code && (!(start->flags & ACL_EVENT_TIME_LINE) || !(end->flags & ACL_EVENT_TIME_LINE)))
        code = stand_break(RULE_EVENT_FLAGS, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                           "%s: an event keeps no time (ACL_EVENT_TIME_LINE)", symbol);
    if (!code && (!start->records || !end->records || !complete(start) || !complete(end)))
        code = stand_break(RULE_EVENT_TIME, ACL_ERROR_RT_EVENT_NOT_COMPLETE,
                           "%s: an event is not complete", symbol);
    if (!code)
        *ms = (float)((end->ns - start->ns) / 1e6);
    return stand_leave(code);
}
