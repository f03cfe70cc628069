/*
 * cuda_sight.c - which GPUs of NVIDIA are plugged in, and what may be missing to compute on them:
 * the kernel's driver, the files by which a process (in a container: only if it was given them)
 * reaches the GPUs, and the library of the driver.
 */
#include "kernels/cuda/cuda_device.h"
#include "kernels/sight.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIGHTS = 64 };

static const char driver_install[] = "sudo apt install nvidia-driver && sudo reboot";
static const char driver_folder[] = "/proc/driver/nvidia";

/* Where to look: the bus, what the kernel's driver says, the devices' files. A container may show
 * any of them without the others. */
static void count(const char *root, struct pci_sight *first, int *n, int *nodes)
{
    struct pci_sight s[SIGHTS];
    const int all = (int)min_i64(pci_accelerators(root, s, SIGHTS), SIGHTS);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (s[i].vendor == PCI_NVIDIA && !(*n)++)
            *first = s[i];
    *nodes = 0; /* beside nvidiactl and the like */
    for (char begin[] = "nvidia0"; begin[6] <= '9'; begin[6]++)
        *nodes += entries_count(root, "/dev", begin);
    if (!*n)
        *n = entries_count(root, "/proc/driver/nvidia/gpus", "");
    if (!*n)
        *n = *nodes;
}

/* "NVIDIA GeForce RTX 3090 at 0000:01:00.0", or by numbers while no driver says its name. */
static void name(const char *root, const struct pci_sight *s, char *out, size_t bytes)
{
    char path[128], line[128];
    const char *model = "NVIDIA GPU";
    snprintf(path, sizeof path, "%s/gpus/%s/information", driver_folder, s->at);
    if (s->at[0] && host_line(root, path, line, sizeof line) && !strncmp(line, "Model:", 6))
        model = line + 6 + strspn(line + 6, " \t");
    if (s->at[0])
        snprintf(out, bytes, "%.60s (%04x:%04x) at %s", model, s->vendor, s->device, s->at);
    else
        snprintf(out, bytes, "%s", model);
}

static bool may_use(const char *root, const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", root, file);
    return access(path, F_OK) || !access(path, R_OK | W_OK);
}

#define WHY(text, what)                                                                            \
    (snprintf(out->why, sizeof out->why, "%s", text),                                              \
     snprintf(out->command, sizeof out->command, "%s", what))

void cuda_sight(const char *root, struct device_sight *out)
{
    const char *hides = getenv("CUDA_VISIBLE_DEVICES");
    const bool contained = host_contained(root);
    struct pci_sight first = {0};
    struct oato_error ignored;
    char line[256];
    int nodes;
    *out = (struct device_sight){0};
    count(root, &first, &out->n, &nodes);
    if (!out->n)
        return;
    name(root, &first, out->what, sizeof out->what);
    if (hides)
        snprintf(out->hidden, sizeof out->hidden, "CUDA_VISIBLE_DEVICES");
    const bool loaded = host_line(root, "/proc/driver/nvidia/version", line, sizeof line);
    if (!loaded && !strcmp(first.driver, "nouveau"))
        WHY("the driver nouveau runs it, which cannot compute", driver_install);
    else if (!loaded && !strncmp(first.driver, "vfio", 4))
        WHY("it is kept for virtual machines (driver vfio-pci)",
            "sudo driverctl list-overrides # then unset-override its address");
    else if (!loaded && contained)
        WHY("the host's kernel has no NVIDIA driver loaded", "sudo modprobe nvidia # on the host");
    else if (!loaded)
        WHY("no NVIDIA driver is loaded", driver_install);
    else if (!nodes && contained)
        WHY("this container was not given it", "docker run --gpus all ...");
    else if (!nodes)
        WHY("/dev/nvidia0 is missing", "sudo nvidia-modprobe -c 0 -u");
    else if (!may_use(root, "/dev/nvidiactl") || !may_use(root, "/dev/nvidia0"))
        WHY("this user may not open /dev/nvidia0",
            "sudo usermod -aG video $USER # and log in again");
    else if (!cuda_driver_found() && contained)
        WHY("the driver's library, libcuda.so.1, is missing in this container",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...");
    else if (!cuda_driver_found())
        WHY("the driver's library, libcuda.so.1, is missing", "sudo apt install libcuda1");
    else /* what the library itself says of why it fails goes before this */
        snprintf(out->command, sizeof out->command, "%s",
                 contained ? "sudo apt install nvidia-driver && sudo reboot # on the host"
                           : driver_install);
    if (cuda_driver_open(&ignored) && !cuda_blas_found()) {
        snprintf(out->lacks, sizeof out->lacks,
                 "cuBLAS, whose products are faster for long prompts");
        snprintf(out->lacks_command, sizeof out->lacks_command, "sudo apt install libcublas12");
    }
}
