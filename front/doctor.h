/*
 * doctor.h - shared by the files of `oato doctor`. Each probe looks at one thing, says it to people
 * and in JSON, and notes what is wrong and what would make it faster. What the system's files say
 * is read below `root`, so that tests can show other machines.
 */
#ifndef OATO_DOCTOR_H
#define OATO_DOCTOR_H

#include "kernels/device.h"

/* What would make it faster, the largest gain first, and the ids that JSON has. SmolLM2 in Q4_1 on
 * a virtual EPYC of Zen 4, one thread, prefill and decode: avx512 is 1.6 and 1.5 times as fast as
 * avx2 and 15 and 26 times as ref; transparent huge pages are worth 1.1 and 1.6. A GPU is worth
 * more than any of these, processors and clocks what their ratio says. Memory decides what can run,
 * files how fast weights arrive that are not in it. */
/* clang-format off */
#define ADVICE_LIST(row) \
    row(DEBUG_BUILD, "debug-build") \
    row(GPU_HIDDEN, "gpu-hidden") \
    row(KERNELS_FORCED, "kernels-forced") \
    row(KERNELS_REFUSED, "kernels-refused") \
    row(PROCESSOR_QUOTA, "processor-quota") \
    row(PROCESSOR_SET, "processor-set") \
    row(HUGE_PAGES_OFF, "huge-pages-off") \
    row(ON_BATTERY, "on-battery") \
    row(FREQUENCY_LIMIT, "frequency-limit") \
    row(GOVERNOR, "governor") \
    row(TURBO_OFF, "turbo-off") \
    row(GPU_LIBRARY, "gpu-library") \
    row(MEMORY_LIMIT, "memory-limit") \
    row(MEMORY_RESERVED, "memory-reserved") \
    row(MEMORY_SWAPPED, "memory-swapped") \
    row(DISK_SLOW, "disk-slow") \
    row(IO_URING_OFF, "io-uring-off") \
    row(DISK_CACHED, "disk-cached") \
    row(DISK_FULL, "disk-full") \
    row(NUMA_BALANCING, "numa-balancing") \
    row(LOCKED_MEMORY, "locked-memory") \
    row(SHARED_MEMORY, "shared-memory") \
    row(OPEN_FILES, "open-files")
/* clang-format on */

#define ADVICE_NUMBER(number, id) ADVICE_##number,
enum advice { ADVICE_LIST(ADVICE_NUMBER) ADVICE_COUNT };
#undef ADVICE_NUMBER

enum { PROBLEMS_MAX = 16, DOCTOR_DEVICES = 32 };

struct doctor_finding {
    const char *id;
    char why[320], command[192];
};

struct doctor {
    const char *root;
    bool contained; /* in a container: commands are for who starts it */
    struct text people, json;
    struct doctor_finding problem[PROBLEMS_MAX], advice[ADVICE_COUNT]; /* advice: id NULL: none */
    int n_problems;
    struct {
        struct oato_device *device;
        struct device_info info;
    } device[DOCTOR_DEVICES]; /* that can be used */
    int n_devices;
    /* That may be locked, where it is too little for weights that are read from a file at every
     * step; else UINT64_MAX */
    uint64_t locked_bytes;
};

/* A line for people behind a label of at most 11 characters, "": what belongs to the line before.
 * It is broken between words at 80 columns. */
void doctor_line(struct doctor *d, const char *label, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Something that keeps a thing from being used at all. */
void doctor_problem(struct doctor *d, const char *id, const char *command, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Of several of a kind the first is kept. */
void doctor_advise(struct doctor *d, enum advice what, const char *command, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The probes of the processor, memory and limits: doctor_host.c and doctor_memory.c. */
void doctor_processor(struct doctor *d);
void doctor_memory(struct doctor *d);
void doctor_limits(struct doctor *d);
/* Opens the devices; doctor_end closes them. */
void doctor_devices(struct doctor *d);
/* Storage of the cache, and of the model unless it is NULL; ranks. */
void doctor_storage(struct doctor *d, const char *model);
void doctor_ranks(struct doctor *d);
/* What of the model fits, and which of its operators each device can run. */
oato_status doctor_model(struct doctor *d, const char *path, struct oato_error *err);

/* One folder as storage; tests make it up. */
struct doctor_disk {
    const char *use, *path; /* "cache", "model" */
    char kind[32];          /* of the file system: "ext4" */
    uint64_t free_bytes;
    bool readable, direct, overlaps, turns; /* O_DIRECT; io_uring; a disk that turns */
};
/* Says and judges it. */
void doctor_disk_judge(struct doctor *d, const struct doctor_disk *s);

/* All of a diagnosis, for people and for programs; the caller frees both texts. OATO_NEGATIVE:
 * there are problems. */
oato_status doctor_run(const char *root, const char *model, struct text *people, struct text *json,
                       struct oato_error *err);

#endif
