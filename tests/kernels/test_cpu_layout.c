/*
 * test_cpu_layout.c - prepared weights are byte for byte what lanes_layout.c describes, written
 * down here once more in plain C, an element at a time, for 8 and 16 lanes, every type, any number
 * of rows and any piece of them, without a byte read or written outside.
 */
#include "kernels/core/quants_bits.h"
#include "kernels/cpu/lanes_internal.h"
#include "tests/kernels/test_cpu.h"

static int integer_at(oato_dtype dtype, const uint8_t *p, int i)
{
    const int n = columns_form_of(dtype)->block;
    float scale, min;
    int8_t q[32];
    quants_integers(dtype, p, i / n, q, &scale, &min);
    return q[i % n];
}

/* The integer of element i of a GGUF block, plus the format's offset; or the number of its value.
 */
static int value_of(oato_dtype dtype, const uint8_t *p, int i)
{
    uint32_t high = 0;
    const int half = i / 16, j = i % 16;
    switch (dtype) {
    case DT_Q4_0: return p[2 + j] >> 4 * half & 15;
    case DT_Q4_1: return p[4 + j] >> 4 * half & 15;
    case DT_Q5_0:
        memcpy(&high, p + 2, sizeof high);
        return (p[6 + j] >> 4 * half & 15) | (int)(high >> i & 1) << 4;
    case DT_Q5_1:
        memcpy(&high, p + 4, sizeof high);
        return (p[8 + j] >> 4 * half & 15) | (int)(high >> i & 1) << 4;
    case DT_Q8_0: return p[2 + i];
    case DT_Q4_K: return p[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
    case DT_Q5_K:
        return (p[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15) |
               (p[16 + i % 32] >> i / 32 & 1) << 4;
    case DT_Q6_K: return integer_at(dtype, p, i) + 32;
    case DT_Q2_K: return integer_at(dtype, p, i);
    case DT_Q3_K: return integer_at(dtype, p, i) + 4;
    case DT_IQ4_NL: return p[2 + j] >> 4 * half & 15;
    case DT_IQ4_XS: return p[8 + i / 32 * 16 + j] >> 4 * (half % 2) & 15;
    case DT_MXFP4: return p[1 + j] >> 4 * half & 15;
    case DT_NVFP4: return p[4 + i / 16 * 8 + i % 8] >> i / 8 % 2 * 4 & 15;
    case DT_TQ1_0:
    case DT_TQ2_0: return integer_at(dtype, p, i) + 1;
    default: fail_msg("no integers in %s", dtype_name(dtype)); return 0;
    }
}

/* What stands for the sub-blocks of a block of 256; returns how many bytes. */
static int sub_of(oato_dtype dtype, const uint8_t *p, uint8_t sub[16])
{
    switch (dtype) {
    case DT_Q6_K: memcpy(sub, p + 192, 16); return 16;
    case DT_Q2_K: memcpy(sub, p, 16); return 16;
    case DT_Q3_K:
        for (int i = 0; i < 16; i++)
            sub[i] = (uint8_t)bits_q3_k_scale(p + 96, i);
        return 16;
    case DT_IQ4_XS:
        for (int i = 0; i < 8; i++)
            sub[i] = (uint8_t)bits_iq4_xs_scale(p, i);
        return 8;
    default: memcpy(sub, p + 4, 12); return 12;
    }
}

static void put_bit(uint8_t *out, int at, int bit)
{
    out[at / 8] = (uint8_t)(out[at / 8] | bit << at % 8);
}

/* Row `lane` of a group of a type with a codebook. */
static void define_codes(int lanes, const struct lanes_format *f, const uint8_t *row, int64_t k,
                         uint8_t *out, int lane)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int bytes = dtype_info((int)f->dtype)->block_bytes, groups = 32 / f->group;
    const bool delta = f->dtype == DT_IQ1_S || f->dtype == DT_IQ1_M;
    for (int64_t b = 0; b < k / 256; b++, row += bytes, out += lanes * lanes_block_bytes(f)) {
        struct quants_codes c;
        quants_codes_read(f->dtype, row, &c);
        memcpy(out + 2 * lane, &c.d, 2);
        for (int s = 0; s < 256 / f->sub; s++)
            for (int bit = 0; bit < 4; bit++)
                put_bit(out + (2 + s / 2) * lanes + lane, s % 2 * 4 + bit,
                        c.scale[s * f->sub / 16] >> bit & 1);
        for (int i = 0; i < 8; i++) {
            uint8_t *body = out + lanes * (f->head + i * f->body);
            uint8_t *signs = body + groups * lanes, *high = signs + (delta ? 0 : 4 * lanes);
            for (int n = 0; n < groups; n++) {
                const int index = c.index[i * groups + n];
                uint8_t *low = body + (n / 2 * lanes + lane) * 2 + n % 2;
                *low = (uint8_t)index;
                for (int bit = 0; !delta && bit < f->high; bit++) {
                    const int at = n * f->high + bit;
                    put_bit(high + at / 8 * lanes + lane, at % 8, index >> (8 + bit) & 1);
                }
                int five = 0, three = 0;
                for (int e = 4; delta && e >= 0; e--)
                    five = 3 * five + (quants_iq1_grid[index] >> 2 * e & 3);
                for (int e = 7; delta && e >= 5; e--)
                    three = 3 * three + (quants_iq1_grid[index] >> 2 * e & 3);
                if (delta)
                    *low = (uint8_t)five;
                for (int bit = 0; delta && bit < 3; bit++)
                    put_bit(high + n / 2 * lanes + lane, n % 2 * 4 + bit, three >> bit & 1);
                for (int bit = 0; delta && bit < 2; bit++)
                    put_bit(high + 2 * lanes + lane, n * 2 + bit, three >> (3 + bit) & 1);
                if (delta)
                    put_bit(high + n / 2 * lanes + lane, n % 2 * 4 + 3, c.high[i * 4 + n] & 1);
            }
            for (int j = 0; !delta && j < 4; j++)
                for (int n = 0; n < 8; n++)
                    put_bit(signs + 4 * lane, 4 * n + j,
                            n == 7 && f->dtype == DT_IQ2_XS ? c.index[i * groups + j] >> 8
                                                            : c.high[i * 4 + j] >> order[n] & 1);
        }
    }
}

/* Row `lane` of a group: its heads and integers, block after block. */
static void define_quantised(int lanes, const struct lanes_format *f, const uint8_t *row, int64_t k,
                             uint8_t *out, int lane)
{
    static const int quads[8] = {0, 4, 1, 5, 2, 6, 3, 7}, order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int bytes = dtype_info((int)f->dtype)->block_bytes;
    for (int64_t b = 0; b < k / f->block; b++, row += bytes, out += lanes * lanes_block_bytes(f)) {
        static const int scale_at[DT_COUNT] = {
            [DT_Q6_K] = 208, [DT_Q2_K] = 80, [DT_Q3_K] = 108, [DT_TQ1_0] = 52, [DT_TQ2_0] = 64};
        const int d = scale_at[f->dtype], low = f->body / 4 - f->high;
        uint8_t sub[16];
        if (f->dtype == DT_MXFP4)
            out[lane] = row[0];
        else if (f->dtype == DT_NVFP4)
            for (int s = 0; s < 4; s++)
                out[s * lanes + lane] = row[s] == 0x7f ? 0 : row[s];
        else
            memcpy(out + 2 * lane, row + d, 2);
        if (f->has_min)
            memcpy(out + 2 * (lanes + lane), row + d + 2, 2);
        const int subs = f->block == 256 && f->head > 2 ? sub_of(f->dtype, row, sub) : 0;
        for (int s = 0; s < subs; s++)
            out[(f->has_min ? 4 : 2) * lanes + s * lanes + lane] = sub[s];
        for (int i = 0; i < f->block; i++) {
            uint8_t *body = out + lanes * (f->head + i / 32 * f->body);
            const int v = value_of(f->dtype, row, i), e = i % 32;
            if (f->body == LANES_BYTES) {
                for (int at = 0; at < 8; at++) /* where is this element of its eight? */
                    if (quads[at] == e % 8)
                        body[4 * ((e / 8 * 2 + at / 4) * lanes + lane) + at % 4] = (uint8_t)v;
                continue;
            }
            for (int at = 0; low == 4 && at < 8; at++)
                for (int bit = 0; order[at] == e % 8 && bit < 4; bit++)
                    put_bit(body + 4 * (e / 8 * lanes + lane), at * 4 + bit, v >> bit & 1);
            for (int bit = 0; low == 2 && bit < 2; bit++)
                put_bit(body + 4 * (e / 16 * lanes + lane),
                        e % 2 * 16 + lanes_plane_bit(e / 2, 2) + bit, v >> bit & 1);
            for (int bit = 0; bit < f->high; bit++) {
                const int pair = e / 2, plane = low + pair * f->high / 16;
                put_bit(body + 4 * (plane * lanes + lane),
                        e % 2 * 16 + lanes_plane_bit(pair, f->high) + bit, v >> (low + bit) & 1);
            }
        }
    }
}

static void define(int lanes, const struct weight_source *s, uint8_t *out, uint64_t bytes)
{
    const struct lanes_format *f = lanes_format_of(s->dtype);
    const int size = dtype_info((int)s->dtype)->block_bytes;
    size_t row_bytes = 0;
    assert_true(dtype_row_bytes(s->dtype, s->k, &row_bytes));
    memset(out, 0, bytes);
    uint8_t *zeros = test_calloc(1, row_bytes); /* what a last group is filled up with */
    const int64_t rows = s->row_end - s->row_begin;
    for (int64_t r = 0; r < (rows + lanes - 1) / lanes * lanes; r++) {
        const uint8_t *row = (const uint8_t *)s->data + (size_t)(s->row_begin + r) * row_bytes;
        if (r >= rows)
            row = zeros;
        const int lane = (int)(r % lanes);
        uint8_t *group =
            out + (uint64_t)(r / lanes) * lanes_matrix_bytes(lanes, s->dtype, lanes, s->k);
        if (f && f->grid)
            define_codes(lanes, f, row, s->k, group, lane);
        else if (f)
            define_quantised(lanes, f, row, s->k, group, lane);
        for (int64_t i = 0; !f && i < s->k; i++)
            memcpy(group + (i * lanes + lane) * size, row + i * size, (size_t)size);
    }
    test_free(zeros);
}

static void prepared_weights_are_as_the_layout_says(void **state)
{
    (void)state;
    if (!kernels_named("avx2"))
        skip();
    for (size_t t = 0; t < ARRAY_LEN(matrix_types); t++) {
        const oato_dtype dtype = matrix_types[t];
        const struct lanes_format *f = lanes_format_of(dtype);
        for (int round = 0; round < 12; round++) {
            const int lanes = round % 2 ? 16 : 8;
            const int64_t k = f ? f->block * random_in(1, 4) : random_in(1, 90);
            const int64_t n = random_in(1, 200), begin = random_in(0, n - 1);
            struct guarded g;
            guarded_init(&g);
            size_t row = 0;
            assert_true(dtype_row_bytes(dtype, k, &row));
            uint8_t *data = guarded_alloc(&g, row * (size_t)n);
            for (size_t i = 0; i < row * (size_t)n; i++)
                data[i] = (uint8_t)random_u64();
            struct weight_source s = {
                .data = data, .dtype = dtype, .k = k, .n = n, .row_begin = begin, .row_end = n};
            struct oato_weight w = {.dtype = dtype, .rows = n - begin, .k = k};
            w.bytes = lanes_matrix_bytes(lanes, dtype, w.rows, k);
            w.data = guarded_alloc(&g, w.bytes);
            memset((uint8_t *)w.data, 0x5a, w.bytes);
            uint8_t *expected = test_malloc(w.bytes);
            define(lanes, &s, expected, w.bytes);
            const int64_t middle = w.rows / 2 / MATRIX_ROWS * MATRIX_ROWS;
            lanes_matrix_prepare(lanes, &s, &w, middle, w.rows);
            lanes_matrix_prepare(lanes, &s, &w, 0, middle);
            for (uint64_t i = 0; i < w.bytes; i++)
                if (w.data[i] != expected[i])
                    fail_msg("%s, %d lanes, k %d, rows %d..%d: byte %d is %02x, not %02x",
                             dtype_name(dtype), lanes, (int)k, (int)begin, (int)n, (int)i,
                             w.data[i], expected[i]);
            test_free(expected);
            guarded_free(&g);
        }
    }
}

/* Files of prepared weights name the layout: whoever changes its bytes gives it a new id in the
 * tables of kernels ("lanes8.5", "lanes16.4") and then these hashes. */
static void a_layout_with_other_bytes_has_another_id(void **state)
{
    (void)state;
    enum { K = 512, ROWS = 40 };
    static const struct {
        oato_dtype dtype;
        uint64_t hash[2], rows[2]; /* of 8 and 16 lanes; rows: of WEIGHT_ROWS */
    } known[] = {
        {DT_F32,
         {0x43837bfe82e88fab, 0x81fad55c242568f8},
         {0xa84290770f835a69, 0xa84290770f835a69}},
        {DT_F16,
         {0x2f3c8cac8df3700f, 0x9f0ec02601e67d6f},
         {0x20857b13e6cc4cdc, 0x20857b13e6cc4cdc}},
        {DT_BF16,
         {0x2f3c8cac8df3700f, 0x9f0ec02601e67d6f},
         {0x20857b13e6cc4cdc, 0x20857b13e6cc4cdc}},
        {DT_Q4_0,
         {0xdc76f71b8ec08922, 0xc4ef9db32ea82d75},
         {0x4744f8396bd04bb6, 0x17c6a1e67d3fb0c7}},
        {DT_Q4_1,
         {0x4c8000dd480a4853, 0x2f1e6ce515ae239a},
         {0x1c08a60d14713e54, 0x21000e4f566c4c7f}},
        {DT_Q5_0,
         {0x7ec58a4cccefcdce, 0xecc6cf8d4e7439f9},
         {0x0b8fcb436f827d56, 0x0b8fcb436f827d56}},
        {DT_Q5_1,
         {0xe0d1ee93301f564e, 0x75d7931f513c1d37},
         {0x617006cb4a3f32d9, 0x617006cb4a3f32d9}},
        {DT_Q8_0,
         {0xc8c85e189174f34b, 0xb594b4515e2ba9d0},
         {0x85a15a1964856d4d, 0x85a15a1964856d4d}},
        {DT_Q4_K,
         {0x4c9cd1dd4bf36d8e, 0x62815e0ccaf6377e},
         {0x4ade13cbc597562e, 0x69992c578648b6bc}},
        {DT_Q5_K,
         {0xf7ce1aad57f1b31f, 0xd7595483cbe1950b},
         {0xcf0396311ba7884a, 0xcf0396311ba7884a}},
        {DT_Q6_K,
         {0x84d8a3ae537d8e53, 0x546f8d7eb9e04917},
         {0xcad56ef6accb1a40, 0xcad56ef6accb1a40}},
        {DT_IQ2_XS,
         {0xaba2adc601918599, 0x095568fd5f4b798f},
         {0x192f623e82db062e, 0x192f623e82db062e}},
    };
    const struct cpu_kernels *kernels = kernels_named("avx2");
    if (!kernels) {
        skip();
        return;
    }
    assert_string_equal(kernels->layout->id, "lanes8.5");
    const uint64_t seed = seed_state;
    for (size_t t = 0; t < ARRAY_LEN(known); t++) {
        for (int i = 0; i < 2; i++) {
            uint8_t data[ROWS * K * 4];
            struct weight_source s = {
                .data = data, .dtype = known[t].dtype, .k = K, .n = ROWS, .row_end = ROWS};
            struct oato_weight w = {.dtype = s.dtype, .rows = ROWS, .k = K};
            seed_state = 1;
            for (size_t at = 0; at < sizeof data; at++)
                data[at] = (uint8_t)random_u64();
            w.bytes = lanes_matrix_bytes(8 << i, s.dtype, ROWS, K);
            uint8_t *out = test_malloc(w.bytes);
            w.data = out;
            lanes_matrix_prepare(8 << i, &s, &w, 0, ROWS);
            const uint64_t hash = hash_bytes(out, w.bytes);
            test_free(out);
            s.use = w.use = WEIGHT_ROWS;
            w.bytes = ROWS * lanes_rows_stride(s.dtype, K);
            w.data = out = test_malloc(w.bytes);
            (i ? lanes16_rows_prepare : lanes8_rows_prepare)(&s, &w, 0, ROWS);
            const uint64_t rows = hash_bytes(out, w.bytes);
            if (hash != known[t].hash[i] || rows != known[t].rows[i])
                fail_msg("%s, %d lanes: the bytes hash to 0x%016llx, rows to 0x%016llx",
                         dtype_name(s.dtype), 8 << i, (unsigned long long)hash,
                         (unsigned long long)rows);
            test_free(out);
        }
    }
    seed_state = seed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layout_with_other_bytes_has_another_id),
        cmocka_unit_test(prepared_weights_are_as_the_layout_says),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
