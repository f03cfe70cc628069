/*
 * fetch.c - one file, by several requests for ranges at the same time. What fails is tried again
 * from the byte where it was cut, with growing pauses, and given up after several failures without
 * a byte between them; what is there then stays for the next call. The checksum is computed from
 * the file itself while the rest is still coming; only a file that has it gets its name.
 *
 * The hub's URL redirects to a server of its own with a link that is valid for a while: it is
 * resolved once and again when that server says no.
 */
#include "net/net_internal.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    JOBS_DEFAULT = 4,
    FAILURES = 8, /* in a row */
    REFUSALS = 3, /* the same, of a server that answers */
    HASH_BYTES = 1 << 20,
    HASH_TURNS = 8, /* blocks between two looks at the network */
    WAIT_MOST_S = 300,
    NOTE_NS = 200000000, /* a kill costs what came since the last note */
};

struct fetching;
struct stream {
    struct fetching *owner;
    bool busy;
    size_t segment;
    uint64_t begin; /* of what was asked for */
};

struct fetching {
    const struct fetch *f;
    struct part part;
    struct text url; /* the last redirect's end */
    bool ranges;     /* the server gives them */
    struct http_many *many;
    struct stream *stream;
    int32_t n, allowed; /* streams; how many may run: fewer when the server is busy */
    int failures;
    uint64_t fetched, at_failure; /* bytes of this call; the same at the last failure */
    uint64_t later_ns;            /* no request before */
    EVP_MD_CTX *hash;
    uint64_t hashed;
    uint8_t *block;
    struct oato_error failed; /* of a sink */
};

/* ------------------------------------------------------------------------------ checksum --- */

/* Of the SHA-256 of the file, or of git's blob of it. */
static bool hash_begin(struct fetching *x)
{
    const bool git = strlen(x->part.sum) == 40;
    char head[40];
    const size_t n =
        (size_t)snprintf(head, sizeof head, "blob %llu", (unsigned long long)x->part.bytes);
    x->hashed = 0;
    return EVP_DigestInit_ex(x->hash, git ? EVP_sha1() : EVP_sha256(), NULL) &&
           (!git || EVP_DigestUpdate(x->hash, head, n + 1));
}

/* Bytes from the beginning of the file that are all there. */
static uint64_t solid(const struct part *p)
{
    for (size_t i = 0; i < p->n_segments; i++)
        if (p->done[i] < part_segment_bytes(p, i))
            return i * p->segment_bytes + p->done[i];
    return p->bytes;
}

/* Goes on for some blocks, as far as the file goes by now. */
static oato_status hash_some(struct fetching *x, struct oato_error *err)
{
    const uint64_t end = solid(&x->part);
    for (int i = 0; i < HASH_TURNS && x->hashed < end; i++) {
        const uint64_t left = end - x->hashed;
        const size_t n = left < HASH_BYTES ? (size_t)left : HASH_BYTES;
        const ssize_t got = RETRY(pread(x->part.fd, x->block, n, (off_t)x->hashed));
        if (got <= 0)
            return oato_fail(err, OATO_EIO, "%s: cannot read: %s", x->part.path,
                             got ? strerror(errno) : "it has become shorter");
        EVP_DigestUpdate(x->hash, x->block, (size_t)got);
        x->hashed += (uint64_t)got;
    }
    return OATO_OK;
}

static oato_status check_sum(struct fetching *x, struct oato_error *err)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned n = 0;
    struct progress p;
    progress_begin(&p, "checking", (double)x->part.bytes);
    while (x->hashed < x->part.bytes) {
        if (oato_interrupted || hash_some(x, err)) {
            progress_end(&p);
            return oato_interrupted ? net_stopped(err) : err->status;
        }
        progress_update(&p, (double)x->hashed, x->f->name);
    }
    progress_end(&p);
    EVP_DigestFinal_ex(x->hash, digest, &n);
    for (unsigned i = 0; i < n; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (!strcmp(text, x->part.sum))
        return OATO_OK;
    return oato_fail(err, OATO_EFILE,
                     "%s: what came has the checksum %.16s.., the hub says %.16s..; it is removed: "
                     "fetch it again",
                     x->f->name, text, x->part.sum);
}

/* ------------------------------------------------------------------------------ requests --- */

static bool probe_sink(void *user, const void *data, size_t bytes)
{
    (void)user;
    (void)bytes;
    return !data; /* the headers were all that was wanted, whatever follows them */
}

/* Finds out where the file lies, and whether it is given in ranges. */
static oato_status resolve(struct fetching *x, struct oato_error *err)
{
    struct http_reply r;
    const struct http_request q = {x->f->url, x->part.bytes > 0, 0, 0, probe_sink, NULL};
    oato_status status = http_get(x->f->http, &q, x->f->name, &r, err);
    if (!status && r.has_total && r.total != x->part.bytes)
        status =
            oato_fail(err, OATO_EFILE,
                      "%s: has %llu bytes there, but the hub's list says %llu: try again later",
                      x->f->name, (unsigned long long)r.total, (unsigned long long)x->part.bytes);
    if (!status && strlen(r.linked) == 64 && strlen(x->part.sum) == 64 &&
        strcmp(r.linked, x->part.sum) != 0)
        status = oato_fail(err, OATO_EFILE,
                           "%s: is being replaced at the hub, whose list has another checksum: try "
                           "again",
                           x->f->name);
    if (!status && !x->part.sum[0] && strlen(r.linked) == 64)
        memcpy(x->part.sum, r.linked, sizeof x->part.sum);
    if (!status && !x->part.sum[0])
        status = oato_fail(err, OATO_EFILE,
                           "%s: the hub tells no checksum, without which nothing is fetched",
                           x->f->name);
    x->ranges = r.status == 206;
    x->url.len = 0;
    if (!status)
        text_printf(&x->url, "%s", r.url.data);
    http_reply_free(&r);
    return status || !x->url.failed ? status : oato_fail_memory(err, 1024, "a URL");
}

static bool take_data(void *user, const void *data, size_t bytes)
{
    struct stream *s = user;
    struct fetching *x = s->owner;
    struct part *p = &x->part;
    const struct http_reply *r = http_many_reply(x->many, (int32_t)(s - x->stream));
    const uint8_t *from = data;
    if (x->ranges && (r->status != 206 || r->first != s->begin))
        return false; /* all of it, or another range */
    while (bytes) {
        const uint64_t room = part_segment_bytes(p, s->segment) - p->done[s->segment];
        const size_t n = bytes < room ? bytes : (size_t)room;
        if (n && part_write(p, s->segment, from, n, &x->failed))
            return false;
        from += n;
        bytes -= n;
        x->fetched += n;
        if (bytes && (x->ranges || s->segment + 1 == p->n_segments))
            return false; /* more than was asked for */
        s->segment += bytes > 0;
    }
    return true;
}

/* The next segment that is not complete and that nobody fetches; n_segments: none. */
static size_t next_segment(const struct fetching *x)
{
    for (size_t i = 0; i < x->part.n_segments; i++) {
        bool taken = x->part.done[i] == part_segment_bytes(&x->part, i);
        for (int32_t k = 0; k < x->n && !taken; k++)
            taken = x->stream[k].busy && x->stream[k].segment == i;
        if (!taken)
            return i;
    }
    return x->part.n_segments;
}

static void stop_all(struct fetching *x)
{
    for (int32_t i = 0; i < x->n; i++) {
        http_many_stop(x->many, i);
        x->stream[i].busy = false;
    }
}

static oato_status start_some(struct fetching *x, struct oato_error *err)
{
    int32_t busy = 0;
    for (int32_t i = 0; i < x->n; i++)
        busy += x->stream[i].busy;
    for (int32_t i = 0; i < x->n && busy < x->allowed; i++) {
        struct stream *s = &x->stream[i];
        if (s->busy)
            continue;
        s->segment = next_segment(x);
        if (s->segment == x->part.n_segments)
            return OATO_OK;
        const uint64_t first = s->segment * x->part.segment_bytes;
        s->begin = first + x->part.done[s->segment];
        const struct http_request q = {.url = x->url.data,
                                       .ranged = x->ranges,
                                       .first = s->begin,
                                       .last = first + part_segment_bytes(&x->part, s->segment) - 1,
                                       .sink = take_data,
                                       .user = s};
        if (http_many_start(x->many, i, &q, err))
            return err->status;
        s->busy = true;
        busy++;
    }
    return OATO_OK;
}

/* Without ranges there is one stream, and it begins at the beginning. */
static void give_up_ranges(struct fetching *x)
{
    stop_all(x);
    x->ranges = false;
    x->allowed = 1;
    if (part_done(&x->part) == x->part.bytes)
        return;
    memset(x->part.done, 0, x->part.n_segments * sizeof *x->part.done);
    hash_begin(x); /* as it began before */
}

/* A request has ended without its last byte: what now? */
static oato_status try_again(struct fetching *x, const struct http_end *end, struct oato_error *err)
{
    const struct http_reply *r = http_many_reply(x->many, end->slot);
    const bool answered = end->status >= 300;
    const bool refused = answered && end->status < 500 && end->status != 429;
    char host[HOST_BYTES];
    http_host(x->url.data, host);
    /* several streams that are cut at the same time are one failure */
    const bool another = now_ns() >= x->later_ns;
    if (another)
        x->failures = x->ranges && x->fetched > x->at_failure ? 1 : x->failures + 1;
    x->at_failure = x->fetched;
    if (!x->ranges || end->status == 200)
        give_up_ranges(x);
    if (end->status == 429 || end->status == 503)
        x->allowed = x->allowed > 1 ? x->allowed / 2 : 1;
    if (x->failures > (refused ? REFUSALS : FAILURES) || end->final ||
        end->retry_after_s > WAIT_MOST_S) {
        if (answered)
            return http_fail(x->url.data, x->f->name, r, false, err);
        return oato_fail(err, OATO_ENET, "%s: %s cut it off at %.1f of %.1f MB: %s", x->f->name,
                         host, (double)part_done(&x->part) * 1e-6, (double)x->part.bytes * 1e-6,
                         end->stopped ? "it sends another range than was asked for" : end->why);
    }
    double pause = x->failures > 1 ? 0.05 * (double)(1 << x->failures) : 0.02;
    pause = (double)end->retry_after_s > pause ? (double)end->retry_after_s : pause;
    if (another)
        x->later_ns = now_ns() + (uint64_t)(pause * 1e9);
    if (!refused || !another)
        return OATO_OK;
    if (!resolve(x, err) && !x->ranges) /* the link had run out */
        give_up_ranges(x);
    return err->status;
}

static oato_status one_step(struct fetching *x, struct oato_error *err)
{
    struct http_end end;
    if (now_ns() >= x->later_ns && start_some(x, err))
        return err->status;
    if (http_many_step(x->many, 50, &end, err) || hash_some(x, err))
        return err->status;
    if (x->failed.status) {
        *err = x->failed;
        return err->status;
    }
    if (end.slot < 0)
        return OATO_OK;
    struct stream *s = &x->stream[end.slot];
    const bool complete = x->part.done[s->segment] == part_segment_bytes(&x->part, s->segment);
    s->busy = false;
    if (complete && (x->ranges || part_done(&x->part) == x->part.bytes))
        return OATO_OK;
    return try_again(x, &end, err);
}

static oato_status transfer(struct fetching *x, struct oato_error *err)
{
    const uint64_t begin = now_ns();
    uint64_t noted = begin;
    struct progress p;
    oato_status status = OATO_OK;
    progress_begin(&p, x->f->name, (double)x->part.bytes);
    while (!status && part_done(&x->part) < x->part.bytes) {
        status = oato_interrupted ? net_stopped(err) : one_step(x, err);
        char speed[64];
        const uint64_t now = now_ns();
        snprintf(speed, sizeof speed, "%.1f MB/s",
                 (double)x->fetched * 1e3 / (double)(now - begin));
        progress_update(&p, (double)part_done(&x->part), speed);
        if (!status && now - noted > NOTE_NS) {
            status = part_note(&x->part, err);
            noted = now;
        }
    }
    progress_end(&p);
    stop_all(x);
    return status;
}

/* Tells how to go on after a failure that leaves something worth it. */
static oato_status keep(struct fetching *x, struct oato_error *err)
{
    struct oato_error ignored;
    const uint64_t done = part_done(&x->part);
    if (!done || part_note(&x->part, &ignored))
        return err->status;
    const struct oato_error why = *err;
    return oato_fail(err, why.status,
                     "%s; %.1f of %.1f MB are kept in %s: the same command goes on", why.text,
                     (double)done * 1e-6, (double)x->part.bytes * 1e-6, x->part.path);
}

static oato_status fetch_part(struct fetching *x, struct oato_error *err)
{
    const int32_t jobs = x->f->options->jobs;
    x->n = x->allowed = jobs > 0 ? jobs : JOBS_DEFAULT;
    x->stream = calloc((size_t)x->n, sizeof *x->stream);
    for (int32_t i = 0; x->stream && i < x->n; i++)
        x->stream[i].owner = x;
    x->hash = EVP_MD_CTX_new();
    x->block = malloc(HASH_BYTES);
    if (!x->stream || !x->hash || !x->block)
        return oato_fail_memory(err, HASH_BYTES, "a download");
    if (http_many_create(x->f->http, x->n, &x->many, err))
        return err->status;
    if ((part_done(&x->part) < x->part.bytes || !x->part.sum[0]) && resolve(x, err))
        return err->status;
    if (!hash_begin(x))
        return oato_fail(err, OATO_EIO, "%s: libcrypto cannot compute its checksum", x->f->name);
    if (part_done(&x->part) < x->part.bytes && !x->ranges)
        give_up_ranges(x);
    return transfer(x, err);
}

oato_status fetch_file(const struct fetch *f, uint64_t *fetched, struct oato_error *err)
{
    struct fetching x = {.f = f};
    bool complete;
    oato_status status = part_open(&x.part, f, &complete, err);
    if (status || complete)
        return status;
    text_init(&x.url);
    err->status = OATO_OK; /* of whatever was tried before */
    status = fetch_part(&x, err);
    *fetched += x.fetched;
    bool remove = status && !part_done(&x.part);
    if (status) {
        status = keep(&x, err);
    } else if (check_sum(&x, err)) {
        status = err->status;
        remove = status == OATO_EFILE;
        if (!remove)
            status = keep(&x, err);
    } else {
        status = part_finish(&x.part, err);
    }
    part_close(&x.part, remove);
    http_many_free(x.many);
    EVP_MD_CTX_free(x.hash);
    free(x.block);
    free(x.stream);
    text_free(&x.url);
    return status;
}
