/*
 * job_queue.h - what the devices that run behind the caller's back share: a thread that does jobs
 * in the order in which they were put, an event, and one failure that ends all. Not for other
 * rooms.
 */
#ifndef OATO_JOB_QUEUE_H
#define OATO_JOB_QUEUE_H

#include "kernels/device.h"

#include <pthread.h>

/* A step of a program, or a copy. */
struct job {
    struct compiled *compiled; /* NULL: a copy */
    const struct step *step;   /* borrowed until done */
    void *to;
    const void *from;
    uint64_t bytes;
    bool download;   /* of a copy: to the host */
    uint64_t signal; /* value that the copy raises the event to; 0 = none */
};

enum { QUEUE_JOBS = 64 };

/* The first member of a device's queue. The owner sets id, run, start and spin_ns. */
struct job_queue {
    const char *id;                     /* of the device, for messages */
    void (*start)(struct job_queue *q); /* the thread's first act, or NULL */
    /* Does a job; what fails it calls job_queue_fail, after which no more are given to it. */
    void (*run)(struct job_queue *q, const struct job *job);
    /* So long its thread spins for a next job, and who drains it for the last one, before they
     * sleep: waking takes longer than what a host does between two steps. 0: not at all. */
    uint64_t spin_ns;
    struct timeline timeline;
    uint64_t promised;          /* value that the event has when all that was put is done */
    _Atomic int64_t fail_after; /* injected: records until one fails; 0 = never */
    _Atomic bool stop;          /* gives up what is waiting and what is queued */

    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t changed;
    struct job jobs[QUEUE_JOBS];
    _Atomic uint64_t put, done; /* spinners read them without the lock */
    bool closing, failed;
    struct oato_error error;
};

/* The timeline is initialised by the caller. name: of the thread. */
oato_status job_queue_open(struct job_queue *q, const char *name, struct oato_error *err);
void job_queue_close(struct job_queue *q);
/* Fails the queue and its timeline; the first failure keeps its message. Returns false, for the
 * caller to return. */
bool job_queue_fail(struct job_queue *q, enum timeline_failure why, const struct oato_error *error);
/* Puts a copy; without `value` waits for it. */
oato_status job_queue_copy(struct job_queue *q, struct job *job, uint64_t *value,
                           struct oato_error *err);
/* Puts a step of the program, which is device `self`'s; refuses one that it has no room for. */
oato_status job_queue_step(struct job_queue *q, struct compiled *c, const struct program *p,
                           int self, const struct step *step, struct oato_error *err);
/* Waits until all is done; the message of a failure comes here. err may be NULL. */
oato_status job_queue_drain(struct job_queue *q, struct oato_error *err);
/* Fails the queue if anything is still to be done; then it is drained. */
void job_queue_cancel(struct job_queue *q);

#endif
