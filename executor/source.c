/*
 * source.c - what weights are prepared from: rows and columns of the model's file. In a plan with a
 * neurons sidecar those of a part are not neighbours. Rows and the columns of block types, which
 * devices take apart, are named by a list; columns of types without blocks are gathered here.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* The row of the tensor that each row of the slot is: several rows a member. */
static oato_status rows_list(const struct weight_slot *s, struct weight_source *out,
                             void **gathered, struct oato_error *err)
{
    const int64_t n = s->end - s->begin, members = slot_members(s);
    out->row_begin = 0;
    out->row_end = out->n = n;
    out->list = s->members;
    if (s->each == 1)
        return OATO_OK;
    int32_t *list = malloc((size_t)n * sizeof *list), *to = list;
    if (!list)
        return oato_fail_memory(err, (size_t)n * sizeof *list, "the rows of experts");
    for (int64_t i = 0; i < members; i++)
        for (int64_t r = 0; r < s->each; r++)
            *to++ = (int32_t)(s->members[i] * s->each + r);
    out->list = *gathered = list;
    return OATO_OK;
}

static oato_status columns_gather(const struct weight_slot *s, struct weight_source *out,
                                  void **gathered, struct oato_error *err)
{
    const struct gguf_tensor *t = s->tensor;
    const struct dtype_info *type = dtype_info((int)t->dtype);
    const size_t element = type->block_bytes;
    const int64_t columns = slot_members(s), rows = s->end - s->begin;
    if (type->block_elems != 1)
        return oato_fail(err, OATO_EFILE,
                         "columns of %s cannot be gathered; plan again without --neurons",
                         dtype_name(t->dtype));
    uint8_t *to = malloc((size_t)rows * (size_t)columns * element);
    if (!to)
        return oato_fail_memory(err, (size_t)rows * (size_t)columns * element, t->name);
    *gathered = to;
    const uint8_t *from = t->data + (size_t)(s->begin * t->ne[0]) * element;
    for (int64_t r = 0; r < rows; r++, from += (size_t)t->ne[0] * element)
        for (int64_t i = 0; i < columns; i++, to += element)
            memcpy(to, from + (size_t)s->members[i] * element, element);
    out->data = *gathered;
    out->row_stride = 0;
    out->row_begin = 0;
    out->row_end = out->n = rows;
    out->file = NULL;
    return OATO_OK;
}

uint64_t slot_prefetch(const struct weight_slot *s)
{
    const struct gguf_tensor *t = s->tensor;
    size_t row;
    if (!t->file || !dtype_row_bytes(t->dtype, t->ne[0], &row))
        return 0;
    const size_t offset = (size_t)((const uint8_t *)t->data - t->file->data);
    const bool all = s->members; /* they may lie anywhere */
    const size_t begin = all ? 0 : (size_t)s->begin * row;
    const size_t part = all ? t->bytes : (size_t)(s->end - s->begin) * row;
    file_prefetch(t->file, offset + begin, part);
    return part;
}

oato_status slot_source(const struct weight_slot *s, const void *kept, struct weight_source *out,
                        void **gathered, struct oato_error *err)
{
    const struct gguf_tensor *t = s->tensor;
    const int64_t k = s->col_end - s->col_begin;
    const bool columns = s->members && !s->each;
    size_t left = 0, row = 0;
    dtype_row_bytes(t->dtype, columns ? 0 : s->col_begin, &left);
    dtype_row_bytes(t->dtype, t->ne[0], &row);
    *gathered = NULL;
    *out = (struct weight_source){
        .data = t->data + left,
        .dtype = t->dtype,
        .k = k,
        .n = t->ne[1] * t->ne[2], /* experts are one matrix */
        .row_begin = s->begin,
        .row_end = s->end,
        .row_stride = k < t->ne[0] ? row : 0,
        .use = s->use,
        .file = t->file,
        .prepared = kept,
    };
    if (s->use == WEIGHT_COLUMNS)
        out->list = s->members; /* the size depends on it, too */
    if (!s->members || s->use == WEIGHT_COLUMNS || kept)
        return OATO_OK;
    return columns ? columns_gather(s, out, gathered, err) : rows_list(s, out, gathered, err);
}

uint32_t slot_slices(const struct engine_device *d, const struct weight_slot *s)
{
    const int64_t rows = s->tensor->ne[1], held = (s->end - s->begin) / rows;
    if (s->tensor->ne[2] < 2 || s->members || s->use != WEIGHT_MATRIX)
        return 0;
    const uint64_t each =
        weight_bytes_of(d->device, s->tensor->dtype, rows, s->col_end - s->col_begin, s->use);
    return each % READ_ALIGN || each * (uint64_t)held != s->bytes ? 0 : (uint32_t)held;
}
