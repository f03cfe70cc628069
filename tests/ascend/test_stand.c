/*
 * Every rule of the stand-in catches the mistake that it is about, and no other rule does: a client
 * that keeps the rule breaks none and leaks nothing, the same client with one mistake breaks this
 * rule alone.
 */
#include "tests/ascend/client.h"

#include <pthread.h>

/* --- the runtime --- */

static void initialise(bool wrong)
{
    uint32_t count;
    if (wrong)
        stand_reset();
    assert_int_equal(aclrtGetDeviceCount(&count), wrong ? 100001 : 0);
}

static void initialise_once(bool wrong)
{
    if (wrong)
        assert_int_equal(aclInit(NULL), 100002);
    OK(aclFinalize());
}

static void device_id(bool wrong)
{
    assert_int_equal(aclrtSetDevice(wrong), wrong ? 107001 : 0);
}

static void *in_a_thread(void *arg)
{
    const bool *wrong = arg;
    void *memory;
    if (!*wrong)
        OK(aclrtSetDevice(0));
    assert_int_equal(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), *wrong ? 107002 : 0);
    if (!*wrong)
        OK(aclrtFree(memory));
    return NULL;
}

static void device_set(bool wrong)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, in_a_thread, &wrong), 0);
    pthread_join(thread, NULL);
}

static void argument(bool wrong)
{
    void *memory;
    assert_int_equal(aclrtMalloc(&memory, wrong ? 0 : 64, ACL_MEM_MALLOC_HUGE_FIRST),
                     wrong ? 107000 : 0);
    if (!wrong)
        OK(aclrtFree(memory));
}

static void handle(bool wrong)
{
    struct client c = client_open();
    assert_int_equal(aclrtSynchronizeStream(wrong ? (void *)&c : c.stream), wrong ? 107017 : 0);
    client_close(&c);
}

static void double_destroy(bool wrong)
{
    aclTensor *tensor = tensor_at(NULL, 0, ACL_FLOAT);
    aclTensorList *list = aclCreateTensorList((const aclTensor *[]){tensor}, 1);
    OK(aclDestroyTensorList(list)); /* with its members */
    if (wrong)
        assert_int_equal(aclDestroyTensor(tensor), 161002);
}

static void double_free(bool wrong)
{
    void *memory;
    OK(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtFree(memory));
    if (wrong)
        assert_int_equal(aclrtFree(memory), 107000);
}

static void free_kind(bool wrong)
{
    void *memory;
    OK(aclrtMallocHost(&memory, 64));
    if (wrong)
        assert_int_equal(aclrtFree(memory), 107000);
    OK(aclrtFreeHost(memory));
}

static void copy_kind(bool wrong)
{
    struct client c = client_open();
    float values[FLOATS] = {0};
    aclrtMemcpyKind kind = wrong ? ACL_MEMCPY_DEVICE_TO_DEVICE : ACL_MEMCPY_HOST_TO_DEVICE;
    assert_int_equal(aclrtMemcpy(c.x, BYTES, values, BYTES, kind), wrong ? 107000 : 0);
    client_close(&c);
}

static void copy_bounds(bool wrong)
{
    struct client c = client_open();
    float values[FLOATS + 1] = {0};
    size_t bytes = BYTES + (wrong ? 1 : 0);
    assert_int_equal(aclrtMemcpy(c.x, bytes, values, bytes, ACL_MEMCPY_HOST_TO_DEVICE),
                     wrong ? 107000 : 0);
    client_close(&c);
}

static void use_after_free(bool wrong)
{
    struct client c = client_open();
    void *memory;
    OK(aclrtMalloc(&memory, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    if (wrong)
        OK(aclrtFree(memory));
    OK(scale(memory, c.y, 2, c.workspace, c.stream));
    assert_int_equal(aclrtSynchronizeStream(c.stream), wrong ? 507015 : 0);
    if (!wrong)
        OK(aclrtFree(memory));
    if (!wrong)
        client_close(&c);
}

static void freed_in_use(bool wrong)
{
    struct client c = client_open();
    void *memory;
    OK(aclrtMalloc(&memory, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(scale(memory, c.y, 2, c.workspace, c.stream));
    if (!wrong)
        OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtFree(memory));
    assert_int_equal(aclrtSynchronizeStream(c.stream), wrong ? 507015 : 0);
    if (!wrong)
        client_close(&c);
}

/* The result is read before the stream has run. */
static void synchronise(bool wrong)
{
    struct client c = client_open();
    send(c.x, 3);
    send(c.y, 0);
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    if (!wrong)
        OK(aclrtSynchronizeStream(c.stream));
    assert_float_equal(first_of(c.y), wrong ? 0 : 6, 0);
    client_close(&c);
}

/* The buffer of an asynchronous copy is used again before the copy has run. */
static void source_kept(bool wrong)
{
    struct client c = client_open();
    float *values;
    OK(aclrtMallocHost((void **)&values, BYTES));
    values[0] = 1;
    OK(aclrtMemcpyAsync(c.x, BYTES, values, BYTES, ACL_MEMCPY_HOST_TO_DEVICE, c.stream));
    if (!wrong)
        OK(aclrtSynchronizeStream(c.stream));
    values[0] = 2;
    OK(aclrtSynchronizeStream(c.stream));
    assert_float_equal(first_of(c.x), wrong ? 2 : 1, 0);
    OK(aclrtFreeHost(values));
    client_close(&c);
}

/* A second stream uses what the first one writes. */
static void order(bool wrong)
{
    struct client c = client_open();
    aclrtStream other;
    aclrtEvent event;
    OK(aclrtCreateStream(&other));
    OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
    send(c.x, 3);
    send(c.y, 0);
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    OK(aclrtRecordEvent(event, c.stream));
    if (!wrong)
        OK(aclrtStreamWaitEvent(other, event));
    OK(aclrtMemcpyAsync(c.x, BYTES, c.y, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE, other));
    OK(aclrtSynchronizeStream(other));
    assert_float_equal(first_of(c.x), wrong ? 0 : 6, 0);
    OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(other));
    client_close(&c);
}

static void stream_device(bool wrong)
{
    struct client c = client_open();
    OK(aclrtSetDevice(wrong));
    assert_int_equal(aclrtMemsetAsync(c.x, BYTES, 0, BYTES, c.stream), wrong ? 107003 : 0);
    OK(aclrtSetDevice(0));
    client_close(&c);
}

static void stream_busy(bool wrong)
{
    struct client c = client_open();
    aclrtStream other;
    OK(aclrtCreateStream(&other));
    OK(aclrtMemsetAsync(c.x, BYTES, 0, BYTES, other));
    if (!wrong)
        OK(aclrtSynchronizeStream(other));
    assert_int_equal(aclrtDestroyStream(other), wrong ? 107000 : 0);
    client_close(&c);
}

static void event_recorded(bool wrong)
{
    struct client c = client_open();
    aclrtEvent event;
    OK(aclrtCreateEvent(&event));
    if (!wrong)
        OK(aclrtRecordEvent(event, c.stream));
    assert_int_equal(aclrtStreamWaitEvent(c.stream, event), wrong ? 107000 : 0);
    OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtDestroyEvent(event));
    client_close(&c);
}

static void event_reused(bool wrong)
{
    struct client c = client_open();
    aclrtEvent event;
    OK(aclrtCreateEventWithFlag(&event, ACL_EVENT_SYNC));
    OK(aclrtRecordEvent(event, c.stream));
    OK(aclrtStreamWaitEvent(c.stream, event));
    if (!wrong)
        OK(aclrtResetEvent(event, c.stream));
    OK(aclrtRecordEvent(event, c.stream));
    OK(aclrtSynchronizeEvent(event));
    OK(aclrtDestroyEvent(event));
    client_close(&c);
}

/* The time between two events. */
static int elapsed(struct client *c, uint32_t flag, bool finished)
{
    aclrtEvent event[2];
    float ms;
    for (int i = 0; i < 2; i++) {
        OK(aclrtCreateEventWithFlag(&event[i], flag));
        OK(aclrtRecordEvent(event[i], c->stream));
    }
    if (finished)
        OK(aclrtSynchronizeStream(c->stream));
    int code = aclrtEventElapsedTime(&ms, event[0], event[1]);
    for (int i = 0; i < 2; i++)
        OK(aclrtDestroyEvent(event[i]));
    return code;
}

static void event_flags(bool wrong)
{
    struct client c = client_open();
    assert_int_equal(elapsed(&c, wrong ? ACL_EVENT_SYNC : ACL_EVENT_TIME_LINE, true),
                     wrong ? 107006 : 0);
    client_close(&c);
}

static void event_time(bool wrong)
{
    struct client c = client_open();
    assert_int_equal(elapsed(&c, ACL_EVENT_TIME_LINE, !wrong), wrong ? 507006 : 0);
    client_close(&c);
}

/* On a 310P, which has 1023 of them. */
static void event_limit(bool wrong)
{
    static aclrtEvent events[1024];
    int n = wrong ? 1024 : 1023;
    for (int i = 0; i < n; i++)
        assert_int_equal(aclrtCreateEvent(&events[i]), i == 1023 ? 207007 : 0);
    for (int i = 0; i < 1023; i++)
        OK(aclrtDestroyEvent(events[i]));
}

static void peer_access(bool wrong)
{
    struct client c = client_open();
    void *there;
    OK(aclrtSetDevice(1));
    OK(aclrtMalloc(&there, BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtSetDevice(0));
    if (!wrong)
        OK(aclrtDeviceEnablePeerAccess(1, 0));
    assert_int_equal(aclrtMemcpy(there, BYTES, c.x, BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE),
                     wrong ? 107000 : 0);
    OK(aclrtFree(there));
    client_close(&c);
}

static void capture_call(bool wrong)
{
    struct client c = client_open();
    aclmdlRI graph;
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    if (wrong) {
        float value;
        assert_int_equal(
            aclrtMemcpy(&value, sizeof value, c.x, sizeof value, ACL_MEMCPY_DEVICE_TO_HOST),
            107030);
    }
    assert_int_equal(aclmdlRICaptureEnd(c.stream, &graph), wrong ? 507903 : 0);
    if (!wrong)
        OK(aclmdlRIDestroy(graph));
    client_close(&c);
}

static void capture_pair(bool wrong)
{
    struct client c = client_open();
    aclmdlRI graph;
    if (!wrong)
        OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    assert_int_equal(aclmdlRICaptureEnd(c.stream, &graph), wrong ? 107029 : 0);
    if (!wrong)
        OK(aclmdlRIDestroy(graph));
    client_close(&c);
}

static void graph_busy(bool wrong)
{
    struct client c = client_open();
    aclmdlRI graph;
    OK(aclmdlRICaptureBegin(c.stream, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL));
    OK(scale(c.x, c.y, 2, c.workspace, c.stream));
    OK(aclmdlRICaptureEnd(c.stream, &graph));
    OK(aclmdlRIExecuteAsync(graph, c.stream));
    if (!wrong)
        OK(aclrtSynchronizeStream(c.stream));
    assert_int_equal(aclmdlRIDestroy(graph), wrong ? 107037 : 0);
    OK(aclrtSynchronizeStream(c.stream));
    if (wrong)
        OK(aclmdlRIDestroy(graph));
    client_close(&c);
}

/* --- operators --- */

/* One call of `scale`, of which a mistake changes something. */
struct one_call {
    struct client c;
    aclTensor *x, *y;
    aclScalar *alpha;
    uint64_t workspace_bytes;
    aclOpExecutor *executor;
};

static struct one_call call_begin(void)
{
    struct one_call call = {.c = client_open()};
    call.x = tensor_at(call.c.x, FLOATS, ACL_FLOAT);
    call.y = tensor_at(call.c.y, FLOATS, ACL_FLOAT);
    call.alpha = aclCreateScalar(&(float){2}, ACL_FLOAT);
    return call;
}

static int call_plan(struct one_call *call)
{
    return scale_plan(call->x, call->alpha, call->y, &call->workspace_bytes, &call->executor);
}

static int call_launch(struct one_call *call)
{
    return stand_launch("scale", call->c.workspace, call->workspace_bytes, call->executor,
                        call->c.stream);
}

static void call_end(struct one_call *call)
{
    OK(aclDestroyTensor(call->x));
    OK(aclDestroyTensor(call->y));
    OK(aclDestroyScalar(call->alpha));
    client_close(&call->c);
}

/* The first phase fails with this code where x is described wrongly. */
static void planned(struct one_call *call, int code)
{
    assert_int_equal(call_plan(call), code);
    if (!code)
        OK(call_launch(call));
    call_end(call);
}

static void replace_x(struct one_call *call, aclTensor *by)
{
    assert_non_null(by);
    OK(aclDestroyTensor(call->x));
    call->x = by;
}

static void executor_once(bool wrong)
{
    struct one_call call = call_begin();
    OK(call_plan(&call));
    OK(call_launch(&call));
    if (wrong)
        assert_int_equal(call_launch(&call), 561103);
    call_end(&call);
}

static void executor_operator(bool wrong)
{
    struct one_call call = call_begin();
    OK(call_plan(&call));
    assert_int_equal(stand_launch(wrong ? "other" : "scale", call.c.workspace, call.workspace_bytes,
                                  call.executor, call.c.stream),
                     wrong ? 161002 : 0);
    call_end(&call);
}

static void tensor_kept(bool wrong)
{
    struct one_call call = call_begin();
    OK(call_plan(&call));
    if (wrong)
        OK(aclDestroyTensor(call.x));
    assert_int_equal(call_launch(&call), wrong ? 161002 : 0);
    if (wrong)
        call.x = tensor_at(call.c.x, FLOATS, ACL_FLOAT);
    call_end(&call);
}

static void workspace_size(bool wrong)
{
    struct one_call call = call_begin();
    OK(call_plan(&call));
    call.workspace_bytes -= wrong;
    assert_int_equal(call_launch(&call), wrong ? 161002 : 0);
    call_end(&call);
}

static void workspace_freed(bool wrong)
{
    struct client c = client_open();
    void *workspace;
    OK(aclrtMalloc(&workspace, WORKSPACE_BYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(scale(c.x, c.y, 2, workspace, c.stream));
    if (!wrong)
        OK(aclrtSynchronizeStream(c.stream));
    OK(aclrtFree(workspace));
    assert_int_equal(aclrtSynchronizeStream(c.stream), wrong ? 507015 : 0);
    if (!wrong)
        client_close(&c);
}

static void workspace_apart(bool wrong)
{
    struct client c = client_open();
    assert_int_equal(scale(c.x, c.y, 2, wrong ? c.y : c.workspace, c.stream), wrong ? 161002 : 0);
    client_close(&c);
}

static void operand_null(bool wrong)
{
    struct one_call call = call_begin();
    aclTensor *y = call.y;
    if (wrong)
        call.y = NULL;
    assert_int_equal(call_plan(&call), wrong ? 161001 : 0);
    call.y = y;
    if (!wrong)
        OK(call_launch(&call));
    call_end(&call);
}

static void operand_address(bool wrong)
{
    static float of_the_host[FLOATS] __attribute__((aligned(64)));
    struct one_call call = call_begin();
    if (wrong)
        replace_x(&call, tensor_at(of_the_host, FLOATS, ACL_FLOAT));
    planned(&call, wrong ? 161002 : 0);
}

static void operand_alignment(bool wrong)
{
    struct one_call call = call_begin();
    int64_t n = FLOATS / 2;
    OK(aclDestroyTensor(call.y));
    call.y = tensor_at(call.c.y, n, ACL_FLOAT);
    replace_x(&call, tensor_at((char *)call.c.x + (wrong ? 4 : 32), n, ACL_FLOAT));
    planned(&call, wrong ? 161002 : 0);
}

static void operand_type(bool wrong)
{
    struct one_call call = call_begin();
    if (wrong)
        replace_x(&call, tensor_at(call.c.x, FLOATS, ACL_INT32));
    planned(&call, wrong ? 161002 : 0);
}

static void operand_shape(bool wrong)
{
    struct one_call call = call_begin();
    if (wrong)
        replace_x(&call, tensor_at(call.c.x, FLOATS - 1, ACL_FLOAT));
    planned(&call, wrong ? 161002 : 0);
}

static void operand_storage(bool wrong)
{
    struct one_call call = call_begin();
    int64_t n = FLOATS, held = FLOATS - wrong;
    replace_x(&call, aclCreateTensor(&n, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &held, 1, call.c.x));
    planned(&call, wrong ? 161002 : 0);
}

/* Inside the storage that the client claims, outside of what it allocated. */
static void bounds(bool wrong)
{
    struct one_call call = call_begin();
    int64_t n = FLOATS, held = FLOATS + 1;
    replace_x(&call,
              aclCreateTensor(&n, 1, ACL_FLOAT, NULL, wrong, ACL_FORMAT_ND, &held, 1, call.c.x));
    OK(call_plan(&call));
    OK(call_launch(&call));
    assert_int_equal(aclrtSynchronizeStream(call.c.stream), wrong ? 507015 : 0);
    if (!wrong)
        call_end(&call);
}

static void operand_value(bool wrong)
{
    struct client c = client_open();
    OK(scale(c.x, c.y, wrong ? -1 : 1, c.workspace, c.stream));
    assert_int_equal(aclrtSynchronizeStream(c.stream), wrong ? 507015 : 0);
    if (!wrong)
        client_close(&c);
}

/* BF16 on a 310P. */
static void chip(bool wrong)
{
    struct one_call call = call_begin();
    aclDataType type = wrong ? ACL_BF16 : ACL_FLOAT16;
    OK(aclDestroyTensor(call.y));
    call.y = tensor_at(call.c.y, FLOATS, type);
    replace_x(&call, tensor_at(call.c.x, FLOATS, type));
    planned(&call, wrong ? 161002 : 0);
}

static const struct mistake {
    const char *rule;
    void (*client)(bool wrong);
    const char *setting;
} mistakes[] = {
    {"initialise", initialise, NULL},
    {"initialise_once", initialise_once, NULL},
    {"device_id", device_id, NULL},
    {"device_set", device_set, NULL},
    {"argument", argument, NULL},
    {"handle", handle, NULL},
    {"double_destroy", double_destroy, NULL},
    {"double_free", double_free, NULL},
    {"free_kind", free_kind, NULL},
    {"copy_kind", copy_kind, NULL},
    {"copy_bounds", copy_bounds, NULL},
    {"bounds", bounds, NULL},
    {"use_after_free", use_after_free, NULL},
    {"freed_in_use", freed_in_use, NULL},
    {"synchronise", synchronise, NULL},
    {"source_kept", source_kept, NULL},
    {"order", order, NULL},
    {"stream_device", stream_device, "STAND_DEVICES=2"},
    {"stream_busy", stream_busy, NULL},
    {"event_recorded", event_recorded, NULL},
    {"event_reused", event_reused, NULL},
    {"event_flags", event_flags, NULL},
    {"event_time", event_time, NULL},
    {"event_limit", event_limit, "STAND_CHIP=310P3"},
    {"peer_access", peer_access, "STAND_DEVICES=2"},
    {"capture_call", capture_call, NULL},
    {"capture_pair", capture_pair, NULL},
    {"graph_busy", graph_busy, NULL},
    {"executor_once", executor_once, NULL},
    {"executor_operator", executor_operator, NULL},
    {"tensor_kept", tensor_kept, NULL},
    {"workspace_size", workspace_size, NULL},
    {"workspace_freed", workspace_freed, NULL},
    {"workspace_apart", workspace_apart, NULL},
    {"operand_null", operand_null, NULL},
    {"operand_address", operand_address, NULL},
    {"operand_alignment", operand_alignment, NULL},
    {"operand_type", operand_type, NULL},
    {"operand_shape", operand_shape, NULL},
    {"operand_storage", operand_storage, NULL},
    {"operand_value", operand_value, NULL},
    {"chip", chip, "STAND_CHIP=310P3"},
};
enum { MISTAKES = sizeof mistakes / sizeof *mistakes };

static void each_rule_has_its_mistake(void **state)
{
    (void)state;
    for (int i = 0; stand_rule(i); i++) {
        int n = 0;
        for (int m = 0; m < MISTAKES; m++)
            n += strcmp(mistakes[m].rule, stand_rule(i)) == 0;
        if (n != 1)
            fail_msg("rule %s has %d mistakes", stand_rule(i), n);
    }
    assert_true(MISTAKES >= 25);
}

static void a_client_that_keeps_the_rules_breaks_none(void **state)
{
    (void)state;
    for (int m = 0; m < MISTAKES; m++) {
        start((const char *const[]){mistakes[m].setting, NULL});
        mistakes[m].client(false);
        if (stand_broken(NULL) || stand_leaks())
            fail_msg("%s: %lld broken, %lld leaks", mistakes[m].rule, (long long)stand_broken(NULL),
                     (long long)stand_leaks());
    }
}

static void each_mistake_is_caught_by_its_rule_alone(void **state)
{
    (void)state;
    for (int m = 0; m < MISTAKES; m++) {
        start((const char *const[]){mistakes[m].setting, NULL});
        mistakes[m].client(true);
        if (stand_broken(mistakes[m].rule) < 1)
            fail_msg("%s did not catch its mistake", mistakes[m].rule);
        for (int i = 0; stand_rule(i); i++)
            if (strcmp(stand_rule(i), mistakes[m].rule) != 0 && stand_broken(stand_rule(i)))
                fail_msg("the mistake of %s broke %s", mistakes[m].rule, stand_rule(i));
    }
    stand_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_has_its_mistake),
        cmocka_unit_test(a_client_that_keeps_the_rules_breaks_none),
        cmocka_unit_test(each_mistake_is_caught_by_its_rule_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
