/*
 * missing.c - in each of the three libraries: STAND_MISSING=SYMBOL,... takes symbols out of the
 * library that is being opened, so that dlsym truly does not find them. The dynamic linker compares
 * the name that it looks for with the one in the library's string table; the name there is changed
 * before anyone can look.
 */
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));
extern const char __ehdr_start[] __attribute__((visibility("hidden")));

/* Changes the first letter of the name where it stands as a whole string. */
static void take_out(char *table, size_t bytes, const char *name, size_t length)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (char *at = table + 1; at + length < table + bytes; at += strlen(at) + 1) {
        if (strlen(at) != length || memcmp(at, name, length) != 0)
            continue;
        uintptr_t from = (uintptr_t)at / page * page;
        if (mprotect((void *)from, (uintptr_t)at + 1 - from, PROT_READ | PROT_WRITE) == 0) {
            *at ^= 0x20;
            mprotect((void *)from, (uintptr_t)at + 1 - from, PROT_READ);
        }
    }
}

__attribute__((constructor)) static void take_out_missing(void)
{
    const char *names = getenv("STAND_MISSING");
    uintptr_t table = 0;
    size_t bytes = 0;
    for (const ElfW(Dyn) *entry = _DYNAMIC; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            table = entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRSZ)
            bytes = entry->d_un.d_val;
    }
    /* Not every system's linker has made it an address. */
    if (table < (uintptr_t)__ehdr_start)
        table += (uintptr_t)__ehdr_start;
    while (names && *names) {
        size_t length = strcspn(names, ",");
        if (length)
            take_out((char *)table, bytes, names, length);
        names += length + (names[length] == ',');
    }
}
