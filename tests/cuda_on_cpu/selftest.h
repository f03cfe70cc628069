/*
 * selftest.h - arguments of the kernels of selftest.cu, for the host and for the device.
 */
#ifndef OATO_CUDA_SELFTEST_H
#define OATO_CUDA_SELFTEST_H

#include <stdint.h>

enum { SHUFFLES = 9, VOTES = 6 };

/* out[thread][SHUFFLES]: value[thread] exchanged in as many ways. */
struct shuffle_args {
    const int32_t *value;
    int32_t *out;
};

/* out[thread][VOTES]: bit[thread] voted on by the warp, its halves and the block. */
struct vote_args {
    const int32_t *bit;
    int32_t *out;
};

/* sum[block] of the block's blockDim.x values. */
struct sum_args {
    const float *value;
    float *sum;
};

/* The block's n bytes backwards, through n bytes of shared memory; adds to *written how many of
 * them, and in the first block how many words of a static array, did not begin as garbage. */
struct reverse_args {
    const uint8_t *in;
    uint8_t *out;
    int32_t n;
    int32_t *written;
};

struct word_args {
    const uint32_t *a, *b, *c;
    uint32_t
        *out; /* [thread][5]: dp4a signed, unsigned, a - b bytewise, b permuted, funnel shift */
};

/* Thread i of the grid: half i as float, float i as half. */
struct half_args {
    const float *given;
    float *wide;
    uint16_t *narrow;
};

/* One warp: c += a b, a 16 x k row after row, b column after column, c 16 x 8. */
struct product_args {
    const uint8_t *a, *b;
    uint8_t *c;
};

/* One warp: row i % 8 of tile i / 8 goes through shared memory, as zeros where i % 5 is 4, and out
 * of it as load_tiles has it: out[lane][tile]. */
struct tile_args {
    const uint16_t *row; /* [32][8] */
    uint32_t *out;
    int32_t early; /* read before they have arrived */
};

/* out[block of the grid, z slowest] = x + 100 y + 10000 z. */
struct grid_args {
    int32_t *out;
};

/* *to = *from * 3 + n by one thread, after a while. */
struct step_args {
    const int32_t *from;
    int32_t *to;
    int32_t n;
};

/* What is wrong about a kernel that must not get through. */
enum wrong {
    WRONG_BARRIER, /* half of a warp waits for the block, the other half for the warp */
    WRONG_LANE,    /* a lane returns that others wait for */
    WRONG_MASK,    /* a lane takes part without being in the mask */
    WRONG_MEETING, /* lanes of a mask meet in different operations */
    WRONG_SHARED,  /* one byte beyond the shared memory that was launched with */
    WRONG_STATIC,  /* one element beyond a static array in shared memory */
    WRONG_DEVICE,  /* one byte beyond an allocation */
    WRONG_COPY,    /* a thread returns while it copies */
    WRONG_WAIT,    /* a thread waits twice for the kernel before */
    WRONG_AHEAD,   /* fetches ahead when it has waited */
    WRONG_TRAP,
};
struct wrong_args {
    int32_t what;
    int32_t n; /* 64 */
    uint8_t *bytes;
};

/* out[i] = i + 1 through shared memory, without the barrier that this needs. */
struct race_args {
    int32_t *out;
};

#endif
