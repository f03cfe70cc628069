/*
 * What the stand-in's runtime does for a client without mistakes: device memory is unreadable by
 * the host, streams are deferred and ordered by events alone, graphs replay, injected errors come
 * where they are asked for, numbers are rounded as the chip rounds them.
 */
#include "tests/ascend/client.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static void finish(int leaks)
{
    assert_int_equal(stand_broken(NULL), 0);
    assert_int_equal(stand_leaks(), leaks);
    stand_reset();
}

static void the_host_cannot_touch_device_memory(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    for (int writes = 0; writes < 2; writes++) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            volatile char *at = c.x;
            if (writes)
                *at = 1;
            _exit(*at);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    int ends[2]; /* nor may the kernel for it */
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], c.x, 4), -1);
    assert_int_equal(errno, EFAULT);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal((uintptr_t)c.x % 64, 0);
    assert_int_equal((uintptr_t)c.x % 128, 64); /* and no more than is promised */
    client_close(&c);
    finish(0);
}

static void new_memory_holds_no_numbers(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    assert_true(isnan(first_of(c.x)));
    client_close(&c);
    finish(0);
}

static void nothing_runs_before_it_is_waited_for(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    float *pinned, pageable[FLOATS], ones[FLOATS];
    for (int i = 0; i < FLOATS; i++)
        ones[i] = 1;
    OK(aclrtMallocHost((void **)&pinned, BYTES));
    memset(pageable, 0, sizeof pageable);
    OK(aclrtMemcpyAsync(c.x, BYTES, ones, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, c.stream));
    OK(scale(c.x, c.y, 3, c.workspace, c.stream));
    OK(aclrtMemcpyAsync(pinned, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_HOST, c.stream));
    OK(aclrtMemcpyAsync(pageable, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_HOST, c.stream));
    assert_int_equal(stand_pending(), 4);
    assert_true(isnan(pinned[0]) && isnan(pageable[0])); /* not what was there before, either */
    OK(aclrtSynchronizeStream(c.stream));
    assert_int_equal(stand_pending(), 0);
    assert_float_equal(pinned[FLOATS - 1], 3, 0);
    assert_float_equal(pageable[FLOATS - 1], 3, 0);
    OK(aclrtFreeHost(pinned));
    client_close(&c);
    finish(0);
}

/* x -> y on one stream, y -> x on another, ordered by an event: right whatever runs first. */
static void events_order_streams(void **state)
{
    (void)state;
    static const char *const orders[] = {"STAND_ORDER=late", "STAND_ORDER=others",
                                         "STAND_ORDER=eager", "STAND_ORDER=random"};
    for (int o = 0; o < 4; o++) {
        start((const char *const[]){orders[o], NULL});
        struct client c = client_open();
        aclrtStream other;
        aclrtEvent event;
        void *workspace;
        OK(aclrtMalloc(&workspace, WORKSPACE_BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
        OK(aclrtCreateStream(&other));
        OK(aclrtCreateEvent(&event));
        send(c.x, 1);
        for (int i = 0; i < 4; i++) {
            OK(scale(c.x, c.y, 2, c.workspace, c.stream));
            OK(aclrtRecordEvent(event, c.stream));
            OK(aclrtStreamWaitEvent(other, event));
            OK(scale(c.y, c.x, 3, workspace, other));
            OK(aclrtRecordEvent(event, other));
            OK(aclrtStreamWaitEvent(c.stream, event));
        }
        OK(aclrtSynchronizeStream(c.stream));
        assert_float_equal(first_of(c.x), 1296, 0);
        OK(aclrtSynchronizeStream(other));
        OK(aclrtDestroyEvent(event));
        OK(aclrtDestroyStream(other));
        OK(aclrtFree(workspace));
        client_close(&c);
        finish(0);
    }
}

/* Another stream's task and then this one's, each of which reads or writes x: a race unless both
 * read, whatever runs first. */
static void only_two_reads_may_be_unordered(void **state)
{
    (void)state;
    for (int pair = 0; pair < 4; pair++) {
        start(NULL);
        struct client c = client_open();
        aclrtStream other;
        void *memory;
        OK(aclrtCreateStream(&other));
        OK(aclrtMalloc(&memory, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
        const aclrtMemcpyKind kind = ACL_MEMCPY_DEVICE_TO_DEVICE;
        bool first = pair & 1, second = pair & 2; /* writes x */
        OK(aclrtMemcpyAsync(first ? c.x : c.y, BYTES, first ? c.y : c.x, BYTES, kind, other));
        OK(aclrtMemcpyAsync(second ? c.x : memory, BYTES, second ? memory : c.x, BYTES, kind,
                            c.stream));
        assert_int_equal(stand_broken("order"), first || second);
        assert_int_equal(stand_broken(NULL), first || second);
        OK(aclrtSynchronizeDevice());
        OK(aclrtDestroyStream(other));
        OK(aclrtFree(memory));
        client_close(&c);
    }
    stand_reset();
}

static void an_event_is_complete_once_queries_have_let_its_stream_run(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    aclrtEvent first, last;
    aclrtEventRecordedStatus status;
    OK(aclrtCreateEventWithFlag(&first, ACL_EVENT_TIME_LINE));
    OK(aclrtCreateEventWithFlag(&last, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE));
    OK(aclrtRecordEvent(first, c.stream));
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    OK(aclrtRecordEvent(last, c.stream));
    OK(aclrtQueryEventStatus(last, &status));
    assert_int_equal(status, 0); /* not ready: the numbers are inverted */
    int queries = 1;
    for (; status != ACL_EVENT_RECORDED_STATUS_COMPLETE; queries++)
        OK(aclrtQueryEventStatus(last, &status));
    assert_int_equal(status, 1);
    assert_int_equal(queries, 4);
    float ms;
    OK(aclrtEventElapsedTime(&ms, first, last));
    assert_true(ms > 0.0199f && ms < 0.021f); /* the declared launch */
    OK(aclrtResetEvent(last, c.stream));
    OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtQueryEventStatus(last, &status));
    assert_int_equal(status, 0);
    OK(aclrtDestroyEvent(first));
    OK(aclrtDestroyEvent(last));
    client_close(&c);
    finish(0);
}

static void a_graph_does_again_what_was_captured(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    aclrtStream other;
    aclrtEvent event;
    aclmdlRI graph;
    aclmdlRICaptureStatus status;
    OK(aclrtCreateStream(&other));
    OK(aclrtCreateEvent(&event));
    send(c.x, 1);
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL));
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    OK(aclrtRecordEvent(event, c.stream)); /* a second stream joins, and is joined */
    OK(aclrtStreamWaitEvent(other, event));
    OK(aclrtMemcpyAsync(c.x, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE, other));
    OK(aclrtRecordEvent(event, other));
    OK(aclrtStreamWaitEvent(c.stream, event));
    OK(aclmdlRICaptureGetInfo(other, &status, NULL));
    assert_int_equal(status, ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE);
    OK(aclmdlRICaptureEnd(c.stream, &graph));
    OK(aclrtSynchronizeStream(c.stream));
    assert_float_equal(first_of(c.x), 1, 0); /* capturing ran nothing */
    for (int i = 0; i < 3; i++)
        OK(aclmdlRIExecuteAsync(graph, c.stream));
    OK(aclrtSynchronizeStream(c.stream));
    assert_float_equal(first_of(c.x), 8, 0);
    OK(aclmdlRIDestroy(graph));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(other));
    client_close(&c);
    finish(0);
}

static void an_unjoined_fork_ends_no_capture(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    aclrtStream other;
    aclrtEvent event;
    aclmdlRI graph;
    OK(aclrtCreateStream(&other));
    OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    OK(aclrtRecordEvent(event, c.stream));
    OK(aclrtStreamWaitEvent(other, event));
    OK(aclrtMemsetAsync(c.x, BYTES, 0, BYTES, other));
    assert_int_equal(aclmdlRICaptureEnd(c.stream, &graph), 107025);
    assert_int_equal(stand_broken("capture_pair"), 1);
    stand_reset();
}

static void memory_runs_out_at_the_chips_size(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_MEMORY=64M", NULL});
    void *a, *b;
    size_t free_bytes, total;
    OK(aclrtMalloc(&a, 48 * MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    assert_int_equal(aclrtMalloc(&b, 17 * MIB, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
    assert_non_null(strstr(aclGetRecentErrMsg(), "aclrtMalloc"));
    assert_null(aclGetRecentErrMsg()); /* told once */
    OK(aclrtMalloc(&b, 16 * MIB, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total));
    assert_int_equal(free_bytes, 0);
    assert_int_equal(total, 64 * MIB);
    OK(aclrtFree(a));
    OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total));
    assert_int_equal(free_bytes, 48 * MIB);
    OK(aclrtFree(b));
    finish(0);
}

/* Addresses come back only when address space runs short, and are as good as new. */
static void freed_addresses_are_used_again_late(void **state)
{
    (void)state;
    enum { TIMES = 12, LATE = 4 };
    start(NULL);
    void *seen[TIMES];
    int again = 0;
    for (int i = 0; i < TIMES; i++) {
        OK(aclrtMalloc(&seen[i], 1024 * MIB, ACL_MEM_MALLOC_HUGE_FIRST));
        assert_int_equal((uintptr_t)seen[i] % 128, 64);
        for (int j = 0; j < i && !again; j++)
            if (seen[i] == seen[j])
                again = i;
        if (i % 3 == 2) { /* what the one before has left there is gone */
            assert_true(isnan(first_of(seen[i])));
            OK(aclrtMemset(seen[i], 4, 0, 4));
        }
        OK(aclrtFree(seen[i]));
        assert_null(again && again < LATE ? seen[i] : NULL);
    }
    assert_true(again);
    finish(0);
}

static void memory_is_mapped_into_reserved_addresses(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_MEMORY=16M", NULL});
    aclrtPhysicalMemProp prop = {ACL_MEM_HANDLE_TYPE_NONE,
                                 ACL_MEM_ALLOCATION_TYPE_PINNED,
                                 ACL_HBM_MEM_HUGE,
                                 {0, ACL_MEM_LOCATION_TYPE_DEVICE},
                                 0};
    size_t step;
    void *at;
    aclrtDrvMemHandle part[2];
    OK(aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED, &step));
    OK(aclrtReserveMemAddress(&at, 64 * step, 0, NULL, 1));
    for (int i = 0; i < 2; i++) {
        OK(aclrtMallocPhysical(&part[i], step, &prop, 0));
        OK(aclrtMapMem((char *)at + (size_t)i * step, step, 0, part[i], 0));
    }
    /* Across both parts, and no further. */
    OK(aclrtMemset((char *)at + step - 8, 16, 0, 16));
    assert_float_equal(first_of((char *)at + step), 0, 0);
    float value;
    assert_int_equal(
        aclrtMemcpy(&value, 4, (char *)at + 2 * step - 2, 4, ACL_MEMCPY_DEVICE_TO_HOST), 107000);
    assert_int_equal(stand_broken("copy_bounds"), 1);
    assert_int_equal(aclrtMallocPhysical(&part[0], 16 * MIB, &prop, 0), 207001);
    for (int i = 1; i >= 0; i--)
        OK(aclrtUnmapMem((char *)at + (size_t)i * step));
    OK(aclrtReleaseMemAddress(at));
    stand_reset();
}

static void what_is_left_is_counted(void **state)
{
    (void)state;
    start(NULL);
    void *memory;
    aclrtEvent event;
    uint64_t bytes;
    aclOpExecutor *executor;
    OK(aclrtMalloc(&memory, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtCreateEvent(&event));
    aclTensor *tensor = tensor_at(memory, FLOATS, ACL_FLOAT);
    aclScalar *alpha = aclCreateScalar(&(float){2}, ACL_FLOAT);
    OK(scale_plan(tensor, alpha, tensor, &bytes, &executor)); /* never launched */
    finish(5);
    assert_int_equal(stand_leaks(), 0);
}

static void injected_errors_come_at_their_call(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_FAIL=aclrtCreateEvent:2:207007,scale:1:561003", NULL});
    struct client c = client_open();
    aclrtEvent event[2];
    OK(aclrtCreateEvent(&event[0]));
    assert_int_equal(aclrtCreateEvent(&event[1]), 207007);
    OK(aclrtCreateEvent(&event[1]));
    assert_int_equal(scale(c.x, c.y, 2, c.workspace, c.stream), 561003);
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    OK(aclrtDestroyEvent(event[0]));
    OK(aclrtDestroyEvent(event[1]));
    client_close(&c);
    assert_int_equal(stand_broken(NULL), 0);
    stand_reset();
}

/* The second task: its stream ends in 507015, and so does the device until it is reset. */
static void a_device_dies_in_a_step(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_DIE=scale:2", NULL});
    struct client c = client_open();
    void *memory;
    send(c.x, 1);
    for (int i = 0; i < 3; i++)
        OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    assert_int_equal(aclrtSynchronizeStream(c.stream), 507015);
    assert_non_null(strstr(aclGetRecentErrMsg(), "scale"));
    assert_int_equal(aclrtSynchronizeStream(c.stream), 507015);
    assert_int_equal(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), 507015);
    assert_int_equal(scale(c.x, c.y, 2, c.workspace, c.stream), 507015);
    assert_int_equal(stand_pending(), 0);
    OK(aclrtFree(c.x)); /* what is left can be given back */
    OK(aclrtFree(c.y));
    OK(aclrtFree(c.workspace));
    OK(aclrtDestroyStream(c.stream));
    OK(aclrtResetDevice(0));
    OK(aclrtSetDevice(0));
    c = client_open();
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    client_close(&c);
    finish(0);
}

static void a_device_is_reset_as_often_as_it_was_set(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    client_close(&c);
    int32_t device;
    OK(aclrtSetDevice(0));
    OK(aclrtSetDevice(0));
    OK(aclrtResetDevice(0));
    OK(aclrtGetDevice(&device));
    while (aclrtResetDevice(0) == 0)
        ;
    assert_int_equal(aclrtGetDevice(&device), 107002);
    assert_int_equal(stand_broken("device_set"), 2);
    stand_reset();
}

/* A task is counted once, however often its stream comes to it while it waits. */
static void injected_ends_count_tasks(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_DIE=aclrtStreamWaitEvent:2:507018", NULL});
    struct client c = client_open();
    aclrtStream other;
    aclrtEvent event;
    OK(aclrtCreateStream(&other));
    OK(aclrtCreateEvent(&event));
    for (int i = 0; i < 3; i++)
        OK(scale(c.x, c.y, 2, c.workspace, other));
    OK(aclrtRecordEvent(event, other));
    OK(aclrtStreamWaitEvent(c.stream, event));
    OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtStreamWaitEvent(c.stream, event));
    assert_int_equal(aclrtSynchronizeStream(c.stream), 507018);
    stand_reset();
}

static void a_stream_hangs(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_HANG=aclrtMemsetAsync:1", NULL});
    struct client c = client_open();
    aclrtEvent event;
    OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
    OK(aclrtMemsetAsync(c.x, BYTES, 0, BYTES, c.stream));
    OK(aclrtRecordEvent(event, c.stream));
    assert_int_equal(aclrtSynchronizeStreamWithTimeout(c.stream, 10), 507046);
    assert_int_equal(aclrtSynchronizeEventWithTimeout(event, 10), 507047);
    assert_int_equal(stand_broken(NULL), 0);
    stand_reset();
}

/* As documented, such a copy has run when the call returns; the stand-in makes it late otherwise.
 */
static void copies_of_pageable_memory_may_be_synchronous(void **state)
{
    (void)state;
    start((const char *const[]){"STAND_PAGEABLE=now", NULL});
    struct client c = client_open();
    float values[FLOATS] = {1}, *pinned;
    OK(aclrtMallocHost((void **)&pinned, BYTES));
    OK(aclrtMemcpyAsync(c.x, BYTES, values, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, c.stream));
    values[0] = 2;
    OK(scale(c.x, c.y, 3, c.workspace, c.stream));
    OK(aclrtMemcpyAsync(pinned, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_HOST, c.stream));
    assert_int_equal(stand_pending(), 2);
    OK(aclrtMemcpyAsync(values, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_HOST, c.stream));
    assert_float_equal(values[0], 3, 0);
    OK(aclrtFreeHost(pinned));
    client_close(&c);
    finish(0);
}

static void an_event_may_be_destroyed_before_its_tasks_ran(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    aclrtStream other;
    OK(aclrtCreateStream(&other));
    send(c.x, 1);
    OK(scale(c.x, c.y, 3, c.workspace, c.stream));
    aclrtEvent event;
    OK(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    OK(aclrtRecordEvent(event, c.stream));
    OK(aclrtStreamWaitEvent(other, event));
    OK(aclrtDestroyEvent(event));
    for (int i = 0; i < 20000; i++) /* far more objects than the stand-in keeps */
        OK(aclDestroyTensor(tensor_at(NULL, 0, ACL_FLOAT)));
    OK(aclrtMemcpyAsync(c.x, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE, other));
    OK(aclrtSynchronizeStream(other));
    assert_float_equal(first_of(c.x), 3, 0);
    OK(aclrtDestroyStream(other));
    client_close(&c);
    finish(0);
}

/* Allocations are allowed; copies that have to wait are not. */
static void captures_refuse_what_has_to_wait(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    aclmdlRI graph;
    float value;
    void *memory;
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    OK(aclrtMalloc(&memory, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    assert_int_equal(aclrtMemset(c.x, BYTES, 0, BYTES), 107030);
    assert_int_equal(aclrtMemcpyAsync(&value, 4, c.x, 4, ACL_MEMCPY_DEVICE_TO_HOST, c.stream),
                     107041);
    assert_int_equal(aclrtSynchronizeStream(c.stream), 107027);
    assert_int_equal(aclrtSynchronizeDevice(), 107027);
    assert_int_equal(stand_broken("capture_call"), 4);
    assert_int_equal(aclmdlRICaptureEnd(c.stream, &graph), 507903);
    /* A thread that says so is relaxed. */
    aclmdlRICaptureMode mode = ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
    OK(aclmdlRICaptureThreadExchangeMode(&mode));
    assert_int_equal(mode, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL);
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    OK(aclrtMemset(c.x, BYTES, 0, BYTES));
    OK(aclmdlRICaptureEnd(c.stream, &graph));
    OK(aclmdlRIDestroy(graph));
    OK(aclrtFree(memory));
    client_close(&c);
    stand_reset();
}

/* Live data under a workspace is lost, also where no rule can name it. */
static void workspaces_are_poisoned_at_each_use(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    OK(aclrtMemset(c.workspace, WORKSPACE_BYTES, 0, WORKSPACE_BYTES));
    for (int i = 0; i < 2; i++) {
        send(c.x, 1);
        OK(scale(c.x, c.y, 2, c.workspace, c.stream));
        OK(aclrtSynchronizeStream(c.stream));
        assert_true(isnan(first_of(c.workspace)));
        OK(aclrtMemset(c.workspace, WORKSPACE_BYTES, 0, WORKSPACE_BYTES));
    }
    client_close(&c);
    finish(0);
}

static void an_executor_may_be_made_repeatable(void **state)
{
    (void)state;
    start(NULL);
    struct client c = client_open();
    uint64_t bytes;
    aclOpExecutor *executor;
    aclTensor *x = tensor_at(c.x, FLOATS, ACL_FLOAT);
    aclScalar *alpha = aclCreateScalar(&(float){2}, ACL_FLOAT);
    send(c.x, 1);
    OK(scale_plan(x, alpha, x, &bytes, &executor));
    OK(aclSetAclOpExecutorRepeatable(executor));
    for (int i = 0; i < 3; i++)
        OK(stand_launch("scale", c.workspace, bytes, executor, c.stream));
    OK(aclrtSynchronizeStream(c.stream));
    assert_float_equal(first_of(c.x), 8, 0);
    OK(aclDestroyAclOpExecutor(executor));
    OK(aclDestroyTensor(x));
    OK(aclDestroyScalar(alpha));
    client_close(&c);
    finish(0);
}

static void halves_are_rounded_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = stand_from_f16((uint16_t)h), b = stand_from_bf16((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(stand_to_f16(f), h);
        if (!isnan(b))
            assert_int_equal(stand_to_bf16(b), h);
        /* Half way to the next one up: the even one of the two. */
        if ((h & 0x7fff) >= 0x7c00 - 1)
            continue;
        double half = ((double)f + stand_from_f16((uint16_t)(h + 1))) / 2;
        assert_int_equal(stand_to_f16(half), h + (h & 1));
        assert_int_equal(stand_to_f16(half + (half - f) * 0x1p-20), h + 1);
    }
    assert_int_equal(stand_to_f16(65520), 0x7c00);
    assert_int_equal(stand_to_f16(65519), 0x7bff);
    assert_int_equal(stand_to_bf16(1e39), 0x7f80);
    assert_true(isnan(stand_from_f16(stand_to_f16(NAN))));
}

/* --- views --- */

struct move {
    struct stand_view from, to;
    int how;
};

static void move_run(struct stand_run *run, const void *state)
{
    const struct move *op = state;
    int64_t n = stand_elements(op->to);
    if (op->how == 0)
        stand_write_doubles(run, op->to, stand_read_doubles(run, op->from));
    else if (op->how == 1)
        stand_write_ints(run, op->to, stand_read_ints(run, op->from));
    else
        for (int64_t i = 0; i < n; i++)
            stand_set(run, &op->to, i, stand_get(run, &op->from, i));
}

/* from (rows x columns, transposed) in every type and back: what fits in all of them survives. */
static void every_type_is_read_and_written_through_strides(void **state)
{
    (void)state;
    enum { ROWS = 3, COLUMNS = 5, N = ROWS * COLUMNS };
    static const aclDataType types[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16,  ACL_INT8,  ACL_INT4,
                                        ACL_INT16, ACL_INT32,   ACL_INT64, ACL_DOUBLE};
    static const int64_t dims[2] = {ROWS, COLUMNS}, transposed[2] = {1, ROWS}, all = 2 * N;
    start(NULL);
    struct client c = client_open();
    int64_t values[N], back[N];
    for (int i = 0; i < N; i++)
        values[i] = i % 16 - 8;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int how = 0; how < 3; how++) {
            OK(aclrtMemset(c.y, BYTES, 0xff, BYTES));
            OK(aclrtMemcpy(c.x, BYTES, values, sizeof values, ACL_MEMCPY_HOST_TO_DEVICE));
            for (int step = 0; step < 2; step++) {
                aclTensor *wide =
                    aclCreateTensor(dims, 2, ACL_INT64, NULL, 0, ACL_FORMAT_ND, dims, 2, c.x);
                aclTensor *strided =
                    aclCreateTensor(dims, 2, types[t], transposed, 3, ACL_FORMAT_ND, &all, 1, c.y);
                uint64_t bytes;
                aclOpExecutor *executor;
                struct stand_call *call = stand_begin("move", &bytes, &executor);
                struct move op = {stand_in(call, "from", step ? strided : wide),
                                  stand_out(call, "to", step ? wide : strided), how};
                OK(stand_plan(call, move_run, &op, sizeof op, 0));
                OK(stand_launch("move", NULL, 0, executor, c.stream));
                OK(aclDestroyTensor(wide));
                OK(aclDestroyTensor(strided));
                OK(aclrtSynchronizeStream(c.stream));
                if (!step)
                    OK(aclrtMemset(c.x, BYTES, 0, sizeof values));
            }
            OK(aclrtMemcpy(back, sizeof back, c.x, sizeof back, ACL_MEMCPY_DEVICE_TO_HOST));
            assert_memory_equal(back, values, sizeof back);
        }
    client_close(&c);
    finish(0);
}

static void views_of_views(void **state)
{
    (void)state;
    struct stand_view v = {.given = true, .rank = 3, .dims = {2, 3, 4}, .strides = {12, 4, 1}};
    assert_int_equal(stand_elements(v), 24);
    assert_int_equal(stand_rows(v), 6);
    assert_int_equal(stand_row(v, 4).offset, 16);
    assert_int_equal(stand_row(v, 4).rank, 1);
    struct stand_view s = stand_slice(stand_swap(v, 0, 2), 1, 1, 2);
    assert_int_equal(s.offset, 4);
    assert_int_equal(s.dims[0], 4);
    assert_int_equal(s.dims[1], 2);
    assert_int_equal(s.strides[2], 12);
    struct stand_view one = {.given = true, .rank = 2, .dims = {3, 1}, .strides = {1, 1}};
    struct stand_view e = stand_expand(one, v);
    assert_int_equal(e.strides[0], 0);
    assert_int_equal(e.strides[1], 1);
    assert_int_equal(e.strides[2], 0);
    assert_int_equal(stand_select(v, 1, 2).offset, 8);
}

static void chips_differ(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *soc;
        bool bf16;
        int events;
    } chips[] = {{"STAND_CHIP=910B4", "Ascend910B4", true, 65536},
                 {"STAND_CHIP=310P3", "Ascend310P3", false, 1023},
                 {"STAND_CHIP=Ascend310B", "Ascend310B1", false, 65536}};
    for (int i = 0; i < 3; i++) {
        start((const char *const[]){chips[i].setting, NULL});
        assert_string_equal(aclrtGetSocName(), chips[i].soc);
        assert_int_equal(stand_chip()->bf16, chips[i].bf16);
        assert_int_equal(stand_chip()->events, chips[i].events);
        finish(0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(new_memory_holds_no_numbers),
        cmocka_unit_test(nothing_runs_before_it_is_waited_for),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(only_two_reads_may_be_unordered),
        cmocka_unit_test(an_event_is_complete_once_queries_have_let_its_stream_run),
        cmocka_unit_test(a_graph_does_again_what_was_captured),
        cmocka_unit_test(an_unjoined_fork_ends_no_capture),
        cmocka_unit_test(memory_runs_out_at_the_chips_size),
        cmocka_unit_test(freed_addresses_are_used_again_late),
        cmocka_unit_test(memory_is_mapped_into_reserved_addresses),
        cmocka_unit_test(what_is_left_is_counted),
        cmocka_unit_test(injected_errors_come_at_their_call),
        cmocka_unit_test(a_device_dies_in_a_step),
        cmocka_unit_test(a_device_is_reset_as_often_as_it_was_set),
        cmocka_unit_test(injected_ends_count_tasks),
        cmocka_unit_test(a_stream_hangs),
        cmocka_unit_test(copies_of_pageable_memory_may_be_synchronous),
        cmocka_unit_test(an_event_may_be_destroyed_before_its_tasks_ran),
        cmocka_unit_test(captures_refuse_what_has_to_wait),
        cmocka_unit_test(workspaces_are_poisoned_at_each_use),
        cmocka_unit_test(an_executor_may_be_made_repeatable),
        cmocka_unit_test(halves_are_rounded_to_the_nearest_even),
        cmocka_unit_test(every_type_is_read_and_written_through_strides),
        cmocka_unit_test(views_of_views),
        cmocka_unit_test(chips_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
