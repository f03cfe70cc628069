/*
 * text_file.c - see text_file.h. Whoever calls reads and writes; the engine's thread only copies, a
 * piece at a time.
 */
#include "executor/text_file.h"
#include "executor/executor_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

oato_status text_folder_use(const char *path, const char *who, struct oato_error *err)
{
    struct text file;
    text_init(&file);
    text_printf(&file, "%s/oato-check", path);
    errno = 0;
    folder_make(path);
    const int why = errno == EEXIST ? 0 : errno;
    oato_status status = file.failed ? oato_fail_memory(err, strlen(path), "a file name") : OATO_OK;
    if (!status && outfile_check(file.data, err))
        status = oato_fail(err, OATO_EIO, "%s cannot write in %s: %s; name another folder", who,
                           path, strerror(why ? why : errno));
    text_free(&file);
    return status;
}

/* A piece on its way between the two threads. */
struct passing {
    struct engine *engine;
    const struct prompt_record *record;
    void *data;
    enum { PASSED, ABSENT, NO_ROOM, FAILED } result;
    struct oato_error err;
};

/* The page that ends n ids; *before gets the one before it, -1: there is none. -1: not in memory.
 */
static int32_t page_find(const struct engine *e, const int32_t *ids, int32_t n, int32_t *before)
{
    int32_t page = -1;
    for (int32_t i = 0; i < n; i += KV_PAGE_POSITIONS) {
        *before = page;
        page = prefix_find(&e->pool.prefix, page, ids + i);
        if (page < 0)
            return i + KV_PAGE_POSITIONS == n ? -1 : -2;
    }
    return page;
}

static void piece_out(void *arg)
{
    struct passing *p = arg;
    struct engine *e = p->engine;
    const struct prompt_record *r = p->record;
    int32_t before;
    const int32_t page = page_find(e, r->ids, r->n, &before);
    const int32_t what = page < 0 ? -1 : kv_part(e, r->part, page);
    p->result = what < 0                                              ? ABSENT
                : part_copy(e, r->part, what, p->data, true, &p->err) ? FAILED
                                                                      : PASSED;
}

static void piece_in(void *arg)
{
    struct passing *p = arg;
    struct engine *e = p->engine;
    struct kv_pool *pool = &e->pool;
    const struct prompt_record *r = p->record;
    int32_t before = -1;
    const int32_t page = page_find(e, r->ids, r->n, &before);
    const enum kv_kind kind = r->part == PROMPT_WINDOW ? KV_WINDOW : KV_ALL;
    p->result = PASSED;
    if (page >= 0 && kv_part(e, r->part, page) >= 0) {
        if (r->part == PROMPT_STATE)
            return;
        kv_page_share(&pool->pages[kind], kv_part(e, r->part, page)); /* it was used just now */
        kv_page_drop(pool, kind, kv_part(e, r->part, page));
        return;
    }
    if (page == -2 || (page < 0 && r->part != PROMPT_PAGE)) {
        p->result = NO_ROOM; /* what is before it was given away meanwhile */
        return;
    }
    if (r->part == PROMPT_WINDOW && !pool->pages[kind].n_free)
        kv_windows_give_back(pool);
    if (r->part != PROMPT_STATE && !pool->pages[kind].n_free) {
        p->result = NO_ROOM;
        return;
    }
    const int32_t at = piece_install(e, r->part, r->part == PROMPT_PAGE ? before : page,
                                     r->ids + r->n - KV_PAGE_POSITIONS, r->n, p->data, &p->err);
    if (r->part != PROMPT_STATE && at >= 0)
        kv_page_drop(pool, kind, at);
    p->result = at < 0 ? FAILED : PASSED;
}

static oato_status usable(const struct engine *e, struct oato_error *err)
{
    return e->who.engine ? OATO_OK
                         : oato_fail(err, OATO_EUSAGE, "prompts cannot be saved: %s",
                                     or_empty(prompts_unable(e)));
}

/* One piece to the other thread and back. */
static oato_status piece_pass(const struct text_file *t, struct passing *p, void (*work)(void *),
                              struct oato_error *err)
{
    if (!t->turn(t->user, work, p))
        return oato_fail(err, OATO_EDEVICE, "the engine has ended");
    if (p->result == NO_ROOM)
        return oato_fail(err, OATO_EFIT, "the KV cache has no room for the saved prompt");
    if (p->result == FAILED)
        *err = p->err;
    return p->result == FAILED ? err->status : OATO_OK;
}

static uint64_t data_bytes_most(const struct engine *e)
{
    uint64_t most = 1;
    for (int part = 0; part < PROMPT_PARTS; part++)
        if (e->kv_layers[part].page_bytes > most)
            most = e->kv_layers[part].page_bytes;
    return most;
}

/* The parts of all pages, until one is not there. */
static oato_status pieces_write(const struct text_file *t, const int32_t *ids, int32_t n,
                                struct outfile *f, void *data, int32_t *tokens, uint64_t *bytes,
                                struct oato_error *err)
{
    const struct engine *e = t->engine;
    for (int32_t end = KV_PAGE_POSITIONS; end <= n; end += KV_PAGE_POSITIONS) {
        for (int part = 0; part < PROMPT_PARTS; part++) {
            const struct prompt_record r = {.part = (enum prompt_part)part,
                                            .first = end - KV_PAGE_POSITIONS,
                                            .n = end,
                                            .ids = ids,
                                            .bytes = e->kv_layers[part].page_bytes};
            struct passing p = {.engine = t->engine, .record = &r, .data = data};
            if (piece_pass(t, &p, piece_out, err))
                return err->status;
            if (p.result == ABSENT && part == PROMPT_PAGE)
                return OATO_OK;
            if (p.result == ABSENT)
                continue;
            if (prompt_record_write(f, &e->who, &r, data, err))
                return err->status;
            *bytes += prompt_record_bytes(&r);
            if (part == (e->pool.state.n_slots ? PROMPT_STATE : PROMPT_PAGE))
                *tokens = end;
        }
    }
    return OATO_OK;
}

oato_status text_file_save(const struct text_file *t, const int32_t *ids, int32_t n,
                           const char *path, int32_t *tokens, uint64_t *bytes,
                           struct oato_error *err)
{
    struct outfile f;
    *tokens = 0;
    *bytes = 0;
    if (usable(t->engine, err))
        return err->status;
    void *data = malloc(data_bytes_most(t->engine));
    if (!data)
        return oato_fail_memory(err, data_bytes_most(t->engine), "a saved prompt");
    oato_status status = prompt_file_open(&f, path, err);
    if (!status) {
        status = pieces_write(t, ids, n, &f, data, tokens, bytes, err);
        if (!status && !*tokens)
            status = oato_fail(err, OATO_NEGATIVE,
                               "nothing of the prompt is in memory; only whole pages of %d tokens "
                               "can be saved",
                               KV_PAGE_POSITIONS);
        if (status)
            outfile_abort(&f);
        else
            status = outfile_commit(&f, err);
    }
    free(data);
    return status;
}

/* ----------------------------------------------------------------------------------- back - */

/* A record whose header was read: its tokens go behind those that are known. */
static oato_status record_check(const struct engine *e, const struct prompt_record *r, int32_t n,
                                struct oato_error *err)
{
    const bool next = r->part == PROMPT_PAGE && r->first == n;
    const bool same = r->part != PROMPT_PAGE && r->n == n;
    const bool has = r->part == PROMPT_WINDOW  ? e->pool.window > 0
                     : r->part == PROMPT_STATE ? e->pool.state.n_slots > 0
                                               : true;
    if ((!next && !same) || !has || r->n - r->first != KV_PAGE_POSITIONS ||
        r->bytes != e->kv_layers[r->part].page_bytes)
        return oato_fail(err, OATO_EFILE, "has pieces that do not follow each other");
    return r->n > e->context
               ? oato_fail(err, OATO_EFIT, "holds more than the context of %d tokens", e->context)
               : OATO_OK;
}

static oato_status pieces_read(const struct text_file *t, int fd, uint64_t size, int32_t *ids,
                               int32_t *n, void *data, int32_t *tokens, uint64_t *bytes,
                               struct oato_error *err)
{
    struct engine *e = t->engine;
    while (*bytes < size) {
        struct prompt_record r;
        if (prompt_record_head(fd, *bytes, &e->who, &r, err) || record_check(e, &r, *n, err) ||
            prompt_record_ids(fd, *bytes, &r, ids + r.first, err))
            return err->status;
        r.ids = ids;
        if (prompt_record_read(fd, *bytes, &e->who, &r, data, err))
            return err->status;
        struct passing p = {.engine = e, .record = &r, .data = data};
        if (piece_pass(t, &p, piece_in, err))
            return err->status;
        *n = r.n;
        *bytes += prompt_record_bytes(&r);
        if (r.part == (e->pool.state.n_slots ? PROMPT_STATE : PROMPT_PAGE))
            *tokens = r.n;
    }
    return *n ? OATO_OK : oato_fail(err, OATO_EFILE, "holds no prompt");
}

oato_status text_file_load(const struct text_file *t, const char *path, int32_t **ids, int32_t *n,
                           int32_t *tokens, uint64_t *bytes, struct oato_error *err)
{
    const size_t room = ((size_t)t->engine->context + KV_PAGE_POSITIONS) * sizeof **ids;
    struct stat st;
    *n = *tokens = 0;
    *bytes = 0;
    *ids = NULL;
    if (usable(t->engine, err))
        return err->status;
    const int fd = RETRY(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0 || fstat(fd, &st)) {
        oato_fail(err, OATO_EIO, "cannot be opened: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    const char *owner = prompt_file_owner(fd);
    void *data = malloc(data_bytes_most(t->engine));
    *ids = malloc(room);
    oato_status status = owner            ? oato_fail(err, OATO_EFILE, "%s", owner)
                         : !data || !*ids ? oato_fail_memory(err, room, "a saved prompt")
                                          : pieces_read(t, fd, (uint64_t)st.st_size, *ids, n, data,
                                                        tokens, bytes, err);
    close(fd);
    free(data);
    return status;
}

void engine_forget(struct engine *e, const int32_t *ids, int32_t n)
{
    struct kv_pool *p = &e->pool;
    int32_t pages = n / KV_PAGE_POSITIONS, before;
    if (!p->prefix.pages)
        return;
    for (int32_t page; pages; pages--) { /* from the end: a page is found behind others */
        page = page_find(e, ids, pages * KV_PAGE_POSITIONS, &before);
        if (page < 0)
            continue;
        kv_page_share(&p->pages[KV_ALL], page);
        prefix_forget(&p->prefix, KV_ALL, page);
        kv_page_drop(p, KV_ALL, page);
    }
}
