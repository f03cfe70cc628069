/*
 * kv.c - which page holds which positions of which sequence. A page id means the same 64 positions
 * in every layer of its kind and on every device, so this file needs to know neither. Sequences
 * share pages after a fork; whoever writes to a shared page gets a copy first.
 *
 * Layers with a window have pages of their own (KV_WINDOW). Those that every later token is too far
 * from to see are given back when a page is wanted and none is free: kv_window_pages is enough for
 * all others, and until then a sequence can still be truncated to where it needs them.
 *
 * Invariant: references[p] = block tables that name p; free pages have 0 and are in the list. A
 * page that was copied is released only at commit, because the step still reads it. A free page
 * keeps its text until it is taken (prefix.c).
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

static bool pages_init(struct kv_pages *k, struct arena *a, int32_t n)
{
    k->before = arena_alloc(a, (size_t)n, sizeof *k->before);
    k->after = arena_alloc(a, (size_t)n, sizeof *k->after);
    k->references = arena_alloc(a, (size_t)n, sizeof *k->references);
    if (!k->before || !k->after || !k->references)
        return false;
    k->n = k->n_free = n;
    for (int32_t i = 0; i < n; i++) { /* page 0 is handed out first */
        k->before[i] = i - 1;
        k->after[i] = i + 1 < n ? i + 1 : -1;
    }
    k->first = n ? 0 : -1;
    k->last = n - 1;
    return true;
}

static int kinds_of(const struct kv_pool *p)
{
    return p->window ? KV_KINDS : 1;
}

oato_status kv_pool_init(struct kv_pool *p, struct arena *a, int32_t context, int32_t seqs,
                         int32_t tokens, int32_t window, struct oato_error *err)
{
    /* every sequence may end in a page of its own that is not full */
    const int32_t pages = kv_pages_of(context) + seqs - 1;
    const int32_t of_window =
        window ? (int32_t)min_i64(pages, kv_window_pages(window, seqs, tokens)) : 0;
    const size_t changes = (size_t)pages + (size_t)of_window + KV_KINDS * (size_t)seqs;
    size_t table, tables_bytes;
    p->window = window;
    const size_t tables = (size_t)seqs * (size_t)kinds_of(p);
    if (!size_mul((size_t)pages, sizeof(int32_t), &table) ||
        !size_mul(table, tables, &tables_bytes))
        return oato_fail_memory(err, SIZE_MAX, "block tables");
    p->seqs = arena_alloc(a, (size_t)seqs, sizeof *p->seqs);
    p->undo = arena_alloc(a, changes, sizeof *p->undo);
    p->copies = arena_alloc(a, KV_KINDS * (size_t)seqs, sizeof *p->copies);
    p->tables = malloc(tables_bytes);
    if (!pages_init(&p->pages[KV_ALL], a, pages) ||
        !pages_init(&p->pages[KV_WINDOW], a, of_window) || !p->seqs || !p->tables || !p->undo ||
        !p->copies)
        return oato_fail_memory(err, tables_bytes, "block tables");
    p->n_seqs = seqs;
    for (int32_t i = 0; i < seqs; i++)
        for (int k = 0; k < kinds_of(p); k++)
            p->seqs[i].table[k].pages =
                p->tables + ((size_t)k * (size_t)seqs + (size_t)i) * (size_t)pages;
    return OATO_OK;
}

void kv_page_share(struct kv_pages *k, int32_t page)
{
    if (k->references[page]++)
        return;
    const int32_t before = k->before[page], after = k->after[page];
    *(before < 0 ? &k->first : &k->after[before]) = after;
    *(after < 0 ? &k->last : &k->before[after]) = before;
    k->n_free--;
}

int32_t kv_page_take(struct kv_pool *p, int kind)
{
    const int32_t page = p->pages[kind].first;
    kv_page_share(&p->pages[kind], page);
    prefix_forget(&p->prefix, kind, page);
    return page;
}

void kv_page_drop(struct kv_pool *p, int kind, int32_t page)
{
    struct kv_pages *k = &p->pages[kind];
    if (--k->references[page])
        return;
    const bool kept = prefix_holds(&p->prefix, kind, page);
    k->before[page] = kept ? k->last : -1;
    k->after[page] = kept ? -1 : k->first;
    if (k->n_free)
        *(kept ? &k->after[k->last] : &k->before[k->first]) = page;
    if (kept || !k->n_free)
        k->last = page;
    if (!kept || !k->n_free)
        k->first = page;
    k->n_free++;
}

/* ------------------------------------------------------------------------------ windows ---- */

int32_t kv_window_first(const struct kv_pool *p, int32_t length)
{
    return (int32_t)(max_i64(0, (int64_t)length + 1 - p->window) / KV_PAGE_POSITIONS);
}

void kv_windows_give_back(struct kv_pool *p)
{
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct kv_seq *s = &p->seqs[i];
        struct kv_table *t = &p->seqs[i].table[KV_WINDOW];
        while (s->used && t->first < t->n && t->first < kv_window_first(p, s->length))
            kv_page_drop(p, KV_WINDOW, t->pages[t->first++]);
    }
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
            p->seqs[i].shares = false;
            p->seqs[i].length = p->seqs[i].branch = 0;
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
    if (p->window && s->table[KV_WINDOW].first > kv_window_first(p, length))
        length = state_truncate(&p->state, s, seq, 0);
    s->length = length;
    for (int k = 0; k < kinds_of(p); k++) {
        struct kv_table *t = &s->table[k];
        while (t->n > kv_pages_of(length) && t->n > t->first)
            kv_page_drop(p, k, t->pages[--t->n]);
        if (!length)
            t->first = t->n = 0;
    }
}

void engine_seq_free(struct engine *e, int32_t seq)
{
    struct oato_error ignored;
    if (engine_seq_check(e, seq, &ignored))
        return;
    truncate_to(&e->pool, seq, 0);
    e->pool.seqs[seq].used = false;
}

static void table_fork(struct kv_pages *k, const struct kv_table *from, struct kv_table *to)
{
    to->first = from->first;
    to->n = from->n;
    for (int32_t i = from->first; i < from->n; i++) {
        to->pages[i] = from->pages[i];
        kv_page_share(k, from->pages[i]);
    }
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
    for (int k = 0; k < kinds_of(p); k++)
        table_fork(&p->pages[k], &a->table[k], &b->table[k]);
    b->length = a->length;
    state_fork(&p->state, a, b);
    return OATO_OK;
}

bool kv_can_begin(const struct kv_pool *p, const int32_t *pages, int32_t n)
{
    if (!state_mark_find(&p->state, prefix_text(&p->prefix, pages[n - 1])))
        return false;
    for (int32_t i = p->window ? kv_window_first(p, n * KV_PAGE_POSITIONS) : n; i < n; i++)
        if (prefix_window(&p->prefix, pages[i]) < 0)
            return false;
    return true;
}

int32_t engine_seq_begin(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct kv_pool *p = &e->pool;
    struct oato_error ignored;
    struct kv_seq *s = &p->seqs[seq];
    if (engine_seq_check(e, seq, &ignored) || s->length)
        return 0;
    int32_t *pages = s->table[KV_ALL].pages, known = 0;
    for (int32_t page; (known + 1) * KV_PAGE_POSITIONS < n; pages[known++] = page) {
        page = prefix_find(&p->prefix, known ? pages[known - 1] : -1,
                           ids + (ptrdiff_t)known * KV_PAGE_POSITIONS);
        if (page < 0)
            break;
    }
    int32_t there = known;
    while (there && !kv_can_begin(p, pages, there))
        there--;
    s->shares = p->prefix.pages;
    s->branch = known * KV_PAGE_POSITIONS;
    if (!there)
        return 0;
    s->length = there * KV_PAGE_POSITIONS;
    for (int k = 0; k < kinds_of(p); k++) {
        struct kv_table *t = &s->table[k];
        t->first = k == KV_WINDOW ? kv_window_first(p, s->length) : 0;
        for (t->n = t->first; t->n < there; t->n++) {
            if (k == KV_WINDOW)
                t->pages[t->n] = prefix_window(&p->prefix, pages[t->n]);
            kv_page_share(&p->pages[k], t->pages[t->n]);
        }
    }
    state_mark_use(&p->state, s, prefix_text(&p->prefix, pages[there - 1]));
    return s->length;
}

/* A step more, for fewer than 64 tokens, is little beside a prompt of so many. */
enum { LONG_PAGES = 4 };

int32_t engine_seq_piece(const struct engine *e, int32_t seq, int32_t n, int32_t left)
{
    struct oato_error ignored;
    if (engine_seq_check(e, seq, &ignored) || !e->pool.state.n_slots)
        return n;
    const struct kv_seq *s = &e->pool.seqs[seq];
    const int32_t last = (s->length + left) / KV_PAGE_POSITIONS * KV_PAGE_POSITIONS;
    if (s->branch > s->length && s->branch < s->length + n)
        return s->branch - s->length;
    const bool kept = s->shares && last >= LONG_PAGES * KV_PAGE_POSITIONS;
    return kept && last > s->length && last < s->length + n ? last - s->length : n;
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

int32_t kv_pages_cached(const struct kv_pool *p)
{
    const struct kv_pages *k = &p->pages[KV_ALL];
    int32_t n = 0;
    for (int32_t page = k->last; n < k->n_free && prefix_holds(&p->prefix, KV_ALL, page);
         page = k->before[page])
        n++;
    return n;
}

int32_t engine_free_pages(const struct engine *e)
{
    return e->pool.pages[KV_ALL].n_free;
}

/* -------------------------------------------------------------------------------- a step's */

static void remember(struct kv_pool *p, struct kv_undo u)
{
    p->undo[p->n_undo++] = u;
}

static oato_status table_reserve(struct kv_pool *p, int32_t seq, int kind, int32_t n,
                                 struct oato_error *err)
{
    struct kv_pages *k = &p->pages[kind];
    struct kv_table *t = &p->seqs[seq].table[kind];
    const int32_t length = p->seqs[seq].length, last = t->n - 1;
    const int32_t inside = length % KV_PAGE_POSITIONS, more = kv_pages_of(length + n) - t->n;
    bool copy = inside && k->references[t->pages[last]] > 1;
    if (kind == KV_WINDOW && more + copy > k->n_free) {
        kv_windows_give_back(p);
        copy = inside && k->references[t->pages[last]] > 1;
    }
    if (more + copy > k->n_free)
        return oato_fail(err, OATO_EFIT,
                         "the KV cache is full: sequence %d needs %d more pages of %d positions, "
                         "but only %d of %d are free; raise --context",
                         seq, more + copy, KV_PAGE_POSITIONS, k->n_free, k->n);
    if (copy) {
        const int32_t page = kv_page_take(p, kind);
        if (kind == KV_ALL)
            prefix_copy(&p->prefix, t->pages[last], page);
        p->copies[p->n_copies++] =
            (struct step_page_copy){t->pages[last], page, inside, kind == KV_WINDOW};
        remember(p, (struct kv_undo){seq, kind, last, t->pages[last]});
        t->pages[last] = page;
    } else if (inside && prefix_holds(&p->prefix, kind, t->pages[last])) {
        prefix_forget(&p->prefix, kind, t->pages[last]); /* it was full, the sequence cut back */
    }
    for (int32_t i = 0; i < more; i++) {
        remember(p, (struct kv_undo){seq, kind, t->n, -1});
        t->pages[t->n++] = kv_page_take(p, kind);
    }
    return OATO_OK;
}

oato_status kv_take(struct kv_pool *p, int32_t seq, const struct kv_seq *saved,
                    struct oato_error *err)
{
    struct kv_seq *s = &p->seqs[seq];
    for (int k = 0; k < kinds_of(p); k++) {
        const int32_t wanted = saved->table[k].n - saved->table[k].first;
        if (k == KV_WINDOW && wanted > p->pages[k].n_free)
            kv_windows_give_back(p);
        if (wanted > p->pages[k].n_free)
            return oato_fail(err, OATO_EFIT, "the KV cache has no room for %d more pages", wanted);
    }
    for (int k = 0; k < kinds_of(p); k++) {
        struct kv_table *t = &s->table[k];
        t->first = saved->table[k].first;
        for (t->n = t->first; t->n < saved->table[k].n; t->n++) {
            t->pages[t->n] = kv_page_take(p, k);
            if (k == KV_ALL)
                prefix_unknown(&p->prefix, t->pages[t->n]);
        }
    }
    s->length = saved->length;
    s->shares = saved->shares;
    if (saved->state >= 0)
        state_take(&p->state, s);
    return OATO_OK;
}

oato_status kv_reserve(struct kv_pool *p, int32_t seq, int32_t n, struct oato_error *err)
{
    for (int k = 0; k < kinds_of(p); k++)
        if (table_reserve(p, seq, k, n, err))
            return err->status;
    state_reserve(&p->state, &p->seqs[seq], seq);
    return OATO_OK;
}

void kv_commit(struct kv_pool *p)
{
    for (int32_t i = 0; i < p->n_undo; i++)
        if (p->undo[i].page >= 0)
            kv_page_drop(p, p->undo[i].kind, p->undo[i].page);
    p->n_undo = p->n_copies = 0;
    state_commit(&p->state);
}

void kv_rollback(struct kv_pool *p)
{
    while (p->n_undo > 0) {
        struct kv_undo u = p->undo[--p->n_undo];
        struct kv_table *t = &p->seqs[u.seq].table[u.kind];
        kv_page_drop(p, u.kind, t->pages[u.index]);
        if (u.page >= 0)
            t->pages[u.index] = u.page;
        else
            t->n--;
    }
    p->n_copies = 0;
    state_rollback(&p->state, p->seqs);
}
