/*
 * pool.h - the part of pool.c that its test needs: where a worker is bound.
 */
#ifndef OATO_CPU_POOL_H
#define OATO_CPU_POOL_H

#include <hwloc.h>

/* The processors of one of n_threads threads; NULL: any. Borrowed from the topology. */
hwloc_const_cpuset_t cpu_place(hwloc_topology_t t, int n_threads, int thread);

#endif
