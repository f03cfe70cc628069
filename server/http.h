/*
 * http.h - HTTP on libmicrohttpd: requests and their answers (http.c, routes.c, info.c, page.c),
 * and the threads between them and the engine (prepare.c), so that nobody waits for a long request.
 */
#ifndef OATO_SERVER_HTTP_H
#define OATO_SERVER_HTTP_H

#include "base/json_cost.h"
#include "net/connections.h"
#include "server/models.h"

enum { LANES = 3, LANE_THREADS = 4 };

/* Requests that wait to be prepared, short, long and vast ones: prepare.c. */
struct preparation {
    struct lane {
        struct exchange *first;
        pthread_cond_t wake;
    } lane[LANES];
    pthread_mutex_t lock;
    struct lane_thread {
        struct preparation *of;
        int32_t lane;
        pthread_t id;
    } thread[LANE_THREADS];
    int32_t n_threads;
    bool stop;
};

struct server {
    const struct server_options *options;
    struct list keys, hosts, origins;
    struct models models;
    atomic_bool ending; /* no new requests */
    struct response_store *responses;
    time_t started;
    atomic_int exchanges;     /* requests whose answers are not sent yet */
    atomic_size_t held_bytes; /* of bodies */
    struct preparation preparation;
    struct listeners listeners;
    struct MHD_Daemon *http; /* NULL: not started */
};
/* One request and its answer. */
struct exchange {
    struct server *server;
    struct instance *instance; /* that answers; the first one until it is known */
    bool taken;                /* it stays loaded for this request: models_take */
    uint64_t awaits_ns;        /* since when it waits for a model */
    struct MHD_Connection *connection;
    const struct route *route;
    unsigned method; /* METHOD_ of it; 0: another */
    char *rest;      /* of the path: what stands at the * of the route's, decoded; or NULL */
    struct text body;
    bool too_large;
    size_t n_prompt;  /* tokens of a prompt that does not fit */
    int32_t client;   /* number of its key */
    char id[24];      /* told as dialect.id_header says; "": not made yet */
    char started[24]; /* of /metrics: the header Process-Start-Time-Unix; "": none */
    char allow[40];   /* of a path that lacks the method: the field Allow */
    char etag[24];    /* of a file of the page; "": the answer is none */
    struct job *job;
    json_t *query;        /* what stands behind the ? and is known here; NULL: nothing does */
    json_t *json;         /* the body, where it was parsed, until the request is prepared */
    json_t *fields;       /* "response_fields" of it */
    json_t *kept;         /* of it, for what the answer repeats: dialect.request */
    enum ask_kind kind;   /* of what dialect.request has made of it; before: the dialect's */
    bool unsupported;     /* a failure is the model's, which cannot do what is asked for */
    struct budget budget; /* until a job has it */
    /* prepare.c */
    enum { PREPARE_NOT, PREPARING, PREPARED } preparing;
    bool failed; /* there is no answer: the connection is closed */
    unsigned status;
    struct MHD_Response *response; /* NULL: the job has it */
    struct exchange *next;         /* in the lane */
    uint64_t queued_ns, looked_ns;
    size_t held_bytes; /* of server.held_bytes */
    bool crowded;      /* other bodies left no room for this one */
};

/* prepare.c: route->answer in another thread, or answer_whole where the request has a job, which
 * has ended; meanwhile the connection is suspended. */
enum MHD_Result prepare_later(struct exchange *x);
oato_status prepare_open(struct server *s, struct oato_error *err);
/* By whoever has a request that was prepared, or waited for a model: it is answered or, without a
 * result, given up; or goes back to its lane. */
void prepare_end(struct exchange *x, enum MHD_Result result);
void prepare_again(struct exchange *x);
/* What waits is answered with 503, what runs is given up. */
void prepare_close(struct server *s);
/* The body is not needed any more. */
void body_release(struct exchange *x);
/* Whether the client of a suspended connection, which libmicrohttpd does not watch, is gone. One
 * that only sends no more waits for its answer. */
bool client_went(struct MHD_Connection *c);
/* Makes a job of what is asked, which is taken over: of x->json's messages, or of the prompts
 * (routes.c). */
enum MHD_Result answers_begin(struct exchange *x, struct ask *ask, const json_t *prompts);
/* The whole answer of x->job, which has ended. By any thread. */
enum MHD_Result answer_whole(struct exchange *x);
/* Hands the job, which is taken over, to the engine thread; 503 when too many wait. */
enum MHD_Result job_begin(struct exchange *x, struct job *j);
/* cors.c: what pages of other sites may ask and read. */
void cors_add(struct exchange *x, struct MHD_Response *r);
enum MHD_Result preflight(struct exchange *x);
/* Answers with a response, which is taken over; NULL: memory is short. */
enum MHD_Result respond(struct exchange *x, unsigned status, const char *type,
                        struct MHD_Response *r);
oato_status http_open(struct server *s, struct oato_error *err);
void http_close(struct server *s);

#define JSON_TYPE "application/json; charset=utf-8"
enum MHD_Result reply(struct exchange *x, unsigned status, const char *type, const char *text,
                      size_t n);
/* t is freed. */
enum MHD_Result reply_json(struct exchange *x, struct text *t);
/* {"error": ..}, as OpenAI has it. */
enum MHD_Result reply_error(struct exchange *x, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The client names the version of Anthropic's interface that it knows. */
bool asks_anthropic(const struct exchange *x);
/* 503: the server is ending. */
enum MHD_Result reply_ending(struct exchange *x);
/* That of a message: its status tells whose fault it is. */
enum MHD_Result reply_failure(struct exchange *x, const struct oato_error *err);

/* The request as a JSON object; NULL, and err says why. Borrowed from x, whose body goes then;
 * body_parse leaves it there. */
json_t *body_json(struct exchange *x, struct oato_error *err);
json_t *body_parse(struct exchange *x, struct oato_error *err);

/* ---------------------------------------------------------------------- routes (routes.c) --- */

/* GET: also HEAD. */
enum { METHOD_GET = 1, METHOD_POST = 2, METHOD_DELETE = 4 };

struct route {
    const char *path; /* a * in it stands for any text but an empty one: exchange.rest */
    unsigned methods;
    bool open;    /* without a key */
    bool loading; /* also before the model is there */
    enum MHD_Result (*answer)(struct exchange *x);
    const struct dialect *dialect; /* that errors are told in; NULL: OpenAI's, and a GET, which
                                      takes no time, is answered by an HTTP thread */
};
/* members.c: reads x->query. OATO_EUSAGE names what is refused. */
oato_status query_members(struct exchange *x, enum ask_kind kind, struct oato_error *err);
/* What is told of a list of n: at most as many as x->query's "limit" says, or `otherwise`; behind
 * the element number `after`, or in front of `before` (-1: not asked for). */
struct page {
    int64_t from, end;
    bool more;
};
struct page page_of(const struct exchange *x, int64_t n, int64_t after, int64_t before,
                    int64_t otherwise);
/* Answers a request that is there, or has it prepared: of a route, or with an error. */
enum MHD_Result dispatch(struct exchange *x, const char *method, const char *path);
/* info.c: what is told about the server, and its tokens. */
enum MHD_Result route_props(struct exchange *x);
enum MHD_Result route_page(struct exchange *x);
/* Of answers that have an ETag: names and values in turn, then NULL. */
extern const char *const page_headers[];
enum MHD_Result route_openapi(struct exchange *x);
/* What /openapi.json says: openapi.json and the sampler's options. NULL: memory is short. */
json_t *openapi_make(const struct sampler_options *defaults);
/* responses.c */
enum MHD_Result route_response(struct exchange *x);
enum MHD_Result route_response_refuse(struct exchange *x);
enum MHD_Result route_slots(struct exchange *x);
enum MHD_Result route_slot(struct exchange *x); /* slots.c */
enum MHD_Result route_embeddings(struct exchange *x);
enum MHD_Result route_complete(struct exchange *x);
/* ollama.c, ollama_models.c */
enum MHD_Result route_ollama(struct exchange *x);
enum MHD_Result route_ollama_models(struct exchange *x);
enum MHD_Result route_ollama_show(struct exchange *x);
enum MHD_Result route_ollama_version(struct exchange *x);
enum MHD_Result route_ollama_refuse(struct exchange *x);
enum MHD_Result route_metrics(struct exchange *x);
enum MHD_Result route_tokenize(struct exchange *x);
enum MHD_Result route_tokenizer(struct exchange *x);
enum MHD_Result route_detokenize(struct exchange *x);
enum MHD_Result route_template(struct exchange *x);
enum MHD_Result route_count(struct exchange *x);

#endif
