/*
 * file_stream.c - weights of a device that stay in a file of prepared weights and pass through a
 * ring in the host's memory at every step. Steps read them in the same order, so one thread reads
 * ahead in a circle: while the last layers of a step compute, the first ones of the next arrive.
 * A host device computes with them there, another one copies them from there.
 *
 * A piece is one weight, at its own place in the ring. It may be read again once all pieces before
 * it, in the circle, that overlap its place have been used. Two counters rise for ever: pieces that
 * have arrived, in order, and pieces that have been used.
 *
 * What the file holds is checked against its hash when it arrives for the first time.
 *
 * A weight may be slices, of experts, of which a step needs a few. It is not read before it is
 * known which ones, nor is what follows it.
 *
 * OATO_READ_AHEAD=0 reads a weight only when a record waits for it: to measure what reading ahead
 * brings.
 */
#include "kernels/file_stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct piece {
    const struct oato_weight *weight;
    const struct direct_file *file;
    uint64_t offset, bytes, hash; /* bytes: up to a multiple of READ_ALIGN */
    uint8_t *to;
    uint32_t back;   /* how many pieces before it the last one is that overlaps its place */
    uint32_t left;   /* chunks on their way */
    uint64_t asked;  /* bytes that were asked for this time */
    uint32_t slices; /* 0: it is one */
    uint8_t *chosen; /* per slice */
};

struct file_stream {
    const char *id; /* of the device */
    struct piece *pieces;
    size_t n, cap;
    uint8_t *ring;
    size_t ring_bytes;
    struct reader *reader;
    struct timeline arrived, used;
    bool on_demand;         /* only pieces that something waits for are read, */
    struct timeline wanted; /* up to this one */
    struct timeline chosen; /* pieces whose slices are known */
    uint64_t begun;         /* pieces of the steps before the one that waits for some, */
    uint64_t ended;         /* and before the one that has used some: perhaps on another thread */
    bool stepped;           /* it is not the first one */
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint64_t read;   /* bytes of the pieces that have arrived */
    struct oato_error error; /* why `arrived` failed */
};

/* ---------------------------------------------------------------------------- the thread --- */

/* Where the thread is in the circle. */
struct reading_on {
    uint64_t asked,
        landed;  /* pieces that were asked for completely, and that are there, in order */
    uint64_t at; /* bytes of the next one that were asked for */
};

static struct piece *piece_at(const struct file_stream *s, uint64_t number)
{
    return &s->pieces[number % s->n];
}

static uint64_t least_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
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
    if (piece_at(s, x->asked)->slices && !timeline_reached(&s->chosen, *value))
        return &s->chosen;
    *value = used_before(s, x);
    return timeline_reached(&s->used, *value) ? NULL : &s->used;
}

static bool may_begin(struct file_stream *s, const struct reading_on *x)
{
    uint64_t value;
    return x->landed >= used_before(s, x) && !next_lacks(s, x, &value);
}

/* From `at` on the next byte that is needed; the piece's bytes: none is. */
static uint64_t next_needed(const struct piece *p, uint64_t at)
{
    const uint64_t slice = p->slices ? p->bytes / p->slices : p->bytes;
    while (p->slices && at < p->bytes && !p->chosen[at / slice])
        at = (at / slice + 1) * slice;
    return at;
}

/* How far all bytes from `at` on are needed, which one is. */
static uint64_t needed_until(const struct piece *p, uint64_t at)
{
    const uint64_t slice = p->slices ? p->bytes / p->slices : p->bytes;
    do
        at = (at / slice + 1) * slice;
    while (at < p->bytes && p->chosen[at / slice]);
    return at;
}

/* Asks for chunks until the ring is full, or enough reads are on their way. */
static void chunks_ask(struct file_stream *s, struct reading_on *x)
{
    while (x->at || may_begin(s, x)) {
        struct piece *p = piece_at(s, x->asked);
        p->asked = x->at ? p->asked : 0;
        x->at = next_needed(p, x->at);
        if (x->at < p->bytes) {
            const uint64_t bytes = least_u64(READ_CHUNK, needed_until(p, x->at) - x->at);
            if (!reader_start(s->reader, p->file, p->offset + x->at, p->to + x->at, bytes,
                              x->asked % s->n))
                return;
            p->left++;
            p->asked += bytes;
            x->at += bytes;
        }
        if (x->at < p->bytes)
            continue;
        x->at = 0;
        x->asked++;
    }
}

static oato_status piece_check(const struct piece *p, struct oato_error *err)
{
    return hash_bytes(p->to, p->bytes) == p->hash
               ? OATO_OK
               : oato_fail(err, OATO_EFILE, "%s: is damaged at %llu; delete it and start again",
                           p->file->path, (unsigned long long)p->offset);
}

/* Pieces of which nothing is missing any more. */
static oato_status pieces_land(struct file_stream *s, struct reading_on *x, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (; x->landed < x->asked && !piece_at(s, x->landed)->left; x->landed++) {
        const struct piece *p = piece_at(s, x->landed);
        if (x->landed < s->n && !p->slices && (status = piece_check(p, err)))
            return status;
        atomic_fetch_add_explicit(&s->read, p->asked, memory_order_relaxed);
    }
    if (!timeline_reached(&s->arrived, x->landed))
        timeline_signal(&s->arrived, x->landed, now_ns());
    return OATO_OK;
}

/* One more chunk is there, and perhaps a piece or more with it. */
static oato_status chunk_take(struct file_stream *s, struct oato_error *err)
{
    uint64_t number;
    const oato_status status = reader_wait(s->reader, &number, err);
    if (!status)
        s->pieces[number].left--;
    return status;
}

/* Nothing is on its way, and nothing could be asked for; perhaps it can be meanwhile. */
static void wait_for_more(struct file_stream *s, const struct reading_on *x)
{
    uint64_t value;
    struct timeline *t = next_lacks(s, x, &value);
    if (t)
        timeline_wait_unless(t, value, NULL, &s->stop);
}

static void *stream_main(void *arg)
{
    struct file_stream *s = arg;
    struct reading_on x = {0};
    oato_status status = OATO_OK;
    while (!status && !atomic_load(&s->stop)) {
        chunks_ask(s, &x);
        if (reader_on_way(s->reader))
            status = chunk_take(s, &s->error);
        else if (x.landed == x.asked)
            wait_for_more(s, &x);
        if (!status)
            status = pieces_land(s, &x, &s->error);
    }
    if (status)
        timeline_fail(&s->arrived, TIMELINE_DIED);
    return NULL;
}

/* ------------------------------------------------------------------------- stage, compile -- */

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
    if (!room)
        return oato_fail_memory(err, sizeof *room, "a streamed weight");
    s->id = id;
    s->pieces = room;
    s->ring = ring;
    const uint32_t slices = source->stored.slices;
    uint8_t *chosen = slices ? calloc(slices, 1) : NULL;
    if (slices && !chosen)
        return oato_fail_memory(err, slices, "a streamed weight");
    s->pieces[s->n++] = (struct piece){.weight = w,
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
    timeline_init(&s->chosen);
    const char *ahead = getenv("OATO_READ_AHEAD");
    s->on_demand = ahead && !strcmp(ahead, "0");
    s->begun = s->ended = 0;
    s->stepped = false;
    if (reader_create(s->ring, s->ring_bytes, READS_AHEAD, false, &s->reader, err))
        return err->status;
    atomic_store(&s->stop, false);
    const int e = pthread_create(&s->thread, NULL, stream_main, s);
    if (e)
        return oato_fail(err, OATO_EFIT, "%s: cannot start a thread that reads ahead: %s", s->id,
                         strerror(e));
    pthread_setname_np(s->thread, "oato-read");
    s->started = true;
    return OATO_OK;
}

/* Whether the weight is the next piece; *n: pieces so far. */
static bool is_next(const struct file_stream *s, const struct oato_weight *w, size_t *n)
{
    if (*n == s->n || s->pieces[*n].weight != w)
        return false;
    ++*n;
    return true;
}

static bool is_streamed(const struct file_stream *s, const struct oato_weight *w)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->pieces[i].weight == w)
            return true;
    return false;
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
            if (slot == UINT32_MAX || (w && slot == r->weight[w - 1]) ||
                !is_streamed(s, p->weights[slot]))
                continue;
            if (!is_next(s, p->weights[slot], &n))
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
    if (!s)
        return;
    s->begun += s->stepped ? s->n : 0;
    s->stepped = true;
}

void file_stream_want(struct file_stream *s, uint32_t weights)
{
    if (s->on_demand)
        timeline_signal(&s->wanted, s->begun + weights, 0);
}

void file_stream_choose(struct file_stream *s, const struct oato_weight *w, const uint8_t *slices)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->pieces[i].weight == w && s->pieces[i].slices)
            memcpy(s->pieces[i].chosen, slices, s->pieces[i].slices);
}

void file_stream_chosen(struct file_stream *s, uint32_t weights)
{
    timeline_signal(&s->chosen, s->begun + weights, 0);
}

bool file_stream_is_chosen(struct file_stream *s, uint32_t weights)
{
    return timeline_reached(&s->chosen, s->begun + weights);
}

bool file_stream_wait(struct file_stream *s, uint32_t weights, const _Atomic bool *stop)
{
    return timeline_wait_unless(&s->arrived, s->begun + weights, NULL, stop);
}

void file_stream_used(struct file_stream *s, uint32_t weights)
{
    timeline_signal(&s->used, s->ended + weights, 0);
    if (weights == s->n)
        s->ended += s->n;
}

bool file_stream_arrived(struct file_stream *s, uint32_t weights)
{
    return timeline_reached(&s->arrived, s->begun + weights);
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
    timeline_wake(&s->chosen);
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
    free(s);
}
