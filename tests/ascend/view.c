/*
 * view.c - strided views: pure ones of other views, and elements read and written through the
 * stand-in's alias of device memory, never outside the allocation.
 */
#include "meta.h"

#include <string.h>

int64_t stand_elements(struct stand_view view)
{
    int64_t n = view.given;
    for (int i = 0; i < view.rank; i++)
        n *= view.dims[i];
    return n;
}

bool view_extent(const struct stand_view *view, int64_t *low, int64_t *high)
{
    *low = *high = view->offset;
    if (stand_elements(*view) == 0)
        return false;
    for (int i = 0; i < view->rank; i++)
        *high += (view->dims[i] - 1) * view->strides[i];
    return true;
}

struct stand_view stand_expand(struct stand_view view, struct stand_view like)
{
    struct stand_view to = view;
    int missing = like.rank - view.rank;
    to.rank = like.rank;
    for (int i = 0; i < like.rank; i++) {
        bool own = i >= missing && view.dims[i - missing] != 1;
        to.dims[i] = like.dims[i];
        to.strides[i] = own ? view.strides[i - missing] : 0;
    }
    return to;
}

struct stand_view stand_select(struct stand_view view, int axis, int64_t i)
{
    view.offset += i * view.strides[axis];
    view.rank--;
    for (int d = axis; d < view.rank; d++) {
        view.dims[d] = view.dims[d + 1];
        view.strides[d] = view.strides[d + 1];
    }
    return view;
}

struct stand_view stand_slice(struct stand_view view, int axis, int64_t first, int64_t n)
{
    view.offset += first * view.strides[axis];
    view.dims[axis] = n;
    return view;
}

struct stand_view stand_swap(struct stand_view view, int a, int b)
{
    int64_t dim = view.dims[a], stride = view.strides[a];
    view.dims[a] = view.dims[b];
    view.strides[a] = view.strides[b];
    view.dims[b] = dim;
    view.strides[b] = stride;
    return view;
}

int64_t stand_rows(struct stand_view view)
{
    int64_t n = view.given;
    for (int i = 0; i + 1 < view.rank; i++)
        n *= view.dims[i];
    return n;
}

struct stand_view stand_row(struct stand_view view, int64_t row)
{
    while (view.rank > 1) {
        int64_t n = view.dims[view.rank - 2];
        view = stand_select(view, view.rank - 2, row % n);
        row /= n;
    }
    return view;
}

/* --- elements --- */

/* Where element 0 of the view's address would be, all that the view touches being there; NULL and
 * the run fails otherwise. */
static uint8_t *resolve(struct stand_run *run, const struct stand_view *view)
{
    int64_t low, high, bits = type_bits(view->type);
    enum stand_rule rule;
    const char *fault;
    if (!view_extent(view, &low, &high))
        return NULL;
    int64_t from = low * bits / 8, to = (high * bits + bits + 7) / 8;
    uint8_t *alias =
        stand_alias((uint8_t *)view->address + from, (size_t)(to - from), &rule, &fault);
    if (alias)
        return alias - from;
    if (!run->code)
        run->code = stand_break(rule, ACL_ERROR_RT_AICORE_EXCEPTION,
                                "%s: bytes %lld to %lld of the tensor at %p: %s", run->name,
                                (long long)from, (long long)to, view->address, fault);
    return NULL;
}

static int64_t element_of(const struct stand_view *view, int64_t i)
{
    int64_t element = view->offset;
    for (int d = view->rank - 1; d >= 0; d--) {
        element += i % view->dims[d] * view->strides[d];
        i /= view->dims[d];
    }
    return element;
}

/* The run of elements that a row of the last dimension is. */
typedef void row_visit(uint8_t *base, const struct stand_view *, int64_t first, int64_t n,
                       int64_t stride, void *dense);

static void each_row(struct stand_run *run, const struct stand_view *view, row_visit *visit,
                     void *dense, size_t each)
{
    uint8_t *base = resolve(run, view);
    if (!base)
        return;
    int last = view->rank - 1;
    int64_t n = view->rank ? view->dims[last] : 1, stride = view->rank ? view->strides[last] : 0;
    int64_t rows = view->rank ? stand_rows(*view) : 1, index[STAND_RANK] = {0};
    int64_t first = view->offset;
    for (int64_t row = 0; row < rows; row++) {
        visit(base, view, first, n, stride, (uint8_t *)dense + (size_t)(row * n) * each);
        for (int d = last - 1; d >= 0; d--) {
            first += view->strides[d];
            if (++index[d] < view->dims[d])
                break;
            first -= view->strides[d] * view->dims[d];
            index[d] = 0;
        }
    }
}

static void row_floats(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                       int64_t stride, void *dense)
{
    float *to = dense;
    if (view->type == ACL_FLOAT && stride == 1) {
        memcpy(to, base + 4 * first, 4 * (size_t)n);
    } else if (view->type == ACL_FLOAT16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, base + 2 * (first + i * stride), 2);
            to[i] = stand_from_f16(h);
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)load_double(base, view->type, first + i * stride);
    }
}

static void row_doubles(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                        int64_t stride, void *dense)
{
    for (int64_t i = 0; i < n; i++)
        ((double *)dense)[i] = load_double(base, view->type, first + i * stride);
}

static void row_ints(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                     int64_t stride, void *dense)
{
    for (int64_t i = 0; i < n; i++)
        ((int64_t *)dense)[i] = load_int(base, view->type, first + i * stride);
}

static void store_floats(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                         int64_t stride, void *dense)
{
    const float *from = dense;
    if (view->type == ACL_FLOAT && stride == 1)
        memcpy(base + 4 * first, from, 4 * (size_t)n);
    else
        for (int64_t i = 0; i < n; i++)
            store_double(base, view->type, first + i * stride, from[i]);
}

static void store_doubles(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                          int64_t stride, void *dense)
{
    for (int64_t i = 0; i < n; i++)
        store_double(base, view->type, first + i * stride, ((const double *)dense)[i]);
}

static void store_ints(uint8_t *base, const struct stand_view *view, int64_t first, int64_t n,
                       int64_t stride, void *dense)
{
    for (int64_t i = 0; i < n; i++)
        store_int(base, view->type, first + i * stride, ((const int64_t *)dense)[i]);
}

static void *dense_of(struct stand_run *run, const struct stand_view *view, size_t each)
{
    return stand_scratch(run, (size_t)stand_elements(*view) * each);
}

float *stand_read_floats(struct stand_run *run, struct stand_view view)
{
    float *to = dense_of(run, &view, sizeof *to);
    each_row(run, &view, row_floats, to, sizeof *to);
    return to;
}

double *stand_read_doubles(struct stand_run *run, struct stand_view view)
{
    double *to = dense_of(run, &view, sizeof *to);
    each_row(run, &view, row_doubles, to, sizeof *to);
    return to;
}

int64_t *stand_read_ints(struct stand_run *run, struct stand_view view)
{
    int64_t *to = dense_of(run, &view, sizeof *to);
    each_row(run, &view, row_ints, to, sizeof *to);
    return to;
}

void stand_write_floats(struct stand_run *run, struct stand_view view, const float *from)
{
    each_row(run, &view, store_floats, (void *)(uintptr_t)from, sizeof *from);
}

void stand_write_doubles(struct stand_run *run, struct stand_view view, const double *from)
{
    each_row(run, &view, store_doubles, (void *)(uintptr_t)from, sizeof *from);
}

void stand_write_ints(struct stand_run *run, struct stand_view view, const int64_t *from)
{
    each_row(run, &view, store_ints, (void *)(uintptr_t)from, sizeof *from);
}

double stand_get(struct stand_run *run, const struct stand_view *view, int64_t i)
{
    uint8_t *base = resolve(run, view);
    return base ? load_double(base, view->type, element_of(view, i)) : 0;
}

int64_t stand_get_int(struct stand_run *run, const struct stand_view *view, int64_t i)
{
    uint8_t *base = resolve(run, view);
    return base ? load_int(base, view->type, element_of(view, i)) : 0;
}

void stand_set(struct stand_run *run, const struct stand_view *view, int64_t i, double x)
{
    uint8_t *base = resolve(run, view);
    if (base)
        store_double(base, view->type, element_of(view, i), x);
}

void stand_set_int(struct stand_run *run, const struct stand_view *view, int64_t i, int64_t x)
{
    uint8_t *base = resolve(run, view);
    if (base)
        store_int(base, view->type, element_of(view, i), x);
}

void *stand_bytes(struct stand_run *run, const struct stand_view *view, int64_t offset, size_t n)
{
    enum stand_rule rule;
    const char *fault;
    uint8_t *alias = stand_alias((uint8_t *)view->address + offset, n, &rule, &fault);
    if (!alias && !run->code)
        run->code = stand_break(rule, ACL_ERROR_RT_AICORE_EXCEPTION,
                                "%s: %zu bytes at %lld of the tensor at %p: %s", run->name, n,
                                (long long)offset, view->address, fault);
    return alias;
}
