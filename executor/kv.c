/*
 * kv.c - which page holds which positions of which sequence. A page id means the same 64 positions
 * in every layer and on every device, so this file needs to know neither. Sequences share pages
 * after a fork; whoever writes to a shared page gets a copy first.
 *
 * Invariant: references[p] = block tables that name p; free pages have 0 and stand in free_list. A
 * page that was copied is released only at commit, because the step still reads it.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

oato_status kv_pool_init(struct kv_pool *p, struct arena *a, int32_t pages, int32_t seqs,
                         struct oato_error *err)
{
    size_t table, tables_bytes;
    if (!size_mul((size_t)pages, sizeof(int32_t), &table) ||
        !size_mul(table, (size_t)seqs, &tables_bytes))
        return oato_fail_memory(err, SIZE_MAX, "block tables");
    p->free_list = arena_alloc(a, (size_t)pages, sizeof *p->free_list);
    p->references = arena_alloc(a, (size_t)pages, sizeof *p->references);
    p->seqs = arena_alloc(a, (size_t)seqs, sizeof *p->seqs);
    p->undo = arena_alloc(a, (size_t)pages + (size_t)seqs, sizeof *p->undo);
    p->copies = arena_alloc(a, (size_t)seqs, sizeof *p->copies);
    p->tables = malloc(tables_bytes);
    if (!p->free_list || !p->references || !p->seqs || !p->tables || !p->undo || !p->copies)
        return oato_fail_memory(err, tables_bytes, "block tables");
    p->n_pages = p->n_free = pages;
    p->n_seqs = seqs;
    for (int32_t i = 0; i < pages; i++)
        p->free_list[i] = pages - 1 - i; /* page 0 is handed out first */
    for (int32_t i = 0; i < seqs; i++)
        p->seqs[i].pages = p->tables + (size_t)i * (size_t)pages;
    return OATO_OK;
}

static int32_t page_take(struct kv_pool *p)
{
    int32_t page = p->free_list[--p->n_free];
    p->references[page] = 1;
    return page;
}

static void page_drop(struct kv_pool *p, int32_t page)
{
    if (--p->references[page] == 0)
        p->free_list[p->n_free++] = page;
}

/* ------------------------------------------------------------------------------ sequences */

oato_status engine_seq_check(const struct engine *e, int32_t seq, struct oato_error *err)
{
    if (seq < 0 || seq >= e->pool.n_seqs || !e->pool.seqs[seq].used)
        return oato_fail(err, OATO_EUSAGE, "there is no sequence %d", seq);
    return OATO_OK;
}

oato_status engine_seq_create(struct engine *e, int32_t *seq, struct oato_error *err)
{
    struct kv_pool *p = &e->pool;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        if (!p->seqs[i].used) {
            p->seqs[i].used = true;
            p->seqs[i].length = p->seqs[i].n_pages = 0;
            p->seqs[i].state = -1;
            *seq = i;
            return OATO_OK;
        }
    }
    return oato_fail(err, OATO_EFIT, "all %d sequences are in use; raise the number of sequences",
                     p->n_seqs);
}

static void truncate_to(struct kv_pool *p, int32_t seq, int32_t length)
{
    struct kv_seq *s = &p->seqs[seq];
    if (length >= s->length)
        return;
    length = state_truncate(&p->state, s, seq, length);
    s->length = length;
    while (s->n_pages > kv_pages_of(length))
        page_drop(p, s->pages[--s->n_pages]);
}

void engine_seq_free(struct engine *e, int32_t seq)
{
    struct oato_error ignored;
    if (engine_seq_check(e, seq, &ignored))
        return;
    truncate_to(&e->pool, seq, 0);
    e->pool.seqs[seq].used = false;
}

oato_status engine_seq_fork(struct engine *e, int32_t from, int32_t *to, struct oato_error *err)
{
    struct kv_pool *p = &e->pool;
    oato_status status = engine_seq_check(e, from, err);
    if (!status)
        status = engine_seq_create(e, to, err);
    if (status)
        return status;
    const struct kv_seq *a = &p->seqs[from];
    struct kv_seq *b = &p->seqs[*to];
    memcpy(b->pages, a->pages, (size_t)a->n_pages * sizeof *a->pages);
    b->n_pages = a->n_pages;
    b->length = a->length;
    for (int32_t i = 0; i < a->n_pages; i++)
        p->references[a->pages[i]]++;
    state_fork(&p->state, a, b);
    return OATO_OK;
}

oato_status engine_seq_truncate(struct engine *e, int32_t seq, int32_t length,
                                struct oato_error *err)
{
    oato_status status = engine_seq_check(e, seq, err);
    if (!status && length < 0)
        status =
            oato_fail(err, OATO_EUSAGE, "a sequence cannot be truncated to %d positions", length);
    if (!status)
        truncate_to(&e->pool, seq, length);
    return status;
}

int32_t engine_seq_length(const struct engine *e, int32_t seq)
{
    struct oato_error ignored;
    return engine_seq_check(e, seq, &ignored) ? 0 : e->pool.seqs[seq].length;
}

int32_t engine_free_pages(const struct engine *e)
{
    return e->pool.n_free;
}

/* -------------------------------------------------------------------------------- a step's */

static void remember(struct kv_pool *p, int32_t seq, int32_t index, int32_t page)
{
    p->undo[p->n_undo++] = (struct kv_undo){seq, index, page};
}

oato_status kv_reserve(struct kv_pool *p, int32_t seq, int32_t n, struct oato_error *err)
{
    struct kv_seq *s = &p->seqs[seq];
    int32_t inside = s->length % KV_PAGE_POSITIONS, last = s->n_pages - 1;
    bool copy = inside && p->references[s->pages[last]] > 1;
    int32_t more = kv_pages_of(s->length + n) - s->n_pages;
    if (more + copy > p->n_free)
        return oato_fail(err, OATO_EFIT,
                         "the KV cache is full: sequence %d needs %d more pages of %d positions, "
                         "but only %d of %d are free; raise --context",
                         seq, more + copy, KV_PAGE_POSITIONS, p->n_free, p->n_pages);
    if (copy) {
        int32_t page = page_take(p);
        p->copies[p->n_copies++] = (struct step_page_copy){s->pages[last], page, inside};
        remember(p, seq, last, s->pages[last]);
        s->pages[last] = page;
    }
    for (int32_t i = 0; i < more; i++) {
        remember(p, seq, s->n_pages, -1);
        s->pages[s->n_pages++] = page_take(p);
    }
    state_reserve(&p->state, s, seq);
    return OATO_OK;
}

void kv_commit(struct kv_pool *p)
{
    for (int32_t i = 0; i < p->n_undo; i++)
        if (p->undo[i].page >= 0)
            page_drop(p, p->undo[i].page);
    p->n_undo = p->n_copies = 0;
    state_commit(&p->state);
}

void kv_rollback(struct kv_pool *p)
{
    while (p->n_undo > 0) {
        struct kv_undo u = p->undo[--p->n_undo];
        struct kv_seq *s = &p->seqs[u.seq];
        page_drop(p, s->pages[u.index]);
        if (u.page >= 0)
            s->pages[u.index] = u.page;
        else
            s->n_pages--;
    }
    p->n_copies = 0;
    state_rollback(&p->state, p->seqs);
}
