/*
 * file_stream.c - pieces of a device's memory that stay in a file and pass through the host's at
 * every step. Steps use them in the same order, so one thread reads ahead in a circle: while the
 * last pieces of a step are used, the first ones of the next arrive. A piece has its own place; it
 * is read again once all pieces before it, in the circle, that overlap its place are done with.
 * Counters rise for ever: pieces that have arrived, in order, and pieces that have been used.
 *
 * Weights: a piece is one of them, in a ring. A host device computes with it there, another one
 * copies it from there. It is checked against its hash when it arrives for the first time. It may
 * be slices, of experts, of which a step needs a few: then neither it nor what follows it is read
 * before it is known which ones.
 *
 * KV: longer contexts than memory has room for. A piece is a layer's pages, in one of the KV_ROOMS
 * rooms of the cache (core/memory.c). What a step reads is known when it begins: of each sequence
 * the pages with earlier positions, in layers with a window those that it sees. A page that is
 * copied because sequences shared it is read to where the copy belongs. A layer is done with once
 * its pages with new positions are written. The next step waits for the last ones, and with its
 * first layer for storage: which pages it needs nobody knows before. The file has no name, so it is
 * gone with the process, however that ends; its room is taken when it is made, so that a disk that
 * is too small says so then.
 *
 * OATO_READ_AHEAD=0 reads a piece only when a record waits for it: to measure what reading ahead
 * brings.
 */
#include "kernels/core/file_stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct piece {
    uint64_t bytes; /* of its place, up to a multiple of READ_ALIGN */
    uint8_t *to;
    uint32_t back;  /* how many pieces before it the last one is that overlaps its place */
    uint32_t left;  /* chunks on their way */
    uint64_t asked; /* bytes that were asked for this time */
    bool late;      /* what of it is read depends on the step */
    const struct direct_file *file;
    uint64_t offset;
    const struct oato_weight *weight; /* NULL: KV of */
    int32_t layer;                    /* this one, */
    const struct page_use *uses;      /* of so many pages as the cache has */
    uint64_t hash;
    uint32_t slices; /* 0: it is one */
    uint8_t *chosen; /* per slice */
};

/* What a step does with a page of the layers of one kind. */
struct page_use {
    int32_t from; /* the page that is read to it, itself unless it is a copy; -1: none */
    bool write;
};

struct file_stream {
    const char *id; /* of the device */
    struct piece *pieces;
    size_t n, cap;
    uint8_t *ring; /* or rooms */
    size_t ring_bytes;
    struct reader *reader;
    struct timeline arrived, used;
    bool on_demand;         /* only pieces that something waits for are read, */
    struct timeline wanted; /* up to this one */
    struct timeline known;  /* pieces of which it is known what the step needs */
    uint64_t begun;         /* pieces of the steps before the one that waits for some, */
    uint64_t ended;         /* and before the one that has used some: perhaps on another thread */
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint64_t read;   /* bytes of the pieces that have arrived */
    struct oato_error error; /* why `arrived` failed */

    const struct kv_cache *kv; /* NULL: weights */
    struct direct_file scratch;
    int32_t window;          /* the largest */
    struct page_use *pages;  /* of all positions, and then of windows */
    struct timeline written; /* pieces */
};

/* ---------------------------------------------------------------------- what is in pieces -- */

/* Bytes of a piece that are read at once. */
struct extent {
    uint64_t offset, bytes; /* in the file */
    uint8_t *to;
};

static bool weight_next(const struct piece *p, uint64_t *at, struct extent *out)
{
    const uint64_t slice = p->slices ? p->bytes / p->slices : p->bytes;
    while (p->slices && *at < p->bytes && !p->chosen[*at / slice])
        *at = (*at / slice + 1) * slice;
    if (*at >= p->bytes)
        return false;
    uint64_t end = *at;
    do
        end = (end / slice + 1) * slice;
    while (end < p->bytes && p->chosen[end / slice]);
    *out = (struct extent){p->offset + *at, (uint64_t)min_i64(READ_CHUNK, (int64_t)(end - *at)),
                           p->to + *at};
    *at += out->bytes;
    return true;
}

/* Pages that are neighbours in the file and in memory. */
static bool pages_next(const struct file_stream *s, const struct piece *p, uint64_t *at,
                       struct extent *out)
{
    const struct page_use *u = p->uses;
    const uint64_t page = kv_page_bytes(s->kv, p->layer);
    int32_t i = (int32_t)*at, n = 1;
    while (i < s->kv->pages && u[i].from < 0)
        i++;
    if (i == s->kv->pages)
        return false;
    while (i + n < s->kv->pages && u[i + n].from == u[i].from + n &&
           ((uint64_t)n + 1) * page <= READ_CHUNK)
        n++;
    *out = (struct extent){p->offset + (uint64_t)u[i].from * page, (uint64_t)n * page,
                           kv_block(s->kv, p->layer, i, 0, 0)};
    *at = (uint64_t)i + (uint64_t)n;
    return true;
}

static oato_status pages_write(struct file_stream *s, const struct piece *p)
{
    const struct page_use *u = p->uses;
    const uint64_t page = kv_page_bytes(s->kv, p->layer);
    uint64_t at = 0; /* of the page in number i, bytes that are written */
    for (int32_t i = 0; i < s->kv->pages;) {
        if (!u[i].write) {
            i++;
            continue;
        }
        int32_t n = 1;
        while (i + n < s->kv->pages && u[i + n].write)
            n++;
        const uint64_t bytes = (uint64_t)n * page - at;
        const ssize_t written = RETRY(pwrite(p->file->fd, kv_block(s->kv, p->layer, i, 0, 0) + at,
                                             bytes, (off_t)(p->offset + (uint64_t)i * page + at)));
        if (written <= 0)
            return oato_fail(&s->error, OATO_EIO, "%s: writing KV to a file in %s: %s", s->id,
                             p->file->path, strerror(written ? errno : EIO));
        at += (uint64_t)written;
        i += (int32_t)(at / page);
        at %= page;
    }
    return OATO_OK;
}

/* ---------------------------------------------------------------------------- the thread --- */

/* Where the thread is in the circle. */
struct reading_on {
    uint64_t asked,
        landed;       /* pieces that were asked for completely, and that are there, in order */
    uint64_t at;      /* how far the next one was asked for: bytes, or pages of its list */
    uint64_t written; /* pieces of KV */
};

static struct piece *piece_at(const struct file_stream *s, uint64_t number)
{
    return &s->pieces[number % s->n];
}

/* How many pieces must have been used before the next one may be read. */
static uint64_t used_before(const struct file_stream *s, const struct reading_on *x)
{
    const uint64_t back = piece_at(s, x->asked)->back;
    return x->asked < back ? 0 : x->asked - back + 1;
}

/* What must rise, and how far, before the next piece may be read; NULL: nothing any more. */
static struct timeline *next_lacks(struct file_stream *s, const struct reading_on *x,
                                   uint64_t *value)
{
    *value = x->asked + 1;
    if (s->on_demand && !timeline_reached(&s->wanted, *value))
        return &s->wanted;
    if (piece_at(s, x->asked)->late && !timeline_reached(&s->known, *value))
        return &s->known;
    *value = used_before(s, x);
    return timeline_reached(&s->used, *value) ? NULL : &s->used;
}

static bool may_begin(struct file_stream *s, const struct reading_on *x)
{
    uint64_t value = used_before(s, x);
    return x->landed >= value && (!s->kv || x->written >= value) && !next_lacks(s, x, &value);
}

/* Asks for chunks until the ring is full, or enough reads are on their way. */
static void chunks_ask(struct file_stream *s, struct reading_on *x)
{
    while (x->at || may_begin(s, x)) {
        struct piece *p = piece_at(s, x->asked);
        struct extent e;
        uint64_t at = x->at;
        p->asked = at ? p->asked : 0;
        if (!(s->kv ? pages_next(s, p, &at, &e) : weight_next(p, &at, &e))) {
            x->at = 0;
            x->asked++;
            continue;
        }
        if (!reader_start(s->reader, p->file, e.offset, e.to, e.bytes, x->asked % s->n))
            return;
        p->left++;
        p->asked += e.bytes;
        x->at = at;
    }
}

/* Pieces of which nothing is missing any more. */
static oato_status pieces_land(struct file_stream *s, struct reading_on *x)
{
    for (; x->landed < x->asked && !piece_at(s, x->landed)->left; x->landed++) {
        const struct piece *p = piece_at(s, x->landed);
        if (x->landed < s->n && !p->late && hash_bytes(p->to, p->bytes) != p->hash)
            return oato_fail(&s->error, OATO_EFILE,
                             "%s: is damaged at %llu; delete it and start again", p->file->path,
                             (unsigned long long)p->offset);
        atomic_fetch_add_explicit(&s->read, p->asked, memory_order_relaxed);
    }
    if (!timeline_reached(&s->arrived, x->landed))
        timeline_signal(&s->arrived, x->landed, now_ns());
    return OATO_OK;
}

/* What has been used meanwhile. */
static oato_status pieces_write(struct file_stream *s, struct reading_on *x)
{
    oato_status status = OATO_OK;
    while (s->kv && x->written < x->landed && timeline_reached(&s->used, x->written + 1) &&
           !(status = pages_write(s, piece_at(s, x->written))))
        timeline_signal(&s->written, ++x->written, 0);
    return status;
}

static void *stream_main(void *arg)
{
    struct file_stream *s = arg;
    struct reading_on x = {0};
    oato_status status = OATO_OK;
    while (!status && !atomic_load(&s->stop)) {
        uint64_t number, value = x.written + 1;
        chunks_ask(s, &x);
        if (reader_on_way(s->reader)) {
            status = reader_wait(s->reader, &number, &s->error);
            if (!status)
                s->pieces[number].left--;
        } else if (x.landed == x.asked) { /* what is to be written comes first */
            struct timeline *lacks =
                s->kv && x.written < x.landed ? &s->used : next_lacks(s, &x, &value);
            if (lacks)
                timeline_wait_unless(lacks, value, NULL, &s->stop);
        }
        if (!status)
            status = pieces_land(s, &x);
        if (!status)
            status = pieces_write(s, &x);
    }
    if (status) {
        timeline_fail(&s->arrived, TIMELINE_DIED);
        timeline_fail(&s->written, TIMELINE_DIED);
    }
    return NULL;
}

/* ------------------------------------------------------------------------------- weights -- */

oato_status file_stream_add(struct file_stream **stream, const char *id,
                            const struct oato_weight *w, uint64_t bytes,
                            const struct weight_source *source, void *ring, uint64_t offset,
                            struct oato_error *err)
{
    if (!source->stored.file)
        return oato_fail(err, OATO_EDEVICE, "%s: weights can be streamed only from a file", id);
    if ((source->stored.offset | offset) % READ_ALIGN)
        return oato_fail(
            err, OATO_EDEVICE,
            "%s: a streamed weight at %llu of the file and %llu of the ring; both must "
            "be multiples of %d",
            id, (unsigned long long)source->stored.offset, (unsigned long long)offset, READ_ALIGN);
    if (!*stream)
        *stream = calloc(1, sizeof **stream);
    struct file_stream *s = *stream;
    struct piece *room = s ? array_room(s->pieces, s->n, &s->cap, sizeof *room) : NULL;
    const uint32_t slices = source->stored.slices;
    uint8_t *chosen = room && slices ? calloc(slices, 1) : NULL;
    if (room)
        s->pieces = room;
    if (!room || (slices && !chosen))
        return oato_fail_memory(err, sizeof *room + slices, "a streamed weight");
    s->id = id;
    s->ring = ring;
    s->pieces[s->n++] = (struct piece){.late = slices,
                                       .weight = w,
                                       .slices = slices,
                                       .chosen = chosen,
                                       .file = source->stored.file,
                                       .offset = source->stored.offset,
                                       .hash = source->stored.hash,
                                       .bytes = size_align(bytes, READ_ALIGN),
                                       .to = s->ring + offset};
    return OATO_OK;
}

static bool pieces_overlap(const struct piece *a, const struct piece *b)
{
    return a->to < b->to + b->bytes && b->to < a->to + a->bytes;
}

static oato_status stream_start(struct file_stream *s, struct oato_error *err)
{
    for (size_t i = 0; i < s->n; i++) {
        struct piece *p = &s->pieces[i];
        const size_t end = (size_t)(p->to - s->ring) + p->bytes;
        s->ring_bytes = end > s->ring_bytes ? end : s->ring_bytes;
        for (p->back = 1; p->back < s->n; p->back++) /* its own place at the latest */
            if (pieces_overlap(p, &s->pieces[(i + s->n - p->back) % s->n]))
                break;
    }
    timeline_init(&s->arrived);
    timeline_init(&s->used);
    timeline_init(&s->wanted);
    timeline_init(&s->known);
    timeline_init(&s->written);
    const char *ahead = getenv("OATO_READ_AHEAD");
    s->on_demand = ahead && !strcmp(ahead, "0");
    s->begun = 0 - (uint64_t)s->n; /* the first step is number 0 */
    s->ended = 0;
    if (reader_create(s->ring, s->ring_bytes, READS_AHEAD, false, &s->reader, err))
        return err->status;
    atomic_store(&s->stop, false);
    const int e = pthread_create(&s->thread, NULL, stream_main, s);
    if (e)
        return oato_fail(err, OATO_EFIT, "%s: cannot start a thread that reads ahead: %s", s->id,
                         strerror(e));
    pthread_setname_np(s->thread, s->kv ? "oato-kv" : "oato-read");
    s->started = true;
    return OATO_OK;
}

/* The number of a weight's piece; s->n: it has none. */
static size_t number_of(const struct file_stream *s, const struct oato_weight *w)
{
    size_t i = 0;
    while (i < s->n && s->pieces[i].weight != w)
        i++;
    return i;
}

oato_status file_stream_compile(struct file_stream *s, const struct program *p,
                                enum record_kind kind, uint32_t **needs, struct oato_error *err)
{
    size_t n = 0;
    *needs = NULL;
    if (!s)
        return OATO_OK;
    *needs = calloc((size_t)p->n_records + 1, sizeof **needs);
    if (!*needs)
        return oato_fail_memory(err, p->n_records * sizeof **needs, "a program");
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        for (int w = 0; w < r->n_weights && r->kind == kind; w++) {
            const uint32_t slot = r->weight[w];
            if (slot == UINT32_MAX || (w && slot == r->weight[w - 1]))
                continue;
            const size_t number = number_of(s, p->weights[slot]);
            if (number == s->n)
                continue;
            if (number != n++)
                return oato_fail(err, OATO_EDEVICE,
                                 "%s: record %u: streamed weights are used in another order than "
                                 "they were staged in",
                                 s->id, i);
            (*needs)[i] = (uint32_t)n;
        }
    }
    if (n != s->n)
        return oato_fail(err, OATO_EDEVICE, "%s: a program uses %zu of %zu streamed weights", s->id,
                         n, s->n);
    return s->started ? OATO_OK : stream_start(s, err);
}

/* ------------------------------------------------------------------------------- steps ----- */

void file_stream_begin(struct file_stream *s)
{
    if (s)
        s->begun += s->n;
}

void file_stream_want(struct file_stream *s, uint32_t pieces)
{
    if (s->on_demand)
        timeline_signal(&s->wanted, s->begun + pieces, 0);
}

void file_stream_choose(struct file_stream *s, const struct oato_weight *w, const uint8_t *slices)
{
    const size_t number = number_of(s, w);
    if (number < s->n && s->pieces[number].slices)
        memcpy(s->pieces[number].chosen, slices, s->pieces[number].slices);
}

void file_stream_chosen(struct file_stream *s, uint32_t weights)
{
    timeline_signal(&s->known, s->begun + weights, 0);
}

bool file_stream_is_chosen(struct file_stream *s, uint32_t weights)
{
    return timeline_reached(&s->known, s->begun + weights);
}

bool file_stream_wait(struct file_stream *s, uint32_t pieces, const _Atomic bool *stop)
{
    return timeline_wait_unless(&s->arrived, s->begun + pieces, NULL, stop);
}

void file_stream_used(struct file_stream *s, uint32_t pieces)
{
    timeline_signal(&s->used, s->ended + pieces, 0);
    if (pieces == s->n)
        s->ended += s->n;
}

bool file_stream_arrived(struct file_stream *s, uint32_t pieces)
{
    return timeline_reached(&s->arrived, s->begun + pieces);
}

void *file_stream_ring(const struct file_stream *s, uint64_t *bytes)
{
    *bytes = s ? s->ring_bytes : 0;
    return s ? s->ring : NULL;
}

bool file_stream_failed(struct file_stream *s, struct oato_error *err)
{
    if (!s || !atomic_load(&s->arrived.failed))
        return false;
    *err = s->error;
    return true;
}

uint64_t file_stream_read(const struct file_stream *s)
{
    return s ? atomic_load_explicit(&s->read, memory_order_relaxed) : 0;
}

void file_stream_stop(struct file_stream *s)
{
    if (!s || !s->started)
        return;
    atomic_store(&s->stop, true);
    timeline_wake(&s->used);
    timeline_wake(&s->wanted);
    timeline_wake(&s->known);
    pthread_join(s->thread, NULL);
    s->started = false;
    reader_free(s->reader);
    s->reader = NULL;
}

void file_stream_free(struct file_stream *s)
{
    if (!s)
        return;
    file_stream_stop(s);
    reader_free(s->reader);
    for (size_t i = 0; i < s->n; i++)
        free(s->pieces[i].chosen);
    free(s->pieces);
    if (s->kv)
        direct_close(&s->scratch);
    free(s->pages);
    free(s);
}

/* ------------------------------------------------------------------------------------ KV --- */

oato_status file_stream_kv_open(const struct kv_cache *kv, const char *id, const char *folder,
                                struct file_stream **out, struct oato_error *err)
{
    *out = NULL;
    if (!kv->n_filed)
        return OATO_OK;
    struct file_stream *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "KV in a file");
    *s = (struct file_stream){.id = id, .kv = kv, .ring = kv->data, .scratch = {.fd = -1}};
    s->pieces = calloc((size_t)kv->n_filed, sizeof *s->pieces);
    s->pages = calloc(2 * (size_t)kv->pages, sizeof *s->pages);
    for (int32_t l = 0; s->pieces && s->pages && l < kv->n_layers; l++) {
        if (!kv->layers[l].filed)
            continue;
        s->pieces[s->n] = (struct piece){.late = true,
                                         .layer = l,
                                         .uses = s->pages + (kv->layers[l].window ? kv->pages : 0),
                                         .file = &s->scratch,
                                         .offset = s->n * kv->room_bytes,
                                         .bytes = kv->room_bytes,
                                         .to = kv->data + kv->layer_offset[l]};
        s->n++;
        s->window = (int32_t)max_i64(s->window, kv->layers[l].window);
    }
    if (!s->pieces || !s->pages)
        oato_fail_memory(err, 2 * (size_t)kv->pages * sizeof *s->pages, "its pages");
    else if (!direct_scratch(folder, s->n * kv->room_bytes, &s->scratch, err) &&
             !stream_start(s, err)) {
        *out = s;
        return OATO_OK;
    }
    file_stream_free(s);
    return oato_fail_at(err, "%s: KV in a file", id);
}

static bool is_of(const struct file_stream *s, const struct program_record *r, uint32_t number)
{
    return r->kind == RECORD_RUN && number < s->n && r->kv_layer == s->pieces[number].layer;
}

oato_status file_stream_kv_compile(struct file_stream *s, const struct program *p,
                                   struct kv_use **uses, struct oato_error *err)
{
    uint32_t n = 0, last = 0;
    *uses = NULL;
    if (!s)
        return OATO_OK;
    struct kv_use *use = *uses = calloc((size_t)p->n_records + 1, sizeof *use);
    if (!use)
        return oato_fail_memory(err, p->n_records * sizeof *use, "a program");
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (is_of(s, r, n)) {
            use[i] = (struct kv_use){n + 1, n + 1};
            last = i;
            n++;
        } else if (n && is_of(s, r, n - 1)) {
            use[last].used = 0;
            use[i].used = n;
            last = i;
        } else if (r->kind == RECORD_RUN && r->kv_layer >= 0 && s->kv->layers[r->kv_layer].filed)
            return oato_fail(err, OATO_EDEVICE,
                             "%s: record %u: KV in a file is used in another order than the "
                             "layers'; layers that read an earlier one's KV need it in memory",
                             s->id, i);
    }
    return n == s->n
               ? OATO_OK
               : oato_fail(err, OATO_EDEVICE, "%s: a program uses %u of %zu layers' KV in a file",
                           s->id, n, s->n);
}

/* `from` positions of a sequence are read, of them those from `first` on, and n are new. */
static void pages_use(struct page_use *u, const int32_t *pages, int64_t first, int64_t from,
                      int64_t n)
{
    for (int64_t i = first / KV_PAGE_POSITIONS; i < kv_pages_of(from); i++)
        u[pages[i]].from = pages[i];
    for (int64_t i = from / KV_PAGE_POSITIONS; i < kv_pages_of(from + n); i++)
        u[pages[i]].write = true;
}

/* A page that comes from another one is where a sequence of this step has it, or one of the next
 * step (the engine copies for both at once): then it is in the file for that. */
static void step_use(const struct file_stream *s, const struct step *step, int kind)
{
    struct page_use *u = s->pages + (int64_t)kind * s->kv->pages;
    for (int32_t i = 0; i < s->kv->pages; i++)
        u[i] = (struct page_use){.from = -1};
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seq[i];
        const int64_t from = seq->kv_len - seq->query_len;
        const int32_t *pages = kind ? seq->window_pages : seq->pages;
        if (pages)
            pages_use(u, pages, kind ? max_i64(0, from + 1 - s->window) : 0, from, seq->query_len);
    }
    for (int32_t i = 0; i < step->n_page_copies; i++) {
        const struct step_page_copy *copy = &step->page_copy[i];
        if (copy->window != kind)
            continue;
        u[copy->to].write |= u[copy->to].from < 0;
        u[copy->to].from = copy->from;
    }
}

void file_stream_kv_begin(struct file_stream *s, const struct step *step)
{
    file_stream_begin(s);
    if (!s || !timeline_wait_unless(&s->written, s->begun, NULL, &s->stop))
        return;
    for (int kind = 0; kind < 2; kind++)
        step_use(s, step, kind);
    timeline_signal(&s->known, s->begun + s->n, 0);
}
