/*
 * rig.c - see rig.h. Everything made is kept in one list and freed by rig_end.
 */
#include "tests/ascend/rig.h"

#include "acl/acl.h"
#include "tests/ascend/control.h"
#include "tests/ascend/stand.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 256, GUARD = 64, GUARD_BYTE = 0xa5 };

static aclrtStream stream;
static struct cell cells[MOST];
static const aclTensor *views[MOST];
static const aclScalar *scalars[MOST];
static const aclIntArray *arrays[MOST];
static const aclTensorList *lists[MOST];
static void *host[MOST];
static int cells_n, views_n, scalars_n, arrays_n, lists_n, host_n, refusals;

static void *kept(void *p)
{
    assert_non_null(p);
    assert_true(host_n < MOST);
    return host[host_n++] = p;
}

void rig_begin(const char *chip)
{
    setenv("STAND_CHIP", chip, 1);
    stand_reset();
    cells_n = views_n = scalars_n = arrays_n = lists_n = host_n = refusals = 0;
    assert_int_equal(aclInit(NULL), 0);
    assert_int_equal(aclrtSetDevice(0), 0);
    assert_int_equal(aclrtCreateStream(&stream), 0);
}

void rig_end(void)
{
    for (int i = 0; i < lists_n; i++)
        aclDestroyTensorList(lists[i]);
    for (int i = 0; i < views_n; i++)
        aclDestroyTensor(views[i]);
    for (int i = 0; i < cells_n; i++) {
        aclDestroyTensor(cells[i].t);
        aclrtFree(cells[i].device);
    }
    for (int i = 0; i < scalars_n; i++)
        aclDestroyScalar(scalars[i]);
    for (int i = 0; i < arrays_n; i++)
        aclDestroyIntArray(arrays[i]);
    for (int i = 0; i < host_n; i++)
        free(host[i]);
    assert_int_equal(aclrtDestroyStream(stream), 0);
    assert_int_equal(stand_leaks(), 0);
    assert_int_equal(stand_broken(NULL), refusals);
    assert_int_equal(aclrtResetDevice(0), 0);
    assert_int_equal(aclFinalize(), 0);
}

int rig_on_910b(void **state)
{
    (void)state;
    rig_begin("910B4");
    return 0;
}

int rig_on_310p(void **state)
{
    (void)state;
    rig_begin("310P3");
    return 0;
}

int rig_on_310b(void **state)
{
    (void)state;
    rig_begin("310B1");
    return 0;
}

int rig_off(void **state)
{
    (void)state;
    rig_end();
    return 0;
}

static size_t bytes_of(aclDataType type, int64_t n)
{
    return type == ACL_INT4 ? (size_t)(n + 1) / 2 : (size_t)n * aclDataTypeSize(type);
}

static void put(void *at, aclDataType type, int64_t i, double v)
{
    switch ((int)type) {
    case ACL_FLOAT: ((float *)at)[i] = (float)v; break;
    case ACL_DOUBLE: ((double *)at)[i] = v; break;
    case ACL_FLOAT16: ((uint16_t *)at)[i] = stand_to_f16(v); break;
    case ACL_BF16: ((uint16_t *)at)[i] = stand_to_bf16(v); break;
    case ACL_INT8: ((int8_t *)at)[i] = (int8_t)v; break;
    case ACL_BOOL:
    case ACL_UINT8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case ACL_INT16: ((int16_t *)at)[i] = (int16_t)v; break;
    case ACL_INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    case ACL_INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    case ACL_INT4: {
        uint8_t *byte = (uint8_t *)at + i / 2;
        int shift = i % 2 ? 4 : 0;
        *byte = (uint8_t)((*byte & ~(15 << shift)) | ((int)v & 15) << shift);
        break;
    }
    default: fail_msg("type %d", (int)type);
    }
}

static double take(const void *at, aclDataType type, int64_t i)
{
    switch ((int)type) {
    case ACL_FLOAT: return (double)((const float *)at)[i];
    case ACL_DOUBLE: return ((const double *)at)[i];
    case ACL_FLOAT16: return (double)stand_from_f16(((const uint16_t *)at)[i]);
    case ACL_BF16: return (double)stand_from_bf16(((const uint16_t *)at)[i]);
    case ACL_INT8: return ((const int8_t *)at)[i];
    case ACL_BOOL:
    case ACL_UINT8: return ((const uint8_t *)at)[i];
    case ACL_INT16: return ((const int16_t *)at)[i];
    case ACL_INT32: return ((const int32_t *)at)[i];
    case ACL_INT64: return (double)((const int64_t *)at)[i];
    case ACL_INT4: {
        int nibble = ((const uint8_t *)at)[i / 2] >> (i % 2 ? 4 : 0) & 15;
        return nibble < 8 ? nibble : nibble - 16;
    }
    default: fail_msg("type %d", (int)type); return 0;
    }
}

struct cell *rig_tensor(aclDataType type, int rank, const int64_t *dims, const double *values)
{
    assert_true(cells_n < MOST);
    struct cell *c = &cells[cells_n++];
    *c = (struct cell){.type = type, .n = 1};
    for (int i = 0; i < rank; i++)
        c->n *= dims[i];
    size_t bytes = bytes_of(type, c->n);
    uint8_t *image = malloc(bytes + 2 * GUARD);
    assert_non_null(image);
    memset(image, GUARD_BYTE, bytes + 2 * GUARD);
    for (int64_t i = 0; i < c->n; i++)
        put(image + GUARD, type, i, values ? values[i] : 7);
    assert_int_equal(aclrtMalloc(&c->device, bytes + 2 * GUARD, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(aclrtMemcpy(c->device, bytes + 2 * GUARD, image, bytes + 2 * GUARD,
                                 ACL_MEMCPY_HOST_TO_DEVICE),
                     0);
    free(image);
    c->t = rig_member(c, rank, dims);
    return c;
}

aclTensor *rig_member(struct cell *c, int rank, const int64_t *dims)
{
    aclTensor *t = aclCreateTensor(dims, (uint64_t)rank, c->type, NULL, 0, ACL_FORMAT_ND, dims,
                                   (uint64_t)rank, (uint8_t *)c->device + GUARD);
    assert_non_null(t);
    return t;
}

const aclTensor *rig_view(struct cell *c, aclFormat format, int rank, const int64_t *dims,
                          const int64_t *strides, int64_t offset)
{
    assert_true(views_n < MOST);
    views[views_n] = aclCreateTensor(dims, (uint64_t)rank, c->type, strides, offset, format, &c->n,
                                     1, (uint8_t *)c->device + GUARD);
    assert_non_null(views[views_n]);
    return views[views_n++];
}

const aclScalar *rig_scalar(double value, aclDataType type)
{
    uint8_t room[8] = {0};
    put(room, type, 0, value);
    assert_true(scalars_n < MOST);
    return scalars[scalars_n++] = aclCreateScalar(room, type);
}

const aclIntArray *rig_ints(int64_t n, const int64_t *values)
{
    assert_true(arrays_n < MOST);
    return arrays[arrays_n++] = aclCreateIntArray(values, (uint64_t)n);
}

const aclTensorList *rig_list(int64_t n, const aclTensor *const *tensors)
{
    assert_true(lists_n < MOST);
    return lists[lists_n++] = aclCreateTensorList(tensors, (uint64_t)n);
}

int rig_run(aclnnStatus status, uint64_t bytes, aclOpExecutor *e, rig_launch *launch)
{
    void *workspace = NULL;
    if (status) {
        print_message("first phase: %d, %s\n", status, aclGetRecentErrMsg());
        return status;
    }
    if (bytes)
        assert_int_equal(aclrtMalloc(&workspace, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    assert_int_equal(launch(workspace, bytes, e, stream), 0);
    int end = aclrtSynchronizeStream(stream);
    if (end)
        print_message("stream: %d, %s\n", end, aclGetRecentErrMsg());
    if (workspace)
        aclrtFree(workspace);
    return end;
}

void rig_refused(aclnnStatus status, aclnnStatus want, const aclOpExecutor *e, const char *name,
                 int line)
{
    if (status != want || e)
        fail_msg("aclnn%s, line %d: %d, not %d", name, line, status, want);
    refusals++;
}

const double *rig_values(struct cell *c)
{
    size_t bytes = bytes_of(c->type, c->n) + 2 * GUARD;
    uint8_t *image = malloc(bytes);
    assert_non_null(image);
    assert_int_equal(aclrtMemcpy(image, bytes, c->device, bytes, ACL_MEMCPY_DEVICE_TO_HOST), 0);
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(image[i], GUARD_BYTE);
        assert_int_equal(image[bytes - 1 - i], GUARD_BYTE);
    }
    double *values = kept(malloc((size_t)(c->n + 1) * sizeof *values));
    for (int64_t i = 0; i < c->n; i++)
        values[i] = take(image + GUARD, c->type, i);
    free(image);
    return values;
}

void rig_compare(struct cell *c, const double *want, double tolerance, const char *what, int line)
{
    const double *got = rig_values(c);
    for (int64_t i = 0; i < c->n; i++) {
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i])) ||
                    fabs(got[i] - want[i]) <= tolerance * fmax(1, fabs(want[i]));
        if (!same)
            fail_msg("%s, line %d: element %lld is %.9g, not %.9g", what, line, (long long)i,
                     got[i], want[i]);
    }
}

void rig_quarters(unsigned seed, int64_t n, double *values)
{
    uint64_t state = seed * 2654435761u + 12345;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        values[i] = (double)((int)(state >> 33 & 31) - 16) / 4;
    }
}

double rig_tolerance(aclDataType type)
{
    return type == ACL_FLOAT16 ? 1e-3 : type == ACL_BF16 ? 8e-3 : 2e-6;
}
