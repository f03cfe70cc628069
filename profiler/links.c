/*
 * links.c - the rates and latencies of links: in each direction, with page-locked and with
 * pageable host memory, in both directions at once, with the host converting weights during the
 * copy; between two devices with a direct link; and the cost of waiting for the other side's event.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- copies --- */

/* ns of one of the records between the first and the last. */
static oato_status time_records(const struct rig *r, struct program *p,
                                struct program_record *records, uint32_t n, bool quick, double *ns,
                                struct oato_error *err)
{
    static const struct rig_effort once = {1, 1, 0}, few = {5, 5, 20000000},
                                   many = {15, 15, 20000000};
    const struct rig_effort *effort = r->declared ? &once : quick ? &few : &many;
    struct rig_times times;
    const oato_status status =
        rig_time(r, p, records, n, false, &(struct op_point){1, 1, 0, 0}, effort, &times, err);
    if (!status)
        *ns = quantile(times.inner_ns, times.n, 0.5) / (n - 1);
    return status;
}

/* What is copied, and from where if it is another device: a RECORD_PEER. */
struct copies {
    enum record_kind kind;
    bool pinned;
    const struct rig *from;
    void *memory, *from_memory; /* of the devices */
    uint8_t *host;
    uint64_t bytes; /* of each of them */
};

static oato_status copies_alloc(const struct rig *r, struct copies *c, struct oato_error *err)
{
    oato_status status = r->device->ops->alloc(r->device, c->bytes, &c->memory, err);
    if (!status && c->from)
        status = c->from->device->ops->alloc(c->from->device, c->bytes, &c->from_memory, err);
    if (status || c->from)
        return status;
    c->host = pages_alloc(c->bytes);
    if (!c->host)
        return oato_fail_memory(err, c->bytes, "measuring a link");
    memset(c->host, 1, c->bytes);
    return OATO_OK;
}

static void copies_free(const struct rig *r, const struct copies *c)
{
    if (c->memory)
        r->device->ops->free(r->device, c->memory, c->bytes);
    if (c->from_memory)
        c->from->device->ops->free(c->from->device, c->from_memory, c->bytes);
    if (c->host)
        pages_free(c->host, c->bytes);
}

/* Copies between the device's arena and another one, one behind the other, as steps have them. */
static oato_status time_copies(const struct rig *r, const struct copies *c, uint64_t bytes,
                               bool quick, double *ns, struct oato_error *err)
{
    enum { RECORDS = 17, PEER = 1 };
    struct program_record records[RECORDS];
    struct program_peer peers[DEVICES_MAX] = {{0}};
    struct graph_op shape = {.n_in = 1, .n_out = 1};
    for (int i = 0; i < RECORDS; i++) {
        records[i] = rig_record(&shape, &(struct oato_op){.kind = OP_ADD},
                                (int32_t[]){(int32_t)(bytes / sizeof(float))});
        records[i].kind = (uint8_t)c->kind;
        records[i].peer = PEER;
    }
    struct program p = {.arena = c->memory,
                        .host_arena = c->host,
                        .host_arena_bytes = c->pinned ? c->bytes : 0,
                        .peers = peers};
    if (c->from)
        peers[PEER] = (struct program_peer){c->from->device, c->from_memory, c->bytes};
    return time_records(r, &p, records, RECORDS, quick, ns, err);
}

/* Latency and rate by a fit over several sizes. */
static oato_status copies_rate(const struct rig *r, struct copies c, bool quick, double *latency_ns,
                               double *bytes_per_s, struct oato_error *err)
{
    static const uint64_t sizes[] = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
    double ns[ARRAY_LEN(sizes)] = {0};
    size_t n = ARRAY_LEN(sizes);
    for (const struct rig *side = r; side; side = side == r ? c.from : NULL) {
        struct device_info info;
        side->device->ops->info(side->device, &info);
        while (n > 2 && sizes[n - 1] > info.free_bytes / 2)
            n--;
    }
    c.bytes = sizes[n - 1];
    oato_status status = copies_alloc(r, &c, err);
    for (size_t i = 0; !status && i < n; i++)
        status = time_copies(r, &c, sizes[i], quick, &ns[i], err);
    if (!status) {
        /* rate: the slope at the large end; latency: what is left of the small ones */
        double slope = (ns[n - 1] - ns[n - 2]) / (double)(sizes[n - 1] - sizes[n - 2]);
        double left[2] = {ns[0] - slope * (double)sizes[0], ns[1] - slope * (double)sizes[1]};
        *bytes_per_s = slope > 0 ? 1e9 / slope : 0;
        *latency_ns = quantile(left, 2, 0.5);
        *latency_ns = *latency_ns > 0 ? *latency_ns : 0;
    }
    copies_free(r, &c);
    return status;
}

/* ----------------------------------------------------------------------- streamed weights --- */

enum { STREAM_WEIGHTS = 4, STREAM_RECORDS = 9, STREAM_K = 4096 };

/* Weights of one type in a file, each of which is streamed more than once to the same place. */
struct streamed {
    uint8_t *file;
    size_t file_bytes, bytes; /* bytes: of one */
    void *staging;
    uint64_t staging_bytes;
    struct oato_weight *weight[STREAM_WEIGHTS];
};

static void streamed_free(const struct rig *r, struct streamed *s)
{
    const struct device_ops *ops = r->device->ops;
    for (int i = 0; i < STREAM_WEIGHTS; i++)
        if (s->weight[i])
            weight_free(r->device, s->weight[i]);
    if (s->staging)
        ops->free(r->device, s->staging, s->staging_bytes);
    if (s->file)
        pages_free(s->file, s->file_bytes);
}

static oato_status streamed_create(const struct rig *r, oato_dtype dtype, int32_t rows,
                                   struct streamed *s, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    size_t row_bytes;
    memset(s, 0, sizeof *s);
    if (!dtype_row_bytes(dtype, STREAM_K, &row_bytes))
        return oato_fail(err, OATO_EUSAGE, "rows of %d elements do not fit the blocks of type %s",
                         STREAM_K, dtype_name(dtype));
    s->bytes = row_bytes * (size_t)rows;
    s->file_bytes = STREAM_WEIGHTS * s->bytes;
    s->file = pages_alloc(s->file_bytes);
    if (!s->file)
        return oato_fail_memory(err, s->file_bytes, "weights to stream");
    memset(s->file, 0x2c, s->file_bytes); /* small normal numbers in every element type */
    s->staging_bytes = weight_bytes_of(r->device, dtype, rows, STREAM_K, WEIGHT_MATRIX);
    oato_status status = ops->alloc(r->device, s->staging_bytes, &s->staging, err);
    for (int i = 0; i < STREAM_WEIGHTS && !status; i++) {
        const struct weight_source source = {.data = s->file + (size_t)i * s->bytes,
                                             .dtype = dtype,
                                             .k = STREAM_K,
                                             .n = rows,
                                             .row_end = rows,
                                             .use = WEIGHT_MATRIX};
        status = weight_stage(r->device, &source, s->staging, 0, &s->weight[i], err);
    }
    return status;
}

/* Bytes a second of one type. */
static oato_status time_stream(const struct rig *r, oato_dtype dtype, bool quick,
                               double *bytes_per_s, struct oato_error *err)
{
    struct program_record records[STREAM_RECORDS];
    struct graph_op shape = {.n_weights = 1};
    struct streamed s;
    double ns = 0;
    oato_status status = streamed_create(r, dtype, quick ? 1024 : 8192, &s, err);
    for (uint32_t i = 0; i < STREAM_RECORDS; i++) {
        records[i] = rig_record(&shape, &(struct oato_op){.kind = OP_NONE}, NULL);
        records[i].kind = RECORD_STREAM;
        records[i].weight[0] = i % STREAM_WEIGHTS;
    }
    struct program p = {.weights = s.weight, .n_weights = STREAM_WEIGHTS};
    if (!status)
        status = time_records(r, &p, records, STREAM_RECORDS, quick, &ns, err);
    if (!status && ns > 0)
        *bytes_per_s = (double)s.bytes * 1e9 / ns;
    streamed_free(r, &s);
    return status;
}

/* Of the type that takes longest. */
static oato_status stream_rate(const struct rig *r, bool quick, double *bytes_per_s,
                               struct oato_error *err)
{
    static const oato_dtype dtypes[] = {DT_Q8_0, DT_Q4_K}; /* blocks of 32, and of 256 */
    oato_status status = OATO_OK;
    *bytes_per_s = 0;
    for (size_t i = 0; i < ARRAY_LEN(dtypes) && r->device->ops->streams && !status; i++) {
        const struct oato_op op = {
            .kind = OP_MUL_MAT, .dtype = (uint16_t)dtypes[i], .k = STREAM_K, .n = STREAM_K};
        double rate = 0;
        if (r->device->ops->supports(r->device, &op))
            status = time_stream(r, dtypes[i], quick, &rate, err);
        if (!status && rate > 0 && (*bytes_per_s <= 0 || rate < *bytes_per_s))
            *bytes_per_s = rate;
    }
    if (status)
        *bytes_per_s = 0;
    return status;
}

/* ----------------------------------------------------------------- waiting for each other --- */

enum { PINGS = 64, PING_WIDTH = 64 };

/* PINGS small records, each of which waits for the host and answers; ns from the first answer to
 * the last on the device's clock, less the same without waiting. */
static oato_status ping_once(const struct rig *r, struct compiled *c, struct rig_step *s,
                             struct timeline *host, bool answer, double *ns, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    struct timeline *t = ops->timeline(r->device);
    s->timelines[0] = host;
    s->timelines[1] = t;
    s->base[0] = atomic_load(&host->value);
    s->base[1] = atomic_load(&t->value);
    uint64_t clock = ops->clock_ns(r->device), first = 0;
    s->step.clock_ns = clock;
    oato_status status = ops->submit(r->device, c, &s->step, err);
    if (status)
        return status;
    for (uint64_t i = 1; i <= PINGS; i++) {
        if (answer)
            timeline_signal(host, s->base[0] + i, clock);
        if (!timeline_wait(t, s->base[1] + i, &clock))
            break;
        first = i == 1 ? clock : first;
    }
    *ns = clock > first ? (double)(clock - first) : 0;
    return ops->finish(r->device, err);
}

/* Half of a round trip in which device and host wait for each other's event. */
static oato_status link_sync(const struct rig *r, bool quick, double *sync_ns,
                             struct oato_error *err)
{
    enum { RUNS = 9 };
    const struct device_ops *ops = r->device->ops;
    const struct program_record small = rig_addition(PING_WIDTH, 1);
    const uint64_t bytes = rig_addition_bytes(PING_WIDTH, 1);
    int runs = r->declared ? 1 : quick ? 3 : RUNS;
    double total[2][RUNS];
    void *memory = NULL;
    struct rig_step s = {0};
    *sync_ns = 0;
    if (!ops->supports(r->device, &small.op))
        return OATO_OK;
    struct timeline *host = calloc(1, sizeof *host);
    struct program_record *records = calloc(PINGS, sizeof *records);
    if (!host || !records) {
        free(records);
        free(host);
        return oato_fail_memory(err, sizeof *host, "a timeline");
    }
    timeline_init(host);
    oato_status status = rig_step_create(&(struct op_point){1, 1, 0, 0}, 0, &s, err);
    if (!status)
        status = rig_alloc(r, bytes, &memory, err);
    struct program p = {.records = records,
                        .n_records = PINGS,
                        .n_signals = PINGS,
                        .max_tokens = 1,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .arena = memory};
    for (int waits = 0; waits < 2 && !status; waits++) {
        struct compiled *c = NULL;
        for (uint32_t i = 0; i < PINGS; i++) {
            records[i] = small;
            records[i].signal = i + 1;
            records[i].n_waits = (uint8_t)waits;
            records[i].wait[0] = (struct record_wait){.device = 0, .ordinal = i + 1};
        }
        rig_types(r, records, PINGS);
        status = ops->compile(r->device, &p, 1, &c, err);
        for (int run = 0; run < runs && !status; run++)
            status = ping_once(r, c, &s, host, waits, &total[waits][run], err);
        if (c)
            ops->release(r->device, c);
    }
    if (!status) {
        double ns = quantile(total[1], runs, 0.5) - quantile(total[0], runs, 0.5);
        *sync_ns = ns > 0 ? ns / (2 * (PINGS - 1)) : 0;
    }
    if (memory)
        ops->free(r->device, memory, bytes);
    rig_step_free(&s);
    free(records);
    free(host);
    return status;
}

/* --------------------------------------------------------------------------- rates ----- */

static struct copies host_copies(bool to_device, bool pinned)
{
    return (struct copies){.kind = to_device ? RECORD_UPLOAD : RECORD_DOWNLOAD, .pinned = pinned};
}

/* What declared links do not tell apart. */
static oato_status more_rates(const struct rig *r, bool quick, struct profile_link *const ways[2],
                              struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    oato_status status = OATO_OK;
    for (int up = 0; up < 2 && !status; up++)
        status = copies_rate(r, host_copies(up, false), quick, &ways[up]->pageable_latency_ns,
                             &ways[up]->pageable_bytes_per_s, err);
    if (!status && ops->both_rates)
        status =
            ops->both_rates(r->device, &ways[1]->both_bytes_per_s, &ways[0]->both_bytes_per_s, err);
    if (!status)
        status = stream_rate(r, quick, &ways[1]->stream_bytes_per_s, err);
    return status == OATO_EFIT ? OATO_OK : status; /* what has no room is not known */
}

static void readable_link(struct profile_link *l)
{
    double *const ns[] = {&l->latency_ns, &l->sync_ns, &l->pageable_latency_ns};
    double *const rates[] = {&l->bytes_per_s, &l->pageable_bytes_per_s, &l->both_bytes_per_s,
                             &l->stream_bytes_per_s};
    for (size_t i = 0; i < ARRAY_LEN(ns); i++)
        *ns[i] = readable_ns(*ns[i]);
    for (size_t i = 0; i < ARRAY_LEN(rates); i++)
        *rates[i] = round(*rates[i]);
}

/* Both directions between the host and a device. */
static oato_status link_rates(const struct rig *r, bool quick, struct profile_link *to_device,
                              struct profile_link *to_host, struct oato_error *err)
{
    struct profile_link *const ways[2] = {to_host, to_device};
    oato_status status = OATO_OK;
    for (int up = 0; up < 2 && !status; up++)
        status = copies_rate(r, host_copies(up, true), quick, &ways[up]->latency_ns,
                             &ways[up]->bytes_per_s, err);
    if (!status && rig_is_hardware(r))
        status = more_rates(r, quick, ways, err);
    readable_link(to_device);
    readable_link(to_host);
    return status;
}

/* --------------------------------------------------------------- entries in the profile --- */

static bool put_link(struct profile *p, const struct profile_link *link)
{
    for (int32_t i = 0; i < p->n_links; i++) {
        if (p->links[i].from == link->from && p->links[i].to == link->to) {
            p->links[i] = *link;
            return true;
        }
    }
    struct profile_link *grown = arena_alloc(&p->arena, (size_t)p->n_links + 1, sizeof *grown);
    if (!grown)
        return false;
    if (p->n_links)
        memcpy(grown, p->links, (size_t)p->n_links * sizeof *grown);
    grown[p->n_links++] = *link;
    p->links = grown;
    return true;
}

static void drop_link(struct profile *p, int32_t from, int32_t to)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < p->n_links; i++)
        if (p->links[i].from != from || p->links[i].to != to)
            p->links[kept++] = p->links[i];
    p->n_links = kept;
}

static int32_t host_of(const struct profile *p)
{
    for (int32_t i = 0; i < p->n_devices; i++)
        if (p->devices[i].is_host)
            return i;
    return -1;
}

oato_status links_measure(struct profile *p, struct rig *r, bool quick, struct oato_error *err)
{
    const int32_t host = host_of(p);
    if (r->info.is_host)
        return OATO_OK;
    if (host < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "%s needs a link to the host, and the profile has none yet: use "
                         "--devices cpu,%s",
                         r->info.id, r->info.kind);
    struct profile_link to_device = {.from = host, .to = r->index};
    oato_status status = link_sync(r, quick, &to_device.sync_ns, err);
    struct profile_link to_host = {.from = r->index, .to = host, .sync_ns = to_device.sync_ns};
    rig_clock(r, CLOCK_PASSES, NULL);
    if (!status)
        status = link_rates(r, quick, &to_device, &to_host, err);
    rig_clock(r, CLOCK_USUAL, NULL);
    if (!status && (!put_link(p, &to_host) || !put_link(p, &to_device)))
        status = oato_fail_memory(err, sizeof to_host, "the profile");
    return status;
}

/* What waiting for the events of a device costs the host. */
static double sync_of(const struct profile *p, int32_t device)
{
    for (int32_t i = 0; i < p->n_links; i++)
        if (p->links[i].from == device && p->devices[p->links[i].to].is_host)
            return p->links[i].sync_ns;
    return 0;
}

oato_status links_measure_peer(struct profile *p, struct rig *r, const struct rig *from, bool quick,
                               struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    const struct copies way = {.kind = RECORD_PEER, .from = from};
    struct profile_link link = {.from = from->index,
                                .to = r->index,
                                .sync_ns = fmax(sync_of(p, r->index), sync_of(p, from->index))};
    drop_link(p, link.from, link.to);
    if (!ops->reaches || !ops->reaches(r->device, from->device))
        return OATO_OK;
    rig_clock(r, CLOCK_PASSES, NULL);
    const oato_status status = copies_rate(r, way, quick, &link.latency_ns, &link.bytes_per_s, err);
    rig_clock(r, CLOCK_USUAL, NULL);
    readable_link(&link);
    if (!status && link.bytes_per_s > 0 && !put_link(p, &link))
        return oato_fail_memory(err, sizeof link, "the profile");
    return status;
}
