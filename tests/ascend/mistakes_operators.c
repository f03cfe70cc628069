/*
 * mistakes_operators.c - clients of one operator, each with its mistake: operands, executors,
 * workspaces.
 */
#include "tests/ascend/client.h"
#include "tests/ascend/mistakes.h"

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

const struct mistake operator_mistakes[OPERATOR_MISTAKES] = {
    {"bounds", bounds, NULL},
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
