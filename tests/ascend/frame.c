/*
 * frame.c - both phases of every operator: operands are looked at and noted, then an executor is
 * made; the second phase looks at the executor, the operands and the workspace, and puts the work
 * on the stream.
 */
#include "frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32 };

void call_fault(struct stand_call *call, enum stand_rule rule, int code, const char *format, ...)
{
    char what[320];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!call->code)
        call->code = stand_break(rule, code, "%s: %s", call->name, what);
}

struct stand_call *stand_begin(const char *name, uint64_t *workspace_bytes,
                               aclOpExecutor **executor)
{
    char symbol[128];
    struct stand_call *call = calloc(1, sizeof *call);
    if (!call)
        abort();
    snprintf(symbol, sizeof symbol, "%sGetWorkspaceSize", name);
    *call = (struct stand_call){.name = name,
                                .workspace_bytes = workspace_bytes,
                                .executor = executor,
                                .work = stand_work_new(name, NULL, NULL, 0)};
    call->code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    if (!call->code && (!workspace_bytes || !executor))
        call_fault(call, RULE_OPERAND_NULL, ACLNN_ERR_PARAM_NULLPTR,
                   "workspaceSize or executor is NULL");
    return call;
}

bool stand_holds(const struct stand_call *call)
{
    return !call->code;
}

static void note_operand(struct stand_call *call, const void *operand)
{
    if (call->n == call->room) {
        call->room = call->room ? 2 * call->room : 8;
        call->operands = realloc(call->operands, (size_t)call->room * sizeof *call->operands);
        if (!call->operands)
            abort();
    }
    call->operands[call->n++] = operand;
}

static void note_view(struct stand_call *call, const char *name, const struct stand_view *view)
{
    call->views = realloc(call->views, (size_t)(call->n_views + 1) * sizeof *call->views);
    if (!call->views)
        abort();
    call->views[call->n_views++] = (struct named){name, *view};
}

const char *call_name_of(const struct stand_call *call, const struct stand_view *view)
{
    for (int i = 0; i < call->n_views; i++)
        if (call->views[i].view.address == view->address &&
            call->views[i].view.offset == view->offset && call->views[i].view.rank == view->rank)
            return call->views[i].name;
    return "operand";
}

static void check_types(struct stand_call *call, const char *name, const struct stand_view *view)
{
    const struct stand_chip *chip = stand_chip();
    if ((view->type == ACL_BF16 && !chip->bf16) || (view->type == ACL_DOUBLE && !chip->f64))
        call_fault(call, RULE_CHIP, ACLNN_ERR_PARAM_INVALID, "%s is %s, which %s does not have",
                   name, type_name(view->type), chip->soc);
}

static unsigned alignment(const struct stand_view *view)
{
    unsigned bytes = (unsigned)type_bits(view->type) / 8;
    return stand_is_loose() ? (bytes ? bytes : 1) : ALIGNMENT;
}

static void check_place(struct stand_call *call, const char *name, const struct stand_view *view)
{
    int64_t low, high, held = 1;
    for (int i = 0; i < view->storage_rank; i++)
        held *= view->storage[i];
    if (!view_extent(view, &low, &high))
        return;
    const struct stand_region *region = stand_region_of(view->address);
    if (!view->address || !stand_is_device_address(view->address))
        call_fault(call, RULE_OPERAND_ADDRESS, ACLNN_ERR_PARAM_INVALID,
                   "%s is at %p, which is no device memory", name, view->address);
    else if (region && region->device != stand_thread()->device)
        call_fault(call, RULE_OPERAND_ADDRESS, ACLNN_ERR_PARAM_INVALID, "%s is on device %d", name,
                   region->device);
    else if ((uintptr_t)view->address % alignment(view))
        call_fault(call, RULE_OPERAND_ALIGNMENT, ACLNN_ERR_PARAM_INVALID,
                   "%s is at %p, no multiple of %u", name, view->address, alignment(view));
    else if (high >= held && !stand_is_loose())
        call_fault(call, RULE_OPERAND_STORAGE, ACLNN_ERR_PARAM_INVALID,
                   "%s reaches element %lld of a storage of %lld", name, (long long)high,
                   (long long)held);
}

static struct stand_view take(struct stand_call *call, const char *name, const aclTensor *tensor,
                              bool optional, bool reads, bool writes)
{
    struct stand_view view = {.type = ACL_DT_UNDEFINED};
    if (!tensor) {
        if (!optional)
            call_fault(call, RULE_OPERAND_NULL, ACLNN_ERR_PARAM_NULLPTR, "%s is NULL", name);
        return view;
    }
    if (!stand_object_is_live(tensor, KIND_TENSOR)) {
        call_fault(call, RULE_HANDLE, ACLNN_ERR_PARAM_INVALID, "%s is no live tensor", name);
        return view;
    }
    view = tensor->view;
    note_operand(call, tensor);
    note_view(call, name, &view);
    check_types(call, name, &view);
    check_place(call, name, &view);
    int64_t low, high, bits = type_bits(view.type);
    if (view_extent(&view, &low, &high)) {
        int64_t from = low * bits / 8, to = (high * bits + bits + 7) / 8;
        bool sparse = high - low + 1 != stand_elements(view);
        if (reads)
            stand_work_access(call->work, (uint8_t *)view.address + from, (size_t)(to - from),
                              false, false, sparse);
        if (writes)
            stand_work_access(call->work, (uint8_t *)view.address + from, (size_t)(to - from), true,
                              false, sparse);
    }
    return view;
}

struct stand_view stand_in(struct stand_call *call, const char *name, const aclTensor *tensor)
{
    return take(call, name, tensor, false, true, false);
}

struct stand_view stand_in_optional(struct stand_call *call, const char *name,
                                    const aclTensor *tensor)
{
    return take(call, name, tensor, true, true, false);
}

struct stand_view stand_out(struct stand_call *call, const char *name, const aclTensor *tensor)
{
    return take(call, name, tensor, false, false, true);
}

struct stand_view stand_out_optional(struct stand_call *call, const char *name,
                                     const aclTensor *tensor)
{
    return take(call, name, tensor, true, false, true);
}

struct stand_view stand_inout(struct stand_call *call, const char *name, const aclTensor *tensor)
{
    return take(call, name, tensor, false, true, true);
}

/* The live operand behind a handle, or NULL after a fault (none where it may be left out). */
static const void *operand(struct stand_call *call, const char *name, const void *handle,
                           enum stand_kind kind, bool optional)
{
    if (!handle && !optional)
        call_fault(call, RULE_OPERAND_NULL, ACLNN_ERR_PARAM_NULLPTR, "%s is NULL", name);
    if (!handle)
        return NULL;
    if (!stand_object_is_live(handle, kind)) {
        call_fault(call, RULE_HANDLE, ACLNN_ERR_PARAM_INVALID, "%s is no live operand of its kind",
                   name);
        return NULL;
    }
    note_operand(call, handle);
    return handle;
}

int64_t stand_list(struct stand_call *call, const char *name, const aclTensorList *list)
{
    list = operand(call, name, list, KIND_TENSOR_LIST, false);
    return list ? (int64_t)list->n : 0;
}

int64_t stand_list_optional(struct stand_call *call, const char *name, const aclTensorList *list)
{
    list = operand(call, name, list, KIND_TENSOR_LIST, true);
    return list ? (int64_t)list->n : 0;
}

static struct stand_view member(struct stand_call *call, const char *name,
                                const aclTensorList *list, int64_t i, bool writes)
{
    list = operand(call, name, list, KIND_TENSOR_LIST, false);
    bool there = list && i >= 0 && (uint64_t)i < list->n;
    return take(call, name, there ? list->members[i] : NULL, false, !writes, writes);
}

struct stand_view stand_list_in(struct stand_call *call, const char *name,
                                const aclTensorList *list, int64_t i)
{
    return member(call, name, list, i, false);
}

struct stand_view stand_list_out(struct stand_call *call, const char *name,
                                 const aclTensorList *list, int64_t i)
{
    return member(call, name, list, i, true);
}

double stand_scalar(struct stand_call *call, const char *name, const aclScalar *scalar)
{
    scalar = operand(call, name, scalar, KIND_SCALAR, false);
    return scalar ? scalar->real : 0;
}

aclDataType stand_scalar_type(const aclScalar *scalar)
{
    return scalar && stand_object_is_live(scalar, KIND_SCALAR) ? scalar->type : ACL_DT_UNDEFINED;
}

static struct stand_ints ints(struct stand_call *call, const char *name, const aclIntArray *array,
                              bool optional)
{
    array = operand(call, name, array, KIND_INT_ARRAY, optional);
    if (!array)
        return (struct stand_ints){0, NULL};
    /* Kept with the work: a link to the next, then the values. */
    void **kept = malloc(sizeof *kept + (array->n + 1) * sizeof *array->values);
    if (!kept)
        abort();
    *kept = call->work->kept;
    call->work->kept = kept;
    if (array->n)
        memcpy(kept + 1, array->values, array->n * sizeof *array->values);
    return (struct stand_ints){(int64_t)array->n, (const int64_t *)(kept + 1)};
}

struct stand_ints stand_ints(struct stand_call *call, const char *name, const aclIntArray *array)
{
    return ints(call, name, array, false);
}

struct stand_ints stand_ints_optional(struct stand_call *call, const char *name,
                                      const aclIntArray *array)
{
    return ints(call, name, array, true);
}

aclnnStatus stand_plan(struct stand_call *call, stand_kernel *kernel, const void *state,
                       size_t state_bytes, uint64_t workspace_bytes)
{
    int code = call->code;
    if (!code) {
        struct stand_work *work = call->work;
        void *copy = realloc(work->state, state_bytes ? state_bytes : 1);
        if (!copy)
            abort();
        if (state_bytes)
            memcpy(copy, state, state_bytes);
        work->state = copy;
        work->kernel = kernel;
        size_t handles = (size_t)call->n * sizeof *call->operands;
        aclOpExecutor *executor = stand_object_new(KIND_EXECUTOR, sizeof *executor + handles);
        *executor = (struct aclOpExecutor){.name = call->name,
                                           .work = work,
                                           .workspace_bytes = workspace_bytes,
                                           .device = stand_thread()->device,
                                           .n = call->n,
                                           .operands = (const void **)(executor + 1)};
        if (handles)
            memcpy(executor->operands, call->operands, handles);
        *call->workspace_bytes = workspace_bytes;
        *call->executor = executor;
    } else {
        stand_work_free(call->work);
    }
    free(call->operands);
    free(call->views);
    free(call);
    return stand_leave(code);
}

/* --- the second phase --- */

static int check_workspace(const aclOpExecutor *executor, void *workspace, uint64_t bytes)
{
    const char *name = executor->name, *fault;
    enum stand_rule rule;
    if (!executor->workspace_bytes)
        return 0;
    if (bytes < executor->workspace_bytes || !workspace)
        return stand_break(RULE_WORKSPACE_SIZE, ACLNN_ERR_PARAM_INVALID,
                           "%s: a workspace of %llu bytes, %llu were asked for", name,
                           (unsigned long long)(workspace ? bytes : 0),
                           (unsigned long long)executor->workspace_bytes);
    const struct stand_region *region = stand_region_of(workspace);
    if (!stand_is_device_address(workspace) || (region && region->device != executor->device))
        return stand_break(RULE_OPERAND_ADDRESS, ACLNN_ERR_PARAM_INVALID,
                           "%s: its workspace is no memory of device %d", name, executor->device);
    if (!stand_alias(workspace, executor->workspace_bytes, &rule, &fault))
        return stand_break(rule == RULE_BOUNDS ? RULE_WORKSPACE_SIZE : RULE_WORKSPACE_FREED,
                           ACLNN_ERR_PARAM_INVALID, "%s: its workspace: %s", name, fault);
    if ((uintptr_t)workspace % ALIGNMENT)
        return stand_break(RULE_OPERAND_ALIGNMENT, ACLNN_ERR_PARAM_INVALID,
                           "%s: its workspace is at %p, no multiple of %d", name, workspace,
                           ALIGNMENT);
    for (int i = 0; i < executor->work->n_accesses; i++) {
        const struct access *a = &executor->work->accesses[i];
        if ((uintptr_t)a->from < (uintptr_t)workspace + executor->workspace_bytes &&
            (uintptr_t)workspace < (uintptr_t)a->from + a->bytes)
            return stand_break(RULE_WORKSPACE_APART, ACLNN_ERR_PARAM_INVALID,
                               "%s: its workspace overlaps an operand at %p", name,
                               (const void *)a->from);
    }
    return 0;
}

static int check_operands(const aclOpExecutor *executor)
{
    for (int i = 0; i < executor->n; i++) {
        bool live = false;
        for (int kind = KIND_TENSOR; kind < KIND_EXECUTOR && !live; kind++)
            live = stand_object_is_live(executor->operands[i], (enum stand_kind)kind);
        if (!live)
            return stand_break(RULE_TENSOR_KEPT, ACLNN_ERR_PARAM_INVALID,
                               "%s: an operand was destroyed between the phases", executor->name);
    }
    return 0;
}

aclnnStatus stand_launch(const char *name, void *workspace, uint64_t workspace_bytes,
                         aclOpExecutor *executor, aclrtStream stream)
{
    int code = stand_enter(name, NEEDS_DEVICE | NEEDS_HEALTH);
    if (code)
        return stand_leave(code);
    if (!stand_object_is_live(executor, KIND_EXECUTOR)) {
        code = stand_object_was(executor, KIND_EXECUTOR)
                   ? stand_break(RULE_EXECUTOR_ONCE, ACLNN_ERR_INNER_NULLPTR,
                                 "%s: the executor was launched before", name)
                   : stand_object_check(executor, KIND_EXECUTOR, name);
        return stand_leave(code);
    }
    if (strcmp(executor->name, name) != 0)
        code = stand_break(RULE_EXECUTOR_OPERATOR, ACLNN_ERR_PARAM_INVALID,
                           "%s: the executor is of %s", name, executor->name);
    code = code ? code : stand_stream_check(stream, name);
    if (!code && executor->device != stand_stream_device(stream))
        code = stand_break(RULE_STREAM_DEVICE, ACLNN_ERR_PARAM_INVALID,
                           "%s: the first phase was on device %d", name, executor->device);
    code = code ? code : check_operands(executor);
    code = code ? code : check_workspace(executor, workspace, workspace_bytes);
    if (!code)
        code = stand_put_work(stream, executor->work, workspace, executor->workspace_bytes);
    if (!executor->repeatable) {
        stand_object_end(executor, KIND_EXECUTOR, name);
        stand_work_free(executor->work);
    }
    return stand_leave(code);
}
