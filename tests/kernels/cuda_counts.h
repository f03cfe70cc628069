/*
 * cuda_counts.h - how often a test has the driver launch a kernel or a graph: functions that count
 * stand in front of the driver's between count_begin and count_end. Included once by each test
 * program.
 */
#ifndef OATO_CUDA_COUNTS_H
#define OATO_CUDA_COUNTS_H

#include "kernels/cuda/cuda_driver.h"

static struct cuda_driver *counted; /* the driver that devices call */
static struct cuda_driver uncounted;
static _Atomic int launches;
static int graph_launches, captures;
static int overlapping; /* of the launches */

static cu_result count_launch(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, cu_stream stream,
                              void **arguments, void **extra)
{
    launches++;
    return uncounted.launch(f, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
}

static cu_result count_launch_as(const struct cu_launch *how, cu_function f, void **arguments,
                                 void **extra)
{
    launches++;
    overlapping++;
    return uncounted.launch_as(how, f, arguments, extra);
}

static cu_result count_graph(cu_graph_exec exec, cu_stream stream)
{
    graph_launches++;
    return uncounted.graph_launch(exec, stream);
}

static cu_result count_capture(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    captures++;
    return uncounted.graph_instantiate(exec, graph, flags);
}

/* In place of the one that begins: what would be graphs is launched one by one. */
static inline cu_result refuse_capture(cu_stream stream, int mode)
{
    (void)stream;
    (void)mode;
    return CU_ERROR_NOT_FOUND;
}

static void count_begin(void)
{
    counted = (struct cuda_driver *)(uintptr_t)cuda_driver_open(NULL);
    uncounted = *counted;
    counted->launch = count_launch;
    counted->launch_as = count_launch_as;
    counted->graph_launch = count_graph;
    counted->graph_instantiate = count_capture;
    launches = graph_launches = captures = overlapping = 0;
}

static void count_end(void)
{
    *counted = uncounted;
}

#endif
