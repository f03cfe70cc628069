/*
 * progress.c - time, quantiles of times, one redrawn progress line, and a flag that Ctrl-C sets.
 * The line appears only on a terminal, at most ten times a second, with the time left once that can
 * be told.
 */
#include "base/base.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char clear_line[] = "\r\033[K";
static volatile bool line_shown;

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
    p->on = isatty(STDERR_FILENO) == 1;
}

void progress_update(struct progress *p, double done, const char *note)
{
    uint64_t now = now_ns();
    if (!p->on || (line_shown && now - p->drawn_ns < 100000000u))
        return;
    double part = p->total > 0 ? done / p->total : 0;
    double spent = (double)(now - p->begin_ns) * 1e-9;
    fprintf(stderr, "\r\033[K%s %3.0f %%", p->what, 100 * part);
    if (part > 0.01 && spent > 1)
        fprintf(stderr, ", %.0f s left", spent / part - spent);
    if (note) {
        fputs("  ", stderr);
        text_print(stderr, note, strnlen(note, 48));
    }
    fflush(stderr);
    p->drawn_ns = now;
    line_shown = true;
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

void interrupt_catch(void)
{
    struct sigaction a = {.sa_handler = on_signal};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

void interrupt_deadline(unsigned seconds)
{
    struct sigaction a = {.sa_handler = on_deadline};
    deadline_s = seconds;
    sigaction(SIGALRM, &a, NULL);
}
