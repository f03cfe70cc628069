/*
 * rules.c - the rules' names, counts and texts; the entrance of every call; injected errors. All
 * state of the stand-in is guarded by the one lock that stand_enter takes.
 */
#include "rules.h"

#include "control.h"
#include "runtime.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *asks;
} rules[RULES] = {
    [RULE_INITIALISE] = {"initialise", "aclInit comes before all other calls"},
    [RULE_INITIALISE_ONCE] = {"initialise_once", "aclInit and aclFinalize once in a process"},
    [RULE_DEVICE_ID] = {"device_id", "a device's number is below aclrtGetDeviceCount"},
    [RULE_DEVICE_SET] = {"device_set", "each thread calls aclrtSetDevice"},
    [RULE_ARGUMENT] = {"argument", "results are given, sizes are not 0, flags exist"},
    [RULE_HANDLE] = {"handle", "a handle is of a live object of its kind"},
    [RULE_DOUBLE_DESTROY] = {"double_destroy", "an object is destroyed once"},
    [RULE_DOUBLE_FREE] = {"double_free", "memory is freed once, by the address it was given at"},
    [RULE_FREE_KIND] = {"free_kind", "aclrtFree for device memory, aclrtFreeHost for host memory"},
    [RULE_COPY_KIND] = {"copy_kind", "the kind of a copy is what its addresses are"},
    [RULE_COPY_BOUNDS] = {"copy_bounds", "a copy stays inside both allocations and destMax"},
    [RULE_BOUNDS] = {"bounds", "an operator's views stay inside their allocations"},
    [RULE_USE_AFTER_FREE] = {"use_after_free", "freed memory is not used"},
    [RULE_FREED_IN_USE] = {"freed_in_use", "memory is freed after the tasks that use it"},
    [RULE_SYNCHRONISE] = {"synchronise", "the host waits for tasks before it touches their memory"},
    [RULE_SOURCE_KEPT] = {"source_kept", "a copy's source stays unchanged until the copy has run"},
    [RULE_ORDER] = {"order", "streams that share memory are ordered by events"},
    [RULE_STREAM_DEVICE] = {"stream_device", "a stream is used on the device it was made on"},
    [RULE_STREAM_BUSY] = {"stream_busy", "a stream is synchronised before it is destroyed"},
    [RULE_EVENT_RECORDED] = {"event_recorded", "an event is recorded before it is waited for"},
    [RULE_EVENT_REUSED] = {"event_reused", "an event of aclrtCreateEventWithFlag is reset first"},
    [RULE_EVENT_FLAGS] = {"event_flags", "waits, resets and times are of events made for them"},
    [RULE_EVENT_TIME] = {"event_time", "elapsed times are of events that are complete"},
    [RULE_EVENT_LIMIT] = {"event_limit", "no more events than the chip has"},
    [RULE_PEER_ACCESS] = {"peer_access", "copies between devices need peer access"},
    [RULE_CAPTURE_CALL] = {"capture_call",
                           "no synchronous or pageable copy and no waiting while capturing"},
    [RULE_CAPTURE_PAIR] = {"capture_pair", "captures begin and end in pairs, forks are joined"},
    [RULE_GRAPH_BUSY] = {"graph_busy", "a graph has run before it is destroyed"},
    [RULE_EXECUTOR_ONCE] = {"executor_once", "an executor is launched once"},
    [RULE_EXECUTOR_OPERATOR] = {"executor_operator", "both phases are of one operator"},
    [RULE_TENSOR_KEPT] = {"tensor_kept", "operands live until the second phase"},
    [RULE_WORKSPACE_SIZE] = {"workspace_size", "a workspace has the bytes that were asked for"},
    [RULE_WORKSPACE_FREED] = {"workspace_freed", "a workspace lives until the stream has run"},
    [RULE_WORKSPACE_APART] = {"workspace_apart", "a workspace overlaps no operand"},
    [RULE_OPERAND_NULL] = {"operand_null", "required operands are given"},
    [RULE_OPERAND_ADDRESS] = {"operand_address",
                              "tensors are in the memory of the stream's device"},
    [RULE_OPERAND_ALIGNMENT] = {"operand_alignment", "addresses of tensors are multiples of 32"},
    [RULE_OPERAND_TYPE] = {"operand_type", "an operator takes its documented types"},
    [RULE_OPERAND_SHAPE] = {"operand_shape", "an operator takes its documented shapes"},
    [RULE_OPERAND_STORAGE] = {"operand_storage", "a view lies inside its storage dims"},
    [RULE_OPERAND_VALUE] = {"operand_value", "indices are in range"},
    [RULE_CHIP] = {"chip", "nothing is asked for that the chip does not have"},
};

static int64_t counts[RULES];
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local char text[512];
static _Thread_local bool has_text;

static void make_lock(void)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
    pthread_mutexattr_destroy(&recursive);
}

void stand_lock(void)
{
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

void stand_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void report(const char *format, ...)
{
    const char *path = setting("STAND_REPORT");
    if (!path || !*path)
        return;
    FILE *file = strcmp(path, "-") == 0 ? stderr : fopen(path, "a");
    if (!file)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fputc('\n', file);
    if (file != stderr)
        fclose(file);
}

int stand_count_broken(enum stand_rule rule, int code, const char *format, ...)
{
    char what[400];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    counts[rule]++;
    snprintf(text, sizeof text, "%s: %s (stand-in, rule %s)", "EZ9999", what, rules[rule].name);
    has_text = true;
    report("rule %s: %s (code %d)", rules[rule].name, what, code);
    return code;
}

int stand_keep_error(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    has_text = true;
    report("error: %s (code %d)", text, code);
    return code;
}

const char *aclGetRecentErrMsg(void)
{
    static _Thread_local char given[sizeof text];
    if (!has_text)
        return NULL;
    memcpy(given, text, sizeof given);
    has_text = false;
    return given;
}

int64_t stand_broken(const char *rule)
{
    int64_t all = 0;
    for (int i = 0; i < RULES; i++) {
        if (rule && strcmp(rule, rules[i].name) == 0)
            return counts[i];
        all += counts[i];
    }
    return rule ? -1 : all;
}

const char *stand_rule(int i)
{
    return i >= 0 && i < RULES ? rules[i].name : NULL;
}

const char *stand_rule_text(int i)
{
    return i >= 0 && i < RULES ? rules[i].asks : NULL;
}

void rules_reset(void)
{
    memset(counts, 0, sizeof counts);
    has_text = false;
    injections_read();
}

void rules_report(void)
{
    for (int i = 0; i < RULES; i++)
        if (counts[i])
            report("broken: %s x %lld: %s", rules[i].name, (long long)counts[i], rules[i].asks);
}

const char *setting(const char *name)
{
    return getenv(name);
}

bool stand_is_loose(void)
{
    const char *places = setting("STAND_RULES");
    return places && strcmp(places, "loose") == 0;
}

uint64_t setting_bytes(const char *name, uint64_t otherwise)
{
    const char *value = setting(name);
    if (!value || !*value)
        return otherwise;
    char *end;
    uint64_t n = strtoull(value, &end, 10);
    switch (*end) {
    case 'k': return n << 10;
    case 'M': return n << 20;
    case 'G': return n << 30;
    default: return n;
    }
}

/* --- injected errors --- */

enum { INJECTIONS = 16 };

struct injections {
    int n;
    struct injection {
        char name[96];
        long at, seen; /* at 0: each */
        int code;
    } list[INJECTIONS];
};
static struct injections fail, die, hang;

/* NAME:N[:CODE],... */
static void read_injections(struct injections *to, const char *name, int code)
{
    const char *at = setting(name);
    *to = (struct injections){0};
    while (at && *at && to->n < INJECTIONS) {
        struct injection *one = &to->list[to->n];
        char which[16] = "1";
        *one = (struct injection){.code = code};
        if (sscanf(at, "%95[^:,]:%15[^:,]:%d", one->name, which, &one->code) < 1)
            break;
        one->at = strcmp(which, "*") == 0 ? 0 : strtol(which, NULL, 10);
        to->n++;
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
}

void injections_read(void)
{
    read_injections(&fail, "STAND_FAIL", ACL_ERROR_RT_AICORE_EXCEPTION);
    read_injections(&die, "STAND_DIE", ACL_ERROR_RT_AICORE_EXCEPTION);
    read_injections(&hang, "STAND_HANG", INJECTED_HANG);
}

static int injected(struct injections *from, const char *name)
{
    int code = 0;
    for (int i = 0; i < from->n; i++) {
        struct injection *one = &from->list[i];
        if (strcmp(one->name, name) != 0 && strcmp(one->name, "*") != 0)
            continue;
        one->seen++;
        if (one->at == 0 || one->seen == one->at)
            code = one->code;
    }
    return code;
}

int injected_end(const char *task)
{
    int code = injected(&hang, task);
    return code ? code : injected(&die, task);
}

int stand_enter(const char *symbol, unsigned needs)
{
    stand_lock();
    runtime_start();
    int code = injected(&fail, symbol);
    if (code)
        return stand_error(code, "EZ9999: %s: injected error", symbol);
    struct thread *thread = stand_thread();
    if ((needs & NEEDS_INIT) && !runtime_is_initialised())
        return stand_break(RULE_INITIALISE, ACL_ERROR_UNINITIALIZE, "%s before aclInit", symbol);
    if ((needs & NEEDS_DEVICE) == NEEDS_DEVICE && thread->device < 0)
        return stand_break(RULE_DEVICE_SET, ACL_ERROR_RT_CONTEXT_NULL,
                           "%s in a thread that set no device", symbol);
    if ((needs & NEEDS_HEALTH) && thread->device >= 0 && devices[thread->device].died)
        return stand_error(devices[thread->device].died, "EZ9999: %s: device %d has failed", symbol,
                           thread->device);
    if ((needs & NEEDS_NO_CAPTURE) && capture_forbids(thread))
        return stand_break(RULE_CAPTURE_CALL, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT,
                           "%s while a stream is captured", symbol);
    return 0;
}

int stand_leave(int code)
{
    stand_unlock();
    return code;
}
