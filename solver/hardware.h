/*
 * hardware.h - the profiles of docs/hardware, compiled in by cmake/hardware.cmake so that a program
 * that was copied elsewhere has them too.
 */
#ifndef OATO_HARDWARE_H
#define OATO_HARDWARE_H

#include <stddef.h>
#include <stdint.h>

struct hardware_file {
    const char *name; /* without folder and extension */
    const uint8_t *data;
    size_t bytes;
};
extern const struct hardware_file hardware_files[];
extern const int hardware_file_count;

#endif
