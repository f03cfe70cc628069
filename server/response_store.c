/*
 * response_store.c - answers of /v1/responses that may be asked for again or gone on with: in
 * memory, bounded, each only for the key that it was given to. Of too many those go that were not
 * used for the longest time.
 */
#include "server/responses.h"
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

enum { STORE_BYTES = 32 << 20, STORE_NUMBER = 1000 };

struct stored {
    struct stored *next; /* not used for longer */
    int32_t client;
    char id[48];
    struct text text;
};

struct response_store {
    pthread_mutex_t lock;
    struct stored *first; /* the last one that was used */
    size_t bytes, n;
};

struct response_store *response_store_create(void)
{
    struct response_store *s = calloc(1, sizeof *s);
    if (s)
        pthread_mutex_init(&s->lock, NULL);
    return s;
}

static size_t bytes_of(const struct stored *r)
{
    return sizeof *r + r->text.len;
}

/* Takes out what *at points to. */
static struct stored *take(struct response_store *s, struct stored **at)
{
    struct stored *r = *at;
    *at = r->next;
    s->bytes -= bytes_of(r);
    s->n--;
    return r;
}

static void put_first(struct response_store *s, struct stored *r)
{
    r->next = s->first;
    s->first = r;
    s->bytes += bytes_of(r);
    s->n++;
}

static void stored_free(struct stored *r)
{
    text_free(&r->text);
    free(r);
}

static struct stored **find(struct response_store *s, int32_t client, const char *id)
{
    struct stored **at = &s->first;
    while (*at && ((*at)->client != client || strcmp((*at)->id, id) != 0))
        at = &(*at)->next;
    return at;
}

void response_store_put(struct response_store *s, int32_t client, const char *id, const char *text)
{
    struct stored *r = calloc(1, sizeof *r);
    if (!r)
        return;
    r->client = client;
    snprintf(r->id, sizeof r->id, "%s", id);
    text_add(&r->text, text, strlen(text));
    if (r->text.failed || bytes_of(r) > STORE_BYTES) {
        stored_free(r);
        return;
    }
    pthread_mutex_lock(&s->lock);
    put_first(s, r);
    while (s->bytes > STORE_BYTES || s->n > STORE_NUMBER) {
        struct stored **last = &s->first;
        while ((*last)->next)
            last = &(*last)->next;
        stored_free(take(s, last));
    }
    pthread_mutex_unlock(&s->lock);
}

bool response_store_get(struct response_store *s, int32_t client, const char *id, bool forget,
                        struct text *out)
{
    pthread_mutex_lock(&s->lock);
    struct stored **at = find(s, client, id);
    struct stored *r = *at ? take(s, at) : NULL;
    if (r)
        text_add(out, or_empty(r->text.data), r->text.len);
    if (r && !forget)
        put_first(s, r);
    pthread_mutex_unlock(&s->lock);
    if (r && forget)
        stored_free(r);
    return r != NULL;
}

void response_store_free(struct response_store *s)
{
    while (s && s->first)
        stored_free(take(s, &s->first));
    free(s);
}
