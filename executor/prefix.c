/*
 * prefix.c - which pages of KV hold which tokens, so that a prompt that begins as an earlier text
 * did starts behind the pages that are there already. Full pages only. Where layers have windows,
 * the pages of KV_WINDOW that the next token sees must be there, too: a listed page of KV_ALL knows
 * the one with the same positions, until that is given away. Where there is recurrent state, it
 * must have been kept at the end of the page (state.c).
 *
 * A full page is known by its 64 tokens and by the page before it: each text of whole pages gets a
 * number when its last page is first seen, and a page is found by (number of the text before it,
 * its tokens). The hash only finds candidates; tokens and number are compared, so that no collision
 * can share a wrong page. Numbers are never used twice, so that a page whose predecessor was given
 * away cannot be found by another text.
 *
 * Pages that hold positions of both phases' arithmetic are not shared where the two differ.
 */
#include "executor/executor_internal.h"

#include <string.h>

struct prefix_page {
    uint64_t before, text; /* numbers of the text before it and with it; 0: of none */
    int32_t next;          /* in its bucket; -1: the last */
    int32_t window;        /* while it is listed: its page of KV_WINDOW; -1: none */
    bool listed;           /* in a bucket: it is the page that stands for its text */
    bool mixed;            /* has positions of decode's arithmetic, which is not prefill's, or
                              of tokens that are not known: cannot be shared */
};

oato_status prefix_init(struct prefix_cache *x, struct arena *a, int32_t pages, int32_t windows,
                        struct oato_error *err)
{
    x->n_buckets = 1;
    while (x->n_buckets < (uint32_t)pages)
        x->n_buckets *= 2;
    x->pages = arena_alloc(a, (size_t)pages, sizeof *x->pages);
    x->tokens = arena_alloc(a, (size_t)pages, KV_PAGE_POSITIONS * sizeof *x->tokens);
    x->buckets = arena_alloc(a, x->n_buckets, sizeof *x->buckets);
    x->listed = windows ? arena_alloc(a, (size_t)windows, sizeof *x->listed) : NULL;
    if (!x->pages || !x->tokens || !x->buckets || (windows && !x->listed))
        return oato_fail_memory(err, (size_t)pages * KV_PAGE_POSITIONS * sizeof *x->tokens,
                                "the tokens of KV pages");
    for (uint32_t i = 0; i < x->n_buckets; i++)
        x->buckets[i] = -1;
    for (int32_t i = 0; i < windows; i++)
        x->listed[i] = -1;
    return OATO_OK;
}

static int32_t *tokens_of(const struct prefix_cache *x, int32_t page)
{
    return x->tokens + (size_t)page * KV_PAGE_POSITIONS;
}

static int32_t *bucket_of(const struct prefix_cache *x, uint64_t before, const int32_t *ids)
{
    const uint64_t key[2] = {before, hash_bytes(ids, KV_PAGE_POSITIONS * sizeof *ids)};
    return &x->buckets[hash_bytes(key, sizeof key) & (x->n_buckets - 1)];
}

/* The page that stands for the text of `before` and these tokens; -1: none. */
static int32_t find(const struct prefix_cache *x, uint64_t before, const int32_t *ids)
{
    int32_t page = *bucket_of(x, before, ids);
    while (page >= 0 && (x->pages[page].before != before ||
                         memcmp(tokens_of(x, page), ids, KV_PAGE_POSITIONS * sizeof *ids) != 0))
        page = x->pages[page].next;
    return page;
}

int32_t prefix_find(const struct prefix_cache *x, int32_t after, const int32_t *ids)
{
    if (!x->pages || (after >= 0 && !x->pages[after].text))
        return -1;
    return find(x, after >= 0 ? x->pages[after].text : 0, ids);
}

/* A page of KV_WINDOW belongs to no listed page any more. */
static void window_forget(struct prefix_cache *x, int32_t window)
{
    if (x->listed[window] >= 0)
        x->pages[x->listed[window]].window = -1;
    x->listed[window] = -1;
}

void prefix_forget(struct prefix_cache *x, int kind, int32_t page)
{
    if (!x->pages)
        return;
    if (kind == KV_WINDOW) {
        window_forget(x, page);
        return;
    }
    struct prefix_page *p = &x->pages[page];
    if (p->listed) {
        if (p->window >= 0)
            window_forget(x, p->window);
        int32_t *at = bucket_of(x, p->before, tokens_of(x, page));
        while (*at != page)
            at = &x->pages[*at].next;
        *at = p->next;
    }
    *p = (struct prefix_page){.next = -1};
}

void prefix_unknown(struct prefix_cache *x, int32_t page)
{
    if (x->pages)
        x->pages[page].mixed = true;
}

bool prefix_holds(const struct prefix_cache *x, int kind, int32_t page)
{
    return x->pages && (kind == KV_WINDOW ? x->listed[page] >= 0 : x->pages[page].listed);
}

uint64_t prefix_text(const struct prefix_cache *x, int32_t page)
{
    return x->pages ? x->pages[page].text : 0;
}

int32_t prefix_window(const struct prefix_cache *x, int32_t page)
{
    return x->pages[page].window;
}

void prefix_copy(struct prefix_cache *x, int32_t from, int32_t to)
{
    if (!x->pages)
        return;
    memcpy(tokens_of(x, to), tokens_of(x, from), KV_PAGE_POSITIONS * sizeof *x->tokens);
    x->pages[to].mixed = x->pages[from].mixed;
}

/* Unless the listed page has one already. */
static void window_link(struct prefix_cache *x, int32_t page, int32_t window)
{
    if (window < 0 || x->pages[page].window >= 0)
        return;
    window_forget(x, window);
    x->pages[page].window = window;
    x->listed[window] = page;
}

/* A page is full, and so is the one of KV_WINDOW with the same positions (-1: there is none). Of
 * several with the same text the first one stands for it. */
static void page_full(struct prefix_cache *x, int32_t page, int32_t after, int32_t window)
{
    struct prefix_page *p = &x->pages[page];
    const bool first = after < 0;
    if (p->mixed || (!first && !x->pages[after].text))
        return;
    p->before = first ? 0 : x->pages[after].text;
    const int32_t same = find(x, p->before, tokens_of(x, page));
    if (same >= 0) {
        p->text = x->pages[same].text;
        window_link(x, same, window);
        return;
    }
    int32_t *bucket = bucket_of(x, p->before, tokens_of(x, page));
    p->text = ++x->texts;
    p->next = *bucket;
    p->listed = true;
    p->window = -1;
    *bucket = page;
    window_link(x, page, window);
}

void prefix_list(struct prefix_cache *x, int32_t page, int32_t after, const int32_t *ids)
{
    memcpy(tokens_of(x, page), ids, KV_PAGE_POSITIONS * sizeof *ids);
    page_full(x, page, after, -1);
}

void prefix_link(struct prefix_cache *x, int32_t page, int32_t window)
{
    const int32_t listed = find(x, x->pages[page].before, tokens_of(x, page));
    if (listed >= 0)
        window_link(x, listed, window);
}

void prefix_put(struct prefix_cache *x, const struct kv_seq *s, const int32_t *ids, int32_t n,
                bool mixed)
{
    const int32_t *pages = s->table[KV_ALL].pages;
    for (int32_t i = 0, put; i < n && x->pages; i += put) {
        const int32_t at = s->length + i, index = at / KV_PAGE_POSITIONS;
        const int32_t inside = at % KV_PAGE_POSITIONS, page = pages[index];
        put = (int32_t)min_i64(n - i, KV_PAGE_POSITIONS - inside);
        memcpy(tokens_of(x, page) + inside, ids + i, (size_t)put * sizeof *ids);
        x->pages[page].text = 0; /* it may have been full, and the sequence cut back */
        x->pages[page].mixed = mixed || (inside && x->pages[page].mixed);
        if (inside + put == KV_PAGE_POSITIONS)
            page_full(x, page, index ? pages[index - 1] : -1,
                      x->listed ? s->table[KV_WINDOW].pages[index] : -1);
    }
}
