/*
 * endings.c - why an answer ended, and what its client is told: one row for each state. Only an
 * answer that the model, a stop word, a limit or a full context ended is an answer; one that
 * anything else cut ends as an error, whatever has been computed of it.
 */
#include "server/server_internal.h"

#include <string.h>

/* finish: OpenAI's finish_reason, stop_type: llama.cpp's, and stop_reason: Anthropic's, of an
 * answer; all NULL: an error, with this status. */
static const struct ending_row {
    const char *finish, *stop_type, *stop_reason;
    unsigned status;
} rows[] = {
    [ENDING_STOP] = {"stop", "eos", "end_turn", MHD_HTTP_OK},
    [ENDING_WORD] = {"stop", "word", "stop_sequence", MHD_HTTP_OK},
    [ENDING_CALLS] = {"tool_calls", "eos", "tool_use", MHD_HTTP_OK},
    [ENDING_LIMIT] = {"length", "limit", "max_tokens", MHD_HTTP_OK},
    [ENDING_CONTEXT] = {"length", "limit", "model_context_window_exceeded", MHD_HTTP_OK},
    [ENDING_REQUEST] = {NULL, NULL, NULL, MHD_HTTP_BAD_REQUEST},
    [ENDING_MEMORY] = {NULL, NULL, NULL, MHD_HTTP_INTERNAL_SERVER_ERROR},
    [ENDING_ENGINE] = {NULL, NULL, NULL, MHD_HTTP_INTERNAL_SERVER_ERROR},
    [ENDING_DEVICE] = {NULL, NULL, NULL, MHD_HTTP_SERVICE_UNAVAILABLE},
    [ENDING_SHUTDOWN] = {NULL, NULL, NULL, MHD_HTTP_SERVICE_UNAVAILABLE},
    [ENDING_CANCELLED] = {NULL, NULL, NULL, MHD_HTTP_SERVICE_UNAVAILABLE},
};

enum ending choice_ending(const struct choice *c)
{
    const enum ending end = c->why == BATCH_STOPPED   ? ENDING_STOP
                            : c->why == BATCH_LIMIT   ? ENDING_LIMIT
                            : c->why == BATCH_CONTEXT ? ENDING_CONTEXT
                                                      : ENDING_CANCELLED;
    if (end == ENDING_CANCELLED) /* or any reason that is not listed: no answer */
        return end;
    /* A call that a stop word cuts is not one to carry out. */
    if (end == ENDING_STOP && c->n_calls && !(c->stop.hit && !c->calls[c->n_calls - 1].whole))
        return ENDING_CALLS;
    if (end == ENDING_STOP && (c->late || (c->stop.hit && !*c->stop.hit)))
        return ENDING_LIMIT;
    return c->stop.hit ? ENDING_WORD : end;
}

const char *ending_finish(enum ending e)
{
    return rows[e].finish;
}

const char *ending_stop_type(enum ending e)
{
    return rows[e].stop_type;
}

const char *ending_stop_reason(enum ending e)
{
    return rows[e].stop_reason;
}

/* Whose fault an error of the engine is. A request was checked before it reached the engine, so
 * that what a step refuses is no fault of a client. */
static enum ending ending_of(const struct oato_error *err, bool step)
{
    if (oato_failed_memory(err))
        return ENDING_MEMORY;
    if (err->status == OATO_EDEVICE)
        return ENDING_DEVICE;
    return step ? ENDING_ENGINE : ENDING_REQUEST;
}

unsigned job_status(const struct job *j)
{
    const enum ending e = j->ending;
    return rows[j->error.status && rows[e].finish ? ending_of(&j->error, false) : e].status;
}

void job_fail(struct job *j, const struct oato_error *err, bool step)
{
    if (j->error.status)
        return;
    j->error = *err;
    j->ending = ending_of(err, step);
}

void job_fail_memory(struct job *j, size_t bytes)
{
    struct oato_error err;
    oato_fail_memory(&err, bytes, "the answer");
    job_fail(j, &err, true);
}

void job_cut(struct job *j, bool shutdown)
{
    if (j->error.status)
        return;
    oato_fail(&j->error, OATO_EIO, "%s",
              shutdown ? "the server is ending and cut this answer off; ask again"
                       : "this answer was cancelled before it was complete; ask again");
    j->ending = shutdown ? ENDING_SHUTDOWN : ENDING_CANCELLED;
}
