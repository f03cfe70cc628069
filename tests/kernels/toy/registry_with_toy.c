/*
 * registry_with_toy.c - the registry with one more word in DEVICE_KINDS: of a new kind this word,
 * its folder, CMake and documents are all that there is to write.
 */
#include "kernels/device.h"

#undef DEVICE_KINDS
#define DEVICE_KINDS(row) row(cpu) row(cuda) row(sim) row(toy)
extern const struct device_ops toy_device_ops;
/* NOLINTNEXTLINE(bugprone-suspicious-include): the same code for another list */
#include "kernels/registry.c"
