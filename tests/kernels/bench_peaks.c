/*
 * bench_peaks.c - what the machine can do at most: register-only loops of each level's multiply
 * instruction, and reading a buffer larger than the caches. Best of several short runs, because
 * somebody else may use the cores.
 */
#include "tests/kernels/bench_cpu.h"

#include <string.h>

enum { LOOPS = 20000, RUNS = 40, CHAINS = 12, READ_BYTES = 256 << 20, READ_PIECE = 4 << 20 };

struct peak_run {
    void (*loop)(void);
    const uint8_t *data;
    uint64_t bytes; /* of a thread */
    uint64_t best_ns[256];
};

#if defined(__x86_64__)
#include <immintrin.h>

/* Keeps a vector in its register and its value unknown to the compiler. */
#define HOLD(x) __asm__ volatile("" : "+v"(x))

__attribute__((target("avx2,fma"))) static void loop_avx2_i16(void)
{
    __m256i a[CHAINS], x = _mm256_setzero_si256(), y = x;
    for (int c = 0; c < CHAINS; c++) {
        a[c] = x;
        HOLD(a[c]); /* chains that the compiler cannot merge */
    }
    for (int i = 0; i < LOOPS; i++) {
        HOLD(x);
        HOLD(y);
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm256_add_epi32(a[c], _mm256_madd_epi16(x, y));
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        HOLD(a[c]);
}

__attribute__((target("avx2,fma"))) static void loop_avx2_f32(void)
{
    __m256 a[CHAINS], x = _mm256_setzero_ps(), y = x;
    for (int c = 0; c < CHAINS; c++) {
        a[c] = x;
        HOLD(a[c]); /* chains that the compiler cannot merge */
    }
    HOLD(y);
    for (int i = 0; i < LOOPS; i++) {
        HOLD(x);
        HOLD(y);
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm256_fmadd_ps(x, y, a[c]);
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        HOLD(a[c]);
}

__attribute__((target("avxvnni"))) static void loop_avxvnni_i16(void)
{
    __m256i a[CHAINS], x = _mm256_setzero_si256(), y = x;
    for (int c = 0; c < CHAINS; c++) {
        a[c] = x;
        HOLD(a[c]); /* chains that the compiler cannot merge */
    }
    HOLD(y);
    for (int i = 0; i < LOOPS; i++) {
        HOLD(x);
        HOLD(y);
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm256_dpwssd_avx_epi32(a[c], x, y);
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        HOLD(a[c]);
}

__attribute__((target("avx512f,avx512vnni"))) static void loop_avx512_i16(void)
{
    __m512i a[CHAINS], x = _mm512_setzero_si512(), y = x;
    for (int c = 0; c < CHAINS; c++) {
        a[c] = x;
        HOLD(a[c]); /* chains that the compiler cannot merge */
    }
    HOLD(y);
    for (int i = 0; i < LOOPS; i++) {
        HOLD(x);
        HOLD(y);
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm512_dpwssd_epi32(a[c], x, y);
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        HOLD(a[c]);
}

__attribute__((target("avx512f"))) static void loop_avx512_f32(void)
{
    __m512 a[CHAINS], x = _mm512_setzero_ps(), y = x;
    for (int c = 0; c < CHAINS; c++) {
        a[c] = x;
        HOLD(a[c]); /* chains that the compiler cannot merge */
    }
    HOLD(y);
    for (int i = 0; i < LOOPS; i++) {
        HOLD(x);
        HOLD(y);
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            a[c] = _mm512_fmadd_ps(x, y, a[c]);
    }
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++)
        HOLD(a[c]);
}

static const struct {
    const char *level;
    bool is_float;
    int operations; /* of an instruction */
    void (*loop)(void);
} peaks[] = {
    {"avx2", false, 32, loop_avx2_i16},       {"avx2", true, 16, loop_avx2_f32},
    {"avxvnni", false, 32, loop_avxvnni_i16}, {"avxvnni", true, 16, loop_avx2_f32},
    {"avx512", false, 64, loop_avx512_i16},   {"avx512", true, 32, loop_avx512_f32},
};
#else
static const struct {
    const char *level;
    bool is_float;
    int operations;
    void (*loop)(void);
} peaks[1];
#endif

static void peak_share(void *arg, int thread)
{
    struct peak_run *p = arg;
    for (int i = 0; i < RUNS; i++) {
        uint64_t begin = now_ns();
        p->loop();
        uint64_t ns = now_ns() - begin;
        if (!i || ns < p->best_ns[thread])
            p->best_ns[thread] = ns;
    }
}

double bench_peak(struct cpu_pool *pool, const char *level, bool is_float)
{
    static struct peak_run p;
    double sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(peaks); i++) {
        if (!peaks[i].level || strcmp(peaks[i].level, level) != 0 || peaks[i].is_float != is_float)
            continue;
        p.loop = peaks[i].loop;
        cpu_pool_run(pool, peak_share, &p);
        for (int t = 0; t < cpu_pool_threads(pool); t++)
            sum += (double)LOOPS * CHAINS * peaks[i].operations / (double)p.best_ns[t];
    }
    return sum;
}

static void read_share(void *arg, int thread)
{
    struct peak_run *p = arg;
    typedef uint64_t vector __attribute__((vector_size(64)));
    vector sum[4] = {{0}};
    for (uint64_t piece = 0; piece < p->bytes; piece += READ_PIECE) {
        const uint8_t *from = p->data + p->bytes * (uint64_t)thread + piece;
        uint64_t begin = now_ns();
        for (uint64_t i = 0; i < READ_PIECE / 2; i += sizeof sum / 2) {
            for (size_t v = 0; v < ARRAY_LEN(sum); v++) { /* two streams */
                const uint8_t *half = from + v % 2 * (READ_PIECE / 2);
                const vector *at = (const vector *)(half + i + v / 2 * sizeof(vector));
                __builtin_prefetch((const char *)at + 4096);
                sum[v] += *at;
            }
        }
        uint64_t ns = now_ns() - begin;
        if (!p->best_ns[thread] || ns < p->best_ns[thread])
            p->best_ns[thread] = ns;
    }
    static _Thread_local volatile uint64_t used; /* so that reading is not left out */
    for (size_t v = 0; v < ARRAY_LEN(sum); v++)
        used = sum[v][0];
    (void)used;
}

double bench_bandwidth(struct cpu_pool *pool)
{
    static struct peak_run p;
    const uint64_t n = (uint64_t)cpu_pool_threads(pool);
    uint8_t *data = pages_alloc(READ_BYTES);
    if (!data)
        return 0;
    memset(data, 1, READ_BYTES);
    p.data = data;
    p.bytes = READ_BYTES / n / READ_PIECE * READ_PIECE;
    memset(p.best_ns, 0, sizeof p.best_ns);
    for (int i = 0; i < RUNS / 4; i++)
        cpu_pool_run(pool, read_share, &p);
    double sum = 0;
    for (uint64_t t = 0; t < n; t++)
        sum += (double)READ_PIECE / (double)p.best_ns[t];
    pages_free(data, READ_BYTES);
    return sum;
}
