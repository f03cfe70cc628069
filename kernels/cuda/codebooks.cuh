/*
 * codebooks.cuh - codes and scales, as unpack.cuh has them, of types with a codebook: IQ1, IQ2 and
 * IQ3. Their planes keep GGUF's bits: indices of words, a sign (or IQ1's shift) of the elements,
 * and scales, of which an element's is d * (2 s + 1) * a power of two.
 *
 * A word has the codes of 8 elements, two bits each, or of 4 (IQ3), a nibble each; with the bit of
 * its sign a code numbers one of 8 bytes, which a permutation of bytes looks up for four elements
 * at once. Of IQ3 it looks up the magnitude. Words come from the cache: 512 bytes to 4 KiB a type.
 */
#ifndef OATO_CODEBOOKS_CUH
#define OATO_CODEBOOKS_CUH

#include "kernels/cuda/planes.cuh"

#define CODEBOOK(name, words) __device__ const uint16_t codebook_##name[words]
#include "kernels/core/quants_grids.h"
#undef CODEBOOK

/* Seven signs are stored: their number, with the eighth, is even. */
__device__ inline uint32_t eight_signs(uint32_t seven)
{
    seven &= 127;
    return seven | (uint32_t)(__popc(seven) & 1) << 7;
}

__device__ inline uint32_t byte_of(const uint2 &v, int i)
{
    return (i < 4 ? v.x : v.y) >> i % 4 * 8 & 255;
}

/* ------------------------------------------------------------------- words of 8 elements -- */

/* Bit i of eight becomes bit 4i. */
__device__ inline uint32_t bits_spread(uint32_t bits)
{
    bits = (bits | bits << 12) & 0x000f000f;
    bits = (bits | bits << 6) & 0x03030303;
    return (bits | bits << 3) & 0x11111111;
}

/* Pair i of bits of eight becomes bits 4i, 4i + 1. */
__device__ inline uint32_t pairs_spread(uint32_t pairs)
{
    pairs = (pairs | pairs << 8) & 0x00ff00ff;
    pairs = (pairs | pairs << 4) & 0x0f0f0f0f;
    return (pairs | pairs << 2) & 0x33333333;
}

/* GROUPS::word(s, g) and bits(s, g) are the word and eight bits of group g of 4. The bytes of V,
 * the lowest first, are the values of the codes, those of V_BIT of the codes whose bit is set. */
template <class GROUPS, uint32_t V, uint32_t V_BIT> struct codes_of_eights : GROUPS {
    static __device__ void unpack(const typename GROUPS::stored &s, int q[8])
    {
        for (int g = 0; g < 4; g++) {
            const uint32_t codes =
                pairs_spread(GROUPS::word(s, g)) | bits_spread(GROUPS::bits(s, g)) << 2;
            q[2 * g] = (int)bytes_selected(V, V_BIT, codes);
            q[2 * g + 1] = (int)bytes_selected(V, V_BIT, codes >> 16);
        }
    }
};

/* Four bytes of indices; 28 bits of signs, then the scale. */
struct groups_iq2_xxs : in_planes<0, uint2> {
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq2_xxs + byte_of(s, g));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return eight_signs(s.y >> 7 * g);
    }
};

/* 9 bits of index, 7 signs. */
struct groups_iq2_xs : in_planes<0, uint2> {
    static __device__ uint32_t both(const stored &s, int g)
    {
        return (g < 2 ? s.x : s.y) >> g % 2 * 16;
    }
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq2_xs + (both(s, g) & 511));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return eight_signs(both(s, g) >> 9);
    }
};

/* Bytes of indices; of signs; in plane 3 a byte of two more bits of each index. */
struct groups_iq2_s {
    static constexpr int BYTES = 4, MORE_BYTES = 4;
    struct stored {
        uint32_t low, signs, high;
    };
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {plane_load<uint32_t>(w, 0, block), plane_load<uint32_t>(w, 1, block),
                plane_load<uint8_t>(w, 3, block / 8, 18, 2 + (int)(block % 8))};
    }
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq2_s + ((s.low >> 8 * g & 255) | (s.high >> 2 * g & 3) << 8));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return s.signs >> 8 * g & 255;
    }
};

/* Bytes of indices; three more bits of each, the scale, whether all are shifted down. */
struct groups_iq1_s : in_planes<0, uint32_t, uint16_t> {
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq1 +
                     ((s.own >> 8 * g & 255) | ((uint32_t)s.more >> 3 * g & 7) << 8));
    }
    static __device__ uint32_t bits(const stored &s, int)
    {
        return s.more >> 15 ? 255 : 0;
    }
};

/* Bytes of indices; nibbles: three more bits, whether the group is shifted down. */
struct groups_iq1_m : in_planes<0, uint32_t, uint16_t> {
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq1 +
                     ((s.own >> 8 * g & 255) | ((uint32_t)s.more >> 4 * g & 7) << 8));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return s.more >> (4 * g + 3) & 1 ? 255 : 0;
    }
};

/* quants_iq2_values and quants_iq1_values, kernels/core/quants_codes.c */
template <class GROUPS> using codes_iq2 = codes_of_eights<GROUPS, 0x002b1908, 0x00d5e7f8>;
template <class GROUPS> using codes_iq1 = codes_of_eights<GROUPS, 0x000901f9, 0x0007fff7>;
using codes_iq2_xxs = codes_iq2<groups_iq2_xxs>;
using codes_iq2_xs = codes_iq2<groups_iq2_xs>;
using codes_iq2_s = codes_iq2<groups_iq2_s>;
using codes_iq1_s = codes_iq1<groups_iq1_s>;
using codes_iq1_m = codes_iq1<groups_iq1_m>;

/* ------------------------------------------------------------------- words of 4 elements -- */

/* Of GROUPS::word(s, g), g of 8, the nibbles number elements 0, 2, 1, 3; GROUPS::bits has four
 * signs. The bytes of V0 and V1 are magnitudes, none of which is 0. */
template <class GROUPS, uint32_t V0, uint32_t V1> struct codes_of_fours : GROUPS {
    static __device__ void unpack(const typename GROUPS::stored &s, int q[8])
    {
        for (int g = 0; g < 8; g++) {
            const uint32_t word = GROUPS::word(s, g);
            const uint32_t in_order = (word & 0x7007) | (word & 0x0070) << 4 | (word >> 4 & 0x0070);
            const uint32_t magnitudes = bytes_selected(V0, V1, in_order);
            const uint32_t minus = GROUPS::bits(s, g) * 0x00204081 & 0x01010101;
            q[g] = (int)((magnitudes ^ minus * 255) + minus);
        }
    }
};

/* Bytes of indices; 28 bits of signs, then the scale. */
struct groups_iq3_xxs : in_planes<0, uint2, uint32_t> {
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq3_xxs + byte_of(s.own, g));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return eight_signs(s.more >> 7 * (g / 2)) >> g % 2 * 4 & 15;
    }
};

/* Bytes of indices; of signs; in plane 3 a byte of one more bit of each index. */
struct groups_iq3_s {
    static constexpr int BYTES = 8, MORE_BYTES = 4;
    struct stored {
        uint2 low;
        uint32_t signs, high;
    };
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {plane_load<uint2>(w, 0, block), plane_load<uint32_t>(w, 1, block),
                plane_load<uint8_t>(w, 3, block / 8, 14, 2 + (int)(block % 8))};
    }
    static __device__ uint32_t word(const stored &s, int g)
    {
        return __ldg(codebook_iq3_s + (byte_of(s.low, g) | (s.high >> g & 1) << 8));
    }
    static __device__ uint32_t bits(const stored &s, int g)
    {
        return s.signs >> 4 * g & 15;
    }
};

/* quants_iq3_xxs_values and quants_iq3_s_values */
using codes_iq3_xxs = codes_of_fours<groups_iq3_xxs, 0x1c140c04, 0x3e342c24>;
using codes_iq3_s = codes_of_fours<groups_iq3_s, 0x07050301, 0x0f0d0b09>;

/* ---------------------------------------------------------------------------- scales ------ */

/* IN_SUPER bytes a super-block in plane 3, of which the first two are d, unless load() says
 * otherwise; s: a nibble for each scale. */
template <int NUMBER, int IN_SUPER, int EIGHTHS> struct codebook_scales {
    static constexpr int SCALES = NUMBER, BYTES = 0, MORE_BYTES = IN_SUPER;
    static constexpr bool HAS_MIN = false;
    struct stored {
        uint16_t d;
        uint32_t s;
    };
    static __device__ uint16_t d_of(const cuda_matrix &w, int64_t block)
    {
        return plane_load<uint16_t>(w, 3, block / 8, IN_SUPER / 2);
    }
    static __device__ uint32_t byte_at(const cuda_matrix &w, int64_t block, int i)
    {
        return plane_load<uint8_t>(w, 3, block / 8, IN_SUPER, i);
    }
    static __device__ void unpack(const stored &s, float d[NUMBER], float m[NUMBER])
    {
        for (int i = 0; i < NUMBER; i++) {
            const int times = (int)(2 * (s.s >> 4 * i & 15) + 1);
            d[i] = half_to_float(s.d) * (EIGHTHS * 0.125f) * (float)times;
            m[i] = 0;
        }
    }
};

struct scale_iq2_xxs : codebook_scales<1, 2, 1> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {d_of(w, block), plane_load<uint32_t>(w, 0, block, 2, 1) >> 28};
    }
};

struct scale_iq2_xs : codebook_scales<2, 10, 1> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {d_of(w, block), byte_at(w, block, 2 + (int)(block % 8))};
    }
};

struct scale_iq2_s : codebook_scales<2, 18, 1> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {d_of(w, block), byte_at(w, block, 10 + (int)(block % 8))};
    }
};

struct scale_iq3_xxs : codebook_scales<1, 2, 2> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {d_of(w, block), plane_load<uint32_t>(w, 1, block) >> 28};
    }
};

struct scale_iq3_s : codebook_scales<1, 14, 8> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        const int i = (int)(block % 8);
        return {d_of(w, block), byte_at(w, block, 10 + i / 2) >> i % 2 * 4};
    }
};

struct scale_iq1_s : codebook_scales<1, 2, 1> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {d_of(w, block), (uint32_t)plane_load<uint16_t>(w, 1, block) >> 12 & 7};
    }
};

/* Four words of four scales, three bits each; their upper nibbles are d. */
struct scale_iq1_m : codebook_scales<2, 8, 1> {
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        const uint2 all = plane_load<uint2>(w, 3, block / 8);
        const int i = (int)(block % 8);
        const uint32_t both = (i < 4 ? all.x : all.y) >> i % 4 / 2 * 16 >> i % 2 * 6;
        return {(uint16_t)((all.x >> 12 & 0xf) | (all.x >> 24 & 0xf0) | (all.y >> 4 & 0xf00) |
                           (all.y >> 16 & 0xf000)),
                (both & 7) | (both & 0x38) << 1};
    }
};

#endif
