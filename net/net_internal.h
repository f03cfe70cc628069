/*
 * net_internal.h - shared by the files of this room: requests (http.c), the hub's interface
 * (hub.c), and one file that is fetched (fetch.c).
 */
#ifndef OATO_NET_INTERNAL_H
#define OATO_NET_INTERNAL_H

#include "net/net.h"

enum { PATH_BYTES = 1024, HOST_BYTES = 256 };

#define PART_SUFFIX ".part" /* of a file that is being fetched */

/* The message after Ctrl-C. */
oato_status net_stopped(struct oato_error *err);
/* Sleeps, with a line of progress; false: Ctrl-C. */
bool net_wait(const char *what, double seconds);

/* ------------------------------------------------------------------------------ http.c ---- */

/* Sends requests; one thread at a time. */
struct http;

/* What a server said before the body. */
struct http_reply {
    long status;
    bool has_total;
    uint64_t total;   /* bytes of the whole file */
    uint64_t first;   /* of a 206: where the body begins */
    char etag[128];   /* without quotes */
    char linked[128]; /* X-Linked-Etag: the SHA-256 of a large file */
    char commit[65];  /* X-Repo-Commit */
    char code[64];    /* X-Error-Code */
    struct text next; /* the URL of the next page of a list */
    struct text url;  /* of http_get: where the last redirect led */
};
static inline void http_reply_free(struct http_reply *r)
{
    text_free(&r->next);
    text_free(&r->url);
}

/* Takes some of the body; false: enough, or it cannot be taken. Of http_get it is called with NULL
 * before each try: what came so far does not count. */
typedef bool (*http_sink)(void *user, const void *data, size_t bytes);

struct http_request {
    const char *url;
    bool ranged; /* only [first, last] */
    uint64_t first, last;
    http_sink sink;
    void *user;
};

/* origin: the token is sent to no other scheme, host and port than those of this URL; NULL: no
 * token. */
oato_status http_create(const char *origin, struct http **out, struct oato_error *err);
void http_free(struct http *h);
/* Follows redirects and tries again what may pass. The reply is the last one, of status 200 or 206;
 * to be freed in any case. what: the subject of messages, such as the name of a model. */
oato_status http_get(struct http *h, const struct http_request *q, const char *what,
                     struct http_reply *r, struct oato_error *err);
/* The host of a URL, for messages. */
void http_host(const char *url, char host[HOST_BYTES]);

/* The token, to be freed; NULL: there is none. OATO_EUSAGE: it cannot be one. */
oato_status token_find(char **out, struct oato_error *err);

/* Several requests at the same time, without redirects and repetitions. Slots count from 0. */
struct http_many;
oato_status http_many_create(struct http *h, int32_t slots, struct http_many **out,
                             struct oato_error *err);
void http_many_free(struct http_many *m);
/* Begins a request in a free slot; the URL is copied. */
oato_status http_many_start(struct http_many *m, int32_t slot, const struct http_request *q,
                            struct oato_error *err);
/* Ends it wherever it is. */
void http_many_stop(struct http_many *m, int32_t slot);
/* What a request has come to. */
struct http_end {
    int32_t slot;     /* -1: none has ended so far */
    bool whole;       /* the answer came to its end */
    bool stopped;     /* by the sink */
    bool asked;       /* the request was sent, so that a server is there */
    bool final;       /* trying again cannot help */
    bool certificate; /* it is not trusted */
    long status;      /* 0: none came */
    uint64_t retry_after_s;
    const char *why; /* of one that is not whole; until the slot's next start */
};
/* Moves data for at most wait_ms; tells of one request that has ended. */
oato_status http_many_step(struct http_many *m, int wait_ms, struct http_end *end,
                           struct oato_error *err);
const struct http_reply *http_many_reply(const struct http_many *m, int32_t slot);
/* The message for a status that is no success. */
oato_status http_fail(const char *url, const char *what, const struct http_reply *r, bool token,
                      struct oato_error *err);
/* ------------------------------------------------------------------------------- hub.c ---- */

/* Appends the hub's URL, without a slash at the end. */
oato_status hub_endpoint(struct text *out, struct oato_error *err);
/* All files of OWNER/REPO; out is to be freed in any case. */
oato_status hub_list(struct http *h, const char *endpoint, const char *repo, struct hub_files *out,
                     struct oato_error *err);
/* Appends the path as a part of a URL. */
void text_add_url(struct text *t, const char *path);

/* ----------------------------------------------------------------------------- fetch.c ---- */

struct fetch {
    struct http *http;
    const char *url;  /* at the hub */
    const char *name; /* for messages and progress */
    const char *path; /* where it belongs; its folder exists */
    uint64_t bytes;
    const char *sum; /* as of a hub_file */
    const struct pull_options *options;
};
/* Fetches one file that is not there yet, or is not of that size. *fetched: bytes that came. */
oato_status fetch_file(const struct fetch *f, uint64_t *fetched, struct oato_error *err);

/* ------------------------------------------------------------------------------ part.c ---- */

/* A file that is being fetched: PATH.part, locked, with room for all of it and behind that a note
 * of what is there. It consists of segments that are filled from their beginnings on. */
struct part {
    int fd;
    char *path; /* of the part */
    const char *target;
    uint64_t bytes, segment_bytes;
    uint64_t *done; /* bytes of each segment */
    size_t n_segments;
    char sum[65];
    bool fresh; /* nothing of an earlier try is there */
};

/* Waits for another process that fetches the same. *complete: the target has appeared meanwhile,
 * and nothing is open. */
oato_status part_open(struct part *p, const struct fetch *f, bool *complete,
                      struct oato_error *err);
/* Forgets what is there. */
void part_reset(struct part *p);
uint64_t part_done(const struct part *p);
uint64_t part_segment_bytes(const struct part *p, size_t i); /* of segment i */
oato_status part_write(struct part *p, size_t segment, const void *data, size_t bytes,
                       struct oato_error *err);
/* Writes the note. */
oato_status part_note(struct part *p, struct oato_error *err);
/* Gives the file its name. */
oato_status part_finish(struct part *p, struct oato_error *err);
/* Closes it; empty or `remove`: it is removed, too. */
void part_close(struct part *p, bool remove);
/* Of an unfinished file: bytes in all and bytes there. False: that cannot be told. */
bool part_look(const char *path, uint64_t *bytes, uint64_t *done);

#endif
