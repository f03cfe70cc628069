/*
 * weights.h - weights as core keeps them for devices, and what a device's own thread does with
 * those that are streamed. weights.c gives them room and converts them, weight_stream.c sends them
 * through lanes, crew.c has the threads that convert meanwhile. For the folders of kernels/.
 */
#ifndef OATO_CORE_WEIGHTS_H
#define OATO_CORE_WEIGHTS_H

#include "kernels/core/core_internal.h"
#include "kernels/core/file_stream.h"

enum {
    LANE_BUFFERS = 3,
    LANE_BUFFER_BYTES = 8 << 20, /* 0.2 ms at 50 GB/s, 10 times the cost of starting a copy */
    LANE_STREAMS = 4, /* RECORD_STREAMs in flight: more would fill a driver's queue, which would
                         block the caller */
    CREW_MOST = 15
};

/* ------------------------------------------------------------------------------- crew ----- */

/* Threads that help whoever runs them. */
struct crew {
    int n;
    void (*share)(void *arg, int threads);
    void *arg;
    bool closing;
    pthread_t thread[CREW_MOST];
    pthread_mutex_t lock;           /* held until it is known how many there are */
    pthread_barrier_t begins, ends; /* of a run: all of them, and who asks for it */
};

/* As many as half of the cores: the others are for what computes meanwhile. Fewer do as well. */
void crew_open(struct crew *c);
void crew_close(struct crew *c);
/* share(arg, threads) on all of them and the caller's thread; one caller at a time. */
void crew_run(struct crew *c, void (*share)(void *arg, int threads), void *arg);

/* ----------------------------------------------------------------------------- weights ---- */

/* The rows of a weight that one transfer sends, from a buffer. */
struct weight_piece {
    const struct device_weight *weight;
    struct weight_lanes *lanes; /* what carries it, */
    uint8_t *to;                /* its buffer, */
    int buffer;                 /* and its number */
    int64_t begin, end;         /* rows of the weight */
};

struct device_weight {
    struct oato_weight handle; /* the caller's; its data is an address of the device's memory */
    struct oato_weight real;   /* the same where the host reaches it; data NULL: only copies do */
    struct device_weight *next, **at; /* in the list of the store, and what points to it there */
    struct oato_device *device;
    struct weight_source source;
    bool streamed; /* it lies in memory that is not its own, */
    bool borrowed; /* or is the file's rows; */
    bool in_slab;
    struct lane_mark *arrived; /* streamed, through lanes: where the copy is done */
    bool cut;                  /* it is sent in pieces: planes and pieces are set, */
    bool unpacked;             /* which are the file's rows: the device converts them */
    struct weight_plane plane[WEIGHT_PLANES];
    struct weight_piece *pieces;
    uint32_t n_pieces;
    uint8_t *kept; /* streamed: all of it as it is sent, of host_alloc; NULL: converted each time */
};

static inline struct device_weight *device_weight_of(const struct oato_weight *w)
{
    return (struct device_weight *)(uintptr_t)w;
}
/* A RECORD_STREAM copies it. */
static inline bool weight_is_streamed(const struct oato_weight *w)
{
    return device_weight_of(w)->streamed;
}
/* The weight where the host reads it; only of devices whose memory it reaches. */
static inline struct oato_weight *weight_real(const struct oato_weight *w)
{
    return &device_weight_of(w)->real;
}
/* Reads the first n numbers of a vector (one that is streamed: all), even before it is streamed. */
oato_status weight_vector_read(struct oato_device *d, const struct oato_weight *w, float *out,
                               uint64_t n, struct oato_error *err);

/* ------------------------------------------------------------------------------- store ---- */

/* What carries weights to a device: a lane in which the host fills page-locked buffers, and one in
 * which they are copied. */
struct weight_lanes {
    struct lane *fill, *copy;
    struct lane_mark *passed; /* where the computing queue was at the last RECORD_STREAM */
    struct lane_mark *behind[LANE_STREAMS]; /* each RECORD_STREAM, a ring */
    uint64_t records;
    void *buffer[LANE_BUFFERS]; /* of host_alloc */
    struct lane_mark *filled[LANE_BUFFERS], *sent[LANE_BUFFERS];
    uint32_t turn; /* next buffer to use */
};

/* Rows of a resident weight that are being replaced. */
struct weight_refilled {
    struct weight_refilled *next;
    struct device_weight rows;
    struct timeline *transfers;
    uint64_t signal; /* of transfers, when they are there */
    uint8_t *converted;
};

/* Of a device. */
struct weight_store {
    char id[16]; /* "": not asked for yet, nor is_host */
    bool is_host;
    struct device_weight *weights; /* all of them */
    struct file_stream *file;      /* streamed weights that come from a file; NULL: none */
    struct {                       /* memory of many weights; bytes 0: none */
        void *memory;
        uint64_t bytes, used;
        uint32_t weights; /* that lie in it */
    } slab;
    struct weight_lanes streams;
    struct crew crew; /* only with lanes */
    /* While large resident weights were sent as the file's rows: how long in all, and how long
     * their rows were copied */
    uint64_t send_ns, copy_ns;
    struct weight_lanes refills; /* of caches of experts; opened with the first program with one */
    struct weight_refilled *refilled; /* in flight, or not freed yet; the newest first */
    struct timeline transfers;        /* of refills */
    uint64_t transfers_asked;
};

/* A device with lanes calls it when it is opened, so that failures are reported there; for others
 * there is no need. */
oato_status weights_open(struct oato_device *d, struct oato_error *err);
/* Every device calls it on closing, when its queue is idle. Of weights that nobody has freed the
 * handles go; their places are the device's. */
void weights_close(struct oato_device *d);
/* Before programs whose experts lie in a cache, if the device has lanes. Does nothing the second
 * time. */
oato_status weights_refills_open(struct oato_device *d, struct oato_error *err);
/* What streamed weights come from; NULL: from no file. For compile. */
struct file_stream *weights_file(const struct oato_device *d);

/* ------------------------------------------------------------- RECORD_STREAM of weights --- */

/* Where the host reaches the device's memory: copies, or converts, the record's weights to their
 * places before it returns. Returns how many bytes that would be on a link; write false: only that.
 */
uint64_t weights_stream_here(const struct program *p, const struct program_record *r, bool write);

/* What a RECORD_STREAM copies from the ring of a file. */
struct weight_file_use {
    struct file_stream *file;
    uint32_t weights; /* how many of the step have been used behind it; 0: it copies none */
};
/* With lanes, on the thread that launches what the device computes. None of them waits.
 * weights_room: whether another record may begin. weights_stream: begins it; kv_arrived: a mark put
 * behind the history that it copies, use: told behind the copies (either may be NULL).
 * weights_await: has the computing queue wait for the weights that a record reads. */
oato_status weights_room(struct oato_device *d, bool *room, struct oato_error *err);
oato_status weights_stream(struct oato_device *d, const struct program *p,
                           const struct program_record *r, const struct step *step,
                           struct lane_mark *kv_arrived, struct weight_file_use *use,
                           struct oato_error *err);
oato_status weights_await(struct oato_device *d, const struct program *p,
                          const struct program_record *r, struct oato_error *err);
/* Waits for copies in flight. */
oato_status weights_drain(struct oato_device *d, struct oato_error *err);

/* --------------------------------------------------------- between weights.c and lanes ---- */

/* Rows [begin, end) of the source to a weight of all of the source's at `to`; by whom, and in how
 * many shares a thread. */
enum convert_by { CONVERT_ALONE, CONVERT_TOGETHER, CONVERT_IN_PLACE /* and releases the file */ };
/* Not converted, but one behind the other. */
void weight_rows_gather(struct oato_device *d, const struct weight_source *source, void *to,
                        enum convert_by by);
void weight_rows_convert(struct oato_device *d, const struct weight_source *source, void *to,
                         enum convert_by by);
/* Of many pieces, so that copying rows and sending them overlap for most of the time. */
static inline bool weight_is_measured(const struct device_weight *w)
{
    return w->unpacked && !w->streamed && w->n_pieces > LANE_BUFFERS;
}
/* The device converts them. */
static inline bool weight_is_unpacked(struct oato_device *d, const struct weight_source *source)
{
    return d->ops->lanes->unpacks && d->ops->lanes->unpacks(d, source);
}
/* Cuts rows of the weight's source into pieces that fit the buffers of `lanes`, which take turns.
 */
oato_status weight_cut(struct weight_lanes *lanes, struct device_weight *w, struct oato_error *err);
/* Starts all of its copies. */
oato_status weight_send(struct device_weight *w, struct oato_error *err);
oato_status weight_lanes_open(struct oato_device *d, struct weight_lanes *l,
                              struct oato_error *err);
void weight_lanes_close(struct oato_device *d, struct weight_lanes *l);
oato_status weight_lanes_drain(struct oato_device *d, const struct weight_lanes *l,
                               struct oato_error *err);
/* What core keeps for the device, made now if it is not there. NULL: no memory. */
struct weight_store *weight_store_of(struct oato_device *d, struct oato_error *err);
void weight_refills_drop(struct oato_device *d);

#endif
