/*
 * objects.c - every handle that the stand-in gives out, in one tree by address: what is live, what
 * was destroyed, what never was. A destroyed object's memory is kept for a while, so that a second
 * destruction is told from a foreign address and its address is not given out again at once.
 */
#include "runtime.h"

#include <search.h>
#include <stdlib.h>

struct object {
    void *at; /* the handle; first: what the tree compares */
    enum stand_kind kind;
    bool live;
    struct object *next; /* in the queue of the dead */
};

enum { DEAD_KEPT = 1 << 14 };

static void *tree;
static struct object *dead_first, **dead_last = &dead_first;
static int dead;
static int64_t live[KINDS];

static const char *const names[KINDS] = {
    [KIND_STREAM] = "stream",         [KIND_EVENT] = "event",
    [KIND_GRAPH] = "graph",           [KIND_PHYSICAL] = "physical memory",
    [KIND_TENSOR] = "tensor",         [KIND_SCALAR] = "scalar",
    [KIND_INT_ARRAY] = "int array",   [KIND_FLOAT_ARRAY] = "float array",
    [KIND_BOOL_ARRAY] = "bool array", [KIND_TENSOR_LIST] = "tensor list",
    [KIND_EXECUTOR] = "executor",
};

const char *objects_kind_name(enum stand_kind kind)
{
    return names[kind];
}

static int compare(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
    return (x > y) - (x < y);
}

static struct object *find(const void *at)
{
    struct object **found = tfind(&at, &tree, compare);
    return found ? *found : NULL;
}

static void forget(struct object *object)
{
    tdelete(object, &tree, compare);
    free(object->at);
    free(object);
}

/* An event that was destroyed before its tasks have run. */
static bool is_named(const struct object *object)
{
    return object->kind == KIND_EVENT && ((const struct event *)object->at)->users;
}

void *stand_object_new(enum stand_kind kind, size_t bytes)
{
    struct object *object = calloc(1, sizeof *object);
    if (!object)
        abort();
    *object = (struct object){calloc(1, bytes), kind, true, NULL};
    if (!object->at || !tsearch(object, &tree, compare))
        abort();
    live[kind]++;
    return object->at;
}

bool stand_object_is_live(const void *at, enum stand_kind kind)
{
    const struct object *object = at ? find(at) : NULL;
    return object && object->live && object->kind == kind;
}

bool stand_object_was(const void *at, enum stand_kind kind)
{
    const struct object *object = at ? find(at) : NULL;
    return object && !object->live && object->kind == kind;
}

int stand_object_check(const void *at, enum stand_kind kind, const char *symbol)
{
    int code = kind < KIND_TENSOR ? ACL_ERROR_RT_INVALID_HANDLE : ACLNN_ERR_PARAM_INVALID;
    const struct object *object = at ? find(at) : NULL;
    if (!at)
        return stand_break(
            RULE_HANDLE, kind < KIND_TENSOR ? ACL_ERROR_RT_PARAM_INVALID : ACLNN_ERR_PARAM_NULLPTR,
            "%s: the %s is NULL", symbol, names[kind]);
    if (!object)
        return stand_break(RULE_HANDLE, code, "%s: %p is no %s", symbol, at, names[kind]);
    if (object->kind != kind)
        return stand_break(RULE_HANDLE, code, "%s: %p is a %s, no %s", symbol, at,
                           names[object->kind], names[kind]);
    if (!object->live)
        return stand_break(RULE_HANDLE, code, "%s: the %s was destroyed", symbol, names[kind]);
    return 0;
}

int stand_object_end(const void *at, enum stand_kind kind, const char *symbol)
{
    struct object *object = at ? find(at) : NULL;
    if (object && object->kind == kind && !object->live)
        return stand_break(RULE_DOUBLE_DESTROY,
                           kind < KIND_TENSOR ? ACL_ERROR_RT_INVALID_HANDLE
                                              : ACLNN_ERR_PARAM_INVALID,
                           "%s: the %s was destroyed before", symbol, names[kind]);
    int code = stand_object_check(at, kind, symbol);
    if (code || !object)
        return code;
    object->live = false;
    live[kind]--;
    *dead_last = object;
    dead_last = &object->next;
    dead++;
    while (dead > DEAD_KEPT && !is_named(dead_first)) {
        object = dead_first;
        dead_first = object->next;
        dead--;
        forget(object);
    }
    return 0;
}

int64_t objects_live(enum stand_kind kind)
{
    return live[kind];
}

static struct {
    enum stand_kind kind;
    void (*visit)(void *, void *);
    void *context;
} walk;

static void visit(const void *node, VISIT order, int depth)
{
    (void)depth;
    const struct object *object = *(struct object *const *)node;
    if ((order == postorder || order == leaf) && object->live && object->kind == walk.kind)
        walk.visit(object->at, walk.context);
}

void objects_each(enum stand_kind kind, void (*to)(void *, void *), void *context)
{
    walk.kind = kind;
    walk.visit = to;
    walk.context = context;
    twalk(tree, visit);
}

static void free_work(void *executor, void *context)
{
    (void)context;
    stand_work_free(*(struct stand_work **)executor);
}

void objects_reset(void)
{
    objects_each(KIND_EXECUTOR, free_work, NULL);
    dead_first = NULL;
    dead_last = &dead_first;
    dead = 0;
    for (int i = 0; i < KINDS; i++)
        live[i] = 0;
    while (tree)
        forget(*(struct object **)tree);
}
