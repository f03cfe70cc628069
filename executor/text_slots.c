/*
 * text_slots.c - see text_slots.h.
 */
#include "executor/text_slots.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct text_slots {
    pthread_mutex_t lock;
    uint64_t n_texts; /* that came so far */
    int32_t n;
    struct slot {
        int32_t *ids, n;
        uint64_t number; /* of the text, counted over all slots; 0: none */
    } slot[];
};

struct text_slots *text_slots_create(int32_t n)
{
    struct text_slots *t = calloc(1, sizeof *t + (size_t)n * sizeof t->slot[0]);
    if (!t)
        return NULL;
    t->n = n;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void text_slots_free(struct text_slots *t)
{
    if (!t)
        return;
    for (int32_t i = 0; i < t->n; i++)
        free(t->slot[i].ids);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void text_slots_set(struct text_slots *t, int32_t slot, int32_t *ids, int32_t n)
{
    pthread_mutex_lock(&t->lock);
    struct slot *s = &t->slot[max_i64(slot, 0)];
    for (int32_t i = 0; slot < 0 && i < t->n; i++)
        s = t->slot[i].number < s->number ? &t->slot[i] : s;
    free(s->ids);
    *s = (struct slot){ids, n, ids ? ++t->n_texts : 0};
    pthread_mutex_unlock(&t->lock);
}

int32_t *text_slots_get(struct text_slots *t, int32_t slot, int32_t *n)
{
    pthread_mutex_lock(&t->lock);
    const struct slot *s = &t->slot[slot];
    int32_t *ids = s->n ? malloc((size_t)s->n * sizeof *ids) : NULL;
    *n = ids ? s->n : 0;
    if (ids)
        memcpy(ids, s->ids, (size_t)s->n * sizeof *ids);
    pthread_mutex_unlock(&t->lock);
    return ids;
}
