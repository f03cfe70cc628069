/*
 * memory.c - checked sizes, arenas and page-sized allocations. An arena is a list of blocks that
 * double in size; nothing is freed before the whole arena is, so pointers into it stay valid.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { ARENA_ALIGN = 64, ARENA_FIRST = 16 << 10, ARENA_LARGEST = 4 << 20 };
#define HUGE_PAGE ((size_t)2 << 20)

struct arena_block {
    struct arena_block *next;
    size_t used, cap;
    uint8_t pad[ARENA_ALIGN - 3 * sizeof(size_t)];
    uint8_t data[];
};

bool size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

void *array_room(void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    const size_t more = *cap * 2 + 64;
    void *room = realloc(array, more * size);
    *cap = room ? more : *cap;
    return room;
}

void arena_init(struct arena *a)
{
    memset(a, 0, sizeof *a);
}

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > SIZE_MAX / 4)
        return NULL;
    bytes = size_align(bytes ? bytes : 1, ARENA_ALIGN);
    struct arena_block *b = a->blocks;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = b ? b->cap * 2 : ARENA_FIRST;
        if (cap > ARENA_LARGEST)
            cap = ARENA_LARGEST;
        if (cap < bytes)
            cap = bytes;
        b = aligned_alloc(ARENA_ALIGN, sizeof *b + cap);
        if (!b)
            return NULL;
        b->used = 0;
        b->cap = cap;
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->data + b->used;
    memset(p, 0, bytes);
    b->used += bytes;
    a->used_bytes += bytes;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1, 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

void arena_free(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    arena_init(a);
}

void *pages_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = size_align(bytes ? bytes : 1, 4096);
    size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p =
        mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (slack) { /* give back the unaligned ends */
        size_t head = size_align((uintptr_t)p, HUGE_PAGE) - (uintptr_t)p;
        if (head)
            munmap(p, head);
        if (slack - head)
            munmap(p + head + bytes, slack - head);
        p += head;
        madvise(p, bytes, MADV_HUGEPAGE);
    }
    return p;
}

void pages_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, size_align(bytes ? bytes : 1, 4096));
}

bool memory_spare(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED)
        munmap(p, bytes);
    return p != MAP_FAILED;
}

uint64_t peak_rss_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)u.ru_maxrss * 1024;
}
