/*
 * fetch.c - prompts that last, on their way in. What a prompt begins with and memory does not hold
 * is read by the store's thread, put into free pages and slots here, between steps, and listed as
 * if it had just been computed: engine_seq_begin finds it there. Until then the fetch itself names
 * the pages, so that nobody takes them.
 *
 * A fetch that ends early leaves what it has put, which is right whatever is missing: a page is
 * only found behind those before it, and windows and states only where all of them are there.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

#define INSTALL_WEIGHT 0.1 /* of one more piece */

struct engine_fetch {
    struct engine *engine;
    struct prompt_read *read;
    struct prompt_piece *pieces;
    int32_t n_pieces, at;
    int32_t n_ids, before; /* before: tokens that engine_seq_begin would have found */
    int32_t *ids;
    int32_t *pages, *windows; /* that it names */
    int32_t n_pages, n_windows;
};

static void fetch_free(struct engine_fetch *f)
{
    if (!f)
        return;
    prompt_read_end(f->read);
    free(f->pieces);
    free(f->ids);
    free(f->pages);
    free(f->windows);
    free(f);
}

/* What a fetch finds out before it reads. */
struct outlook {
    uint64_t *keys;     /* of each page's text */
    int32_t known;      /* pages that are in memory, in pages[] */
    int32_t there;      /* from so many of them a sequence can begin */
    int32_t end;        /* pages in memory or in files, without a gap */
    int32_t free_known; /* of those in memory: that nobody names */
    uint64_t bytes;
};

static void known_find(struct engine_fetch *f, struct outlook *o, int32_t most)
{
    const struct engine *e = f->engine;
    const struct kv_pool *p = &e->pool;
    for (bool in_memory = true; o->end < most; o->end++) {
        const int32_t *ids = f->ids + (ptrdiff_t)o->end * KV_PAGE_POSITIONS;
        o->keys[o->end] = prompt_store_key(e->prompts, o->end ? o->keys[o->end - 1] : 0, ids);
        const int32_t page =
            in_memory ? prefix_find(&p->prefix, o->end ? f->pages[o->end - 1] : -1, ids) : -1;
        in_memory = page >= 0;
        if (in_memory) {
            f->pages[o->known++] = page;
            o->free_known += !p->pages[KV_ALL].references[page];
            if (kv_can_begin(p, f->pages, o->known))
                o->there = o->known;
        } else if (!prompt_store_has(e->prompts, o->keys[o->end], PROMPT_PAGE)) {
            break;
        }
    }
}

/* Whether the piece is in memory or can be read; then it is one of those to be read if it is not in
 * memory and `add`. */
static bool piece_take(struct engine_fetch *f, struct outlook *o, enum prompt_part part, int32_t i,
                       bool add)
{
    const struct engine *e = f->engine;
    if (i < o->known && (part == PROMPT_PAGE || kv_part(e, part, f->pages[i]) >= 0))
        return true;
    if (!prompt_store_has(e->prompts, o->keys[i], part))
        return false;
    if (add) {
        f->pieces[f->n_pieces++] =
            (struct prompt_piece){o->keys[i], part, (i + 1) * KV_PAGE_POSITIONS};
        o->bytes += e->kv_layers[part].page_bytes;
    }
    return true;
}

/* Whether a sequence could begin behind n pages, and what must be read for that. */
static bool pieces_take(struct engine_fetch *f, struct outlook *o, int32_t n, bool add)
{
    const struct kv_pool *p = &f->engine->pool;
    bool all = true;
    for (int32_t i = o->known; i < n && add; i++)
        all = piece_take(f, o, PROMPT_PAGE, i, add) && all;
    for (int32_t i = p->window ? kv_window_first(p, n * KV_PAGE_POSITIONS) : n; i < n && all; i++)
        all = piece_take(f, o, PROMPT_WINDOW, i, add);
    return all && (!p->state.n_slots || piece_take(f, o, PROMPT_STATE, n - 1, add));
}

static bool is_worth_it(const struct engine *e, const struct engine_fetch *f,
                        const struct outlook *o, int32_t n)
{
    const double read = prompt_store_read_ns(e->prompts, o->bytes, f->n_pieces) +
                        e->install_ns_byte * (double)o->bytes;
    const bool worth = read < compute_ns(e, (n - o->there) * KV_PAGE_POSITIONS);
    if (!worth)
        prompt_store_doubt(e->prompts);
    return worth && (n <= o->known || e->pool.pages[KV_ALL].n_free - o->free_known >= n - o->known);
}

/* Names the pages that are there and has the others read. */
static bool fetch_start(struct engine_fetch *f, struct outlook *o, int32_t n)
{
    struct engine *e = f->engine;
    f->read = prompt_store_read(e->prompts, f->ids, n * KV_PAGE_POSITIONS, f->pieces, f->n_pieces);
    if (!f->read)
        return false;
    f->before = o->there * KV_PAGE_POSITIONS;
    f->n_pages = o->known < n ? o->known : n;
    for (int32_t i = 0; i < f->n_pages; i++)
        kv_page_share(&e->pool.pages[KV_ALL], f->pages[i]);
    return true;
}

struct engine_fetch *engine_fetch_begin(struct engine *e, const int32_t *ids, int32_t n)
{
    const int32_t most = (n - 1) / KV_PAGE_POSITIONS; /* a token is left to be fed */
    if (!e->prompts || most < 1)
        return NULL;
    struct engine_fetch *f = calloc(1, sizeof *f);
    struct outlook o = {.keys = calloc((size_t)most, sizeof *o.keys)};
    bool reads = false;
    if (!f || !o.keys)
        goto out;
    f->engine = e;
    f->n_ids = n;
    f->ids = malloc((size_t)n * sizeof *ids);
    f->pages = malloc((size_t)most * sizeof *f->pages);
    f->windows = malloc((size_t)most * sizeof *f->windows);
    f->pieces = malloc((PROMPT_PARTS - 1) * ((size_t)most + 1) * sizeof *f->pieces);
    if (!f->ids || !f->pages || !f->windows || !f->pieces)
        goto out;
    memcpy(f->ids, ids, (size_t)n * sizeof *ids);
    known_find(f, &o, most);
    int32_t to = o.end;
    while (to > o.there && !pieces_take(f, &o, to, false))
        to--;
    reads = to > o.there && pieces_take(f, &o, to, true) && is_worth_it(e, f, &o, to) &&
            fetch_start(f, &o, to);
out:
    free(o.keys);
    if (!reads) {
        fetch_free(f);
        f = NULL;
    }
    return f;
}

/* --------------------------------------------------------------------------------- putting - */

int32_t piece_install(struct engine *e, enum prompt_part part, int32_t page, const int32_t *ids,
                      int32_t n, void *data, struct oato_error *err)
{
    struct kv_pool *p = &e->pool;
    const int32_t place = part == PROMPT_STATE
                              ? state_mark_new(&p->state, n, prefix_text(&p->prefix, page))
                              : kv_page_take(p, (int)part);
    if (part_copy(e, part, place, data, false, err)) {
        if (part != PROMPT_STATE)
            kv_page_drop(p, (int)part, place);
        return -1;
    }
    if (part == PROMPT_PAGE)
        prefix_list(&p->prefix, place, page, ids);
    else if (part == PROMPT_WINDOW)
        prefix_link(&p->prefix, page, place);
    return place;
}

static bool place_is_free(const struct engine_fetch *f, enum prompt_part part)
{
    struct kv_pool *p = &f->engine->pool;
    if (part == PROMPT_WINDOW && !p->pages[KV_WINDOW].n_free)
        kv_windows_give_back(p);
    return part == PROMPT_STATE || p->pages[part].n_free;
}

/* False: there is no place, or a device failed, and then it will say so in the next step. */
static bool piece_put(struct engine_fetch *f, void *data)
{
    struct engine *e = f->engine;
    const struct prompt_piece *piece = &f->pieces[f->at];
    const int32_t i = piece->n / KV_PAGE_POSITIONS - 1;
    const uint64_t begin_ns = now_ns();
    struct oato_error ignored;
    if (!place_is_free(f, piece->part))
        return false;
    const int32_t text = piece->part == PROMPT_PAGE ? i - 1 : i;
    const int32_t place =
        piece_install(e, piece->part, text < 0 ? -1 : f->pages[text],
                      f->ids + (ptrdiff_t)i * KV_PAGE_POSITIONS, piece->n, data, &ignored);
    if (place < 0)
        return false;
    if (piece->part == PROMPT_PAGE)
        f->pages[f->n_pages++] = place;
    else if (piece->part == PROMPT_WINDOW)
        f->windows[f->n_windows++] = place;
    const uint64_t bytes = e->kv_layers[piece->part].page_bytes;
    if (bytes)
        e->install_ns_byte +=
            INSTALL_WEIGHT * ((double)(now_ns() - begin_ns) / (double)bytes - e->install_ns_byte);
    f->at++;
    return true;
}

bool engine_fetch_some(struct engine_fetch *f, uint64_t ns)
{
    const uint64_t begin_ns = now_ns();
    void *data;
    do {
        const enum prompt_reading reading = prompt_read_next(f->read, &data);
        if (reading == PROMPT_WAIT)
            return true;
        if (reading == PROMPT_END || !piece_put(f, data))
            return false;
        prompt_read_used(f->read);
    } while (now_ns() - begin_ns < ns);
    return true;
}

void engine_fetch_wait(struct engine_fetch *f, uint64_t most_ns)
{
    prompt_read_wait(f->read, most_ns);
}

int32_t engine_fetch_end(struct engine_fetch *f, int32_t seq)
{
    struct engine *e = f->engine;
    int32_t length = 0;
    while (f->n_windows)
        kv_page_drop(&e->pool, KV_WINDOW, f->windows[--f->n_windows]);
    while (f->n_pages) /* the first one is the last to be taken by others */
        kv_page_drop(&e->pool, KV_ALL, f->pages[--f->n_pages]);
    if (seq >= 0)
        length = engine_seq_begin(e, seq, f->ids, f->n_ids);
    if (length > f->before)
        prompt_store_count(e->prompts, length - f->before);
    fetch_free(f);
    return length;
}
