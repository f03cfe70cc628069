/*
 * host.c - what this process may use of its machine: processors and memory, within its affinity
 * and the control groups (cgroups, version 1 and 2) that containers and services are held to, and
 * how long cpu_relax takes here.
 *
 * A group's limit holds for everything below it, so each limit is the smallest on the way from the
 * process's own group up to the root of what is mounted. Files that are missing limit nothing.
 */
#include "base/base.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 8192 };

/* A hierarchy of groups: version 2, or one of version 1 with the controller asked for. */
struct hierarchy {
    char mount[PATH_BYTES]; /* its root as it is mounted here */
    char group[PATH_BYTES]; /* of this process, below that; "" for the root */
};

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------- reading small files --- */

static FILE *open_below(const char *folder, const char *group, const char *name)
{
    char path[3 * PATH_BYTES];
    snprintf(path, sizeof path, "%s%s/%s", folder, group, name);
    return stream_open(path, "r");
}

/* The n numbers of the file; "max" is UINT64_MAX, as is a negative number. */
static bool numbers_read(const struct hierarchy *h, const char *name, uint64_t *out, int n)
{
    char line[128], *at = line, *end;
    FILE *f = open_below(h->mount, h->group, name);
    bool ok = f && fgets(line, sizeof line, f);
    if (f)
        fclose(f);
    for (int i = 0; i < n && ok; i++) {
        at += strspn(at, " ");
        if (!strncmp(at, "max", 3) || *at == '-') {
            out[i] = UINT64_MAX;
            at += strcspn(at, " \n");
            continue;
        }
        out[i] = strtoull(at, &end, 10);
        ok = end != at;
        at = end;
    }
    return ok;
}

bool host_line(const char *root, const char *path, char *out, size_t bytes)
{
    FILE *f = open_below(root, "", path + 1);
    const bool ok = f && fgets(out, (int)bytes, f);
    if (f)
        fclose(f);
    out[ok ? strcspn(out, "\n") : 0] = 0;
    return ok;
}

/* The number behind `key` in a file of "key number" lines; 0 when there is none. */
static uint64_t value_of(FILE *f, const char *key)
{
    char line[256];
    const size_t n = strlen(key);
    uint64_t value = 0;
    if (f)
        rewind(f);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n) && strchr(" \t:", line[n]))
            value = strtoull(line + n + strspn(line + n, " \t:"), NULL, 10);
    return value;
}

uint64_t host_value(const char *root, const char *path, const char *key)
{
    FILE *f = open_below(root, "", path + 1);
    const uint64_t value = value_of(f, key);
    if (f)
        fclose(f);
    return value;
}

/* ------------------------------------------------------------------------------- groups ---- */

/* Whether a list of names with ',' between them has this one. */
static bool list_has(const char *list, size_t bytes, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p < list + bytes; p++)
        if ((size_t)(list + bytes - p) >= n && !strncmp(p, name, n) &&
            (p == list || p[-1] == ',') && (p + n == list + bytes || p[n] == ','))
            return true;
    return false;
}

/* The process's group in /proc/self/cgroup: lines of "4:cpu,cpuacct:/group", "0::/group". */
static bool group_find(const char *root, const char *controller, char *group)
{
    char line[LINE_BYTES];
    FILE *f = open_below(root, "/proc/self", "cgroup");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        const size_t bytes = (size_t)(path - names - 1);
        found = controller ? list_has(names + 1, bytes, controller) : !bytes;
        if (found)
            snprintf(group, PATH_BYTES, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
    }
    if (f)
        fclose(f);
    return found;
}

/* Its mount in /proc/self/mountinfo: "31 23 0:28 /root /mount options - type source super". */
static bool mount_find(const char *root, const char *controller, char *top, char *mount)
{
    char line[LINE_BYTES];
    FILE *f = open_below(root, "/proc/self", "mountinfo");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        char at[PATH_BYTES], type[32], super[1024];
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(rest, " - %31s %*s %1023s", type, super) != 2 ||
            sscanf(line, "%*s %*s %*s %4095s %4095s", top, at) != 2)
            continue;
        found = controller ? !strcmp(type, "cgroup") && list_has(super, strlen(super), controller)
                           : !strcmp(type, "cgroup2");
        if (found && (size_t)snprintf(mount, PATH_BYTES, "%s%s", root, at) >= PATH_BYTES)
            found = false;
    }
    if (f)
        fclose(f);
    return found;
}

/* The hierarchy of a controller of version 1, or (NULL) that of version 2. */
static bool hierarchy_find(const char *root, const char *controller, struct hierarchy *h)
{
    char top[PATH_BYTES];
    if (!group_find(root, controller, h->group) || !mount_find(root, controller, top, h->mount))
        return false;
    /* a container may see only its own group, mounted as if it were the root */
    const size_t n = strlen(top);
    if (n > 1 && !strncmp(h->group, top, n) && (!h->group[n] || h->group[n] == '/'))
        memmove(h->group, h->group + n, strlen(h->group + n) + 1);
    if (strstr(h->group, "/..") || !strcmp(h->group, "/"))
        h->group[0] = 0;
    return true;
}

/* To the group above; false at the root. */
static bool hierarchy_up(struct hierarchy *h)
{
    char *last = strrchr(h->group, '/');
    if (!last)
        return false;
    *last = 0;
    return true;
}

/* ------------------------------------------------------------------------------- limits ---- */

static void cpus_limit(struct hierarchy *h, bool v2, struct host_share *s)
{
    do {
        uint64_t quota[2] = {UINT64_MAX, 0}; /* us of each period of us */
        const bool known = v2 ? numbers_read(h, "cpu.max", quota, 2)
                              : numbers_read(h, "cpu.cfs_quota_us", quota, 1) &&
                                    numbers_read(h, "cpu.cfs_period_us", quota + 1, 1);
        if (!known || quota[0] == UINT64_MAX || !quota[1])
            continue;
        const double share = (double)quota[0] / (double)quota[1];
        if (!s->quota || share < s->quota)
            s->quota = share;
        const uint64_t whole = quota[0] / quota[1];
        if (whole < (uint64_t)s->processors)
            s->processors = whole ? (int32_t)whole : 1;
    } while (hierarchy_up(h));
}

/* Groups above with a wider limit count, too: what else is in them may have used it up. */
static void memory_limit(struct hierarchy *h, bool v2, struct host_share *s)
{
    const uint64_t machine_bytes = s->memory_bytes;
    do {
        uint64_t most = 0, used = 0;
        if (!numbers_read(h, v2 ? "memory.max" : "memory.limit_in_bytes", &most, 1) ||
            !numbers_read(h, v2 ? "memory.current" : "memory.usage_in_bytes", &used, 1) ||
            most >= machine_bytes) /* no limit */
            continue;
        /* of files: given back when memory is short, as it is in the machine's MemAvailable */
        FILE *f = open_below(h->mount, h->group, "memory.stat");
        used -= min_u64(used, value_of(f, v2 ? "inactive_file" : "total_inactive_file") +
                                  value_of(f, v2 ? "active_file" : "total_active_file"));
        if (f)
            fclose(f);
        s->memory_bytes = min_u64(s->memory_bytes, most);
        s->available_bytes = min_u64(s->available_bytes, most - min_u64(most, used));
    } while (hierarchy_up(h));
}

static int32_t affinity_count(void)
{
    static const size_t most = 1 << 16; /* processors; the kernel refuses a set that is too small */
    cpu_set_t *set = CPU_ALLOC(most);
    const size_t bytes = CPU_ALLOC_SIZE(most);
    int n = set && !sched_getaffinity(0, bytes, set) ? CPU_COUNT_S(bytes, set)
                                                     : (int)sysconf(_SC_NPROCESSORS_ONLN);
    CPU_FREE(set);
    return n > 0 ? n : 1;
}

void host_share_read(const char *root, struct host_share *out)
{
    struct hierarchy h;
    out->processors = affinity_count();
    out->quota = 0;
    out->memory_bytes = host_value(root, "/proc/meminfo", "MemTotal") << 10;
    out->available_bytes = host_value(root, "/proc/meminfo", "MemAvailable") << 10;
    if (!out->memory_bytes)
        out->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!out->available_bytes)
        out->available_bytes = out->memory_bytes;
    if (hierarchy_find(root, "cpu", &h))
        cpus_limit(&h, false, out);
    if (hierarchy_find(root, "memory", &h))
        memory_limit(&h, false, out);
    if (hierarchy_find(root, NULL, &h)) { /* beside version 1 it may have some of the controllers */
        struct hierarchy same = h;
        cpus_limit(&h, true, out);
        memory_limit(&same, true, out);
    }
}

bool host_contained(const char *root)
{
    static const char *const marks[] = {"/.dockerenv", "/run/.containerenv",
                                        "/run/systemd/container"};
    bool found = false;
    for (size_t i = 0; i < ARRAY_LEN(marks) && !found; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s%s", root, marks[i]);
        found = !access(path, F_OK);
    }
    return found;
}

int32_t host_processors(void)
{
    struct host_share s;
    host_share_read("", &s);
    return s.processors;
}

int32_t host_threads(int32_t wanted, char *why, size_t why_bytes)
{
    const int32_t most = host_processors();
    why[0] = 0;
    if (wanted <= most)
        return wanted;
    snprintf(why, why_bytes,
             "%" PRId32 " threads asked for, but this process may use %" PRId32
             " processor%s: using %" PRId32,
             wanted, most, most == 1 ? "" : "s", most);
    return most;
}

/* --------------------------------------------------------------------------------- spins --- */

/* Of a batch of spins: the least of some, for any may be interrupted. */
static uint64_t batch_measure(int spins)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        const uint64_t begin = now_ns();
        for (int j = 0; j < spins; j++)
            cpu_relax();
        least = min_u64(least, now_ns() - begin);
    }
    return least ? least : 1;
}

int32_t spins_in(uint64_t ns)
{
    enum { BATCH = 200 };
    static _Atomic uint64_t batch_ns; /* 0: not measured yet; two threads may both do it */
    uint64_t known = atomic_load_explicit(&batch_ns, memory_order_relaxed);
    if (!known) {
        known = batch_measure(BATCH);
        atomic_store_explicit(&batch_ns, known, memory_order_relaxed);
    }
    return (int32_t)min_u64(ns * BATCH / known, INT32_MAX);
}
