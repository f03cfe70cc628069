/*
 * html_internal.h - the parts of the HTML report: html.c writes the page and its tables,
 * html_figures.c draws the map, the memory and the timelines.
 */
#ifndef OATO_HTML_INTERNAL_H
#define OATO_HTML_INTERNAL_H

#include "solver/report_internal.h"
#include "solver/simulate_internal.h"

/* The data of a page; all borrowed. */
struct page {
    const struct plan *plan;
    const struct problem *problem;
    const struct simulation *simulation;
    struct text *out;
};

/* Appends s with HTML escapes. */
void html_text(struct text *out, const char *s);
/* The number of a device's colour: 0 for the host, 1.. for the others. */
int32_t html_colour(const struct page *page, int32_t device);
/* "ffn_down" of "blk.3.ffn_down"; the whole name outside of layers. */
const char *html_short_name(const struct graph_op *op);
/* Appends "cuda:0 62 % + cpu:0 38 %, prefill streamed to cuda:0". */
void html_where(const struct page *page, int32_t op, struct text *out);

void html_map(const struct page *page);
void html_memory(const struct page *page);
/* A whole simulated step and, below it, its middle layer. */
void html_timeline(const struct page *page, const struct simulated_step *step);

#endif
