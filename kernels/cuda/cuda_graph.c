/*
 * cuda_graph.c - the launches of a decode step as graphs. Between two kernels that are launched one
 * by one a fast GPU waits for the host; a graph hands over a whole stretch of them at once.
 *
 * A span is a stretch of records that only launch kernels: it ends where another device is waited
 * for or signalled, where something is copied or streamed. Kernels read what varies from step to
 * step in device memory, so a captured span stays right for all steps of one size; what else its
 * launches hold (addresses of weights and workspace, the division of contexts) is part of the key.
 * A size is captured when it comes for the second time: prompts seldom do. A server's batches come
 * in all sizes, of which each must find its graphs again: many are kept, as long as their records
 * are not too many in all. Where memory for a graph is short, fewer are kept; where there is none
 * at all, or the driver does not capture, all is launched one by one, and the device says so
 * (cuda_warning).
 *
 * Within a span, captured or not, a kernel may begin before the one before it has ended (see
 * device_code.cuh). The first of a span may not: it follows copies, events, or weights that came
 * by another stream.
 */
#include "kernels/cuda/cuda_device.h"

#include <stdlib.h>
#include <string.h>

enum {
    SIZES = 64,             /* whose graphs are kept; the one that was used longest ago goes */
    RECORDS_MOST = 1 << 15, /* of all graphs: 16 batch sizes of 80 layers, twice. What a graph takes
                               of the GPU's memory has not been measured */
    TOKENS_MOST = 16,       /* of a step: longer ones compute longer than they are launched */
    SPAN_LEAST = 2,         /* records */
};

/* What must be equal, byte by byte, for launches to be. */
struct size_key {
    int32_t tokens, segments, spans;
    int32_t rows;       /* negative: candidates of them are wanted */
    uint64_t addresses; /* of weights in device memory and of the workspace, mixed; and
                           how many rows are states */
};

struct size_graphs {
    struct size_key key;
    uint64_t used;       /* number of the last step that had it; 0: the slot is free */
    bool again;          /* the size has come before */
    uint64_t records;    /* in its graphs */
    cu_graph_exec *exec; /* of each span; NULL: not captured yet */
};

/* Records [begin, end) of a program that only launch kernels. */
struct cuda_span {
    uint32_t begin, end;
};

struct cuda_graphs {
    int32_t n_spans;
    bool refused;         /* the driver would not: launch one by one */
    bool tiles, segments; /* its attention divides contexts in this way */
    uint64_t steps;
    uint64_t records, most; /* in all graphs, and may be */
    struct size_graphs sizes[SIZES];
    struct size_graphs *now;  /* of the step at hand; NULL: none */
    int32_t next;             /* its first span that does not end before the record at hand */
    struct cuda_span spans[]; /* in order */
};

/* -------------------------------------------------------------------------------- spans --- */

static bool only_launches(const struct program *p, const struct program_record *r)
{
    return r->kind == RECORD_RUN && r->op.kind != OP_KV_COPY && !cuda_reads_streamed(p, r);
}

static bool waits_for_others(const struct compiled *c, const struct program_record *r)
{
    for (int i = 0; i < r->n_waits; i++)
        if (r->wait[i].device != c->self)
            return true;
    return false;
}

/* The span that begins at record i; of none or one record: none. */
static struct cuda_span span_at(const struct compiled *c, uint32_t i)
{
    const struct program *p = c->program;
    struct cuda_span s = {.begin = i, .end = i};
    while (s.end < p->n_records) {
        const struct program_record *r = &p->records[s.end];
        if (!only_launches(p, r) || (s.end > i && waits_for_others(c, r)))
            break;
        s.end++;
        if (r->signal)
            break;
    }
    return s;
}

oato_status cuda_graphs_create(struct compiled *c, struct oato_error *err)
{
    const uint32_t n = c->program->n_records;
    const size_t bytes = sizeof(struct cuda_graphs) + n * sizeof(struct cuda_span);
    struct cuda_graphs *g = calloc(1, bytes);
    c->graphs = g;
    if (!g)
        return oato_fail_memory(err, bytes, "spans of a program");
    g->most = RECORDS_MOST;
    for (uint32_t i = 0; i < n; i++) {
        const struct program_record *r = &c->program->records[i];
        const bool tiles = cuda_takes_tile(&r->op, r->numerics);
        g->tiles = g->tiles || tiles;
        g->segments = g->segments || (r->op.kind == OP_ATTENTION && !tiles && !r->op.window);
    }
    for (uint32_t i = 0; i < n;) {
        const struct cuda_span s = span_at(c, i);
        if (s.end - s.begin >= SPAN_LEAST)
            g->spans[g->n_spans++] = s;
        i = s.end > i ? s.end : i + 1;
    }
    for (int i = 0; i < SIZES; i++) {
        g->sizes[i].exec = calloc((size_t)g->n_spans + 1, sizeof(cu_graph_exec));
        if (!g->sizes[i].exec)
            return oato_fail_memory(err, (uint64_t)g->n_spans * sizeof(cu_graph_exec), "graphs");
    }
    return OATO_OK;
}

static void forget(const struct cuda_device *d, const struct compiled *c, struct size_graphs *s)
{
    struct cuda_graphs *g = c->graphs;
    for (int32_t i = 0; s->exec && i < g->n_spans; i++) {
        if (s->exec[i])
            d->cu->graph_exec_destroy(s->exec[i]);
        s->exec[i] = NULL;
    }
    g->records -= s->records;
    s->records = 0;
    s->used = 0;
    s->again = false;
}

void cuda_graphs_free(struct cuda_device *d, struct compiled *c)
{
    struct cuda_graphs *g = c->graphs;
    for (int i = 0; g && i < SIZES; i++) {
        forget(d, c, &g->sizes[i]);
        free(g->sizes[i].exec);
    }
    free(g);
}

/* -------------------------------------------------------------------------------- steps --- */

static uint64_t mix(uint64_t sum, uint64_t value)
{
    return (sum ^ value) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Weights count by where they lie, not by who holds them: they may move between steps, and a
 * table's entries may be switched. */
static struct size_key key_of(const struct cuda_device *d, const struct compiled *c,
                              const struct step *step)
{
    const struct program *p = c->program;
    struct size_key key = {.tokens = step->n_tokens,
                           .rows = step->picks ? -step->n_rows : step->n_rows};
    key.segments = c->graphs->segments ? cuda_step_segments(step) : 0;
    key.spans = c->graphs->tiles ? cuda_step_spans(step) : 0;
    key.addresses = d->workspace ? (uintptr_t)d->workspace->address : 0;
    if (step->n_states)
        key.addresses = mix(key.addresses, (uint64_t)step->n_states);
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const struct oato_weight *w = p->weights[i];
        key.addresses = mix(key.addresses, w ? (uintptr_t)w->data : 0);
        key.addresses = mix(key.addresses, w && weight_is_streamed(w));
    }
    return key;
}

/* Of the sizes that have graphs but the step's own, those go that were used longest ago, until the
 * rest has no more records than that. False: there was none to go. */
static bool make_room(const struct cuda_device *d, struct compiled *c, uint64_t most)
{
    struct cuda_graphs *g = c->graphs;
    const uint64_t before = g->records;
    while (g->records > most) {
        struct size_graphs *oldest = NULL;
        for (int i = 0; i < SIZES; i++) {
            struct size_graphs *s = &g->sizes[i];
            if (s != g->now && s->records && (!oldest || s->used < oldest->used))
                oldest = s;
        }
        if (!oldest)
            break;
        forget(d, c, oldest);
    }
    return g->records < before;
}

void cuda_graphs_begin(struct cuda_device *d, struct compiled *c, const struct step *step)
{
    struct cuda_graphs *g = c->graphs;
    const bool one_by_one = !d->graphs || d->measure.clock == CLOCK_WORKS;
    g->now = NULL;
    g->next = 0;
    d->queue.chain = CHAIN_NONE;
    for (int i = 0; g->refused && g->steps && i < SIZES; i++)
        forget(d, c, &g->sizes[i]); /* the steps that they were launched in are over */
    if (g->refused)
        g->steps = 0;
    if (g->refused || one_by_one || !g->n_spans || step->n_tokens > TOKENS_MOST)
        return;
    const struct size_key key = key_of(d, c, step);
    struct size_graphs *oldest = &g->sizes[0];
    for (int i = 0; i < SIZES && !g->now; i++) {
        struct size_graphs *s = &g->sizes[i];
        if (s->used && !memcmp(&s->key, &key, sizeof key))
            g->now = s;
        oldest = s->used < oldest->used ? s : oldest;
    }
    if (g->now) {
        g->now->again = true;
    } else {
        forget(d, c, oldest);
        oldest->key = key;
        g->now = oldest;
    }
    g->now->used = ++g->steps;
}

/* No failure of the step: its records are launched one by one, from now on. */
static void refuse(struct cuda_device *d, struct cuda_graphs *g, cu_result result)
{
    struct oato_error why;
    g->refused = true;
    g->now = NULL;
    cuda_fail(d->cu, result, d->far.id, "graphs", &why);
    if (!d->warning[0])
        snprintf(d->warning, sizeof d->warning,
                 "%s; kernels are launched one by one, which slows decode down: leave the GPU more "
                 "free memory, or update the driver",
                 why.text);
}

/* Whether something of the span came to be streamed since the program was compiled. */
static bool is_streamed(const struct program *p, const struct cuda_span *s)
{
    for (uint32_t i = s->begin; i < s->end; i++)
        if (cuda_reads_streamed(p, &p->records[i]))
            return true;
    return false;
}

static cu_result capture(struct cuda_device *d, struct compiled *c, const struct cuda_span *s,
                         const struct step *step, cu_graph_exec *exec)
{
    const struct cuda_driver *cu = d->cu;
    struct oato_error ignored;
    cu_graph graph = NULL;
    cu_result result = cu->capture_begin(d->queue.stream, CU_CAPTURE_THREAD_LOCAL);
    if (result)
        return result;
    bool good = true;
    d->queue.chain = d->overlaps ? CHAIN_BEGINS : CHAIN_NONE;
    for (uint32_t i = s->begin; i < s->end && good; i++)
        good = !cuda_run_record(d, c, i, step, &ignored);
    d->queue.chain = CHAIN_NONE;
    result = cu->capture_end(d->queue.stream, &graph);
    if (!result && (!good || !graph))
        result = CU_ERROR_UNKNOWN; /* a record that failed says why when it is run alone */
    if (!result)
        result = cu->graph_instantiate(exec, graph, 0);
    if (result)
        *exec = NULL;
    if (graph)
        cu->graph_destroy(graph);
    return result;
}

uint32_t cuda_graphs_run(struct cuda_device *d, struct compiled *c, uint32_t index,
                         const struct step *step, cu_result *result)
{
    struct cuda_graphs *g = c->graphs;
    *result = CU_OK;
    while (g->next < g->n_spans && g->spans[g->next].end <= index)
        g->next++;
    const struct cuda_span *s = &g->spans[g->next];
    const bool inside = g->now && g->next < g->n_spans && s->begin <= index;
    if (inside && s->begin != index)
        return 0;
    d->queue.chain = CHAIN_NONE;
    if (!inside)
        return 0;
    cu_graph_exec *exec = &g->now->exec[g->next];
    if (!*exec && is_streamed(c->program, s))
        return 0;
    if (!g->now->again) {
        d->queue.chain = d->overlaps ? CHAIN_BEGINS : CHAIN_NONE;
        return 0;
    }
    const uint64_t records = s->end - s->begin;
    cu_result failure = CU_OK;
    if (!*exec) {
        make_room(d, c, g->most > records ? g->most - records : 0);
        failure = capture(d, c, s, step, exec);
        if (*exec) {
            g->now->records += records;
            g->records += records;
        }
    }
    if (!failure)
        *result = d->cu->graph_launch(*exec, d->queue.stream);
    if (*result == CU_ERROR_OUT_OF_MEMORY) { /* what a graph needs is allocated at its launch */
        failure = *result;
        *result = CU_OK;
    }
    /* this record alone is launched by itself if older graphs can make room for the next one */
    if (failure == CU_ERROR_OUT_OF_MEMORY && make_room(d, c, g->records / 2))
        g->most = g->records;
    else if (failure)
        refuse(d, g, failure);
    return failure ? 0 : (uint32_t)records;
}
