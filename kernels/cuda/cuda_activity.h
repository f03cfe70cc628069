/*
 * cuda_activity.h - how long a GPU really worked: NVIDIA's profiling library CUPTI, opened at run
 * time like the driver, writes a record with begin and end for every kernel and copy. Here they are
 * summed up between marks, empty kernels that the caller launches where it wants to know.
 *
 * There is one recorder for the process, for one thread at a time: a device under measurement works
 * alone. While it records, a launch costs some microseconds more, a kernel itself no more.
 *
 * OATO_CUPTI names another library in place of libcupti.so.
 */
#ifndef OATO_CUDA_ACTIVITY_H
#define OATO_CUDA_ACTIVITY_H

#include "base/base.h"

/* The name of the kernel that is a mark (measure.cu). */
#define CUDA_MARK_KERNEL "measure_mark"

/* Starts recording. cuda_version: of the driver, 13000 for CUDA 13.0. Fails where there is no
 * CUPTI, or none that works with the driver. */
oato_status cuda_activity_start(int cuda_version, struct oato_error *err);
void cuda_activity_stop(void);

/* Everything that was launched must be done. busy_ns[i]: how long kernels and copies ran before the
 * i-th of n marks since the last call, overlaps once. Fails when records are missing; what was
 * recorded is dropped in either case. */
oato_status cuda_activity_take(uint32_t n, uint64_t *busy_ns, struct oato_error *err);

#endif
