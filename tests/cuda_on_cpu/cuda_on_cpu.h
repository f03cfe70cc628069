/*
 * cuda_on_cpu.h - stands in for CUDA C where the files of kernels/cuda/ are compiled as C++17 for
 * the host: the qualifiers, the vector types, the built-in functions that they use. A block's
 * threads are fibers (grid.cpp) that run in turn on one thread of the system until they meet at a
 * barrier or in an operation of their warp; grids run block after block.
 *
 * It is stricter than a GPU: memory of blocks starts as garbage, vector types must be aligned,
 * lanes that meet in different operations or wait for one that has returned end the process with
 * a message, and the order in which threads run turns round all the time. What a kernel computes
 * does not depend on that order unless a barrier is missing.
 *
 * Not there: float atomics, textures, cooperative groups, waiting in a loop for another thread.
 */
#ifndef OATO_CUDA_ON_CPU_H
#define OATO_CUDA_ON_CPU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__  inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))

/* Blocks run one at a time, so that a block's memory can be static. As memory of a system thread
 * it can be found, and filled with garbage before each launch, see grid.cpp; AddressSanitizer
 * guards only the plain kind. */
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define OATO_ADDRESS_SANITIZER
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define OATO_ADDRESS_SANITIZER
#endif
#ifdef OATO_ADDRESS_SANITIZER
#define __shared__ static
#else
#define __shared__ static __thread
#endif

/* ----------------------------------------------------------------------- vectors --------- */

#define VECTOR_OF_2(name, scalar)                                                                  \
    struct alignas(2 * sizeof(scalar)) name {                                                      \
        scalar x, y;                                                                               \
    };                                                                                             \
    inline name make_##name(scalar x, scalar y)                                                    \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define VECTOR_OF_4(name, scalar)                                                                  \
    struct alignas(4 * sizeof(scalar)) name {                                                      \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    inline name make_##name(scalar x, scalar y, scalar z, scalar w)                                \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
VECTOR_OF_2(int2, int)
VECTOR_OF_2(uint2, unsigned)
VECTOR_OF_2(float2, float)
VECTOR_OF_4(int4, int)
VECTOR_OF_4(uint4, unsigned)
VECTOR_OF_4(float4, float)
VECTOR_OF_4(char4, signed char)
VECTOR_OF_4(uchar4, unsigned char)
#undef VECTOR_OF_2
#undef VECTOR_OF_4

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
};
extern uint3 threadIdx, blockIdx; /* of the fiber that runs */
extern dim3 blockDim, gridDim;

/* ----------------------------------------------------------------------- kernels --------- */

namespace cuda_on_cpu
{
enum { WARP_LANES = 32, BLOCK_THREADS = 1024 };

/* A kernel puts itself into the list of all kernels when the library is loaded. */
struct kernel {
    const char *name;
    unsigned threads; /* a block has at most */
    size_t argument_bytes;
    void (*call)(const void *argument); /* as one thread */
    const kernel *next;

    kernel(const char *name, unsigned threads, size_t bytes, void (*call)(const void *argument));
};
const kernel *first_kernel();

extern unsigned char *shared_room;
} // namespace cuda_on_cpu

#define SHARED_ROOM cuda_on_cpu::shared_room

#define KERNEL(name, most_threads, argument) KERNEL_OF(name, most_threads, argument, nothing_ahead)
#define KERNEL_AHEAD(name, most_threads, blocks, argument, ahead)                                  \
    KERNEL_OF(name, most_threads, argument, ahead)
#define KERNEL_OF(name, most_threads, argument, ahead)                                             \
    static void name(const argument &a);                                                           \
    static const cuda_on_cpu::kernel name##_kernel(                                                \
        #name, most_threads, sizeof(argument), [](const void *given) {                             \
            const argument &a = *static_cast<const argument *>(given);                             \
            ahead(a);                                                                              \
            await_predecessor();                                                                   \
            name(a);                                                                               \
        });                                                                                        \
    static void name(const argument &a)

/* ------------------------------------------------------- before the kernel before ends ---- */

namespace cuda_on_cpu
{
extern int awaited_by[BLOCK_THREADS]; /* how often; a thread that returns must have waited once */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
} // namespace cuda_on_cpu

inline void await_predecessor()
{
    cuda_on_cpu::awaited_by[threadIdx.x]++;
}

/* Reads the bytes, so that AddressSanitizer sees them. */
inline void prefetch_l2(const uint8_t *from, uint32_t bytes)
{
    if ((reinterpret_cast<uintptr_t>(from) | bytes) % 16)
        cuda_on_cpu::fail("prefetch_l2: %u bytes at %p are not aligned", bytes, from);
    if (cuda_on_cpu::awaited_by[threadIdx.x])
        cuda_on_cpu::fail("prefetch_l2 behind the wait");
    for (uint32_t i = 0; i < bytes; i++)
        static_cast<void>(*const_cast<const volatile uint8_t *>(from + i));
}

/* ----------------------------------------------------------- copies under way ------------- */

namespace cuda_on_cpu
{
/* What a thread has begun to copy into shared memory: garbage lies there until it waits. */
struct copies {
    enum { MOST = 64 };
    int n;
    struct {
        void *to;
        const void *from; /* NULL: zeros */
    } copy[MOST];
};
extern copies copies_of[BLOCK_THREADS];
} // namespace cuda_on_cpu

inline void copy_16(void *to, const void *from, bool there)
{
    cuda_on_cpu::copies &mine = cuda_on_cpu::copies_of[threadIdx.x];
    if (mine.n == cuda_on_cpu::copies::MOST)
        cuda_on_cpu::fail("more than %d copies under way", mine.n);
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16)
        cuda_on_cpu::fail("copy_16: %p or %p is not aligned", to, from);
    std::memset(to, 0xff, 16);
    mine.copy[mine.n++] = {to, there ? from : nullptr};
}

inline void copies_wait()
{
    cuda_on_cpu::copies &mine = cuda_on_cpu::copies_of[threadIdx.x];
    for (int i = 0; i < mine.n; i++)
        if (mine.copy[i].from)
            std::memcpy(mine.copy[i].to, mine.copy[i].from, 16);
        else
            std::memset(mine.copy[i].to, 0, 16);
    mine.n = 0;
}

/* ------------------------------------------------------------- meeting in a block --------- */

namespace cuda_on_cpu
{
enum block_meeting { MEET, MEET_OR, MEET_AND, MEET_COUNT };

/* Waits until all threads of the block that have not returned are here; what they gave, reduced. */
int meet_block(block_meeting meeting, int given);
} // namespace cuda_on_cpu

inline void __syncthreads()
{
    cuda_on_cpu::meet_block(cuda_on_cpu::MEET, 0);
}
inline int __syncthreads_or(int given)
{
    return cuda_on_cpu::meet_block(cuda_on_cpu::MEET_OR, given != 0);
}
inline int __syncthreads_and(int given)
{
    return cuda_on_cpu::meet_block(cuda_on_cpu::MEET_AND, given != 0);
}
inline int __syncthreads_count(int given)
{
    return cuda_on_cpu::meet_block(cuda_on_cpu::MEET_COUNT, given != 0);
}
inline void __threadfence_block()
{
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
[[noreturn]] inline void __trap()
{
    cuda_on_cpu::fail("__trap()");
}

/* -------------------------------------------------------------- meeting in a warp --------- */

namespace cuda_on_cpu
{
/* What a thread gives to an operation of its warp, and gets from it. */
struct exchange {
    uint32_t given[10], taken[4];
};
extern exchange exchanges[BLOCK_THREADS];

/* The last lane of the mask to arrive runs the operation for all of them. */
struct warp_operation {
    const char *name;
    void (*run)(exchange *lanes, uint32_t mask);
};
extern const warp_operation sync_lanes, ballot, shuffle, shuffle_up, shuffle_down, shuffle_xor;
extern const warp_operation product_s8, product_f16, product_bf16, tiles;

/* Waits until the lanes of the mask have arrived and the operation is done. */
void meet_warp(const warp_operation &operation, uint32_t mask);

inline exchange &own_exchange()
{
    return exchanges[threadIdx.x];
}

template <class T>
inline T take_from(const warp_operation &operation, uint32_t mask, T value, int source)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    exchange &mine = own_exchange();
    std::memcpy(mine.given, &value, sizeof value);
    mine.given[2] = static_cast<uint32_t>(source);
    meet_warp(operation, mask);
    std::memcpy(&value, mine.taken, sizeof value);
    return value;
}

inline int lane()
{
    return static_cast<int>(threadIdx.x % WARP_LANES);
}

template <class C, class A>
inline void multiply(const warp_operation &product, C c[4], const A a[4], const A b[2])
{
    exchange &mine = own_exchange();
    std::memcpy(mine.given, a, 16);
    std::memcpy(mine.given + 4, b, 8);
    std::memcpy(mine.given + 6, c, 16);
    meet_warp(product, 0xffffffff);
    std::memcpy(c, mine.taken, 16);
}
} // namespace cuda_on_cpu

inline void __syncwarp(unsigned mask = 0xffffffff)
{
    cuda_on_cpu::meet_warp(cuda_on_cpu::sync_lanes, mask);
}
inline unsigned __ballot_sync(unsigned mask, int given)
{
    cuda_on_cpu::own_exchange().given[0] = given != 0;
    cuda_on_cpu::meet_warp(cuda_on_cpu::ballot, mask);
    return cuda_on_cpu::own_exchange().taken[0];
}
inline int __any_sync(unsigned mask, int given)
{
    return __ballot_sync(mask, given) != 0;
}
inline int __all_sync(unsigned mask, int given)
{
    return __ballot_sync(mask, given) == mask;
}

/* Lanes are grouped by `width`; one that would read beyond its group keeps its own value. */
template <class T> inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    source = (cuda_on_cpu::lane() & ~(width - 1)) + (source & (width - 1));
    return cuda_on_cpu::take_from(cuda_on_cpu::shuffle, mask, value, source);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned step, int width = 32)
{
    int lane = cuda_on_cpu::lane(), source = lane - static_cast<int>(step);
    bool inside = source >= (lane & ~(width - 1));
    return cuda_on_cpu::take_from(cuda_on_cpu::shuffle_up, mask, value, inside ? source : lane);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32)
{
    int lane = cuda_on_cpu::lane(), source = lane + static_cast<int>(step);
    bool inside = source < (lane & ~(width - 1)) + width;
    return cuda_on_cpu::take_from(cuda_on_cpu::shuffle_down, mask, value, inside ? source : lane);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32)
{
    int lane = cuda_on_cpu::lane(), source = lane ^ flip;
    bool inside = source < (lane & ~(width - 1)) + width;
    return cuda_on_cpu::take_from(cuda_on_cpu::shuffle_xor, mask, value, inside ? source : lane);
}

/* c += a b over the warp, spread over its lanes as PTX's mma.m16n8k32 (s8) and .m16n8k16. */
inline void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuda_on_cpu::multiply(cuda_on_cpu::product_s8, c, a, b);
}
inline void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuda_on_cpu::multiply(cuda_on_cpu::product_f16, c, a, b);
}
inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    cuda_on_cpu::multiply(cuda_on_cpu::product_bf16, c, a, b);
}

inline void load_tiles(uint32_t out[4], const void *row)
{
    if (reinterpret_cast<uintptr_t>(row) % 16)
        cuda_on_cpu::fail("load_tiles: %p is not aligned", row);
    cuda_on_cpu::exchange &mine = cuda_on_cpu::own_exchange();
    std::memcpy(mine.given, row, 16);
    cuda_on_cpu::meet_warp(cuda_on_cpu::tiles, 0xffffffff);
    std::memcpy(out, mine.taken, 16);
}

/* -------------------------------------------------------------------------- numbers ------- */

namespace cuda_on_cpu
{
template <class To, class From> inline To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "other size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace cuda_on_cpu

inline int __float_as_int(float f)
{
    return cuda_on_cpu::same_bits<int>(f);
}
inline float __int_as_float(int bits)
{
    return cuda_on_cpu::same_bits<float>(bits);
}
inline unsigned __float_as_uint(float f)
{
    return cuda_on_cpu::same_bits<unsigned>(f);
}
inline float __uint_as_float(unsigned bits)
{
    return cuda_on_cpu::same_bits<float>(bits);
}

inline float half_to_float(uint16_t h)
{
    uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31)
        return __uint_as_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
}

inline uint16_t float_to_half(float f)
{
    uint32_t bits = __float_as_uint(f), sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000)
        return 0x7fff;      /* the one NaN of a GPU */
    if (bits >= 0x477ff000) /* 65520 and more round to 65536 */
        bits = 0x7c00;
    else if (bits < 0x38800000) /* below 2^-14: beside 0.5 a float counts in steps of 2^-24 */
        bits = __float_as_uint(__uint_as_float(bits) + 0.5f) - 0x3f000000;
    else
        bits = (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
    return static_cast<uint16_t>(sign | bits);
}

inline uint32_t two_halves(float low, float high)
{
    return float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
}

inline uint32_t scale_halves(uint32_t x, uint32_t y, uint32_t z)
{
    float product[2];
    for (int i = 0; i < 2; i++) {
        const uint16_t a = static_cast<uint16_t>(x >> 16 * i);
        const uint16_t b = static_cast<uint16_t>(y >> 16 * i);
        const uint16_t c = static_cast<uint16_t>(z >> 16 * i);
        const float difference = half_to_float(float_to_half(half_to_float(a) - half_to_float(b)));
        product[i] = difference * half_to_float(c);
    }
    return two_halves(product[0], product[1]);
}

inline float exp2_fast(float x)
{
    return x < -126 ? 0 : exp2f(x);
}

template <class T> inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> inline T max(T a, T b)
{
    return a < b ? b : a;
}
inline float min(float a, float b)
{
    return fminf(a, b);
}
inline float max(float a, float b)
{
    return fmaxf(a, b);
}
inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
/* As macros: the C library has private functions of these names. */
#define __expf  expf
#define __logf  logf
#define __log2f log2f
#define __sinf  sinf
#define __cosf  cosf
#define __powf  powf
/* Of pi x, exact at quarter turns. */
inline void sincospif(float x, float *sine, float *cosine)
{
    const double quarters = rint(2.0 * x), rest = M_PI * (x - quarters / 2);
    const double s = sin(rest), c = cos(rest);
    const int turned = static_cast<int>(quarters - 4 * floor(quarters / 4));
    *sine = static_cast<float>(turned == 0 ? s : turned == 1 ? c : turned == 2 ? -s : -c);
    *cosine = static_cast<float>(turned == 0 ? c : turned == 1 ? -s : turned == 2 ? -c : s);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline int __float2int_rn(float x)
{
    return static_cast<int>(rintf(x));
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

/* Four bytes of the eight in x and y; only the documented three bits of a selector. */
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors)
{
    uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    unsigned result = 0;
    if (selectors & 0x8888)
        cuda_on_cpu::fail("__byte_perm: selector %#x", selectors);
    for (int i = 0; i < 4; i++)
        result |= static_cast<unsigned>(bytes >> (selectors >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}

inline int __dp4a(int a, int b, int c)
{
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 4; i++)
        sum += static_cast<unsigned>(static_cast<int8_t>(a >> 8 * i) *
                                     static_cast<int8_t>(b >> 8 * i));
    return static_cast<int>(sum);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++)
        c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
    return c;
}
/* Each byte of a less each of b, wrapping. */
inline unsigned __vsub4(unsigned a, unsigned b)
{
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= ((a >> 8 * i) - (b >> 8 * i)) % 256 << 8 * i;
    return result;
}

/* --------------------------------------------------------------------------- memory ------- */

template <class T> inline T __ldg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcg(const T *p)
{
    return *p;
}
template <class T> inline T __ldcs(const T *p)
{
    return *p;
}
template <class T> inline void __stcs(T *p, T value)
{
    *p = value;
}

/* Reads what was asked for, so that AddressSanitizer sees it. */
inline void read_ahead(const void *from, uint32_t bytes, int lane, int lanes)
{
    const volatile unsigned char *byte = static_cast<const volatile unsigned char *>(from);
    if ((reinterpret_cast<uintptr_t>(from) | bytes) % 16)
        cuda_on_cpu::fail("read_ahead: %u bytes at %p are not aligned", bytes, from);
    for (uint32_t i = static_cast<uint32_t>(lane) * 32; i < bytes;
         i += static_cast<uint32_t>(lanes) * 32)
        static_cast<void>(byte[i]);
}

inline int atomicAdd(int *p, int n)
{
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned *p, unsigned n)
{
    return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
/* The new value counts up to `last` and then begins at 0. */
inline unsigned atomicInc(unsigned *p, unsigned last)
{
    unsigned old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}
template <class T> inline T atomicMax(T *p, T value)
{
    T old = *p;
    *p = max(old, value);
    return old;
}
template <class T> inline T atomicExch(T *p, T value)
{
    T old = *p;
    *p = value;
    return old;
}
template <class T> inline T atomicCAS(T *p, T expected, T value)
{
    T old = *p;
    if (old == expected)
        *p = value;
    return old;
}

#endif
