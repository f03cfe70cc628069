/*
 * allocations.h - counts the allocations of a test program: the linker passes every one through
 * allocations.c (tests/executor/CMakeLists.txt).
 */
#ifndef OATO_EXECUTOR_ALLOCATIONS_H
#define OATO_EXECUTOR_ALLOCATIONS_H

#include <stdbool.h>

extern _Atomic bool allocations_count; /* whether they are counted */
extern _Atomic int allocations;        /* so far */

#endif
