/*
 * check.c - the checks that operators declare on their operands. Each passes for an operand that
 * was left out, and only the first fault of a call is kept.
 */
#include "frame.h"

#include <stdarg.h>
#include <stdio.h>

static bool shape_fault(struct stand_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool shape_fault(struct stand_call *call, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    call_fault(call, RULE_OPERAND_SHAPE,
               call->tiling ? ACLNN_ERR_INNER_TILING_ERROR : ACLNN_ERR_PARAM_INVALID, "%s", what);
    return false;
}

void stand_tiling(struct stand_call *call)
{
    call->tiling = true;
}

bool stand_types(struct stand_call *call, const struct stand_view *view, uint32_t mask)
{
    if (!view->given || (mask & STAND_TYPE(view->type)))
        return true;
    call_fault(call, RULE_OPERAND_TYPE, ACLNN_ERR_PARAM_INVALID, "%s is %s",
               call_name_of(call, view), type_name(view->type));
    return false;
}

bool stand_same_type(struct stand_call *call, const struct stand_view *a,
                     const struct stand_view *b)
{
    if (!a->given || !b->given || a->type == b->type)
        return true;
    call_fault(call, RULE_OPERAND_TYPE, ACLNN_ERR_PARAM_INVALID, "%s is %s, %s is %s",
               call_name_of(call, a), type_name(a->type), call_name_of(call, b),
               type_name(b->type));
    return false;
}

bool stand_rank(struct stand_call *call, const struct stand_view *view, int least, int most)
{
    if (!view->given || (view->rank >= least && view->rank <= most))
        return true;
    return shape_fault(call, "%s has %d dimensions, %d to %d are allowed", call_name_of(call, view),
                       view->rank, least, most);
}

bool stand_shape(struct stand_call *call, const struct stand_view *view, int rank,
                 const int64_t *dims)
{
    if (!view->given)
        return true;
    if (view->rank != rank)
        return shape_fault(call, "%s has %d dimensions, it needs %d", call_name_of(call, view),
                           view->rank, rank);
    for (int i = 0; i < rank; i++)
        if (view->dims[i] != dims[i])
            return shape_fault(call, "%s has %lld in dimension %d, it needs %lld",
                               call_name_of(call, view), (long long)view->dims[i], i,
                               (long long)dims[i]);
    return true;
}

bool stand_same_shape(struct stand_call *call, const struct stand_view *a,
                      const struct stand_view *b)
{
    return !a->given || !b->given || stand_shape(call, b, a->rank, a->dims);
}

bool stand_broadcasts(struct stand_call *call, const struct stand_view *a,
                      const struct stand_view *b, const struct stand_view *out)
{
    if (!a->given || !b->given || !out->given)
        return true;
    int rank = a->rank > b->rank ? a->rank : b->rank;
    int64_t dims[STAND_RANK];
    for (int i = 0; i < rank; i++) {
        int ia = i - (rank - a->rank), ib = i - (rank - b->rank);
        int64_t da = ia < 0 ? 1 : a->dims[ia], db = ib < 0 ? 1 : b->dims[ib];
        if (da != db && da != 1 && db != 1)
            return shape_fault(call, "%s has %lld where %s has %lld in dimension %d",
                               call_name_of(call, a), (long long)da, call_name_of(call, b),
                               (long long)db, i);
        dims[i] = da == 1 ? db : da;
    }
    return stand_shape(call, out, rank, dims);
}

bool stand_dense(struct stand_call *call, const struct stand_view *view)
{
    int64_t dense = 1;
    for (int i = view->rank - 1; view->given && i >= 0; i--) {
        if (view->dims[i] != 1 && view->strides[i] != dense)
            return shape_fault(call, "%s is not contiguous (stride %lld in dimension %d)",
                               call_name_of(call, view), (long long)view->strides[i], i);
        dense *= view->dims[i];
    }
    return true;
}

bool stand_format(struct stand_call *call, const struct stand_view *view, aclFormat format)
{
    if (!view->given || view->format == format)
        return true;
    return shape_fault(call, "%s is in format %d, it needs %d", call_name_of(call, view),
                       (int)view->format, (int)format);
}

int stand_axis(struct stand_call *call, const struct stand_view *view, int64_t dim)
{
    if (!view->given || (dim == 0 && !view->rank))
        return 0;
    if (dim < -view->rank || dim >= view->rank) {
        shape_fault(call, "dimension %lld of %s, which has %d", (long long)dim,
                    call_name_of(call, view), view->rank);
        return 0;
    }
    return (int)(dim < 0 ? dim + view->rank : dim);
}

bool stand_require(struct stand_call *call, bool holds, const char *format, ...)
{
    if (holds)
        return true;
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return shape_fault(call, "%s", what);
}

bool stand_chip_has(struct stand_call *call, bool holds, const char *what)
{
    if (!holds)
        call_fault(call, RULE_CHIP, ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "%s has no kernel for %s",
                   stand_chip()->soc, what);
    return holds;
}
