/*
 * cuda_activity.c - records of what a GPU did, from CUPTI's activity interface (CUPTI
 * documentation, "CUPTI Activity API"). The library asks for buffers, fills them with records of
 * several kinds in any order and gives them back; begin, end and kind of each are kept until they
 * are summed up.
 *
 * Only the leading members of records are read. They are where they are in every CUPTI of CUDA 12
 * and 13 (CUpti_ActivityKernel8 to 10, CUpti_ActivityMemcpy5 and 6, CUpti_ActivityMemset4), new
 * ones are added behind them; a test compares with NVIDIA's headers where a toolkit is.
 */
#include "kernels/cuda/cuda_activity.h"
#include "kernels/cuda/cuda_driver.h"
#include "kernels/cuda/cupti_records.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFER_BYTES = 2 << 20,
    FLUSHES = 3, /* records of finished work come with the first */
};

static struct cupti cupti;
static bool opened, recording;

/* What a record says. */
struct span {
    uint64_t begin_ns, end_ns;
    bool is_mark;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* CUPTI has threads of its own */
static struct span *spans;
static size_t n_spans, cap_spans;
static uint32_t n_marks;
static bool short_of_memory;

/* ------------------------------------------------------------------------------ buffers --- */

static void request_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *buffer = aligned_alloc(CUPTI_ALIGNMENT, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0; /* as many as it holds */
}

/* The lock is held. */
static void keep_span(struct span span)
{
    struct span *room = array_room(spans, n_spans, &cap_spans, sizeof *room);
    short_of_memory = short_of_memory || !room;
    if (!room)
        return;
    spans = room;
    spans[n_spans++] = span;
    n_marks += span.is_mark;
}

static void keep_record(const void *record)
{
    const struct cupti_kernel *kernel = record;
    const struct cupti_transfer *transfer = record;
    if (kernel->kind == CUPTI_KIND_CONCURRENT_KERNEL)
        keep_span(
            (struct span){.begin_ns = kernel->begin_ns,
                          .end_ns = kernel->end_ns,
                          .is_mark = kernel->name && !strcmp(kernel->name, CUDA_MARK_KERNEL)});
    else
        keep_span((struct span){.begin_ns = transfer->begin_ns, .end_ns = transfer->end_ns});
}

static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    void *record = NULL;
    (void)context, (void)stream, (void)bytes;
    pthread_mutex_lock(&lock);
    while (valid && !cupti.next_record(buffer, valid, &record))
        keep_record(record);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

/* ------------------------------------------------------------------------------ library --- */

static oato_status fail(int result, const char *doing, struct oato_error *err)
{
    const char *text = NULL;
    cupti.result_text(result, &text);
    return oato_fail(err, OATO_EDEVICE, "CUPTI: %s: %s", doing, text ? text : "unknown error");
}

static oato_status open_library(int cuda_version, struct oato_error *err)
{
    static const struct cuda_library wanted = {"CUPTI", "libcupti.so", "OATO_CUPTI", true, 0};
    void *library = cuda_library_open(&wanted, cuda_version, err);
    if (!library)
        return err->status;
#define LOAD(member, symbol, arguments)                                                            \
    if (!(*(void **)&cupti.member = dlsym(library, symbol)))                                       \
        return oato_fail(err, OATO_EDEVICE, "CUPTI: the library lacks %s", symbol);
    CUPTI_FUNCTIONS(LOAD)
#undef LOAD
    const int result = cupti.register_callbacks(request_buffer, take_buffer);
    if (result)
        return fail(result, "registering buffers", err);
    opened = true;
    return OATO_OK;
}

/* ---------------------------------------------------------------------------- recording --- */

static const uint32_t kinds[] = {CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_KIND_MEMCPY,
                                 CUPTI_KIND_MEMSET};

static void forget(void)
{
    n_spans = n_marks = 0;
    short_of_memory = false;
}

oato_status cuda_activity_start(int cuda_version, struct oato_error *err)
{
    if (recording)
        return oato_fail(err, OATO_EUSAGE, "CUPTI is already recording another GPU");
    if (!opened && open_library(cuda_version, err))
        return err->status;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        const int result = cupti.enable(kinds[i]);
        if (!result)
            continue;
        while (i--)
            cupti.disable(kinds[i]);
        return fail(result, "enabling the recording of kernels and copies", err);
    }
    pthread_mutex_lock(&lock);
    forget();
    pthread_mutex_unlock(&lock);
    recording = true;
    return OATO_OK;
}

void cuda_activity_stop(void)
{
    if (!recording)
        return;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        cupti.disable(kinds[i]);
    cupti.flush_all(CUPTI_FLUSH_FORCED);
    pthread_mutex_lock(&lock);
    forget();
    free(spans);
    spans = NULL;
    cap_spans = 0;
    pthread_mutex_unlock(&lock);
    recording = false;
}

/* In order of their beginning; a mark of the same instant as another record comes after it: work is
 * launched before the mark that tells its end. */
static int compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->is_mark - y->is_mark;
}

static void sum_up(uint64_t *busy_ns)
{
    uint64_t busy = 0, until = 0;
    qsort(spans, n_spans, sizeof *spans, compare_spans);
    for (size_t i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        if (s->is_mark) {
            *busy_ns++ = busy;
        } else if (s->end_ns > until) {
            busy += s->end_ns - (s->begin_ns > until ? s->begin_ns : until);
            until = s->end_ns;
        }
    }
}

oato_status cuda_activity_take(uint32_t n, uint64_t *busy_ns, struct oato_error *err)
{
    oato_status status = OATO_OK;
    size_t dropped = 0; /* since this was asked last */
    int result = CUPTI_OK;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FLUSHES && !result && (!i || n_marks < n); i++) {
        pthread_mutex_unlock(&lock);
        result = cupti.flush_all(i ? CUPTI_FLUSH_FORCED : 0);
        pthread_mutex_lock(&lock);
    }
    cupti.dropped(NULL, 0, &dropped);
    if (result)
        status = fail(result, "flushing records", err);
    else if (short_of_memory)
        status = oato_fail_memory(err, cap_spans * sizeof *spans, "activity records");
    else if (dropped)
        status = oato_fail(err, OATO_EDEVICE, "CUPTI: %zu records were dropped", dropped);
    else if (n_marks != n)
        status =
            oato_fail(err, OATO_EDEVICE, "CUPTI: only %u of %u marks were recorded", n_marks, n);
    else
        sum_up(busy_ns);
    forget();
    pthread_mutex_unlock(&lock);
    return status;
}
