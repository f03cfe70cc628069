/*
 * server.c - the life of the server: listens first, so that /health can say that the model is being
 * loaded; starts the engine thread; on a signal takes no more requests and lets the running ones
 * end.
 */
#include "server/responses.h"
#include "server/server_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_NS = 50000000 };

/* That a step gives: as many as most requests sample from. */
enum { CANDIDATES = 64 };

/* Tokens of prompts whose log probabilities a step gives beside the answers' rows. A plan states
 * the memory of the answers' rows only. */
enum { PROMPT_ROWS = 32 };

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
    for (size_t i = 0; i < s->keys.text.len; i++) {
        const char c = s->keys.text.data[i];
        if (!(c & 0xe0) && c != '\t' && c != '\n')
            return oato_fail(
                err, o->api_key_file ? OATO_EFILE : OATO_EUSAGE,
                "%s: has a control character, which no key has; write a key on each line",
                o->api_key_file ? o->api_key_file : "--api-key");
    }
    const oato_status status = list_cut(&s->keys, ",\n", "--api-key", err);
    return status == OATO_EUSAGE && o->api_key_file
               ? oato_fail(err, OATO_EFILE, "%s: has no key in it; write one on each line",
                           o->api_key_file)
               : status;
}

static oato_status lists_read(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    oato_status status = keys_read(s, err);
    if (!status)
        status = list_read(&s->hosts, o->host, "--host", err);
    if (!status)
        status = list_read(&s->origins, o->cors_origins, "--cors-origins", err);
    return status;
}

/* Until a signal or the end of the engine thread; then until the running answers are sent, or no
 * longer than --drain. */
static void wait_and_drain(struct server *s)
{
    while (!oato_interrupted && !models_ended(s))
        pause_ns(POLL_NS);
    atomic_store(&s->ending, true);
    listeners_close(&s->listeners);
    models_stop(s, false);
    const uint64_t begin = now_ns(), most = (uint64_t)s->options->drain_s * 1000000000;
    while (!models_idle(s) && now_ns() - begin < most)
        pause_ns(POLL_NS / 10);
    models_stop(s, true);
}

static oato_status serve(const struct server_options *o, struct oato_error *err)
{
    struct server s = {.options = o, .started = time(NULL)};
    struct oato_error log;
    signal(SIGPIPE,
           SIG_IGN); /* whoever reads our messages may be gone; sockets say so themselves */
    oato_status status = lists_read(&s, err);
    s.responses = response_store_create();
    if (!status && !s.responses)
        status = oato_fail_memory(err, 1 << 10, "the responses");
    if (!status)
        status = models_open(&s, err);
    if (!status && s.models.alone) /* before anybody is told that it listens */
        status = session_check(&o->session, err);
    if (!status)
        status = prepare_open(&s, err);
    if (!status)
        status = http_open(&s, err);
    if (!status && (status = models_start(&s, err)) != OATO_OK)
        http_close(&s);
    if (status) { /* no session has taken the ranks */
        prepare_close(&s);
        if (o->session.ranks)
            collective_leave(o->session.ranks, err);
        collective_close(o->session.ranks);
    } else {
        wait_and_drain(&s);
        status = models_join(&s, err);
        prepare_close(&s); /* before the daemon: it must have no suspended connection */
        for (int i = 0; i < 100 && atomic_load(&s.exchanges); i++) /* answers on their way */
            pause_ns(POLL_NS / 5);
        http_close(&s);
        if (status == OATO_NEGATIVE) /* the signal came while the model was loaded */
            status = OATO_OK;
    }
    program_ends((int)status, status ? err : NULL);
    if (models_close(&s, &log) && !status) {
        status = log.status;
        *err = log;
    }
    response_store_free(s.responses);
    list_free(&s.keys);
    list_free(&s.hosts);
    list_free(&s.origins);
    return status;
}

oato_status server_run(const struct server_options *o, struct oato_error *err)
{
    struct server_options own = *o;
    struct session session;
    own.session.candidates = CANDIDATES;
    own.session.engine.saves_texts = o->slot_save_path != NULL;
    own.session.engine.prompt_cache_bytes = (uint64_t)o->prompt_cache_mib << 20;
    if (!own.session.plan && !own.session.make_plan && !own.session.engine.embeddings)
        own.session.engine.rows = own.session.engine.seqs + PROMPT_ROWS;
    own.session.engine.states = !own.session.engine.embeddings;
    oato_status status = session_join(&own.session, err);
    if (status)
        return status;
    const int32_t ranks = collective_ranks(own.session.ranks);
    if (ranks > 1 && own.models) {
        oato_fail(err, OATO_EUSAGE, "--models: ranks serve one model; give one file");
        collective_leave(own.session.ranks, err);
    }
    if (own.models) { /* each session has its own */
        collective_close(own.session.ranks);
        own.session.ranks = NULL;
        return ranks > 1 ? err->status : serve(&own, err);
    }
    if (ranks > 1)
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
