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
/* Twelve chains of an instruction, four times an iteration. In assembly, because a compiler merges
 * chains or copies registers. Accumulators are registers 0 .. 11, factors 12 and 13. */
#define LOOP(name, step)                                                                           \
    static void name(void)                                                                         \
    {                                                                                              \
        long n = LOOPS / 4;                                                                        \
        __asm__ volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"                           \
                         "vpxor %%xmm\\r, %%xmm\\r, %%xmm\\r\n\t.endr\n"                           \
                         "1:\n\t.rept 4\n\t"                                                       \
                         ".irp r,0,1,2,3,4,5,6,7,8,9,10,11\n\t" step ".endr\n\t.endr\n\t"          \
                         "dec %0\n\tjnz 1b\n\tvzeroupper"                                          \
                         : "+r"(n)                                                                 \
                         :                                                                         \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "cc");             \
    }

LOOP(loop_avx2_i16, "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n\tvpaddd %%ymm14, %%ymm\\r, %%ymm\\r\n\t")
LOOP(loop_avx2_f32, "vfmadd231ps %%ymm12, %%ymm13, %%ymm\\r\n\t")
LOOP(loop_avxvnni_i16, "%{vex%} vpdpwssd %%ymm12, %%ymm13, %%ymm\\r\n\t")
LOOP(loop_avx512_i16, "vpdpwssd %%zmm12, %%zmm13, %%zmm\\r\n\t")
LOOP(loop_avx512_f32, "vfmadd231ps %%zmm12, %%zmm13, %%zmm\\r\n\t")

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
