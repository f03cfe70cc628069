/*
 * asc_sight.c - which NPUs are plugged in, and what may be missing to compute on them: the kernel's
 * driver, the files by which a process reaches them, CANN. Reads files only.
 */
#include "kernels/ascend/asc_internal.h"
#include "kernels/sight.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PCI_HUAWEI = 0x19e5, SIGHTS = 64 };

static const struct {
    unsigned device;
    const char *name;
} chips[] = {{0xd100, "Ascend 310"}, {0xd105, "Ascend 310B"}, {0xd500, "Ascend 310P"},
             {0xd801, "Ascend 910"}, {0xd802, "Ascend 910B"}, {0xd803, "Ascend 910C"}};

int asc_nodes(const char *root)
{
    char path[4096];
    int n = 0;
    for (int i = 0; i < ASC_NPUS; i++) {
        snprintf(path, sizeof path, "%s/dev/davinci%d", root, i);
        n += !access(path, F_OK);
    }
    return n;
}

static void count(const char *root, struct pci_sight *first, int *n)
{
    struct pci_sight s[SIGHTS];
    const int all = (int)min_i64(pci_accelerators(root, s, SIGHTS), SIGHTS);
    *n = 0;
    for (int i = 0; i < all; i++)
        if (s[i].vendor == PCI_HUAWEI && !(*n)++)
            *first = s[i];
    if (!*n) /* a container may show the files only; a 310B is not on a bus */
        *n = asc_nodes(root);
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

void asc_sight(const char *root, struct device_sight *out)
{
    const char *model = "Ascend NPU";
    struct pci_sight first = {0};
    *out = (struct device_sight){0};
    count(root, &first, &out->n);
    if (!out->n)
        return;
    for (size_t i = 0; first.at[0] && i < ARRAY_LEN(chips); i++)
        if (chips[i].device == first.device)
            model = chips[i].name;
    if (first.at[0])
        snprintf(out->what, sizeof out->what, "Huawei %s (%04x:%04x) at %s", model, first.vendor,
                 first.device, first.at);
    else
        snprintf(out->what, sizeof out->what, "Huawei %s", model);
    if (getenv("ASCEND_RT_VISIBLE_DEVICES"))
        snprintf(out->hidden, sizeof out->hidden, "ASCEND_RT_VISIBLE_DEVICES");
    if (!asc_nodes(root) && host_contained(root))
        WHY("this container was not given it",
            "docker run --device /dev/davinci0 --device /dev/davinci_manager "
            "--device /dev/devmm_svm --device /dev/hisi_hdc ...");
    else if (!asc_nodes(root))
        WHY("no driver runs it", "sudo ./Ascend-hdk-*-npu-driver_*.run --full # from hiascend.com");
    else if (!may_use(root, "/dev/davinci_manager") || !may_use(root, "/dev/davinci0"))
        WHY("this user may not open /dev/davinci0",
            "sudo usermod -aG HwHiAiUser $USER # and log in again");
    else if (!asc_libraries_found(NULL))
        WHY("CANN's library, libascendcl.so, is missing",
            "source /usr/local/Ascend/ascend-toolkit/set_env.sh # or set OATO_ASCEND");
    else /* what CANN itself says of why it fails goes before this */
        snprintf(out->command, sizeof out->command, "npu-smi info");
}
