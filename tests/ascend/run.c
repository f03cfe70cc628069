/*
 * run.c - what a task does when its time has come: the memory it uses is looked at first (freed
 * since?), workspaces are poisoned, then the kernel runs with scratch of its own. Times are
 * declared, from published figures of a 910B4's memory and bus and a typical launch; they are no
 * measurement of anything.
 */
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAUNCH_NS         20000.0
#define COPY_NS           10000.0
#define MEMORY_BYTES_A_NS 800.0
#define BUS_BYTES_A_NS    20.0

/* Of a workspace, at both of its ends. */
#define POISONED_BYTES ((size_t)256 << 10)

struct scratch {
    struct scratch *next;
    _Alignas(64) unsigned char bytes[];
};

const char *task_name(const struct task *task)
{
    switch (task->kind) {
    case TASK_WORK: return task->work->name;
    case TASK_COPY: return "aclrtMemcpyAsync";
    case TASK_SET: return "aclrtMemsetAsync";
    case TASK_RECORD: return "aclrtRecordEvent";
    case TASK_WAIT: return "aclrtStreamWaitEvent";
    case TASK_RESET: return "aclrtResetEvent";
    case TASK_GRAPH: return "aclmdlRIExecuteAsync";
    }
    return "";
}

void *stand_scratch(struct stand_run *run, size_t bytes)
{
    size_t all = (sizeof(struct scratch) + bytes + 63) / 64 * 64;
    struct scratch *scratch = aligned_alloc(64, all);
    if (!scratch)
        abort();
    memset(scratch, 0, all);
    scratch->next = run->scratch;
    run->scratch = scratch;
    return scratch->bytes;
}

void stand_fail(struct stand_run *run, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!run->code)
        run->code = stand_break(RULE_OPERAND_VALUE, ACL_ERROR_RT_AICORE_EXCEPTION, "%s: %s",
                                run->name, what);
}

struct look {
    const char *name;
    int code;
    double bytes;
};

static void look(const struct access *access, void *context)
{
    struct look *at = context;
    at->bytes += (double)access->bytes;
    struct stand_region *region = stand_region_of(access->from);
    if (!region || !region->freed || at->code)
        return;
    at->code = ACL_ERROR_RT_AICORE_EXCEPTION;
    if (!region->blamed)
        stand_break(access->workspace ? RULE_WORKSPACE_FREED : RULE_USE_AFTER_FREE, at->code,
                    "%s: the memory at %p was freed", at->name, (const void *)access->from);
    region->blamed = true;
}

static int run_work(const struct task *task, int device)
{
    struct stand_run run = {.device = device, .name = task->work->name};
    if (task->to) {
        enum stand_rule rule;
        const char *fault;
        uint8_t *workspace = stand_alias(task->to, task->bytes, &rule, &fault);
        if (!workspace)
            return stand_break(rule, ACL_ERROR_RT_AICORE_EXCEPTION, "%s: its workspace: %s",
                               run.name, fault);
        size_t end = task->bytes < POISONED_BYTES ? task->bytes : POISONED_BYTES;
        memset(workspace, 0xff, end);
        memset(workspace + task->bytes - end, 0xff, end);
    }
    task->work->kernel(&run, task->work->state);
    while (run.scratch) {
        struct scratch *scratch = run.scratch;
        run.scratch = scratch->next;
        free(scratch);
    }
    return run.code;
}

static int run_set(const struct task *task)
{
    enum stand_rule rule;
    const char *fault;
    uint8_t *to = stand_alias(task->to, task->bytes, &rule, &fault);
    if (!to)
        return stand_break(rule, ACL_ERROR_RT_AICORE_EXCEPTION, "aclrtMemsetAsync: %s", fault);
    memset(to, task->value, task->bytes);
    return 0;
}

int task_run(struct task *task, int device, double *ns)
{
    struct look at = {.name = task_name(task)};
    task_each_access(task, look, &at);
    int code = at.code;
    switch (task->kind) {
    case TASK_WORK:
        code = code ? code : run_work(task, device);
        *ns += LAUNCH_NS + at.bytes / MEMORY_BYTES_A_NS;
        break;
    case TASK_COPY:
        code = code ? code : copy_run(task);
        *ns += COPY_NS + at.bytes / 2 / BUS_BYTES_A_NS;
        break;
    case TASK_SET:
        code = code ? code : run_set(task);
        *ns += COPY_NS + at.bytes / MEMORY_BYTES_A_NS;
        break;
    case TASK_GRAPH:
        for (struct task *t = task->graph->first; t && !code; t = t->next) {
            code = injected_end(task_name(t));
            if (code == INJECTED_HANG)
                code = ACL_ERROR_RT_AICORE_TIMEOUT;
            code = code ? code : task_run(t, device, ns);
        }
        break;
    case TASK_RECORD:
    case TASK_WAIT:
    case TASK_RESET: break;
    }
    return code;
}
