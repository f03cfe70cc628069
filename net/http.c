/*
 * http.c - requests by libcurl. Redirects are followed here, not by libcurl, so that three things
 * are certain: the token goes to the hub's own scheme, host and port and nowhere else; nobody leads
 * from https to http or to a file; a loop ends. Everything runs on the multi interface, in steps of
 * at most a fraction of a second, so that Ctrl-C is seen.
 *
 * libcurl reads the variables of proxies itself. Certificates beside the system's are named by
 * CURL_CA_BUNDLE or SSL_CERT_FILE and SSL_CERT_DIR, as for curl and OpenSSL.
 */
#include "net/net_internal.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    HOPS_MOST = 8,
    TRIES = 5,         /* of a request that may be answered the next time */
    WAIT_MOST_S = 300, /* that a server may ask for before we give up */
    CONNECT_S = 20,
    SILENT_S = 30, /* without a byte: as good as cut */
};

struct job {
    CURL *curl;
    struct curl_slist *headers;
    struct http_request q;
    struct http_reply reply;
    bool busy, stopped;
    char why[CURL_ERROR_SIZE];
};

struct http_many {
    struct http *http;
    CURLM *multi;
    struct job *job;
    int32_t n;
};

struct http {
    char *scheme, *host, *port; /* that get the token */
    char *token;                /* NULL: none */
    struct http_many *one;
};

/* ----------------------------------------------------------------------------- the token --- */

/* Scheme, host and port; false: it is no URL. The caller frees them by curl_free. */
static bool url_parts(const char *url, char **scheme, char **host, char **port)
{
    CURLU *u = curl_url();
    *scheme = *host = *port = NULL;
    const bool ok = u && !curl_url_set(u, CURLUPART_URL, url, 0) &&
                    !curl_url_get(u, CURLUPART_SCHEME, scheme, 0) &&
                    !curl_url_get(u, CURLUPART_HOST, host, 0) &&
                    !curl_url_get(u, CURLUPART_PORT, port, CURLU_DEFAULT_PORT);
    curl_url_cleanup(u);
    return ok;
}

static void parts_free(char *scheme, char *host, char *port)
{
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
}

static bool gets_token(const struct http *h, const char *url)
{
    char *scheme, *host, *port;
    const bool same = h->token && url_parts(url, &scheme, &host, &port) &&
                      !strcasecmp(scheme, h->scheme) && !strcasecmp(host, h->host) &&
                      !strcmp(port, h->port);
    if (h->token)
        parts_free(scheme, host, port);
    return same;
}

void http_host(const char *url, char host[HOST_BYTES])
{
    char *scheme, *name, *port;
    snprintf(host, HOST_BYTES, "%s", url_parts(url, &scheme, &name, &port) ? name : "the server");
    parts_free(scheme, name, port);
}

oato_status http_create(const char *origin, struct http **out, struct oato_error *err)
{
    static bool begun;
    *out = NULL;
    if (!begun && curl_global_init(CURL_GLOBAL_DEFAULT))
        return oato_fail(err, OATO_ENET, "libcurl cannot begin");
    begun = true;
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return oato_fail_memory(err, sizeof *h, "a connection");
    oato_status status = http_many_create(h, 1, &h->one, err);
    if (!status && origin) {
        if (!url_parts(origin, &h->scheme, &h->host, &h->port))
            status = oato_fail(err, OATO_EUSAGE, "'%s' is not a URL", origin);
        else
            status = token_find(&h->token, err);
    }
    if (status)
        http_free(h);
    else
        *out = h;
    return status;
}

void http_free(struct http *h)
{
    if (!h)
        return;
    http_many_free(h->one);
    parts_free(h->scheme, h->host, h->port);
    free(h->token);
    free(h);
}

/* ---------------------------------------------------------------------------- one request --- */

/* Whether the line is of this header; *value is what follows, *n its bytes. */
static bool header_is(const char *line, size_t bytes, const char *name, const char **value,
                      size_t *n)
{
    const size_t len = strlen(name);
    if (bytes <= len || line[len] != ':' || strncasecmp(line, name, len) != 0)
        return false;
    const char *s = line + len + 1, *end = line + bytes;
    while (s < end && (*s == ' ' || *s == '\t'))
        s++;
    while (end > s && (unsigned char)end[-1] <= ' ')
        end--;
    *value = s;
    *n = (size_t)(end - s);
    return true;
}

/* The word, without the quotes and the W/ of an ETag; empty when it is too long. */
static void take_word(char *to, size_t cap, const char *s, size_t n)
{
    if (n > 2 && !memcmp(s, "W/", 2)) {
        s += 2;
        n -= 2;
    }
    if (n >= 2 && s[0] == '"' && s[n - 1] == '"') {
        s++;
        n -= 2;
    }
    n = n < cap ? n : 0;
    memcpy(to, s, n);
    to[n] = 0;
}

/* <URL>; rel="next" among several, with commas between. */
static void take_next(struct text *to, const char *s, size_t n)
{
    const char *end = s + n;
    while (s < end && (s = memchr(s, '<', (size_t)(end - s)))) {
        const char *close = memchr(s, '>', (size_t)(end - s));
        if (!close)
            return;
        const char *comma = memchr(close, ',', (size_t)(end - close)), *stop = comma ? comma : end;
        if (memmem(close, (size_t)(stop - close), "rel=\"next\"", 10)) {
            to->len = 0;
            text_add(to, s + 1, (size_t)(close - s - 1));
        }
        s = stop;
    }
}

/* "bytes 0-99/1234" */
static void take_range(struct http_reply *r, const char *s, size_t n)
{
    char text[96];
    unsigned long long first, last, total;
    take_word(text, sizeof text, s, n);
    if (sscanf(text, "bytes %llu-%llu/%llu", &first, &last, &total) == 3) {
        r->first = first;
        r->total = total;
        r->has_total = true;
    }
}

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
    struct job *j = user;
    struct http_reply *r = &j->reply;
    const size_t bytes = size * count;
    const char *s = line;
    size_t n = 0;
    if (bytes > 5 && !memcmp(line, "HTTP/", 5)) { /* another answer: of a proxy, or 100 before it */
        r->has_total = false;
        r->first = 0;
        r->etag[0] = r->code[0] = 0;
        r->next.len = 0;
        curl_easy_getinfo(j->curl, CURLINFO_RESPONSE_CODE, &r->status);
    } else if (header_is(line, bytes, "etag", &s, &n)) {
        take_word(r->etag, sizeof r->etag, s, n);
    } else if (header_is(line, bytes, "x-linked-etag", &s, &n)) {
        take_word(r->linked, sizeof r->linked, s, n);
    } else if (header_is(line, bytes, "x-repo-commit", &s, &n)) {
        take_word(r->commit, sizeof r->commit, s, n);
    } else if (header_is(line, bytes, "x-error-code", &s, &n)) {
        take_word(r->code, sizeof r->code, s, n);
    } else if (header_is(line, bytes, "link", &s, &n)) {
        take_next(&r->next, s, n);
    } else if (header_is(line, bytes, "content-range", &s, &n)) {
        take_range(r, s, n);
    } else if (header_is(line, bytes, "content-length", &s, &n) && r->status == 200) {
        char text[32];
        int64_t total;
        take_word(text, sizeof text, s, n);
        r->has_total = parse_i64(text, 0, INT64_MAX, &total);
        r->total = r->has_total ? (uint64_t)total : 0;
    }
    return bytes;
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct job *j = user;
    const size_t bytes = size * count;
    if (j->reply.status != 200 && j->reply.status != 206)
        return bytes; /* a page that says what the status says */
    if (j->q.sink && j->q.sink(j->q.user, data, bytes))
        return bytes;
    j->stopped = true;
    return 0;
}

/* http and https, without anything that could end a line. */
static oato_status check_url(const char *url, struct oato_error *err)
{
    bool clean = strlen(url) < 8192;
    for (const char *s = url; *s; s++)
        clean = clean && (unsigned char)*s > ' ' && *s != 0x7f;
    if (is_url(url) && clean)
        return OATO_OK;
    return oato_fail(err, OATO_ENET, "'%.80s' is refused: only URLs of http and https are followed",
                     url);
}

static const char *environment(const char *a, const char *b)
{
    const char *v = getenv(a);
    v = v && *v ? v : b ? getenv(b) : NULL;
    return v && *v ? v : NULL;
}

static void job_options(struct job *j)
{
    const char *bundle = environment("CURL_CA_BUNDLE", "SSL_CERT_FILE");
    const char *folder = environment("SSL_CERT_DIR", NULL);
    CURL *c = j->curl;
    curl_easy_setopt(c, CURLOPT_PRIVATE, j);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "oato/" OATO_VERSION);
#if CURL_AT_LEAST_VERSION(7, 85, 0)
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION,
                     (long)CURL_HTTP_VERSION_1_1); /* connections of its own */
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENT_S);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, j->why);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, j);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, j);
    if (bundle)
        curl_easy_setopt(c, CURLOPT_CAINFO, bundle);
    if (folder)
        curl_easy_setopt(c, CURLOPT_CAPATH, folder);
}

/* -------------------------------------------------------------------------- many requests --- */

oato_status http_many_create(struct http *h, int32_t slots, struct http_many **out,
                             struct oato_error *err)
{
    struct http_many *m = calloc(1, sizeof *m);
    *out = m;
    if (m) {
        m->http = h;
        m->n = slots;
        m->multi = curl_multi_init();
        m->job = calloc((size_t)slots, sizeof *m->job);
    }
    bool ok = m && m->multi && m->job;
    for (int32_t i = 0; ok && i < slots; i++) {
        text_init(&m->job[i].reply.next);
        text_init(&m->job[i].reply.url);
        ok = (m->job[i].curl = curl_easy_init());
    }
    if (ok)
        return OATO_OK;
    http_many_free(m);
    *out = NULL;
    return oato_fail_memory(err, (size_t)slots * sizeof *m->job, "connections");
}

void http_many_free(struct http_many *m)
{
    for (int32_t i = 0; m && m->job && i < m->n; i++) {
        http_many_stop(m, i);
        curl_easy_cleanup(m->job[i].curl);
        curl_slist_free_all(m->job[i].headers);
        http_reply_free(&m->job[i].reply);
    }
    if (m) {
        curl_multi_cleanup(m->multi);
        free(m->job);
    }
    free(m);
}

void http_many_stop(struct http_many *m, int32_t slot)
{
    struct job *j = &m->job[slot];
    if (j->busy)
        curl_multi_remove_handle(m->multi, j->curl);
    j->busy = false;
}

/* The token's header. */
static oato_status job_token(struct job *j, const char *token, struct oato_error *err)
{
    struct text line;
    text_init(&line);
    text_printf(&line, "Authorization: Bearer %s", token);
    j->headers = line.failed ? NULL : curl_slist_append(NULL, line.data);
    text_free(&line);
    if (!j->headers)
        return oato_fail_memory(err, strlen(token), "a request");
    curl_easy_setopt(j->curl, CURLOPT_HTTPHEADER, j->headers);
    return OATO_OK;
}

oato_status http_many_start(struct http_many *m, int32_t slot, const struct http_request *q,
                            struct oato_error *err)
{
    struct job *j = &m->job[slot];
    http_many_stop(m, slot);
    if (check_url(q->url, err))
        return err->status;
    struct text next = j->reply.next, url = j->reply.url;
    next.len = url.len = 0;
    j->reply = (struct http_reply){.next = next, .url = url};
    j->q = *q;
    j->stopped = false;
    j->why[0] = 0;
    curl_easy_reset(j->curl);
    curl_slist_free_all(j->headers);
    j->headers = NULL;
    job_options(j);
    if (gets_token(m->http, q->url) && job_token(j, m->http->token, err))
        return err->status;
    if (q->ranged) {
        char range[48];
        snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)q->first,
                 (unsigned long long)q->last);
        curl_easy_setopt(j->curl, CURLOPT_RANGE, range);
    }
    if (curl_easy_setopt(j->curl, CURLOPT_URL, q->url) || curl_multi_add_handle(m->multi, j->curl))
        return oato_fail_memory(err, strlen(q->url), "a request");
    j->busy = true;
    return OATO_OK;
}

const struct http_reply *http_many_reply(const struct http_many *m, int32_t slot)
{
    return &m->job[slot].reply;
}

/* Failures that another try cannot change. */
static bool is_final(CURLcode code)
{
    return code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
           code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
           code == CURLE_SSL_CERTPROBLEM || code == CURLE_OUT_OF_MEMORY;
}

static void tell_end(struct http_many *m, const CURLMsg *msg, struct http_end *end)
{
    struct job *j = NULL;
    curl_off_t wait = 0;
    curl_off_t began_us = 0; /* sending the request: 0 where no connection was made */
    curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &j);
    const CURLcode code = msg->data.result; /* the message goes with the handle */
    curl_easy_getinfo(j->curl, CURLINFO_RETRY_AFTER, &wait);
    curl_easy_getinfo(j->curl, CURLINFO_PRETRANSFER_TIME_T, &began_us);
    j->reply.url.len = 0;
    char *to = NULL;
    if (!curl_easy_getinfo(j->curl, CURLINFO_REDIRECT_URL, &to) && to)
        text_printf(&j->reply.url, "%s", to);
    if (code && !j->why[0])
        snprintf(j->why, sizeof j->why, "%s", curl_easy_strerror(code));
    *end = (struct http_end){
        .slot = (int32_t)(j - m->job),
        .whole = !code,
        .stopped = j->stopped,
        .asked = began_us > 0,
        .final = is_final(code),
        .certificate = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE,
        .status = j->reply.status,
        .retry_after_s = wait > 0 ? (uint64_t)wait : 0,
        .why = j->why,
    };
    http_many_stop(m, end->slot);
}

oato_status http_many_step(struct http_many *m, int wait_ms, struct http_end *end,
                           struct oato_error *err)
{
    int running, left;
    end->slot = -1;
    for (int i = 0; i < 2; i++) {
        CURLMcode code = curl_multi_perform(m->multi, &running);
        const CURLMsg *msg;
        while (!code && (msg = curl_multi_info_read(m->multi, &left))) {
            if (msg->msg != CURLMSG_DONE)
                continue;
            tell_end(m, msg, end);
            return OATO_OK;
        }
        if (!code && !i)
            code = curl_multi_poll(m->multi, NULL, 0, wait_ms, NULL);
        if (code)
            return oato_fail(err, OATO_ENET, "libcurl: %s", curl_multi_strerror(code));
    }
    return OATO_OK;
}

/* ----------------------------------------------------------------- one request, to its end --- */

oato_status http_fail(const char *url, const char *what, const struct http_reply *r, bool token,
                      struct oato_error *err)
{
    char host[HOST_BYTES];
    http_host(url, host);
    if (r->status == 404 || !strcmp(r->code, "RepoNotFound"))
        return oato_fail(
            err, OATO_EUSAGE,
            "%s: %s does not have it, or shows it to some only: check the name, or set "
            "HF_TOKEN",
            what, host);
    if (r->status == 401)
        return oato_fail(err, OATO_EDENIED, "%s: %s %s (status 401)", what, host,
                         token ? "does not accept this token: check HF_TOKEN"
                               : "wants a token: set HF_TOKEN");
    if (r->status == 403)
        return oato_fail(err, OATO_EDENIED,
                         "%s: %s refuses it (status 403): accept its terms on its page there%s",
                         what, host, token ? "" : ", and set HF_TOKEN");
    if (r->status == 429)
        return oato_fail(
            err, OATO_ENET,
            "%s: %s answers no more requests for a while (status 429): try again later", what,
            host);
    return oato_fail(err, OATO_ENET, "%s: %s answers with status %ld%s", what, host, r->status,
                     r->status >= 500 ? ": try again later" : "");
}

/* The message for a request that never got a whole answer. */
static oato_status fail_way(const char *url, const char *what, const struct http_end *end,
                            struct oato_error *err)
{
    char host[HOST_BYTES];
    http_host(url, host);
    if (end->certificate)
        return oato_fail(err, OATO_ENET,
                         "%s: the certificate of %s is not trusted (%s); CURL_CA_BUNDLE or "
                         "SSL_CERT_FILE name others to trust",
                         what, host, end->why);
    return oato_fail(err, OATO_ENET, "%s: %s cannot be reached: %s", what, host, end->why);
}

/* Where a redirect leads: to be freed, even after a failure. */
static oato_status follow(struct text *url, const struct http_reply *r, int hop, const char *what,
                          struct oato_error *err)
{
    char host[HOST_BYTES];
    http_host(url->data, host);
    if (!r->url.len)
        return oato_fail(err, OATO_ENET, "%s: %s redirects to nowhere (status %ld)", what, host,
                         r->status);
    if (hop == HOPS_MOST)
        return oato_fail(err, OATO_ENET, "%s: %s redirects in a loop (more than %d times)", what,
                         host, HOPS_MOST);
    if (check_url(r->url.data, err))
        return oato_fail_at(err, "%s: redirected by %s", what, host);
    if (!strncasecmp(url->data, "https:", 6) && strncasecmp(r->url.data, "https:", 6) != 0)
        return oato_fail(err, OATO_ENET, "%s: %s redirects from https to http, which is refused",
                         what, host);
    url->len = 0;
    text_add(url, r->url.data, r->url.len);
    return url->failed ? oato_fail_memory(err, r->url.len, "a URL") : OATO_OK;
}

/* One answer; seconds to wait for the next try, or -1: there is none. */
static double again(const struct http_end *end, int tries)
{
    const double pause = (double)(1 << tries) * 0.25;
    const bool busy = end->status == 429 || end->status >= 500;
    if (tries == TRIES || end->final || (end->whole && !busy) || (!end->whole && !end->asked) ||
        end->retry_after_s > WAIT_MOST_S)
        return -1;
    return (double)end->retry_after_s > pause ? (double)end->retry_after_s : pause;
}

static oato_status run_one(struct http *h, const struct http_request *q, struct http_end *end,
                           struct oato_error *err)
{
    oato_status status = http_many_start(h->one, 0, q, err);
    end->slot = -1;
    while (!status && end->slot < 0 && !oato_interrupted)
        status = http_many_step(h->one, 100, end, err);
    http_many_stop(h->one, 0);
    return status || end->slot == 0 ? status : net_stopped(err);
}

oato_status http_get(struct http *h, const struct http_request *q, const char *what,
                     struct http_reply *r, struct oato_error *err)
{
    struct http_request at = *q;
    struct text url;
    struct http_end end = {.slot = -1};
    oato_status status = OATO_OK;
    char linked[sizeof r->linked] = "", commit[sizeof r->commit] = "";
    memset(r, 0, sizeof *r);
    text_init(&url);
    text_printf(&url, "%s", q->url);
    for (int hop = 0, tries = 0; !status; tries++) {
        at.url = or_empty(url.data);
        if (at.sink)
            at.sink(at.user, NULL, 0);
        status = run_one(h, &at, &end, err);
        if (status)
            break;
        const struct http_reply *got = http_many_reply(h->one, 0);
        if (got->linked[0])
            memcpy(linked, got->linked, sizeof linked);
        if (got->commit[0])
            memcpy(commit, got->commit, sizeof commit);
        if ((end.whole || end.stopped) && (end.status == 200 || end.status == 206))
            break;
        if (end.whole && end.status >= 300 && end.status < 400 && end.status != 304) {
            status = follow(&url, got, hop++, what, err);
            tries = -1;
            continue;
        }
        const double pause = again(&end, tries);
        char host[HOST_BYTES];
        http_host(at.url, host);
        if (pause < 0)
            status = end.whole ? http_fail(at.url, what, got, gets_token(h, at.url), err)
                               : fail_way(at.url, what, &end, err);
        else if (!net_wait(host, pause))
            status = net_stopped(err);
    }
    const struct http_reply *got = http_many_reply(h->one, 0);
    *r = *got;
    memcpy(r->linked, linked, sizeof linked);
    memcpy(r->commit, commit, sizeof commit);
    text_init(&r->next);
    if (got->next.len)
        text_add(&r->next, got->next.data, got->next.len);
    r->url = url;
    if (!status && (r->next.failed || url.failed))
        status = oato_fail_memory(err, url.len, "a URL");
    return status;
}
