/*
 * test_doctor.c - each advice of `oato doctor` appears on a machine that it is true of and on no
 * other, each problem makes the status 1, and what is said of a model is true. Machines are folders
 * with the files of the system; each diagnosis runs in a process of its own, for a driver is opened
 * once.
 */
#include "front/doctor.h"
#include "front/front.h"
#include "tests/folder.h"
#include "tests/models/random_model.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A machine without a fault: two nodes of four processors each, on mains. */
static const struct file {
    const char *path, *text;
} machine[] = {
    {"/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nSwapTotal: 1048576 kB\n"
                      "SwapFree: 1048576 kB\nHugePages_Total: 0\nHugePages_Free: 0\n"
                      "Hugepagesize: 2048 kB\n"},
    {"/proc/cpuinfo", "model name\t: Made Up 9000\nflags\t\t: fpu avx2 fma f16c\n"},
    {"/proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-7\n"},
    {"/proc/self/cgroup", "0::/job\n"},
    {"/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
                             "40 23 0:40 / /dev/shm rw - tmpfs tmpfs rw,size=1048576k\n"},
    {"/proc/self/limits", "Max open files            1024   4096   files\n"
                          "Max locked memory         unlimited   unlimited   bytes\n"
                          "Max address space         unlimited   unlimited   bytes\n"},
    {"/proc/sys/kernel/numa_balancing", "0\n"},
    {"/proc/sys/kernel/io_uring_disabled", "0\n"},
    {"/sys/devices/system/cpu/online", "0-7\n"},
    {"/sys/devices/system/cpu/smt/active", "0\n"},
    {"/sys/devices/system/node/online", "0-1\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "performance\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "5000000\n"},
    {"/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "5000000\n"},
    {"/sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"},
    {"/sys/class/power_supply/AC/online", "1\n"},
    {"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
};

/* Makes a file of the machine; text NULL: takes it away. */
static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "%s/root%s", test_folder, path);
    if (!text) {
        unlink(name);
        return;
    }
    char *last = strrchr(name, '/');
    *last = 0;
    folder_make(name);
    *last = '/';
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int machine_make(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s/root'", test_folder);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    for (size_t i = 0; i < ARRAY_LEN(machine); i++)
        put(machine[i].path, machine[i].text);
    unsetenv("OATO_CPU_ISA");
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
    unsetenv("OATO_CUDA_ON_CPU_VERSION");
    setenv("OATO_CUDA_DRIVER", "libno-such-driver.so", 1);
    return 0;
}

/* The status, and the diagnosis as JSON in *out (the caller's to free) unless it failed. */
static int diagnose(const char *model, json_t **out)
{
    char name[96], root[96];
    int status = 0;
    json_error_t error;
    snprintf(name, sizeof name, "%s/json", test_folder);
    snprintf(root, sizeof root, "%s/root", test_folder);
    const pid_t child = fork();
    if (!child) {
        struct text people, json;
        struct oato_error err;
        const oato_status s = doctor_run(root, model, &people, &json, &err);
        FILE *f = fopen(name, "w");
        fwrite(json.data, 1, json.len, f);
        fclose(f);
        text_free(&people);
        text_free(&json);
        _exit((int)s);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    *out = NULL;
    if (WEXITSTATUS(status) <= OATO_NEGATIVE) {
        *out = json_load_file(name, JSON_REJECT_DUPLICATES, &error);
        if (!*out)
            fail_msg("%s", error.text);
    }
    return WEXITSTATUS(status);
}

/* The finding of that id among "problems" or "advice"; NULL: there is none. */
static json_t *found(json_t *all, const char *among, const char *id)
{
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(all, among), i,
                       x) if (!strcmp(json_string_value(json_object_get(x, "id")), id)) return x;
    return NULL;
}

static bool says(json_t *finding, const char *key, const char *what)
{
    return finding && strstr(json_string_value(json_object_get(finding, key)), what);
}

/* Advice that the disk of this test decides, and its build. */
static bool of_this_host(const char *id)
{
    return !strncmp(id, "disk-", 5) || !strcmp(id, "io-uring-off") || !strcmp(id, "debug-build");
}

static void a_good_machine_needs_no_advice(void **state)
{
    json_t *all, *x;
    size_t i;
    (void)state;
    assert_int_equal(diagnose(NULL, &all), 0);
    json_array_foreach(json_object_get(all, "advice"), i,
                       x) if (!of_this_host(json_string_value(json_object_get(x, "id"))))
        fail_msg("%s", json_string_value(json_object_get(x, "why")));
    assert_int_equal(json_array_size(json_object_get(all, "problems")), 0);
    assert_true(json_is_true(json_object_get(all, "ok")));
    const json_t *processor = json_object_get(all, "processor");
    assert_string_equal(json_string_value(json_object_get(processor, "model")), "Made Up 9000");
    assert_string_equal(json_string_value(json_object_get(processor, "flags")), "avx2 fma f16c");
    assert_int_equal(json_integer_value(json_object_get(processor, "numa_nodes")), 2);
    json_decref(all);
}

#define CPUFREQ "/sys/devices/system/cpu/cpu0/cpufreq/"

/* One file is other than on the good machine; id NULL: nothing is said of it. */
static const struct fault {
    const char *path, *text, *id, *why, *command;
} faults[] = {
    {"/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n", "huge-pages-off",
     "off", "tee /sys/kernel/mm/transparent_hugepage/enabled"},
    {"/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n", NULL, NULL, NULL},
    {"/sys/kernel/mm/transparent_hugepage/enabled", NULL, NULL, NULL, NULL},
    {"/sys/fs/cgroup/job/cpu.max", "250000 100000\n", "processor-quota", "2.5 of 8", "CPUQuota="},
    {"/sys/fs/cgroup/job/cpu.max", "900000 100000\n", NULL, NULL, NULL},
    {"/proc/self/status", "Cpus_allowed_list:\t1,4-5\n", "processor-set", "3 of 8",
     "taskset -c 0-7"},
    {CPUFREQ "scaling_driver", "acpi-cpufreq\n", "governor", "powersave", "cpupower"},
    {CPUFREQ "energy_performance_preference", "power\n", "governor", "1 processor low", "cpupower"},
    {CPUFREQ "scaling_governor", "conservative\n", "governor", "conservative", "cpupower"},
    {CPUFREQ "scaling_governor", "schedutil\n", NULL, NULL, NULL},
    {CPUFREQ "scaling_max_freq", "2500000\n", "frequency-limit", "2.50 of 5.00 GHz", "cpupower"},
    {"/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n", "turbo-off", "", "no_turbo"},
    {"/sys/devices/system/cpu/cpufreq/boost", "0\n", "turbo-off", "", "boost"},
    {"/sys/class/power_supply/AC/online", "0\n", "on-battery", "battery", ""},
    {"/proc/sys/kernel/numa_balancing", "1\n", "numa-balancing", "", "sysctl"},
    {"/proc/meminfo",
     "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nHugePages_Total: 1024\n"
     "HugePages_Free: 512\nHugepagesize: 2048 kB\n",
     "memory-reserved", "1.0 GiB", "vm.nr_hugepages=0"},
    {"/proc/meminfo",
     "MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\nSwapTotal: 8388608 kB\nSwapFree: 0 kB\n",
     "memory-swapped", "8.0 GiB", "ps "},
    {"/proc/self/mountinfo", "40 23 0:40 / /dev/shm rw - tmpfs shm rw,size=16384k\n",
     "shared-memory", "16 MiB", "/dev/shm"},
    {"/proc/self/limits", "Max open files   64   256   files\n", "open-files", "256", "ulimit -n"},
    {"/proc/cpuinfo", "flags : fpu avx512_bf16 amx_tile amx_bf16\n", "kernels-refused", "AMX", ""},
};

static void each_advice_is_given_where_it_is_true(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(faults); i++) {
        const struct fault *f = &faults[i];
        json_t *all, *x;
        size_t j;
        machine_make(NULL);
        put(f->path, f->text);
        assert_int_equal(diagnose(NULL, &all), 0);
        json_array_foreach(json_object_get(all, "advice"), j, x)
        {
            const char *id = json_string_value(json_object_get(x, "id"));
            if (!of_this_host(id) && (!f->id || strcmp(id, f->id) != 0))
                fail_msg("%s %s: also %s", f->path, or_empty(f->text), id);
        }
        x = f->id ? found(all, "advice", f->id) : NULL;
        if (f->id && (!says(x, "why", f->why) || !says(x, "command", f->command)) &&
            /* a host that has such tiles is right to say nothing */
            strcmp(f->id, "kernels-refused") != 0)
            fail_msg("%s %s: no %s", f->path, or_empty(f->text), f->id);
        json_decref(all);
    }
}

/* In a container it is whoever starts it that can do something. */
static void commands_are_for_the_container(void **state)
{
    json_t *all;
    (void)state;
    put("/.dockerenv", "");
    put("/sys/fs/cgroup/job/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/job/memory.max", "17179869184\n");
    put("/sys/fs/cgroup/job/memory.current", "0\n");
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_true(says(found(all, "advice", "processor-quota"), "command", "docker run --cpus=8"));
    json_t *limit = found(all, "advice", "memory-limit");
    assert_true(says(limit, "why", "16.0 of 64.0 GiB"));
    assert_true(says(limit, "command", "--memory=64g"));
    /* the larger gain first */
    size_t i = 0;
    json_t *first = json_array_get(json_object_get(all, "advice"), i);
    while (first && of_this_host(json_string_value(json_object_get(first, "id"))))
        first = json_array_get(json_object_get(all, "advice"), ++i);
    assert_ptr_equal(first, found(all, "advice", "processor-quota"));
    json_decref(all);
}

static void kernels_may_be_held_back(void **state)
{
    json_t *all;
    (void)state;
    assert_int_equal(diagnose(NULL, &all), 0);
    const bool plain = !strcmp(
        json_string_value(json_object_get(json_object_get(all, "processor"), "kernels_best")),
        "ref");
    json_decref(all);
    setenv("OATO_CPU_ISA", "ref", 1);
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_true(plain ||
                says(found(all, "advice", "kernels-forced"), "command", "unset OATO_CPU_ISA"));
    json_decref(all);
    setenv("OATO_CPU_ISA", "pentium", 1);
    assert_int_equal(diagnose(NULL, &all), OATO_NEGATIVE);
    assert_true(says(found(all, "problems", "kernels-refused"), "why", "pentium"));
    json_decref(all);
}

/* ---------------------------------------------------------------------------- accelerators -- */

static const char gpu[] = "/sys/bus/pci/devices/0000:01:00.0/";

static void gpu_put(void)
{
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/device", "0x2204\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
}

static void gpu_driver(const char *name)
{
    char link[256];
    snprintf(link, sizeof link, "%s/root%sdriver", test_folder, gpu);
    unlink(link);
    assert_int_equal(symlink(name, link), 0);
}

static void expect_problem(const char *why, const char *command)
{
    json_t *all;
    assert_int_equal(diagnose(NULL, &all), OATO_NEGATIVE);
    json_t *problem = found(all, "problems", "gpu-unusable");
    if (!says(problem, "why", why) || !says(problem, "command", command))
        fail_msg("'%s', '%s' are not said: %s", why, command,
                 json_string_value(json_object_get(problem, "why")));
    assert_true(json_is_false(json_object_get(all, "ok")));
    json_decref(all);
}

/* Each thing that may be missing, one after the other. */
static void a_gpu_that_cannot_be_used_is_a_problem(void **state)
{
    (void)state;
    gpu_put();
    expect_problem("NVIDIA GPU (10de:2204) at 0000:01:00.0", "apt install nvidia-driver");
    gpu_driver("../../../bus/pci/drivers/nouveau");
    expect_problem("nouveau", "apt install nvidia-driver");
    gpu_driver("../../../bus/pci/drivers/vfio-pci");
    expect_problem("virtual machines", "driverctl");
    gpu_driver("../../../bus/pci/drivers/nvidia");
    put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n");
    put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA RTX 3090\n");
    expect_problem("NVIDIA RTX 3090 (10de:2204)", "nvidia-modprobe");
    put("/.dockerenv", "");
    expect_problem("this container was not given it", "--gpus all");
    put("/dev/nvidia0", "");
    put("/dev/nvidiactl", "");
    expect_problem("libcuda.so.1, is missing in this container", "NVIDIA_DRIVER_CAPABILITIES");
    put("/.dockerenv", NULL);
    expect_problem("libcuda.so.1, is missing", "apt install libcuda1");
    /* without a bus to look at, the driver's own list counts, or else the files of devices */
    char command[256];
    snprintf(command, sizeof command, "rm -r '%s/root/sys/bus'", test_folder);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    expect_problem("libcuda.so.1, is missing", "");
    snprintf(command, sizeof command, "rm -r '%s/root/proc/driver/nvidia/gpus'", test_folder);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    expect_problem("libcuda.so.1, is missing", "");
}

/* With the emulated driver: it may be too old, find nothing, or be told to hide. */
static void a_driver_may_be_too_old(void **state)
{
    json_t *all;
    (void)state;
    if (!DRIVER[0])
        skip();
    gpu_put();
    put("/proc/driver/nvidia/version", "NVRM version\n");
    put("/dev/nvidia0", "");
    put("/dev/nvidiactl", "");
    setenv("OATO_CUDA_DRIVER", DRIVER, 1);
    setenv("OATO_CUDA_ON_CPU_VERSION", "11040", 1);
    expect_problem("the NVIDIA driver is for CUDA 11.4", "apt install nvidia-driver");
    unsetenv("OATO_CUDA_ON_CPU_VERSION");
    setenv("OATO_CUDA_ON_CPU_DEVICES", "0", 1);
    expect_problem("finds no GPU", "");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_true(says(found(all, "advice", "gpu-hidden"), "why", "CUDA_VISIBLE_DEVICES"));
    json_decref(all);
    /* and with one GPU of two, without cuBLAS */
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_null(found(all, "advice", "gpu-hidden"));
    assert_true(says(found(all, "advice", "gpu-library"), "why", "cuBLAS"));
    assert_int_equal(json_array_size(json_object_get(all, "devices")), 2);
    json_decref(all);
    put("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:02:00.0/class", "0x030200\n");
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_true(says(found(all, "advice", "gpu-hidden"), "why", "1 of 2"));
    json_decref(all);
}

/* Others are named, and nobody is to be blamed for them. */
static void strangers_are_named(void **state)
{
    json_t *all;
    (void)state;
    put("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
    put("/sys/bus/pci/devices/0000:03:00.0/device", "0x744c\n");
    put("/sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n");
    put("/sys/bus/pci/devices/0000:04:00.0/vendor", "0x8086\n");
    put("/sys/bus/pci/devices/0000:04:00.0/class", "0x020000\n"); /* a network card */
    assert_int_equal(diagnose(NULL, &all), 0);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(all, "hardware"), "others")),
        "AMD 1002:744c at 0000:03:00.0");
    json_decref(all);
}

/* --------------------------------------------------------------------------------- storage -- */

static bool disk_advises(struct doctor_disk s, const char *root, const char *id)
{
    struct doctor d = {.root = root};
    bool advised = false;
    doctor_disk_judge(&d, &s);
    for (int i = 0; i < ADVICE_COUNT; i++)
        advised = advised || (d.advice[i].id && !strcmp(d.advice[i].id, id));
    for (int i = 0; i < d.n_problems; i++)
        advised = advised || !strcmp(d.problem[i].id, id);
    text_free(&d.people);
    text_free(&d.json);
    return advised;
}

static void a_disk_is_judged(void **state)
{
    static const char *const ids[] = {"disk-slow", "disk-cached", "disk-full", "io-uring-off",
                                      "cache-unusable"};
    const struct doctor_disk good = {.use = "cache",
                                     .path = "/somewhere",
                                     .kind = "ext4",
                                     .free_bytes = (uint64_t)100 << 30,
                                     .readable = true,
                                     .direct = true,
                                     .overlaps = true};
    char root[96];
    (void)state;
    snprintf(root, sizeof root, "%s/root", test_folder);
    struct doctor_disk bad[ARRAY_LEN(ids)] = {good, good, good, good, good};
    bad[0].turns = true;
    bad[1].direct = false;
    bad[2].free_bytes = 1 << 30;
    bad[3].overlaps = false;
    bad[4].readable = false;
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        assert_false(disk_advises(good, root, ids[i]));
        for (size_t j = 0; j < ARRAY_LEN(ids); j++)
            assert_int_equal(disk_advises(bad[j], root, ids[i]), i == j);
    }
    bad[2].use = "model"; /* nothing is written there */
    assert_false(disk_advises(bad[2], root, "disk-full"));
}

/* ----------------------------------------------------------------------------------- model -- */

static void what_fits_of_a_model_is_counted(void **state)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    json_t *all;
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/small.gguf", test_folder);
    assert_int_equal(random_model_save(&m, path, &err), OATO_OK);
    assert_int_equal(diagnose(path, &all), 0);
    const json_t *model = json_object_get(all, "model");
    const json_t *cpu = json_array_get(json_object_get(model, "devices"), 0);
    assert_true(json_is_true(json_object_get(cpu, "fits")));
    assert_int_equal(json_integer_value(json_object_get(cpu, "layers_fit")), m.layers);
    assert_int_equal(json_integer_value(json_object_get(model, "layers")), m.layers);
    assert_string_equal(json_string_value(json_object_get(cpu, "missing")), "");
    /* K and V of F16 in both layers */
    assert_int_equal(json_integer_value(json_object_get(cpu, "kv_bytes")),
                     m.layers * 2 * m.kv_heads * random_model_head_dim(&m) * 2 *
                         json_integer_value(json_object_get(model, "context")));
    assert_true(json_integer_value(json_object_get(cpu, "weight_bytes")) > 0);
    json_decref(all);
    /* a header is enough to tell that a model is too large for this machine */
    assert_true(random_model_set_shape(&m, "70b"));
    assert_true(random_model_set_type(&m, "F32"));
    m.layers = 1000;
    m.header_only = true;
    snprintf(path, sizeof path, "%s/large.gguf", test_folder);
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
    assert_int_equal(diagnose(path, &all), OATO_NEGATIVE);
    assert_true(says(found(all, "problems", "model-does-not-fit"), "command", "oato-p"));
    assert_null(found(all, "advice", "locked-memory"));
    json_decref(all);
    put("/proc/self/limits", "Max locked memory   8388608   8388608   bytes\n");
    assert_int_equal(diagnose(path, &all), OATO_NEGATIVE);
    assert_true(says(found(all, "advice", "locked-memory"), "why", "8 MiB"));
    json_decref(all);
    put("/proc/self/status", "CapEff:\t0000000000004000\n"); /* who may lock without a limit */
    assert_int_equal(diagnose(path, &all), OATO_NEGATIVE);
    assert_null(found(all, "advice", "locked-memory"));
    json_decref(all);
    assert_int_equal(diagnose("/nowhere/model.gguf", &all), OATO_EIO);
}

/* Plain text of at most 80 columns, except for commands and paths, which are to be copied. */
static void people_can_read_it(void **state)
{
    struct text people, json;
    struct oato_error err;
    char root[96];
    (void)state;
    snprintf(root, sizeof root, "%s/root", test_folder);
    put("/sys/kernel/mm/transparent_hugepage/enabled", "[never]\n");
    gpu_put();
    assert_int_equal(doctor_run(root, NULL, &people, &json, &err), OATO_NEGATIVE);
    assert_non_null(strstr(people.data, "Wrong here:\n- NVIDIA GPU"));
    assert_non_null(strstr(people.data, "the largest gain first:\n- "));
    for (const char *p = people.data; *p; p += *p == '\n') {
        const size_t n = strcspn(p, "\n");
        if (n > 80 && strncmp(p, "    ", 4) != 0 && memchr(p + 12, ' ', n - 12))
            fail_msg("%.*s", (int)n, p);
        p += n;
    }
    for (const char *p = people.data; *p; p++)
        assert_true(*p == '\n' || (*p >= ' ' && *p <= '~'));
    text_free(&people);
    text_free(&json);
}

/* The program's exit status; stdout goes to the file "out" of the folder. */
static int program(const char *args)
{
    char command[512];
    snprintf(command, sizeof command, "XDG_CACHE_HOME='%s' '%s' doctor %s >%s/out 2>%s/err",
             test_folder, PROGRAM, args, test_folder, test_folder);
    const int status = system(command); // NOLINT(cert-env33-c)
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_verb_takes_its_options(void **state)
{
    json_error_t error;
    char name[96];
    (void)state;
    snprintf(name, sizeof name, "%s/out", test_folder);
    assert_true(program("--json") <= OATO_NEGATIVE); /* what this machine is like */
    json_t *all = json_load_file(name, JSON_REJECT_DUPLICATES, &error);
    if (!all)
        fail_msg("%s", error.text);
    const json_t *cpu = json_array_get(json_object_get(all, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(cpu, "id")), "cpu:0");
    json_decref(all);
    assert_int_equal(program("--help"), OATO_OK);
    assert_int_equal(program("--jsn"), OATO_EUSAGE);
    assert_int_equal(program("a.gguf b.gguf"), OATO_EUSAGE);
    assert_int_equal(program("/nowhere/model.gguf"), OATO_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_good_machine_needs_no_advice, machine_make),
        cmocka_unit_test_setup(each_advice_is_given_where_it_is_true, machine_make),
        cmocka_unit_test_setup(commands_are_for_the_container, machine_make),
        cmocka_unit_test_setup(kernels_may_be_held_back, machine_make),
        cmocka_unit_test_setup(a_gpu_that_cannot_be_used_is_a_problem, machine_make),
        cmocka_unit_test_setup(a_driver_may_be_too_old, machine_make),
        cmocka_unit_test_setup(strangers_are_named, machine_make),
        cmocka_unit_test_setup(a_disk_is_judged, machine_make),
        cmocka_unit_test_setup(what_fits_of_a_model_is_counted, machine_make),
        cmocka_unit_test_setup(people_can_read_it, machine_make),
        cmocka_unit_test_setup(the_verb_takes_its_options, machine_make),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
