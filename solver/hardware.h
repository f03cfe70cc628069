/*
 * hardware.h - the profiles of docs/hardware, compiled in by cmake/embed.cmake so that a program
 * that was copied elsewhere has them too; and machines that a text describes.
 */
#ifndef OATO_HARDWARE_H
#define OATO_HARDWARE_H

#include "planfmt/planfmt.h"

extern const struct embedded_file hardware_files[]; /* the last one has no name */

/* The profile of a machine that is only described, "cuda=12GiB,360GB/s,51T;cpu=8,51GB/s": the rates
 * are those of data sheets, and estimates of the library's come of them (docs/hardware). Its notes
 * say what was assumed. OATO_EUSAGE names the part of the text that is wrong. */
oato_status hardware_describe(const char *text, struct profile *out, warn_fn warn, void *user,
                              struct oato_error *err);

#endif
