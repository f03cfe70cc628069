/*
 * grid.h - runs a grid of a kernel, for the emulated driver.
 */
#ifndef OATO_CUDA_ON_CPU_GRID_H
#define OATO_CUDA_ON_CPU_GRID_H

#include "tests/cuda_on_cpu/cuda_on_cpu.h"

namespace cuda_on_cpu
{
/* Runs to the end; grids that several threads ask for run one after the other. */
void run_grid(const kernel &k, const void *argument, dim3 grid, unsigned threads,
              size_t shared_bytes);
/* What memory holds that nobody has written: floats and half of the halves are NaN, integers of
 * 32 bits are negative. */
void fill_with_garbage(void *p, size_t bytes);
} // namespace cuda_on_cpu

#endif
