/*
 * prepared.c - saves prepared weights in a file, so that later starts map them instead of preparing
 * again, and several processes share the memory. The format is docs/prepared-format.md.
 *
 * A file is for one model, one layout and one choice of rows, which its name identifies. Its header
 * and table must be exactly those that this engine would write, except for the hashes of the
 * weights. Every byte is either hashed or has a known value, and all are checked, so a file is used
 * whole or not at all. Nothing here makes a start fail: weights that cannot be read are prepared,
 * and files that cannot be written are not kept.
 */
#include "base/pages.h"
#include "executor/executor_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files of prepared weights are little-endian, and so must be the machine"
#endif

enum { VERSION = 3, ALIGN = READ_ALIGN, CHECKERS_MAX = 16 };

static const char magic[8] = {'O', 'A', 'T', 'O', 'P', 'R', 'E', 'P'};

struct prepared_header {
    char magic[8];
    uint32_t version, n;
    uint64_t bytes; /* of the file */
    uint64_t structure_hash, content_hash;
    char layout[32];
    uint64_t data; /* offset of the first weight */
    uint64_t table_hash;
    uint64_t hash; /* of everything before */
};

struct prepared_row {
    uint64_t name_hash;
    uint32_t dtype, use;
    int64_t k, begin, end, column;
    uint64_t offset, bytes;
    uint64_t hash; /* of the bytes and the zeros up to a multiple of ALIGN */
};

_Static_assert(sizeof(struct prepared_header) == 96, "no padding");
_Static_assert(sizeof(struct prepared_row) == 72, "no padding");

/* The file that this engine expects, without the hashes of weights and table. */
struct prepared {
    struct prepared_header header;
    struct prepared_row *rows;
    uint32_t *slots;   /* parallel to rows: of the device */
    uint64_t unsynced; /* bytes written since they last left the memory */
    struct text path;
};

static void prepared_free(struct prepared *p)
{
    free(p->rows);
    free(p->slots);
    text_free(&p->path);
}

/* Path: folder, name of the model's file, layout, and a hash of everything that must match. */
static void path_make(struct prepared *p, const struct engine *e)
{
    const char *model = gguf_path(e->model->gguf), *slash = strrchr(model, '/');
    struct prepared_header key = p->header;
    key.table_hash = hash_bytes(p->rows, key.n * sizeof *p->rows);
    text_init(&p->path);
    if (e->options->prepared_cache)
        text_printf(&p->path, "%s", e->options->prepared_cache);
    else
        cache_folder(&p->path);
    text_printf(&p->path, "/%s.%s.%016llx.prepared", slash ? slash + 1 : model, key.layout,
                (unsigned long long)hash_bytes(&key, sizeof key));
}

/* The model's files are used for the last time, or only for look-ups: none of it stays in memory,
 * not even what was read ahead of the header. */
static void model_forget(const struct gguf *g)
{
    const struct mapped_file *last = NULL;
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const struct mapped_file *file = gguf_tensor_at(g, i)->file;
        if (file == last)
            continue;
        file_use(file, FILE_ONCE);
        file_release(file, 0, file->bytes);
        last = file;
    }
}

/* Of the tensor's name and, if rows or columns are gathered, which ones. What is not from the
 * model's file may differ from run to run. */
static bool slot_hash(const struct weight_slot *s, uint64_t *out)
{
    struct hash_stream *h = hash_create();
    if (!h)
        return false;
    hash_update(h, s->tensor->name, strlen(s->tensor->name));
    if (!s->tensor->file && s->tensor->data)
        hash_update(h, s->tensor->data, s->tensor->bytes);
    if (s->members) {
        hash_update(h, &s->each, sizeof s->each);
        hash_update(h, s->members, (size_t)slot_members(s) * sizeof *s->members);
    }
    *out = hash_digest(h);
    hash_free(h);
    return true;
}

static bool prepared_make(const struct engine *e, const struct engine_device *d, struct prepared *p)
{
    memset(p, 0, sizeof *p);
    p->rows = calloc(d->lowered->n_slots + 1, sizeof *p->rows);
    p->slots = calloc(d->lowered->n_slots + 1, sizeof *p->slots);
    if (!p->rows || !p->slots)
        return false;
    struct prepared_header *h = &p->header;
    for (uint32_t i = 0; i < d->lowered->n_slots; i++) {
        const struct weight_slot *s = &d->lowered->slots[i];
        const bool others = s->use == WEIGHT_LOOKUP || (s->streamed && !s->stored) || s->cached;
        if (others || (!d->info.is_host && !s->stored))
            continue; /* the model's file or the host's weights are used */
        struct prepared_row *row = &p->rows[h->n];
        *row = (struct prepared_row){.dtype = (uint32_t)s->tensor->dtype,
                                     .use = (uint32_t)s->use,
                                     .k = s->col_end - s->col_begin,
                                     .begin = s->begin,
                                     .end = s->end,
                                     .column = s->col_begin,
                                     .bytes = s->bytes};
        if (!slot_hash(s, &row->name_hash))
            return false;
        p->slots[h->n++] = i;
    }
    memcpy(h->magic, magic, sizeof magic);
    h->version = VERSION;
    h->structure_hash = gguf_structure_hash(e->model->gguf);
    h->content_hash = gguf_content_hash(e->model->gguf);
    snprintf(h->layout, sizeof h->layout, "%s", weight_layout(d->device));
    h->data = size_align(sizeof *h + h->n * sizeof *p->rows, ALIGN);
    h->bytes = h->data;
    for (uint32_t i = 0; i < h->n; i++) {
        p->rows[i].offset = h->bytes;
        h->bytes += size_align(p->rows[i].bytes, ALIGN);
    }
    path_make(p, e);
    return !p->path.failed;
}

/* --------------------------------------------------------------------------------- checks */

/* Threads check the weights' hashes until all are done or one is wrong. What is streamed is checked
 * when it is read for the first time, unless that is never whole. */
struct data_check {
    const struct prepared *p;
    const struct engine_device *device;
    uint32_t n;
    _Atomic uint32_t next;
    _Atomic bool bad;
};

static void *data_check_run(void *arg)
{
    struct data_check *c = arg;
    for (uint32_t i; !atomic_load(&c->bad) && (i = atomic_fetch_add(&c->next, 1)) < c->n;) {
        const struct prepared_row *r = &c->p->rows[i];
        const struct mapped_file *f = &c->device->prepared;
        const struct weight_slot *s = &c->device->lowered->slots[c->p->slots[i]];
        const size_t bytes = size_align(r->bytes, ALIGN);
        if (s->stored && !slot_slices(c->device, s))
            continue;
        if (hash_bytes(f->data + r->offset, bytes) != r->hash)
            atomic_store(&c->bad, true);
        if (s->stored)
            file_release(f, r->offset, bytes);
    }
    return NULL;
}

static bool data_is_good(const struct prepared *p, const struct engine_device *d)
{
    struct data_check c = {.p = p, .device = d, .n = p->header.n};
    const int threads = d->info.threads;
    pthread_t thread[CHECKERS_MAX];
    int started = 0;
    while (started < threads - 1 && started < CHECKERS_MAX &&
           !pthread_create(&thread[started], NULL, data_check_run, &c))
        started++;
    data_check_run(&c);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    return !atomic_load(&c.bad);
}

/* Hashes detect damage, not tampering: a file that other users can write is not trusted. */
static const char *owner_check(const struct mapped_file *f)
{
    if (f->owner != geteuid() && f->owner != 0)
        return "belongs to another user";
    return f->mode & (S_IWGRP | S_IWOTH) ? "can be written by others" : NULL;
}

/* NULL, or why the file is not the one that p expects. */
static const char *header_check(const struct prepared *p, const struct mapped_file *f)
{
    const struct prepared_header *want = &p->header;
    struct prepared_header h;
    if (f->bytes < sizeof h)
        return "is cut off";
    memcpy(&h, f->data, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return "holds no prepared weights";
    if (h.hash != hash_bytes(&h, offsetof(struct prepared_header, hash)))
        return "has a damaged header";
    if (h.version != VERSION)
        return "has another version of the format";
    if (h.bytes != f->bytes)
        return "is cut off";
    if (memcmp(h.layout, want->layout, sizeof h.layout) != 0)
        return "has another layout";
    if (h.structure_hash != want->structure_hash || h.content_hash != want->content_hash)
        return "belongs to another model";
    if (h.n != want->n || h.data != want->data || h.bytes != want->bytes)
        return "holds other parts of the model";
    return NULL;
}

static const char *prepared_check(struct prepared *p, const struct engine_device *d, bool written)
{
    const struct mapped_file *f = &d->prepared;
    const char *wrong = header_check(p, f);
    if (wrong)
        return wrong;
    const struct prepared_header *h = (const struct prepared_header *)f->data;
    const struct prepared_row *rows = (const struct prepared_row *)(f->data + sizeof *h);
    const size_t table = h->n * sizeof *rows;
    if (hash_bytes(rows, table) != h->table_hash)
        return "has a damaged table";
    for (uint32_t i = 0; i < h->n; i++) {
        p->rows[i].hash = rows[i].hash;
        if (memcmp(&p->rows[i], &rows[i], sizeof *rows) != 0)
            return "holds other parts of the model";
    }
    for (size_t at = sizeof *h + table; at < h->data; at++)
        if (f->data[at])
            return "is damaged";
    return written || data_is_good(p, d) ? NULL : "is damaged";
}

/* What is not streamed, in the background. */
static void residents_prefetch(const struct prepared *p, const struct engine_device *d)
{
    if (stored_bytes(d->lowered))
        file_use(&d->prepared, FILE_SCATTERED);
    for (uint32_t i = 0; i < p->header.n; i++)
        if (!d->lowered->slots[p->slots[i]].stored)
            file_prefetch(&d->prepared, p->rows[i].offset, p->rows[i].bytes);
}

void prepared_map(const struct engine *e, struct engine_device *d, bool written)
{
    struct prepared p;
    struct oato_error err;
    struct stat st;
    if (!prepared_make(e, d, &p) || (stat(p.path.data, &st) && errno == ENOENT))
        goto out;
    if (file_map(p.path.data, &d->prepared, &err)) {
        warn_line(e->warn, e->user, "%s: preparing the weights again", err.text);
        goto out;
    }
    residents_prefetch(&p, d);
    const char *wrong = owner_check(&d->prepared);
    if (!wrong)
        wrong = prepared_check(&p, d, written);
    if (wrong) {
        warn_line(e->warn, e->user, "%s: %s; preparing the weights again and replacing the file",
                  p.path.data, wrong);
        file_unmap(&d->prepared);
        goto out;
    }
    for (uint32_t i = 0; i < p.header.n; i++) {
        d->kept[p.slots[i]] = d->prepared.data + p.rows[i].offset;
        d->hashes[p.slots[i]] = p.rows[i].hash;
    }
    if (stored_bytes(d->lowered))
        model_forget(e->model->gguf);
    d->prepared_path = p.path.data;
    text_init(&p.path);
out:
    prepared_free(&p);
}

/* -------------------------------------------------------------------------------- writing */

enum { SYNC_BYTES = 4 << 20 }; /* written before they must have left the memory */

static const uint8_t zeros[ALIGN];

/* A weight that a row of the table is written from: the device's, or converted for it. */
struct written {
    const uint8_t *data;
    void *converted; /* NULL: in the device's memory */
    void *gathered;
};

static oato_status written_get(const struct engine_device *d, uint32_t slot, struct written *out,
                               struct oato_error *err)
{
    const struct weight_slot *s = &d->lowered->slots[slot];
    struct weight_source source;
    *out = (struct written){0};
    if (d->weights[slot])
        out->data = weight_data(d->device, d->weights[slot]);
    if (out->data)
        return OATO_OK;
    slot_prefetch(s);
    if (slot_source(s, NULL, &source, &out->gathered, err))
        return err->status;
    out->data = out->converted = pages_alloc(s->bytes);
    return out->data ? weight_convert(d->device, &source, out->converted, err)
                     : oato_fail_memory(err, s->bytes, s->tensor->name);
}

static void written_free(struct written *w, uint64_t bytes)
{
    if (w->converted)
        pages_free(w->converted, bytes);
    free(w->gathered);
}

static bool row_hash(struct prepared_row *r, const uint8_t *data)
{
    struct hash_stream *h = hash_create();
    if (!h)
        return false;
    hash_update(h, data, r->bytes);
    hash_update(h, zeros, size_align(r->bytes, ALIGN) - r->bytes);
    r->hash = hash_digest(h);
    hash_free(h);
    return true;
}

/* A file larger than the memory must not fill it on its way to the disk. Errors come back when it
 * is committed. */
static void pages_drop(const struct outfile *f)
{
    fflush(f->stream);
    RETRY(fdatasync(stream_fd(f->stream)));
    posix_fadvise(stream_fd(f->stream), 0, 0, POSIX_FADV_DONTNEED);
}

static oato_status row_write(struct prepared *p, const struct engine_device *d, uint32_t i,
                             struct outfile *f, struct oato_error *err)
{
    struct prepared_row *r = &p->rows[i];
    struct written w;
    oato_status status = written_get(d, p->slots[i], &w, err);
    if (!status && !row_hash(r, w.data))
        status = oato_fail_memory(err, sizeof(struct hash_stream *), "hashing weights");
    for (uint64_t at = 0, n; at < r->bytes && !status; at += n) {
        n = r->bytes - at < SYNC_BYTES ? r->bytes - at : SYNC_BYTES;
        status = outfile_write(f, w.data + at, n, err);
        /* else the memory holds all of it, and may keep the pages */
        p->unsynced += w.converted ? n : 0;
        if (p->unsynced < SYNC_BYTES)
            continue;
        pages_drop(f);
        p->unsynced = 0;
    }
    if (!status)
        status = outfile_write(f, zeros, size_align(r->bytes, ALIGN) - r->bytes, err);
    written_free(&w, r->bytes);
    return status;
}

static oato_status rows_write(const struct engine *e, struct prepared *p,
                              const struct engine_device *d, struct outfile *f,
                              struct oato_error *err)
{
    oato_status status = OATO_OK;
    uint64_t done = 0;
    for (uint32_t i = 0; i < p->header.n && !status; i++) {
        if (oato_interrupted)
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        if (e->options->on_load)
            e->options->on_load(e->user, d->info.id, done, p->header.bytes);
        status = row_write(p, d, i, f, err);
        done += p->rows[i].bytes;
    }
    return status;
}

/* The hashes are known once the weights are written, so header and table come last. */
static oato_status prepared_write(const struct engine *e, struct prepared *p,
                                  const struct engine_device *d, struct oato_error *err)
{
    struct prepared_header *h = &p->header;
    struct outfile f;
    const size_t table = h->n * sizeof *p->rows;
    oato_status status = outfile_open(&f, p->path.data, err);
    if (status)
        return status;
    fchmod(stream_fd(f.stream), S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH); /* see owner_check */
    for (size_t at = 0; at < h->data && !status; at += ALIGN)
        status = outfile_write(&f, zeros, ALIGN, err);
    if (stored_bytes(d->lowered))
        model_forget(e->model->gguf);
    if (!status)
        status = rows_write(e, p, d, &f, err);
    if (status) {
        outfile_abort(&f);
        return status;
    }
    h->table_hash = hash_bytes(p->rows, table);
    h->hash = hash_bytes(h, offsetof(struct prepared_header, hash));
    rewind(f.stream);
    status = outfile_write(&f, h, sizeof *h, err);
    if (!status)
        status = outfile_write(&f, p->rows, table, err);
    return status ? status : outfile_commit(&f, err);
}

oato_status prepared_save(const struct engine *e, const struct engine_device *d,
                          struct oato_error *err)
{
    struct prepared p;
    if (e->options->prepared_cache)
        folder_make(e->options->prepared_cache);
    oato_status status = prepared_make(e, d, &p)
                             ? prepared_write(e, &p, d, err)
                             : oato_fail_memory(err, sizeof p, "a file of prepared weights");
    prepared_free(&p);
    return status;
}
