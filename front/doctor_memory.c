/*
 * doctor_memory.c - what `oato doctor` says of memory, huge pages, and the limits of this process
 * and its container.
 */
#include "front/doctor.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GIB(bytes) ((double)(bytes) / (1 << 30))
#define NO_LIMIT   UINT64_MAX

void doctor_memory(struct doctor *d)
{
    struct host_share share;
    char command[192];
    host_share_read(d->root, &share);
    const uint64_t total = host_value(d->root, "/proc/meminfo", "MemTotal") << 10;
    const uint64_t swap = host_value(d->root, "/proc/meminfo", "SwapTotal") << 10;
    const uint64_t swap_free = host_value(d->root, "/proc/meminfo", "SwapFree") << 10;
    const bool limited = share.memory_bytes < total;
    const uint64_t swapped = swap > swap_free ? swap - swap_free : 0;
    doctor_line(d, "memory", "%.1f GiB, %.1f available%s", GIB(total ? total : share.memory_bytes),
                GIB(share.available_bytes), swap ? "" : ", no swap");
    if (limited)
        doctor_line(d, "", "a control group allows %.1f GiB", GIB(share.memory_bytes));
    if (swapped)
        doctor_line(d, "", "%.1f of %.1f GiB of swap are used", GIB(swapped), GIB(swap));
    json_add_object(&d->json, "memory", JSON("total_bytes", total ? total : share.memory_bytes),
                    JSON("available_bytes", share.available_bytes),
                    JSON("limit_bytes", limited ? share.memory_bytes : (uint64_t)0),
                    JSON("swap_bytes", swap), JSON("swapped_bytes", swapped));
    if (limited) {
        snprintf(command, sizeof command,
                 d->contained ? "docker run --memory=%" PRIu64 "g ..."
                              : "systemctl set-property UNIT MemoryMax=%" PRIu64 "G",
                 total >> 30);
        doctor_advise(d, ADVICE_MEMORY_LIMIT, command,
                      "a control group allows %.1f of %.1f GiB of memory", GIB(share.memory_bytes),
                      GIB(total));
    }
    /* what has been swapped out already shows that memory was short with all that runs */
    if (swapped > total / 20)
        doctor_advise(d, ADVICE_MEMORY_SWAPPED, "ps -eo rss,comm --sort=-rss | head",
                      "%.1f GiB of memory are swapped out: end what is not needed", GIB(swapped));
}

/* The word in brackets: "always [madvise] never". */
static void chosen_word(const char *line, char *out, size_t bytes)
{
    const char *from = strchr(line, '[');
    snprintf(out, bytes, "%.*s", from ? (int)strcspn(from + 1, "]") : 0, from ? from + 1 : "");
}

static void huge_pages(struct doctor *d)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
    char line[128], word[32];
    host_line(d->root, path, line, sizeof line);
    chosen_word(line, word, sizeof word);
    const uint64_t reserved = host_value(d->root, "/proc/meminfo", "HugePages_Total");
    const uint64_t left = host_value(d->root, "/proc/meminfo", "HugePages_Free");
    const uint64_t page = host_value(d->root, "/proc/meminfo", "Hugepagesize") << 10;
    const bool off = !strcmp(word, "never");
    doctor_line(d, "huge pages", "transparent: %s%s; reserved: %" PRIu64 "%s",
                word[0] ? word : "not in this kernel",
                word[0] && !off ? ", so weights lie in them" : "", reserved,
                reserved ? ", which nothing here uses" : "");
    json_add_object(&d->json, "huge_pages", JSON("transparent", word), JSON("reserved", reserved),
                    JSON("reserved_free", left), JSON("page_bytes", page));
    if (off)
        doctor_advise(d, ADVICE_HUGE_PAGES_OFF,
                      "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                      "transparent huge pages are off: addresses of weights are looked up page by "
                      "page of 4 KiB");
    if (left * page >= (uint64_t)1 << 28)
        doctor_advise(d, ADVICE_MEMORY_RESERVED, "sudo sysctl vm.nr_hugepages=0",
                      "%.1f GiB of memory are reserved as huge pages of hugetlbfs, which nothing "
                      "here uses",
                      GIB(left * page));
}

/* A row "Max locked memory  8388608  unlimited  bytes" of /proc/self/limits; NO_LIMIT: none. */
static void limit_read(const struct doctor *d, const char *name, uint64_t *soft, uint64_t *hard)
{
    char path[4096], line[256], first[32], second[32];
    const size_t n = strlen(name);
    *soft = *hard = NO_LIMIT;
    snprintf(path, sizeof path, "%s/proc/self/limits", d->root);
    FILE *f = stream_open(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && sscanf(line + n, "%31s %31s", first, second) == 2) {
            *soft = *first == 'u' ? NO_LIMIT : strtoull(first, NULL, 10);
            *hard = *second == 'u' ? NO_LIMIT : strtoull(second, NULL, 10);
        }
    if (f)
        fclose(f);
}

/* Bytes of /dev/shm: what its mount says ("size=65536k"), else half of the memory, as usual. */
static uint64_t shared_bytes(const struct doctor *d)
{
    char path[4096], line[4096];
    uint64_t kib = host_value(d->root, "/proc/meminfo", "MemTotal") / 2;
    bool mounted = false;
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", d->root);
    FILE *f = stream_open(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!strstr(line, " /dev/shm "))
            continue;
        const char *size = strstr(line, "size=");
        char *end = NULL;
        mounted = true;
        kib = size ? strtoull(size + 5, &end, 10) : kib;
        if (end && *end != 'k' && *end != 'm' && *end != 'g')
            kib >>= 10;
        else if (end)
            kib <<= *end == 'm' ? 10 : *end == 'g' ? 20 : 0;
    }
    if (f)
        fclose(f);
    return mounted ? kib << 10 : 0;
}

/* Whether the limit of locked memory does not hold for this process (CAP_IPC_LOCK). */
static bool locks_freely(const struct doctor *d)
{
    enum { IPC_LOCK = 14 };
    static const char key[] = "CapEff:";
    char path[4096], line[256];
    uint64_t capabilities = 0;
    snprintf(path, sizeof path, "%s/proc/self/status", d->root);
    FILE *f = stream_open(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, sizeof key - 1))
            capabilities = strtoull(line + sizeof key - 1, NULL, 16);
    if (f)
        fclose(f);
    return capabilities >> IPC_LOCK & 1;
}

static void limit_words(uint64_t bytes, char out[32])
{
    if (bytes == NO_LIMIT)
        snprintf(out, 32, "no limit");
    else if (bytes >= 1 << 30)
        snprintf(out, 32, "%.1f GiB", GIB(bytes));
    else
        snprintf(out, 32, "%.3g MiB", (double)bytes / (1 << 20));
}

/* JSON has no word for what is not limited: 0. */
static uint64_t or_zero(uint64_t limit)
{
    return limit == NO_LIMIT ? 0 : limit;
}

void doctor_limits(struct doctor *d)
{
    enum { FILES_LEAST = 1024 }; /* what a server with the usual number of connections opens */
    /* a ring for weights that are read ahead: READS_AHEAD reads on their way, twice */
    static const uint64_t ring = (uint64_t)2 * READS_AHEAD * READ_CHUNK;
    static const uint64_t shared_least = (uint64_t)32 << 20; /* RANKS_MAX slots, and MPI's own */
    uint64_t locked, locked_most, files, files_most, space, space_most;
    char words[32], shared_words[32], space_words[32];
    huge_pages(d);
    d->locked_bytes = NO_LIMIT;
    limit_read(d, "Max locked memory", &locked, &locked_most);
    limit_read(d, "Max open files", &files, &files_most);
    limit_read(d, "Max address space", &space, &space_most);
    const uint64_t shared = shared_bytes(d);
    limit_words(locked, words);
    limit_words(shared, shared_words);
    limit_words(space, space_words);
    doctor_line(d, "limits", "locked memory: %s; open files: %" PRIu64 "; address space: %s", words,
                or_zero(files), space_words);
    doctor_line(d, "", "/dev/shm: %s%s", shared ? shared_words : "none",
                d->contained ? "; in a container" : "");
    json_add_object(&d->json, "limits", json_bool("container", d->contained),
                    JSON("locked_bytes", or_zero(locked)), JSON("open_files", or_zero(files)),
                    JSON("open_files_most", or_zero(files_most)),
                    JSON("address_space_bytes", or_zero(space)),
                    JSON("shared_memory_bytes", shared));
    if (locked < ring && !locks_freely(d))
        d->locked_bytes = locked;
    if (shared < shared_least)
        doctor_advise(d, ADVICE_SHARED_MEMORY,
                      d->contained ? "docker run --shm-size=1g ..."
                                   : "sudo mount -o remount,size=1g /dev/shm",
                      "/dev/shm has %s, too little for several ranks on this host",
                      shared ? shared_words : "nothing");
    if (files_most < FILES_LEAST)
        doctor_advise(d, ADVICE_OPEN_FILES,
                      d->contained ? "docker run --ulimit nofile=4096 ..." : "ulimit -n 4096",
                      "only %" PRIu64 " files may be open: a server has fewer connections",
                      files_most);
    if (space != NO_LIMIT && space < host_value(d->root, "/proc/meminfo", "MemTotal") << 10)
        doctor_problem(d, "address-space", "ulimit -v unlimited",
                       "the address space is limited to %s: models that fit in memory cannot be "
                       "mapped",
                       space_words);
}
