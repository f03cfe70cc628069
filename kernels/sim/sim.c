/*
 * sim.c - a device that exists everywhere: memory that nobody else can read, a budget, a queue that
 * runs behind the caller's back, and declared speeds with a virtual clock. It computes with the
 * kernels of the CPU, so that a hybrid plan gives the CPU's bits and can be tested, and timed on
 * paper, on any machine.
 *
 * Freeing memory waits for the queue; releasing a program or closing the device cancels what is
 * still queued, so that neither hangs when another device has died. Closing frees what is left of
 * its memory.
 */
#include "kernels/sim/sim_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct sim_device *sim_of(const struct oato_device *d)
{
    return (struct sim_device *)d;
}

static int sim_probe(void)
{
    return 1; /* as many as one likes */
}

static oato_status sim_open(int index, const char *spec, const struct device_options *options,
                            struct oato_device **out, struct oato_error *err)
{
    struct sim_device *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "a sim device");
    far_name(&s->far, &sim_device_ops, index);
    if (sim_spec_parse(spec, &s->spec, err) || cpu_kernels_select(options->isa, &s->kernels, err))
        goto fail;
    uint64_t vram = (uint64_t)s->spec.vram_bytes;
    s->far.memory.more = "raise its memory (vram=)";
    s->far.memory.capacity =
        options->budget_bytes && options->budget_bytes < vram ? options->budget_bytes : vram;
    s->timing_only = options->timing_only;
    sim_values_fill(s->values);
    if (sim_queue_open(s, err))
        goto fail;
    *out = &s->far.base;
    return OATO_OK;

fail:
    free(s);
    return err->status;
}

static void sim_info(const struct oato_device *d, struct device_info *out)
{
    const struct sim_device *s = sim_of(d);
    const struct sim_spec *spec = &s->spec;
    *out = (struct device_info){
        .kind = "sim",
        .model = "simulated",
        .memory_bytes = (uint64_t)spec->vram_bytes,
        .free_bytes = s->far.memory.capacity - s->far.memory.used,
        .read_bytes_per_s = spec->read_bytes_per_s,
        .flops_per_s = spec->flops_per_s,
        .link_bytes_per_s = spec->link_bytes_per_s,
        .link_latency_s = spec->latency_s,
        .launch_s = spec->launch_s,
        .spans = spec->spans,
    };
    memcpy(out->rows, spec->rows, sizeof out->rows);
    snprintf(out->id, sizeof out->id, "%s", s->far.id);
    snprintf(out->isa, sizeof out->isa, "%s", cpu_kernels_name(s->kernels));
}

/* ------------------------------------------------------------------------------ pricing --- */

static bool sim_supports(const struct oato_device *d, const struct oato_op *op)
{
    const bool keeps = op_has_kv(op) && sim_of(d)->spec.kv_rows;
    return cpu_supports(op) && (!keeps || op->dtype == DT_F16);
}

static const struct kv_layout *sim_kv_layout(const struct oato_device *d)
{
    return sim_of(d)->spec.kv_rows ? &sim_kv_rows : NULL;
}

static const char *sim_numerics(const struct oato_device *d, const struct oato_op *op,
                                enum numerics_choice choice)
{
    const struct sim_device *s = sim_of(d);
    const char *class = s->spec.class[0] ? s->spec.class : cpu_numerics(s->kernels, op, choice);
    return value_types_halve(device_values(d), op) ? sim_values_class(class) : class;
}

static const struct value_types *sim_values(const struct oato_device *d)
{
    return sim_of(d)->spec.halves ? sim_of(d)->values : NULL;
}

static uint64_t sim_bytes(const struct oato_device *d, const struct weight_source *source)
{
    return cpu_source_bytes(sim_of(d)->kernels, source);
}

static void sim_convert(const struct oato_device *d, const struct weight_source *source,
                        int64_t begin, int64_t end, void *to)
{
    cpu_convert_rows(sim_of(d)->kernels, source, begin, end, to);
}

/* That of the CPU: it takes what the CPU has prepared. */
static const char *sim_layout(const struct oato_device *d)
{
    return cpu_kernels_layout(sim_of(d)->kernels);
}

static uint64_t sim_workspace_bytes(const struct oato_device *d, const struct oato_op *op,
                                    const struct op_size *size)
{
    return cpu_workspace_bytes(sim_of(d)->kernels, op, size, 1);
}

/* ----------------------------------------------------------------------------- weights -- */

static oato_status sim_beside(struct oato_device *d, void *to, const void *from, uint64_t bytes,
                              uint64_t signal, uint64_t begin_ns, struct oato_error *err)
{
    const struct job job = {.to = to,
                            .from = from,
                            .bytes = bytes,
                            .beside = true,
                            .signal = signal,
                            .begin_ns = begin_ns};
    return job_queue_put(&sim_of(d)->far.queue, &job, err);
}

/* ----------------------------------------------------------------------------- programs --- */

/* Room for the cosines and sines of a step: they are computed once for all layers. */
static oato_status grow_rope(struct sim_device *s, uint64_t floats, struct oato_error *err)
{
    struct rope_table *table = &s->rope;
    if (floats <= table->floats)
        return OATO_OK;
    if (job_queue_drain(&s->far.queue, err))
        return err->status;
    float *grown = realloc(table->cos_sin, floats * sizeof *grown);
    if (!grown)
        return oato_fail_memory(err, floats * sizeof *grown, "rotary angles");
    table->cos_sin = grown;
    table->floats = floats;
    return OATO_OK;
}

/* What the largest step needs; the kernels rely on it, so the program's word is not enough. */
static oato_status grow_buffers(struct sim_device *s, const struct program *p,
                                struct oato_error *err)
{
    uint64_t workspace = p->workspace_bytes, floats = 0, wide = 0;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        struct op_size size = {.rows = program_rows(p, r->rows), .seqs = p->max_seqs};
        if (r->kind != RECORD_RUN)
            continue;
        uint64_t bytes = cpu_workspace_bytes(s->kernels, &r->op, &size, 1);
        workspace = bytes > workspace ? bytes : workspace;
        bytes = s->spec.halves ? sim_values_bytes(p, r) : 0;
        wide = bytes > wide ? bytes : wide;
        if (r->op.kind == OP_ROPE) /* a pair takes two */
            floats = (uint64_t)max_i64((int64_t)floats, (int64_t)r->op.rope_dims * size.rows);
    }
    if (grow_rope(s, floats, err) ||
        far_memory_grow(&s->far.memory, &s->workspace, workspace, "workspace", err) ||
        sim_values_grow(s, wide, err))
        return err->status;
    return OATO_OK;
}

static bool sim_reaches(struct oato_device *d, struct oato_device *other)
{
    return other->ops == &sim_device_ops && other != d && sim_of(d)->spec.peer_bytes_per_s > 0;
}

/* Where the arenas of the peers that the program reads or writes really are. */
static oato_status find_peers(struct sim_device *s, struct compiled *c, struct oato_error *err)
{
    const struct program *p = c->program;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (!record_is_peer(r->kind))
            continue;
        const struct program_peer *peer = &p->peers[r->peer];
        if (!sim_reaches(&s->far.base, peer->device) ||
            !far_memory_find(&sim_of(peer->device)->far.memory, peer->arena, 0, peer->arena_bytes,
                             &c->peer[r->peer]))
            return oato_fail(err, OATO_EUSAGE,
                             "%s: record %" PRIu32
                             ": its peer is not reachable or does not have the arena",
                             s->far.id, i);
    }
    return OATO_OK;
}

/* When what is streamed arrives: weights, and history if that is streamed to any layer. */
static oato_status make_rooms(struct compiled *c, struct oato_error *err)
{
    const struct kv_cache *kv = c->program->kv;
    const size_t weights = (size_t)c->program->n_weights + 1;
    bool staged = false;
    for (int32_t i = 0; kv && i < kv->n_layers; i++)
        staged = staged || kv->layers[i].staged;
    c->ready_ns = calloc(weights, sizeof *c->ready_ns);
    if (staged)
        c->kv_ready_ns = calloc((size_t)kv->n_layers, sizeof *c->kv_ready_ns);
    return c->ready_ns && (c->kv_ready_ns || !staged)
               ? OATO_OK
               : oato_fail_memory(err, weights * sizeof *c->ready_ns, "a program");
}

/* What may be in a span and is in none is one by itself. */
static oato_status mark_units(const struct sim_device *s, struct compiled *c,
                              struct oato_error *err)
{
    const struct program *p = c->program;
    if (!s->spec.spans)
        return OATO_OK;
    c->units = calloc((size_t)p->n_records + 1, sizeof *c->units);
    if (!c->units)
        return oato_fail_memory(err, p->n_records * sizeof *c->units, "a program");
    for (uint32_t i = 0; i < p->n_records; i++)
        c->units[i] = p->records[i].kind == RECORD_RUN && op_spans(&p->records[i].op) ? UNIT_BEGINS
                                                                                      : UNIT_NONE;
    for (uint32_t i = 0; i < p->n_spans; i++)
        for (uint32_t r = p->spans[i].begin + 1; r < p->spans[i].end; r++)
            c->units[r] = UNIT_GOES_ON;
    return OATO_OK;
}

static void compiled_free(struct compiled *c)
{
    pages_free(c->shared.data, c->shared.bytes);
    free(c->kv_ready_ns);
    free(c->ready_ns);
    free(c->units);
    free(c->needs);
    free(c);
}

static oato_status sim_compile(struct oato_device *d, const struct program *p, int self,
                               struct compiled **out, struct oato_error *err)
{
    struct sim_device *s = sim_of(d);
    uint8_t *arena = NULL;
    if (far_check(&s->far, p, self, &arena, err) || grow_buffers(s, p, err))
        return err->status;
    struct compiled *c = malloc(sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    *c = (struct compiled){.next = s->programs, .program = p, .arena = arena, .self = self};
    if (p->kv) {
        c->kv = *p->kv;
        if (!far_memory_find(&s->far.memory, p->kv->data, 0, p->kv->bytes, &c->kv.data)) {
            free(c);
            return oato_fail(err, OATO_EUSAGE,
                             "%s: the program's KV cache is not in this device's memory",
                             s->far.id);
        }
    }
    if (find_peers(s, c, err) || make_rooms(c, err) || mark_units(s, c, err) ||
        sim_kv_open(s, c, err) ||
        file_stream_compile(weights_file(d), p, RECORD_STREAM, &c->needs, err)) {
        compiled_free(c);
        return err->status;
    }
    s->programs = c;
    *out = c;
    return OATO_OK;
}

static void sim_release(struct oato_device *d, struct compiled *c)
{
    struct compiled **at = &sim_of(d)->programs;
    if (!c)
        return;
    job_queue_cancel(&sim_of(d)->far.queue);
    file_stream_stop(weights_file(d));
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    compiled_free(c);
}

static void sim_close(struct oato_device *d)
{
    struct sim_device *s = sim_of(d);
    if (!s)
        return;
    while (s->programs)
        sim_release(d, s->programs);
    job_queue_close(&s->far.queue);
    weights_close(d);
    far_memory_close(&s->far.memory);
    free(s->rope.cos_sin);
    pages_free(s->wide, s->wide_bytes);
    free(s);
}

static oato_status sim_submit(struct oato_device *d, struct compiled *c, const struct step *step,
                              struct oato_error *err)
{
    return job_queue_step(&sim_of(d)->far.queue, c, c->program, c->self, step, err);
}

static uint64_t sim_clock_ns(const struct oato_device *d)
{
    return atomic_load(&sim_of(d)->clock_ns);
}

const struct device_ops sim_device_ops = {
    .kind = "sim",
    .simulated = true,
    .probe = sim_probe,
    .open = sim_open,
    .close = sim_close,
    .info = sim_info,
    .supports = sim_supports,
    .numerics = sim_numerics,
    .values = sim_values,
    .workspace_bytes = sim_workspace_bytes,
    .alloc = far_alloc,
    .free = far_free,
    .upload = far_upload,
    .download = far_download,
    .layout = sim_layout,
    .bytes = sim_bytes,
    .convert = sim_convert,
    .place = far_place,
    .unplace = far_free,
    .reach = far_reach,
    .streams = true,
    .beside = sim_beside,
    .kv_create = far_kv_create,
    .kv_free = far_kv_free,
    .kv_layout = sim_kv_layout,
    .compile = sim_compile,
    .release = sim_release,
    .submit = sim_submit,
    .finish = far_finish,
    .reaches = sim_reaches,
    .timeline = far_timeline,
    .clock_ns = sim_clock_ns,
    .stored_read = far_stored_read,
    .inject_error = far_inject_error,
};
