/*
 * slices.c - columns of values. A range that is not exactly one part is sliced from the whole, on
 * the device that has it, so that only these columns are copied to where they are read.
 */
#include "lowering/lowering_internal.h"

static struct slice *slice_add(struct lowering *l, struct slice s)
{
    struct slice *p =
        room_for(l, l->slices, l->n_slices, &l->slices_cap, sizeof *p, "slices of values");
    if (!p)
        return NULL;
    l->slices = p;
    l->slices[l->n_slices] = s;
    return &l->slices[l->n_slices++];
}

static struct slice *slice_find(const struct lowering *l, int32_t value, int32_t begin, int32_t end,
                                int32_t device)
{
    for (int32_t i = 0; i < l->n_slices; i++) {
        struct slice *s = &l->slices[i];
        if (s->value == value && s->begin == begin && s->end == end && s->device == device)
            return s;
    }
    return NULL;
}

static bool whole_is_here(const struct lowering *l, int32_t value, int32_t device)
{
    const struct lowered_value *v = &l->values[value];
    return v->n_parts > 1 || v->part[0][device].buffer >= 0;
}

/* Slices on the device that has the whole, so that only these columns are copied. */
static struct home slice_fetch(struct lowering *l, int32_t value, int32_t begin, int32_t end,
                               int32_t device)
{
    const struct slice *known = slice_find(l, value, begin, end, device);
    const int32_t made = l->values[value].part_device[0], host = l->in->facts->host;
    struct home h;
    if (known || failed(l))
        return known ? known->home : nowhere;
    if (whole_is_here(l, value, device)) {
        const struct oato_op op = {.kind = OP_SLICE,
                                   .dtype = DT_F32,
                                   .k = l->graph->values[value].width,
                                   .n = end - begin,
                                   .first = begin};
        const struct home whole = value_read(l, value, device);
        h = run_emit(l, device, op, value, &whole, &op.k, 1);
    } else {
        const bool reached = made == host || device == host || l->in->facts->reaches[device][made];
        h = slice_fetch(l, value, begin, end, reached ? made : host);
        if (!failed(l))
            h = copy_emit(l, value, 0, end - begin, h, device);
    }
    return slice_add(l, (struct slice){value, begin, end, device, h}) ? h : nowhere;
}

struct home columns_read(struct lowering *l, int32_t value, int32_t begin, int32_t end,
                         int32_t device)
{
    const int32_t part = part_find(&l->values[value], PARTS_COLUMNS, begin, end);
    if (part >= 0 && l->values[value].part_device[part] >= 0)
        return part_read(l, value, part, device);
    if (!whole_is_here(l, value, device) && !slice_find(l, value, begin, end, device))
        copy_count(l, end - begin);
    return slice_fetch(l, value, begin, end, device);
}
