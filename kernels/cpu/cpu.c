/*
 * cpu.c - the host processor as a device: memory, weights and programs. A step runs on the calling
 * thread and the pool's workers, woken once; records are separated by barriers, except where
 * thread 0 alone does both neighbours. Thread 0 alone looks at other devices' events and raises
 * this device's.
 *
 * The clock is real time minus what thread 0 spent waiting for events that, on their device's
 * clock, had already happened: with a simulated device beside it, time is what it would have been.
 */
#include "kernels/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MAX = 1024 };
#define SLAB_BYTES    ((uint64_t)32 << 20)
#define RELEASE_BYTES ((int64_t)1 << 20) /* of a file are copied, then leave the resident set */

/* Weights lie together in large allocations, so that they get huge pages. */
struct slab {
    struct slab *next;
    uint8_t *data;
    uint64_t bytes, used;
    uint32_t live; /* weights in it */
};

struct cpu_device {
    struct oato_device base;
    char id[16];
    const struct cpu_kernels *kernels;
    struct cpu_pool *pool;
    struct slab *slabs;
    uint64_t used_bytes, budget_bytes; /* budget 0: no limit */
    int64_t clock_offset_ns;
    uint64_t step_serial;
    int64_t fail_record, fail_alloc; /* counted down; 0: off */
    struct timeline timeline;
};

struct compiled {
    const struct program *program;
    int self;
    struct cpu_context context;
    struct rope_table rope;
    struct cpu_barrier barrier;
};

static struct cpu_device *cpu_of(const struct oato_device *d)
{
    return (struct cpu_device *)(uintptr_t)d;
}

/* --------------------------------------------------------------------------------- memory - */

static oato_status memory_take(struct cpu_device *d, uint64_t bytes, const char *what,
                               struct oato_error *err)
{
    if (d->fail_alloc > 0 && --d->fail_alloc == 0)
        return oato_fail(err, OATO_EFIT, "%s: no memory for %s (injected)", d->id, what);
    if (d->budget_bytes && (bytes > d->budget_bytes || d->used_bytes > d->budget_bytes - bytes))
        return oato_fail(err, OATO_EFIT,
                         "%s: %s needs %.1f MiB, but %.1f of the budget of %.1f MiB are in use; "
                         "raise the budget or place less on this device",
                         d->id, what, (double)bytes / 0x1p20, (double)d->used_bytes / 0x1p20,
                         (double)d->budget_bytes / 0x1p20);
    d->used_bytes += bytes;
    return OATO_OK;
}

static oato_status pages_take(struct cpu_device *d, uint64_t bytes, const char *what, void **out,
                              struct oato_error *err)
{
    oato_status status = memory_take(d, bytes, what, err);
    if (status)
        return status;
    *out = pages_alloc(bytes);
    if (!*out) {
        d->used_bytes -= bytes;
        return oato_fail_memory(err, bytes, what);
    }
    return OATO_OK;
}

static void pages_return(struct cpu_device *d, void *p, uint64_t bytes)
{
    if (!p)
        return;
    pages_free(p, bytes);
    d->used_bytes -= bytes;
}

static uint8_t *slab_alloc(struct cpu_device *d, uint64_t bytes)
{
    bytes = size_align(bytes ? bytes : 1, 64);
    struct slab *s = d->slabs;
    if (!s || s->bytes - s->used < bytes) {
        s = calloc(1, sizeof *s);
        if (!s)
            return NULL;
        s->bytes = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        s->data = pages_alloc(s->bytes);
        if (!s->data) {
            free(s);
            return NULL;
        }
        s->next = d->slabs;
        d->slabs = s;
    }
    uint8_t *p = s->data + s->used;
    s->used += bytes;
    s->live++;
    return p;
}

static void slab_free(struct cpu_device *d, const uint8_t *p)
{
    for (struct slab **at = &d->slabs; *at; at = &(*at)->next) {
        struct slab *s = *at;
        if (p < s->data || p >= s->data + s->bytes)
            continue;
        if (--s->live == 0) {
            *at = s->next;
            pages_free(s->data, s->bytes);
            free(s);
        }
        return;
    }
}

static oato_status cpu_alloc(struct oato_device *base, uint64_t bytes, void **out,
                             struct oato_error *err)
{
    return pages_take(cpu_of(base), bytes, "an arena", out, err);
}

static void cpu_free(struct oato_device *base, void *p, uint64_t bytes)
{
    pages_return(cpu_of(base), p, bytes);
}

/* The host's memory is this device's memory: transfers are done when they return. */
static oato_status transfer(struct cpu_device *d, void *to, const void *from, uint64_t bytes,
                            uint64_t *value)
{
    if (bytes)
        memcpy(to, from, bytes);
    if (value)
        *value = atomic_load(&d->timeline.value);
    return OATO_OK;
}

static oato_status cpu_upload(struct oato_device *base, void *to, uint64_t offset, const void *from,
                              uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    (void)err;
    return transfer(cpu_of(base), (uint8_t *)to + offset, from, bytes, value);
}

static oato_status cpu_download(struct oato_device *base, void *to, const void *from,
                                uint64_t offset, uint64_t bytes, uint64_t *value,
                                struct oato_error *err)
{
    (void)err;
    return transfer(cpu_of(base), to, (const uint8_t *)from + offset, bytes, value);
}

/* -------------------------------------------------------------------------------- weights - */

struct prepare_job {
    const struct cpu_kernels *kernels;
    const struct weight_source *source;
    struct oato_weight *weight;
    int n_threads;
};

static void prepare_share(void *arg, int thread)
{
    const struct prepare_job *j = arg;
    const struct weight_source *s = j->source;
    const int64_t rows = s->row_end - s->row_begin;
    const int64_t units = (rows + MATRIX_ROWS - 1) / MATRIX_ROWS;
    int64_t begin = units * thread / j->n_threads * MATRIX_ROWS;
    int64_t end = min_i64(rows, units * (thread + 1) / j->n_threads * MATRIX_ROWS);
    size_t row = 0;
    dtype_row_bytes(s->dtype, s->k, &row);
    int64_t step = max_i64(1, RELEASE_BYTES / (int64_t)(row * MATRIX_ROWS + 1)) * MATRIX_ROWS;
    for (; begin < end; begin += step) {
        int64_t stop = min_i64(end, begin + step);
        cpu_prepare_rows(j->kernels, s, j->weight, begin, stop);
        if (s->file)
            file_release(s->file,
                         (size_t)((const uint8_t *)s->data - s->file->data) +
                             (size_t)(s->row_begin + begin) * row,
                         (size_t)(stop - begin) * row);
    }
}

static oato_status cpu_prepare(struct oato_device *base, const struct weight_source *s,
                               struct oato_weight **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    size_t row;
    if (!quants_known(s->dtype) || !dtype_row_bytes(s->dtype, s->k, &row) || s->row_begin < 0 ||
        s->row_end < s->row_begin || s->row_end > s->n)
        return oato_fail(err, OATO_EDEVICE,
                         "%s: cannot prepare rows %lld..%lld of %lld x %lld %s: rows must be whole "
                         "blocks of a type that the cpu knows",
                         d->id, (long long)s->row_begin, (long long)s->row_end, (long long)s->n,
                         (long long)s->k, dtype_name(s->dtype));
    struct oato_weight *w = calloc(1, sizeof *w);
    if (!w)
        return oato_fail_memory(err, sizeof *w, "a weight");
    w->dtype = s->dtype;
    w->use = s->use;
    w->rows = s->row_end - s->row_begin;
    w->k = s->k;
    if (s->use == WEIGHT_LOOKUP) {
        w->data = (const uint8_t *)s->data + (size_t)s->row_begin * row;
        *out = w;
        return OATO_OK;
    }
    w->bytes = cpu_prepared_bytes(d->kernels, s->dtype, w->rows, w->k, s->use);
    oato_status status = memory_take(d, w->bytes, "a weight", err);
    if (!status) {
        w->data = slab_alloc(d, w->bytes);
        if (!w->data) {
            d->used_bytes -= w->bytes;
            status = oato_fail_memory(err, w->bytes, "a weight");
        }
    }
    if (status) {
        free(w);
        return status;
    }
    struct prepare_job j = {d->kernels, s, w, cpu_pool_threads(d->pool)};
    if (w->bytes < (64 << 10)) { /* not worth waking anybody */
        j.n_threads = 1;
        prepare_share(&j, 0);
    } else {
        cpu_pool_run(d->pool, prepare_share, &j);
    }
    *out = w;
    return OATO_OK;
}

static void cpu_weight_free(struct oato_device *base, struct oato_weight *w)
{
    struct cpu_device *d = cpu_of(base);
    if (!w)
        return;
    if (w->use != WEIGHT_LOOKUP) {
        slab_free(d, w->data);
        d->used_bytes -= w->bytes;
    }
    free(w);
}

static void cpu_kv_free(struct oato_device *base, struct kv_cache *kv)
{
    if (!kv)
        return;
    pages_return(cpu_of(base), kv->data, kv->bytes);
    free(kv->layers);
    free(kv->layer_offset);
    free(kv);
}

static oato_status cpu_kv_create(struct oato_device *base, const struct kv_layer_shape *layers,
                                 int n, oato_dtype dtype, int32_t pages, struct kv_cache **out,
                                 struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    oato_status status = OATO_OK;
    struct kv_cache *kv = calloc(1, sizeof *kv);
    if (kv) {
        kv->layers = calloc((size_t)n + 1, sizeof *kv->layers);
        kv->layer_offset = calloc((size_t)n + 1, sizeof *kv->layer_offset);
    }
    if (!kv || !kv->layers || !kv->layer_offset) {
        status = oato_fail_memory(err, sizeof *kv, "the KV cache");
        goto out;
    }
    kv->n_layers = n;
    kv->pages = pages;
    kv->dtype = dtype;
    memcpy(kv->layers, layers, (size_t)n * sizeof *layers);
    uint64_t bytes;
    if ((dtype != DT_F16 && dtype != DT_F32) || !kv_cache_layout(kv, &bytes)) {
        status = oato_fail(err, OATO_EFIT,
                           "%s: no KV cache of %d layers, %d pages of type %s; it takes F16 or F32 "
                           "and sizes that memory can hold",
                           d->id, n, (int)pages, dtype_name(dtype));
        goto out;
    }
    void *data;
    status = pages_take(d, bytes, "the KV cache", &data, err);
    if (status)
        goto out;
    kv->data = data;
    kv->bytes = bytes;
    *out = kv;
    return OATO_OK;
out:
    if (kv)
        cpu_kv_free(base, kv);
    return status;
}

/* -------------------------------------------------------------------------------- running - */

/* One step on its way: what the threads share. */
struct running {
    struct cpu_device *device;
    struct compiled *c;
    const struct step *step;
    uint32_t n_records; /* fewer than the program's when an error was injected */
    _Atomic int failed; /* an event will never come */
};

/* Thread 0: everything that the record waits for, on this device's clock. */
static bool record_wait(struct running *x, const struct program_record *r)
{
    for (int i = 0; i < r->n_waits; i++) {
        const struct record_wait *w = &r->wait[i];
        uint64_t begin_ns = now_ns(), event_ns = 0;
        if (!timeline_wait(x->step->timeline[w->device],
                           x->step->timeline_base[w->device] + w->ordinal, &event_ns))
            return false;
        int64_t *offset = &x->device->clock_offset_ns;
        int64_t due = max_i64((int64_t)begin_ns + *offset, (int64_t)event_ns);
        *offset = due - (int64_t)now_ns();
    }
    return true;
}

static void record_signal(struct running *x, const struct program_record *r)
{
    if (r->signal && !atomic_load_explicit(&x->failed, memory_order_relaxed))
        timeline_signal(&x->device->timeline, x->step->timeline_base[x->c->self] + r->signal,
                        now_ns() + (uint64_t)x->device->clock_offset_ns);
}

static void record_copy(const struct running *x, const struct program_record *r)
{
    const struct program *p = x->c->program;
    uint8_t *host = p->host_arena, *own = p->arena;
    bool up = r->kind == RECORD_UPLOAD;
    const uint8_t *from = (up ? host : own) + r->in[0];
    uint8_t *to = (up ? own : host) + r->out[0];
    if (from != to)
        memcpy(to, from,
               (size_t)cpu_record_rows(r, x->step) * (size_t)r->in_width[0] * sizeof(float));
}

/* A failed wait ends nothing early: all threads go on to meet at the barriers, and skip the work.
 */
static void run_step(void *arg, int thread)
{
    struct running *x = arg;
    struct cpu_barrier *barrier = &x->c->barrier;
    const struct program_record *records = x->c->program->records;
    bool before_solo = true;
    for (uint32_t i = 0; i < x->n_records; i++) {
        const struct program_record *r = &records[i];
        bool solo = cpu_record_is_solo(r, x->step);
        if (!before_solo) {
            cpu_barrier_wait(barrier);
            if (thread == 0)
                record_signal(x, r - 1);
        }
        if (thread == 0 && r->n_waits && !record_wait(x, r))
            atomic_store(&x->failed, 1);
        if (!solo && (before_solo || r->n_waits))
            cpu_barrier_wait(barrier); /* what thread 0 computed or waited for is there */
        if ((thread == 0 || !solo) && !atomic_load_explicit(&x->failed, memory_order_relaxed)) {
            if (r->kind == RECORD_RUN)
                cpu_run_record(&x->c->context, r, x->step, thread, barrier);
            else
                record_copy(x, r);
        }
        if (solo && thread == 0)
            record_signal(x, r);
        before_solo = solo;
    }
    if (!before_solo) {
        cpu_barrier_wait(barrier);
        if (thread == 0)
            record_signal(x, &records[x->n_records - 1]);
    }
}

static oato_status cpu_submit(struct oato_device *base, struct compiled *c, const struct step *step,
                              struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    if (atomic_load(&d->timeline.failed))
        return oato_fail(err, OATO_EDEVICE, "%s: the device failed in an earlier step", d->id);
    struct running x = {.device = d, .c = c, .step = step, .n_records = c->program->n_records};
    bool injected = d->fail_record > 0 && d->fail_record <= x.n_records;
    if (injected)
        x.n_records = (uint32_t)d->fail_record - 1;
    if (d->fail_record > 0)
        d->fail_record = injected ? 0 : d->fail_record - x.n_records;
    c->rope.step_serial = ++d->step_serial;
    if (x.n_records > 0)
        cpu_pool_run(d->pool, run_step, &x);
    if (injected) {
        timeline_fail(&d->timeline);
        return oato_fail(err, OATO_EDEVICE, "%s: record %u of the step failed (injected)", d->id,
                         (unsigned)x.n_records);
    }
    if (atomic_load(&x.failed)) {
        timeline_fail(&d->timeline);
        return oato_fail(err, OATO_EDEVICE,
                         "%s: the step was given up because a device it waits for failed", d->id);
    }
    return OATO_OK;
}

static oato_status cpu_finish(struct oato_device *base, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    if (atomic_load(&d->timeline.failed))
        return oato_fail(err, OATO_EDEVICE, "%s: the device failed in an earlier step", d->id);
    return OATO_OK;
}

static void cpu_release(struct oato_device *base, struct compiled *c)
{
    struct cpu_device *d = cpu_of(base);
    if (!c)
        return;
    pages_return(d, c->context.workspace, c->context.workspace_bytes);
    pages_return(d, c->rope.cos_sin, c->rope.floats * sizeof(float));
    free(c);
}

/* Workspace for the largest step and room for the angles of its tokens. */
static oato_status compiled_size(const struct cpu_device *d, const struct program *p,
                                 uint64_t *workspace, uint64_t *rope_floats, struct oato_error *err)
{
    *workspace = p->workspace_bytes;
    *rope_floats = 0;
    if (p->n_signals >= TIMELINE_RING)
        return oato_fail(err, OATO_EDEVICE, "%s: a program of %u signals; at most %d are possible",
                         d->id, (unsigned)p->n_signals, TIMELINE_RING - 1);
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (r->kind != RECORD_RUN)
            continue;
        if (!cpu_supports(d->kernels, &r->op))
            return oato_fail(err, OATO_EDEVICE, "%s: record %u: operator '%s' does not run here",
                             d->id, (unsigned)i, op_kind_name(r->op.kind));
        for (int w = 0; w < RECORD_WEIGHTS; w++)
            if (w < r->n_weights && r->weight[w] != UINT32_MAX && r->weight[w] >= p->n_weights)
                return oato_fail(err, OATO_EDEVICE, "%s: record %u: weight %u of %u", d->id,
                                 (unsigned)i, (unsigned)r->weight[w], (unsigned)p->n_weights);
        if ((r->op.kind == OP_KV_STORE || r->op.kind == OP_ATTENTION) &&
            (!p->kv || r->kv_layer < 0 || r->kv_layer >= p->kv->n_layers))
            return oato_fail(err, OATO_EDEVICE, "%s: record %u: KV layer %d is not on this device",
                             d->id, (unsigned)i, (int)r->kv_layer);
        struct op_size size = {.seqs = p->max_seqs};
        size.rows = r->rows == ROWS_LOGITS ? p->max_rows : p->max_tokens;
        uint64_t bytes = cpu_workspace_bytes(d->kernels, &r->op, &size, cpu_pool_threads(d->pool));
        *workspace = bytes > *workspace ? bytes : *workspace;
        if (r->op.kind == OP_ROPE) {
            uint64_t floats = (uint64_t)size.rows * (uint64_t)r->op.rope_dims;
            *rope_floats = floats > *rope_floats ? floats : *rope_floats;
        }
    }
    return OATO_OK;
}

static oato_status cpu_compile(struct oato_device *base, const struct program *p, int self,
                               struct compiled **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    uint64_t workspace, rope_floats;
    oato_status status = compiled_size(d, p, &workspace, &rope_floats, err);
    if (status)
        return status;
    struct compiled *c = aligned_alloc(64, size_align(sizeof *c, 64));
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    memset(c, 0, sizeof *c);
    c->program = p;
    c->self = self;
    cpu_barrier_init(&c->barrier, cpu_pool_threads(d->pool));
    c->context = (struct cpu_context){.kernels = d->kernels,
                                      .arena = p->arena,
                                      .weights = p->weights,
                                      .kv = p->kv,
                                      .workspace_bytes = workspace,
                                      .rope = &c->rope};
    c->rope.floats = rope_floats;
    void *memory = NULL;
    status = pages_take(d, workspace, "the workspace", &memory, err);
    c->context.workspace = memory;
    if (!status && rope_floats) {
        memory = NULL;
        status = pages_take(d, rope_floats * sizeof(float), "the table of angles", &memory, err);
        c->rope.cos_sin = memory;
    }
    if (status) {
        cpu_release(base, c);
        return status;
    }
    *out = c;
    return OATO_OK;
}

/* --------------------------------------------------------------------------------- device - */

static int cpu_probe(void)
{
    return 1;
}

static oato_status cpu_open(int index, const char *spec, const struct device_options *options,
                            struct oato_device **out, struct oato_error *err)
{
    if (spec && *spec)
        return oato_fail(err, OATO_EUSAGE,
                         "cpu: '%s' is no setting of this device; write just cpu and use --threads",
                         spec);
    int threads = options ? options->threads : 0;
    if (threads < 0 || threads > THREADS_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "cpu: %d threads; 1 to %d are possible, 0 for one a core", threads,
                         THREADS_MAX);
    struct cpu_device *d = calloc(1, sizeof *d);
    if (!d)
        return oato_fail_memory(err, sizeof *d, "the cpu device");
    d->base.ops = &cpu_device_ops;
    snprintf(d->id, sizeof d->id, "cpu:%d", index);
    d->budget_bytes = options ? options->budget_bytes : 0;
    timeline_init(&d->timeline);
    oato_status status = cpu_kernels_select(options ? options->isa : NULL, &d->kernels, err);
    if (!status)
        status = cpu_pool_create(threads ? threads : cpu_physical_cores(), &d->pool, err);
    if (status) {
        free(d);
        return status;
    }
    *out = &d->base;
    return OATO_OK;
}

static void cpu_close(struct oato_device *base)
{
    struct cpu_device *d = cpu_of(base);
    if (!d)
        return;
    cpu_pool_free(d->pool);
    while (d->slabs) {
        struct slab *next = d->slabs->next;
        pages_free(d->slabs->data, d->slabs->bytes);
        free(d->slabs);
        d->slabs = next;
    }
    free(d);
}

/* "model name : AMD EPYC 9755" of /proc/cpuinfo. */
static void cpu_model_name(char *out, size_t n)
{
    snprintf(out, n, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!strncmp(line, "model name", 10) && colon && colon[1]) {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, n, "%s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

/* Free memory including what the page cache would give back. */
static uint64_t memory_available(uint64_t total)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && !kib && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13))
            kib = strtoull(line + 13, NULL, 10);
    if (f)
        fclose(f);
    return kib ? (uint64_t)kib << 10 : total;
}

static void cpu_info(const struct oato_device *base, struct device_info *out)
{
    const struct cpu_device *d = cpu_of(base);
    memset(out, 0, sizeof *out);
    snprintf(out->id, sizeof out->id, "%s", d->id);
    snprintf(out->kind, sizeof out->kind, "cpu");
    snprintf(out->isa, sizeof out->isa, "%s", cpu_kernels_name(d->kernels));
    cpu_model_name(out->model, sizeof out->model);
    out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->free_bytes = memory_available(out->memory_bytes);
    if (d->budget_bytes) {
        uint64_t left = d->budget_bytes - d->used_bytes;
        out->memory_bytes = d->budget_bytes;
        out->free_bytes = left < out->free_bytes ? left : out->free_bytes;
    }
    out->threads = cpu_pool_threads(d->pool);
    out->is_host = true;
}

static bool supports(const struct oato_device *d, const struct oato_op *op)
{
    return cpu_supports(cpu_of(d)->kernels, op);
}

static const char *numerics(const struct oato_device *d, const struct oato_op *op)
{
    return cpu_numerics(cpu_of(d)->kernels, op);
}

static uint64_t prepared_bytes(const struct oato_device *d, oato_dtype dtype, int64_t rows,
                               int64_t k, enum weight_use use)
{
    return use == WEIGHT_LOOKUP ? 0 /* stays in the file */
                                : cpu_prepared_bytes(cpu_of(d)->kernels, dtype, rows, k, use);
}

static uint64_t workspace_bytes(const struct oato_device *d, const struct oato_op *op,
                                const struct op_size *size)
{
    return cpu_workspace_bytes(cpu_of(d)->kernels, op, size, cpu_pool_threads(cpu_of(d)->pool));
}

static struct timeline *cpu_timeline(struct oato_device *d)
{
    return &cpu_of(d)->timeline;
}

static uint64_t cpu_clock_ns(const struct oato_device *d)
{
    return now_ns() + (uint64_t)cpu_of(d)->clock_offset_ns;
}

static oato_status cpu_inject_error(struct oato_device *base, const char *what,
                                    struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    int64_t n;
    if (!strncmp(what, "record=", 7) && parse_i64(what + 7, 0, INT32_MAX, &n))
        d->fail_record = n;
    else if (!strncmp(what, "alloc=", 6) && parse_i64(what + 6, 0, INT32_MAX, &n))
        d->fail_alloc = n;
    else
        return oato_fail(err, OATO_EUSAGE, "%s: cannot inject '%s'; known are record=N and alloc=N",
                         d->id, what);
    return OATO_OK;
}

const struct device_ops cpu_device_ops = {
    .kind = "cpu",
    .probe = cpu_probe,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .supports = supports,
    .numerics = numerics,
    .prepared_bytes = prepared_bytes,
    .workspace_bytes = workspace_bytes,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .prepare = cpu_prepare,
    .weight_free = cpu_weight_free,
    .kv_create = cpu_kv_create,
    .kv_free = cpu_kv_free,
    .compile = cpu_compile,
    .release = cpu_release,
    .submit = cpu_submit,
    .finish = cpu_finish,
    .timeline = cpu_timeline,
    .clock_ns = cpu_clock_ns,
    .inject_error = cpu_inject_error,
};
