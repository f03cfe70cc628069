/*
 * memory.c - device memory that the host cannot read, and page-locked host memory.
 *
 * A segment of device memory is one anonymous file mapped twice: at the addresses that the client
 * is given, without any access, and at an alias through which the stand-in works. The kernel itself
 * refuses what the host does with a client's address, system calls included. Allocations are cut
 * from segments in rising order, at multiples of 64 that are none of 128 (STAND_RULES=loose: of
 * 512), with guard bytes behind them; freed addresses come back only when the whole segment is free
 * and address space runs short, so that what is used after it was freed is found. New memory holds
 * bytes of 0xff: not-a-number in every float type, -1 in every integer.
 */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD = 64, GUARD_BYTE = 0xC3, ALIGN = 64, LOOSE_ALIGN = 512 };
#define SEGMENT_BYTES (UINT64_C(64) << 20)
/* Poison that is written: the rest of a large allocation reads as zeros. */
#define POISONED_BYTES (UINT64_C(16) << 20)
/* Address space kept behind live memory, in bytes, before segments are used again. */
#define QUARANTINE_BYTES (UINT64_C(4) << 30)

struct segment {
    struct segment *next;
    uint8_t *base, *alias;
    uint64_t bytes, cut;
    int device, live;
};

static struct segment *segments;
static uint64_t mapped_bytes;
static struct stand_region **regions; /* by base, rising */
static size_t n_regions, room;

/* The index of the first region whose base is above the address. */
static size_t after(const void *address)
{
    size_t low = 0, high = n_regions;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)regions[middle]->base > (uintptr_t)address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void insert(struct stand_region *region)
{
    if (n_regions == room) {
        room = room ? 2 * room : 64;
        regions = realloc(regions, room * sizeof(void *));
        if (!regions)
            abort();
    }
    size_t at = after(region->base);
    memmove(regions + at + 1, regions + at, (n_regions - at) * sizeof(void *));
    regions[at] = region;
    n_regions++;
}

static void erase(size_t at)
{
    free(regions[at]);
    memmove(regions + at, regions + at + 1, (n_regions - at - 1) * sizeof(void *));
    n_regions--;
}

static const struct segment *segment_of(const void *address)
{
    for (const struct segment *s = segments; s; s = s->next)
        if ((uintptr_t)address - (uintptr_t)s->base < s->bytes)
            return s;
    return NULL;
}

bool stand_is_device_address(const void *address)
{
    return segment_of(address) != NULL;
}

struct stand_region *stand_region_of(const void *address)
{
    size_t at = after(address);
    if (!at)
        return NULL;
    struct stand_region *region = regions[at - 1];
    size_t past = (uintptr_t)address - (uintptr_t)region->base;
    size_t held = region->device < 0 ? region->bytes : region->bytes + GUARD;
    if (region->reserved)
        held = region->reserved_bytes;
    return past < (held ? held : 1) ? region : NULL;
}

uint8_t *stand_alias(const void *address, size_t n, enum stand_rule *rule, const char **fault)
{
    struct stand_region *region = stand_region_of(address);
    *rule = RULE_BOUNDS;
    if (!region && !stand_is_device_address(address))
        return (uint8_t *)(uintptr_t)address;
    if (!region) {
        *fault = "no allocation is there";
        return NULL;
    }
    if (region->freed) {
        *rule = RULE_USE_AFTER_FREE;
        *fault = "the memory was freed";
        return NULL;
    }
    size_t past = (uintptr_t)address - (uintptr_t)region->base;
    if (past > region->bytes || n > region->bytes - past) {
        *fault = "the allocation ends before";
        return NULL;
    }
    return region->alias + past;
}

/* Where the first allocation of a segment begins; the others follow at twice ALIGN, or at this. */
static uint64_t first_cut(void)
{
    return stand_is_loose() ? LOOSE_ALIGN : ALIGN;
}

static struct segment *segment_map(int device, uint64_t bytes)
{
    struct segment *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (struct segment){.device = device, .bytes = bytes, .cut = first_cut()};
    int file = memfd_create("stand-in", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes)) {
        if (file >= 0)
            close(file);
        free(s);
        return NULL;
    }
    s->base = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    s->alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file); /* the mappings hold it */
    if (s->base == MAP_FAILED || s->alias == MAP_FAILED) {
        if (s->base != MAP_FAILED)
            munmap(s->base, bytes);
        free(s);
        return NULL;
    }
    s->next = segments;
    segments = s;
    mapped_bytes += bytes;
    return s;
}

static void segment_forget(struct segment *s)
{
    for (size_t i = n_regions; i-- > 0;)
        if (regions[i]->segment == s)
            erase(i);
}

/* A segment with room for so many bytes: the newest one, an old one that is all free, a new one. */
static struct segment *segment_for(int device, uint64_t bytes)
{
    for (struct segment *s = segments; s; s = s->next)
        if (s->device == device && s->bytes - s->cut >= bytes)
            return s;
    if (mapped_bytes > devices[device].taken + QUARANTINE_BYTES)
        for (struct segment *s = segments; s; s = s->next)
            if (s->device == device && s->live == 0 && s->bytes - first_cut() >= bytes) {
                segment_forget(s);
                s->cut = first_cut();
                return s;
            }
    bytes += first_cut();
    return segment_map(device, (bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES * SEGMENT_BYTES);
}

/* Gives the pages of a freed region back, whole pages inside it only. */
static void drop_pages(const struct stand_region *region)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)region->alias + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)region->alias + region->bytes) / page * page;
    if (to > from)
        madvise((void *)from, to - from, MADV_REMOVE);
}

static void poison(struct stand_region *region)
{
    memset(region->alias, 0xff,
           region->bytes < POISONED_BYTES ? region->bytes : (size_t)POISONED_BYTES);
    memset(region->alias + region->bytes, GUARD_BYTE, GUARD);
}

/* NULL: no memory. */
static void *allocate(int device, size_t bytes)
{
    struct device *d = &devices[device];
    if (bytes > d->memory - d->taken)
        return NULL;
    uint64_t grain = stand_is_loose() ? LOOSE_ALIGN : 2 * ALIGN;
    uint64_t step = (bytes + GUARD + grain - 1) / grain * grain;
    struct segment *s = segment_for(device, step);
    struct stand_region *region = calloc(1, sizeof *region);
    if (!s || !region) {
        free(region);
        return NULL;
    }
    *region = (struct stand_region){.base = s->base + s->cut,
                                    .alias = s->alias + s->cut,
                                    .bytes = bytes,
                                    .device = device,
                                    .segment = s};
    s->cut += step;
    s->live++;
    d->taken += bytes;
    poison(region);
    insert(region);
    return region->base;
}

static int out_of_memory(const char *symbol, size_t bytes, int device)
{
    return stand_error(ACL_ERROR_RT_MEMORY_ALLOCATION,
                       "EZ9999: %s: %zu bytes, %llu of %llu are free on device %d", symbol, bytes,
                       (unsigned long long)(devices[device].memory - devices[device].taken),
                       (unsigned long long)devices[device].memory, device);
}

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    int code = stand_enter("aclrtMalloc", NEEDS_DEVICE | NEEDS_HEALTH);
    if (!code && (!devPtr || !size || (int)policy < 0))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "aclrtMalloc of %zu bytes",
                           size);
    if (!code) {
        *devPtr = allocate(stand_thread()->device, size);
        if (!*devPtr)
            code = out_of_memory("aclrtMalloc", size, stand_thread()->device);
    }
    return stand_leave(code);
}

/* Breaks the rule that freeing this region breaks, if any. 0 where it may go. */
static int check_free(void *address, bool host, const char *symbol)
{
    struct stand_region *region = stand_region_of(address);
    if (!region && (host || stand_is_device_address(address)))
        return stand_break(RULE_DOUBLE_FREE, ACL_ERROR_RT_PARAM_INVALID, "%s: %p is not allocated",
                           symbol, address);
    if (!region || (region->device < 0) != host)
        return stand_break(RULE_FREE_KIND, ACL_ERROR_RT_PARAM_INVALID, "%s: %p is %s memory",
                           symbol, address, host ? "device" : "host");
    if (region->freed || region->base != address || region->reserved)
        return stand_break(RULE_DOUBLE_FREE, ACL_ERROR_RT_PARAM_INVALID, "%s: %p %s", symbol,
                           address, region->freed ? "was freed before" : "begins no allocation");
    bool workspace;
    if (pending_use(region->base, region->bytes, true, &workspace)) {
        stand_break(workspace ? RULE_WORKSPACE_FREED : RULE_FREED_IN_USE, 0,
                    "%s: %p is used by a task that has not run", symbol, address);
        region->blamed = true;
    }
    return 0;
}

aclError aclrtFree(void *devPtr)
{
    int code = stand_enter("aclrtFree", NEEDS_INIT);
    code = code ? code : check_free(devPtr, false, "aclrtFree");
    if (!code) {
        struct stand_region *region = stand_region_of(devPtr);
        for (int i = 0; i < GUARD; i++)
            if (region->alias[region->bytes + (size_t)i] != GUARD_BYTE)
                abort(); /* an operator of the stand-in wrote past its checks */
        region->freed = true;
        region->segment->live--;
        devices[region->device].taken -= region->bytes;
        drop_pages(region);
    }
    return stand_leave(code);
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    int code = stand_enter("aclrtMallocHost", NEEDS_DEVICE);
    if (!code && (!hostPtr || !size))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID,
                           "aclrtMallocHost of %zu bytes", size);
    struct stand_region *region = code ? NULL : calloc(1, sizeof *region);
    if (!code && (!region || posix_memalign(hostPtr, ALIGN, size))) {
        free(region);
        code = stand_error(ACL_ERROR_RT_MEMORY_ALLOCATION, "EZ9999: aclrtMallocHost");
    } else if (!code) {
        *region =
            (struct stand_region){.base = *hostPtr, .alias = *hostPtr, .bytes = size, .device = -1};
        memset(*hostPtr, 0xff, size);
        insert(region);
    }
    return stand_leave(code);
}

/* Host memory really goes: under ASan, a later use of it is shown with its stacks. What a pending
 * task uses stays until the end instead, so that the task ends in an error and not in a crash. */
aclError aclrtFreeHost(void *hostPtr)
{
    int code = stand_enter("aclrtFreeHost", NEEDS_INIT);
    code = code ? code : check_free(hostPtr, true, "aclrtFreeHost");
    if (!code && stand_region_of(hostPtr)->blamed) {
        stand_region_of(hostPtr)->freed = true;
    } else if (!code) {
        erase(after(hostPtr) - 1);
        free(hostPtr);
    }
    return stand_leave(code);
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free_bytes, size_t *total)
{
    int code = stand_enter("aclrtGetMemInfo", NEEDS_DEVICE);
    if (!code && (!free_bytes || !total || ((int)attr != ACL_DDR_MEM && (int)attr != ACL_HBM_MEM)))
        code = stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "aclrtGetMemInfo(%d)",
                           (int)attr);
    if (!code) {
        const struct device *d = &devices[stand_thread()->device];
        *free_bytes = (size_t)(d->memory - d->taken);
        *total = (size_t)d->memory;
    }
    return stand_leave(code);
}

struct stand_region *region_reserve(int device, size_t bytes, size_t alignment)
{
    struct segment *s = segment_map(device, bytes + alignment);
    struct stand_region *region = s ? calloc(1, sizeof *region) : NULL;
    if (!region)
        return NULL;
    size_t skip = (size_t)(-(uintptr_t)s->base) & (alignment - 1);
    *region = (struct stand_region){.base = s->base + skip,
                                    .alias = s->alias + skip,
                                    .device = device,
                                    .reserved = true,
                                    .reserved_bytes = bytes,
                                    .segment = s};
    s->cut = s->bytes;
    s->live++;
    insert(region);
    return region;
}

void region_release(struct stand_region *region)
{
    struct segment *s = region->segment;
    struct segment **at = &segments;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    segment_forget(s);
    /* The client's addresses stay taken: a late use faults and meets nobody else's memory. */
    madvise(s->alias, s->bytes, MADV_REMOVE);
    munmap(s->alias, s->bytes);
    mapped_bytes -= s->bytes;
    free(s);
}

int64_t regions_live(int64_t *bytes, int64_t *host)
{
    int64_t n = 0;
    *bytes = *host = 0;
    for (size_t i = 0; i < n_regions; i++) {
        const struct stand_region *region = regions[i];
        if (region->freed)
            continue;
        n += region->device >= 0;
        *host += region->device < 0;
        *bytes += region->device >= 0 ? (int64_t)region->bytes : 0;
    }
    return n;
}

void regions_reset(void)
{
    while (n_regions) {
        if (regions[n_regions - 1]->device < 0)
            free(regions[n_regions - 1]->base);
        erase(n_regions - 1);
    }
    free(regions);
    regions = NULL;
    room = 0;
    while (segments) {
        struct segment *s = segments;
        segments = s->next;
        munmap(s->base, s->bytes);
        munmap(s->alias, s->bytes);
        free(s);
    }
    mapped_bytes = 0;
}
