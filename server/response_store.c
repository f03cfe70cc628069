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

struct response_store {
    pthread_mutex_t lock;
    json_t *texts; /* by "CLIENT ID": the longest unused one first, for objects keep that order */
    size_t bytes;
};

struct response_store *response_store_create(void)
{
    struct response_store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    s->texts = json_object();
    return s;
}

/* Puts a text, which is taken over, behind the others, and takes out those that are too many. */
static void put(struct response_store *s, const char *key, json_t *text)
{
    const size_t n = json_string_length(text);
    if (!n || n > STORE_BYTES) {
        json_decref(text);
        return;
    }
    if (json_object_set_new(s->texts, key, text))
        return;
    s->bytes += n;
    while (s->bytes > STORE_BYTES || json_object_size(s->texts) > STORE_NUMBER) {
        void *first = json_object_iter(s->texts);
        s->bytes -= json_string_length(json_object_iter_value(first));
        json_object_del(s->texts, json_object_iter_key(first));
    }
}

static void key_make(char key[80], int32_t client, const char *id)
{
    snprintf(key, 80, "%d %.60s", client, id);
}

void response_store_put(struct response_store *s, int32_t client, const char *id, const char *text)
{
    char key[80];
    key_make(key, client, id);
    pthread_mutex_lock(&s->lock);
    put(s, key, json_string(text));
    pthread_mutex_unlock(&s->lock);
}

bool response_store_get(struct response_store *s, int32_t client, const char *id, bool forget,
                        struct text *out)
{
    char key[80];
    key_make(key, client, id);
    pthread_mutex_lock(&s->lock);
    json_t *text = json_incref(json_object_get(s->texts, key));
    if (text) {
        text_add(out, json_string_value(text), json_string_length(text));
        s->bytes -= json_string_length(text);
        json_object_del(s->texts, key);
    }
    if (text && !forget)
        put(s, key, json_incref(text));
    pthread_mutex_unlock(&s->lock);
    json_decref(text);
    return text != NULL;
}

void response_store_free(struct response_store *s)
{
    if (!s)
        return;
    json_decref(s->texts);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
