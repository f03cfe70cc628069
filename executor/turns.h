/*
 * turns.h - a lock that whoever waits longest gets next: engines of one process take turns, a step
 * each, for two steps at a time would share the cores.
 */
#ifndef OATO_TURNS_H
#define OATO_TURNS_H

#include <pthread.h>
#include <stdint.h>

struct turns {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t next, now;
};

void turns_init(struct turns *t);
void turns_destroy(struct turns *t);
void turn_take(struct turns *t);
void turn_give(struct turns *t);

#endif
