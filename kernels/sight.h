/*
 * sight.h - which accelerators are plugged in, whether a driver runs them or not, from what the
 * kernel lists of the PCI bus.
 */
#ifndef OATO_SIGHT_H
#define OATO_SIGHT_H

#include "base/base.h"

enum { PCI_NVIDIA = 0x10de };

struct pci_sight {
    char at[32]; /* "0000:01:00.0" */
    unsigned vendor, device;
    char driver[32]; /* the kernel's that runs it; "": none */
};

/* GPUs and other accelerators, in no order, below root (device_ops.sight). Returns how many there
 * are, of which the first `most` are stored. */
int pci_accelerators(const char *root, struct pci_sight *out, int most);
/* Entries of a folder below root whose names begin so. */
int entries_count(const char *root, const char *folder, const char *begin);

#endif
