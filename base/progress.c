/*
 * progress.c - time, quantiles of times, one redrawn progress line, and a flag that Ctrl-C sets.
 * The line appears only on a terminal, at most ten times a second, with the time left once that can
 * be told; on one that cannot redraw, as a line of its own every ten seconds.
 */
#include "base/base.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char clear_line[] = "\r\033[K";
static volatile bool line_shown;

enum terminal terminal_of(int fd)
{
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    if (isatty(fd) != 1)
        return TERMINAL_NONE;
    if (!term || !*term || !strcmp(term, "dumb"))
        return TERMINAL_DUMB;
    return plain && *plain ? TERMINAL_LINES : TERMINAL_STYLES;
}

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    return order_f64(*(const double *)a, *(const double *)b);
}

double quantile(double *v, int32_t n, double q)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    const double at = q * (n - 1);
    const int32_t i = (int32_t)at;
    return i + 1 < n ? v[i] + (at - i) * (v[i + 1] - v[i]) : v[i];
}

void progress_begin(struct progress *p, const char *what, double total)
{
    memset(p, 0, sizeof *p);
    p->what = what;
    p->total = total;
    p->begin_ns = now_ns();
    p->on = terminal_of(STDERR_FILENO) != TERMINAL_NONE;
    p->plain = terminal_of(STDERR_FILENO) == TERMINAL_DUMB;
}

void progress_update(struct progress *p, double done, const char *note)
{
    uint64_t now = now_ns();
    const bool due = p->plain ? now - (p->drawn_ns ? p->drawn_ns : p->begin_ns) >= 10000000000u
                              : !line_shown || now - p->drawn_ns >= 100000000u;
    if (!p->on || !due)
        return;
    double part = p->total > 0 ? done / p->total : 0;
    double spent = (double)(now - p->begin_ns) * 1e-9;
    fprintf(stderr, "%s%s %3.0f %%", p->plain ? "" : clear_line, p->what, 100 * part);
    if (part > 0.01 && spent > 1)
        fprintf(stderr, ", %.0f s left", spent / part - spent);
    if (note) {
        fputs("  ", stderr);
        text_print(stderr, note, strnlen(note, 48));
    }
    if (p->plain)
        fputc('\n', stderr);
    fflush(stderr);
    p->drawn_ns = now;
    line_shown = !p->plain;
}

void progress_clear(void)
{
    if (line_shown)
        fputs(clear_line, stderr);
    line_shown = false;
}

void progress_end(struct progress *p)
{
    progress_clear();
    p->on = false;
}

_Atomic int oato_interrupted;
static volatile unsigned deadline_s;

static void on_signal(int sig)
{
    oato_interrupted = sig;
    signal(sig, SIG_DFL);
    if (deadline_s)
        alarm(deadline_s);
}

/* A loop that looks at oato_interrupted too seldom. */
static void on_deadline(int sig)
{
    (void)sig;
    if (line_shown)
        fd_write(STDERR_FILENO, clear_line, sizeof clear_line - 1);
    _exit(128 + SIGINT);
}

/* Whoever starts a program with a signal ignored (a script's '&', nohup) means it to stay so. */
static void catch_one(int sig)
{
    const struct sigaction a = {.sa_handler = on_signal};
    struct sigaction old;
    if (!sigaction(sig, NULL, &old) && old.sa_handler != SIG_IGN)
        sigaction(sig, &a, NULL);
}

void interrupt_catch(void)
{
    catch_one(SIGINT);
    catch_one(SIGTERM);
    catch_one(SIGHUP);
}

void interrupt_deadline(unsigned seconds)
{
    struct sigaction a = {.sa_handler = on_deadline};
    deadline_s = seconds;
    sigaction(SIGALRM, &a, NULL);
}
