/*
 * cuda_persistent.c - the launches of a span as a list of tasks for the persistent kernel
 * (persistent.cu), which runs the span as one launch. A list is made by the very functions that
 * launch kernels: while one is recorded, launch_start writes it down instead.
 *
 * A list stays right for all steps of one size, as a graph does; cuda_graph.c keeps both. A span
 * with a kernel whose body the persistent kernel has not, or a driver that does not launch it,
 * refuses: then it is run as a graph.
 */
#include "kernels/cuda/cuda_launch.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tasks.h"

#include <stdlib.h>
#include <string.h>

enum { TASKS_OF_RECORD = 2 }; /* at most: what it packs or merges, and its product or attention */

extern const unsigned char cuda_image_persistent[];

static const struct {
    const char *name; /* of the kernel */
    uint32_t threads, argument_bytes;
} bodies[CUDA_TASK_BODIES] = {
#define BODY(name, threads, argument) {#name, threads, sizeof(struct argument)},
    CUDA_TASKS(BODY)
#undef BODY
};

struct cuda_persistent {
    cu_module module;
    cu_function kernel;
    cu_function body[CUDA_TASK_BODIES]; /* the kernels that have them, as they are found */
};

/* A list that is being written. */
struct cuda_recording {
    struct cuda_task *task;
    uint32_t n, most;
};

/* Of a span at one size. */
struct list {
    enum { LIST_NONE, LIST_READY, LIST_REFUSED } state;
    uint32_t n; /* tasks */
    uint32_t grid, shared_bytes;
    uint32_t launches;
};

/* Of a program: a place for each of its records' tasks at each size. */
struct cuda_lists {
    int n_sizes;
    int32_t n_spans;
    struct list *lists;  /* [size][span] */
    uint32_t tasks_most; /* of a size */
    struct cuda_task *host;
    cu_address memory; /* the tasks, then their counters */
    uint64_t bytes;
};

/* ------------------------------------------------------------------------------- device --- */

oato_status cuda_persistent_open(struct cuda_device *d, struct oato_error *err)
{
    struct cuda_persistent *p = calloc(1, sizeof *p);
    if (!p)
        return oato_fail_memory(err, sizeof *p, "the persistent kernel");
    d->persistent = p;
    cuda_enter(d);
    cu_result result = d->cu->module_load(&p->module, cuda_image_persistent);
    if (!result)
        result = d->cu->module_function(&p->kernel, p->module, "persistent");
    if (!result)
        return OATO_OK;
    cuda_persistent_close(d); /* so that the next one who wants it tries anew */
    return cuda_fail(d->cu, result, d->id, "loading the persistent kernel", err);
}

void cuda_persistent_close(struct cuda_device *d)
{
    if (d->persistent && d->persistent->module)
        d->cu->module_unload(d->persistent->module);
    free(d->persistent);
    d->persistent = NULL;
}

void cuda_persistent_learn(const struct cuda_device *d, const char *name, cu_function kernel)
{
    for (int i = 0; d->persistent && i < CUDA_TASK_BODIES; i++)
        if (!strcmp(bodies[i].name, name))
            d->persistent->body[i] = kernel;
}

/* ------------------------------------------------------------------------------ writing --- */

static int find_body(const struct cuda_persistent *p, cu_function kernel)
{
    for (int i = 0; i < CUDA_TASK_BODIES; i++)
        if (p->body[i] == kernel)
            return i;
    return -1;
}

static uint32_t shared_of(const struct cuda_task *t)
{
    return 2 * (uint32_t)sizeof *t + t->groups * (PERSISTENT_SHARED + t->room);
}

cu_result cuda_record_launch(const struct launch *l, cu_function kernel, struct grid grid,
                             uint32_t threads, uint32_t shared_bytes, const void *argument)
{
    struct cuda_recording *r = l->d->recording;
    const int body = find_body(l->d->persistent, kernel);
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (body < 0 || threads != bodies[body].threads || r->n == r->most || blocks > INT32_MAX)
        return CU_ERROR_NOT_FOUND;
    struct cuda_task *t = &r->task[r->n];
    memset(t, 0, sizeof *t);
    t->body = body;
    t->grid_x = grid.x;
    t->grid_y = grid.y;
    t->blocks = (uint32_t)blocks;
    t->groups = PERSISTENT_THREADS / threads;
    t->room = (uint32_t)size_align(shared_bytes, 16);
    while (t->groups > 1 && t->groups * (PERSISTENT_SHARED + t->room) > PERSISTENT_ROOM)
        t->groups--;
    if (shared_of(t) > PERSISTENT_MOST)
        return CU_ERROR_NOT_FOUND;
    memcpy(t->argument, argument, bodies[body].argument_bytes);
    r->n++;
    return CU_OK;
}

/* ----------------------------------------------------------------------------- weights ---- */

static bool is_product(const struct cuda_task *t)
{
    return !strncmp(bodies[t->body].name, "matvec_", 7);
}

/* What the blocks of a product read goes to task `at`; the weights of experts are chosen while the
 * step runs. */
static void put_ahead(const struct cuda_device *d, const struct cuda_task *product, uint32_t grid,
                      struct cuda_task *at)
{
    struct cuda_matvec_args a;
    memcpy(&a, product->argument, sizeof a);
    const uint32_t pairs_of_block = MATVEC_WARPS / (uint32_t)a.split;
    const uint32_t rows_of_block = a.gate_up ? pairs_of_block : 2 * pairs_of_block;
    uint64_t all = 0, first_pair = 0;
    at->n_ahead = 0;
    for (int i = 0; i < a.n; i++) {
        uint64_t row_bytes[CUDA_PLANES];
        cuda_layout_row((oato_dtype)a.w[i].dtype, a.w[i].k, row_bytes);
        for (int p = 0; p < CUDA_PLANES; p++) {
            if (!row_bytes[p])
                continue;
            at->ahead[at->n_ahead++] =
                (struct cuda_ahead){.from = a.w[i].plane[p],
                                    .block_bytes = (uint32_t)(row_bytes[p] * rows_of_block),
                                    .first = (uint32_t)(first_pair / pairs_of_block),
                                    .blocks = (uint32_t)a.w[i].rows / rows_of_block};
            all += row_bytes[p] * rows_of_block;
        }
        if (!a.gate_up)
            first_pair += ((uint64_t)a.w[i].rows + 1) / 2;
    }
    if (!a.gate_up && a.n)
        all /= (uint64_t)a.n; /* a block has rows of one */
    /* what more is fetched than half of the cache would push out the rest */
    const uint64_t fits = all ? (uint64_t)d->l2_bytes / 2 / (all * grid) : 0;
    at->groups_ahead = fits < product->groups ? (uint32_t)fits : product->groups;
}

/* Each product's weights are fetched from where the product before has none left to read. */
static void put_all_ahead(const struct cuda_device *d, struct cuda_task *task, uint32_t n,
                          uint32_t grid)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!is_product(&task[i]))
            continue;
        if (i)
            put_ahead(d, &task[i], grid, &task[from]);
        from = i;
    }
}

/* -------------------------------------------------------------------------------- lists --- */

oato_status cuda_lists_create(struct cuda_device *d, struct compiled *c, int n_sizes,
                              int32_t n_spans, struct oato_error *err)
{
    if (d->way != CUDA_PERSISTENT || !n_spans)
        return OATO_OK;
    struct cuda_lists *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "lists of tasks");
    c->lists = s;
    s->n_sizes = n_sizes;
    s->n_spans = n_spans;
    s->tasks_most = c->program->n_records * TASKS_OF_RECORD;
    const uint64_t tasks = (uint64_t)s->tasks_most * (uint64_t)n_sizes;
    s->lists = calloc((size_t)n_sizes * (size_t)n_spans, sizeof *s->lists);
    s->host = calloc(tasks, sizeof *s->host);
    if (!s->lists || !s->host)
        return oato_fail_memory(err, tasks * sizeof *s->host, "lists of tasks");
    const uint64_t bytes = tasks * (sizeof(struct cuda_task) + sizeof(uint32_t));
    struct oato_error ignored; /* without room for lists spans are graphs */
    if (!cuda_take(d, bytes, "lists of tasks", &s->memory, &ignored))
        s->bytes = bytes;
    return OATO_OK;
}

void cuda_lists_free(struct cuda_device *d, struct compiled *c)
{
    struct cuda_lists *s = c->lists;
    if (!s)
        return;
    cuda_return(d, s->memory, s->bytes);
    free(s->lists);
    free(s->host);
    free(s);
}

void cuda_lists_forget(const struct compiled *c, int size)
{
    const struct cuda_lists *s = c->lists;
    for (int32_t i = 0; s && s->lists && i < s->n_spans; i++)
        s->lists[size * s->n_spans + i] = (struct list){.state = LIST_NONE};
}

/* Where the span's tasks begin. */
static uint64_t first_task(const struct cuda_lists *s, int size, const struct cuda_span *span)
{
    return (uint64_t)size * s->tasks_most + (uint64_t)span->begin * TASKS_OF_RECORD;
}

static cu_address tasks_at(const struct cuda_lists *s, uint64_t first)
{
    return s->memory + first * sizeof(struct cuda_task);
}

static cu_address counters_at(const struct cuda_lists *s, uint64_t first)
{
    return s->memory + (uint64_t)s->n_sizes * s->tasks_most * sizeof(struct cuda_task) +
           first * sizeof(uint32_t);
}

static bool record(struct cuda_device *d, struct compiled *c, const struct cuda_span *span,
                   const struct step *step, struct cuda_recording *r)
{
    struct oato_error ignored;
    bool good = true;
    d->recording = r;
    for (uint32_t i = span->begin; i < span->end && good; i++)
        good = !cuda_run_record(d, c, i, step, &ignored);
    d->recording = NULL;
    return good && r->n;
}

/* The grid, and what follows from it. */
static bool lay_out(const struct cuda_device *d, struct cuda_recording *r, struct list *list)
{
    int blocks = 0;
    list->n = r->n;
    list->shared_bytes = 0;
    for (uint32_t i = 0; i < r->n; i++)
        if (shared_of(&r->task[i]) > list->shared_bytes)
            list->shared_bytes = shared_of(&r->task[i]);
    if (d->cu->occupancy(&blocks, d->persistent->kernel, PERSISTENT_THREADS, list->shared_bytes) ||
        blocks < 1)
        return false;
    list->grid = (uint32_t)(blocks * d->multiprocessors);
    for (uint32_t i = 1; i < r->n; i++) {
        const uint32_t before = r->task[i - 1].blocks;
        r->task[i].awaited = before < list->grid ? before : list->grid;
    }
    put_all_ahead(d, r->task, r->n, list->grid);
    return true;
}

static bool make_list(struct cuda_device *d, struct compiled *c, int size,
                      const struct cuda_span *span, const struct step *step, struct list *list)
{
    const struct cuda_lists *s = c->lists;
    const uint64_t first = first_task(s, size, span);
    struct cuda_recording r = {.task = s->host + first,
                               .most = (span->end - span->begin) * TASKS_OF_RECORD};
    return record(d, c, span, step, &r) && lay_out(d, &r, list) &&
           !d->cu->upload(tasks_at(s, first), r.task, r.n * sizeof *r.task, d->queue.stream) &&
           !d->cu->fill(counters_at(s, first), 0, r.n * sizeof(uint32_t), d->queue.stream);
}

bool cuda_list_run(struct cuda_device *d, struct compiled *c, int size, int32_t number,
                   const struct cuda_span *span, const struct step *step)
{
    const struct cuda_lists *s = c->lists;
    if (!s || !s->bytes)
        return false;
    struct list *list = &s->lists[size * s->n_spans + number];
    if (list->state == LIST_NONE)
        list->state = make_list(d, c, size, span, step, list) ? LIST_READY : LIST_REFUSED;
    if (list->state == LIST_REFUSED)
        return false;
    const uint64_t first = first_task(s, size, span);
    struct cuda_persistent_args a = {.task =
                                         (const struct cuda_task *)(uintptr_t)tasks_at(s, first),
                                     .arrived = (uint32_t *)(uintptr_t)counters_at(s, first),
                                     .launches = list->launches + 1,
                                     .n = (int32_t)list->n};
    if (d->cu->launch_together(d->persistent->kernel, list->grid, 1, 1, PERSISTENT_THREADS, 1, 1,
                               list->shared_bytes, d->queue.stream, (void *[]){&a})) {
        list->state = LIST_REFUSED;
        return false;
    }
    list->launches++;
    return true;
}
