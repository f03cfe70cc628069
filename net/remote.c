/*
 * remote.c - some of a file at a URL: by ranges where the server gives them, else its beginning.
 */
#include "net/net_internal.h"

#include <stdlib.h>
#include <string.h>

struct remote {
    struct http *http;
    char *url;
    char etag[128];
    uint64_t bytes;
};

struct window {
    uint8_t *to;
    uint64_t skip; /* of what comes first, from a server without ranges */
    size_t bytes, got;
    uint64_t skipped;
};

static bool take_window(void *user, const void *data, size_t bytes)
{
    struct window *w = user;
    const uint8_t *from = data;
    if (!data) {
        w->got = 0;
        w->skipped = 0;
        return true;
    }
    const uint64_t skip = w->skip - w->skipped;
    const size_t past = skip < bytes ? (size_t)skip : bytes, room = w->bytes - w->got;
    w->skipped += past;
    const size_t n = bytes - past < room ? bytes - past : room;
    if (n)
        memcpy(w->to + w->got, from + past, n);
    w->got += n;
    return w->got < w->bytes;
}

/* Gets the range; a server without ranges sends all, and the end of it is not waited for. */
static oato_status get(struct remote *r, uint64_t offset, void *to, size_t bytes,
                       struct http_reply *reply, struct oato_error *err)
{
    struct window w = {.to = to, .bytes = bytes};
    struct http_request q = {.url = r->url,
                             .ranged = true,
                             .first = offset,
                             .last = offset + bytes - 1,
                             .sink = take_window,
                             .user = &w};
    oato_status status = http_get(r->http, &q, r->url, reply, err);
    if (!status && reply->status == 200 && offset) {
        http_reply_free(reply);
        q.ranged = false;
        w.skip = offset;
        status = http_get(r->http, &q, r->url, reply, err);
    }
    if (!status && reply->status == 206 && reply->first != offset)
        status = oato_fail(err, OATO_ENET, "%s: the server sends another range than was asked for",
                           r->url);
    if (!status && w.got < bytes)
        status = oato_fail(err, OATO_ENET, "%s: the server sends %zu of %zu bytes", r->url, w.got,
                           bytes);
    return status;
}

/* Finds out its size, and what it is now. */
static oato_status look(struct remote *r, struct oato_error *err)
{
    struct http_reply reply;
    uint8_t first;
    oato_status status = get(r, 0, &first, 1, &reply, err);
    if (!status && !reply.has_total)
        status = oato_fail(err, OATO_ENET, "%s: the server does not tell its size", r->url);
    r->bytes = reply.total;
    memcpy(r->etag, reply.etag, sizeof r->etag);
    http_reply_free(&reply);
    return status;
}

oato_status remote_open(const char *url, struct remote **out, struct oato_error *err)
{
    struct text hub;
    struct remote *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r || !(r->url = strdup(url))) {
        free(r);
        return oato_fail_memory(err, strlen(url), "a URL");
    }
    text_init(&hub);
    oato_status status = hub_endpoint(&hub, err);
    if (!status)
        status = http_create(hub.data, &r->http, err);
    if (!status)
        status = look(r, err);
    text_free(&hub);
    if (status)
        remote_close(r);
    else
        *out = r;
    return status;
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    http_free(r->http);
    free(r->url);
    free(r);
}

uint64_t remote_bytes(const struct remote *r)
{
    return r->bytes;
}

oato_status remote_read(struct remote *r, uint64_t offset, void *to, size_t bytes,
                        struct oato_error *err)
{
    struct http_reply reply;
    if (!bytes)
        return OATO_OK;
    if (offset > r->bytes || bytes > r->bytes - offset)
        return oato_fail(err, OATO_EFILE, "%s: has only %llu bytes", r->url,
                         (unsigned long long)r->bytes);
    oato_status status = get(r, offset, to, bytes, &reply, err);
    if (!status &&
        ((reply.has_total && reply.total != r->bytes) || strcmp(reply.etag, r->etag) != 0))
        status = oato_fail(err, OATO_EFILE, "%s: has changed while it was read; try again", r->url);
    http_reply_free(&reply);
    return status;
}
