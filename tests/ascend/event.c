/*
 * event.c - events: a record is complete when the stream has come to it. The status is inverted
 * (NOT_READY is 0). Times between events are declared by the tasks that ran, not measured.
 */
#include "runtime.h"

static int live_events(void)
{
    return (int)objects_live(KIND_EVENT);
}

static int create(aclrtEvent *to, uint32_t flag, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    const uint32_t known = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE;
    if (!code && (!to || !flag || (flag & ~known)))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: flag %#x", symbol, flag);
    if (!code && live_events() >= stand_chip()->events)
        code = stand_break(RULE_EVENT_LIMIT, ACL_ERROR_RT_NO_EVENT_RESOURCE,
                           "%s: %d events exist, the most that %s has", symbol, live_events(),
                           stand_chip()->soc);
    if (!code) {
        struct event *event = stand_object_new(KIND_EVENT, sizeof *event);
        event->flags = flag;
        event->device = stand_thread()->device;
        *to = event;
    }
    return stand_leave(code);
}

aclError aclrtCreateEvent(aclrtEvent *event)
{
    return create(event, ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE,
                  "aclrtCreateEvent");
}

aclError aclrtCreateEventWithFlag(aclrtEvent *event, uint32_t flag)
{
    return create(event, flag, "aclrtCreateEventWithFlag");
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    return create(event, flag, "aclrtCreateEventExWithFlag");
}

aclError aclrtDestroyEvent(aclrtEvent handle)
{
    const char *symbol = "aclrtDestroyEvent";
    int code = stand_enter(symbol, NEEDS_INIT);
    const struct event *event = handle;
    if (!code && stand_object_is_live(handle, KIND_EVENT) && event->users)
        code = stand_break(RULE_EVENT_BUSY, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: %d tasks that name it have not run", symbol, event->users);
    code = code ? code : stand_object_end(handle, KIND_EVENT, symbol);
    return stand_leave(code);
}

/* A task of an event in a stream. */
static int put(aclrtEvent event, aclrtStream stream, enum task_kind kind, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_object_check(event, KIND_EVENT, symbol);
    code = code ? code : stand_stream_check(stream, symbol);
    const struct event *e = event;
    if (!code && kind == TASK_WAIT && (!e->records || e->reset))
        code = stand_break(RULE_EVENT_RECORDED, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: the event was not recorded", symbol);
    if (!code) {
        struct task *task = task_new(kind);
        task->event = event;
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

static int check(aclrtEvent event, unsigned needs, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH | needs);
    code = code ? code : stand_object_check(event, KIND_EVENT, symbol);
    if (!code && ((struct event *)event)->capture)
        code = stand_break(RULE_CAPTURE_CALL, 107028, "%s: the event was captured", symbol);
    return code;
}

static int synchronise(aclrtEvent event, int timeout_ms, const char *symbol)
{
    int code = check(event, NEEDS_NO_CAPTURE, symbol);
    if (!code && !((struct event *)event)->records)
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
    return event->records && event->done >= event->records && !event->reset;
}

/* Each query lets one task run, after it has answered. */
aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    const char *symbol = "aclrtQueryEventStatus";
    int code = check(handle, NEEDS_NO_CAPTURE, symbol);
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
    int code = check(startEvent, 0, symbol);
    code = code ? code : stand_object_check(endEvent, KIND_EVENT, symbol);
    if (!code && !ms)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    const struct event *start = startEvent, *end = endEvent;
    if (!code && (!(start->flags & ACL_EVENT_TIME_LINE) || !(end->flags & ACL_EVENT_TIME_LINE)))
        code = stand_break(RULE_EVENT_TIME, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                           "%s: an event keeps no time (ACL_EVENT_TIME_LINE)", symbol);
    if (!code && (!complete(start) || !complete(end)))
        code = stand_break(RULE_EVENT_TIME, ACL_ERROR_RT_EVENT_NOT_COMPLETE,
                           "%s: an event is not complete", symbol);
    if (!code)
        *ms = (float)((end->ns - start->ns) / 1e6);
    return stand_leave(code);
}
