/*
 * bench_peaks.c - what the machine can do at most: register-only loops of each level's multiply
 * instructions in short windows, and reading a buffer larger than the caches, from end to end or
 * some of its rows. All are timed from barrier to barrier, so that all threads are busy, and the
 * best time counts, because somebody else may use the cores too.
 */
#include "tests/kernels/bench_cpu.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CHAINS = 12,
    TILES = 4,
    LOOPS = 20000,
    WINDOWS = 400,
    LEAST_NS = 200000000,
    READ_STEP = 1 << 20, /* a multiple of what a lap's streams read at once */
    LAPS = 4
};

struct peak_run {
    struct bench_window window;
    void (*loop)(void);
    const uint8_t *data; /* of thread 0; the others' follow */
    uint64_t bytes;      /* of a thread */
    uint64_t row;        /* bytes of a row; 0: all is read */
    uint64_t best_ns;
    double best_rate; /* bytes a ns of a thread */
    bool done;
};

void window_init(struct bench_window *w, int threads)
{
    cpu_barrier_init(&w->barrier, threads);
}

void window_begin(struct bench_window *w, int thread)
{
    if (thread == 0)
        atomic_store(&w->begin_ns, UINT64_MAX);
    cpu_barrier_wait(&w->barrier);
    uint64_t now = now_ns(), first = atomic_load(&w->begin_ns);
    while (now < first && !atomic_compare_exchange_weak(&w->begin_ns, &first, now))
        continue;
}

uint64_t window_end(struct bench_window *w)
{
    cpu_barrier_wait(&w->barrier);
    return now_ns() - atomic_load(&w->begin_ns);
}

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

LOOP(loop_avx2_i8, "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\tvpmaddwd %%ymm14, %%ymm12, %%ymm14\n\t"
                   "vpaddd %%ymm14, %%ymm\\r, %%ymm\\r\n\t")
LOOP(loop_avx2_i16, "vpmaddwd %%ymm12, %%ymm13, %%ymm14\n\tvpaddd %%ymm14, %%ymm\\r, %%ymm\\r\n\t")
LOOP(loop_avx2_f32, "vfmadd231ps %%ymm12, %%ymm13, %%ymm\\r\n\t")
LOOP(loop_avxvnni_i8, "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm\\r\n\t")
LOOP(loop_avxvnni_i16, "%{vex%} vpdpwssd %%ymm12, %%ymm13, %%ymm\\r\n\t")
LOOP(loop_avx512_i8, "vpdpbusd %%zmm12, %%zmm13, %%zmm\\r\n\t")
LOOP(loop_avx512_i16, "vpdpwssd %%zmm12, %%zmm13, %%zmm\\r\n\t")
LOOP(loop_avx512_f32, "vfmadd231ps %%zmm12, %%zmm13, %%zmm\\r\n\t")
LOOP(loop_avx512_bf16, "vdpbf16ps %%zmm12, %%zmm13, %%zmm\\r\n\t")

/* Four accumulator tiles of 16 x 16, two factors of each side, all of them zero: what a kernel that
 * is bound by nothing else would issue. The kernel must have allowed tiles (component 18). */
#define TILE_LOOP(name, instruction)                                                               \
    static void name(void)                                                                         \
    {                                                                                              \
        static const struct tile_shapes {                                                          \
            uint8_t palette, start_row, reserved[14];                                              \
            uint16_t row_bytes[16];                                                                \
            uint8_t rows[16];                                                                      \
        } shapes = {                                                                               \
            1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};        \
        long n = LOOPS / 4;                                                                        \
        syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18);                             \
        __asm__ volatile("ldtilecfg %1\n\t.irp r,0,1,2,3,4,5,6,7\n\ttilezero %%tmm\\r\n\t.endr\n"  \
                         "1:\n\t.rept 4\n\t" instruction " %%tmm6, %%tmm4, %%tmm0\n\t" instruction \
                         " %%tmm7, %%tmm4, %%tmm1\n\t" instruction                                 \
                         " %%tmm6, %%tmm5, %%tmm2\n\t" instruction                                 \
                         " %%tmm7, %%tmm5, %%tmm3\n\t.endr\n\tdec %0\n\tjnz 1b\n\ttilerelease"     \
                         : "+r"(n)                                                                 \
                         : "m"(shapes)                                                             \
                         : "cc");                                                                  \
    }

TILE_LOOP(loop_amx_i8, "tdpbssd")
TILE_LOOP(loop_amx_bf16, "tdpbf16ps")

enum { I8 = PEAK_INT8, I16 = PEAK_INT16, F32 = PEAK_F32, BF16 = PEAK_BF16 };

static const struct {
    const char *level;
    int kind;
    int operations; /* of an iteration of the loop */
    void (*loop)(void);
} peaks[] = {
    {"avx2", I8, 64 * CHAINS, loop_avx2_i8},
    {"avx2", I16, 32 * CHAINS, loop_avx2_i16},
    {"avx2", F32, 16 * CHAINS, loop_avx2_f32},
    {"avxvnni", I8, 64 * CHAINS, loop_avxvnni_i8},
    {"avxvnni", I16, 32 * CHAINS, loop_avxvnni_i16},
    {"avxvnni", F32, 16 * CHAINS, loop_avx2_f32},
    {"avx512", I8, 128 * CHAINS, loop_avx512_i8},
    {"avx512", I16, 64 * CHAINS, loop_avx512_i16},
    {"avx512", F32, 32 * CHAINS, loop_avx512_f32},
    {"avx512", BF16, 64 * CHAINS, loop_avx512_bf16},
    {"amx", I8, 2 * 16 * 16 * 64 * TILES, loop_amx_i8},
    {"amx", I16, 64 * CHAINS, loop_avx512_i16},
    {"amx", F32, 32 * CHAINS, loop_avx512_f32},
    {"amx", BF16, 2 * 16 * 16 * 32 * TILES, loop_amx_bf16},
};
#else
static const struct {
    const char *level;
    int kind;
    int operations;
    void (*loop)(void);
} peaks[1];
#endif

/* Whether the processor has the instruction beside its level. */
static bool has_kind(const char *level, enum peak_kind kind)
{
#if defined(__x86_64__)
    if (kind == PEAK_BF16 && !strcmp(level, "avx512"))
        return __builtin_cpu_supports("avx512bf16");
#endif
    return level && kind < PEAK_KINDS;
}

static void peak_share(void *arg, int thread)
{
    struct peak_run *p = arg;
    const uint64_t start = now_ns();
    for (int i = 0; !p->done; i++) {
        window_begin(&p->window, thread);
        p->loop();
        uint64_t ns = window_end(&p->window);
        if (thread == 0) {
            p->best_ns = ns < p->best_ns ? ns : p->best_ns;
            p->done = i >= WINDOWS && now_ns() - start >= LEAST_NS;
        }
        cpu_barrier_wait(&p->window.barrier);
    }
}

double bench_peak(struct cpu_pool *pool, const char *level, enum peak_kind kind)
{
    const int n = cpu_pool_threads(pool);
    for (size_t i = 0; i < ARRAY_LEN(peaks); i++) {
        if (!peaks[i].level || strcmp(peaks[i].level, level) != 0 || peaks[i].kind != (int)kind ||
            !has_kind(level, kind))
            continue;
        struct peak_run p = {.loop = peaks[i].loop, .best_ns = UINT64_MAX};
        window_init(&p.window, n);
        cpu_pool_run(pool, peak_share, &p);
        return (double)LOOPS * peaks[i].operations * n / (double)p.best_ns;
    }
    return 0;
}

typedef uint64_t vector __attribute__((vector_size(64)));

/* Reads n bytes as so many sequential streams side by side, asking `ahead` bytes ahead. */
static inline __attribute__((always_inline)) uint64_t
read_streams(const uint8_t *from, uint64_t n, const uint64_t streams, const uint64_t ahead)
{
    vector sum[4] = {{0}};
    const uint64_t stream = n / streams, step = sizeof sum / streams;
    for (uint64_t i = 0; i < stream; i += step) {
        for (size_t v = 0; v < ARRAY_LEN(sum); v++) {
            const uint8_t *at = from + v % streams * stream + i + v / streams * sizeof(vector);
            if (ahead)
                __builtin_prefetch(at + ahead);
            sum[v] += *(const vector *)at;
        }
    }
    return sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
}

/* Which way is best differs between processors: all are tried. */
enum { READ_WAYS = 6 };

static inline __attribute__((always_inline)) uint64_t read_any(const uint8_t *p, uint64_t n,
                                                               int way)
{
    switch (way) {
    case 0: return read_streams(p, n, 1, 0);
    case 1: return read_streams(p, n, 2, 0);
    case 2: return read_streams(p, n, 4, 0);
    case 3: return read_streams(p, n, 1, 4096);
    case 4: return read_streams(p, n, 2, 4096);
    default: return read_streams(p, n, 4, 4096);
    }
}

enum { LISTED_OF = 10, SIDES = 5 }; /* one row of ten; 1, 2, 4, 8 or 16 of them side by side */

/* Reads rows at random, in ascending order. Returns their bytes. */
static inline __attribute__((always_inline)) uint64_t
rows_any(const uint8_t *p, uint64_t n, uint64_t row, int way, volatile uint64_t *used)
{
    const uint8_t *list[1 << SIDES];
    const uint64_t side = 1u << way % SIDES;
    uint64_t listed = 0, bytes = 0;
    uint32_t random = 1;
    vector sum = {0};
    for (uint64_t at = 0; at + row <= n; at += row) {
        random = random * 1664525 + 1013904223;
        if (random >> 16 >= 65536 / LISTED_OF)
            continue;
        list[listed++] = p + at;
        if (listed < side)
            continue;
        for (uint64_t i = 0; i < row; i += sizeof sum)
            for (uint64_t r = 0; r < side; r++)
                sum += *(const vector *)(list[r] + i);
        bytes += side * row;
        listed = 0;
    }
    *used = sum[0];
    return bytes;
}

/* Reads a lap of a thread's part, in one of the ways. Returns how many bytes. */
typedef uint64_t lap_fn(const struct peak_run *p, const uint8_t *data, int way,
                        volatile uint64_t *used);

static inline __attribute__((always_inline)) uint64_t
lap_any(const struct peak_run *p, const uint8_t *data, int way, volatile uint64_t *used)
{
    if (p->row)
        return rows_any(data, p->bytes, p->row, way, used);
    *used = read_any(data, p->bytes, way);
    return p->bytes;
}

static uint64_t lap_narrow(const struct peak_run *p, const uint8_t *data, int way,
                           volatile uint64_t *used)
{
    return lap_any(p, data, way, used);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static uint64_t
lap_wide(const struct peak_run *p, const uint8_t *data, int way, volatile uint64_t *used)
{
    return lap_any(p, data, way, used);
}
#endif

/* Every thread reads its own part, lap by lap. A lap is long, as a token's pass over the weights
 * is: a part of one may be faster than memory sustains. */
static void read_share(void *arg, int thread)
{
    static _Thread_local volatile uint64_t used; /* so that reading is not left out */
    struct peak_run *p = arg;
    const uint8_t *data = p->data + p->bytes * (uint64_t)thread;
    lap_fn *read = lap_narrow;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        read = lap_wide;
#endif
    for (int lap = 0; lap < LAPS * READ_WAYS; lap++) {
        window_begin(&p->window, thread);
        const uint64_t bytes = read(p, data, lap % READ_WAYS, &used);
        const double rate = (double)bytes / (double)window_end(&p->window);
        if (thread == 0 && rate > p->best_rate)
            p->best_rate = rate;
    }
}

static void touch_share(void *arg, int thread)
{
    struct peak_run *p = arg;
    memset((uint8_t *)(uintptr_t)p->data + p->bytes * (uint64_t)thread, 1, p->bytes);
}

double bench_bandwidth(struct cpu_pool *pool, uint64_t bytes, uint64_t row)
{
    const uint64_t n = (uint64_t)cpu_pool_threads(pool);
    struct peak_run p = {.bytes = size_align(bytes / n, READ_STEP), .row = row};
    uint8_t *data = pages_alloc(p.bytes * n);
    if (!data)
        return 0;
    p.data = data;
    window_init(&p.window, (int)n);
    cpu_pool_run(pool, touch_share, &p); /* by whom it is read: so it lies near */
    cpu_pool_run(pool, read_share, &p);
    pages_free(data, p.bytes * n);
    return p.best_rate * (double)n;
}
