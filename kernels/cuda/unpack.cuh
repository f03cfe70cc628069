/*
 * unpack.cuh - reads the planes of cuda_layout.h, a block of 32 elements at a time: a stored_block
 * is what lies there, block_weights has 32 small integers and what turns them into weights,
 *
 *     weight = d * code + m, d and m of the element's block of 32 (SCALES 1) or 16 (SCALES 2),
 *
 * which has the bits of quants_row when the product and the sum are each rounded to float32.
 *
 * Where GGUF's integers are signed a code may be 4, 8, 16 or 32 times GGUF's, and d that much
 * smaller, which changes no bit of a product: so it becomes a signed byte by a shift and a mask
 * instead of a subtraction. Sums of 32 products of a code and a signed byte stay below 2^20.
 *
 * Consecutive lanes should read consecutive blocks: then every load of a warp is one run of memory.
 * Weights are read through the read-only path: no kernel may write what it reads as weights.
 */
#ifndef OATO_UNPACK_CUH
#define OATO_UNPACK_CUH

#include "base/dtypes.h"
#include "kernels/cuda/codebooks.cuh"

/* oato_dtype (base/base.h), as far as matrices have it. */
#define CUDA_NUMBER(type, number, ...) CUDA_##type = number,
enum cuda_dtype { WEIGHT_TYPES(CUDA_NUMBER) };
#undef CUDA_NUMBER

/* What stored_block and block_weights are made of: block_of<how codes are stored, how scales are>.
 * Of either
 *     load(w, block): what lies in memory, `stored`, where block = row * (k / 32) + i
 *     unpack(stored, q): elements 4i .. 4i + 3 are the bytes of q[i], signed, the first lowest
 *     unpack(stored, d, m): element e has d[e * SCALES / 32] and m[e * SCALES / 32]
 *     BYTES, MORE_BYTES: what lies in its two planes of a block; of 8 blocks in plane 3
 * SCALES, HAS_MIN (false: m is 0): of the scales. */
template <int DTYPE> struct weight_block;

template <class OF_CODES, class OF_SCALES> struct block_of {
    typedef OF_CODES codes;
    typedef OF_SCALES scales;
    static constexpr int SCALES = scales::SCALES;
    static constexpr bool HAS_MIN = scales::HAS_MIN;
};

/* ---------------------------------------------------------------------------- codes ------- */

__device__ inline uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

struct codes_4 : in_planes<0, uint4> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 4; i++) {
            q[i] = (int)(word_of(s, i) & 0x0f0f0f0f);
            q[i + 4] = (int)(word_of(s, i) >> 4 & 0x0f0f0f0f);
        }
    }
};

/* 16 times the code. */
struct codes_4_signed : in_planes<0, uint4> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 4; i++) {
            q[i] = (int)(word_of(s, i) << 4 & 0xf0f0f0f0);
            q[i + 4] = (int)(word_of(s, i) & 0xf0f0f0f0);
        }
    }
};

/* Low four bits from plane 0, the fifth from plane 1, moved so that the lowest is bit LOWEST. */
template <int LOWEST> struct codes_5_at : in_planes<0, uint4, uint32_t> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)((moved(word_of(s.own, i % 4), LOWEST - i / 4 * 4) & 0x0f0f0f0f << LOWEST) |
                         (moved(s.more, LOWEST + 4 - i) & 0x10101010u << LOWEST));
    }
};
using codes_5 = codes_5_at<0>;
using codes_5_signed = codes_5_at<3>; /* 8 times the code */

/* 4 times the code. */
struct codes_6_signed : in_planes<0, uint4, uint2> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)((moved(word_of(s.own, i % 4), 2 - i / 4 * 4) & 0x3c3c3c3c) |
                         (moved(i < 4 ? s.more.x : s.more.y, 6 - i % 4 * 2) & 0xc0c0c0c0));
    }
};

struct codes_8 {
    static constexpr int BYTES = 32, MORE_BYTES = 0;
    struct stored {
        uint4 half[2];
    };
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {{plane_load<uint4>(w, 0, block, 2, 0), plane_load<uint4>(w, 0, block, 2, 1)}};
    }
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)word_of(s.half[i / 4], i % 4);
    }
};

struct codes_2 : in_planes<0, uint2> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)((i < 4 ? s.x : s.y) >> i % 4 * 2 & 0x03030303);
    }
};

/* Digits 0, 1, 2 (a file may have a 3) stand for -1, 0, 1. */
struct codes_ternary : codes_2 {
    static __device__ void unpack(const stored &s, int q[8])
    {
        codes_2::unpack(s, q);
        for (int i = 0; i < 8; i++)
            q[i] = (int)((((uint32_t)q[i] | 0x80808080) - 0x01010101) ^ 0x80808080);
    }
};

/* 32 times the code. */
struct codes_3_signed : in_planes<0, uint2, uint32_t> {
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 8; i++)
            q[i] = (int)((moved(i < 4 ? s.own.x : s.own.y, 5 - i % 4 * 2) & 0x60606060) |
                         (s.more << (7 - i) & 0x80808080));
    }
};

/* Each code is the number of one of 16 bytes: those of V0 .. V3, the lowest first. */
template <uint32_t V0, uint32_t V1, uint32_t V2, uint32_t V3>
struct codes_of_values : in_planes<0, uint4> {
    static __device__ int four(uint32_t low_three_bits, uint32_t which_half)
    {
        return (int)bytes_selected(bytes_selected(V0, V1, low_three_bits),
                                   bytes_selected(V2, V3, low_three_bits), which_half);
    }
    static __device__ void unpack(const stored &s, int q[8])
    {
        for (int i = 0; i < 4; i++) {
            const uint32_t low = word_of(s, i) & 0x77777777;
            const uint32_t half = (word_of(s, i) >> 1 & 0x44444444) | 0x32103210;
            q[i] = four(low, half);
            q[i + 4] = four(low >> 16, half >> 16);
        }
    }
};
using codes_iq4 = codes_of_values<0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535>;
using codes_mxfp4 = codes_of_values<0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc>;

/* ---------------------------------------------------------------------------- scales ------ */

template <int NUMBER, bool MIN, class T, class SUPER = void>
struct block_scales : in_planes<2, T, SUPER, 8> {
    static constexpr int SCALES = NUMBER;
    static constexpr bool HAS_MIN = MIN;
};

/* The codes are TIMES those that d belongs to. */
template <int TIMES> struct scale_half : block_scales<1, false, uint16_t> {
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        d[0] = half_to_float(s) * (1.0f / TIMES);
        m[0] = 0;
    }
};

struct scale_and_min : block_scales<1, true, uint32_t> {
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        d[0] = half_to_float((uint16_t)s);
        m[0] = half_to_float((uint16_t)(s >> 16));
    }
};

/* 2^(byte - 128), the two lowest of which are no normal numbers. */
struct scale_e8m0 : block_scales<1, false, uint8_t> {
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        const uint32_t e = s;
        const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
        d[0] = __uint_as_float(bits);
        m[0] = 0;
    }
};

/* Sixteen elements each. */
template <int TIMES> struct scale_pair : block_scales<2, false, uint16_t, uint16_t> {
    static __device__ void unpack(const stored &s, float d[2], float m[2])
    {
        const float of_super = half_to_float(s.more) * (1.0f / TIMES);
        d[0] = of_super * (float)(int8_t)s.own;
        d[1] = of_super * (float)(int8_t)(s.own >> 8);
        m[0] = m[1] = 0;
    }
};

struct scale_q2_k : block_scales<2, true, uint16_t, uint32_t> {
    static __device__ void unpack(const stored &s, float d[2], float m[2])
    {
        const uint32_t both = s.own;
        const float scale = half_to_float((uint16_t)s.more);
        const float minus = -half_to_float((uint16_t)(s.more >> 16));
        d[0] = scale * (float)(both & 15);
        m[0] = minus * (float)(both >> 4 & 15);
        d[1] = scale * (float)(both >> 8 & 15);
        m[1] = minus * (float)(both >> 12);
    }
};

struct scale_k : block_scales<1, true, uint16_t, uint32_t> {
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        const uint32_t both = s.own;
        d[0] = half_to_float((uint16_t)s.more) * (float)(both & 255);
        m[0] = -half_to_float((uint16_t)(s.more >> 16)) * (float)(both >> 8);
    }
};

struct scale_iq4_xs : block_scales<1, false, uint8_t, uint16_t> {
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        d[0] = half_to_float(s.more) * (float)(int8_t)s.own;
        m[0] = 0;
    }
};

/* Of 16 elements each, 2^7 times the half that has the byte's exponent and mantissa. */
struct scale_ue4m3 : block_scales<2, false, uint16_t> {
    static __device__ void unpack(const stored &s, float d[2], float m[2])
    {
        for (int i = 0; i < 2; i++) {
            d[i] = half_to_float((uint16_t)((s >> 8 * i & 127) << 7)) * 128.0f;
            m[i] = 0;
        }
    }
};

/* One for 256 elements. */
struct scale_of_super {
    static constexpr int SCALES = 1, BYTES = 0, MORE_BYTES = 2;
    static constexpr bool HAS_MIN = false;
    typedef uint16_t stored;
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return plane_load<uint16_t>(w, 3, block / 8);
    }
    static __device__ void unpack(const stored &s, float d[1], float m[1])
    {
        d[0] = half_to_float(s);
        m[0] = 0;
    }
};

/* ------------------------------------------------------------------ types without blocks -- */

/* The first N numbers of words of a matrix without blocks. */
template <int DTYPE, int N> __device__ inline void float_numbers(const uint32_t *word, float v[N])
{
    for (int i = 0; i < N; i++) {
        if constexpr (DTYPE == CUDA_F32) {
            v[i] = __uint_as_float(word[i]);
        } else {
            const uint16_t h = (uint16_t)(word[i / 2] >> i % 2 * 16);
            v[i] = DTYPE == CUDA_F16 ? half_to_float(h) : bf16_to_float(h);
        }
    }
}

/* Elements [i, i + 4) of the matrix, i a multiple of 4. */
template <int DTYPE>
__device__ inline void float_elements(const cuda_matrix &w, int64_t i, float v[4])
{
    if constexpr (DTYPE == CUDA_F32) {
        const uint4 four = plane_load<uint4>(w, 0, i / 4);
        const uint32_t word[4] = {four.x, four.y, four.z, four.w};
        float_numbers<DTYPE, 4>(word, v);
    } else {
        const uint2 pairs = plane_load<uint2>(w, 0, i / 4);
        const uint32_t word[2] = {pairs.x, pairs.y};
        float_numbers<DTYPE, 4>(word, v);
    }
}

/* ---------------------------------------------------------------------------- types ------- */

// clang-format off
template <> struct weight_block<CUDA_Q4_0> : block_of<codes_4_signed, scale_half<16>> {};
template <> struct weight_block<CUDA_Q4_1> : block_of<codes_4, scale_and_min> {};
template <> struct weight_block<CUDA_Q5_0> : block_of<codes_5_signed, scale_half<8>> {};
template <> struct weight_block<CUDA_Q5_1> : block_of<codes_5, scale_and_min> {};
template <> struct weight_block<CUDA_Q8_0> : block_of<codes_8, scale_half<1>> {};
template <> struct weight_block<CUDA_Q2_K> : block_of<codes_2, scale_q2_k> {};
template <> struct weight_block<CUDA_Q3_K> : block_of<codes_3_signed, scale_pair<32>> {};
template <> struct weight_block<CUDA_Q4_K> : block_of<codes_4, scale_k> {};
template <> struct weight_block<CUDA_Q5_K> : block_of<codes_5, scale_k> {};
template <> struct weight_block<CUDA_Q6_K> : block_of<codes_6_signed, scale_pair<4>> {};
template <> struct weight_block<CUDA_IQ4_NL> : block_of<codes_iq4, scale_half<1>> {};
template <> struct weight_block<CUDA_IQ4_XS> : block_of<codes_iq4, scale_iq4_xs> {};
template <> struct weight_block<CUDA_MXFP4> : block_of<codes_mxfp4, scale_e8m0> {};
template <> struct weight_block<CUDA_IQ1_S> : block_of<codes_iq1_s, scale_iq1_s> {};
template <> struct weight_block<CUDA_IQ1_M> : block_of<codes_iq1_m, scale_iq1_m> {};
template <> struct weight_block<CUDA_IQ2_XXS> : block_of<codes_iq2_xxs, scale_iq2_xxs> {};
template <> struct weight_block<CUDA_IQ2_XS> : block_of<codes_iq2_xs, scale_iq2_xs> {};
template <> struct weight_block<CUDA_IQ2_S> : block_of<codes_iq2_s, scale_iq2_s> {};
template <> struct weight_block<CUDA_IQ3_XXS> : block_of<codes_iq3_xxs, scale_iq3_xxs> {};
template <> struct weight_block<CUDA_IQ3_S> : block_of<codes_iq3_s, scale_iq3_s> {};
template <> struct weight_block<CUDA_TQ1_0> : block_of<codes_ternary, scale_of_super> {};
template <> struct weight_block<CUDA_TQ2_0> : block_of<codes_ternary, scale_of_super> {};
template <> struct weight_block<CUDA_NVFP4> : block_of<codes_mxfp4, scale_ue4m3> {};
// clang-format on

/* Of 256 elements. */
template <int DTYPE> __device__ constexpr int plane_bytes(int plane)
{
    if constexpr (DTYPE == CUDA_F32) {
        return plane ? 0 : 1024;
    } else if constexpr (DTYPE == CUDA_F16 || DTYPE == CUDA_BF16) {
        return plane ? 0 : 512;
    } else {
        typedef weight_block<DTYPE> W;
        return plane == 0   ? 8 * W::codes::BYTES
               : plane == 1 ? 8 * W::codes::MORE_BYTES
               : plane == 2 ? 8 * W::scales::BYTES
                            : W::scales::MORE_BYTES;
    }
}

/* Begins to fetch what a plane has of elements [begin, end) of a row. */
template <int DTYPE>
__device__ inline void row_ahead(const cuda_matrix &w, int plane, int64_t row, int begin, int end)
{
    const uint64_t bytes = plane_bytes<DTYPE>(plane);
    const uint64_t from = (row * w.k + begin) * bytes / 256 / 16 * 16;
    const uint64_t to = (row * w.k + end) * bytes / 256 / 16 * 16;
    if (from < to)
        prefetch_l2(w.plane[plane] + from, (uint32_t)(to - from));
}

/* A block as it lies in memory, row * (k / 32) + i being its number. Who loads it may do something
 * else before it is unpacked, which waits for it. */
template <int DTYPE> struct stored_block {
    typedef weight_block<DTYPE> W;
    typename W::codes::stored codes;
    typename W::scales::stored scales;

    __device__ void load(const cuda_matrix &w, int64_t block)
    {
        codes = W::codes::load(w, block);
        scales = W::scales::load(w, block);
    }
};

/* A block as products take it. */
template <int DTYPE> struct block_weights {
    typedef weight_block<DTYPE> W;
    int q[8];
    float d[W::SCALES], m[W::SCALES];

    __device__ explicit block_weights(const stored_block<DTYPE> &stored)
    {
        W::codes::unpack(stored.codes, q);
        W::scales::unpack(stored.scales, d, m);
    }
    __device__ block_weights(const cuda_matrix &w, int64_t block)
    {
        stored_block<DTYPE> stored;
        stored.load(w, block);
        *this = block_weights(stored);
    }

    /* Of the 32 weights. */
    __device__ float sum() const
    {
        int low = 0, high = 0;
        for (int i = 0; i < 4; i++) {
            low = __dp4a(q[i], 0x01010101, low);
            high = __dp4a(q[i + 4], 0x01010101, high);
        }
        if (W::SCALES == 1)
            return fmaf(d[0], (float)(low + high), W::HAS_MIN ? 32.0f * m[0] : 0.0f);
        return fmaf(d[0], (float)low,
                    fmaf(d[W::SCALES - 1], (float)high,
                         W::HAS_MIN ? 16.0f * m[0] + 16.0f * m[W::SCALES - 1] : 0.0f));
    }
};

/* Of 32 elements of a packed column. Sums count for weights with a minimum alone. */
struct packed_scale {
    float d, middle;
    int low_sum, high_sum;

    __device__ packed_scale(const cuda_pack_scale *scale, const cuda_pack_sums *sums, bool has_min)
        : low_sum(has_min ? sums->low : 0), high_sum(has_min ? sums->high : 0)
    {
        const float2 both = *(const float2 *)scale;
        d = both.x;
        middle = both.y;
    }
};

/* `sum` and the product of a block and 32 elements of a packed column: `weights` is the block's
 * sum, `low` and `high` what its codes times the column's are in either half. */
template <int DTYPE>
__device__ inline float add_block(float sum, const float *d, const float *m, float weights, int low,
                                  int high, const packed_scale &s)
{
    typedef weight_block<DTYPE> W;
    float part;
    if (W::SCALES == 1)
        part = d[0] * (float)(low + high);
    else
        part = fmaf(d[0], (float)low, d[W::SCALES - 1] * (float)high);
    if (W::HAS_MIN && W::SCALES == 1)
        part = fmaf(m[0], (float)(s.low_sum + s.high_sum), part);
    else if (W::HAS_MIN)
        part = fmaf(m[0], (float)s.low_sum, fmaf(m[W::SCALES - 1], (float)s.high_sum, part));
    return fmaf(s.d, part, fmaf(s.middle, weights, sum));
}

#endif
