/*
 * bench_cpu.h - timing the kernels against the limits of the machine.
 */
#ifndef OATO_BENCH_CPU_H
#define OATO_BENCH_CPU_H

#include "kernels/cpu/kernels_internal.h"

/* Prints for every level, type and number of columns the best time of a product, and the share of
 * the measured read bandwidth or multiply peak that it reaches, whichever is larger. level and
 * dtype: NULL or "all" for all of them; threads 0: one for each core. */
void bench_matrices(const char *level, const char *dtype, int threads);

/* bench_sparse.c: a sparse FFN against a dense one, at several shares of active neurons. level
 * NULL: avx512; dtype NULL: Q4_0 and F16. */
void bench_sparse(const char *level, const char *dtype, int threads);

/* A stretch of time from barrier to barrier. It begins when the first thread leaves the first
 * barrier: one that sleeps there meanwhile would see the others' work done in no time. */
struct bench_window {
    struct cpu_barrier barrier;
    _Atomic uint64_t begin_ns;
};
void window_init(struct bench_window *w, int threads);
void window_begin(struct bench_window *w, int thread); /* by every thread */
uint64_t window_end(struct bench_window *w);           /* by every thread; ns, to thread 0 */

/* bench_peaks.c: what the threads of the pool reach at most together. */
enum peak_kind { PEAK_INT8, PEAK_INT16, PEAK_F32, PEAK_BF16, PEAK_KINDS };
/* Giga operations a second (a multiply-add is two) with a level's instruction for the kind, in
 * registers; 0 when it has none. The processor must have the level. */
double bench_peak(struct cpu_pool *pool, const char *level, enum peak_kind kind);
/* Bytes a ns from a buffer of so many bytes: all of them or, with rows of `row` bytes, a multiple
 * of 64, one row of ten at random. 0 when there is no memory for it. */
double bench_bandwidth(struct cpu_pool *pool, uint64_t bytes, uint64_t row);

/* bench_attention.c: for every level, shape of model ("1B", ...), type of the KV cache, number of
 * tokens and context the best time of attention in one layer, with the same shares. */
void bench_attention(const char *level, const char *model, const char *dtype, int threads);

#endif
