/*
 * sight.c - see sight.h, and what is plugged in that no kind of device runs on.
 */
#include "kernels/sight.h"
#include "kernels/device.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, SIGHTS = 64 };

static const char pci_folder[] = "/sys/bus/pci/devices";

/* A number such as "0x10de" of one device of the bus; 0: there is none. */
static unsigned pci_number(const char *root, const char *at, const char *what)
{
    char path[PATH_BYTES], line[64];
    unsigned value = 0;
    snprintf(path, sizeof path, "%s/%s/%s", pci_folder, at, what);
    return host_line(root, path, line, sizeof line) && sscanf(line, "%x", &value) == 1 ? value : 0;
}

/* PCI Code and ID Assignment Specification: class 03 are displays, of which 00 (VGA) and 02 (3D)
 * compute, 12 are processing accelerators. */
static bool computes(unsigned class)
{
    return class >> 8 == 0x0300 || class >> 8 == 0x0302 || class >> 16 == 0x12;
}

static DIR *folder_open(const char *root, const char *folder)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s%s", root, folder);
    return opendir(path);
}

int pci_accelerators(const char *root, struct pci_sight *out, int most)
{
    DIR *folder = folder_open(root, pci_folder);
    int n = 0;
    for (const struct dirent *e; folder && (e = readdir(folder));) {
        if (e->d_name[0] == '.' || !computes(pci_number(root, e->d_name, "class")))
            continue;
        if (n < most) {
            char path[PATH_BYTES], driver[PATH_BYTES] = "";
            struct pci_sight *s = &out[n];
            snprintf(s->at, sizeof s->at, "%.31s", e->d_name);
            s->vendor = pci_number(root, e->d_name, "vendor");
            s->device = pci_number(root, e->d_name, "device");
            snprintf(path, sizeof path, "%s%s/%s/driver", root, pci_folder, e->d_name);
            const ssize_t length = readlink(path, driver, sizeof driver - 1);
            driver[length > 0 ? length : 0] = 0;
            const char *slash = strrchr(driver, '/');
            snprintf(s->driver, sizeof s->driver, "%.31s", slash ? slash + 1 : driver);
        }
        n++;
    }
    if (folder)
        closedir(folder);
    return n;
}

int entries_count(const char *root, const char *name, const char *begin)
{
    DIR *folder = folder_open(root, name);
    int n = 0;
    for (const struct dirent *e; folder && (e = readdir(folder));)
        n += e->d_name[0] != '.' && !strncmp(e->d_name, begin, strlen(begin));
    if (folder)
        closedir(folder);
    return n;
}

/* Makers of accelerators that some programs compute on, but this one does not. Adapters that only
 * show pictures, of servers and virtual machines, are not worth a word. */
static const struct {
    unsigned vendor;
    const char *name;
} makers[] = {{0x1002, "AMD"}, {0x8086, "Intel"}};

int device_strangers(const char *root, struct text *out)
{
    struct pci_sight s[SIGHTS];
    const int all = (int)min_i64(pci_accelerators(root, s, SIGHTS), SIGHTS);
    int n = 0;
    for (int i = 0; i < all; i++)
        for (size_t j = 0; j < ARRAY_LEN(makers); j++)
            if (makers[j].vendor == s[i].vendor)
                text_printf(out, "%s%s %04x:%04x at %s", n++ ? ", " : "", makers[j].name,
                            s[i].vendor, s[i].device, s[i].at);
    return n;
}
