/*
 * machine.c - the fingerprint of the machine: what decides its speed, and nothing that
 * identifies its owner. Topology and caches come from hwloc, the instruction set from what the
 * kernel reports as usable.
 */
#include "profiler/profiler_internal.h"

#include <ctype.h>
#include <hwloc.h>
#include <string.h>
#include <unistd.h>

/* Flags worth telling apart, as /proc/cpuinfo spells them and as the profile does. */
static const struct {
    const char *flag, *name;
} isa_levels[] = {
    {"sse4_2", "sse4.2"},
    {"avx", "avx"},
    {"avx2", "avx2"},
    {"fma", "fma"},
    {"f16c", "f16c"},
    {"avx_vnni", "avxvnni"},
    {"avx512f", "avx512f"},
    {"avx512bw", "avx512bw"},
    {"avx512vl", "avx512vl"},
    {"avx512_vnni", "avx512vnni"},
    {"avx512_bf16", "avx512bf16"},
    {"avx512_fp16", "avx512fp16"},
    {"amx_tile", "amx-tile"},
    {"amx_int8", "amx-int8"},
    {"amx_bf16", "amx-bf16"},
    {"asimd", "neon"},
    {"asimddp", "dotprod"},
    {"i8mm", "i8mm"},
    {"sve", "sve"},
    {"sve2", "sve2"},
};

/* The value of the first line "key : value" of /proc/cpuinfo; "" when there is none. */
static void cpuinfo_value(const char *root, const char *key, char *out, size_t out_bytes)
{
    char line[8192], path[4096];
    size_t n = strlen(key);
    out[0] = 0;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *f = stream_open(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, n) != 0 || !(line[n] == '\t' || line[n] == ' '))
            continue;
        snprintf(out, out_bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
        out[strcspn(out, "\n")] = 0;
        break;
    }
    if (f)
        fclose(f);
}

static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
        if ((at == text || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

void machine_processor(const char *root, char cpu[128], char isa[256])
{
    char flags[8192];
    struct text t;
    text_init(&t);
    cpuinfo_value(root, "model name", cpu, 128);
    cpuinfo_value(root, "flags", flags, sizeof flags);
    if (!flags[0])
        cpuinfo_value(root, "Features", flags, sizeof flags); /* aarch64 */
    for (size_t i = 0; i < ARRAY_LEN(isa_levels); i++)
        if (has_word(flags, isa_levels[i].flag))
            text_printf(&t, "%s%s", t.len ? " " : "", isa_levels[i].name);
    snprintf(isa, 256, "%s", or_empty(t.data));
    text_free(&t);
}

static uint64_t cache_bytes(hwloc_topology_t t, hwloc_obj_type_t type)
{
    hwloc_obj_t o = hwloc_get_obj_by_type(t, type, 0);
    return o ? o->attr->cache.size : 0;
}

static int32_t count(hwloc_topology_t t, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(t, type);
    return n > 0 ? n : 1;
}

#define HWLOC_BYTES ((size_t)16 << 20) /* more than it takes */

oato_status machine_read(struct profile *p, struct oato_error *err)
{
    struct profile_machine *m = &p->machine;
    char cpu[128], isa[256];
    hwloc_topology_t t;
    if (!memory_spare(HWLOC_BYTES)) /* a failed allocation crashes it */
        return oato_fail_memory(err, HWLOC_BYTES, "describing this machine");
    if (hwloc_topology_init(&t))
        return oato_fail(err, OATO_EDEVICE, "hwloc cannot describe this machine");
    if (hwloc_topology_load(t)) {
        hwloc_topology_destroy(t);
        return oato_fail(err, OATO_EDEVICE, "hwloc cannot describe this machine");
    }
    m->sockets = count(t, HWLOC_OBJ_PACKAGE);
    m->cores = count(t, HWLOC_OBJ_CORE);
    m->threads = count(t, HWLOC_OBJ_PU);
    m->numa_nodes = count(t, HWLOC_OBJ_NUMANODE);
    /* not hwloc's sum over NUMA nodes: in a container that may be one node's share */
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    m->memory_bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    m->l1d_bytes = cache_bytes(t, HWLOC_OBJ_L1CACHE);
    m->l2_bytes = cache_bytes(t, HWLOC_OBJ_L2CACHE);
    m->l3_bytes = cache_bytes(t, HWLOC_OBJ_L3CACHE);
    hwloc_obj_t package = hwloc_get_obj_by_type(t, HWLOC_OBJ_PACKAGE, 0);
    const char *name = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    machine_processor("", cpu, isa);
    if (name && name[0])
        snprintf(cpu, sizeof cpu, "%s", name);
    hwloc_topology_destroy(t);
    m->cpu = profile_string(p, cpu[0] ? cpu : "unknown");
    m->isa = profile_string(p, isa);
    if (!m->cpu || !m->isa)
        return oato_fail_memory(err, sizeof cpu + sizeof isa, "the machine's description");
    return OATO_OK;
}

bool machine_same(const struct profile_machine *a, const struct profile_machine *b, char *why,
                  size_t why_bytes)
{
    const struct {
        const char *name;
        int64_t there, here;
    } numbers[] = {
        {"sockets", a->sockets, b->sockets},
        {"cores", a->cores, b->cores},
        {"threads", a->threads, b->threads},
        {"NUMA nodes", a->numa_nodes, b->numa_nodes},
        {"bytes of last-level cache", (int64_t)a->l3_bytes, (int64_t)b->l3_bytes},
    };
    const char *cpu = or_empty(a->cpu), *isa = or_empty(a->isa);
    why[0] = 0;
    if (strcmp(cpu, b->cpu) != 0)
        snprintf(why, why_bytes, "its CPU is '%s', this one is '%s'", cpu, b->cpu);
    else if (strcmp(isa, b->isa) != 0)
        snprintf(why, why_bytes, "its instruction set is '%s', this one's is '%s'", isa, b->isa);
    for (size_t i = 0; i < ARRAY_LEN(numbers) && !why[0]; i++)
        if (numbers[i].there != numbers[i].here)
            snprintf(why, why_bytes, "it has %lld %s, this one %lld", (long long)numbers[i].there,
                     numbers[i].name, (long long)numbers[i].here);
    return !why[0];
}

/* What makers put into names without telling machines apart. */
static const char *const noise[] = {"(R)", "(TM)", "(r)", "(tm)", "CPU", "Processor"};

void machine_file_name(const struct profile_machine *m, char *out, size_t out_bytes)
{
    static const char suffix[] = ".profile.yaml";
    size_t n = 0, room = out_bytes - sizeof suffix;
    room = room > 48 ? 48 : room;
    for (const char *c = m->cpu; *c && *c != '@' && n < room;) {
        size_t skip = 0;
        for (size_t i = 0; i < ARRAY_LEN(noise); i++)
            if (!strncmp(c, noise[i], strlen(noise[i])))
                skip = strlen(noise[i]);
        if (skip) {
            c += skip;
            continue;
        }
        if (isalnum((unsigned char)*c))
            out[n++] = (char)tolower((unsigned char)*c);
        else if (n && out[n - 1] != '-')
            out[n++] = '-';
        c++;
    }
    while (n && out[n - 1] == '-')
        n--;
    snprintf(out + n, out_bytes - n, "%s%s", n ? "" : "machine", suffix);
}

/* ------------------------------------------------------------------------------- devices -- */

static bool runs(const void *device, const struct oato_op *op)
{
    const struct oato_device *d = device;
    return d->ops->supports(d, op);
}

static uint64_t workspace(const void *device, const struct oato_op *op, const struct op_size *size)
{
    const struct oato_device *d = device;
    return d->ops->workspace_bytes(d, op, size);
}

bool device_describe(struct profile *p, const struct rig *rig)
{
    const struct device_info *info = &rig->info;
    struct profile_device *d = &p->devices[rig->index];
    d->memory_bytes = info->memory_bytes;
    d->free_bytes = info->free_bytes;
    d->threads = info->threads;
    d->is_host = info->is_host;
    d->keeps = info->keeps;
    d->refills = weight_refills(rig->device);
    d->spans = info->spans;
    d->compile_cached = info->compile_cached;
    memcpy(d->rows, info->rows, sizeof d->rows);
    return profile_put_runs(p, rig->index, runs, rig->device) &&
           profile_put_values(p, rig->index, device_values(rig->device)) &&
           (d->is_host || profile_put_workspaces(p, rig->index, workspace, rig->device));
}
