/*
 * sim_values.c - values of a simulated device that has F16 in its arena (values=f16), as
 * accelerators do whose arithmetic is made for it. The kernels are the CPU's, which know float32
 * only: they run between float32 copies of a record's values, and what goes back to the arena is
 * rounded. So a value really takes two bytes, and the error is that of storing it.
 */
#include "kernels/sim/sim_internal.h"

#include "kernels/core/wire.h"
#include "kernels/op_row.h"

#include <string.h>

void sim_values_fill(struct value_types *values)
{
    static const uint8_t wide[] = {OP_MERGE, OP_MERGE_SUM, OP_EXPERT_SUM, OP_CONV,
                                   OP_DELTA, OP_SSM,       OP_ACTIVE,     OP_CONVERT};
    memset(values, DT_F32, OP_KIND_COUNT * sizeof *values);
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct op_kind_row *row = op_kind_row(kind);
        for (int i = 0; i < OP_INPUTS && !memchr(wide, kind, sizeof wide); i++)
            values[kind].in[i] = row->in[i] ? DT_F16 : DT_F32;
        for (int i = 0; i < OP_OUTPUTS && !memchr(wide, kind, sizeof wide); i++)
            values[kind].out[i] = row->out[i] ? DT_F16 : DT_F32;
    }
}

const char *sim_values_class(const char *class)
{
    static const char *const names[][2] = {{"f32", "f32-f16"},     {"u8b32", "u8b32-f16"},
                                           {"s8b32", "s8b32-f16"}, {"s8b16", "s8b16-f16"},
                                           {"bf16", "bf16-f16"},   {"i14b32", "i14b32-f16"}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (!strcmp(names[i][0], class))
            return names[i][1];
    return "other-f16";
}

/* Where the value's copy ends that begins at `at`. */
static uint64_t copy_end(uint64_t at, int64_t width, int32_t rows)
{
    return size_align(at + (uint64_t)width * (uint64_t)rows * sizeof(float), 64);
}

static bool is_half(const struct program_record *r)
{
    bool half = false;
    for (int i = 0; i < r->n_in; i++)
        half = half || r->in_type[i] == DT_F16;
    for (int i = 0; i < r->n_out; i++)
        half = half || r->out_type[i] == DT_F16;
    return half && r->op.kind != OP_CONVERT; /* whose kernel knows both */
}

uint64_t sim_values_bytes(const struct program *p, const struct program_record *r)
{
    uint64_t bytes = 0;
    if (!is_half(r))
        return 0;
    for (int i = 0; i < r->n_in; i++)
        bytes = copy_end(bytes, r->in_width[i],
                         program_rows(p, r->op.kind == OP_SELECT ? ROWS_TOKENS : r->rows));
    for (int i = 0; i < r->n_out; i++)
        bytes = copy_end(bytes, op_out_width(&r->op, i), program_rows(p, r->rows));
    return bytes + 256; /* kernels may read past the last row */
}

oato_status sim_values_grow(struct sim_device *s, uint64_t bytes, struct oato_error *err)
{
    if (bytes <= s->wide_bytes)
        return OATO_OK;
    if (job_queue_drain(&s->far.queue, err))
        return err->status;
    uint8_t *grown = pages_alloc(bytes);
    if (!grown)
        return oato_fail_memory(err, bytes, "values");
    pages_free(s->wide, s->wide_bytes);
    s->wide = grown;
    s->wide_bytes = bytes;
    return OATO_OK;
}

static void widen(uint8_t *to, const uint8_t *from, int type, size_t n)
{
    if (type == DT_F16)
        wire_unpack(DT_F16, floats(to), from, n);
    else
        memcpy(to, from, n * sizeof(float));
}

struct program_record sim_values_widen(const struct program_record *r, const struct step *step,
                                       const uint8_t *arena, uint8_t *wide)
{
    const int32_t rows = record_rows(r, step),
                  in_rows = r->op.kind == OP_SELECT ? step->n_tokens : rows;
    struct program_record copy = *r;
    uint64_t at = 0;
    for (int i = 0; i < r->n_in; i++) {
        copy.in[i] = at;
        copy.in_type[i] = DT_F32;
        widen(wide + at, arena + r->in[i], r->in_type[i], (size_t)in_rows * (size_t)r->in_width[i]);
        at = copy_end(at, r->in_width[i], in_rows);
    }
    for (int i = 0; i < r->n_out; i++) {
        copy.out[i] = at;
        copy.out_type[i] = DT_F32; /* of experts that are elsewhere rows stay as they are */
        widen(wide + at, arena + r->out[i], r->out_type[i],
              (size_t)rows * (size_t)op_out_width(&r->op, i));
        at = copy_end(at, op_out_width(&r->op, i), rows);
    }
    return copy;
}

void sim_values_round(const struct program_record *r, const struct program_record *copy,
                      const struct step *step, uint8_t *arena, const uint8_t *wide)
{
    for (int i = 0; i < r->n_out; i++)
        wire_pack((oato_dtype)r->out_type[i], arena + r->out[i], const_floats(wide + copy->out[i]),
                  (size_t)record_rows(r, step) * (size_t)op_out_width(&r->op, i));
}
