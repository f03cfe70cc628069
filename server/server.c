/*
 * server.c - the life of the server: listens first, so that /health can say that the model is being
 * loaded; starts the engine thread; on a signal takes no more requests and lets the running ones
 * end.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

enum { POLL_NS = 50000000 };

/* That a step gives: as many as most requests sample from. */
enum { CANDIDATES = 64 };

/* Tokens of prompts whose log probabilities a step gives beside the answers' rows. A plan states
 * the memory of the answers' rows only. */
enum { PROMPT_ROWS = 32 };

/* Cuts the list's text in place. */
static oato_status list_cut(struct list *l, const char *at_any, const char *name,
                            struct oato_error *err)
{
    size_t n = 0;
    l->item = l->text.failed ? NULL : calloc(l->text.len + 1, sizeof *l->item);
    if (!l->item)
        return oato_fail_memory(err, l->text.len, name);
    for (char *at = l->text.data; *(at += strspn(at, at_any));) {
        const size_t length = strcspn(at, at_any);
        l->item[n++] = at;
        if (!at[length])
            break;
        at[length] = 0;
        at += length + 1;
    }
    return n ? OATO_OK : oato_fail(err, OATO_EUSAGE, "%s has nothing in it; name something", name);
}

static oato_status list_read(struct list *l, const char *text, const char *name,
                             struct oato_error *err)
{
    if (!text)
        return OATO_OK;
    text_printf(&l->text, "%s\n", text);
    return list_cut(l, ", \n", name, err);
}

/* Keys of the command line and of a file. */
static oato_status keys_read(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    struct text file;
    text_init(&file);
    if (!o->api_key && !o->api_key_file)
        return OATO_OK;
    if (o->api_key_file && text_read_file(o->api_key_file, TEXT_LINES, &file, err))
        return err->status;
    text_printf(&s->keys.text, "%s\n", or_empty(o->api_key));
    text_add(&s->keys.text, or_empty(file.data), file.len);
    text_free_part(&file, &s->keys.text);
    const oato_status status = list_cut(&s->keys, ",\n", "--api-key", err);
    return status == OATO_EUSAGE && o->api_key_file
               ? oato_fail(err, OATO_EFILE, "%s: has no key in it; write one on each line",
                           o->api_key_file)
               : status;
}

/* The model's name: the first alias by the alphabet, as llama.cpp has it. */
static void name_set(struct server *s)
{
    const char *path = s->options->session.model, *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *const *aliases = s->aliases.item;
    for (int32_t i = 0; aliases && aliases[i]; i++)
        name = i && strcmp(name, aliases[i]) < 0 ? name : aliases[i];
    snprintf(s->model, sizeof s->model, "%s", name);
}

static oato_status lists_read(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    oato_status status = keys_read(s, err);
    if (!status)
        status = list_read(&s->hosts, o->host, "--host", err);
    if (!status)
        status = list_read(&s->origins, o->cors_origins, "--cors-origins", err);
    if (!status)
        status = list_read(&s->aliases, o->alias, "--alias", err);
    if (!status)
        status = list_read(&s->tags, o->tags, "--tags", err);
    name_set(s);
    return status;
}

static void lists_free(struct server *s)
{
    struct list *const lists[] = {&s->keys, &s->hosts, &s->origins, &s->aliases, &s->tags};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        free(lists[i]->item);
        text_free(&lists[i]->text);
    }
}

void pause_ns(int64_t ns)
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
    listeners_close(s);
    loop_stop(s, false);
    const uint64_t begin = now_ns(), most = (uint64_t)s->options->drain_s * 1000000000;
    while (atomic_load(&s->state) != SERVER_ENDED && now_ns() - begin < most)
        pause_ns(POLL_NS / 10);
    loop_stop(s, true);
}

static oato_status serve(const struct server_options *o, struct oato_error *err)
{
    struct server s = {.options = o, .started = time(NULL)};
    pthread_t thread;
    pthread_mutex_init(&s.lock, NULL);
    pthread_mutex_init(&s.vocab_lock, NULL);
    pthread_mutex_init(&s.peers.lock, NULL);
    pthread_cond_init(&s.wake, NULL);
    s.incoming_end = &s.incoming;
    oato_status status = lists_read(&s, err);
    if (!status)
        status = policy_open(&s, err);
    if (!status)
        status = prepare_open(&s, err);
    if (!status)
        status = http_open(&s, err);
    if (!status && pthread_create(&thread, NULL, loop_run, &s)) {
        status = oato_fail(err, OATO_EIO, "cannot start the engine thread");
        http_close(&s);
    }
    if (status) { /* no session has taken the ranks */
        prepare_close(&s);
        collective_leave(o->session.ranks, err);
        collective_close(o->session.ranks);
    }
    if (!status) {
        wait_and_drain(&s);
        pthread_join(thread, NULL);
        prepare_close(&s); /* before the daemon: it must have no suspended connection */
        for (int i = 0; i < 100 && atomic_load(&s.exchanges); i++) /* answers on their way */
            pause_ns(POLL_NS / 5);
        http_close(&s);
        status = s.error.status;
        if (status == OATO_NEGATIVE) /* the signal came while the model was loaded */
            status = OATO_OK;
        *err = s.error;
    }
    grammar_vocab_free(s.vocab);
    sampler_scratch_free(s.scratch);
    program_ends((int)status, status ? err : NULL);
    session_close(&s.session);
    struct oato_error log;
    if (policy_close(&s, &log) && !status) {
        status = log.status;
        *err = log;
    }
    chat_template_free(s.template);
    lists_free(&s);
    pthread_cond_destroy(&s.wake);
    pthread_mutex_destroy(&s.lock);
    pthread_mutex_destroy(&s.vocab_lock);
    pthread_mutex_destroy(&s.peers.lock);
    return status;
}

oato_status server_run(const struct server_options *o, struct oato_error *err)
{
    struct server_options own = *o;
    struct session session;
    own.session.candidates = CANDIDATES;
    if (!own.session.plan && !own.session.make_plan && !own.session.engine.embeddings)
        own.session.engine.rows = own.session.engine.seqs + PROMPT_ROWS;
    oato_status status = session_join(&own.session, err);
    if (status)
        return status;
    if (collective_ranks(own.session.ranks) > 1)
        own.swap_mib = 0; /* ranks cannot save sequences */
    if (!collective_rank(own.session.ranks))
        return serve(&own, err);
    status = session_open(&session, &own.session, SESSION_SAMPLES | SESSION_TOKENIZER, err);
    if (!status) {
        program_ends(OATO_OK, NULL);
        session_close(&session);
    }
    return status;
}
