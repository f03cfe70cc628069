/*
 * selftest_types.c - values that a device keeps as F16, in a trial whose arena holds float32: they
 * take the first half of their room.
 */
#include "profiler/selftest_internal.h"

#include <string.h>

static uint64_t numbers(const struct program_record *r, bool output, int i, int32_t rows)
{
    const int32_t width = output ? op_out_width(&r->op, i) : r->in_width[i];
    return (uint64_t)width * (uint64_t)rows;
}

static void halve(uint8_t *at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, at + 4 * i, sizeof x);
        memcpy(at + 2 * i, &(uint16_t){f32_to_f16(x)}, sizeof(uint16_t));
    }
}

static void widen(uint8_t *at, uint64_t n)
{
    for (uint64_t i = n; i-- > 0;) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        memcpy(at + 4 * i, &(float){f16_to_f32(half)}, sizeof(float));
    }
}

void trial_halve(const struct program_record *r, int32_t rows, uint8_t *image)
{
    for (int i = 0; i < r->n_in; i++)
        if (r->in_type[i] == DT_F16)
            halve(image + r->in[i], numbers(r, false, i, rows));
    for (int i = 0; i < r->n_out; i++) /* what is there before is seen where it is not written */
        if (r->out_type[i] == DT_F16)
            halve(image + r->out[i], numbers(r, true, i, rows));
}

void trial_widen(const struct program_record *r, int32_t rows, const uint8_t *image,
                 const uint8_t *sent, uint8_t *got)
{
    for (int i = 0; i < r->n_in; i++) {
        const uint64_t at = r->in[i], bytes = 4 * numbers(r, false, i, rows);
        if (r->in_type[i] == DT_F16 && !memcmp(got + at, sent + at, bytes)) /* as it was */
            memcpy(got + at, image + at, bytes);
    }
    for (int i = 0; i < r->n_out; i++)
        if (r->out_type[i] == DT_F16)
            widen(got + r->out[i], numbers(r, true, i, rows));
}
