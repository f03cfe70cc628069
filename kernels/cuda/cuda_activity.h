/*
 * cuda_activity.h - how long a GPU really worked: NVIDIA's profiling library CUPTI, opened at run
 * time like the driver, writes a record with begin and end for every kernel and copy. This file
 * sums them between marks, empty kernels that the caller launches at the points of interest.
 *
 * There is one recorder for the process, for one thread at a time: only one device is measured at a
 * time. While it records, a launch takes some microseconds longer; kernels themselves do not.
 *
 * OATO_CUPTI names a library to use instead of libcupti.so.
 */
#ifndef OATO_CUDA_ACTIVITY_H
#define OATO_CUDA_ACTIVITY_H

#include "base/base.h"

/* The name of the mark kernel (measure.cu). */
#define CUDA_MARK_KERNEL "measure_mark"

/* Starts recording. cuda_version: of the driver, 13000 for CUDA 13.0. Fails where there is no
 * CUPTI, or none that works with the driver. */
oato_status cuda_activity_start(int cuda_version, struct oato_error *err);
void cuda_activity_stop(void);

/* All launched work must be done. busy_ns[i]: how long kernels and copies ran before the i-th of n
 * marks, since the last call; overlapping work counts once. Fails when records are missing. Drops
 * what was recorded in either case. */
oato_status cuda_activity_take(uint32_t n, uint64_t *busy_ns, struct oato_error *err);

#endif
