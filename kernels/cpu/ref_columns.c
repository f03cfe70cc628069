/*
 * ref_columns.c - the sparse MUL_MAT in plain C: its definition. Columns are converted to float32,
 * 64 rows at a time, and added one after the other to the sums of all tokens.
 */
#include "kernels/cpu/kernels_internal.h"

#include <string.h>

enum { ROWS = 64 };

static float half_of(const uint8_t *p, int64_t i)
{
    uint16_t x;
    memcpy(&x, p + 2 * i, sizeof x);
    return f16_to_f32(x);
}

static void scales_read(const struct columns_form *f, const uint8_t *p, int64_t row, float *out)
{
    for (int i = 0; i < ROWS; i++)
        out[i] = f->half ? half_of(p, row + i) : const_floats(p)[row + i];
}

/* A column's rows from `row` on; p: the whole column. */
static void column_read(oato_dtype dtype, const struct columns_form *f, const uint8_t *p,
                        int64_t row, const float *scale, const float *min, float *out)
{
    if (!f->bits) {
        quants_row(dtype, p + row * dtype_info((int)dtype)->block_bytes, ROWS, out);
        return;
    }
    p += row * f->bits / 8;
    for (int i = 0; i < ROWS; i++) {
        const int at = columns_place(i);
        const int q = f->bits == 8 ? p[at] : p[at % 32] >> at / 32 * 4 & 15;
        out[i] = scale[i] * (float)(q - f->offset) + (f->has_min ? min[i] : 0);
    }
}

static bool any_active(const struct columns_job *j, int64_t column)
{
    for (int64_t t = 0; t < j->T; t++)
        if (is_active(j->x[t * j->w->k + column], j->threshold))
            return true;
    return false;
}

static void column_add(const struct columns_job *j, int64_t column, const float *v, int64_t row,
                       int64_t rows)
{
    for (int64_t t = 0; t < j->T; t++) {
        const float x = j->x[t * j->w->k + column];
        float *y = j->y + t * j->y_stride + row;
        for (int64_t i = 0; is_active(x, j->threshold) && i < rows; i++)
            y[i] += x * v[i];
    }
}

static void run(const struct columns_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    const struct columns c = columns_of(j->w);
    const int64_t blocks = c.form->bits ? c.blocks : 1;
    (void)scratch;
    for (int64_t r = begin; r < end; r += ROWS) {
        const int64_t rows = min_i64(ROWS, end - r);
        for (int64_t t = 0; t < j->T; t++)
            memset(j->y + t * j->y_stride + r, 0, (size_t)rows * sizeof(float));
        for (int64_t b = 0; b < blocks; b++) {
            const uint8_t *p = columns_block(&c, b);
            float scale[ROWS], min[ROWS] = {0}, v[ROWS];
            if (c.form->bits)
                scales_read(c.form, p, r, scale);
            if (c.form->has_min)
                scales_read(c.form, p + c.scales / 2, r, min);
            p += c.scales;
            const int64_t stop = c.form->bits ? c.start[b + 1] : j->w->k;
            for (int64_t i = c.form->bits ? c.start[b] : 0; i < stop; i++, p += c.column) {
                if (!any_active(j, i))
                    continue;
                column_read(j->w->dtype, c.form, p, r, scale, min, v);
                column_add(j, i, v, r, rows);
            }
        }
    }
}

static uint64_t scratch_bytes(oato_dtype dtype, int64_t k, int64_t T)
{
    (void)dtype;
    (void)k;
    (void)T;
    return 0;
}

static const char *numerics(oato_dtype dtype)
{
    (void)dtype;
    return "f32";
}

const struct columns_kernels ref_columns = {
    .numerics = numerics, .scratch_bytes = scratch_bytes, .run = run};
