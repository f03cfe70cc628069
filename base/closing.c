/*
 * closing.c - the end of a program, in stages. What closes a device or leaves other processes calls
 * into libraries, some of which wait for others without a limit; so a thread looks at how long a
 * stage takes, and ends the program with the status that it has, and a line, when one takes too
 * long. There is no such thread before the first stage.
 */
#include "base/base.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 30, TURN_NS = 20000000 };

static struct {
    pthread_mutex_t lock;
    bool ends, watched;
    int status;
    struct oato_error err; /* still to be told; "": nothing */
    char stage[128];       /* "": none */
    uint64_t begin_ns, stage_ns, limit_ns;
} closing = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t limit_read(void)
{
    const char *text = getenv("OATO_CLOSING_LIMIT");
    char *end;
    const double s = text && *text ? strtod(text, &end) : LIMIT_S;
    if (text && *text && (*end || !(s >= 0 && s <= 1e6))) {
        warn_line(program_warn, NULL,
                  "OATO_CLOSING_LIMIT is '%.40s'; it can be a number of seconds, or 0 for no "
                  "limit; using %d",
                  text, LIMIT_S);
        return LIMIT_S * UINT64_C(1000000000);
    }
    return (uint64_t)(s * 1e9);
}

static void *watch(void *unused)
{
    const struct timespec turn = {.tv_nsec = TURN_NS};
    for (;;) {
        nanosleep(&turn, NULL);
        pthread_mutex_lock(&closing.lock);
        if (closing.stage[0] && now_ns() - closing.stage_ns > closing.limit_ns)
            break;
        pthread_mutex_unlock(&closing.lock);
    }
    if (closing.err.text[0])
        program_tell("%s", closing.err.text);
    program_tell("closing gave up after %.3g s at this stage: %s; ending without it",
                 (double)closing.limit_ns * 1e-9, closing.stage);
    fflush(stdout);
    _exit(closing.status);
    return unused;
}

void program_ends(int status, const struct oato_error *err)
{
    pthread_mutex_lock(&closing.lock);
    closing.ends = true;
    closing.err.text[0] = 0;
    if (err)
        closing.err = *err;
    closing.status = status;
    pthread_mutex_unlock(&closing.lock);
}

void program_closes(const char *fmt, ...)
{
    va_list ap;
    pthread_t thread;
    pthread_mutex_lock(&closing.lock);
    closing.stage_ns = now_ns();
    closing.stage[0] = 0;
    if (fmt) {
        va_start(ap, fmt);
        vsnprintf(closing.stage, sizeof closing.stage, fmt, ap);
        va_end(ap);
    }
    closing.begin_ns = closing.begin_ns ? closing.begin_ns : closing.stage_ns;
    const char *trace = getenv("OATO_TRACE_CLOSING");
    if (trace && *trace && strcmp(trace, "0") != 0)
        program_tell("closing, %.3f s: %s", (double)(closing.stage_ns - closing.begin_ns) * 1e-9,
                     fmt ? closing.stage : "done");
    const bool first = fmt && closing.ends && !closing.watched;
    pthread_mutex_unlock(&closing.lock);
    if (!first || !(closing.limit_ns = limit_read()) || pthread_create(&thread, NULL, watch, NULL))
        return;
    closing.watched = true;
    pthread_detach(thread);
}

int program_exit(int status)
{
    pthread_mutex_lock(&closing.lock);
    closing.status = status;
    closing.err.text[0] = 0;
    const bool watched = closing.watched;
    pthread_mutex_unlock(&closing.lock);
    if (watched)
        program_closes("what libraries do when a program exits");
    return status;
}
