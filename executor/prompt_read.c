/*
 * prompt_read.c - see prompt_store.h: the thread that reads pieces ahead of their use, and who
 * takes them. What was read is kept until it is used, but for each read no more than AHEAD_MOST.
 */
#include "executor/prompt_store_internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AHEAD_MOST   ((uint64_t)64 << 20) /* bytes that were read and not used yet */
#define PIECE_NS     50000.0              /* of reading a piece, beside its bytes */
#define SPEED_WEIGHT 0.1                  /* of one more piece */
#define DOUBT        0.98

bool prompt_store_has(const struct prompt_store *s, uint64_t key, enum prompt_part part)
{
    store_lock(s);
    const struct prompt_entry *e = prompt_index_find(&s->index, key, part);
    const bool has = e && e->here;
    store_unlock(s);
    return has;
}

double prompt_store_read_ns(const struct prompt_store *s, uint64_t bytes, int32_t pieces)
{
    store_lock(s);
    const double ns = s->ns_byte * (double)bytes + PIECE_NS * pieces;
    store_unlock(s);
    return ns;
}

void prompt_store_doubt(struct prompt_store *s)
{
    store_lock(s);
    if (s->ns_byte > PROMPT_NS_BYTE)
        s->ns_byte *= DOUBT;
    store_unlock(s);
}

static void read_free(struct prompt_read *r)
{
    free(r->pieces);
    free(r->data);
    free(r->ids);
    free(r);
}

struct prompt_read *prompt_store_read(struct prompt_store *s, const int32_t *ids, int32_t n,
                                      const struct prompt_piece *pieces, int32_t n_pieces)
{
    struct prompt_read *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->store = s;
    r->n_pieces = n_pieces;
    r->pieces = malloc((size_t)n_pieces * sizeof *pieces);
    r->data = calloc((size_t)n_pieces, sizeof *r->data);
    r->ids = malloc((size_t)n * sizeof *ids);
    if (!r->pieces || !r->data || !r->ids) {
        read_free(r);
        return NULL;
    }
    memcpy(r->pieces, pieces, (size_t)n_pieces * sizeof *pieces);
    memcpy(r->ids, ids, (size_t)n * sizeof *ids);
    store_lock(s);
    struct prompt_read **end = &s->reads;
    while (*end)
        end = &(*end)->next;
    *end = r;
    pthread_cond_signal(&s->read);
    store_unlock(s);
    return r;
}

/* The next piece of a read into `data`; why NULL: nothing is to be said. */
static oato_status piece_read(const struct prompt_read *r, const struct prompt_piece *p, void *data,
                              struct text *path, struct oato_error *err)
{
    const struct prompt_store *s = r->store;
    const struct prompt_record record = record_of(s, p->part, r->ids, p->n);
    struct stat st;
    prompt_index_path(&s->index, p->key, p->part, path);
    if (path->failed)
        return oato_fail_memory(err, 64, "a file name");
    const int fd = RETRY(open(path->data, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd < 0 && errno == ENOENT)
        return oato_fail(err, OATO_NEGATIVE, "another server has removed it");
    if (fd < 0)
        return oato_fail(err, OATO_EIO, "cannot be opened: %s", strerror(errno));
    const char *owner = prompt_file_owner(fd);
    oato_status status = owner ? oato_fail(err, OATO_EFILE, "%s", owner) : OATO_OK;
    if (!status)
        status = prompt_record_read(fd, 0, &s->o.who, &record, data, err);
    if (!status && (fstat(fd, &st) || (uint64_t)st.st_size != prompt_record_bytes(&record)))
        status = oato_fail(err, OATO_EFILE, "is longer than what it holds");
    close(fd);
    return status;
}

/* A file that is not what its name says is of no use to anybody; nor are those behind it before it
 * was written again, and whatever damaged it may have damaged them. */
static void piece_bad(const struct prompt_read *r, const char *path, const struct oato_error *err)
{
    struct prompt_store *s = r->store;
    const int32_t end = err->status == OATO_EFILE ? r->n_pieces : r->n_read + 1;
    for (int32_t i = r->n_read; i < end; i++) {
        const struct prompt_piece *p = &r->pieces[i];
        struct text file;
        text_init(&file);
        prompt_index_path(&s->index, p->key, p->part, &file);
        if (err->status == OATO_EFILE && !file.failed && prompt_store_has(s, p->key, p->part))
            unlink(file.data);
        store_lock(s); /* only now: what is listed before cannot come back into the index */
        struct prompt_entry *e = prompt_index_find(&s->index, p->key, p->part);
        if (e && e->here) {
            prompt_index_remove(&s->index, e);
            s->removed++;
        }
        store_unlock(s);
        text_free(&file);
    }
    if (err->status != OATO_NEGATIVE)
        store_warn(s, &s->warned_read, path, err->text, "computing the prompt again");
}

/* With the lock: a read that wants more and may have more. */
static struct prompt_read *read_next(struct prompt_store *s)
{
    for (struct prompt_read *r = s->reads; r; r = r->next)
        if (!r->failed && r->n_read < r->n_pieces && (!r->ahead || r->ahead < AHEAD_MOST))
            return r;
    return NULL;
}

/* With the lock: what it has not used is given back. */
static void read_delete(struct prompt_read *r)
{
    struct prompt_store *s = r->store;
    struct prompt_read **at = &s->reads;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    for (int32_t i = 0; i < r->n_pieces; i++)
        if (r->data[i])
            data_give(s, r->pieces[i].part, r->data[i]);
    read_free(r);
}

void *reader_run(void *store)
{
    struct prompt_store *s = store;
    store_lock(s);
    for (;;) {
        struct prompt_read *r;
        while (!(r = read_next(s)) && !s->stop)
            pthread_cond_wait(&s->read, s->lock);
        if (!r)
            break;
        const struct prompt_piece *p = &r->pieces[r->n_read];
        void *data = data_take(s, p->part);
        struct oato_error err = {0};
        struct text path;
        text_init(&path);
        r->busy = true;
        store_unlock(s);
        const uint64_t begin_ns = now_ns();
        if (!data)
            oato_fail_memory(&err, s->o.bytes[p->part], "a prompt");
        else if (piece_read(r, p, data, &path, &err))
            piece_bad(r, or_empty(path.data), &err);
        const double ns = (double)(now_ns() - begin_ns) - PIECE_NS;
        text_free(&path);
        store_lock(s);
        r->busy = false;
        if (err.status) {
            r->failed = true;
            data_give(s, p->part, data);
        } else {
            const double bytes = (double)(s->o.bytes[p->part] ? s->o.bytes[p->part] : 1);
            s->stats.read++;
            s->stats.read_bytes += s->o.bytes[p->part];
            s->ns_byte += SPEED_WEIGHT * ((ns > 0 ? ns : 0) / bytes - s->ns_byte);
            r->data[r->n_read++] = data;
            r->ahead += s->o.bytes[p->part];
        }
        if (r->gone)
            read_delete(r);
        pthread_cond_broadcast(&s->was_read);
    }
    store_unlock(s);
    return NULL;
}

/* With the lock. */
static enum prompt_reading reading_of(const struct prompt_read *r)
{
    if (r->n_used < r->n_read)
        return PROMPT_NEXT;
    return r->failed || r->n_read == r->n_pieces ? PROMPT_END : PROMPT_WAIT;
}

enum prompt_reading prompt_read_next(struct prompt_read *r, void **data)
{
    store_lock(r->store);
    const enum prompt_reading reading = reading_of(r);
    *data = reading == PROMPT_NEXT ? r->data[r->n_used] : NULL;
    store_unlock(r->store);
    return reading;
}

void prompt_read_used(struct prompt_read *r)
{
    struct prompt_store *s = r->store;
    store_lock(s);
    const enum prompt_part part = r->pieces[r->n_used].part;
    data_give(s, part, r->data[r->n_used]);
    r->data[r->n_used++] = NULL;
    r->ahead -= s->o.bytes[part];
    pthread_cond_signal(&s->read);
    store_unlock(s);
}

void prompt_read_wait(struct prompt_read *r, uint64_t most_ns)
{
    const struct timespec until = time_after(most_ns);
    store_lock(r->store);
    while (reading_of(r) == PROMPT_WAIT &&
           !pthread_cond_timedwait(&r->store->was_read, r->store->lock, &until))
        ;
    store_unlock(r->store);
}

void prompt_read_end(struct prompt_read *r)
{
    if (!r)
        return;
    struct prompt_store *s = r->store;
    store_lock(s);
    r->gone = r->failed = true;
    if (!r->busy)
        read_delete(r);
    store_unlock(s);
}

void prompt_store_count(struct prompt_store *s, int32_t tokens)
{
    store_lock(s);
    s->stats.used++;
    s->stats.tokens += (uint64_t)tokens;
    store_unlock(s);
}
