/*
 * test_host.c - a process may use what its affinity and every control group above it allow, of
 * version 1 and 2, seen from the machine and from inside a container; threads beyond that are not
 * started.
 */
#include "base/base.h"

#include <inttypes.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static char folder[] = "/tmp/oato-test-host-XXXXXX";

/* A file of the made-up machine, with the folders above it. */
static void put(const char *path, const char *text)
{
    char command[512];
    snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s%s')\"", folder, path);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    snprintf(command, sizeof command, "%s%s", folder, path);
    FILE *f = fopen(command, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int machine_begin(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'/*", folder);
    assert_int_equal(system(command), 0); // NOLINT(cert-env33-c)
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n"
                         "MemAvailable:    8388608 kB\n");
    return 0;
}

static struct host_share machine_read(void)
{
    struct host_share s;
    host_share_read(folder, &s);
    return s;
}

static int32_t affinity(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static void without_groups_the_machine_is_the_limit(void **state)
{
    (void)state;
    const struct host_share s = machine_read();
    assert_int_equal(s.processors, affinity());
    assert_true(s.quota == 0);
    assert_int_equal(s.memory_bytes, (uint64_t)16 << 30);
    assert_int_equal(s.available_bytes, (uint64_t)8 << 30);
}

static void groups_of_version_2_limit_up_to_the_root(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/services/oato\n");
    put("/proc/self/mountinfo",
        "22 21 0:5 / /proc rw - proc proc rw\n"
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/services/oato/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/services/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/services/oato/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/services/oato/memory.current", "1073741824\n");
    put("/sys/fs/cgroup/services/oato/memory.stat",
        "anon 1\nfile 2\ninactive_file 268435456\nactive_file 268435456\n");
    put("/sys/fs/cgroup/services/memory.max", "max\n");
    put("/sys/fs/cgroup/services/memory.current", "99\n");
    struct host_share s = machine_read();
    assert_int_equal(s.processors, 1); /* one and a half */
    assert_true(s.quota > 1.49 && s.quota < 1.51);
    assert_int_equal(s.memory_bytes, 2048 * (uint64_t)MIB);
    assert_int_equal(s.available_bytes, (2048 - 1024 + 512) * (uint64_t)MIB);
    /* the group above may hold more, but the processes beside us have used most of it */
    put("/sys/fs/cgroup/services/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/services/memory.current", "4026531840\n");
    s = machine_read();
    assert_int_equal(s.memory_bytes, 2048 * (uint64_t)MIB);
    assert_int_equal(s.available_bytes, 256 * (uint64_t)MIB);
    /* what is above is full: no less than nothing */
    put("/sys/fs/cgroup/services/memory.max", "1048576\n");
    put("/sys/fs/cgroup/services/memory.current", "2097152\n");
    put("/sys/fs/cgroup/services/cpu.max", "50000 100000\n");
    s = machine_read();
    assert_int_equal(s.available_bytes, 0);
    assert_int_equal(s.memory_bytes, MIB);
    assert_int_equal(s.processors, 1);
    /* more than there is */
    put("/sys/fs/cgroup/services/cpu.max", "409600000 100000\n");
    assert_int_equal(machine_read().processors, affinity());
}

static void groups_of_version_1_have_a_hierarchy_each(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/jobs/7\n1:cpuacct,cpu:/jobs\n0::/\n");
    put("/proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "4096\n");
    put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "1073741824\n");
    put("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "536870912\n");
    put("/sys/fs/cgroup/memory/jobs/memory.stat",
        "inactive_file 7\ntotal_inactive_file 134217728\ntotal_active_file 0\n");
    const struct host_share s = machine_read();
    assert_int_equal(s.processors, 1);
    assert_int_equal(s.memory_bytes, 1024 * (uint64_t)MIB);
    assert_int_equal(s.available_bytes, (512 + 128) * (uint64_t)MIB);
}

/* Inside, the process's path is of the machine outside, or leads out of what is mounted. */
static void a_container_is_held_to_its_own_group(void **state)
{
    (void)state;
    static const char *const paths[] = {"0::/docker/ab12\n", "0::/\n", "0::/../other\n",
                                        "0::/gone/away\n"};
    put("/proc/self/mountinfo",
        "31 23 0:28 /docker/ab12 /sys/fs/cgroup ro - cgroup2 cgroup rw,nsdelegate\n");
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/memory.current", "0\n");
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        put("/proc/self/cgroup", paths[i]);
        const struct host_share s = machine_read();
        assert_int_equal(s.processors, 1);
        assert_int_equal(s.available_bytes, 2048 * (uint64_t)MIB);
    }
}

static void files_of_the_system_are_read_below_the_root(void **state)
{
    char line[16];
    (void)state;
    put("/sys/one", "two words\nthree\n");
    assert_true(host_line(folder, "/sys/one", line, sizeof line));
    assert_string_equal(line, "two words");
    put("/sys/one", "");
    assert_false(host_line(folder, "/sys/one", line, sizeof line));
    assert_string_equal(line, "");
    assert_false(host_line(folder, "/sys/none", line, sizeof line));
    assert_int_equal(host_value(folder, "/proc/meminfo", "MemFree"), 1);
    assert_int_equal(host_value(folder, "/proc/meminfo", "Mem"), 0);
    assert_int_equal(host_value(folder, "/proc/none", "MemFree"), 0);
    assert_false(host_contained(folder));
    put("/run/.containerenv", "");
    assert_true(host_contained(folder));
}

static void damaged_files_limit_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "\n", "x y\n", "100000\n", "100000 0\n", "-5 -5\n"};
    put("/proc/self/mountinfo", "x\n - \n31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "nonsense\n1:\n0::/a\n");
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        put("/sys/fs/cgroup/a/cpu.max", texts[i]);
        put("/sys/fs/cgroup/a/memory.max", i < 3 ? texts[i] : "max");
        put("/sys/fs/cgroup/a/memory.current", texts[i]);
        const struct host_share s = machine_read();
        assert_int_equal(s.processors, affinity());
        assert_int_equal(s.available_bytes, (uint64_t)8 << 30);
    }
}

static void threads_beyond_the_processors_are_refused_with_a_word(void **state)
{
    (void)state;
    char why[192];
    const int32_t most = host_processors();
    assert_true(most >= 1 && most <= affinity());
    assert_int_equal(host_threads(0, why, sizeof why), 0); /* the default */
    assert_string_equal(why, "");
    assert_int_equal(host_threads(most, why, sizeof why), most);
    assert_string_equal(why, "");
    assert_int_equal(host_threads(most + 7, why, sizeof why), most);
    assert_non_null(strstr(why, "threads asked for"));
}

static void spins_take_the_time_that_is_asked_for(void **state)
{
    (void)state;
    uint64_t least = UINT64_MAX;
    assert_int_equal(spins_in(0), 0);
    for (int i = 0; i < 50; i++) {
        const uint64_t begin = now_ns();
        for (int32_t n = spins_in(100000); n; n--)
            cpu_relax();
        const uint64_t took = now_ns() - begin;
        least = took < least ? took : least;
    }
    assert_true(least > 30000 && least < 300000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_groups_the_machine_is_the_limit, machine_begin),
        cmocka_unit_test_setup(groups_of_version_2_limit_up_to_the_root, machine_begin),
        cmocka_unit_test_setup(groups_of_version_1_have_a_hierarchy_each, machine_begin),
        cmocka_unit_test_setup(a_container_is_held_to_its_own_group, machine_begin),
        cmocka_unit_test_setup(files_of_the_system_are_read_below_the_root, machine_begin),
        cmocka_unit_test_setup(damaged_files_limit_nothing, machine_begin),
        cmocka_unit_test(threads_beyond_the_processors_are_refused_with_a_word),
        cmocka_unit_test(spins_take_the_time_that_is_asked_for),
    };
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) || failed; // NOLINT(cert-env33-c)
}
