/*
 * turns.c - see turns.h.
 */
#include "executor/turns.h"

void turns_init(struct turns *t)
{
    *t = (struct turns){.next = 0};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->cond, NULL);
}

void turns_destroy(struct turns *t)
{
    pthread_cond_destroy(&t->cond);
    pthread_mutex_destroy(&t->lock);
}

void turn_take(struct turns *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t own = t->next++;
    while (own != t->now)
        pthread_cond_wait(&t->cond, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void turn_give(struct turns *t)
{
    pthread_mutex_lock(&t->lock);
    t->now++;
    pthread_cond_broadcast(&t->cond);
    pthread_mutex_unlock(&t->lock);
}
