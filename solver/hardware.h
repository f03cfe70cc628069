/*
 * hardware.h - the profiles of docs/hardware, compiled in by cmake/embed.cmake so that a program
 * that was copied elsewhere has them too.
 */
#ifndef OATO_HARDWARE_H
#define OATO_HARDWARE_H

#include "base/base.h"

extern const struct embedded_file hardware_files[]; /* the last one has no name */

#endif
