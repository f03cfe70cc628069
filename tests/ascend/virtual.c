/*
 * virtual.c - address space reserved apart from the memory that is mapped into it
 * (aclrtReserveMemAddress and its kin), where the chip has it. One restriction beyond the
 * documentation's: what is mapped into a range follows what was mapped before, as a pool does.
 */
#include "runtime.h"

#include <string.h>

#define GRANULARITY ((size_t)2 << 20)

struct physical {
    int device;
    size_t bytes;
    uint8_t *at; /* where it is mapped, or NULL */
};

static int enter(const char *symbol, unsigned needs)
{
    int code = stand_enter(symbol, needs);
    if (!code && !stand_chip()->virtual_memory)
        code = stand_break(RULE_CHIP, ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s: not on %s", symbol,
                           stand_chip()->soc);
    return code;
}

static int refuse(const char *symbol, const char *why)
{
    return stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: %s", symbol, why);
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop,
                                          aclrtMemGranularityOptions option, size_t *granularity)
{
    (void)option;
    int code = enter("aclrtMemGetAllocationGranularity", NEEDS_INIT);
    if (!code && (!prop || !granularity))
        code = refuse("aclrtMemGetAllocationGranularity", "an argument is NULL");
    if (!code)
        *granularity = GRANULARITY;
    return stand_leave(code);
}

aclError aclrtReserveMemAddress(void **virPtr, size_t size, size_t alignment, void *expectPtr,
                                uint64_t flags)
{
    const char *symbol = "aclrtReserveMemAddress";
    int code = enter(symbol, NEEDS_DEVICE);
    if (!code && (!virPtr || !size || alignment || expectPtr || flags > 1))
        code = refuse(symbol, "a size of 0, an alignment or an address");
    if (!code) {
        struct stand_region *region = region_reserve(stand_thread()->device, size, GRANULARITY);
        if (region)
            *virPtr = region->base;
        else
            code =
                stand_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "EZ9999: %s: no address space", symbol);
    }
    return stand_leave(code);
}

static struct stand_region *reserved_at(void *address)
{
    struct stand_region *region = stand_region_of(address);
    return region && region->reserved ? region : NULL;
}

aclError aclrtReleaseMemAddress(void *virPtr)
{
    int code = enter("aclrtReleaseMemAddress", NEEDS_DEVICE);
    struct stand_region *region = code ? NULL : reserved_at(virPtr);
    if (!code && (!region || region->base != virPtr || region->bytes))
        code = refuse("aclrtReleaseMemAddress", "not reserved, or memory is mapped there");
    if (!code)
        region_release(region);
    return stand_leave(code);
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size,
                             const aclrtPhysicalMemProp *prop, uint64_t flags)
{
    const char *symbol = "aclrtMallocPhysical";
    int code = enter(symbol, NEEDS_DEVICE);
    if (!code && (!handle || !prop || !size || size % GRANULARITY || flags ||
                  (int)prop->location.id >= device_count()))
        code = refuse(symbol, "a size that is no multiple of 2 MiB, or a device that is none");
    if (!code) {
        struct device *device = &devices[prop->location.id];
        if (size > device->memory - device->taken) {
            code =
                stand_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "EZ9999: %s: %zu bytes", symbol, size);
        } else {
            struct physical *physical = stand_object_new(KIND_PHYSICAL, sizeof *physical);
            *physical = (struct physical){(int)prop->location.id, size, NULL};
            device->taken += size;
            *handle = physical;
        }
    }
    return stand_leave(code);
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    int code = enter("aclrtFreePhysical", NEEDS_DEVICE);
    struct physical *physical = handle;
    if (!code && stand_object_is_live(handle, KIND_PHYSICAL) && physical->at)
        code = refuse("aclrtFreePhysical", "it is mapped");
    code = code ? code : stand_object_end(handle, KIND_PHYSICAL, "aclrtFreePhysical");
    if (!code)
        devices[physical->device].taken -= physical->bytes;
    return stand_leave(code);
}

aclError aclrtMapMem(void *virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle,
                     uint64_t flags)
{
    int code = enter("aclrtMapMem", NEEDS_DEVICE);
    code = code ? code : stand_object_check(handle, KIND_PHYSICAL, "aclrtMapMem");
    struct physical *physical = handle;
    struct stand_region *region = code ? NULL : reserved_at(virPtr);
    if (!code &&
        (!region || (uint8_t *)virPtr != region->base + region->bytes || offset || flags ||
         physical->at || size != physical->bytes || size > region->reserved_bytes - region->bytes))
        code = refuse("aclrtMapMem", "not the next address of a reserved range, or a wrong size");
    if (!code) {
        physical->at = virPtr;
        memset(region->alias + region->bytes, 0xff, size);
        region->bytes += size;
    }
    return stand_leave(code);
}

static void unmap(void *object, void *address)
{
    struct physical *physical = object;
    if (physical->at != *(uint8_t **)address)
        return;
    physical->at = NULL;
    *(uint8_t **)address = NULL;
}

aclError aclrtUnmapMem(void *virPtr)
{
    int code = enter("aclrtUnmapMem", NEEDS_DEVICE);
    struct stand_region *region = code ? NULL : reserved_at(virPtr);
    void *address = virPtr;
    if (region)
        objects_each(KIND_PHYSICAL, unmap, &address);
    if (!code && (!region || address))
        code = refuse("aclrtUnmapMem", "nothing is mapped there");
    if (!code) {
        size_t at = (size_t)((uint8_t *)virPtr - region->base);
        bool workspace;
        if (at < region->bytes && pending_use(virPtr, region->bytes - at, true, &workspace))
            stand_break(workspace ? RULE_WORKSPACE_FREED : RULE_FREED_IN_USE, 0,
                        "aclrtUnmapMem: %p is used by a task that has not run", virPtr);
        region->bytes = at < region->bytes ? at : region->bytes;
    }
    return stand_leave(code);
}
