/*
 * asc_graph.c - decode steps as graphs of CANN's (aclmdlRI). Making a record's calls takes the host
 * longer than a small operator takes the NPU; a graph hands over a whole stretch of records at
 * once.
 *
 * A stretch ends where another device is waited for or signalled, or something is copied. What
 * varies between steps of one size is in arrays of device memory (asc_device.h), so a captured
 * stretch is right for all of them; the size, the pages that block tables are padded to and all
 * addresses that calls hold are the key. A size is captured when it comes for the second time: then
 * the areas are large enough. Where CANN does not capture, all is queued one by one.
 */
#include "kernels/ascend/asc_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    SIZES = 16,        /* whose graphs are kept; the one that was used longest ago goes */
    TOKENS_MOST = 16,  /* of a step: longer ones compute longer than they are queued */
    STRETCH_LEAST = 2, /* records */
};

/* What must be equal, byte by byte, for calls to be. */
struct size_key {
    int32_t tokens, seqs, pages;
    int32_t rows; /* negative: candidates of them are wanted */
    uint64_t addresses;
};

struct size_graphs {
    struct size_key key;
    uint64_t used;    /* number of the last step that had it; 0: the slot is free */
    bool again;       /* the size has come before */
    bool refused;     /* it is not captured */
    asc_graph *graph; /* of each stretch; NULL: not captured yet */
};

struct stretch {
    uint32_t begin, end;
};

struct asc_graphs {
    bool none;             /* this CANN does not capture */
    uint64_t steps, moved; /* moved: areas_moved when the step began */
    struct size_graphs sizes[SIZES];
    struct size_graphs *now; /* of the step at hand; NULL: none */
    int32_t next;            /* its first stretch that does not end before the record at hand */
    int32_t n;
    struct asc_emit emit;
    struct stretch stretch[]; /* in order */
};

static bool waits_for_others(const struct compiled *c, const struct program_record *r)
{
    for (int i = 0; i < r->n_waits; i++)
        if (r->wait[i].device != c->self)
            return true;
    return false;
}

static struct stretch stretch_at(const struct compiled *c, uint32_t i)
{
    const struct program *p = c->program;
    struct stretch s = {i, i};
    while (s.end < p->n_records) {
        const struct program_record *r = &p->records[s.end];
        if (r->kind != RECORD_RUN || r->op.kind == OP_KV_COPY ||
            (s.end > i && waits_for_others(c, r)))
            break;
        s.end++;
        if (r->signal)
            break;
    }
    return s;
}

oato_status asc_graphs_create(struct compiled *c, struct oato_error *err)
{
    const struct asc_api *api = c->device->api;
    const uint32_t n = c->program->n_records;
    const size_t bytes = sizeof(struct asc_graphs) + n * sizeof(struct stretch);
    struct asc_graphs *g = calloc(1, bytes);
    c->graphs = g;
    if (!g)
        return oato_fail_memory(err, bytes, "stretches of a program");
    g->none = !api->mdlRICaptureBegin || !api->mdlRICaptureEnd || !api->mdlRIExecuteAsync ||
              !api->mdlRIDestroy;
    for (uint32_t i = 0; i < n;) {
        const struct stretch s = stretch_at(c, i);
        if (s.end - s.begin >= STRETCH_LEAST)
            g->stretch[g->n++] = s;
        i = s.end > i ? s.end : i + 1;
    }
    for (int i = 0; i < SIZES; i++) {
        g->sizes[i].graph = calloc((size_t)g->n + 1, sizeof(asc_graph));
        if (!g->sizes[i].graph)
            return oato_fail_memory(err, (uint64_t)g->n * sizeof(asc_graph), "graphs");
    }
    return OATO_OK;
}

static void forget(const struct compiled *c, struct size_graphs *s)
{
    for (int32_t i = 0; s->graph && i < c->graphs->n; i++) {
        if (s->graph[i] && !c->device->hung)
            c->device->api->mdlRIDestroy(s->graph[i]);
        s->graph[i] = NULL;
    }
    s->used = 0;
}

void asc_graphs_free(struct compiled *c)
{
    if (!c->graphs)
        return;
    asc_enter(c->device);
    for (int i = 0; i < SIZES; i++) {
        forget(c, &c->graphs->sizes[i]);
        free(c->graphs->sizes[i].graph);
    }
    free(c->graphs);
}

/* Weights may be switched between steps; areas may move. */
static uint64_t addresses(const struct compiled *c)
{
    uint64_t mixed = c->device->areas_moved;
    for (uint32_t i = 0; i < c->program->n_weights; i++) {
        const struct oato_weight *w = c->program->weights[i];
        mixed = (mixed ^ (w ? (uint64_t)(uintptr_t)w->data : 0)) * UINT64_C(0x9e3779b97f4a7c15);
        mixed ^= mixed >> 29;
    }
    return mixed;
}

/* One query of each sequence: then the number of sequences says it all. */
static bool is_decode(const struct step *step)
{
    bool one = step->n_tokens <= TOKENS_MOST && step->n_tokens == step->n_seqs &&
               !step->n_page_copies && !step->n_state_copies && !step->n_states;
    for (int32_t s = 0; one && step->seq && s < step->n_seqs; s++)
        one = step->seq[s].query_len == 1;
    return one;
}

static struct size_graphs *find(const struct compiled *c, const struct size_key *key)
{
    struct asc_graphs *g = c->graphs;
    struct size_graphs *oldest = &g->sizes[0];
    for (int i = 0; i < SIZES; i++) {
        struct size_graphs *s = &g->sizes[i];
        if (s->used && !memcmp(&s->key, key, sizeof *key)) {
            s->again = true;
            s->used = g->steps;
            return s;
        }
        oldest = s->used < oldest->used ? s : oldest;
    }
    forget(c, oldest);
    oldest->key = *key;
    oldest->again = oldest->refused = false;
    oldest->used = g->steps;
    return oldest;
}

void asc_graphs_begin(struct compiled *c, const struct step *step)
{
    struct asc_graphs *g = c->graphs;
    g->steps++;
    g->next = 0;
    g->moved = c->device->areas_moved;
    g->now = NULL;
    if (g->none || !g->n || !is_decode(step))
        return;
    const struct size_key key = {.tokens = step->n_tokens,
                                 .seqs = step->n_seqs,
                                 .pages = asc_kv_pages(c, step),
                                 .rows = step->picks ? -step->n_rows - 1 : step->n_rows,
                                 .addresses = addresses(c)};
    g->now = find(c, &key);
}

/* Its calls, which do nothing yet. A failure is not the step's: the stretch then runs one by one.
 */
static void capture(struct compiled *c, int32_t number, const struct step *step)
{
    struct asc_device *d = c->device;
    struct asc_graphs *g = c->graphs;
    const struct stretch s = g->stretch[number];
    asc_graph graph = NULL;
    struct oato_error ignored;
    oato_status status = OATO_OK;
    if (d->api->mdlRICaptureBegin(d->queue.stream, ASC_CAPTURE_RELAXED)) {
        g->none = true;
        return;
    }
    g->emit.captures = true;
    for (uint32_t i = s.begin; i < s.end && !status; i++)
        status = asc_run_record(c, i, step, &g->emit, &ignored);
    if (d->api->mdlRICaptureEnd(d->queue.stream, &graph) || status || !graph) {
        if (graph)
            d->api->mdlRIDestroy(graph);
        g->now->refused = true;
        return;
    }
    g->now->graph[number] = graph;
}

uint32_t asc_graphs_run(struct compiled *c, uint32_t index, const struct step *step,
                        oato_status *status, struct oato_error *err)
{
    struct asc_device *d = c->device;
    struct asc_graphs *g = c->graphs;
    if (!g->now || g->moved != d->areas_moved) /* an area has grown within this step */
        return 0;
    while (g->next < g->n && g->stretch[g->next].end <= index)
        g->next++;
    if (g->next == g->n || g->stretch[g->next].begin != index)
        return 0;
    if (!g->now->graph[g->next] && g->now->again && !g->now->refused)
        capture(c, g->next, step);
    if (!g->now->graph[g->next])
        return 0;
    const int error = d->api->mdlRIExecuteAsync(g->now->graph[g->next], d->queue.stream);
    if (error)
        *status = asc_fail(d->api, error, d->far.id, "running a graph", err);
    return g->stretch[g->next].end - index;
}
