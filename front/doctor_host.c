/*
 * doctor_host.c - what `oato doctor` says of the processor: what it has and what is used of it, its
 * clock, how many of its threads this process may use.
 */
#include "front/doctor.h"
#include "profiler/profiler.h"

#include <stdlib.h>
#include <string.h>

enum { CPUS_MOST = 4096 };

static const char cpu_folder[] = "/sys/devices/system/cpu";

/* How many numbers a list such as "0-3,8" has; *last gets the greatest. */
static int32_t list_count(const char *list, int64_t *last)
{
    int32_t n = 0;
    for (const char *p = list; *p >= '0' && *p <= '9'; p += *p == ',') {
        char *end;
        const int64_t from = strtoll(p, &end, 10);
        const int64_t to = *end == '-' ? strtoll(end + 1, &end, 10) : from;
        if (to < from || to > INT32_MAX / 2)
            break;
        n += (int32_t)(to - from + 1);
        *last = to;
        p = end;
    }
    return n;
}

static int32_t list_read(const struct doctor *d, const char *path, int64_t *last)
{
    char list[4096];
    return host_line(d->root, path, list, sizeof list) ? list_count(list, last) : 0;
}

/* The value of "Cpus_allowed_list:	0-3" in /proc/self/status. */
static int32_t allowed_count(const struct doctor *d)
{
    static const char key[] = "Cpus_allowed_list:";
    char line[4096], path[4096];
    int64_t last;
    int32_t n = 0;
    snprintf(path, sizeof path, "%s/proc/self/status", d->root);
    FILE *f = stream_open(path, "r");
    while (f && !n && fgets(line, sizeof line, f))
        if (!strncmp(line, key, sizeof key - 1))
            n = list_count(line + sizeof key - 1 + strspn(line + sizeof key - 1, " \t"), &last);
    if (f)
        fclose(f);
    return n;
}

/* --------------------------------------------------------------------- instruction sets --- */

/* The level of kernels that isa (device_options) asks for; "" where it is refused. */
static void kernels_level(const char *isa, char out[32], struct oato_error *err)
{
    const struct device_options options = {.threads = 1, .isa = isa};
    struct oato_device *device;
    struct device_info info;
    out[0] = 0;
    if (device_open("cpu", 0, &options, &device, err))
        return;
    device->ops->info(device, &info);
    snprintf(out, 32, "%s", info.isa);
    device->ops->close(device);
}

static void kernels_judge(struct doctor *d, const char *flags)
{
    const char *forced = getenv("OATO_CPU_ISA");
    struct oato_error err = {0};
    char used[32], best[32];
    kernels_level(NULL, used, &err);
    kernels_level("best", best, &err);
    if (!used[0])
        doctor_problem(d, "kernels-refused", "unset OATO_CPU_ISA", "%s", err.text);
    else if (strcmp(used, best) != 0)
        doctor_advise(d, ADVICE_KERNELS_FORCED, "unset OATO_CPU_ISA",
                      "OATO_CPU_ISA=%s keeps the kernels of %s from being used", forced, best);
    doctor_line(d, "kernels", "%s%s%s%s", used[0] ? used : "none",
                used[0] && !strcmp(used, best) ? ", the best for this processor" : ", not ",
                used[0] && !strcmp(used, best) ? "" : best,
                forced && *forced ? " (OATO_CPU_ISA is set)" : "");
    doctor_line(d, "", "it has %s", flags[0] ? flags : "no instruction set that matters");
    /* the kernel knows of tiles, and a filter of system calls keeps a process from asking for them
     */
    if (strstr(flags, "amx-bf16") && strstr(flags, "avx512bf16") && strcmp(best, "amx") != 0)
        doctor_advise(d, ADVICE_KERNELS_REFUSED,
                      d->contained ? "docker run --security-opt seccomp=unconfined ..." : "",
                      "the processor has AMX, but the system does not let this process use it%s",
                      d->contained ? ""
                                   : " (Linux 5.16 or newer does, where the hypervisor allows it)");
    json_add(&d->json, JSON("flags", flags), JSON("kernels", used), JSON("kernels_best", best),
             JSON("kernels_forced", or_empty(forced)));
}

/* ------------------------------------------------------------------------------ its clock -- */

static bool cpu_file(const struct doctor *d, int64_t cpu, const char *name, char *out, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/cpu%d/cpufreq/%s", cpu_folder, (int)cpu, name);
    return host_line(d->root, path, out, bytes);
}

/* A governor that keeps the clock low whatever runs. Under the drivers that leave the clock to the
 * processor "powersave" is the usual one, and the preference beside it decides. */
static bool governor_slow(const struct doctor *d, int64_t cpu, const char *governor)
{
    char driver[64], wish[64];
    if (strcmp(governor, "powersave") != 0)
        return !strcmp(governor, "conservative") || !strcmp(governor, "userspace");
    if (!cpu_file(d, cpu, "scaling_driver", driver, sizeof driver) ||
        (strcmp(driver, "intel_pstate") != 0 && strcmp(driver, "amd-pstate-epp") != 0))
        return true;
    return cpu_file(d, cpu, "energy_performance_preference", wish, sizeof wish) &&
           (!strcmp(wish, "power") || !strcmp(wish, "balance_power"));
}

static bool says(const struct doctor *d, const char *path, const char *what)
{
    char line[64];
    return host_line(d->root, path, line, sizeof line) && !strcmp(line, what);
}

static bool on_battery(const struct doctor *d)
{
    static const char *const mains[] = {"AC", "AC0", "ACAD", "ADP0", "ADP1"};
    bool off = false;
    for (size_t i = 0; i < ARRAY_LEN(mains); i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/class/power_supply/%s/online", mains[i]);
        off = off || says(d, path, "0");
    }
    return off;
}

static void clock_judge(struct doctor *d, int64_t last)
{
    char governor[64] = "", slow[64] = "", line[64];
    int64_t slow_cpus = 0, cap = 0, most = 0;
    for (int64_t cpu = 0; cpu <= last && cpu < CPUS_MOST; cpu++) {
        char own[64];
        if (!cpu_file(d, cpu, "scaling_governor", own, sizeof own))
            continue;
        if (!governor[0])
            snprintf(governor, sizeof governor, "%s", own);
        if (governor_slow(d, cpu, own)) {
            slow_cpus++;
            snprintf(slow, sizeof slow, "%s", own);
        }
    }
    if (cpu_file(d, 0, "scaling_max_freq", line, sizeof line))
        cap = strtoll(line, NULL, 10);
    if (cpu_file(d, 0, "cpuinfo_max_freq", line, sizeof line))
        most = strtoll(line, NULL, 10);
    const bool turbo_off = says(d, "/sys/devices/system/cpu/intel_pstate/no_turbo", "1") ||
                           says(d, "/sys/devices/system/cpu/cpufreq/boost", "0");
    if (governor[0])
        doctor_line(d, "clock", "governor %s, up to %.2f GHz%s", governor, (double)cap / 1e6,
                    turbo_off ? ", no turbo" : "");
    else
        doctor_line(d, "clock", "the system does not say how it is governed");
    json_add_object(&d->json, "clock", JSON("governor", governor),
                    JSON("limit_hz", (uint64_t)cap * 1000), JSON("most_hz", (uint64_t)most * 1000),
                    json_bool("turbo_off", turbo_off), json_bool("on_battery", on_battery(d)));
    if (on_battery(d))
        doctor_advise(d, ADVICE_ON_BATTERY, "", "it runs on its battery; plug it in");
    if (cap && cap < most)
        doctor_advise(d, ADVICE_FREQUENCY_LIMIT, "sudo cpupower frequency-set -u 10GHz",
                      "the clock is held to %.2f of %.2f GHz", (double)cap / 1e6,
                      (double)most / 1e6);
    if (slow_cpus)
        doctor_advise(d, ADVICE_GOVERNOR, "sudo cpupower frequency-set -g performance",
                      "the governor %s keeps the clock of %d processor%s low", slow, (int)slow_cpus,
                      slow_cpus == 1 ? "" : "s");
    if (turbo_off)
        doctor_advise(d, ADVICE_TURBO_OFF,
                      says(d, "/sys/devices/system/cpu/cpufreq/boost", "0")
                          ? "echo 1 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
                          : "echo 0 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo",
                      "the processor may not raise its clock above the nominal one");
}

/* ------------------------------------------------------------------------------- shares ---- */

static void share_judge(struct doctor *d, int32_t online, int64_t last)
{
    struct host_share share;
    char command[192];
    host_share_read(d->root, &share);
    const int32_t allowed = allowed_count(d);
    const bool quota = share.quota > 0 && share.quota < (allowed ? allowed : online);
    json_add(&d->json, JSON("online", (uint64_t)online), JSON("allowed", (uint64_t)allowed),
             JSON("quota", share.quota));
    if (quota) {
        snprintf(command, sizeof command, "docker run --cpus=%d ...", online);
        doctor_line(d, "", "a control group allows the time of %.3g processors", share.quota);
        doctor_advise(d, ADVICE_PROCESSOR_QUOTA,
                      d->contained ? command : "systemctl set-property UNIT CPUQuota=",
                      "a control group gives this process the time of %.3g of %d processors",
                      share.quota, online);
    }
    if (allowed && allowed < online) {
        snprintf(command, sizeof command,
                 d->contained ? "docker run --cpuset-cpus=0-%d ..." : "taskset -c 0-%d oato ...",
                 (int)last);
        doctor_line(d, "", "this process may run on %d of %d of them", (int)allowed, (int)online);
        doctor_advise(d, ADVICE_PROCESSOR_SET, command,
                      "this process may run on %d of %d processors", (int)allowed, (int)online);
    }
}

void doctor_processor(struct doctor *d)
{
    char cpu[128], isa[256], line[64];
    int64_t last = 0, ignored = 0;
    int32_t online = list_read(d, "/sys/devices/system/cpu/online", &last);
    machine_processor(d->root, cpu, isa);
    if (!online) {
        online = host_processors();
        last = online - 1;
    }
    const int32_t nodes = list_read(d, "/sys/devices/system/node/online", &ignored);
    const bool smt = says(d, "/sys/devices/system/cpu/smt/active", "1");
    json_open(&d->json, "processor", '{');
    json_add(&d->json, JSON("model", cpu), json_bool("smt", smt),
             JSON("numa_nodes", (uint64_t)(nodes ? nodes : 1)));
    doctor_line(d, "processor", "%s", cpu[0] ? cpu : "unknown");
    doctor_line(d, "", "%d processor%s%s, %d NUMA node%s%s", online, online == 1 ? "" : "s",
                smt ? ", several of a core (SMT; one thread a core is used)" : "",
                nodes ? nodes : 1, nodes > 1 ? "s" : "",
                nodes > 1 ? " (weights are spread over them)" : "");
    kernels_judge(d, isa);
    share_judge(d, online, last);
    clock_judge(d, last);
    const bool moves = nodes > 1 &&
                       host_line(d->root, "/proc/sys/kernel/numa_balancing", line, sizeof line) &&
                       strcmp(line, "0") != 0;
    if (moves)
        doctor_advise(d, ADVICE_NUMA_BALANCING, "sudo sysctl kernel.numa_balancing=0",
                      "the kernel moves pages between NUMA nodes, over which weights are spread on "
                      "purpose");
    json_add(&d->json, json_bool("numa_balancing", moves));
    json_close(&d->json, '}');
}
