/*
 * graph.c - captured graphs (aclmdlRI). While a stream is captured its tasks go into a graph and do
 * not run; other streams join by waiting for an event recorded there and must be waited for before
 * the end. What may not be called meanwhile depends on the capture's mode and the thread's.
 */
#include "runtime.h"

#include <stdlib.h>

static struct capture *captures;
static struct capture *ended; /* kept: events may still name them */

bool capture_forbids(const struct thread *thread)
{
    bool forbidden = false;
    for (struct capture *c = captures; c; c = c->next) {
        bool own = c->thread == thread->number;
        bool forbids = c->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL
                           ? own || thread->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL
                           : own && c->mode == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
        forbids = forbids && thread->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
        c->invalid = c->invalid || forbids;
        forbidden = forbidden || forbids;
    }
    return forbidden;
}

bool captures_on(int device)
{
    for (const struct capture *c = captures; c; c = c->next)
        if (c->origin->device == device)
            return true;
    return false;
}

void capture_put(struct capture *capture, struct stream *stream, struct task *task)
{
    (void)stream;
    struct graph *graph = capture->graph;
    if (task->event) { /* the order of capture keeps what events order */
        task_free(task);
        return;
    }
    task->next = NULL;
    *graph->last = task;
    graph->last = &task->next;
}

void capture_follow(struct stream *stream, const struct event *event)
{
    for (struct capture *c = captures; c; c = c->next)
        if (c == event->capture && !stream->capture)
            stream->capture = c;
}

static void graph_drop(struct graph *graph)
{
    while (graph->first) {
        struct task *task = graph->first;
        graph->first = task->next;
        task_free(task);
    }
    graph->last = &graph->first;
}

static void drop_visit(void *graph, void *context)
{
    (void)context;
    graph_drop(graph);
}

void captures_reset(void)
{
    objects_each(KIND_GRAPH, drop_visit, NULL);
    while (captures) {
        struct capture *c = captures;
        captures = c->next;
        free(c);
    }
    while (ended) {
        struct capture *c = ended;
        ended = c->next;
        free(c);
    }
}

aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode)
{
    const char *symbol = "aclmdlRICaptureBegin";
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_stream_check(handle, symbol);
    struct stream *stream = handle;
    if (!code && !stand_chip()->graphs)
        code = stand_break(RULE_CHIP, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s: not on %s", symbol,
                           stand_chip()->soc);
    if (!code && ((int)mode < 0 || mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: mode %d", symbol,
                           (int)mode);
    if (!code && stream->capture)
        code = stand_break(RULE_CAPTURE_PAIR, ACL_ERROR_RT_STREAM_CAPTURED,
                           "%s: the stream is captured", symbol);
    struct capture *capture = code ? NULL : calloc(1, sizeof *capture);
    if (capture) {
        struct graph *graph = stand_object_new(KIND_GRAPH, sizeof *graph);
        graph->last = &graph->first;
        graph->device = stream->device;
        *capture = (struct capture){.origin = stream,
                                    .graph = graph,
                                    .mode = mode,
                                    .thread = stand_thread()->number,
                                    .next = captures};
        captures = capture;
        stream->capture = capture;
    }
    return stand_leave(code);
}

aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus *status,
                                aclmdlRI *modelRI)
{
    const char *symbol = "aclmdlRICaptureGetInfo";
    int code = stand_enter(symbol, NEEDS_DEVICE);
    code = code ? code : stand_stream_check(handle, symbol);
    if (!code && !status)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    if (!code) {
        const struct capture *capture = ((struct stream *)handle)->capture;
        *status = !capture           ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
                  : capture->invalid ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
                                     : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
        if (modelRI)
            *modelRI = capture ? capture->graph : NULL;
    }
    return stand_leave(code);
}

struct release {
    const struct capture *capture;
    bool joined;
};

static void release_visit(void *object, void *context)
{
    struct stream *stream = object;
    struct release *release = context;
    if (stream->capture != release->capture)
        return;
    if (!clock_covers(&release->capture->origin->clock, stream->slot, stream->numbers))
        release->joined = false;
    stream->capture = NULL;
}

/* The captured streams are free again; whether all of them were joined to the origin. */
static bool release_all(struct capture *capture)
{
    struct release release = {capture, true};
    objects_each(KIND_STREAM, release_visit, &release);
    for (struct capture **at = &captures; *at; at = &(*at)->next)
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    capture->next = ended;
    ended = capture;
    return release.joined;
}

aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI *modelRI)
{
    const char *symbol = "aclmdlRICaptureEnd";
    int code = stand_enter(symbol, NEEDS_DEVICE);
    code = code ? code : stand_stream_check(handle, symbol);
    struct stream *stream = handle;
    struct capture *capture = code ? NULL : stream->capture;
    if (!code && !modelRI)
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                           symbol);
    if (!code && (!capture || capture->origin != stream))
        code = stand_break(RULE_CAPTURE_PAIR, ACL_ERROR_RT_STREAM_NOT_CAPTURED,
                           "%s: no capture began on this stream", symbol);
    if (!code && capture->thread != stand_thread()->number &&
        capture->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
        code = stand_break(RULE_CAPTURE_PAIR, ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD,
                           "%s: another thread began it", symbol);
    if (!code) {
        struct graph *graph = capture->graph;
        bool joined = release_all(capture);
        if (!joined)
            code = stand_break(RULE_CAPTURE_PAIR, 107025, "%s: a stream was not joined", symbol);
        else if (capture->invalid) /* the rule was broken when it became so */
            code = stand_error(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED,
                               "EZ9999: %s: the capture was invalidated", symbol);
        *modelRI = code ? NULL : graph;
        if (code) {
            graph_drop(graph);
            stand_object_end(graph, KIND_GRAPH, symbol);
        }
    }
    return stand_leave(code);
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode *mode)
{
    const char *symbol = "aclmdlRICaptureThreadExchangeMode";
    int code = stand_enter(symbol, NEEDS_INIT);
    if (!code && (!mode || (int)*mode < 0 || *mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: no such mode", symbol);
    if (!code) {
        struct thread *thread = stand_thread();
        aclmdlRICaptureMode before = thread->mode;
        thread->mode = *mode;
        *mode = before;
    }
    return stand_leave(code);
}

aclError aclmdlRIExecuteAsync(aclmdlRI modelRI, aclrtStream handle)
{
    const char *symbol = "aclmdlRIExecuteAsync";
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_object_check(modelRI, KIND_GRAPH, symbol);
    code = code ? code : stand_stream_check(handle, symbol);
    struct stream *stream = handle;
    if (!code && stream->capture)
        code = stand_break(RULE_CAPTURE_CALL, ACL_ERROR_RT_STREAM_CAPTURED,
                           "%s: the stream is captured", symbol);
    if (!code && ((struct graph *)modelRI)->device != stream->device)
        code = stand_break(RULE_STREAM_DEVICE, 107004, "%s: the graph is of device %d", symbol,
                           ((struct graph *)modelRI)->device);
    if (!code) {
        struct task *task = task_new(TASK_GRAPH);
        task->graph = modelRI;
        code = stream_put(stream, task);
    }
    return stand_leave(code);
}

aclError aclmdlRIDestroy(aclmdlRI modelRI)
{
    const char *symbol = "aclmdlRIDestroy";
    int code = stand_enter(symbol, NEEDS_INIT);
    struct graph *graph = modelRI;
    if (!code && stand_object_is_live(modelRI, KIND_GRAPH) && graph->runs)
        code = stand_break(RULE_GRAPH_BUSY, 107037, "%s: it has not run", symbol);
    code = code ? code : stand_object_end(modelRI, KIND_GRAPH, symbol);
    if (!code)
        graph_drop(graph);
    return stand_leave(code);
}
