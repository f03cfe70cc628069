/*
 * crew.c - threads that help to convert weights while others of the host compute: one alone would
 * hold up the link.
 */
#include "kernels/core/weights.h"

#include <sched.h>

static void *crew_main(void *arg)
{
    struct crew *c = arg;
    pthread_mutex_lock(&c->lock);
    pthread_mutex_unlock(&c->lock);
    for (;;) {
        pthread_barrier_wait(&c->begins);
        if (c->closing)
            return NULL;
        c->share(c->arg, c->n + 1);
        pthread_barrier_wait(&c->ends);
    }
}

void crew_run(struct crew *c, void (*share)(void *arg, int threads), void *arg)
{
    if (!c->n) {
        share(arg, 1);
        return;
    }
    c->share = share;
    c->arg = arg;
    pthread_barrier_wait(&c->begins);
    share(arg, c->n + 1);
    pthread_barrier_wait(&c->ends);
}

void crew_open(struct crew *c)
{
    cpu_set_t cores;
    int n = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores) / 2;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_lock(&c->lock);
    for (n = n < CREW_MOST ? n : CREW_MOST; c->n < n; c->n++) {
        if (pthread_create(&c->thread[c->n], NULL, crew_main, c))
            break;
        pthread_setname_np(c->thread[c->n], "oato-fill");
    }
    pthread_barrier_init(&c->begins, NULL, (unsigned)c->n + 1);
    pthread_barrier_init(&c->ends, NULL, (unsigned)c->n + 1);
    pthread_mutex_unlock(&c->lock);
}

void crew_close(struct crew *c)
{
    c->closing = true;
    pthread_barrier_wait(&c->begins);
    for (int i = 0; i < c->n; i++)
        pthread_join(c->thread[i], NULL);
    pthread_barrier_destroy(&c->begins);
    pthread_barrier_destroy(&c->ends);
    pthread_mutex_destroy(&c->lock);
}
