/*
 * cpu_kv_file.c - KV of layers that stay in a file: longer contexts than memory has room for. The
 * cache has KV_ROOMS rooms in which these layers lie in turn (core/memory.c), and a step uses them
 * in the order of their numbers, so one thread is a layer ahead: while one computes, the next one's
 * pages arrive in the other room. A layer that has been used is done with once the pages with new
 * positions are written, and its room is the next one's.
 *
 * What a step reads is known when it begins: of each sequence the pages with earlier positions, in
 * layers with a window those that it sees. A page that is copied because sequences shared it is
 * read to where the copy belongs. The last layers are written after the step; the next one waits
 * for that, and with its first layer for storage: which pages it needs nobody knows before.
 *
 * The file has no name, so it is gone with the process, however that ends. All of its room is taken
 * when it is made: a disk that is too small says so then.
 */
#include "kernels/cpu/cpu_kv_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct page_read {
    int32_t from, to;
};

/* The step's pages of layers of one kind. */
struct page_list {
    struct page_read *reads;
    int32_t *writes;
    uint8_t *listed; /* per page */
    int32_t n_reads, n_writes;
};

struct kv_file {
    const char *id; /* of the device */
    const struct kv_cache *kv;
    int32_t *layers; /* of the cache, those in the file */
    uint32_t n;
    int32_t window; /* the largest */
    struct direct_file file;
    struct reader *reader;
    struct page_list lists[2];               /* all positions', and windows' */
    struct timeline begun, here, used, idle; /* steps, layers, layers, steps */
    uint64_t steps;                          /* that have begun */
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint64_t read;
    struct oato_error error; /* why `here` and `idle` failed */
};

/* ---------------------------------------------------------------------------- the thread --- */

static const struct page_list *list_of(const struct kv_file *f, uint32_t number)
{
    return &f->lists[f->kv->layers[f->layers[number]].window > 0];
}

static uint64_t place_of(const struct kv_file *f, uint32_t number, int32_t page)
{
    return number * f->kv->room_bytes + (uint64_t)page * kv_page_bytes(f->kv, f->layers[number]);
}

/* How many reads from number i on are neighbours in the file and in memory, up to a chunk. */
static int32_t reads_together(const struct page_list *l, int32_t i, uint64_t page)
{
    int32_t n = 1;
    while (i + n < l->n_reads && l->reads[i + n].from == l->reads[i].from + n &&
           l->reads[i + n].to == l->reads[i].to + n && (uint64_t)(n + 1) * page <= READ_CHUNK)
        n++;
    return n;
}

static oato_status layer_read(struct kv_file *f, uint32_t number)
{
    const struct page_list *l = list_of(f, number);
    const int32_t layer = f->layers[number];
    const uint64_t page = kv_page_bytes(f->kv, layer);
    oato_status status = OATO_OK;
    for (int32_t i = 0; !status && (i < l->n_reads || reader_on_way(f->reader));) {
        const struct page_read *r = &l->reads[i];
        const int32_t n = i < l->n_reads ? reads_together(l, i, page) : 0;
        uint64_t tag;
        if (n && reader_start(f->reader, &f->file, place_of(f, number, r->from),
                              kv_block(f->kv, layer, r->to, 0, 0), (size_t)n * page, 0))
            i += n;
        else
            status = reader_wait(f->reader, &tag, &f->error);
    }
    atomic_fetch_add_explicit(&f->read, (uint64_t)l->n_reads * page, memory_order_relaxed);
    return status;
}

static oato_status layer_write(struct kv_file *f, uint32_t number)
{
    const struct page_list *l = list_of(f, number);
    const int32_t layer = f->layers[number];
    const uint64_t page = kv_page_bytes(f->kv, layer);
    for (int32_t i = 0, n; i < l->n_writes; i += n) {
        const uint8_t *from = kv_block(f->kv, layer, l->writes[i], 0, 0);
        for (n = 1; i + n < l->n_writes && l->writes[i + n] == l->writes[i] + n;)
            n++;
        for (uint64_t at = 0, bytes = (uint64_t)n * page; at < bytes;) {
            const ssize_t written = RETRY(pwrite(f->file.fd, from + at, bytes - at,
                                                 (off_t)(place_of(f, number, l->writes[i]) + at)));
            if (written > 0)
                at += (uint64_t)written;
            else
                return oato_fail(&f->error, OATO_EIO, "%s: writing KV to a file in %s: %s", f->id,
                                 f->file.path, strerror(written ? errno : EIO));
        }
    }
    return OATO_OK;
}

/* Waits until a layer of this step has been used, and writes what is new in it. */
static oato_status layer_finish(struct kv_file *f, uint32_t number)
{
    const uint64_t before = (f->steps - 1) * f->n;
    if (!timeline_wait_unless(&f->used, before + number + 1, NULL, &f->stop))
        return OATO_OK;
    return layer_write(f, number);
}

static oato_status step_follow(struct kv_file *f)
{
    const uint64_t before = (f->steps - 1) * f->n;
    oato_status status = OATO_OK;
    for (uint32_t i = 0; i < f->n + KV_ROOMS && !status && !atomic_load(&f->stop); i++) {
        if (i >= KV_ROOMS)
            status = layer_finish(f, i - KV_ROOMS);
        if (status || i >= f->n || atomic_load(&f->stop))
            continue;
        status = layer_read(f, i);
        if (!status)
            timeline_signal(&f->here, before + i + 1, 0);
    }
    return status;
}

static void *file_main(void *arg)
{
    struct kv_file *f = arg;
    oato_status status = OATO_OK;
    for (uint64_t step = 1; !status; step++) {
        if (!timeline_wait_unless(&f->begun, step, NULL, &f->stop))
            break;
        status = step_follow(f);
        if (!status)
            timeline_signal(&f->idle, step, 0);
    }
    if (status) {
        timeline_fail(&f->here, TIMELINE_DIED);
        timeline_fail(&f->idle, TIMELINE_DIED);
    }
    return NULL;
}

/* -------------------------------------------------------------------------- open, compile -- */

static bool list_make(struct page_list *l, int32_t pages)
{
    const size_t n = (size_t)pages + 1;
    l->reads = calloc(n, sizeof *l->reads);
    l->writes = calloc(n, sizeof *l->writes);
    l->listed = calloc(n, 1);
    return l->reads && l->writes && l->listed;
}

static oato_status tables_make(struct kv_file *f, struct oato_error *err)
{
    const struct kv_cache *kv = f->kv;
    const size_t bytes = (size_t)kv->n_layers * sizeof *f->layers;
    f->layers = malloc(bytes);
    for (int32_t l = 0; f->layers && l < kv->n_layers; l++) {
        if (!kv->layers[l].filed)
            continue;
        f->layers[f->n++] = l;
        f->window = (int32_t)max_i64(f->window, kv->layers[l].window);
    }
    if (!f->layers || !list_make(&f->lists[0], kv->pages) || !list_make(&f->lists[1], kv->pages))
        return oato_fail_memory(err, bytes, "KV in a file");
    return OATO_OK;
}

static oato_status file_start(struct kv_file *f, struct oato_error *err)
{
    const struct kv_cache *kv = f->kv;
    timeline_init(&f->begun);
    timeline_init(&f->here);
    timeline_init(&f->used);
    timeline_init(&f->idle);
    if (reader_create(kv->data, KV_ROOMS * kv->room_bytes, READS_AHEAD, false, &f->reader, err))
        return err->status;
    const int e = pthread_create(&f->thread, NULL, file_main, f);
    if (e)
        return oato_fail(err, OATO_EFIT, "%s: cannot start a thread that reads KV: %s", f->id,
                         strerror(e));
    pthread_setname_np(f->thread, "oato-kv");
    f->started = true;
    return OATO_OK;
}

oato_status kv_file_open(const struct kv_cache *kv, const char *id, const char *folder,
                         struct kv_file **out, struct oato_error *err)
{
    *out = NULL;
    if (!kv->n_filed)
        return OATO_OK;
    struct kv_file *f = calloc(1, sizeof *f);
    if (!f)
        return oato_fail_memory(err, sizeof *f, "KV in a file");
    *f = (struct kv_file){.id = id, .kv = kv, .file = {.fd = -1}};
    if (tables_make(f, err) || direct_scratch(folder, f->n * kv->room_bytes, &f->file, err) ||
        file_start(f, err)) {
        kv_file_close(f);
        return oato_fail_at(err, "%s: KV in a file", id);
    }
    *out = f;
    return OATO_OK;
}

static bool is_of(const struct kv_file *f, const struct program_record *r, uint32_t number)
{
    return r->kind == RECORD_RUN && number < f->n && r->kv_layer == f->layers[number];
}

oato_status kv_file_compile(struct kv_file *f, const struct program *p, struct kv_use **uses,
                            struct oato_error *err)
{
    uint32_t n = 0, last = 0;
    *uses = NULL;
    if (!f)
        return OATO_OK;
    struct kv_use *use = *uses = calloc((size_t)p->n_records + 1, sizeof *use);
    if (!use)
        return oato_fail_memory(err, p->n_records * sizeof *use, "a program");
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (is_of(f, r, n)) {
            use[i] = (struct kv_use){n + 1, n + 1};
            last = i;
            n++;
        } else if (n && is_of(f, r, n - 1)) {
            use[last].used = 0;
            use[i].used = n;
            last = i;
        } else if (r->kind == RECORD_RUN && r->kv_layer >= 0 && f->kv->layers[r->kv_layer].filed)
            return oato_fail(err, OATO_EDEVICE,
                             "%s: record %u: KV in a file is used in another order than the "
                             "layers'; layers that read an earlier one's KV need it in memory",
                             f->id, i);
    }
    if (n != f->n)
        return oato_fail(err, OATO_EDEVICE, "%s: a program uses %u of %u layers' KV in a file",
                         f->id, n, f->n);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- steps ----- */

/* Pages of positions [from, from + n) of a sequence that has `from` earlier ones. */
static void list_add(struct page_list *l, const int32_t *pages, int64_t first, int64_t from,
                     int64_t n)
{
    for (int64_t i = first / KV_PAGE_POSITIONS; i < kv_pages_of(from); i++) {
        if (!l->listed[pages[i]])
            l->reads[l->n_reads++] = (struct page_read){pages[i], pages[i]};
        l->listed[pages[i]] = 1;
    }
    for (int64_t i = from / KV_PAGE_POSITIONS; i < kv_pages_of(from + n); i++)
        l->writes[l->n_writes++] = pages[i];
}

/* The page comes from another one: where a sequence of this step has it, and where the next step's
 * has it (the engine copies for both at once), so that it is in the file then. */
static void list_copy(struct page_list *l, const struct step_page_copy *copy)
{
    int32_t i = 0;
    while (i < l->n_reads && l->reads[i].to != copy->to)
        i++;
    l->reads[i] = (struct page_read){copy->from, copy->to};
    if (i < l->n_reads)
        return;
    l->n_reads++;
    l->writes[l->n_writes++] = copy->to;
}

static void lists_make(struct kv_file *f, const struct step *step)
{
    for (int kind = 0; kind < 2; kind++) {
        struct page_list *l = &f->lists[kind];
        l->n_reads = l->n_writes = 0;
        memset(l->listed, 0, (size_t)f->kv->pages);
        for (int32_t s = 0; s < step->n_seqs; s++) {
            const struct step_seq *seq = &step->seq[s];
            const int64_t from = seq->kv_len - seq->query_len;
            const int64_t first = kind ? max_i64(0, from + 1 - f->window) : 0;
            const int32_t *pages = kind ? seq->window_pages : seq->pages;
            if (pages)
                list_add(l, pages, first, from, seq->query_len);
        }
        for (int32_t i = 0; i < step->n_page_copies; i++)
            if (step->page_copy[i].window == kind)
                list_copy(l, &step->page_copy[i]);
    }
}

void kv_file_begin(struct kv_file *f, const struct step *step)
{
    if (!f || !timeline_wait_unless(&f->idle, f->steps, NULL, &f->stop))
        return;
    lists_make(f, step);
    timeline_signal(&f->begun, ++f->steps, 0);
}

bool kv_file_wait(struct kv_file *f, uint32_t layers, const _Atomic bool *stop)
{
    return !f || timeline_wait_unless(&f->here, (f->steps - 1) * f->n + layers, NULL, stop);
}

void kv_file_used(struct kv_file *f, uint32_t layers)
{
    if (f)
        timeline_signal(&f->used, (f->steps - 1) * f->n + layers, 0);
}

bool kv_file_failed(struct kv_file *f, struct oato_error *err)
{
    if (!f || !atomic_load(&f->here.failed))
        return false;
    *err = f->error;
    return true;
}

uint64_t kv_file_read(const struct kv_file *f)
{
    return f ? atomic_load_explicit(&f->read, memory_order_relaxed) : 0;
}

void kv_file_close(struct kv_file *f)
{
    if (!f)
        return;
    atomic_store(&f->stop, true);
    timeline_wake(&f->begun);
    timeline_wake(&f->used);
    if (f->started)
        pthread_join(f->thread, NULL);
    reader_free(f->reader);
    direct_close(&f->file);
    for (int kind = 0; kind < 2; kind++) {
        free(f->lists[kind].reads);
        free(f->lists[kind].writes);
        free(f->lists[kind].listed);
    }
    free(f->layers);
    free(f);
}
