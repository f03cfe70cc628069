/*
 * server_internal.h - the parts of the server and the two kinds of threads between them. HTTP
 * threads take requests and write answers, others prepare them (prepare.c) so that nobody waits for
 * a long one; the engine thread (loop.c) owns session, batch and samplers. A `job` is what they
 * share: made by an HTTP thread, answered by the engine thread.
 */
#ifndef OATO_SERVER_INTERNAL_H
#define OATO_SERVER_INTERNAL_H

#include "executor/restore.h"
#include "server/scheduler.h"
#include "server/server.h"
#include "text/grammar.h"
#include "text/sampling.h"

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* --------------------------------------------------------------------- stop words (stops.c) --- */

enum { STOPS_MAX = 16 };

struct stops {
    char *word[STOPS_MAX]; /* of malloc; none is empty */
    int32_t n;
};
/* Looks for the words in text that arrives in pieces, and holds back what may begin one. */
struct stop_filter {
    const struct stops *of;
    struct text held;
    const char *hit; /* the word that was found: nothing passes any more */
};
/* Appends to out the text that no word touches; last: nothing follows, so nothing is held back. */
void stop_filter_push(struct stop_filter *f, const char *s, size_t n, bool last, struct text *out);

extern const char *const pooling_names[]; /* by enum pooling */

/* ------------------------------------------------------------------------------- jobs (job.c) */

/* What addresses know the same members: /completion, /v1/completions, chat, embeddings, tokens. */
enum ask_kind {
    ASK_NATIVE,
    ASK_TEXT,
    ASK_CHAT,
    ASK_EMBED,
    ASK_TOKENIZE, /* no job is made of these two */
    ASK_DETOKENIZE
};

/* What a request asks for besides its prompts. */
struct ask {
    enum ask_kind kind;
    bool openai, base64; /* of embeddings */
    struct sampler_options sampling;
    struct stops stops;
    struct logit_bias *bias; /* of sampling */
    size_t bias_cap;
    struct dry_breakers *breakers; /* of sampling */
    struct budget budget;          /* of what its text makes us do */
    struct grammar *grammar;       /* that answers follow; NULL: none */
    const char *gbnf;              /* its text, if the request has one: borrowed from that */
    int32_t client;                /* number of its key, 0 without */
    int32_t most;                  /* tokens of an answer; -1: no limit */
    int32_t n;                     /* answers to each prompt */
    bool stream, usage, tokens, ignore_end, echo, timings, verbose, progress;
    char id[40];
    time_t created;
};

struct call {
    char *name, *arguments;
};

/* So many tokens of the prompt were in the KV cache at that time. */
struct prompt_progress {
    int32_t fed;
    uint64_t ns;
};

/* Why an answer ended; endings.c has what its client is told. */
enum ending {
    ENDING_STOP,      /* the model ended it */
    ENDING_WORD,      /* a stop word */
    ENDING_CALLS,     /* the model ended it, and it calls tools */
    ENDING_LIMIT,     /* its most tokens */
    ENDING_CONTEXT,   /* the context is full */
    ENDING_REQUEST,   /* error: what was asked for cannot be done */
    ENDING_MEMORY,    /* error: memory is short */
    ENDING_ENGINE,    /* error: a step failed */
    ENDING_DEVICE,    /* error: a device or a rank is lost */
    ENDING_SHUTDOWN,  /* error: the server ends */
    ENDING_CANCELLED, /* error: cut by anything else */
};

/* Where the next token begins in a text that is sent: behind so many characters and the first bytes
 * of another. */
struct text_place {
    size_t chars, n_begun;
    char begun[4];
};

/* One answer. What the engine thread writes is under the job's lock. */
struct choice {
    struct job *job;
    int32_t *ids, n_ids; /* the prompt */
    struct text prompt;  /* its text, where answers repeat it */
    struct sampler *sampler;
    struct grammar_state *follows; /* of the sampler; NULL: no grammar */
    struct thinking *thinking;     /* in front of it; NULL: not there */
    struct answer_text told;
    struct stop_filter stop;
    struct text says, thinks;
    struct call *calls;
    int32_t *tokens;
    struct token_prob *probs;  /* per_token of each token: itself, then the most likely ones */
    struct token_prob *scores; /* of the prompt: per_token of each token but the first; NULL: not
                                  asked for, or another answer has them */
    int32_t n_scored;          /* tokens that have theirs */
    size_t n_ends;             /* 1: probs has the token that ended the answer, too */
    size_t n_calls, n_tokens, n_probs, per_token, calls_cap, tokens_cap, probs_cap;
    bool ended, failed; /* failed: memory was short */
    enum batch_end why;
    uint64_t asked_ns, begun_ns, first_ns, last_ns;
    uint64_t swap_ns; /* that the last swapping out took */
    int32_t cached;   /* tokens of the prompt that were there already */
    struct prompt_progress *progress;
    size_t n_progress, progress_cap;
    float *rows; /* of embeddings: a pooled one, or n_rows */
    size_t n_rows;
    uint64_t id; /* in the batch; 0: not there */
    /* of an HTTP thread: what a stream has sent */
    size_t sent_says, sent_thinks, sent_calls, sent_tokens, sent_progress;
    struct text_place place;
    bool begun, sent_end;
};

/* The answers that a request waits for. Freed by the second of its two owners. */
struct job {
    struct server *server;
    struct ask ask;
    struct choice **choices;
    int32_t n_choices, n_ended;
    int32_t n_added; /* of the engine thread: choices that the batch has or had */
    pthread_mutex_t lock;
    int32_t owners;
    bool cancelled;                    /* the client went */
    bool suspended;                    /* its connection waits for job_wake */
    struct MHD_Connection *connection; /* NULL once it is closed */
    struct oato_error error;           /* status 0: none */
    enum ending ending;                /* of the error */
    size_t n_unfit;                    /* tokens of a prompt that does not fit */
    struct job *next;                  /* in the list of the engine thread */
    struct text out;                   /* of an HTTP thread: what a stream is about to send */
    size_t out_sent;
    bool out_last;
};

/* NULL when memory is short; then *ask is still the caller's. */
struct job *job_create(struct server *s, const struct ask *ask);
/* Adds an answer to a prompt, whose ids are taken over even on failure. Before loop_submit. */
oato_status job_add(struct job *j, int32_t *ids, int32_t n_ids, struct oato_error *err);
void job_release(struct job *j);
/* With the job's lock: lets its connection go on, if it waits. */
void job_wake(struct job *j);
/* Callbacks of the batch; user is a choice. */
void choice_begin(void *user, int32_t cached);
void choice_fed(void *user, int32_t fed);
bool choice_token(void *user, int32_t id);
void choice_end(void *user, enum batch_end why);
void choice_score(void *user, const float *row); /* batch_request.on_row */

/* endings.c. What an answer that has ended tells: both NULL where it is an error. */
enum ending choice_ending(const struct choice *c);
const char *ending_finish(enum ending e);
const char *ending_stop_type(enum ending e);
unsigned job_status(const struct job *j); /* of HTTP, once its answers have ended */
/* With the job's lock: it ends as an error, unless it has one already. step: of a step of the
 * engine, which is never the client's fault. job_cut: it did not fail, but is cut short. */
void job_fail(struct job *j, const struct oato_error *err, bool step);
void job_fail_memory(struct job *j, size_t bytes);
void job_cut(struct job *j, bool shutdown);
/* embed.c: batch_request.on_row, and the whole answer. */
void choice_row(void *user, const float *row);
void embeddings_whole(struct job *j, struct text *out);

/* ------------------------------------------------------------------------ the server (server.c) */

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING, SERVER_ENDED };

/* What deciding took. */
struct policy_times {
    uint64_t decide_ns, predict_ns; /* predict_ns: of decide_ns, for costs of restoring */
};

struct server_counts {
    uint64_t prompt_tokens, cached_tokens, answer_tokens, requests, cancelled;
    size_t longest; /* prompt and answer */
    int32_t n_busy; /* answers that the batch has */
    struct batch_times times;
    struct policy_times policy;
};

enum { SEEN_MAX = 256, SEEN_NS = 50000000 };

/* The requests of the batch, as of a step ago: page.c. */
struct seen {
    struct seen_request {
        uint64_t id;
        int32_t prompt, generated, pages;
    } running[SEEN_MAX];
    int32_t n_running, n_waiting, n_swapped;
    int64_t generated; /* tokens of answers that have not ended */
    int32_t pages, pages_free, pages_cached;
};

enum { HOSTS_MAX = 8 };

/* Of each host: listen.c. */
struct listeners {
    int fd[HOSTS_MAX];
    int32_t n;
    bool accepting; /* the thread runs */
    atomic_bool closing;
    pthread_t thread;
};

/* A connection, and since when a request is awaited or arrives at it; 0: none is. */
struct peer {
    int fd;
    uint64_t since_ns;
    struct peer *next, **at;
};

struct peers {
    pthread_mutex_t lock;
    struct peer *first;
};

enum { LANES = 3, LANE_THREADS = 4 };

/* Requests that wait to be prepared, short, long and vast ones: prepare.c. */
struct preparation {
    struct lane {
        struct exchange *first;
        pthread_cond_t wake;
    } lane[LANES];
    pthread_mutex_t lock;
    pthread_t thread[LANE_THREADS];
    int32_t n_threads;
    bool stop;
};

/* A list of the command line. */
struct list {
    struct text text;
    const char **item; /* NULL-terminated; NULL: there is none */
};

struct server {
    const struct server_options *options;
    struct session
        session; /* of the engine thread; model, tokenizer and sampling are only read by others */
    struct chat_template *template; /* NULL: no_template says why */
    char no_template[512];
    int32_t context; /* most positions of one request */
    char model[128]; /* its name in answers */
    struct list keys, hosts, origins, aliases, tags;
    time_t started;
    atomic_int state;         /* enum server_state */
    atomic_bool stop, now;    /* the engine thread ends: when nothing is left, or at once */
    atomic_int exchanges;     /* requests whose answers are not sent yet */
    atomic_size_t held_bytes; /* of bodies */
    size_t longest;           /* bytes of a token at most; 0: no limit */
    struct preparation preparation;
    struct listeners listeners;
    struct peers peers;
    struct sampler_scratch *scratch; /* of all samplers: the engine thread picks */
    atomic_int connections;          /* that are open */
    struct MHD_Daemon *http;         /* NULL: not started */
    enum pooling { POOLING_LAST, POOLING_MEAN, POOLING_NONE } pooling;
    struct scheduler *scheduler;
    struct restore_predictor *costs;
    int32_t beside;              /* answers that ran beside another one at the last decision */
    FILE *decisions;             /* its log; NULL: none */
    struct grammar_vocab *vocab; /* made when it is first needed, under vocab_lock */
    pthread_mutex_t vocab_lock;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* of the engine thread */
    struct job *incoming, **incoming_end;
    int32_t n_live; /* answers that were asked for and have not ended */
    struct server_counts counts;
    struct seen seen;
    /* of the engine thread */
    struct job *active;
    uint64_t looked_ns, seen_ns;
    int32_t n_seen, running_seen; /* requests at that time */
    struct policy_times policy;
    struct oato_error error;
};

/* Hands a job with all its answers to the engine thread. False: the queue is full. */
bool loop_submit(struct job *j);
/* The engine thread; returns when told to stop or when the engine fails. */
void *loop_run(void *server);

/* Makes the scheduler of --policy, when the keys are known. */
oato_status policy_open(struct server *s, struct oato_error *err);
/* What restoring takes, once the session is open. */
oato_status policy_costs(struct server *s, struct oato_error *err);
/* batch_options.schedule and .restored; user is the server. */
void policy_schedule(void *user, struct batch_view *v, int32_t n, const struct batch_room *room);
void policy_restored(void *user, const struct batch_restored *r);
/* OATO_EIO when the log of decisions could not be written. */
oato_status policy_close(struct server *s, struct oato_error *err);

/* ------------------------------------------------------------------------------- HTTP (http.c) */

/* One request and its answer. */
struct exchange {
    struct server *server;
    struct MHD_Connection *connection;
    const struct route *route;
    struct text body;
    bool too_large;
    size_t n_prompt;  /* tokens of a prompt that does not fit */
    int32_t client;   /* number of its key */
    char started[24]; /* of /metrics: the header Process-Start-Time-Unix; "": none */
    struct job *job;
    json_t *json;         /* the body, where it was parsed, until the request is prepared */
    json_t *fields;       /* "response_fields" of it */
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

/* prepare.c: route->answer in another thread; meanwhile the connection is suspended. */
enum MHD_Result prepare_later(struct exchange *x);
oato_status prepare_open(struct server *s, struct oato_error *err);
/* What waits is answered with 503, what runs is given up. */
void prepare_close(struct server *s);
/* Whether the client of a suspended connection, which libmicrohttpd does not watch, has closed it.
 */
bool client_went(struct MHD_Connection *c);
/* The body is not needed any more. */
void body_release(struct exchange *x);
/* listen.c: a connection begins, ends, or a request at it arrives (more of it) or has arrived. */
struct peer *peer_add(struct server *s, int fd);
void peer_remove(struct server *s, struct peer *p);
void peer_await(struct exchange *x, bool more);
/* Hands the job, which is taken over, to the engine thread; 503 when too many wait. */
enum MHD_Result job_begin(struct exchange *x, struct job *j);
/* Leaves of an answer of llama.cpp's form, or of a list of them, the fields that a request lists:
 * "a" or "a/b". */
void fields_pick(struct text *answer, const json_t *fields);
oato_status http_open(struct server *s, struct oato_error *err);
void http_close(struct server *s);

/* Sleeps; a signal ends it (server.c). */
void pause_ns(int64_t ns);

/* Listens at every address of --host; nothing is accepted yet. Port 0 becomes the one that was
 * found. */
oato_status listeners_open(struct server *s, char port[16], struct oato_error *err);
/* Accepts connections, which go to s->http, and tells the addresses. */
oato_status listeners_start(struct server *s, const char *port, struct oato_error *err);
/* Takes no more connections; those that are open stay. */
void listeners_close(struct server *s);

enum MHD_Result reply(struct exchange *x, unsigned status, const char *type, const char *text,
                      size_t n);
/* t is freed. */
enum MHD_Result reply_json(struct exchange *x, struct text *t);
/* {"error": ..}, as OpenAI has it. */
enum MHD_Result reply_error(struct exchange *x, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 503: the server is ending. */
enum MHD_Result reply_ending(struct exchange *x);
/* That of a message: its status tells whose fault it is. */
enum MHD_Result reply_failure(struct exchange *x, const struct oato_error *err);
void error_json(struct text *t, unsigned status, const char *message);

/* ------------------------------------------------------------- requests (params.c) --- */

/* The request as a JSON object; NULL, and err says why. Borrowed from x. */
json_t *body_json(struct exchange *x, struct oato_error *err);
enum { ANSWERS_MAX = 128, PROBS_MAX = 100 }; /* of a request, of a token */

/* members.c: a member that requests may have. */
struct member {
    const char *name;
    unsigned on;    /* MEMBER_ON of each kind */
    unsigned types; /* MEMBER_FLAG .. */
    size_t at;      /* in struct ask, by its only type: bool, int32_t or float; 0: read elsewhere */
    double least, most;
    bool idle;           /* changes no answer */
    const char *refused; /* would change it: what to do instead */
    /* Of a refused one, the values that ask for nothing besides false, "", [] and {}: a number (0
     * stands for all below it, too), words, true, the model's width; strict: no value does */
    double off;
    const char *off_text;
    bool off_true, off_width, strict;
};
#define MEMBER_ON(kind) (1u << (kind))
enum {
    MEMBER_FLAG = 1,
    MEMBER_WHOLE = 2,
    MEMBER_NUMBER = 4,
    MEMBER_TEXT = 8,
    MEMBER_LIST = 16,
    MEMBER_OBJECT = 32
};
extern const struct member members[]; /* the last one has no name */
/* Checks the members of a request, and sets those that stand in struct ask (NULL: nowhere). width:
 * of the model. */
oato_status request_members(const json_t *o, enum ask_kind kind, int32_t width, struct ask *ask,
                            struct oato_error *err);
/* Refuses a request with a zero byte in a text that is no text of the model's (zeros.c). */
oato_status zeros_check(const json_t *request, struct oato_error *err);
/* Reads what is asked for; members that are not known are ignored. */
oato_status ask_read(const struct server *s, const json_t *o, enum ask_kind kind,
                     const struct budget *budget, struct ask *ask, struct oato_error *err);
void ask_free(struct ask *ask);
/* constraint.c: the grammar that a request asks for, and a sampler that follows it. */
oato_status constraint_read(const json_t *o, struct ask *ask, struct oato_error *err);
oato_status constraint_begin(struct choice *c, struct oato_error *err);
/* When it is known how many answers share what the budget has left for their grammars. */
void constraints_share(struct job *j);
/* In a chat the grammar begins behind the reasoning, unless it is GBNF that has the reasoning's end
 * in it. After answer_text_read. */
oato_status constraint_think(struct choice *c, struct oato_error *err);
/* thinking.c: `follows` behind reasoning between two marks; begun: the prompt ends in it. NULL:
 * memory is short. */
struct thinking;
struct thinking *thinking_create(struct grammar_state *follows, const struct tokenizer *tokenizer,
                                 const char *begin, const char *end, bool begun);
struct sampler_constraint thinking_constraint(struct thinking *t);
void thinking_free(struct thinking *t);
/* calls.c: the answers to the prompt must call one of the tools, or several of them; only: this
 * one, unless NULL. */
oato_status calls_constrain(struct job *j, const json_t *tools, const char *only, bool several,
                            const struct text *prompt, struct oato_error *err);
/* A prompt, or several: adds their answers to the job. prompt_ids_add: that of n tokens. */
oato_status prompt_ids_add(struct job *j, const int32_t *ids, size_t n, struct oato_error *err);
oato_status prompts_add(struct job *j, const json_t *prompt, struct oato_error *err);
/* OATO_EFIT for a text of so many bytes that has too many tokens whatever it says. */
oato_status text_fits(struct job *j, size_t bytes, struct oato_error *err);
/* The text of a prompt for the messages of the request (which it changes), by the template. */
oato_status chat_prompt(const struct server *s, const json_t *o, struct budget *budget,
                        struct text *out, struct oato_error *err);
/* Adds the answers to the messages of the request. */
oato_status chat_add(struct job *j, const json_t *o, struct oato_error *err);
/* A list of text parts as one text; NULL where one is no text, or memory is short. */
json_t *parts_join(const json_t *parts, const char *between);
/* A whole number of a member within bounds; it keeps its value when the member is missing. */
oato_status json_int(const json_t *o, const char *name, int64_t least, int64_t most, int64_t *out,
                     struct oato_error *err);
oato_status json_flag(const json_t *o, const char *name, bool *out, struct oato_error *err);

/* ------------------------------------------------------------------------ answers (answers.c) */

/* Text of a token in JSON, and the settings that answers repeat. */
void token_add(struct text *t, const struct server *s, const char *key, int32_t id);
void settings_add(struct text *t, const struct ask *ask, const char *key);

/* logprobs.c. Of n tokens from `first` on, each with the most likely ones. */
void probs_add(struct text *t, const char *key, const struct choice *c, size_t first, size_t n);
/* "logprobs" of a choice, as the interface has it; null: not asked for. prompt: the choice whose
 * prompt's come first; NULL: none. */
void logprobs_add(struct text *t, struct choice *c, const struct choice *prompt, size_t first,
                  size_t n);

/* The whole answer, once all choices have ended. */
void answer_whole(struct job *j, struct text *out);
/* Appends what is new to a stream, as server-sent events. With the job's lock. */
void answer_events(struct job *j, struct text *out);
/* Appends the event of a stream that its error ends. */
void answer_error(struct job *j, struct text *out);

/* ---------------------------------------------------------------------- routes (routes.c) --- */

struct route {
    const char *path;
    bool post;
    bool open;    /* without a key */
    bool loading; /* also before the model is there */
    enum MHD_Result (*answer)(struct exchange *x);
};
/* NULL-terminated by path. */
extern const struct route routes[];
/* info.c: what is told about the server, and its tokens. */
enum MHD_Result route_props(struct exchange *x);
enum MHD_Result route_page(struct exchange *x);
enum MHD_Result route_openapi(struct exchange *x);
/* What /openapi.json says: openapi.json and the sampler's options. NULL: memory is short. */
json_t *openapi_make(const struct sampler_options *defaults);
/* Takes a new copy now and then, and when other requests wait or run. */
void seen_take(struct server *s, struct batch_view *v, int32_t n);
enum MHD_Result route_slots(struct exchange *x);
enum MHD_Result route_embeddings(struct exchange *x);
enum MHD_Result route_embeddings_native(struct exchange *x);
enum MHD_Result route_metrics(struct exchange *x);
enum MHD_Result route_tokenize(struct exchange *x);
enum MHD_Result route_tokenizer(struct exchange *x);
enum MHD_Result route_detokenize(struct exchange *x);
enum MHD_Result route_template(struct exchange *x);
enum MHD_Result route_count(struct exchange *x);

#endif
