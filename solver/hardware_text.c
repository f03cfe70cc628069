/*
 * hardware_text.c - a machine that is in no library, described by a line:
 *
 *     cuda=12GiB,360GB/s,51T;cpu=8,51GB/s          memory, bandwidth, arithmetic; cores, bandwidth
 *     cuda*2=24GiB,936GB/s,71T,pcie=16GB/s;cpu=16,51GB/s,64GiB
 *
 * Figures are a data sheet's, in any order, told apart by their units. They become a profile as
 * those of docs/hardware are made: nothing in it is measured, so all prices are estimates.
 */
#include "solver/hardware.h"

#include "solver/solver.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* What of a data sheet is reached, as in docs/hardware. */
#define BANDWIDTH_SHARE  0.8
#define ARITHMETIC_SHARE 0.5
#define LINK_SHARE       0.75

/* Where nothing is said: PCIe 4.0 x16; the host's memory; 32 operations a cycle at 4 GHz. */
#define LINK_BYTES_PER_S 32e9
#define HOST_BYTES       (64.0 * (1 << 30))
#define CORE_FLOPS_PER_S 128e9
#define GIB              (1024.0 * 1024 * 1024)

enum { WORD = 48, GPUS_MAX = 16, CORES_MAX = 4096 };

struct part {
    double bytes, bytes_per_s, flops_per_s, link_bytes_per_s; /* 0: not given */
    int64_t cores;
};

struct machine {
    struct part gpus[GPUS_MAX], cpu;
    int n_gpus;
    double link_bytes_per_s; /* of all that have none of their own */
};

static bool ends_in(const char *word, const char *ending)
{
    const size_t n = strlen(word), m = strlen(ending);
    return n >= m && !strcasecmp(word + n - m, ending);
}

/* A number with its unit goes where that belongs, once. */
static bool take_figure(struct part *p, const char *word)
{
    static const char *const units[] = {"FLOP/s", "FLOPS", "FLOPs", ""};
    double *to = NULL, value = 0;
    if (!strncmp(word, "pcie=", 5))
        return !p->link_bytes_per_s && parse_quantity(word + 5, "B/s", &p->link_bytes_per_s) &&
               p->link_bytes_per_s >= 1e6;
    if (isdigit((unsigned char)word[strlen(word) - 1]))
        return !p->cores && parse_i64(word, 1, CORES_MAX, &p->cores);
    if (ends_in(word, "B/s"))
        to = parse_quantity(word, "B/s", &value) ? &p->bytes_per_s : NULL;
    else if (ends_in(word, "B"))
        to = parse_quantity(word, "B", &value) ? &p->bytes : NULL;
    for (size_t i = 0; !to && i < ARRAY_LEN(units); i++)
        to = parse_quantity(word, units[i], &value) ? &p->flops_per_s : NULL;
    if (!to || *to || value < 1e6 || value > 1e18)
        return false;
    *to = value;
    return true;
}

static oato_status fail_part(const char *item, const char *why, struct oato_error *err)
{
    return oato_fail(err, OATO_EUSAGE, "--hardware: '%.80s' %s", item, why);
}

/* "12GiB,360GB/s,51T" of the item, which messages show. */
static oato_status take_figures(struct part *p, const char *item, const char *figures,
                                struct oato_error *err)
{
    for (const char *at = figures;;) {
        char word[WORD];
        const size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        if (n == 0 || n >= WORD || !take_figure(p, word))
            return oato_fail(err, OATO_EUSAGE,
                             "--hardware: '%s' in '%.60s' is no memory (12GiB), bandwidth "
                             "(360GB/s), arithmetic (51T), pcie=16GB/s or number of cores, or is "
                             "there twice",
                             word, item);
        if (!at[n])
            return OATO_OK;
        at += n + 1;
    }
}

/* "cuda*2": how many; 0: it is none. */
static int gpu_count(const char *item, size_t n)
{
    char text[WORD];
    int64_t count = 1;
    if (n < 4 || n >= WORD || strncmp(item, "cuda", 4) != 0)
        return 0;
    snprintf(text, sizeof text, "%.*s", (int)(n - 4), item + 4);
    if (text[0] && (text[0] != '*' || !parse_i64(text + 1, 1, GPUS_MAX, &count)))
        return 0;
    return (int)count;
}

static oato_status take_item(struct machine *m, const char *item, struct oato_error *err)
{
    const size_t n = strcspn(item, "=");
    const int count = gpu_count(item, n);
    struct part p = {0};
    if (n == 4 && !strncmp(item, "pcie", 4))
        return !m->link_bytes_per_s && parse_quantity(item + 5, "B/s", &m->link_bytes_per_s) &&
                       m->link_bytes_per_s >= 1e6
                   ? OATO_OK
                   : fail_part(item, "is no rate such as pcie=16GB/s, or is there twice", err);
    if (!item[n] || (!count && strncmp(item, "cpu=", 4) != 0))
        return fail_part(item, "is none of cuda=..., cuda*N=... (N up to 16), cpu=... and pcie=...",
                         err);
    if (take_figures(&p, item, item + n + 1, err))
        return err->status;
    if (!count && (m->cpu.cores || !p.cores || !p.bytes_per_s || p.link_bytes_per_s))
        return fail_part(item,
                         m->cpu.cores ? "is a second cpu"
                                      : "wants the cores and the bandwidth of memory, as "
                                        "cpu=8,51GB/s, perhaps memory and arithmetic",
                         err);
    if (count && (!p.bytes || !p.bytes_per_s || !p.flops_per_s || p.cores))
        return fail_part(item,
                         "wants memory, bandwidth and arithmetic, as cuda=12GiB,360GB/s,51T, "
                         "perhaps pcie=16GB/s",
                         err);
    if (m->n_gpus + count > GPUS_MAX)
        return fail_part(item, "makes more than 16 GPUs", err);
    if (!count)
        m->cpu = p;
    for (int i = 0; i < count; i++)
        m->gpus[m->n_gpus++] = p;
    return OATO_OK;
}

static oato_status parse(const char *text, struct machine *m, struct oato_error *err)
{
    for (const char *at = text; *at;) {
        char item[4 * WORD];
        const size_t n = strcspn(at, ";");
        if ((size_t)snprintf(item, sizeof item, "%.*s", (int)n, at) >= sizeof item)
            return fail_part(at, "is too long", err);
        if (n && take_item(m, item, err))
            return err->status;
        at += n + (at[n] == ';');
    }
    return m->cpu.cores ? OATO_OK : fail_part(text, "has no cpu, such as cpu=8,51GB/s", err);
}

/* The system and other programs have a part of the host's memory, the display some of a GPU's. */
static double free_of_host(double bytes)
{
    const double rest = bytes - 4 * GIB - bytes / 32;
    return rest > bytes / 2 ? rest : bytes / 2;
}

static double free_of_gpu(double bytes)
{
    return bytes - (bytes < 16 * GIB ? GIB / 2 < bytes / 2 ? GIB / 2 : bytes / 2 : GIB);
}

static void put_device(struct text *t, const char *kind, int i, const struct part *p, double free,
                       bool host)
{
    text_printf(t,
                "- id: %s:%d\n  kind: %s\n  model: described\n  memory_bytes: %.0f\n"
                "  free_bytes: %.0f\n  threads: %lld\n  is_host: %s\n  read_bytes_per_s: %.0f\n"
                "  flops_per_s: %.0f\n  record_overhead_ns: %d\n  step_overhead_ns: %d\n"
                "  data_sheet: true\n%s",
                kind, i, kind, p->bytes, free, (long long)p->cores, host ? "true" : "false",
                BANDWIDTH_SHARE * p->bytes_per_s, ARITHMETIC_SHARE * p->flops_per_s,
                host ? 500 : 2500, host ? 5000 : 10000, host ? "" : "  keeps: true\n");
}

/* What the text left open. */
static void put_notes(struct text *t, const struct machine *m)
{
    bool link = false;
    for (int i = 0; i < m->n_gpus; i++)
        link |= !m->gpus[i].link_bytes_per_s && !m->link_bytes_per_s;
    text_printf(
        t, "notes: a described machine, nothing is measured - 80 %% of its bandwidths, half of "
           "its arithmetic, 75 %% of its links");
    if (link)
        text_printf(t, "; assumed pcie=%.0fGB/s", LINK_BYTES_PER_S * 1e-9);
    if (!m->cpu.bytes)
        text_printf(t, "; assumed %.0fGiB of host memory", HOST_BYTES / GIB);
    if (!m->cpu.flops_per_s)
        text_printf(t, "; assumed %.1fT of the cpu",
                    CORE_FLOPS_PER_S * (double)m->cpu.cores * 1e-12);
    text_printf(t, "\n");
}

static void put_profile(struct text *t, const struct machine *m)
{
    struct part cpu = m->cpu;
    cpu.bytes = cpu.bytes ? cpu.bytes : HOST_BYTES;
    cpu.flops_per_s = cpu.flops_per_s ? cpu.flops_per_s : CORE_FLOPS_PER_S * (double)cpu.cores;
    text_printf(t, "oato_profile: 1\ntool: --hardware\n");
    put_notes(t, m);
    text_printf(t, "machine: {cores: %lld, memory_bytes: %.0f}\ndevices:\n", (long long)cpu.cores,
                cpu.bytes);
    put_device(t, "cpu", 0, &cpu, free_of_host(cpu.bytes), true);
    for (int i = 0; i < m->n_gpus; i++)
        put_device(t, "cuda", i, &m->gpus[i], free_of_gpu(m->gpus[i].bytes), false);
    for (int i = 0; i < m->n_gpus; i++) {
        const double own = m->gpus[i].link_bytes_per_s;
        const double given = own ? own : m->link_bytes_per_s;
        const double rate = LINK_SHARE * (given ? given : LINK_BYTES_PER_S);
        text_printf(t,
                    "%s- {from: 'cpu:0', to: 'cuda:%d', latency_ns: 8000, bytes_per_s: %.0f, "
                    "sync_ns: 5000}\n"
                    "- {from: 'cuda:%d', to: 'cpu:0', latency_ns: 8000, bytes_per_s: %.0f, "
                    "sync_ns: 5000}\n",
                    i ? "" : "links:\n", i, rate, i, rate);
    }
}

oato_status hardware_describe(const char *text, struct profile *out, warn_fn warn, void *user,
                              struct oato_error *err)
{
    struct machine m = {0};
    struct text yaml;
    if (parse(text, &m, err))
        return err->status;
    text_init(&yaml);
    put_profile(&yaml, &m);
    const oato_status status =
        yaml.failed ? oato_fail_memory(err, yaml.len, "a profile")
                    : profile_load_memory(yaml.data, yaml.len, "--hardware", out, warn, user, err);
    text_free(&yaml);
    return status;
}
