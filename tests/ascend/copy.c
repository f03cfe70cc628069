/*
 * copy.c - copies and fills, by the host at once or by a stream later. What a stream copies is read
 * from its source when the copy runs, and the source must then be what it was; where a stream
 * writes to the host, the host finds 0xff until then.
 */
#include "runtime.h"

#include <string.h>

/* FNV-1a over words and the tail. */
static uint64_t sum_of(const uint8_t *from, size_t bytes)
{
    uint64_t sum = UINT64_C(14695981039346656037), word;
    for (; bytes >= 8; from += 8, bytes -= 8) {
        memcpy(&word, from, 8);
        sum = (sum ^ word) * UINT64_C(1099511628211);
        sum ^= sum >> 29;
    }
    while (bytes--)
        sum = (sum ^ *from++) * UINT64_C(1099511628211);
    return sum;
}

static bool takes_device_to(aclrtMemcpyKind kind)
{
    return kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
}

static bool takes_device_from(aclrtMemcpyKind kind)
{
    return kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
}

/* One end of a copy: the right sort of memory, all of it there. */
static int check_end(const void *at, size_t bytes, bool device, const char *end, const char *symbol)
{
    if (stand_is_device_address(at) != device)
        return stand_break(RULE_COPY_KIND, ACL_ERROR_RT_PARAM_INVALID, "%s: its %s %p is %s memory",
                           symbol, end, at, device ? "host" : "device");
    enum stand_rule rule;
    const char *fault;
    if (!stand_alias(at, bytes, &rule, &fault))
        return stand_break(rule == RULE_BOUNDS ? RULE_COPY_BOUNDS : rule,
                           ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes at its %s %p: %s", symbol,
                           bytes, end, at, fault);
    return 0;
}

static int device_of(const void *address)
{
    const struct stand_region *region = stand_region_of(address);
    return region ? region->device : -1;
}

static int check_copy(void *to, size_t room, const void *from, size_t bytes, aclrtMemcpyKind *kind,
                      const char *symbol)
{
    if (!to || !from || (int)*kind < 0 || *kind > ACL_MEMCPY_DEFAULT)
        return stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: an address is NULL or the kind is none (%d)", symbol, (int)*kind);
    if (!bytes || bytes > room)
        return stand_break(RULE_COPY_BOUNDS, ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes to %zu",
                           symbol, bytes, room);
    if (*kind == ACL_MEMCPY_DEFAULT)
        *kind = (stand_is_device_address(from) ? 2 : 0) + (stand_is_device_address(to) ? 1 : 0);
    int code = check_end(to, bytes, takes_device_to(*kind), "destination", symbol);
    code = code ? code : check_end(from, bytes, takes_device_from(*kind), "source", symbol);
    if (code)
        return code;
    int a = device_of(to), b = device_of(from);
    if (a >= 0 && b >= 0 && a != b && !devices[a].peer[b] && !devices[b].peer[a])
        return stand_break(RULE_PEER_ACCESS, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: from device %d to %d without peer access", symbol, b, a);
    return 0;
}

/* The host does something with memory now: no task that uses it may be pending. */
static int check_settled(const void *at, size_t bytes, bool write, const char *symbol)
{
    enum use use = pending_use(at, bytes, false, NULL);
    if (use == USE_WRITE || (use && write))
        return stand_break(RULE_SYNCHRONISE, 0, "%s: a task that uses %p has not run", symbol, at);
    return 0;
}

aclError aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind)
{
    const char *symbol = "aclrtMemcpy";
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_NO_CAPTURE | NEEDS_HEALTH);
    code = code ? code : check_copy(dst, destMax, src, count, &kind, symbol);
    if (!code) {
        enum stand_rule rule;
        const char *fault;
        check_settled(dst, count, true, symbol);
        check_settled(src, count, false, symbol);
        memmove(stand_alias(dst, count, &rule, &fault), stand_alias(src, count, &rule, &fault),
                count);
    }
    return stand_leave(code);
}

int copy_run(const struct task *task)
{
    enum stand_rule rule;
    const char *fault;
    uint8_t *to = stand_alias(task->to, task->bytes, &rule, &fault);
    uint8_t *from = to ? stand_alias(task->from, task->bytes, &rule, &fault) : NULL;
    if (!from)
        return stand_break(rule, ACL_ERROR_RT_AICORE_EXCEPTION, "aclrtMemcpyAsync: %s", fault);
    if (task->summed && sum_of(from, task->bytes) != task->sum)
        stand_break(RULE_SOURCE_KEPT, 0,
                    "aclrtMemcpyAsync: %zu bytes at %p changed before the copy", task->bytes,
                    task->from);
    memmove(to, from, task->bytes);
    return 0;
}

/* Memory of the host that aclrtMallocHost did not give. */
static bool is_pageable(const void *at)
{
    return !stand_is_device_address(at) && !stand_region_of(at);
}

static int check_async(const struct stream *stream, aclrtMemcpyKind kind, bool pageable,
                       const char *symbol)
{
    if (kind == ACL_MEMCPY_HOST_TO_HOST)
        return stand_break(RULE_COPY_KIND, ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                           "%s: from host to host", symbol);
    if (stream->capture && pageable && capture_forbids(stand_thread()))
        return stand_break(RULE_CAPTURE_CALL, 107041, "%s: pageable memory while capturing",
                           symbol);
    return 0;
}

/* As documented, a copy from or to pageable memory has run when the call returns. That is not
 * relied upon here unless STAND_PAGEABLE=now: a client that asks for an asynchronous copy waits for
 * it. */
static int finish_pageable(struct stream *stream)
{
    const char *when = setting("STAND_PAGEABLE");
    return when && strcmp(when, "now") == 0 ? stream_finish(stream, -1) : 0;
}

aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream)
{
    const char *symbol = "aclrtMemcpyAsync";
    struct stream *to = stream;
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_stream_check(stream, symbol);
    code = code ? code : check_copy(dst, destMax, src, count, &kind, symbol);
    bool pageable = !code && (is_pageable(dst) || is_pageable(src));
    code = code ? code : check_async(to, kind, pageable, symbol);
    if (code)
        return stand_leave(code);
    struct task *task = task_new(TASK_COPY);
    task->to = dst;
    task->from = src;
    task->bytes = count;
    if (!to->capture && !takes_device_from(kind)) {
        /* A source that a pending task writes is not yet what will be copied. */
        task->summed = pending_use(src, count, true, NULL) != USE_WRITE;
        task->sum = task->summed ? sum_of(src, count) : 0;
    }
    if (!to->capture && !takes_device_to(kind) && !pending_use(dst, count, true, NULL))
        memset(dst, 0xff, count);
    code = stream_put(to, task);
    if (!code && pageable && !to->capture)
        code = finish_pageable(to);
    return stand_leave(code);
}

static int check_set(void *at, size_t room, size_t bytes, const char *symbol)
{
    if (!at || !bytes || bytes > room)
        return stand_break(RULE_COPY_BOUNDS, ACL_ERROR_RT_PARAM_INVALID, "%s: %zu bytes of %zu",
                           symbol, bytes, room);
    return check_end(at, bytes, true, "destination", symbol);
}

aclError aclrtMemset(void *devPtr, size_t maxCount, int32_t value, size_t count)
{
    const char *symbol = "aclrtMemset";
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_NO_CAPTURE | NEEDS_HEALTH);
    code = code ? code : check_set(devPtr, maxCount, count, symbol);
    if (!code) {
        enum stand_rule rule;
        const char *fault;
        check_settled(devPtr, count, true, symbol);
        memset(stand_alias(devPtr, count, &rule, &fault), value, count);
    }
    return stand_leave(code);
}

aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count,
                          aclrtStream stream)
{
    const char *symbol = "aclrtMemsetAsync";
    int code = stand_enter(symbol, NEEDS_DEVICE | NEEDS_HEALTH);
    code = code ? code : stand_stream_check(stream, symbol);
    code = code ? code : check_set(devPtr, maxCount, count, symbol);
    if (!code) {
        struct task *task = task_new(TASK_SET);
        task->to = devPtr;
        task->bytes = count;
        task->value = value;
        code = stream_put(stream, task);
    }
    return stand_leave(code);
}
