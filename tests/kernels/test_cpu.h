/*
 * test_cpu.h - what the tests of the cpu kernels share: random data from a printed seed, random
 * blocks of every type, buffers that end at an unreadable page, and running one record on several
 * threads. Included once by each test program.
 */
#ifndef OATO_TEST_CPU_H
#define OATO_TEST_CPU_H

#include "kernels/cpu/kernels_internal.h"
#include "tests/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define UNUSED __attribute__((unused))

static uint64_t seed_state;

/* The seed is OATO_TEST_SEED or the clock; printed, so that a failure can be repeated. */
static UNUSED void seed_init(void)
{
    const char *s = getenv("OATO_TEST_SEED");
    seed_state = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
    print_message("OATO_TEST_SEED=%llu\n", (unsigned long long)seed_state);
}

static uint64_t random_u64(void) /* splitmix64 */
{
    uint64_t z = seed_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static UNUSED int64_t random_in(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(random_u64() % (uint64_t)(hi - lo + 1));
}

/* Where to begin in a table that is gone through by pace_step(step). */
static UNUSED size_t random_first(size_t step)
{
    return (size_t)random_in(0, (int64_t)pace_step(step) - 1);
}

/* About normal: the sum of twelve numbers of 21 bits, three of which are in each random one. */
static UNUSED float random_float(void)
{
    const uint64_t mask = (1u << 21) - 1;
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        const uint64_t r = random_u64();
        sum += (r & mask) + (r >> 21 & mask) + (r >> 42 & mask);
    }
    return (float)sum * 0x1p-21f - 6;
}

static UNUSED void random_floats(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = random_float();
}

static UNUSED void put_half(uint8_t *p, float x)
{
    uint16_t h = f32_to_f16(x);
    memcpy(p, &h, 2);
}

/* n elements of a type: random integers, scales of a size that models have. */
static UNUSED void random_elements(oato_dtype dtype, uint8_t *p, int64_t n)
{
    const struct dtype_info *d = dtype_info((int)dtype);
    for (int64_t b = 0; b < n / d->block_elems; b++, p += d->block_bytes) {
        for (int i = 0; i < d->block_bytes; i++)
            p[i] = (uint8_t)random_u64();
        float scale = 0.02f * random_float();
        uint16_t h;
        switch (dtype) {
        case DT_F32: memcpy(p, &scale, 4); break;
        case DT_F16: put_half(p, scale); break;
        case DT_BF16:
            h = f32_to_bf16(scale);
            memcpy(p, &h, 2);
            break;
        case DT_Q6_K: put_half(p + 208, scale / 64); break;
        case DT_Q3_K: put_half(p + 108, scale / 16); break;
        case DT_IQ4_NL: put_half(p, scale / 16); break;
        case DT_IQ4_XS: put_half(p, scale / 256); break;
        case DT_MXFP4: p[0] = (uint8_t)random_in(118, 122); break;
        case DT_IQ1_S: put_half(p, scale / 8); break;
        case DT_IQ1_M:
            h = f32_to_f16(scale / 8);
            for (int i = 0; i < 4; i++) /* a nibble in each of four words */
                p[49 + 2 * i] = (uint8_t)(random_in(0, 15) | (h >> 4 * i & 15) << 4);
            break;
        case DT_IQ2_XXS:
        case DT_IQ2_XS:
        case DT_IQ2_S:
        case DT_IQ3_XXS:
        case DT_IQ3_S: put_half(p, scale / 64); break;
        case DT_TQ1_0: put_half(p + 52, scale); break;
        case DT_TQ2_0: put_half(p + 64, scale); break;
        case DT_NVFP4:
            for (int i = 0; i < 4; i++)
                p[i] = (uint8_t)random_in(1, 24); /* at most 2^-4 */
            break;
        case DT_Q2_K:
            put_half(p + 80, scale / 4);
            put_half(p + 82, 0.3f * scale);
            break;
        case DT_Q4_K:
        case DT_Q5_K:
            put_half(p, scale / 32);
            put_half(p + 2, 0.2f * scale);
            break;
        case DT_Q4_1:
        case DT_Q5_1:
            put_half(p, scale);
            put_half(p + 2, -8 * scale);
            break;
        default: put_half(p, scale);
        }
    }
}

#define TYPE(type, ...) DT_##type,
static const oato_dtype matrix_types[] UNUSED = {WEIGHT_TYPES(TYPE)};
#undef TYPE
static const char *const isas[] = {"ref", "avx2",         "avxvnni", "avx512",
                                   "amx", "amx-emulated", "neon"};

/* The name of the emulator of the whole processor; NULL: none. */
static UNUSED const char *emulator(void)
{
    const char *name = getenv("OATO_TEST_EMULATOR");
    return name && *name ? name : NULL;
}

/* NULL when this machine has it not. An emulator leaves out ref, which is C that runs natively
 * elsewhere: test_cpu_quants has it. */
static UNUSED const struct cpu_kernels *kernels_named(const char *name)
{
    const struct cpu_kernels *k;
    struct oato_error err;
    if (emulator() && pace_is_slow() && !strcmp(name, "ref"))
        return NULL;
    return cpu_kernels_select(name, &k, &err) ? NULL : k;
}

/* For the main functions of programs whose tests go through all of isas: says in the file
 * $OATO_TEST_LEVELS how each level was tested; scripts/test sums up. Under an emulator of the whole
 * processor (OATO_TEST_EMULATOR, its name) nothing is native. Returns `failed`. */
static UNUSED int levels_report(int failed)
{
    const char *path = getenv("OATO_TEST_LEVELS");
    FILE *f = path && *path ? fopen(path, "a") : NULL;
    for (size_t i = 0; f && i < ARRAY_LEN(isas); i++) {
        const int name = (int)strcspn(isas[i], "-"); /* amx-emulated is amx */
        const char *state = "native";
        if (!kernels_named(isas[i]))
            state = "skipped";
        else if (failed)
            state = "failed";
        else if (isas[i][name] || emulator())
            state = "emulated";
        fprintf(f, "%.*s %s\n", name, isas[i], state);
    }
    if (f)
        fclose(f);
    return failed;
}

/* Memory whose every piece ends at an unreadable page, as offsets of one base. */
struct guarded {
    uint8_t *base;
    size_t used, size;
};

static UNUSED void guarded_init(struct guarded *g)
{
    g->size = (size_t)256 << 20;
    g->used = 0;
    g->base = mmap(NULL, g->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(g->base != MAP_FAILED);
}

static UNUSED void guarded_free(struct guarded *g)
{
    munmap(g->base, g->size);
}

static UNUSED uint64_t guarded_offset(struct guarded *g, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = size_align(bytes ? bytes : 1, page);
    assert_true(g->used + room + page <= g->size);
    assert_int_equal(mprotect(g->base + g->used, room, PROT_READ | PROT_WRITE), 0);
    g->used += room + page;
    return g->used - page - bytes;
}

static UNUSED void *guarded_alloc(struct guarded *g, size_t bytes)
{
    return g->base + guarded_offset(g, bytes);
}

/* The prepared form of rows [begin, end) of n x k elements at data. */
static UNUSED struct oato_weight *weight_make(const struct cpu_kernels *k, struct guarded *g,
                                              oato_dtype dtype, const void *data, int64_t n,
                                              int64_t width, int64_t begin, int64_t end,
                                              enum weight_use use)
{
    struct weight_source s = {.data = data,
                              .dtype = dtype,
                              .k = width,
                              .n = n,
                              .row_begin = begin,
                              .row_end = end,
                              .use = use};
    struct oato_weight *w = test_calloc(1, sizeof *w);
    *w = (struct oato_weight){.dtype = dtype, .use = use, .rows = end - begin, .k = width};
    w->bytes = cpu_prepared_bytes(k, dtype, w->rows, width, use);
    w->data = guarded_alloc(g, w->bytes);
    int64_t middle = w->rows / 2 / MATRIX_ROWS * MATRIX_ROWS;
    cpu_convert_rows(k, &s, middle, w->rows,
                     (uint8_t *)(uintptr_t)w->data); /* in any order and number of pieces */
    cpu_convert_rows(k, &s, 0, middle, (uint8_t *)(uintptr_t)w->data);
    return w;
}

/* ------------------------------------------------------------------------ running records - */

struct record_run {
    struct cpu_context *c;
    const struct program_record *r;
    const struct step *step;
    struct cpu_barrier barrier;
};

static UNUSED void record_share(void *arg, int thread)
{
    struct record_run *x = arg;
    cpu_run_record(x->c, x->r, x->step, thread, &x->barrier);
}

/* The pool of so many threads, which stays: to make one means to look at the whole machine. */
static UNUSED struct cpu_pool *test_pool(int n_threads)
{
    static struct cpu_pool *pools[8];
    struct oato_error err;
    assert_true(n_threads > 0 && n_threads < (int)ARRAY_LEN(pools));
    if (!pools[n_threads])
        assert_int_equal(cpu_pool_create(n_threads, &pools[n_threads], &err), OATO_OK);
    return pools[n_threads];
}

/* Runs the record on n threads, with a workspace of exactly what was asked for. */
static UNUSED void record_run(struct cpu_context *c, const struct program_record *r,
                              const struct step *step, int64_t kv_positions, int n_threads)
{
    struct record_run x = {.c = c, .r = r, .step = step};
    cpu_barrier_init(&x.barrier, n_threads);
    struct op_size size = {
        .rows = record_rows(r, step), .seqs = step->n_seqs, .kv_positions = kv_positions};
    struct guarded g;
    guarded_init(&g);
    c->workspace_bytes = cpu_workspace_bytes(c->kernels, &r->op, &size, n_threads);
    c->workspace = guarded_alloc(&g, size_align(c->workspace_bytes, 64));
    cpu_pool_run(test_pool(n_threads), record_share, &x);
    guarded_free(&g);
    c->workspace = NULL;
}

/* A step of T tokens of one sequence at positions 0 .. T-1, all of whose logits are wanted. */
struct simple_step {
    struct step step;
    struct step_seq seq;
    int32_t ids[64], positions[64], seqs[64], rows[64];
};

static UNUSED const struct step *simple_step(struct simple_step *s, int32_t T)
{
    memset(s, 0, sizeof *s);
    for (int32_t t = 0; t < T; t++) {
        s->positions[t] = s->rows[t] = t;
        s->ids[t] = (int32_t)random_in(0, 99);
    }
    s->seq = (struct step_seq){.query_len = T, .kv_len = T};
    s->step = (struct step){.n_tokens = T,
                            .n_seqs = 1,
                            .n_rows = T,
                            .token_id = s->ids,
                            .token_position = s->positions,
                            .token_seq = s->seqs,
                            .seq = &s->seq,
                            .row = s->rows};
    return &s->step;
}

static UNUSED struct program_record record_of(struct oato_op op)
{
    struct program_record r = {.op = op, .kind = RECORD_RUN, .kv_layer = -1};
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r.weight[i] = UINT32_MAX;
    return r;
}

/* Squared error relative to squared size. */
static UNUSED double nmse(const float *got, const double *wanted, int64_t n)
{
    double error = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double e = (double)got[i] - wanted[i];
        error += e * e;
        size += wanted[i] * wanted[i];
    }
    return error / size;
}

static UNUSED void assert_close(const float *got, const double *wanted, int64_t n, double limit)
{
    double e = nmse(got, wanted, n);
    if (!(e <= limit))
        fail_msg("NMSE %.3g exceeds %.3g over %lld values", e, limit, (long long)n);
}

#endif
