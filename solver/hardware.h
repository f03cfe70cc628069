/*
 * hardware.h - the profiles of docs/hardware, compiled in by cmake/embed.cmake so that a program
 * that was copied elsewhere has them too.
 */
#ifndef OATO_HARDWARE_H
#define OATO_HARDWARE_H

#include <stddef.h>
#include <stdint.h>

struct embedded_file {
    const char *name; /* without folder and extension */
    const uint8_t *data;
    size_t bytes;
};
extern const struct embedded_file embedded_files[];
extern const int embedded_file_count;

#endif
