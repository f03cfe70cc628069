/*
 * http.c - libmicrohttpd underneath: connections, bodies within their limit, and answers that
 * arrive later. While an answer is being made its connection is suspended and costs no thread;
 * job_wake lets it go on.
 */
#include "server/server_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    HTTP_THREADS = 4,
    HEADERS_BYTES = 32 << 10, /* of a connection: its request's head and its answer's */
    HELD_BYTES = 32 << 20,    /* of all bodies, or four of the largest */
    PART_BYTES = 64 << 10,    /* of a body, which may take --idle */
    NUMBERS_AT_ONCE = 50000   /* that are written meanwhile: some 30 ms; others wait for them */
};

static struct peer *peer_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

bool client_went(struct MHD_Connection *c)
{
    return peer_went(peer_of(c));
}

/* --------------------------------------------------------------------------------- replies --- */

static void header(struct MHD_Response *r, const char *name, const char *value)
{
    MHD_add_response_header(r, name, value);
}

bool asks_anthropic(const struct exchange *x)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "anthropic-version");
}

/* In which errors are told: the route's, or that of a client who names Anthropic's version. */
static const struct dialect *dialect_of(const struct exchange *x)
{
    if (x->route && x->route->dialect)
        return x->route->dialect;
    return asks_anthropic(x) ? &dialect_messages : &dialect_chat;
}

static const char *request_id(struct exchange *x)
{
    uint64_t r;
    if (!*x->id && getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        r = now_ns();
    if (!*x->id)
        snprintf(x->id, sizeof x->id, "req_%016llx", (unsigned long long)r);
    return x->id;
}

static void headers_add(struct exchange *x, struct MHD_Response *r)
{
    cors_add(x, r);
    header(r, "Server", "oato-serve");
    for (size_t i = 0; *x->etag && page_headers[i]; i += 2)
        header(r, page_headers[i], page_headers[i + 1]);
    if (*x->etag)
        header(r, "ETag", x->etag);
}

/* By the connection's own thread. */
static enum MHD_Result response_queue(struct exchange *x)
{
    peer_answers(peer_of(x->connection));
    const enum MHD_Result result = MHD_queue_response(x->connection, x->status, x->response);
    MHD_destroy_response(x->response);
    x->response = NULL;
    return result;
}

enum MHD_Result respond(struct exchange *x, unsigned status, const char *type,
                        struct MHD_Response *r)
{
    if (!r)
        return MHD_NO;
    headers_add(x, r);
    header(r, "Content-Type", type);
    if (*x->started)
        header(r, "Process-Start-Time-Unix", x->started);
    if (dialect_of(x)->id_header)
        header(r, dialect_of(x)->id_header, request_id(x));
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        header(r, "Retry-After", "1");
    if (status == MHD_HTTP_UNAUTHORIZED)
        header(r, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        header(r, "Allow", x->allow);
    x->status = status;
    x->response = r;
    return x->preparing == PREPARING ? MHD_YES : response_queue(x);
}

enum MHD_Result reply(struct exchange *x, unsigned status, const char *type, const char *text,
                      size_t n)
{
    return respond(x, status, type,
                   MHD_create_response_from_buffer(n, (void *)text, MHD_RESPMEM_MUST_COPY));
}

/* t is taken over; MHD_NO: memory is short. */
static enum MHD_Result reply_text(struct exchange *x, unsigned status, struct text *t)
{
    struct MHD_Response *r =
        t->failed ? NULL : MHD_create_response_from_buffer(t->len, t->data, MHD_RESPMEM_MUST_FREE);
    if (!r)
        text_free(t);
    return respond(x, status, JSON_TYPE, r);
}

enum MHD_Result reply_json(struct exchange *x, struct text *t)
{
    if (!t->failed)
        return reply_text(x, MHD_HTTP_OK, t);
    text_free(t);
    return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "memory is short");
}

const char *error_type(unsigned status)
{
    switch (status) {
    case MHD_HTTP_UNAUTHORIZED: return "authentication_error";
    case MHD_HTTP_NOT_FOUND: return "not_found_error";
    case MHD_HTTP_NOT_IMPLEMENTED: return "not_supported_error";
    case MHD_HTTP_SERVICE_UNAVAILABLE: return "unavailable_error";
    case MHD_HTTP_INTERNAL_SERVER_ERROR: return "server_error";
    default: return "invalid_request_error";
    }
}

void error_json(struct text *t, unsigned status, const char *message)
{
    json_open(t, NULL, '{');
    json_add_object(t, "error", JSON("code", status), JSON("message", message),
                    JSON("type", error_type(status)));
    json_close(t, '}');
}

enum MHD_Result reply_error(struct exchange *x, unsigned status, const char *fmt, ...)
{
    struct text t;
    char message[600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    text_init(&t);
    dialect_of(x)->error(&t, status, message);
    if (dialect_of(x)->id_header && t.len) {
        t.len--; /* another member of the object */
        json_add(&t, JSON("request_id", request_id(x)));
        json_close(&t, '}');
    }
    return reply_text(x, status, &t);
}

static unsigned failure_status(const struct oato_error *err)
{
    const bool theirs = !oato_failed_memory(err) && err->status != OATO_EDEVICE;
    return theirs ? MHD_HTTP_BAD_REQUEST : MHD_HTTP_INTERNAL_SERVER_ERROR;
}

/* A request that does not fit has an error of its own, which clients look for. */
static enum MHD_Result reply_unfit(struct exchange *x, const struct oato_error *err)
{
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add_object(&t, "error", JSON("code", MHD_HTTP_BAD_REQUEST),
                    JSON("message", (const char *)err->text),
                    JSON("type", "exceed_context_size_error"), JSON("n_prompt_tokens", x->n_prompt),
                    JSON("n_ctx", x->instance->context));
    json_close(&t, '}');
    return reply_text(x, MHD_HTTP_BAD_REQUEST, &t);
}

enum MHD_Result reply_ending(struct exchange *x)
{
    return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "the server is ending");
}

enum MHD_Result reply_failure(struct exchange *x, const struct oato_error *err)
{
    const bool known = x->taken || x->server->models.alone;
    if (known && atomic_load(&x->instance->now)) /* what is prepared has been cancelled */
        return reply_ending(x);
    const char *too_long = dialect_of(x)->too_long;
    if (err->status == OATO_EFIT && x->n_prompt && too_long)
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "%s%zu tokens > %d maximum", too_long,
                           x->n_prompt, x->instance->context);
    if (err->status == OATO_EFIT && x->n_prompt)
        return reply_unfit(x, err);
    return reply_error(x, x->unsupported ? MHD_HTTP_NOT_IMPLEMENTED : failure_status(err), "%s",
                       err->text);
}

/* --------------------------------------------------------------- answers that come later --- */

/* What a stream sends next. With the job's lock. False: nothing yet. */
static bool stream_fill(struct job *j)
{
    j->out.len = j->out_sent = 0;
    const bool ended = j->n_ended == j->n_choices;
    if (j->error.status && ended)
        j->ask.dialect->failed(j, &j->out);
    else
        j->ask.dialect->events(j, &j->out);
    if (ended && !j->error.status)
        text_printf(&j->out, "%s", or_empty(j->ask.dialect->done));
    j->out_last = ended;
    return j->out.len > 0;
}

static ssize_t stream_read(void *cls, uint64_t at, char *to, size_t max)
{
    struct job *j = cls;
    (void)at;
    if (j->out_sent == j->out.len && j->out_last)
        return MHD_CONTENT_READER_END_OF_STREAM;
    pthread_mutex_lock(&j->lock);
    bool more = j->out_sent < j->out.len || (!j->cancelled && stream_fill(j));
    const bool gone = (j->cancelled && !more) || j->out.failed;
    if (!more && !gone && !j->out_last) {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&j->lock);
    if (gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (!more)
        return j->out_last ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    const size_t n = (size_t)min_i64((int64_t)(j->out.len - j->out_sent), (int64_t)max);
    memcpy(to, j->out.data + j->out_sent, n);
    j->out_sent += n;
    return (ssize_t)n;
}

static enum MHD_Result stream_begin(struct exchange *x)
{
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, stream_read, x->job, NULL);
    if (r)
        header(r, "Cache-Control", "no-cache");
    return respond(x, MHD_HTTP_OK, x->job->ask.dialect->stream_type, r);
}

enum MHD_Result answer_whole(struct exchange *x)
{
    struct text whole;
    text_init(&whole);
    x->job->ask.dialect->whole(x->job, &whole);
    if (x->job->ask.kind == ASK_NATIVE)
        fields_pick(&whole, x->fields);
    return reply_json(x, &whole);
}

/* Called with a new job, and again whenever its connection was let go on. A stream begins with its
 * first text, so that what fails before that has a status of its own. */
static enum MHD_Result job_answer(struct exchange *x)
{
    struct job *j = x->job;
    struct oato_error error;
    pthread_mutex_lock(&j->lock);
    const bool ended = j->n_ended == j->n_choices, gone = j->cancelled;
    bool begun = false;
    for (int32_t i = 0; i < j->n_choices; i++)
        begun = begun || j->choices[i]->n_tokens || j->choices[i]->n_progress;
    const bool wait = !gone && !ended && !(j->ask.stream && begun);
    error = j->error;
    const unsigned status = job_status(j);
    if (wait) {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&j->lock);
    if (wait)
        return MHD_YES;
    if (error.status && (!j->ask.stream || !begun))
        return reply_error(x, status, "%s", error.text);
    if (gone)
        return MHD_NO;
    if (j->ask.stream)
        return stream_begin(x);
    return job_numbers(j) + json_array_size(x->fields) * (size_t)j->n_choices > NUMBERS_AT_ONCE
               ? prepare_later(x)
               : answer_whole(x);
}

enum MHD_Result job_begin(struct exchange *x, struct job *j)
{
    x->job = j;
    j->connection = x->connection;
    j->ask.budget.cancelled = NULL; /* it outlives the exchange */
    if (loop_submit(j))
        return MHD_YES; /* job_answer follows */
    x->job = NULL;
    job_release(j);
    if (x->instance->stop) /* a signal came meanwhile */
        return reply_ending(x);
    return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "too many requests wait; try again later");
}

/* -------------------------------------------------------------------------------- requests --- */

static enum MHD_Result begin(struct server *s, struct MHD_Connection *c, void **context)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return MHD_NO;
    *context = x;
    x->server = s;
    x->instance = s->models.of[0];
    x->connection = c;
    text_init(&x->body);
    atomic_fetch_add(&s->exchanges, 1);
    peer_await(peer_of(x->connection), true);
    return MHD_YES;
}

static void body_take(struct exchange *x, const char *data, size_t n)
{
    struct server *s = x->server;
    const size_t limit = (size_t)s->options->body_kib << 10;
    const size_t all = limit > HELD_BYTES / 4 ? 4 * limit : HELD_BYTES;
    if (x->body.len / PART_BYTES != (x->body.len + n) / PART_BYTES)
        peer_await(peer_of(x->connection), true);
    x->too_large = x->too_large || x->body.len + n > limit;
    x->crowded = x->crowded || (!x->too_large && atomic_load(&s->held_bytes) + n > all);
    if (x->too_large || x->crowded) {
        const size_t counted = x->body.len + n; /* and not kept */
        body_release(x);
        x->body.len = counted;
        return;
    }
    text_add(&x->body, data, n);
    atomic_fetch_add(&s->held_bytes, n);
    x->held_bytes += n;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **context)
{
    struct exchange *x = *context;
    (void)version;
    if (!x)
        return begin(cls, c, context);
    if (x->failed)
        return MHD_NO;
    if (x->response)
        return response_queue(x);
    if (x->job)
        return job_answer(x);
    if (!*n) {
        peer_await(peer_of(x->connection), false);
        return dispatch(x, method, path);
    }
    body_take(x, data, *n);
    *n = 0;
    return x->body.len > HEAD_BODY_BYTES ? MHD_NO : MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **context,
                         enum MHD_RequestTerminationCode how)
{
    struct exchange *x = *context;
    struct server *s = cls;
    (void)c;
    (void)how;
    if (!x)
        return;
    if (x->job) {
        pthread_mutex_lock(&x->job->lock);
        x->job->connection = NULL;
        x->job->cancelled = true;
        pthread_mutex_unlock(&x->job->lock);
        job_release(x->job);
    }
    models_leave(x);
    peer_await(peer_of(x->connection), true); /* the next request */
    peer_answered(peer_of(x->connection));
    if (x->response)
        MHD_destroy_response(x->response);
    body_release(x);
    json_decref(x->json);
    json_decref(x->fields);
    json_decref(x->kept);
    json_decref(x->query);
    free(x->rest);
    free(x);
    *context = NULL;
    atomic_fetch_sub(&s->exchanges, 1);
}

/* ----------------------------------------------------------------------------- the daemon --- */

/* In place of the system's, for libmicrohttpd. */
ssize_t recv(int fd, void *to, size_t n, int flags)
{
    return peers_recv(fd, to, n, flags);
}

/* Of peers_open: no exchange has been made for it. */
static void refuse(const struct head *h, struct text *out)
{
    struct text body;
    char date[40] = "";
    const time_t now = time(NULL);
    struct tm day;
    text_init(&body);
    error_json(&body, h->status, h->why);
    if (gmtime_r(&now, &day))
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &day);
    text_printf(out,
                "HTTP/1.1 %u %s\r\nDate: %s\r\nServer: oato-serve\r\n"
                "Content-Type: application/json; charset=utf-8\r\nContent-Length: %zu\r\n"
                "Connection: close\r\n\r\n",
                h->status, MHD_get_reason_phrase_for(h->status), date, body.len);
    text_add(out, or_empty(body.data), body.len);
    text_free_part(&body, out);
}

static bool on_accept(void *user, int fd, const struct sockaddr *from, socklen_t n)
{
    struct server *s = user;
    return MHD_add_connection(s->http, fd, from, n) == MHD_YES;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct server *s = cls;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = /* NULL: it has been shut down */
            peer_add(MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
        return;
    }
    peer_remove(*context);
    *context = NULL;
    atomic_fetch_sub(&s->listeners.open, 1);
}

/* To be read by whoever started the server. */
static void tell_address(const struct server *s, const char *host, const char *port)
{
    const bool v6 = strchr(host, ':') != NULL;
    text_tell("oato-serve: listening at http://%s%s%s:%s, ", v6 ? "[" : "", host, v6 ? "]" : "",
              port);
    if (s->models.alone)
        text_tell("loading %s\n", s->models.of[0]->name);
    else
        text_tell("serving %d model%s\n", s->models.n, s->models.n == 1 ? "" : "s");
}

oato_status http_open(struct server *s, struct oato_error *err)
{
    const struct server_options *o = s->options;
    char port[16];
    s->listeners = (struct listeners){
        .most = o->connections, .idle_s = o->idle_s, .take = on_accept, .user = s};
    snprintf(port, sizeof port, "%d", o->port);
    oato_status status = listeners_open(&s->listeners, s->hosts.item, port, err);
    if (!status)
        status = peers_open(o->idle_s, refuse, err);
    if (!status)
        s->http = MHD_start_daemon(
            MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                MHD_USE_NO_LISTEN_SOCKET,
            0, NULL, NULL, on_request, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_THREAD_POOL_SIZE,
            (unsigned)HTTP_THREADS, MHD_OPTION_CONNECTION_LIMIT,
            (unsigned)o->connections * HTTP_THREADS, /* any thread may get all */
            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)o->idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
            (size_t)HEADERS_BYTES, MHD_OPTION_END);
    if (!status && !s->http)
        status = oato_fail(err, OATO_EIO,
                           "cannot start the HTTP threads; allow more open files "
                           "(ulimit -n) or fewer --connections");
    if (!status)
        status = listeners_start(&s->listeners, err);
    for (int32_t i = 0; s->hosts.item[i] && !status; i++)
        tell_address(s, s->hosts.item[i], port);
    if (status)
        http_close(s);
    return status;
}

void http_close(struct server *s)
{
    listeners_close(&s->listeners);
    if (s->http)
        MHD_stop_daemon(s->http);
    s->http = NULL;
}
