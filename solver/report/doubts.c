/*
 * doubts.c - what is said of a profile that contradicts itself: oato-profile has measured again
 * what did, and marked what still does. Plans made with it may be right about one half of a
 * contradiction only, so whoever reads one is told which.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <string.h>

bool op_contradicts(const struct problem *p, int32_t op, int32_t d)
{
    const struct oato_op *o = &p->graph.ops[op].op;
    char key[OP_KEY_SIZE], other[OP_KEY_SIZE];
    oato_op_key(o, NULL, key);
    for (int32_t i = 0; i < p->profile->n_rows; i++) {
        const struct profile_row *row = &p->profile->rows[i];
        if (row->contradicts && row->device == p->device[d] && row->op.kind == o->kind &&
            row->op.n == o->n && !strcmp(oato_op_key(&row->op, NULL, other), key))
            return true;
    }
    return false;
}

static int32_t operators(const struct problem *p, int32_t d)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        n += op_contradicts(p, i, d);
    return n;
}

/* The passes of the row by which streamed weights are priced. */
static const struct profile_storage *storage(const struct problem *p)
{
    const struct profile_storage *s = p->stored ? profile_storage_ahead(p->profile) : NULL;
    return s && s->contradicts ? s : NULL;
}

void doubts_text(const struct problem *p, struct text *out)
{
    const size_t before = out->len;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct profile_device *device = &p->profile->devices[p->device[d]];
        const int32_t n = operators(p, d);
        if (n)
            text_printf(out,
                        "the profile contradicts itself: on %s %d of %d operators were faster than "
                        "its rate of reading memory, %.1f GB/s, allows\n",
                        device->id, n, p->graph.n_ops, device->read_bytes_per_s * 1e-9);
        if (device->contradicts)
            text_printf(out,
                        "the profile contradicts itself: the overhead of a record on %s, %.1f us, "
                        "only held while others used the machine\n",
                        device->id, device->record_overhead_ns * 1e-3);
    }
    if (storage(p))
        text_printf(out,
                    "the profile contradicts itself: storage was read at %.2f to %.2f GB/s, from "
                    "one moment to the next; priced with %.2f\n",
                    storage(p)->p10_bytes_per_s * 1e-9, storage(p)->p90_bytes_per_s * 1e-9,
                    storage(p)->bytes_per_s * 1e-9);
    if (out->len != before)
        text_printf(out, "so predictions may be off: run oato-profile again when the machine is "
                         "quiet\n");
}

void doubts_json(const struct problem *p, struct text *out)
{
    json_open(out, "contradictions", '[');
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct profile_device *device = &p->profile->devices[p->device[d]];
        const int32_t n = operators(p, d);
        if (n)
            json_add_object(out, NULL, JSON("device", device->id), JSON("what", "read_bytes_per_s"),
                            JSON("operators", n));
        if (device->contradicts)
            json_add_object(out, NULL, JSON("device", device->id),
                            JSON("what", "record_overhead_ns"));
    }
    if (storage(p))
        json_add_object(out, NULL, JSON("what", "storage"));
    json_close(out, ']');
}
