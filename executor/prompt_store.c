/*
 * prompt_store.c - see prompt_store.h and the invariant in prompt_store_internal.h: the folder, and
 * the thread that writes what is queued.
 */
#include "executor/prompt_store_internal.h"
#include "executor/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAITING_MOST ((uint64_t)256 << 20) /* bytes to be written, in memory */
#define PAUSE_NS     60000000000u          /* after a write failed */
#define CLOSE_NS     10000000000u
#define TIMES_NS     10000000000u /* how often files are told when they were used */
#define LOOK_NS      1000000000u  /* how often the folder is looked at when nothing is written, */
#define SOON_NS      20000000u    /* and soon after it has changed */
#define TICK_NS      1000000000u  /* changes of a folder that may get the same time */
#define LIST_SHARE   20           /* at least as many times as listing took lie between two */

enum { WRITER_NICE = 10 };

void store_warn(struct prompt_store *s, bool *warned, const char *file, const char *what,
                const char *so)
{
    store_lock(s);
    const bool first = !*warned;
    *warned = true;
    s->stats.failed++;
    store_unlock(s);
    if (first)
        warn_line(s->o.warn, s->o.user, "%s%s%s; %s", file, *file ? ": " : "", what, so);
}

int64_t prompt_store_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t prompt_store_key(const struct prompt_store *s, uint64_t before, const int32_t *ids)
{
    const uint64_t of[2] = {before ? before : s->origin,
                            hash_bytes(ids, (size_t)s->o.page * sizeof *ids)};
    const uint64_t key = hash_bytes(of, sizeof of);
    return key ? key : 1;
}

/* ---------------------------------------------------------------------------------- rooms - */

void *data_take(struct prompt_store *s, enum prompt_part part)
{
    return s->n_spare[part] ? s->spare[part][--s->n_spare[part]]
                            : malloc(s->o.bytes[part] ? s->o.bytes[part] : 1);
}

void data_give(struct prompt_store *s, enum prompt_part part, void *data)
{
    if (data && s->n_spare[part] < PROMPT_SPARES)
        s->spare[part][s->n_spare[part]++] = data;
    else
        free(data);
}

void *prompt_store_room(struct prompt_store *s, enum prompt_part part)
{
    const uint64_t bytes = s->o.bytes[part];
    store_lock(s);
    /* a single one may be larger than all that may wait */
    const bool full = s->stats.waiting_bytes && s->stats.waiting_bytes + bytes > WAITING_MOST;
    void *data = full ? NULL : data_take(s, part);
    s->stats.waiting_bytes += data ? bytes : 0;
    store_unlock(s);
    return data;
}

void prompt_store_drop(struct prompt_store *s, enum prompt_part part, void *data)
{
    store_lock(s);
    s->stats.waiting_bytes -= s->o.bytes[part];
    data_give(s, part, data);
    store_unlock(s);
}

/* -------------------------------------------------------------------------------- writing - */

bool prompt_store_writes(const struct prompt_store *s)
{
    store_lock(s);
    const bool writes = !s->paused_ns || now_ns() > s->paused_ns;
    store_unlock(s);
    return writes;
}

bool prompt_store_use(struct prompt_store *s, uint64_t key, enum prompt_part part, int64_t used)
{
    store_lock(s);
    struct prompt_entry *e = prompt_index_find(&s->index, key, part);
    if (e && used > e->used) {
        e->used = used;
        e->touched = true;
        if (!s->touched)
            pthread_cond_signal(&s->write);
        s->touched = true;
    }
    store_unlock(s);
    return e != NULL;
}

void prompt_store_put(struct prompt_store *s, uint64_t key, enum prompt_part part,
                      const int32_t *ids, int32_t n, int64_t used, void *data)
{
    struct waiting *w = malloc(sizeof *w + (size_t)n * sizeof *ids);
    store_lock(s);
    const bool takes = w && !s->stop && !prompt_index_find(&s->index, key, part) &&
                       prompt_index_add(&s->index, key, part, used);
    if (takes) {
        *w = (struct waiting){.key = key, .part = part, .used = used, .data = data, .n = n};
        memcpy(w->ids, ids, (size_t)n * sizeof *ids);
        *s->last = w;
        s->last = &w->next;
        w = NULL;
        pthread_cond_signal(&s->write);
    }
    store_unlock(s);
    free(w);
    if (!takes)
        prompt_store_drop(s, part, data);
}

struct prompt_record record_of(const struct prompt_store *s, enum prompt_part part,
                               const int32_t *ids, int32_t n)
{
    return (struct prompt_record){.part = part, .n = n, .ids = ids, .bytes = s->o.bytes[part]};
}

static oato_status piece_write(const struct prompt_store *s, const struct waiting *w,
                               struct oato_error *err)
{
    const struct prompt_record record = record_of(s, w->part, w->ids, w->n);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                      {w->used / 1000000000, w->used % 1000000000}};
    struct outfile f = {.path = NULL};
    struct text path;
    text_init(&path);
    prompt_index_path(&s->index, w->key, w->part, &path);
    oato_status status = path.failed ? oato_fail_memory(err, 64, "a file name")
                                     : prompt_file_open(&f, path.data, err);
    text_free(&path);
    if (status)
        return status;
    status = prompt_record_write(&f, &s->o.who, &record, w->data, err);
    if (status)
        return status; /* it has been abandoned */
    if (!fflush(f.stream))
        futimens(stream_fd(f.stream), times);
    return outfile_commit_unsynced(&f, err);
}

/* Removes the files of a list of lines. */
static uint64_t files_remove(struct text *gone)
{
    uint64_t n = 0;
    for (char *at = gone->data, *end; at && !gone->failed && (end = strchr(at, '\n'));
         at = end + 1) {
        *end = 0;
        unlink(at);
        n++;
    }
    text_free(gone);
    return n;
}

/* Makes the folder hold no more than it may. False: what is there is wanted more. */
static bool room_make(struct prompt_store *s, uint64_t bytes, int64_t used)
{
    struct text gone;
    text_init(&gone);
    store_lock(s);
    const bool room = prompt_index_room(&s->index, bytes, used, &gone);
    store_unlock(s);
    const uint64_t n = files_remove(&gone);
    store_lock(s);
    s->stats.evicted += n;
    store_unlock(s);
    return room;
}

/* What the writer knows of other servers that use the folder. */
struct others {
    struct timespec time; /* the folder's, when it was looked at last, */
    uint64_t changed_ns;  /* when that was first seen, */
    uint64_t listed_ns;   /* and when the folder was listed last */
    uint64_t next_ns;     /* not before then again */
    bool unsettled;       /* it is to be listed once more, soon */
};

/* Lists the folder if it has changed, by whomever: what others have written or removed is not told
 * from one's own changes by the folder's time, which ticks coarsely, too. So it is listed until it
 * was quiet for a tick, but for no more than a twentieth of the time. */
static void others_look(struct prompt_store *s, struct others *o)
{
    struct stat st;
    struct prompt_scan scan;
    const uint64_t now = now_ns();
    if (stat(s->o.folder, &st))
        return;
    if (st.st_mtim.tv_sec != o->time.tv_sec || st.st_mtim.tv_nsec != o->time.tv_nsec) {
        o->time = st.st_mtim;
        o->changed_ns = now;
    }
    o->unsettled = o->listed_ns < o->changed_ns + TICK_NS;
    if (!o->unsettled || now < o->next_ns)
        return;
    store_lock(s);
    const uint64_t removed = s->removed;
    store_unlock(s);
    if (!prompt_scan_make(s->o.folder, false, &scan))
        return;
    store_lock(s);
    const bool stale = s->removed != removed; /* a file that is listed may be gone */
    const bool others = !stale && prompt_index_merge(&s->index, &scan);
    store_unlock(s);
    free(scan.found);
    o->listed_ns = stale ? o->listed_ns : now;
    o->next_ns = now + (now_ns() - now) * LIST_SHARE;
    if (others)
        room_make(s, 0, INT64_MAX);
}

static void waiting_write(struct prompt_store *s, const struct waiting *w)
{
    const struct prompt_record record = record_of(s, w->part, w->ids, w->n);
    const uint64_t bytes = prompt_record_bytes(&record);
    struct oato_error err = {0};
    const bool room = room_make(s, bytes, w->used);
    const bool written = room && !piece_write(s, w, &err);
    store_lock(s);
    struct prompt_entry *e = prompt_index_find(&s->index, w->key, w->part);
    if (written && e && !e->here) {
        prompt_index_here(&s->index, e, bytes);
        e->touched = e->used != w->used;
        s->touched = s->touched || e->touched;
    } else if (!written && e && !e->here) {
        prompt_index_remove(&s->index, e);
    }
    s->stats.written += written;
    s->stats.written_bytes += written ? bytes : 0;
    if (err.status)
        s->paused_ns = now_ns() + PAUSE_NS;
    store_unlock(s);
    if (err.status)
        store_warn(s, &s->warned_write, "", err.text, "prompts are not kept there for now");
}

/* With the lock: takes back what waits and will not be written. */
static void waiting_forget(struct prompt_store *s)
{
    for (struct waiting *w; (w = s->first) != NULL; free(w)) {
        struct prompt_entry *e = prompt_index_find(&s->index, w->key, w->part);
        if (e && !e->here)
            prompt_index_remove(&s->index, e);
        s->first = w->next;
        s->stats.waiting_bytes -= s->o.bytes[w->part];
        data_give(s, w->part, w->data);
    }
    s->last = &s->first;
}

/* Tells files when they were used; a few at a time with the lock. */
static void times_write(struct prompt_store *s)
{
    enum { AT_ONCE = 64 };
    store_lock(s);
    s->touched = false;
    store_unlock(s);
    for (int n = AT_ONCE; n == AT_ONCE;) {
        struct {
            struct text path;
            int64_t used;
        } some[AT_ONCE];
        n = 0;
        store_lock(s);
        for (size_t i = 0; i < s->index.n_buckets && n < AT_ONCE; i++)
            for (struct prompt_entry *e = s->index.buckets[i]; e && n < AT_ONCE; e = e->next) {
                if (!e->touched || !e->here)
                    continue;
                e->touched = false;
                text_init(&some[n].path);
                prompt_index_path(&s->index, e->key, e->part, &some[n].path);
                some[n++].used = e->used;
            }
        store_unlock(s);
        for (int i = 0; i < n; i++) {
            const struct timespec times[2] = {
                {.tv_nsec = UTIME_OMIT}, {some[i].used / 1000000000, some[i].used % 1000000000}};
            if (!some[i].path.failed)
                utimensat(AT_FDCWD, some[i].path.data, times, 0);
            text_free(&some[i].path);
        }
    }
}

struct timespec time_after(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ns += (uint64_t)t.tv_nsec;
    return (struct timespec){t.tv_sec + (time_t)(ns / 1000000000), (long)(ns % 1000000000)};
}

static void *writer_run(void *store)
{
    struct prompt_store *s = store;
    struct others others = {.unsettled = true}; /* it was listed before this thread began */
    uint64_t times_ns = now_ns();
    (void)!nice(WRITER_NICE);
    store_lock(s);
    for (;;) {
        bool idle = false;
        while (!s->first && !s->stop && !idle) {
            const struct timespec until = time_after(others.unsettled ? SOON_NS : LOOK_NS);
            idle = pthread_cond_timedwait(&s->write, s->lock, &until) == ETIMEDOUT;
        }
        if (s->paused_ns > now_ns() || (s->stop && now_ns() > s->stop_ns))
            waiting_forget(s);
        struct waiting *w = s->first;
        if (w && !(s->first = w->next))
            s->last = &s->first;
        const bool over = s->stop && !w, touched = s->touched;
        store_unlock(s);
        if (w)
            waiting_write(s, w);
        if (!over)
            others_look(s, &others);
        if (w) {
            prompt_store_drop(s, w->part, w->data);
            free(w);
        }
        if (over || (!w && touched && now_ns() - times_ns >= TIMES_NS)) {
            times_write(s);
            times_ns = now_ns();
        }
        if (over)
            return NULL;
        store_lock(s);
    }
}

/* ---------------------------------------------------------------------------- open, close - */

static oato_status folder_check(struct prompt_store *s, struct oato_error *err)
{
    struct prompt_scan scan;
    if (text_folder_use(s->o.folder, "the prompt cache", err))
        return err->status;
    if (!prompt_scan_make(s->o.folder, true, &scan))
        return oato_fail(err, OATO_EIO, "the prompt cache cannot read %s: %s", s->o.folder,
                         strerror(errno));
    prompt_index_merge(&s->index, &scan);
    room_make(s, 0, INT64_MAX);
    return OATO_OK;
}

oato_status prompt_store_open(const struct prompt_store_options *o, struct prompt_store **out,
                              struct oato_error *err)
{
    struct prompt_store *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return oato_fail_memory(err, sizeof *s, "the prompt cache");
    s->o = *o;
    s->origin = hash_bytes(&o->who, sizeof o->who);
    s->ns_byte = PROMPT_NS_BYTE;
    s->last = &s->first;
    s->lock = &s->lock_room;
    pthread_mutex_init(s->lock, NULL);
    pthread_cond_init(&s->write, NULL);
    pthread_cond_init(&s->read, NULL);
    pthread_cond_init(&s->was_read, NULL);
    s->index.most = o->most_bytes;
    s->index.folder = strdup(o->folder);
    s->o.folder = s->index.folder;
    oato_status status = s->o.folder ? folder_check(s, err)
                                     : oato_fail_memory(err, strlen(o->folder), "a file name");
    if (!status && pthread_create(&s->writer, NULL, writer_run, s))
        status = oato_fail(err, OATO_EIO, "cannot start the threads of the prompt cache");
    s->n_threads += !status;
    if (!status && pthread_create(&s->reader, NULL, reader_run, s))
        status = oato_fail(err, OATO_EIO, "cannot start the threads of the prompt cache");
    s->n_threads += !status;
    if (status)
        prompt_store_close(s);
    else
        *out = s;
    return status;
}

void prompt_store_close(struct prompt_store *s)
{
    if (!s)
        return;
    store_lock(s);
    s->stop = true;
    s->stop_ns = now_ns() + CLOSE_NS;
    pthread_cond_signal(&s->write);
    pthread_cond_signal(&s->read);
    store_unlock(s);
    if (s->n_threads > 0)
        pthread_join(s->writer, NULL);
    if (s->n_threads > 1)
        pthread_join(s->reader, NULL);
    waiting_forget(s);
    for (int part = 0; part < PROMPT_PARTS; part++)
        while (s->n_spare[part])
            free(s->spare[part][--s->n_spare[part]]);
    prompt_index_free(&s->index);
    pthread_mutex_destroy(s->lock);
    pthread_cond_destroy(&s->write);
    pthread_cond_destroy(&s->read);
    pthread_cond_destroy(&s->was_read);
    free(s);
}

void prompt_store_get_stats(const struct prompt_store *s, struct prompt_store_stats *out)
{
    store_lock(s);
    *out = s->stats;
    out->bytes = s->index.bytes;
    out->most_bytes = s->index.most;
    out->pieces = s->index.n;
    out->read_bytes_per_s = 1e9 / s->ns_byte;
    store_unlock(s);
}
