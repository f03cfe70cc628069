/*
 * device.h - the device interface, a table of functions as in any driver, and the registry.
 *
 * A device has memory, prepares weights once into a layout that its kernels like, compiles a
 * program and runs it for each step on a queue of its own. Its progress is an event: a counter
 * that only rises and that every device and the host can read and wait for.
 *
 * Adding a device is one folder and one word in DEVICE_KINDS.
 */
#ifndef OATO_DEVICE_H
#define OATO_DEVICE_H

#include "kernels/program.h"

#include <pthread.h>
#include <stdatomic.h>

/* ------------------------------------------------------------------------------ events ---- */

enum { TIMELINE_RING = 8192 }; /* more than a step signals, checked when compiling */

/* Why an event will not rise any more. DIED: its device failed; its message tells the user what
 * happened. STRANDED: it abandoned a step because another device failed. */
enum timeline_failure { TIMELINE_ALIVE, TIMELINE_DIED, TIMELINE_STRANDED };

/* A device's event. Its value rises by the ordinals that records signal. Each value carries the
 * device's clock at that moment, so that waiting passes time on to the waiting device's clock. */
struct timeline {
    _Atomic uint64_t value;
    _Atomic uint32_t sleepers; /* threads in the futex */
    _Atomic uint32_t word;     /* futex word: changes with every signal */
    _Atomic int failed;        /* enum timeline_failure; unless alive every wait returns false */
    bool simulated;            /* its clock is virtual, not real time; set before use */
    uint64_t clock_ns[TIMELINE_RING];
};

void timeline_init(struct timeline *t);
void timeline_signal(struct timeline *t, uint64_t value, uint64_t clock_ns);
/* timeline_signal in two steps: raise publishes the value to spinners; wake also wakes sleepers. */
void timeline_raise(struct timeline *t, uint64_t value, uint64_t clock_ns);
void timeline_wake(struct timeline *t);
/* Spins (ms for a real device, us for a simulated one), then sleeps; false when the timeline
 * failed. The clock at `value` goes to *clock_ns (may be NULL). */
bool timeline_wait(struct timeline *t, uint64_t value, uint64_t *clock_ns);
/* The same, but returns false soon after *stop becomes true. Unless stop is NULL it sleeps at once
 * instead of spinning: a simulated device must not take the cores of the host that it waits for. */
bool timeline_wait_unless(struct timeline *t, uint64_t value, uint64_t *clock_ns,
                          const _Atomic bool *stop);
/* True when the event has reached `value`; does not wait. */
bool timeline_reached(struct timeline *t, uint64_t value);
/* Only the first reason is kept. */
void timeline_fail(struct timeline *t, enum timeline_failure why);

/* A simulated device computes on the host's cores, so the two take turns under a lock: the device
 * holds it for each record, the host for a step except while it waits for an event. The
 * simulation's arithmetic then does not slow down what the host measures, and the host's clock
 * leaves out the time in which it does not hold the lock. Each engine has its own. */
struct step_cores {
    pthread_mutex_t lock;
};
static inline void step_cores_take(const struct step *step)
{
    if (step->cores)
        pthread_mutex_lock(&step->cores->lock);
}
static inline void step_cores_give(const struct step *step)
{
    if (step->cores)
        pthread_mutex_unlock(&step->cores->lock);
}

/* ----------------------------------------------------------------------------- devices ---- */

struct device_info {
    char id[16];           /* "cpu:0", "sim:1": kind and index, as plans and options name it */
    char kind[8];          /* "cpu", "sim", "cuda", "ascend" */
    char model[96];        /* what it is: "AMD EPYC 9755", "simulated" */
    char isa[32];          /* level of kernels in use: "avx2"; "" when it has none */
    uint64_t memory_bytes; /* total; free_bytes of it are free now */
    uint64_t free_bytes;
    int32_t threads; /* 0: the device has no such number */
    char driver[48]; /* version of the driver that it needs; "": it needs none */
    bool is_host;    /* its memory is the host's: no copies to reach it */
    bool spans;      /* it compiles runs of records as one function: lowering cuts program.spans */
    bool compile_cached; /* and keeps these in files, so that each is compiled once on a machine */
    /* Numbers of rows that its functions are compiled for, ascending, then 0: a step's rows are so
     * many times the largest, and the rest takes the next one up. None: any number */
    int32_t rows[DEVICE_ROWS];
    bool keeps; /* of weights that are streamed to it, a copy in its own layout stays in host memory
                   while there is room */
    uint64_t cache_bytes;                 /* its largest cache; 0: unknown */
    double read_bytes_per_s, flops_per_s; /* declared; 0 = must be measured */
    double link_bytes_per_s, link_latency_s, launch_s;
};

/* What the clock values at a device's signals mean: see device_ops.measure. */
enum device_clock {
    CLOCK_USUAL,  /* when the host saw the signal */
    CLOCK_PASSES, /* when the device reached it */
    CLOCK_WORKS,  /* how long it had computed by then, without launches and waits */
};

/* Rows [row_begin, row_end) of a tensor of n rows x k elements in the GGUF's format, or of some of
 * its columns. */
struct weight_source {
    const void *data; /* first row of the tensor (row 0), host memory, read during prepare only,
                         except WEIGHT_LOOKUP on a host device, which may keep the pointer */
    oato_dtype dtype;
    int64_t k, n, row_begin, row_end;
    uint64_t row_stride; /* bytes from one row to the next; 0: they lie one behind the other. Larger
                            than a row when k counts only some columns, at the first of which data
                            begins (not for WEIGHT_LOOKUP) */
    enum weight_use use;
    const struct mapped_file *file; /* the mapping that holds data, or NULL; a device that copies
                                       may release the pages behind it (file_release) */
    /* Rows or columns that are not neighbours, NULL: they are. WEIGHT_COLUMNS: the k columns,
     * ascending numbers counted from `data` on; then row_stride is set. Other uses (not
     * WEIGHT_LOOKUP): row i of the source is row list[i] of the tensor, and n is their number */
    const int32_t *list;
    const void *prepared; /* these rows as weight_data returned them on a device of the same layout,
                             64-byte aligned; read through this pointer until weight_free, instead
                             of preparing. NULL: prepare the rows */
    /* device_ops.stage: where these prepared bytes lie in a file, up to a multiple of READ_ALIGN,
     * and the hash of all that. Read until weight_free. file NULL: nowhere. A device that is no
     * host copies them from ring + ring_offset in host memory, where they arrive at every step; the
     * ring is all its weights'. slices, on a host device: of so many equal ones, multiples of
     * READ_ALIGN, those experts are read that a step chooses, and none is checked; 0: all is */
    struct {
        const struct direct_file *file;
        uint64_t offset, hash;
        uint32_t slices;
        uint8_t *ring;
        uint64_t ring_offset;
    } stored;
};
/* Bytes from one row of the source to the next; 0 when k is no number of whole blocks. */
uint64_t weight_source_stride(const struct weight_source *source);

struct device_options {
    int32_t threads;    /* cpu: 0 = physical cores less kept_cores */
    int32_t kept_cores; /* cpu: cores kept busy by other devices' threads (device_ops.keeps_core) */
    bool aside; /* cpu: steps run on the device's own thread, while another host device uses the
                   submitting thread */
    const char *isa;       /* cpu: NULL = OATO_CPU_ISA, else "best" */
    uint64_t budget_bytes; /* 0 = all; memory the device may use */
    const char *scratch;   /* cpu: folder for KV in a file, borrowed; NULL: cache_folder's */
    /* sim: advances its clock but computes nothing; the host reads zeros from it. The simulation
     * then does not disturb the host's caches, like a real accelerator. */
    bool timing_only;
};

struct oato_device; /* first member: const struct device_ops *ops */
struct compiled;    /* a program compiled by a device */
struct kv_cache;    /* pages of KV on a device */

/* Where page `page` of a layer of the cache lies, or slot `page` of a layer of states: so many
 * bytes at an offset from memory of the device, for its upload and download. Pages, or slots, of a
 * layer follow each other. */
struct kv_place {
    void *data;
    uint64_t offset, bytes;
};
struct kv_place kv_cache_place(const struct kv_cache *kv, int32_t layer, int32_t page);

/* Hardware that the system's files show, whether it can be used or not. */
struct device_sight {
    int32_t n;         /* pieces of it; 0: none, and the rest is empty */
    char what[128];    /* the first one */
    char why[192];     /* what keeps it from being used, as far as these files say; "" */
    char command[160]; /* for a shell: what is most likely to mend that */
    char hidden[64];   /* the variable of the environment that keeps some from this process; "" */
    /* A library that it would be faster with and that is not here, and a command; "" */
    char lacks[128], lacks_command[96];
};

/* All functions are called from one thread at a time unless said otherwise. */
struct device_ops {
    const char *kind;
    bool keeps_core; /* a thread of the device spins while a step runs */
    bool simulated;  /* no hardware: it is there only if it is asked for */
    /* The number of devices, without opening any: for --list-devices and plan binding. */
    int (*probe)(void);
    /* What there is below root, "" for this machine. NULL: what the device needs is always there.
     */
    void (*sight)(const char *root, struct device_sight *out);
    /* spec: the text after "kind:" ("vram=64MiB,read=900GB/s"), or "". */
    oato_status (*open)(int index, const char *spec, const struct device_options *options,
                        struct oato_device **out, struct oato_error *err);
    void (*close)(struct oato_device *d);
    void (*info)(const struct oato_device *d, struct device_info *out);

    /* False: this (kind, dtype, shape) can never run here. */
    bool (*supports)(const struct oato_device *d, const struct oato_op *op);
    /* Numerics class of the operator here, static text: "f32", "u8b32" (DESIGN, Numerics). For
     * NUMERICS_LIBRARY the device finds and opens its library, if the operator can use one. */
    const char *(*numerics)(const struct oato_device *d, const struct oato_op *op,
                            enum numerics_choice choice);
    /* True when decode runs these neighbours together, given the first and the last operator.
     * NULL: nothing is joined. */
    bool (*joins)(const struct oato_device *d, enum op_join join, const struct oato_op *first,
                  const struct oato_op *last);
    /* Bytes of rows x k elements once prepared. */
    uint64_t (*prepared_bytes)(const struct oato_device *d, oato_dtype dtype, int64_t rows,
                               int64_t k, enum weight_use use);
    /* The same for a source, which may have a list. NULL: prepared_bytes is right for all. */
    uint64_t (*source_bytes)(const struct oato_device *d, const struct weight_source *source);
    /* Scratch memory that one run needs; a program needs the maximum over its records. */
    uint64_t (*workspace_bytes)(const struct oato_device *d, const struct oato_op *op,
                                const struct op_size *size);

    oato_status (*alloc)(struct oato_device *d, uint64_t bytes, void **out, struct oato_error *err);
    void (*free)(struct oato_device *d, void *p, uint64_t bytes);
    /* Host memory that uploads and downloads are fastest with (page-locked), of any device of this
     * kind. NULL when there is none to spare: memory from malloc then serves as well, but slower.
     * Both are NULL where that makes no difference. */
    void *(*host_alloc)(struct oato_device *d, uint64_t bytes);
    void (*host_free)(struct oato_device *d, void *p);
    /* Queued after what was submitted before; done when the event reaches *value. With value NULL
     * the call returns when done. offset is in bytes from a pointer that alloc returned. */
    oato_status (*upload)(struct oato_device *d, void *to, uint64_t offset, const void *from,
                          uint64_t bytes, uint64_t *value, struct oato_error *err);
    oato_status (*download)(struct oato_device *d, void *to, const void *from, uint64_t offset,
                            uint64_t bytes, uint64_t *value, struct oato_error *err);

    /* Announces that `weights` weights of `bytes` prepared bytes in total will be prepared next, so
     * that the device may allocate for all of them at once. NULL: each is allocated by itself. */
    void (*reserve)(struct oato_device *d, uint64_t bytes, uint32_t weights);
    oato_status (*prepare)(struct oato_device *d, const struct weight_source *source,
                           struct oato_weight **out, struct oato_error *err);
    /* A streamed weight: it stays in host memory, and each RECORD_STREAM that names it copies it to
     * staging + offset (memory from alloc, at least prepared_bytes), where it is valid until
     * something else is streamed there. The copy's source is source->prepared, in this device's
     * layout, or else the rows in the file, converted on arrival; either is read until weight_free.
     * On a host device, and where source->stored names one, it stays in a file instead, and may be
     * read from there before its record, as soon as its place is free. Weights are staged in the
     * order of their records, which is the same in all programs. NULL: this device cannot stream
     * weights. */
    oato_status (*stage)(struct oato_device *d, const struct weight_source *source, void *staging,
                         uint64_t offset, struct oato_weight **out, struct oato_error *err);
    /* Replaces rows [row, row + the source's) of a resident matrix, multiples of 64, beside the
     * steps that are submitted after it, which must not read them until the transfer queue's event
     * has reached *value. A device with the host's layout id copies the source's prepared bytes;
     * another one converts its rows, neighbours in the file. Either is read until then. begin_ns:
     * on the devices' clock, for simulated devices. Between steps, by a device with a program whose
     * experts lie in a cache. NULL: this device cannot. */
    oato_status (*refill)(struct oato_device *d, struct oato_weight *w, int64_t row,
                          const struct weight_source *source, uint64_t begin_ns, uint64_t *value,
                          struct oato_error *err);
    struct timeline *(*transfers)(struct oato_device *d); /* of the queue of refill; with it only */
    void (*weight_free)(struct oato_device *d, struct oato_weight *w);
    /* The id of the layout of prepared weights, static text of at most 31 bytes. Devices with the
     * same id can use each other's prepared bytes, so it must change whenever the layout does. May
     * be NULL or return NULL: the layout has no id. */
    const char *(*layout)(const struct oato_device *d);
    /* The prepared bytes of w (prepared_bytes of them) in host memory, to save in a file or to
     * stream from. NULL: they cannot be read. */
    const void *(*weight_data)(const struct oato_device *d, const struct oato_weight *w);

    /* The prepared bytes of a source (source_bytes of them) in host memory, to save in a file.
     * NULL: weight_data has those of a prepared weight. */
    oato_status (*convert)(struct oato_device *d, const struct weight_source *source, void *to,
                           struct oato_error *err);

    /* Pages [0, pages) for each of n layers whose shape does not say how many; dtype F16, F32 or,
     * if head_dim is a multiple of 32, Q8_0. No block table is longer than `pages`. */
    oato_status (*kv_create)(struct oato_device *d, const struct kv_layer_shape *layers, int n,
                             oato_dtype dtype, int32_t pages, struct kv_cache **out,
                             struct oato_error *err);
    void (*kv_free)(struct oato_device *d, struct kv_cache *kv);

    /* The program and its tables are borrowed until release. self: this device's index in the
     * step's timeline tables. */
    oato_status (*compile)(struct oato_device *d, const struct program *p, int self,
                           struct compiled **out, struct oato_error *err);
    void (*release)(struct oato_device *d, struct compiled *c);
    /* Starts one step. A host device (unless options.aside) runs it on the calling thread and
     * returns when done; others return at once. The step is over when every device's event has
     * reached timeline_base + n_signals (see device_finish). */
    oato_status (*submit)(struct oato_device *d, struct compiled *c, const struct step *step,
                          struct oato_error *err);
    /* Waits until everything submitted is done; reports any failure that happened meanwhile. */
    oato_status (*finish)(struct oato_device *d, struct oato_error *err);

    /* Joins those devices of all ranks that RECORD_SWAPs exchange with, one of each rank. All ranks
     * call it, before steps with such records, and all fail when one does. The second time nothing
     * is done. NULL: the device cannot. */
    oato_status (*join)(struct oato_device *d, struct collective *ranks, struct oato_error *err);
    /* True when records of d can copy directly from the memory of `other` (RECORD_PEER), until one
     * of the two is closed. NULL: d cannot reach other devices. */
    bool (*reaches)(struct oato_device *d, struct oato_device *other);

    struct timeline *(*timeline)(struct oato_device *d);
    /* The clock that measures this device's work: real time for hardware, the virtual clock for
     * sim. */
    uint64_t (*clock_ns)(const struct oato_device *d);
    /* How long, on that clock, its steps have waited for other devices; host devices only. */
    uint64_t (*waited_ns)(const struct oato_device *d);
    /* Bytes that it has read from files of staged weights. NULL: it cannot stage from a file. */
    uint64_t (*stored_read)(const struct oato_device *d);
    /* For profilers, between steps. Until it is set back to CLOCK_USUAL, the clock values at a
     * step's signals are of the given kind once finish has returned. False, with the reason in *why
     * (may be NULL): the device cannot do that or, when switching back, could not do it for every
     * step; the values are then of the previous kind in the enum. NULL: only CLOCK_USUAL is
     * available. */
    bool (*measure)(struct oato_device *d, enum device_clock clock, struct oato_error *why);
    /* The best read bandwidth from a buffer larger than its caches; NULL: a profiler estimates it
     * from operators. */
    oato_status (*read_rate)(struct oato_device *d, double *bytes_per_s, struct oato_error *err);
    /* Bandwidths of copies to the device and to the host that run at the same time, with
     * page-locked memory. Called between steps. NULL: unknown. */
    oato_status (*both_rates)(struct oato_device *d, double *to_device, double *to_host,
                              struct oato_error *err);
    /* One line about something that slows the device down and that the user should know, or NULL.
     * The function may be NULL: no warnings. */
    const char *(*warning)(const struct oato_device *d);
    /* For tests: "record=5" fails the fifth record from now on, "alloc=3" the third allocation. */
    oato_status (*inject_error)(struct oato_device *d, const char *what, struct oato_error *err);
};

/* Every device structure starts with this. */
struct oato_device {
    const struct device_ops *ops;
};

/* The kinds in the order in which they are listed; kernels/KIND/ defines KIND_device_ops. */
#define DEVICE_KINDS(row) row(cpu) row(cuda) row(sim)
#define DEVICE_OPS(kind)  extern const struct device_ops kind##_device_ops;
DEVICE_KINDS(DEVICE_OPS)
#undef DEVICE_OPS
extern const struct device_ops *const device_registry[]; /* NULL-terminated */

/* Opens "cpu", "cpu:0", "sim:vram=64MiB,read=900GB/s,flops=80T,link=25GB/s,latency=10us",
 * "sim:1:vram=..."; a list separated by ',' is split by device_split first. Unknown kinds are
 * refused with the list of known ones. */
oato_status device_open(const char *spec, int index, const struct device_options *options,
                        struct oato_device **out, struct oato_error *err);
/* Whether devices of that spec's kind keep a core of the host busy, or are the host's own. */
bool device_keeps_core(const char *spec);
bool device_is_host(const char *spec);
/* Splits "cpu,sim:vram=1GiB,link=25GB/s,sim:vram=2GiB" into specs: a piece that starts with a
 * known kind begins a new one. Returns how many (at most max), or -1 with a message. */
int device_split(const char *list, char (*specs)[256], int max, struct oato_error *err);
/* Appends the list of the devices that this machine has, "cpu:0,cuda:0"; simulated ones are left
 * out, and so are accelerators that cannot be opened, for which warn gets a line. */
void device_found(struct text *list, warn_fn warn, void *user);
/* Prints the devices that can be opened on this machine, one per line. */
void device_list(FILE *out);
/* Appends ", "-separated names of the accelerators that are in the machine and that no kind of
 * device runs on; root as of device_ops.sight. Returns how many. */
int device_strangers(const char *root, struct text *out);

#endif
