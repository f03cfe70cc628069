/*
 * page.c - words of an HTML report that its text and its figures share: names, places, colours.
 */
#include "solver/report/page_internal.h"

#include <string.h>

/* Moves a text to the strings of the page. */
static const char *keep(const struct page *page, struct text *t)
{
    const char *s = arena_string(page->strings, t->data ? t->data : "");
    text_free_part(t, page->out);
    page->out->failed = page->out->failed || !s;
    return s ? s : "";
}

const char *html_text(const struct page *page, const char *s)
{
    struct text t;
    text_init(&t);
    text_add_html(&t, s, strlen(s));
    return keep(page, &t);
}

int32_t html_colour(const struct page *page, int32_t device)
{
    enum { COLOURS = 7 }; /* beside the host's */
    const int32_t host = page->simulation->host;
    return device == host ? 0 : ((device < host ? device + 1 : device) - 1) % COLOURS + 1;
}

const char *html_short_name(const struct graph_op *op)
{
    const char *s = op->name;
    for (int dots = 0; !strncmp(op->name, "blk.", 4) && *s && dots < 2; s++)
        dots += *s == '.';
    return *s ? s : op->name;
}

const char *html_where(const struct page *page, int32_t op)
{
    const struct simulation *s = page->simulation;
    const struct graph_op *o = &s->graph.ops[op];
    const struct placement *decode = &s->placements.phase[PHASE_DECODE][op],
                           *prefill = &s->placements.phase[PHASE_PREFILL][op];
    struct text where;
    text_init(&where);
    if (s->n_ranks > 1 && decode->part[0].everywhere) {
        text_printf(&where, "every rank");
        return keep(page, &where);
    }
    for (int32_t i = 0; i < decode->n; i++) {
        text_printf(&where, "%s%s", i ? " + " : "",
                    device_name(page->plan, decode->part[i].device).text);
        const double share = 100 * placed_share(o, decode, i);
        if (decode->n > 1)
            text_printf(&where, share < 1 || share > 99 ? " %.1f %%" : " %.0f %%", share);
    }
    for (int32_t i = 0; i < prefill->n; i++)
        if (prefill->part[i].streamed || prefill->part[i].kv_streamed)
            text_printf(&where, ", prefill streamed to %s",
                        device_name(page->plan, prefill->part[i].device).text);
    return keep(page, &where);
}
