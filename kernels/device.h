/*
 * device.h - the device interface, a table of functions as in any driver, and the registry.
 *
 * A device has memory, says how weights look that its kernels like, compiles a program and runs it
 * for each step on a queue of its own. Its progress is an event: a counter that only rises and that
 * every device and the host can read and wait for.
 *
 * Adding a device is one folder and one word in DEVICE_KINDS (README.md, tests/kernels/toy).
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
    char kind[16];         /* "cpu", "sim", "cuda", "ascend", .. */
    char model[96];        /* what it is: "AMD EPYC 9755", "simulated" */
    char isa[32];          /* level of kernels in use: "avx2"; "" when it has none */
    uint64_t memory_bytes; /* total; free_bytes of it are free now */
    uint64_t free_bytes;
    int32_t threads;  /* 0: the device has no such number */
    char driver[48];  /* version of the driver that it needs; "": it needs none */
    const char *note; /* static text for lists of devices; NULL: none */
    bool is_host;     /* its memory is the host's: no copies to reach it */
    bool spans;       /* it compiles runs of records as one function: lowering cuts program.spans */
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
    const void *data; /* first row of the tensor (row 0), host memory, read while it is prepared
                         only, except WEIGHT_LOOKUP on a host device, which keeps the pointer */
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
    const void *prepared; /* these rows as weight_data or weight_convert gave them on a device of
                             the same layout, 64-byte aligned; read through this pointer until
                             weight_free, instead of converting. NULL: convert the rows */
    /* weight_stage: where these prepared bytes lie in a file, up to a multiple of READ_ALIGN,
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

/* Row r of a prepared weight is the bytes [offset + r * row_bytes, + row_bytes) of each plane. */
enum { WEIGHT_PLANES = 4 };
struct weight_plane {
    uint64_t offset, row_bytes;
};

/* Queues of copies to a device's memory beside the one that computes. What is put into a lane is
 * done in order, and no call waits for it. Lane NULL is the computing queue. A mark is a place in
 * a lane for which another one can wait. From one thread at a time: the device's own, or another
 * one while that is idle. */
struct lane;
struct lane_mark;
struct lane_ops {
    oato_status (*open)(struct oato_device *d, struct lane **out, struct oato_error *err);
    void (*close)(struct oato_device *d, struct lane *lane);
    oato_status (*mark_open)(struct oato_device *d, struct lane_mark **out, struct oato_error *err);
    void (*mark_close)(struct oato_device *d, struct lane_mark *mark);
    /* Host memory, page-locked where possible, to device memory. */
    oato_status (*copy)(struct oato_device *d, struct lane *lane, void *to, uint64_t offset,
                        const void *from, uint64_t bytes, struct oato_error *err);
    /* A function of the host, on a thread of the driver's, which may not use the device. */
    oato_status (*call)(struct oato_device *d, struct lane *lane, void (*function)(void *user),
                        void *user, struct oato_error *err);
    oato_status (*mark)(struct oato_device *d, struct lane *lane, struct lane_mark *mark,
                        struct oato_error *err);
    /* What is put into the lane after this waits until the place marked last is passed. */
    oato_status (*wait)(struct oato_device *d, struct lane *lane, struct lane_mark *mark,
                        struct oato_error *err);
    /* Whether it is passed; one that was never put anywhere is. */
    oato_status (*passed)(struct oato_device *d, struct lane_mark *mark, bool *out,
                          struct oato_error *err);
    /* A device that brings rows to its layout by itself. unpacks: whether it does so with rows like
     * the source's. unpack, in place of copies: the source's rows, one behind the other in host
     * memory as they are in the file, to planes of `to`, where the first of them begins at
     * plane[i].offset. What is put into the lane after `unpacked` waits for all of that. NULL: rows
     * are converted on the host. */
    bool (*unpacks)(struct oato_device *d, const struct weight_source *source);
    oato_status (*unpack)(struct oato_device *d, struct lane *lane,
                          const struct weight_source *rows, const void *from, void *to,
                          const struct weight_plane plane[WEIGHT_PLANES], struct oato_error *err);
    oato_status (*unpacked)(struct oato_device *d, struct lane *lane, struct oato_error *err);
    /* Returns when all is done that was put into the lane. */
    oato_status (*drain)(struct oato_device *d, struct lane *lane, struct oato_error *err);
};

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

/* Another layout of KV pages than the shared one (core/core_internal.h), which takes as many bytes.
 * Pages go from one device to another, to host memory and back in the shared layout. Both functions
 * are pure: n pages of a layer of the cache, in host memory that does not overlap. Slots of state
 * are the same everywhere. */
struct kv_layout {
    const char *id; /* static text of at most 31 bytes */
    void (*from_shared)(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                        const void *from);
    void (*to_shared)(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                      const void *from);
};

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

typedef void symbol_fn(void *user, const char *library, const char *symbol, bool found);

/* All functions are called from one thread at a time unless said otherwise. */
struct device_ops {
    const char *kind;
    bool simulated; /* no hardware: it is there only if it is asked for */
    bool if_named;  /* it is hardware, but used only if it is asked for, too */
    /* Whether a thread of the device that device_open opens so keeps a core of the host busy while
     * a step runs. NULL: no. */
    bool (*keeps_core)(const char *spec);
    /* The number of devices, without opening any: for --list-devices and plan binding. */
    int (*probe)(void);
    /* Why there is none, or how else one is had, as a line for --list-devices; the function is NULL
     * where nothing is said. Opens nothing. */
    void (*absence)(char line[320]);
    /* What there is below root, "" for this machine. NULL: what the device needs is always there.
     */
    void (*sight)(const char *root, struct device_sight *out);
    /* Tells `see` the functions that the kind looks for in libraries, and which of them are there,
     * without opening a device. NULL: it needs none. */
    void (*symbols)(symbol_fn *see, void *user);
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
    /* The types of the values in its arena, [OP_KIND_COUNT], unchanged while it is open; a device
     * that has any F16 there runs CONVERT. Its classes of such operators say so: "f32-f16" has the
     * bits of no other class. NULL, or returns NULL: all are float32, as a host's must be. */
    const struct value_types *(*values)(const struct oato_device *d);
    /* True when decode runs these neighbours together, given the first and the last operator.
     * NULL: nothing is joined. */
    bool (*joins)(const struct oato_device *d, enum op_join join, const struct oato_op *first,
                  const struct oato_op *last);
    /* Scratch memory that one run needs; a program needs the maximum over its records. */
    uint64_t (*workspace_bytes)(const struct oato_device *d, const struct oato_op *op,
                                const struct op_size *size);

    oato_status (*alloc)(struct oato_device *d, uint64_t bytes, void **out, struct oato_error *err);
    void (*free)(struct oato_device *d, void *p, uint64_t bytes);
    /* Host memory that uploads and downloads are fastest with (page-locked), of any device of this
     * kind. NULL when there is none to spare (must: none at all): memory from malloc then serves as
     * well, but slower. Both are NULL where that makes no difference. */
    void *(*host_alloc)(struct oato_device *d, uint64_t bytes, bool must);
    void (*host_free)(struct oato_device *d, void *p);
    /* Queued after what was submitted before; done when the event reaches *value. With value NULL
     * the call returns when done. offset is in bytes from a pointer that alloc returned. */
    oato_status (*upload)(struct oato_device *d, void *to, uint64_t offset, const void *from,
                          uint64_t bytes, uint64_t *value, struct oato_error *err);
    oato_status (*download)(struct oato_device *d, void *to, const void *from, uint64_t offset,
                            uint64_t bytes, uint64_t *value, struct oato_error *err);

    /* ---- weights: bytes, convert and place; what is done with weights is above all of these,
     * see weight_prepare and its neighbours below ---- */

    /* The id of the layout of prepared weights, static text of at most 31 bytes. Devices with the
     * same id can use each other's prepared bytes, so it must change whenever the layout does. May
     * be NULL or return NULL: the layout has no id, and weights are not kept in files. */
    const char *(*layout)(const struct oato_device *d);
    /* Bytes of the source's rows once prepared; data is not read. 0: it has no such layout; of a
     * WEIGHT_LOOKUP, on a host device: its rows are read where they are. */
    uint64_t (*bytes)(const struct oato_device *d, const struct weight_source *source);
    /* Rows [row_begin + begin, row_begin + end) of the source, in host memory, to their places in
     * the prepared weight `to`, and nothing else. Pure; any thread, any rows from a multiple of
     * 64 on (with planes: any rows), several threads at a time. (A device that converts by
     * itself: lane_ops.unpacks.) */
    void (*convert)(const struct oato_device *d, const struct weight_source *source, int64_t begin,
                    int64_t end, void *to);
    /* Room for a weight of so many bytes, counted against the budget. there: its prepared bytes in
     * host memory, or NULL; a host device gives *out == there instead of room. NULL: as alloc. */
    oato_status (*place)(struct oato_device *d, uint64_t bytes, const void *there, void **out,
                         struct oato_error *err);
    void (*unplace)(struct oato_device *d, void *p, uint64_t bytes);
    /* Where the host reads and writes memory of the device (of place, or alloc), so that rows are
     * converted in place; NULL: nowhere, or these bytes are outside of it. The function is NULL
     * where only copies reach it: what is converted is uploaded. */
    void *(*reach)(const struct oato_device *d, const void *p, uint64_t offset, uint64_t bytes);
    /* Runs share(arg, threads) on all threads that the device has for conversions, and returns when
     * all of them have. NULL: the caller's thread is the only one. */
    void (*together)(struct oato_device *d, void (*share)(void *arg, int threads), void *arg);
    /* It runs RECORD_STREAMs of weights (core/weights.h has what they do). */
    bool streams;

    /* All that follows may be missing; it is for memory that copies reach beside steps. */

    /* Sets all WEIGHT_PLANES planes of the source's rows once prepared (unused ones with rows of no
     * bytes) and returns true; weights are then converted and sent a piece at a time. False: each
     * row is spread over all of the weight, which goes as a whole. */
    bool (*planes)(const struct oato_device *d, const struct weight_source *source,
                   struct weight_plane plane[WEIGHT_PLANES]);
    /* NULL: weights are sent by upload, and none is streamed. With host_alloc. */
    const struct lane_ops *lanes;
    uint32_t weight_align; /* of weights in one allocation for all, and of staging; 0: each is
                              placed by itself */
    /* Simulated devices, instead of lanes: host memory to memory that `reach` has given, from
     * begin_ns on at the earliest on the devices' clock, beside the steps that follow. Raises
     * weight_transfers to `signal`. */
    oato_status (*beside)(struct oato_device *d, void *to, const void *from, uint64_t bytes,
                          uint64_t signal, uint64_t begin_ns, struct oato_error *err);

    /* Pages [0, pages) for each of n layers whose shape does not say how many; dtype F16, F32 or,
     * if head_dim is a multiple of 32, Q8_0, of which a device takes those that it `supports`
     * KV_STORE and ATTENTION with. No block table is longer than `pages`. Both are NULL where
     * nothing with KV or state is supported. */
    oato_status (*kv_create)(struct oato_device *d, const struct kv_layer_shape *layers, int n,
                             oato_dtype dtype, int32_t pages, struct kv_cache **out,
                             struct oato_error *err);
    void (*kv_free)(struct oato_device *d, struct kv_cache *kv);
    /* The layout of its pages. A device that has one of its own converts what a RECORD_STREAM of KV
     * copies. NULL, or returns NULL: the shared one, as the host's must be. */
    const struct kv_layout *(*kv_layout)(const struct oato_device *d);

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

struct weight_store; /* core/weights.h */

/* Every device structure starts with this. */
struct oato_device {
    const struct device_ops *ops;
    struct weight_store *weights; /* what core keeps of them; NULL: nothing so far */
};
static inline const struct kv_layout *device_kv_layout(const struct oato_device *d)
{
    return d->ops->kv_layout ? d->ops->kv_layout(d) : NULL;
}
static inline const struct value_types *device_values(const struct oato_device *d)
{
    return d->ops->values ? d->ops->values(d) : NULL;
}

/* ----------------------------------------------------------------------------- weights ---- */

/* core/weights.c: what is done with weights, the same for every device. */

/* Bytes of the source's rows, or of the first rows of a matrix without a list, once prepared. */
uint64_t weight_bytes(const struct oato_device *d, const struct weight_source *source);
uint64_t weight_bytes_of(const struct oato_device *d, oato_dtype dtype, int64_t rows, int64_t k,
                         enum weight_use use);
/* Announces that `weights` weights of `bytes` bytes in total will be prepared next, so that there
 * may be one allocation for all of them. */
void weight_reserve(struct oato_device *d, uint64_t bytes, uint32_t weights);
/* Converts the rows into room of the device's; freed by weight_free. */
oato_status weight_prepare(struct oato_device *d, const struct weight_source *source,
                           struct oato_weight **out, struct oato_error *err);
/* A streamed weight: it stays in host memory, and each RECORD_STREAM that names it copies it to
 * staging + offset (memory from alloc, at least weight_bytes), where it is valid until something
 * else is streamed there. The copy's source is source->prepared, in this device's layout, or else
 * the rows in the file, converted on the way; either is read until weight_free. On a host device,
 * and where source->stored names one, it stays in a file instead, and may be read from there before
 * its record, as soon as its place is free. Weights are staged in the order of their records, which
 * is the same in all programs. Not where device_ops.streams is false. */
oato_status weight_stage(struct oato_device *d, const struct weight_source *source, void *staging,
                         uint64_t offset, struct oato_weight **out, struct oato_error *err);
/* Whether weight_refill can: replaces rows [row, row + the source's) of a resident matrix
 * (multiples of 64, except on devices with planes) beside the steps that are submitted after it,
 * which must not read them until the event of weight_transfers has reached *value. The source's
 * rows, or its prepared bytes on a device without lanes, are read until then. begin_ns: on the
 * devices' clock, for simulated devices. Between steps, by a device with a program whose experts
 * lie in a cache. */
bool weight_refills(const struct oato_device *d);
oato_status weight_refill(struct oato_device *d, struct oato_weight *w, int64_t row,
                          const struct weight_source *source, uint64_t begin_ns, uint64_t *value,
                          struct oato_error *err);
struct timeline *weight_transfers(struct oato_device *d); /* after a refill */
/* Waits for what may still use it. NULL: nothing. */
void weight_free(struct oato_device *d, struct oato_weight *w);
/* The prepared bytes of w in host memory; NULL: only copies reach them. */
const void *weight_data(const struct oato_device *d, const struct oato_weight *w);
/* The prepared bytes of a source to host memory, weight_bytes of them, 64-byte aligned. The pages
 * of its file are released, as after weight_prepare. */
oato_status weight_convert(struct oato_device *d, const struct weight_source *source, void *to,
                           struct oato_error *err);
/* The layout's id; NULL: it has none. */
const char *weight_layout(const struct oato_device *d);

/* The kinds in the order in which they are listed; kernels/KIND/ defines KIND_device_ops. */
#define DEVICE_KINDS(row) row(cpu) row(cuda) row(ascend) row(openvino) row(sim)
#define DEVICE_OPS(kind)  extern const struct device_ops kind##_device_ops;
DEVICE_KINDS(DEVICE_OPS)
#undef DEVICE_OPS
extern const struct device_ops *const device_registry[]; /* NULL-terminated */

/* Opens "cpu", "cpu:0", "sim:vram=64MiB,read=900GB/s,flops=80T,link=25GB/s,latency=10us",
 * "sim:1:vram=..."; a list separated by ',' is split by device_split first. Unknown kinds are
 * refused with the list of known ones. */
oato_status device_open(const char *spec, int index, const struct device_options *options,
                        struct oato_device **out, struct oato_error *err);
/* The functions of the spec's kind, whose name may be another one of it ("npu"); NULL: there is no
 * such kind. */
const struct device_ops *device_kind(const char *spec);
/* Whether the device of that spec keeps a core of the host busy, or is the host's own. */
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
