/*
 * cpu_program.c - programs of the cpu device and their steps. A step runs on the calling thread
 * (of a device that is aside, on its queue's) and the pool's workers, woken once; records are
 * separated by barriers, except where thread 0 alone does both neighbours. Thread 0 alone looks at
 * other devices' events and raises this device's.
 *
 * The clock is the wall's, but virtual in a step with a simulated device: then it is put forward to
 * the begin of the step, and leaves out what thread 0 spent waiting for events that, on their
 * device's clock, had already happened: time is what it would have been. For that the two never
 * compute at the same time (see step_cores), the clock goes on only when all workers are awake
 * again, for on that clock they hardly waited, and each has a core of its own: where the simulated
 * device's thread has just been, the scheduler would leave two of them on one for milliseconds.
 */
#include "kernels/cpu/cpu_device.h"
#include "kernels/ranks/collective.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct compiled {
    const struct program *program;
    int self;
    struct cpu_context context;
    struct rope_table rope;
    struct cpu_barrier barrier;
    uint32_t waits_for; /* bit i: some record waits for device i of the engine */
    uint32_t *needs;    /* per record: see file_stream_compile; NULL: nothing is streamed */
    struct kv_use *kv;  /* per record; NULL: all KV is in memory */
};

enum { LOOK_AHEAD = 6 }; /* records: from attention, or what precedes it, to the next matrix */

/* One step on its way: what the threads share. */
struct running {
    struct cpu_device *device;
    struct compiled *c;
    const struct step *step;
    struct cpu_barrier *barrier;
    uint32_t n_records;     /* fewer than the program's when an error was injected */
    _Atomic bool failed;    /* an event will never come */
    bool virtual_clock;     /* see the top of the file */
    struct oato_error lost; /* thread 0's: why the ranks could not share a value */
    uint64_t due_ns;        /* thread 0's: this device's clock once all threads are awake */
};

static uint64_t clock_now(const struct running *x)
{
    return now_ns() + (uint64_t)x->device->clock_offset_ns;
}

/* Whoever sleeps until this device gets on can only begin when the cores are free: it is woken
 * then, and takes no time from the threads that compute. */
static void cores_give(struct running *x)
{
    step_cores_give(x->step);
    timeline_wake(&x->device->queue.timeline);
}

static uint32_t streamed_before(const struct running *x, const struct program_record *r)
{
    return x->c->needs ? x->c->needs[r - x->c->program->records] : 0;
}

/* The same, for a record that has nothing to do 0. */
static uint32_t streamed_for(const struct running *x, const struct program_record *r)
{
    return record_rows(r, x->step) ? streamed_before(x, r) : 0;
}

static struct kv_use kv_of(const struct running *x, const struct program_record *r)
{
    return x->c->kv ? x->c->kv[r - x->c->program->records] : (struct kv_use){0};
}

/* Which of a record's experts some row has chosen, for who reads the file. */
static void experts_tell(struct running *x, const struct program_record *r)
{
    const struct program *p = x->c->program;
    const float *choice = (const float *)(const void *)((const uint8_t *)p->arena + r->in[1]);
    const int32_t used = r->op.experts_used, rows = record_rows(r, x->step);
    uint8_t chosen[EXPERTS_MAX] = {0};
    for (int32_t i = 0; i < rows * used; i++) {
        const int32_t e = (int32_t)choice[i / used * 2 * used + i % used] - r->op.expert_first;
        if (e >= 0 && e < op_experts_held(&r->op))
            chosen[e] = 1;
    }
    for (int w = 0; w < r->n_weights; w++)
        if (r->weight[w] != UINT32_MAX)
            file_stream_choose(x->device->stream, p->weights[r->weight[w]], chosen);
    file_stream_chosen(x->device->stream, streamed_before(x, r));
}

/* Thread 0: the choice is there, for this record and those behind it of the same experts. Others
 * may find another choice at the same place, which a device has put there meanwhile. */
static void experts_choose(struct running *x, const struct program_record *r)
{
    const struct program_record *end = x->c->program->records + x->n_records;
    const uint32_t last = r->graph_op + (r->op.kind == OP_EXPERT_GATE_UP);
    for (const struct program_record *e = r; e < end && e < r + LOOK_AHEAD; e++)
        if (e->kind == RECORD_RUN && op_has_experts(&e->op) && e->graph_op >= r->graph_op &&
            e->graph_op <= last && e->in[1] == r->in[1] &&
            !file_stream_is_chosen(x->device->stream, streamed_before(x, e)))
            experts_tell(x, e);
}

/* What the record reads from files is there; false: it will never be. Sleeps: whoever reads needs
 * a core. */
static bool files_wait(struct running *x, const struct program_record *r)
{
    const uint32_t needs = streamed_for(x, r), layers = kv_of(x, r).needs;
    return (!needs || file_stream_wait(x->device->stream, needs, &x->failed)) &&
           (!layers || kv_file_wait(x->device->kv_file, layers, &x->failed));
}

/* Thread 0: everything that the record waits for. */
static bool record_wait(struct running *x, const struct program_record *r)
{
    const uint64_t begin_ns = clock_now(x);
    x->due_ns = begin_ns;
    for (int i = 0; i < r->n_waits; i++) {
        const struct record_wait *w = &r->wait[i];
        uint64_t event_ns = 0;
        cores_give(x);
        bool happened = timeline_wait(x->step->timeline[w->device],
                                      x->step->timeline_base[w->device] + w->ordinal, &event_ns);
        step_cores_take(x->step);
        if (!happened)
            return false;
        if (!x->step->timeline[w->device]->simulated)
            event_ns = clock_now(x);
        if (event_ns > x->due_ns)
            x->due_ns = event_ns;
    }
    const uint32_t needs = streamed_for(x, r);
    if (streamed_before(x, r) && op_has_experts(&r->op))
        experts_choose(x, r);
    if (needs || kv_of(x, r).needs) {
        cores_give(x);
        if (needs)
            file_stream_want(x->device->stream, needs);
        const bool arrived = files_wait(x, r);
        step_cores_take(x->step);
        if (!arrived)
            return false;
        x->due_ns = (uint64_t)max_i64((int64_t)x->due_ns, (int64_t)clock_now(x));
    }
    x->device->waited_ns += x->due_ns - begin_ns;
    return true;
}

static void record_signal(struct running *x, const struct program_record *r)
{
    const uint32_t used = streamed_before(x, r);
    if (atomic_load_explicit(&x->failed, memory_order_relaxed))
        return;
    if (used)
        file_stream_used(x->device->stream, used);
    if (kv_of(x, r).used)
        kv_file_used(x->device->kv_file, kv_of(x, r).used);
    if (r->signal)
        timeline_raise(&x->device->queue.timeline, x->step->timeline_base[x->c->self] + r->signal,
                       clock_now(x));
}

/* All threads are awake; thread 0 sets the clock to when they would have been. */
static void wake_all(struct running *x, int thread, struct read_ahead next)
{
    cpu_barrier_wait_device(x->barrier, next);
    if (!x->virtual_clock)
        return;
    cpu_barrier_wait(x->barrier); /* whoever slept through the first one is awake, too */
    if (thread == 0)
        x->device->clock_offset_ns = (int64_t)(x->due_ns - now_ns());
}

static void record_copy(const struct running *x, const struct program_record *r)
{
    const struct program *p = x->c->program;
    uint8_t *host = p->host_arena, *own = p->arena;
    bool up = r->kind == RECORD_UPLOAD;
    const uint8_t *from = (up ? host : own) + r->in[0];
    uint8_t *to = (up ? own : host) + r->out[0];
    if (from != to)
        memcpy(to, from, (size_t)record_rows(r, x->step) * (size_t)r->in_width[0] * sizeof(float));
}

/* What the thread reads once record i and those behind it that read little are done. */
static struct read_ahead read_after(const struct running *x, uint32_t i, int thread)
{
    struct read_ahead next = {NULL, 0};
    for (uint32_t last = i + LOOK_AHEAD; i < x->n_records && i < last && !next.bytes; i++)
        next = cpu_record_reads(&x->c->context, &x->c->program->records[i], x->step, thread,
                                x->barrier->n);
    return next;
}

static oato_status value_exchange(const struct running *x, const struct program_record *r,
                                  int32_t rows, const float *own, float *all,
                                  struct oato_error *err)
{
    struct collective *ranks = x->c->program->ranks;
    const size_t n = (size_t)rows * (size_t)r->op.n;
    switch ((enum record_kind)r->kind) {
    case RECORD_REDUCE: return collective_reduce(ranks, own, all, n, (oato_dtype)r->op.dtype, err);
    case RECORD_GATHER:
        return collective_gather(ranks, own, r->n_in ? r->in_width[0] : 0, all, r->op.n, rows,
                                 r->to_first, err);
    case RECORD_SEND: return n ? collective_send(ranks, r->peer, own, n, err) : OATO_OK;
    default: return n ? collective_receive(ranks, r->peer, all, n, err) : OATO_OK;
    }
}

/* The ranks exchange a value; thread 0 does it while the others wait. All of them fetch what they
 * will read next. */
static void record_share(struct running *x, const struct program_record *r)
{
    const struct program *p = x->c->program;
    uint8_t *arena = p->arena;
    const int32_t rows = record_rows(r, x->step);
    const float *own = r->n_in ? (const float *)(const void *)(arena + r->in[0]) : NULL;
    float *all = r->n_out ? (float *)(void *)(arena + r->out[0]) : NULL;
    const struct read_ahead next = read_after(x, (uint32_t)(r - p->records) + 1, 0);
    collective_fetch(p->ranks, next.from, next.bytes);
    if (value_exchange(x, r, rows, own, all, &x->lost))
        atomic_store(&x->failed, true);
}

/* Whether thread 0 does it all: then nobody else is woken, which would take longer than the step
 * where an accelerator computes the rest. */
static bool is_solo(const struct running *x)
{
    for (uint32_t i = 0; i < x->n_records; i++)
        if (!cpu_record_is_solo(&x->c->program->records[i], x->step))
            return false;
    return true;
}

/* Nobody begins the next record before thread 0 has shown this one. */
static void record_show(struct running *x, const struct program_record *r, int thread, bool solo)
{
    if (!solo)
        cpu_barrier_wait(x->barrier);
    if (thread == 0 && r->kind == RECORD_RUN &&
        !atomic_load_explicit(&x->failed, memory_order_relaxed))
        x->step->observe(x->step->observe_user, r, x->c->program->arena, record_rows(r, x->step));
}

/* A failed wait ends nothing early: all threads go on to meet at the barriers, and skip the work.
 */
static void run_step(void *arg, int thread)
{
    struct running *x = arg;
    struct cpu_barrier *barrier = x->barrier;
    const struct program_record *records = x->c->program->records;
    bool before_solo = true;
    struct hwloc_bitmap_s *unbound =
        x->virtual_clock && barrier->n > 1 ? cpu_pool_bind(x->device->pool, thread) : NULL;
    if (x->c->waits_for)
        wake_all(x, thread, read_after(x, 0, thread));
    for (uint32_t i = 0; i < x->n_records; i++) {
        const struct program_record *r = &records[i];
        bool solo = cpu_record_is_solo(r, x->step);
        if (!before_solo) {
            cpu_barrier_wait_fetching(barrier, read_after(x, i, thread));
            if (thread == 0)
                record_signal(x, r - 1);
        }
        const bool waits = r->n_waits || streamed_before(x, r) || kv_of(x, r).needs;
        /* after a failure of its own nobody else gets on, so nothing is worth waiting for */
        if (thread == 0 && waits && !atomic_load(&x->failed) && !record_wait(x, r))
            atomic_store(&x->failed, true);
        if (thread)
            files_wait(x, r);
        if (waits)
            wake_all(x, thread, read_after(x, i, thread));
        else if (!solo && before_solo) /* what thread 0 computed is there */
            cpu_barrier_wait_fetching(barrier, read_after(x, i, thread));
        if ((thread == 0 || !solo) && !atomic_load_explicit(&x->failed, memory_order_relaxed)) {
            if (r->kind == RECORD_RUN)
                cpu_run_record(&x->c->context, r, x->step, thread, barrier);
            else if (r->kind >= RECORD_REDUCE)
                record_share(x, r);
            else if (r->kind != RECORD_STREAM) /* the stream's thread does these, ahead of time */
                record_copy(x, r);
        }
        if (x->step->observe)
            record_show(x, r, thread, solo);
        if (solo && thread == 0)
            record_signal(x, r);
        before_solo = solo;
    }
    if (!before_solo) {
        cpu_barrier_wait(barrier);
        if (thread == 0)
            record_signal(x, &records[x->n_records - 1]);
    }
    cpu_pool_unbind(x->device->pool, unbound);
}

/* The cores are this device's; waiting for them took no time of its clock. */
static void clock_begin(const struct running *x)
{
    int64_t *offset_ns = &x->device->clock_offset_ns;
    const uint64_t asked_ns = now_ns();
    step_cores_take(x->step);
    *offset_ns -= (int64_t)(now_ns() - asked_ns);
    *offset_ns = max_i64(*offset_ns, (int64_t)x->step->clock_ns - (int64_t)now_ns());
}

/* How the threads got on with each other: see crowd.c. */
static void step_note(struct running *x, uint64_t begin_ns)
{
    const uint64_t end_ns = now_ns(), late_ns = atomic_exchange_explicit(&x->barrier->late_ns, 0,
                                                                         memory_order_relaxed);
    crowd_note(&x->device->crowd, end_ns, end_ns - begin_ns, late_ns, crowd_switches());
}

static oato_status compute(struct cpu_device *d, struct compiled *c, const struct step *step,
                           struct oato_error *err)
{
    struct running x = {.device = d,
                        .c = c,
                        .step = step,
                        .barrier = &c->barrier,
                        .n_records = c->program->n_records,
                        .virtual_clock = step->cores};
    bool injected = d->fail_record > 0 && d->fail_record <= x.n_records;
    if (injected)
        x.n_records = (uint32_t)d->fail_record - 1;
    if (d->fail_record > 0)
        d->fail_record = injected ? 0 : d->fail_record - x.n_records;
    c->rope.step_serial = ++d->step_serial;
    file_stream_begin(d->stream);
    kv_file_begin(d->kv_file, step);
    if (x.virtual_clock)
        clock_begin(&x);
    x.due_ns = clock_now(&x);
    const uint64_t begin_ns = now_ns();
    const bool solo = is_solo(&x);
    c->context.workspace = d->workspace;
    /* the counter of another program's last record means nothing to this one's barrier */
    memset(d->workspace, 0, WORKSPACE_HEADER_BYTES);
    c->barrier.n = solo ? 1 : x.virtual_clock ? cpu_pool_threads(d->pool) : d->crowd.threads;
    cpu_pool_run_some(d->pool, c->barrier.n, run_step, &x);
    if (!solo && !x.virtual_clock)
        step_note(&x, begin_ns);
    cores_give(&x);
    if (injected) {
        timeline_fail(&d->queue.timeline, TIMELINE_DIED);
        return oato_fail(err, OATO_EDEVICE, "%s: record %u of the step failed (injected)", d->id,
                         (unsigned)x.n_records);
    }
    if (x.lost.status) {
        timeline_fail(&d->queue.timeline, TIMELINE_DIED);
        *err = x.lost;
        return err->status;
    }
    if (atomic_load(&x.failed)) {
        const bool file = file_stream_failed(d->stream, err) || kv_file_failed(d->kv_file, err);
        timeline_fail(&d->queue.timeline, file ? TIMELINE_DIED : TIMELINE_STRANDED);
        if (file)
            return err->status;
        return oato_fail(err, OATO_EDEVICE,
                         "%s: the step was abandoned because a device it waits for failed", d->id);
    }
    return OATO_OK;
}

void cpu_run_job(struct job_queue *q, const struct job *job)
{
    struct cpu_device *d = (struct cpu_device *)((char *)q - offsetof(struct cpu_device, queue));
    struct oato_error err;
    if (compute(d, job->compiled, job->step, &err))
        job_queue_fail(q, TIMELINE_DIED, &err); /* the reason that the timeline has already stays */
}

oato_status cpu_submit(struct oato_device *base, struct compiled *c, const struct step *step,
                       struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    if (atomic_load(&d->queue.timeline.failed))
        return oato_fail(err, OATO_EDEVICE, "%s: the device failed in an earlier step", d->id);
    return d->aside ? job_queue_step(&d->queue, c, c->program, c->self, step, err)
                    : compute(d, c, step, err);
}

oato_status cpu_finish(struct oato_device *base, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    if (d->aside)
        return job_queue_drain(&d->queue, err);
    if (atomic_load(&d->queue.timeline.failed))
        return oato_fail(err, OATO_EDEVICE, "%s: the device failed in an earlier step", d->id);
    return OATO_OK;
}

void cpu_release(struct oato_device *base, struct compiled *c)
{
    struct cpu_device *d = cpu_of(base);
    if (!c)
        return;
    file_stream_stop(d->stream);
    free(c->needs);
    free(c->kv);
    cpu_pages_return(d, c->rope.cos_sin, c->rope.floats * sizeof(float));
    free(c);
}

/* Workspace for the largest step and room for the angles of its tokens. */
static oato_status compiled_size(const struct cpu_device *d, const struct program *p,
                                 uint64_t *workspace, uint64_t *rope_floats, struct oato_error *err)
{
    *workspace = p->workspace_bytes;
    *rope_floats = 0;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (r->kind == RECORD_STREAM && !d->stream)
            return oato_fail(
                err, OATO_EDEVICE,
                "%s: record %u: weights cannot be streamed to the host unless they were staged",
                d->id, (unsigned)i);
        if (record_is_peer(r->kind) || r->kind == RECORD_SWAP)
            return oato_fail(err, OATO_EDEVICE,
                             "%s: record %u: the host cannot copy from other devices", d->id,
                             (unsigned)i);
        if (r->kind != RECORD_RUN)
            continue;
        if (!cpu_supports(&r->op))
            return oato_fail(err, OATO_EDEVICE, "%s: record %u: operator '%s' is not supported",
                             d->id, (unsigned)i, op_kind_name(r->op.kind));
        struct op_size size = {.rows = program_rows(p, r->rows), .seqs = p->max_seqs};
        uint64_t bytes = cpu_workspace_bytes(d->kernels, &r->op, &size, cpu_pool_threads(d->pool));
        *workspace = bytes > *workspace ? bytes : *workspace;
        if (r->op.kind == OP_ROPE) {
            uint64_t floats = (uint64_t)size.rows * (uint64_t)r->op.rope_dims;
            *rope_floats = floats > *rope_floats ? floats : *rope_floats;
        }
    }
    return OATO_OK;
}

static oato_status grow_workspace(struct cpu_device *d, uint64_t bytes, struct oato_error *err)
{
    void *larger;
    bytes = bytes > WORKSPACE_HEADER_BYTES ? bytes : WORKSPACE_HEADER_BYTES;
    if (bytes <= d->workspace_bytes)
        return OATO_OK;
    if (cpu_finish(&d->base, err) || cpu_pages_take(d, bytes, "the workspace", &larger, err))
        return err->status;
    cpu_pages_return(d, d->workspace, d->workspace_bytes);
    d->workspace = larger;
    d->workspace_bytes = bytes;
    return OATO_OK;
}

oato_status cpu_compile(struct oato_device *base, const struct program *p, int self,
                        struct compiled **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    uint64_t workspace, rope_floats;
    d->stream = weights_file(base);
    if (program_check(p, self, UINT64_MAX, err))
        return oato_fail_at(err, "%s", d->id);
    oato_status status = compiled_size(d, p, &workspace, &rope_floats, err);
    if (status)
        return status;
    struct compiled *c = aligned_alloc(64, size_align(sizeof *c, 64));
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    memset(c, 0, sizeof *c);
    c->program = p;
    c->self = self;
    for (uint32_t i = 0; i < p->n_records; i++)
        for (int w = 0; w < p->records[i].n_waits; w++)
            c->waits_for |= 1u << p->records[i].wait[w].device;
    cpu_barrier_init(&c->barrier, cpu_pool_threads(d->pool));
    c->context = (struct cpu_context){.kernels = d->kernels,
                                      .arena = p->arena,
                                      .weights = p->weights,
                                      .kv = p->kv,
                                      .workspace_bytes = workspace,
                                      .rope = &c->rope};
    c->rope.floats = rope_floats;
    status = grow_workspace(d, workspace, err);
    if (!status && rope_floats) {
        void *memory = NULL;
        status =
            cpu_pages_take(d, rope_floats * sizeof(float), "the table of angles", &memory, err);
        c->rope.cos_sin = memory;
    }
    if (!status)
        status = file_stream_compile(d->stream, p, RECORD_RUN, &c->needs, err);
    if (!status)
        status = kv_file_compile(d->kv_file, p, &c->kv, err);
    if (status) {
        cpu_release(base, c);
        return status;
    }
    *out = c;
    return OATO_OK;
}
