/*
 * tokenizer_prefix.c - which tokens a text begins with.
 *
 * The tokens are sorted by their bytes, so that a token comes before those that it begins, and each
 * knows the longest other one that begins it. One binary search then finds all tokens at the begin
 * of a text: they are the last one that is not behind the text, or begin that one.
 */
#include "text/tokens_internal.h"

#include <stdlib.h>
#include <string.h>

/* By bytes, a token before those that it begins; of equal ones the first. */
static int by_bytes(const void *a, const void *b)
{
    const struct token *s = *(const struct token *const *)a, *t = *(const struct token *const *)b;
    const int order = memcmp(s->bytes, t->bytes, s->len < t->len ? s->len : t->len);
    if (order)
        return order;
    if (s->len != t->len)
        return s->len < t->len ? -1 : 1;
    return (s > t) - (s < t);
}

static bool begins_with(const struct token *t, const struct token *with)
{
    return t->len >= with->len && !memcmp(t->bytes, with->bytes, with->len);
}

oato_status prefix_list_build(struct prefix_list *l, struct tokenizer *t, prefix_filter_fn *wanted,
                              struct oato_error *err)
{
    size_t n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++)
        n += wanted(&t->tokens[i]) && t->tokens[i].len > 0;
    l->items = arena_alloc(&t->arena, n, sizeof *l->items);
    const struct token **keys = calloc(n + 1, sizeof(void *));
    if (!l->items || !keys) {
        free(keys);
        return oato_fail_memory(err, n * sizeof(void *), "the sorted tokens");
    }
    n = 0;
    for (int32_t i = 0; i < t->n_tokens; i++)
        if (wanted(&t->tokens[i]) && t->tokens[i].len > 0)
            keys[n++] = &t->tokens[i];
    qsort(keys, n, sizeof(void *), by_bytes);
    for (size_t i = 0; i < n; i++) {
        const struct token *k = keys[i];
        int32_t shorter = l->n - 1;
        if (shorter >= 0 && t->tokens[l->items[shorter].id].len == k->len &&
            begins_with(k, &t->tokens[l->items[shorter].id]))
            continue; /* the same bytes again */
        while (shorter >= 0 && !begins_with(k, &t->tokens[l->items[shorter].id]))
            shorter = l->items[shorter].shorter;
        l->items[l->n++] = (struct prefix){(int32_t)(k - t->tokens), shorter};
        l->ends[(uint8_t)k->bytes[0]] = l->n;
    }
    for (int b = 1; b < 256; b++)
        if (l->ends[b] < l->ends[b - 1])
            l->ends[b] = l->ends[b - 1];
    free(keys);
    return OATO_OK;
}

int32_t prefix_list_find(const struct prefix_list *l, const struct token *tokens, const char *text,
                         size_t n, size_t *same)
{
    const uint8_t first = (uint8_t)text[0];
    const int32_t lowest = first ? l->ends[first - 1] : 0;
    int32_t begin = lowest, end = l->ends[first]; /* the first that comes behind the text is here */
    while (begin < end) {
        const int32_t middle = begin + (end - begin) / 2;
        const struct token *k = &tokens[l->items[middle].id];
        const int order = memcmp(k->bytes, text, k->len < n ? k->len : n);
        if (order < 0 || (!order && k->len <= n))
            begin = middle + 1;
        else
            end = middle;
    }
    *same = 0;
    if (begin == lowest)
        return -1;
    const struct token *last = &tokens[l->items[begin - 1].id];
    while (*same < n && *same < last->len && last->bytes[*same] == text[*same])
        ++*same;
    return begin - 1;
}
