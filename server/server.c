/*
 * server.c - the life of the server: listens first, so that /health can say that the model is being
 * loaded; starts the engine thread; on a signal takes no more requests and lets the running ones
 * end.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

enum { POLL_NS = 50000000 };

static void name_set(struct server *s)
{
    const char *path = s->options->session.model, *slash = strrchr(path, '/');
    snprintf(s->model, sizeof s->model, "%s",
             s->options->alias ? s->options->alias
             : slash           ? slash + 1
                               : path);
}

/* Keys of the command line and of a file, cut in place out of one text. */
static oato_status keys_read(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    struct mapped_file file = {0};
    size_t n = 0;
    if (!o->api_key && !o->api_key_file)
        return OATO_OK;
    if (o->api_key_file && file_map(o->api_key_file, &file, err))
        return err->status;
    text_printf(&s->key_text, "%s\n", or_empty(o->api_key));
    text_add(&s->key_text, (const char *)file.data, file.bytes);
    file_unmap(&file);
    s->keys = s->key_text.failed ? NULL : calloc(s->key_text.len + 1, sizeof *s->keys);
    if (!s->keys)
        return oato_fail_memory(err, s->key_text.len, "keys");
    for (char *at = s->key_text.data; *(at += strspn(at, ",\r\n"));) {
        const size_t length = strcspn(at, ",\r\n");
        s->keys[n++] = at;
        if (!at[length])
            break;
        at[length] = 0;
        at += length + 1;
    }
    return n ? OATO_OK
             : oato_fail(err, OATO_EUSAGE, "no key is in --api-key and --api-key-file; give one");
}

static void pause_ns(int64_t ns)
{
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

static void loop_stop(struct server *s, bool now)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    s->now = now;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* Until a signal or the end of the engine thread; then until the running answers are sent, or no
 * longer than --drain. */
static void wait_and_drain(struct server *s)
{
    while (!oato_interrupted && atomic_load(&s->state) != SERVER_ENDED)
        pause_ns(POLL_NS);
    int expected = SERVER_READY;
    atomic_compare_exchange_strong(&s->state, &expected, SERVER_DRAINING);
    http_quiesce(s);
    loop_stop(s, false);
    const uint64_t begin = now_ns(), most = (uint64_t)s->options->drain_s * 1000000000;
    while (atomic_load(&s->state) != SERVER_ENDED && now_ns() - begin < most)
        pause_ns(POLL_NS / 10);
    loop_stop(s, true);
}

oato_status server_run(const struct server_options *o, struct oato_error *err)
{
    struct server s = {.options = o, .started = time(NULL)};
    pthread_t thread;
    pthread_mutex_init(&s.lock, NULL);
    pthread_mutex_init(&s.vocab_lock, NULL);
    pthread_cond_init(&s.wake, NULL);
    text_init(&s.key_text);
    s.incoming_end = &s.incoming;
    name_set(&s);
    oato_status status = keys_read(&s, err);
    if (!status)
        status = policy_open(&s, err);
    if (!status)
        status = http_open(&s, err);
    if (!status && pthread_create(&thread, NULL, loop_run, &s)) {
        status = oato_fail(err, OATO_EIO, "cannot start the engine thread");
        http_close(&s);
    }
    if (!status) {
        wait_and_drain(&s);
        pthread_join(thread, NULL);
        for (int i = 0; i < 100 && atomic_load(&s.exchanges); i++) /* answers on their way */
            pause_ns(POLL_NS / 5);
        http_close(&s);
        status = s.error.status;
        if (status == OATO_NEGATIVE) /* the signal came while the model was loaded */
            status = OATO_OK;
        *err = s.error;
    }
    grammar_vocab_free(s.vocab);
    session_close(&s.session);
    struct oato_error log;
    if (policy_close(&s, &log) && !status) {
        status = log.status;
        *err = log;
    }
    chat_template_free(s.template);
    free(s.keys);
    text_free(&s.key_text);
    pthread_cond_destroy(&s.wake);
    pthread_mutex_destroy(&s.lock);
    pthread_mutex_destroy(&s.vocab_lock);
    return status;
}
