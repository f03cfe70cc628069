/*
 * wide_checks.c - gcc's address sanitizer checks accesses of up to 16 bytes in line and calls
 * libasan for wider ones, which looks slowly: three quarters of a sanitized test were checks of
 * vectors. These functions take the place of libasan's. Whether all bytes of a vector may be
 * accessed is one look at their shadow, a byte for every eight; all else is libasan's to judge.
 */
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { SHADOW_SCALE = 3 };
#define SHADOW_OFFSET UINT64_C(0x7fff8000) /* x86-64 Linux */

void __asan_loadN(void *p, long bytes);
void __asan_storeN(void *p, long bytes);
void __asan_report_load_n(void *p, long bytes);
void __asan_report_store_n(void *p, long bytes);

static bool is_free(void *p, size_t bytes)
{
    const uintptr_t at = (uintptr_t)p;
    const uint64_t first = at >> SHADOW_SCALE, n = ((at + bytes - 1) >> SHADOW_SCALE) - first + 1;
    uint64_t shadow;
    if (n - 1 < sizeof shadow) {
        memcpy(&shadow, (const void *)(first + SHADOW_OFFSET), sizeof shadow);
        if (!(shadow << (64 - 8 * n))) /* little-endian: of the first n */
            return true;
    }
    return !__asan_region_is_poisoned(p, bytes);
}

void __asan_loadN(void *p, long bytes)
{
    if (!is_free(p, (size_t)bytes))
        __asan_report_load_n(p, bytes);
}

void __asan_storeN(void *p, long bytes)
{
    if (!is_free(p, (size_t)bytes))
        __asan_report_store_n(p, bytes);
}
