/*
 * tokenizer_merge.c - what both tokenizers share: a map from bytes to tokens, and the merging of
 * neighbours, best first.
 *
 * Byte-pair encoding by rank and SentencePiece by score are the same algorithm: of all adjacent
 * pairs that may merge, the best one merges (of equals the leftmost), until none is left. A heap
 * of candidates makes it O(n log n); a candidate is not removed when one of its sides changes but
 * recognised as stale when it comes up. Symbols only grow, by
 * absorbing their right neighbour: so a candidate is fresh exactly when both sides still exist and
 * the sum of their lengths is the one it was found with.
 */
#include "text/tokens_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

size_t map_capacity(size_t count)
{
    size_t cap = 16;
    while (cap / 3 * 2 < count)
        cap *= 2;
    return cap;
}

bool piece_map_init(struct piece_map *m, struct arena *a, size_t count)
{
    const size_t cap = map_capacity(count);
    m->slots = arena_alloc(a, cap, sizeof *m->slots);
    for (size_t i = 0; m->slots && i < cap; i++)
        m->slots[i].id = -1;
    m->mask = cap - 1;
    return m->slots;
}

/* The slot that holds the bytes, or the empty one where they belong. */
static struct piece_slot *piece_slot(const struct piece_map *m, const struct token *tokens,
                                     const char *bytes, size_t len, uint32_t *tag)
{
    uint64_t h = hash_bytes(bytes, len);
    *tag = (uint32_t)(h >> 32);
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        struct piece_slot *s = &m->slots[i];
        if (s->id < 0)
            return s;
        const struct token *t = &tokens[s->id];
        if (s->tag == *tag && t->len == len && memcmp(t->bytes, bytes, len) == 0)
            return s;
    }
}

bool piece_map_add(struct piece_map *m, const struct token *tokens, int32_t id)
{
    uint32_t tag;
    const struct token *t = &tokens[id];
    struct piece_slot *s = piece_slot(m, tokens, t->bytes, t->len, &tag);
    if (s->id >= 0)
        return false;
    s->tag = tag;
    s->id = id;
    if (t->len > m->longest)
        m->longest = t->len;
    return true;
}

int32_t piece_map_find(const struct piece_map *m, const struct token *tokens, const char *bytes,
                       size_t len)
{
    uint32_t tag;
    return len > m->longest ? -1 : piece_slot(m, tokens, bytes, len, &tag)->id;
}

void id_list_push(struct id_list *l, int32_t id)
{
    int32_t *ids = array_room(l->ids, l->n, &l->cap, sizeof *ids);
    l->failed = l->failed || !ids;
    if (ids)
        (l->ids = ids)[l->n++] = id;
}

void merge_free(struct merge_work *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (struct merge_work){0};
}

/* Of a symbol, and of each level of the heap that it goes through. */
enum { SYMBOL_STEPS = 3, LEVEL_STEPS = 3, SPEND_STEPS = 20000 };

oato_status merge_afford(struct encode_work *w, size_t n, struct oato_error *err)
{
    const size_t room = sizeof(struct symbol) + 2 * sizeof(struct merge_candidate);
    const size_t bytes = n > w->merge.cap ? (n - w->merge.cap) * room : 0;
    uint64_t steps = SYMBOL_STEPS;
    if (!w->budget)
        return OATO_OK;
    for (size_t left = n; left > 1; left /= 2)
        steps += LEVEL_STEPS;
    w->unpaid_steps += n * steps;
    if (w->unpaid_steps < SPEND_STEPS && !bytes)
        return OATO_OK;
    const oato_status status = budget_spend(w->budget, w->unpaid_steps, bytes, "tokenizing", err);
    w->unpaid_steps = 0;
    w->taken_bytes += status ? 0 : bytes;
    return status;
}

bool merge_reserve(struct merge_work *w, size_t n)
{
    w->n_symbols = 0;
    w->n_heap = 0;
    if (w->symbols && w->cap >= n)
        return true;
    merge_free(w);
    /* n - 1 pairs to begin with; each of the n - 1 merges takes one out and puts two in. */
    w->cap = n < 64 ? 64 : n;
    w->symbols = malloc(w->cap * sizeof *w->symbols);
    w->heap = malloc(2 * w->cap * sizeof *w->heap);
    if (w->symbols && w->heap)
        return true;
    merge_free(w);
    return false;
}

void merge_add(struct merge_work *w, uint32_t offset, uint32_t len, int32_t id)
{
    assert(w->n_symbols < w->cap);
    int32_t i = (int32_t)w->n_symbols++;
    w->symbols[i] = (struct symbol){i - 1, -1, offset, len, id};
    if (i > 0)
        w->symbols[i - 1].next = i;
}

static void heap_push(struct merge_work *w, struct merge_candidate c)
{
    assert(w->n_heap < 2 * w->cap);
    size_t i = w->n_heap++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (w->heap[parent].order <= c.order)
            break;
        w->heap[i] = w->heap[parent];
        i = parent;
    }
    w->heap[i] = c;
}

static struct merge_candidate heap_pop(struct merge_work *w)
{
    struct merge_candidate top = w->heap[0];
    struct merge_candidate last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && w->heap[child + 1].order < w->heap[child].order)
            child++;
        if (last.order <= w->heap[child].order)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static void consider(struct merge_work *w, const struct tokenizer *t, const char *text,
                     merge_find_fn *find, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return;
    const struct symbol *l = &w->symbols[left], *r = &w->symbols[right];
    uint32_t priority;
    int32_t id;
    if (!find(t, text, l, r, &priority, &id))
        return;
    heap_push(w, (struct merge_candidate){(uint64_t)priority << 32 | (uint32_t)left, right, id,
                                          l->len + r->len});
}

void merge_run(struct merge_work *w, const struct tokenizer *t, const char *text,
               merge_find_fn *find)
{
    for (size_t i = 1; i < w->n_symbols; i++)
        consider(w, t, text, find, (int32_t)i - 1, (int32_t)i);
    while (w->n_heap > 0) {
        struct merge_candidate c = heap_pop(w);
        int32_t left = (int32_t)(uint32_t)c.order;
        struct symbol *l = &w->symbols[left], *r = &w->symbols[c.right];
        if (l->len == 0 || r->len == 0 || l->len + r->len != c.len)
            continue;
        l->len = c.len;
        l->id = c.id;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0)
            w->symbols[l->next].prev = left;
        consider(w, t, text, find, l->prev, left);
        consider(w, t, text, find, left, l->next);
    }
}
