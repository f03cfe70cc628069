/*
 * page_internal.h - the parts of the HTML report: html.c writes the page and its tables,
 * html_figures.c draws the map, the memory and the timelines.
 */
#ifndef OATO_PAGE_INTERNAL_H
#define OATO_PAGE_INTERNAL_H

#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

/* The data of a page; all borrowed. */
struct page {
    const struct plan *plan;
    const struct problem *problem;
    const struct simulation *simulation;
    struct text *out;
    struct arena *strings; /* that html_text and html_where return */
};

/* s with HTML escapes; "", and `out` is marked as failed, when memory is short. */
const char *html_text(const struct page *page, const char *s);
/* The number of a device's colour: 0 for the host, 1.. for the others. */
int32_t html_colour(const struct page *page, int32_t device);
/* "ffn_down" of "blk.3.ffn_down"; the whole name outside of layers. */
const char *html_short_name(const struct graph_op *op);
/* "cuda:0 62 % + cpu:0 38 %, prefill streamed to cuda:0", without escapes. */
const char *html_where(const struct page *page, int32_t op);

void html_map(const struct page *page);
void html_memory(const struct page *page);
/* A whole simulated step and, below it, its middle layer. */
void html_timeline(const struct page *page, const struct simulated_step *step);

#endif
