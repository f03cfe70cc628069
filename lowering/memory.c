/*
 * memory.c - what lowered programs take on a device. The engine checks it before it allocates, and
 * the solver states it in plans: one sum for both.
 */
#include "lowering/lowering.h"

/* A layer's pages, in memory or in a file. */
static uint64_t pages_bytes(const struct kv_layer_shape *s, oato_dtype kv, int32_t pages)
{
    const struct oato_op store = {
        .kv_heads = s->kv_heads, .head_dim = s->head_dim, .v_dim = s->v_dim, .v_in_k = s->v_in_k};
    return (uint64_t)pages *
           (s->filed ? op_kv_filed_bytes(&store, kv) : op_kv_bytes(&store, kv) * KV_PAGE_POSITIONS);
}

/* Of what stays on the device or, staged, of the rooms for KV of the host. */
static uint64_t kv_bytes(const struct lowered_device *d, const struct memory_limits *m, bool staged)
{
    uint64_t bytes = 0, room = 0; /* of the largest layer whose KV stays in a file */
    for (int32_t j = 0; j < d->n_kv; j++) {
        const struct kv_layer_shape *s = &d->kv_shapes[j];
        if (s->staged != staged)
            continue;
        const uint64_t pages = pages_bytes(s, m->kv, s->window ? m->window_pages : m->pages);
        bytes += (uint64_t)s->state * sizeof(float) * (uint64_t)s->slots + (s->filed ? 0 : pages);
        room = s->filed && pages > room ? pages : room;
    }
    return bytes + KV_ROOMS * room;
}

/* A streamed weight is in a slot of the device that it is streamed to. */
static uint64_t streamed_bytes(const struct lowered_device *d)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->n_slots; i++)
        sum += d->slots[i].streamed && !d->slots[i].stored ? d->slots[i].bytes : 0;
    return sum;
}

static bool spans_alike(const struct lowered_program *p, const struct program_span *a,
                        const struct lowered_program *q, const struct program_span *b)
{
    bool alike =
        a->end - a->begin == b->end - b->begin && a->n_in == b->n_in && a->n_out == b->n_out;
    for (uint32_t i = 0; alike && i < a->end - a->begin; i++)
        alike = oato_op_same(&p->records[a->begin + i].op, &q->records[b->begin + i].op);
    return alike;
}

/* Counts the spans of both phases that no earlier one is like, each with what most functions of
 * those like it take. */
static int32_t functions_of(const struct lowered_device *d, uint64_t *bytes)
{
    int32_t n = 0;
    *bytes = 0;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (uint32_t i = 0; i < d->phase[phase].n_spans; i++) {
            const struct lowered_program *p = &d->phase[phase];
            bool known = false;
            uint64_t most = p->span_bytes[i];
            for (int other = 0; other < PHASE_COUNT && !known; other++) {
                const struct lowered_program *q = &d->phase[other];
                for (uint32_t j = 0; j < q->n_spans && !known; j++) {
                    if ((other == phase && j == i) ||
                        !spans_alike(p, &p->spans[i], q, &q->spans[j]))
                        continue;
                    known = other < phase || (other == phase && j < i);
                    most = q->span_bytes[j] > most ? q->span_bytes[j] : most;
                }
            }
            n += !known;
            *bytes += known ? 0 : most;
        }
    return n;
}

/* Of the host's memory, for the libraries of devices that compute. */
static uint64_t libraries_bytes(const struct lowered *l, const struct memory_limits *m)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < l->n_devices; i++) {
        const struct lowered_program *p = l->device[i].phase;
        bytes += p[PHASE_PREFILL].n_records + p[PHASE_DECODE].n_records ? m->library_bytes[i] : 0;
    }
    return bytes;
}

struct device_memory lowered_memory(const struct lowered *l, int32_t device,
                                    const struct memory_limits *m)
{
    const struct lowered_device *d = &l->device[device];
    uint64_t functions_bytes;
    const int32_t functions = functions_of(d, &functions_bytes);
    struct device_memory out = {.weights = d->weight_bytes,
                                .room = d->staging_bytes + kv_bytes(d, m, true),
                                .kv = kv_bytes(d, m, false),
                                .work = d->arena_bytes + ARENA_SLACK,
                                .workspace = d->angles_bytes + (functions_bytes > d->workspace_bytes
                                                                    ? functions_bytes
                                                                    : d->workspace_bytes),
                                .functions = functions};
    if (d->n_kv)
        out.work += (uint64_t)(d->n_kv + 1) * KV_PADDING;
    if (device == m->host) {
        for (int32_t i = 0; i < l->n_devices; i++) {
            out.room += l->device[i].ring_bytes;
            out.locked += m->keeps[i] ? streamed_bytes(&l->device[i]) : 0;
        }
        out.work += m->kept_bytes + libraries_bytes(l, m);
    }
    return out;
}
