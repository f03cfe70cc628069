/*
 * job_queue.h - shared by devices that run asynchronously: a thread that runs jobs in FIFO order,
 * an event, and a failure that stops everything. Not for other rooms.
 */
#ifndef OATO_JOB_QUEUE_H
#define OATO_JOB_QUEUE_H

#include "kernels/device.h"

#include <pthread.h>

/* A step of a program, a copy, or a copy beside the steps that follow. */
struct job {
    struct compiled *compiled; /* NULL: a copy */
    const struct step *step;   /* borrowed until done */
    void *to;
    const void *from;
    uint64_t bytes;
    bool download;     /* a copy to the host */
    bool beside;       /* belongs to the device's transfer queue, and raises the event of that */
    uint64_t signal;   /* value that the copy raises the event to; 0 = none */
    uint64_t begin_ns; /* beside: when it was asked for, on the devices' clock */
};

enum { QUEUE_JOBS = 64 };

/* The first member of a device's queue. The owner sets id, run and, where needed, start,
 * spin_ns and meanwhile. */
struct job_queue {
    const char *id;                     /* of the device, for messages */
    void (*start)(struct job_queue *q); /* the thread's first act, or NULL */
    /* Runs a job. On failure it calls job_queue_fail; no further jobs are run after that. */
    void (*run)(struct job_queue *q, const struct job *job);
    /* How long its thread spins for the next job, and job_queue_drain for the last one, before they
     * sleep: waking takes longer than the host's work between two steps. 0: no spinning. */
    uint64_t spin_ns;
    /* What its thread does again and again while it waits for other devices; false once the queue
     * has failed. NULL: it spins, then sleeps. */
    bool (*meanwhile)(struct job_queue *q);
    struct timeline timeline;
    uint64_t promised;          /* value that the event reaches when all queued jobs are done */
    _Atomic int64_t fail_after; /* injected: records until one fails; 0 = never */
    _Atomic bool stop;          /* abandons the running and the queued jobs */

    pthread_t thread;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t changed;
    struct job jobs[QUEUE_JOBS];
    _Atomic uint64_t put, done; /* spinners read them without the lock */
    bool closing, failed;
    struct oato_error error;
};

/* The timeline is initialised by the caller. name: the thread's name. */
oato_status job_queue_open(struct job_queue *q, const char *name, struct oato_error *err);
void job_queue_close(struct job_queue *q);
/* Fails the queue and its timeline; only the first failure's message is kept. Always returns false,
 * for the caller to return. */
bool job_queue_fail(struct job_queue *q, enum timeline_failure why, const struct oato_error *error);
/* The same with a message, which the device's id begins. */
bool job_queue_fail_text(struct job_queue *q, enum timeline_failure why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Queues a job as it is. */
oato_status job_queue_put(struct job_queue *q, const struct job *job, struct oato_error *err);
/* Queues a copy; with value NULL waits for it. */
oato_status job_queue_copy(struct job_queue *q, struct job *job, uint64_t *value,
                           struct oato_error *err);
/* Queues a step of the program of device `self`; refuses one beyond the program's limits. */
oato_status job_queue_step(struct job_queue *q, struct compiled *c, const struct program *p,
                           int self, const struct step *step, struct oato_error *err);
/* On the queue's thread, before record `index` of a step: waits for what the record awaits of other
 * devices; clock_ns (NULL: not wanted) rises to the latest of their clocks. False: the queue has
 * failed, since one of them has, or the step is cancelled. */
bool job_queue_await(struct job_queue *q, const struct program *p, uint32_t index,
                     const struct step *step, uint64_t *clock_ns);
/* Whether the record fails by what a test has injected; then the queue has. */
bool job_queue_injects(struct job_queue *q, const struct program *p, uint32_t index);
/* On the queue's thread: a copy between memories that the host reads, and its event. */
void job_queue_do_copy(struct job_queue *q, const struct job *job);
/* Waits until all jobs are done and reports any failure. err may be NULL. */
oato_status job_queue_drain(struct job_queue *q, struct oato_error *err);
/* Fails the queue if any job is unfinished, then drains it. */
void job_queue_cancel(struct job_queue *q);

#endif
