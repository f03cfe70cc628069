/*
 * bench_cpu.h - timing the matrix kernels against the limits of the machine.
 */
#ifndef OATO_BENCH_CPU_H
#define OATO_BENCH_CPU_H

#include "kernels/cpu/cpu_internal.h"

/* Prints for every level, type and number of columns the best time of a product, and the share of
 * the measured read bandwidth or multiply peak that it reaches, whichever is larger. level and
 * dtype: NULL or "all" for all of them; threads 0: one for each core. */
void bench_matrices(const char *level, const char *dtype, int threads);

/* bench_peaks.c: giga operations (a multiply-add is two) that the threads of the pool make at most
 * with a level's instruction, of int16 pairs or of float32; 0 when the level has none. */
double bench_peak(struct cpu_pool *pool, const char *level, bool is_float);
/* Bytes a ns that the threads read at most from memory. */
double bench_bandwidth(struct cpu_pool *pool);

#endif
