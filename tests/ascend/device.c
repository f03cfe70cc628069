/*
 * device.c - chips, devices, the devices that threads have set, the start and the end of the
 * runtime, and the report of what is left at exit.
 */
#include "control.h"
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

/* From the product pages and the documentation of AscendCL: aclrtCreateEvent (limits of events),
 * aclmdlRICaptureBegin (an A2 product captures, the others do not). */
static const struct stand_chip chips[] = {
    {"Ascend910B4", 32 * GIB, 65536, .bf16 = true, .f64 = true, .quantised_matmul = true,
     .fused_attention = true, .grouped_matmul = true, .virtual_memory = true, .graphs = true},
    {"Ascend310P3", 24 * GIB, 1023, .f64 = true},
    {"Ascend310B1", 8 * GIB, 65536, .f64 = true},
};

const char oato_stand_in[] = "stand-in: no Ascend device; its times are declared, not measured";

struct device devices[DEVICES];
static const struct stand_chip *chip;
static struct stand_chip chosen;
static bool initialised, finalised;
static uint64_t life = 1, threads;
static int n_devices;

const struct stand_chip *stand_chip(void)
{
    runtime_start();
    return chip;
}

void runtime_start(void)
{
    if (chip)
        return;
    const char *name = setting("STAND_CHIP");
    chosen = chips[0];
    bool found = !name || !*name;
    for (size_t i = 0; !found && i < sizeof chips / sizeof *chips; i++) {
        size_t skip = strncmp(name, "Ascend", 6) == 0 ? 0 : strlen("Ascend");
        found = strncmp(chips[i].soc + skip, name, strlen(name)) == 0;
        chosen = found ? chips[i] : chosen;
    }
    if (!found) { /* a test that asks for another chip must not pass on this one */
        fprintf(stderr, "STAND_CHIP=%s: no such chip\n", name);
        abort();
    }
    chosen.memory_bytes = setting_bytes("STAND_MEMORY", chosen.memory_bytes);
    n_devices = (int)setting_bytes("STAND_DEVICES", 1);
    if (n_devices > DEVICES)
        n_devices = DEVICES;
    for (int i = 0; i < DEVICES; i++)
        devices[i] = (struct device){.memory = chosen.memory_bytes};
    chip = &chosen;
    rules_reset();
}

bool runtime_is_initialised(void)
{
    return initialised;
}

int device_count(void)
{
    return n_devices;
}

struct thread *stand_thread(void)
{
    static _Thread_local struct thread thread;
    static _Thread_local uint64_t number;
    if (!number)
        number = ++threads;
    if (thread.life != life)
        thread = (struct thread){life, number, -1, ACL_MODEL_RI_CAPTURE_MODE_GLOBAL};
    return &thread;
}

int64_t stand_leaks(void)
{
    int64_t all = 0, bytes, host;
    stand_lock();
    for (int kind = 1; kind < KINDS; kind++) {
        int64_t n = objects_live((enum stand_kind)kind);
        if (n)
            report("leak: %lld x %s", (long long)n, objects_kind_name((enum stand_kind)kind));
        all += n;
    }
    int64_t regions = regions_live(&bytes, &host);
    if (regions)
        report("leak: %lld x device memory, %lld bytes", (long long)regions, (long long)bytes);
    if (host)
        report("leak: %lld x host memory", (long long)host);
    stand_unlock();
    return all + regions + host;
}

/* The report's last lines, also where nothing is wrong: a test can tell that it was written. */
__attribute__((destructor)) static void report_at_exit(void)
{
    if (!chip || !setting("STAND_REPORT"))
        return;
    rules_report();
    report("end: %lld broken, %lld leaks on %s (%s)", (long long)stand_broken(NULL),
           (long long)stand_leaks(), chip->soc, oato_stand_in);
}

void stand_reset(void)
{
    stand_lock();
    streams_reset();
    regions_reset();
    objects_reset();
    initialised = finalised = false;
    life++;
    chip = NULL;
    runtime_start();
    stand_unlock();
}

aclError aclInit(const char *configPath)
{
    (void)configPath;
    int code = stand_enter("aclInit", 0);
    if (!code && initialised)
        code = stand_break(RULE_INITIALISE_ONCE, ACL_ERROR_REPEAT_INITIALIZE, "aclInit again");
    if (!code && finalised)
        code = stand_break(RULE_INITIALISE_ONCE, ACL_ERROR_REPEAT_INITIALIZE,
                           "aclInit after aclFinalize");
    initialised = initialised || !code;
    return stand_leave(code);
}

aclError aclFinalize(void)
{
    int code = stand_enter("aclFinalize", 0);
    if (!code && finalised)
        code = stand_break(RULE_INITIALISE_ONCE, ACL_ERROR_REPEAT_FINALIZE, "aclFinalize again");
    else if (!code && !initialised)
        code = stand_break(RULE_INITIALISE, ACL_ERROR_UNINITIALIZE, "aclFinalize before aclInit");
    if (!code) {
        initialised = false;
        finalised = true;
    }
    return stand_leave(code);
}

const char *aclrtGetSocName(void)
{
    stand_lock();
    const char *name = stand_chip()->soc;
    stand_unlock();
    return name;
}

static int check_device(int32_t device, const char *symbol)
{
    if (device < 0 || device >= n_devices)
        return stand_break(RULE_DEVICE_ID, ACL_ERROR_RT_INVALID_DEVICEID, "%s: device %d of %d",
                           symbol, device, n_devices);
    return 0;
}

static int check_result(const void *result, const char *symbol)
{
    return result ? 0
                  : stand_break(RULE_ARGUMENT, ACL_ERROR_RT_PARAM_INVALID, "%s: the result is NULL",
                                symbol);
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    int code = stand_enter("aclrtGetDeviceCount", NEEDS_INIT);
    code = code ? code : check_result(count, "aclrtGetDeviceCount");
    if (!code && n_devices == 0)
        code = stand_error(ACL_ERROR_RT_NO_DEVICE, "EZ9999: no device");
    if (!code)
        *count = (uint32_t)n_devices;
    return stand_leave(code);
}

aclError aclrtSetDevice(int32_t deviceId)
{
    int code = stand_enter("aclrtSetDevice", NEEDS_INIT);
    code = code ? code : check_device(deviceId, "aclrtSetDevice");
    if (!code) {
        stand_thread()->device = deviceId;
        devices[deviceId].used = true;
        devices[deviceId].sets++;
    }
    return stand_leave(code);
}

aclError aclrtGetDevice(int32_t *deviceId)
{
    int code = stand_enter("aclrtGetDevice", NEEDS_DEVICE);
    code = code ? code : check_result(deviceId, "aclrtGetDevice");
    if (!code)
        *deviceId = stand_thread()->device;
    return stand_leave(code);
}

/* The last one of as many as there were aclrtSetDevice; by the documentation they are counted. What
 * the device still has stays, and counts as leaked at exit. */
aclError aclrtResetDevice(int32_t deviceId)
{
    int code = stand_enter("aclrtResetDevice", NEEDS_INIT);
    code = code ? code : check_device(deviceId, "aclrtResetDevice");
    if (!code && devices[deviceId].sets < 1)
        code = stand_break(RULE_DEVICE_SET, ACL_ERROR_RT_CONTEXT_NULL,
                           "aclrtResetDevice more often than aclrtSetDevice");
    if (!code && --devices[deviceId].sets == 0) {
        devices[deviceId].died = 0;
        memset(devices[deviceId].peer, 0, sizeof devices[deviceId].peer);
        if (stand_thread()->device == deviceId)
            stand_thread()->device = -1;
    }
    return stand_leave(code);
}

aclError aclrtSynchronizeDevice(void)
{
    int code = stand_enter("aclrtSynchronizeDevice", NEEDS_DEVICE | NEEDS_HEALTH);
    if (!code && captures_on(stand_thread()->device))
        code = stand_break(RULE_CAPTURE_CALL, ACL_ERROR_RT_STREAM_CAPTURED,
                           "aclrtSynchronizeDevice: a stream is captured");
    code = code ? code : streams_finish(stand_thread()->device);
    return stand_leave(code);
}

aclError aclrtGetRunMode(int *runMode)
{
    int code = stand_enter("aclrtGetRunMode", NEEDS_INIT);
    code = code ? code : check_result(runMode, "aclrtGetRunMode");
    if (!code)
        *runMode = 1; /* the client runs on the host */
    return stand_leave(code);
}

aclError aclrtDeviceCanAccessPeer(int32_t *canAccessPeer, int32_t deviceId, int32_t peerDeviceId)
{
    const char *symbol = "aclrtDeviceCanAccessPeer";
    int code = stand_enter(symbol, NEEDS_INIT);
    code = code ? code : check_result(canAccessPeer, symbol);
    code = code ? code : check_device(deviceId, symbol);
    code = code ? code : check_device(peerDeviceId, symbol);
    if (!code)
        *canAccessPeer = deviceId != peerDeviceId;
    return stand_leave(code);
}

static int set_peer(int32_t peer, bool to, const char *symbol)
{
    int code = stand_enter(symbol, NEEDS_DEVICE);
    code = code ? code : check_device(peer, symbol);
    int own = code ? 0 : stand_thread()->device;
    if (!code && peer == own)
        code = stand_break(RULE_DEVICE_ID, ACL_ERROR_RT_INVALID_DEVICEID,
                           "%s: device %d is its own peer", symbol, peer);
    if (!code)
        devices[own].peer[peer] = to;
    return stand_leave(code);
}

aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags)
{
    (void)flags;
    return set_peer(peerDeviceId, true, "aclrtDeviceEnablePeerAccess");
}

aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId)
{
    return set_peer(peerDeviceId, false, "aclrtDeviceDisablePeerAccess");
}
