/*
 * bench_cuda.h - what the files of oato-bench-cuda share: the device, random bytes in its memory
 * that stand for weights, and how work for it is timed.
 */
#ifndef OATO_BENCH_CUDA_H
#define OATO_BENCH_CUDA_H

#include "kernels/cuda/cuda_device.h"

enum { RECORDS_MOST = 64, RECORDS_LEAST = 20 }; /* of a program whose time is divided by them */

struct bench {
    struct cuda_device *d;
    bool quick;          /* a trial on any machine */
    uint64_t cold_bytes; /* what no cache holds */
    double least_s;      /* of a measurement */
    cu_address pool;     /* random weights, */
    uint64_t pool_bytes; /* so many bytes of them */
    double copy_bytes_per_s;
    bool first; /* of the cases that are printed */
};

/* Puts what is measured on the device's stream once. */
typedef oato_status bench_put(const struct bench *b, const void *what, struct oato_error *err);

/* Seconds that it takes, as one graph: the best of several stretches behind one that does not
 * count. It is put once before, for what is loaded with its first use. */
oato_status bench_graph(const struct bench *b, bench_put *put, const void *what, double *seconds,
                        struct oato_error *err);

/* The same of a program's records in a step, divided by their number. */
oato_status bench_program(const struct bench *b, const struct program *p, const struct step *step,
                          double *seconds, struct oato_error *err);

/* Floats between -1 and 1 to the device. bytes: a multiple of four. */
oato_status bench_fill(const struct bench *b, void *to, uint64_t bytes, struct oato_error *err);

/* Copies of so many bytes that together no cache holds, at most `most`. */
uint32_t bench_copies(const struct bench *b, uint64_t bytes, uint32_t most);

/* One object of a JSON list. names: its first fields; bytes: of what must be read; flops: 0 where
 * memory or latency limits. */
void bench_print(struct bench *b, const char *names, double seconds, double bytes, double flops);

/* bench_cuda_others.c: attention, the choice of candidates, products with active neurons only.
 * Prints a JSON list. */
oato_status bench_others(struct bench *b, struct oato_error *err);

#endif
