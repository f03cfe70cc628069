/*
 * neurons_magnitudes.c - how large the elements of values were, in a neurons sidecar: quantiles,
 * from which thresholds are chosen, and while counting is unfinished the counts that they are made
 * of.
 */
#include "planfmt/planfmt_internal.h"

#include <float.h>
#include <inttypes.h>

/* More elements than a sum of counts can have. */
#define COUNTS_MOST (INT64_C(1) << 62)

enum { OCTAVE = 64, LEAST_EXPONENT = -16 };

/* The upper bound of a bin. */
static float bin_edge(int32_t bin)
{
    const uint32_t bits = (uint32_t)(bin - 1 + (127 + LEAST_EXPONENT) * OCTAVE) << 17;
    float edge;
    memcpy(&edge, &bits, sizeof edge);
    return bin ? edge : 0;
}

float neurons_quantile(const int64_t counts[NEURONS_BINS], double q)
{
    int64_t all = 0, below = 0;
    for (int32_t i = 0; i < NEURONS_BINS; i++)
        all += counts[i];
    for (int32_t i = 0; i < NEURONS_BINS; i++) {
        below += counts[i];
        if ((double)below >= q * (double)all)
            return bin_edge(i);
    }
    return bin_edge(NEURONS_BINS - 1);
}

const struct neurons_magnitudes *neurons_magnitudes(const struct neurons *n, const char *name)
{
    for (int32_t i = 0; i < n->n_magnitudes; i++)
        if (!strcmp(n->magnitudes[i].name, name))
            return &n->magnitudes[i];
    return NULL;
}

/* The layer of "blk.N.ANY"; -1: another name. */
static int64_t layer_of(const char *name)
{
    const char *kind = strncmp(name, "blk.", 4) ? NULL : strchr(name + 4, '.');
    return kind ? neurons_layer_of(name, kind + 1) : -1;
}

/* What a tensor may hold, by the end of its name. */
enum { QUANTILES, COUNTS, SHARES };
static const struct {
    const char *end;
    oato_dtype dtype;
    int32_t n;
} tensors[] = {
    [QUANTILES] = {"_quantiles", DT_F32, NEURONS_QUANTILES},
    [COUNTS] = {"_counts", DT_I64, NEURONS_BINS},
    [SHARES] = {"_shares", DT_F32, NEURONS_QUANTILES}, /* of earlier versions; refused */
};

/* The one of a tensor whose name has that many bytes before its end. Names of tensors differ, so
 * quantiles are a new one; counts follow those that they belong to. NULL: they do not, or
 * memory is short. */
static struct neurons_magnitudes *entry_of(struct neurons *n, const struct gguf_tensor *t,
                                           size_t bytes, size_t kind)
{
    if (kind == QUANTILES) {
        n->magnitudes[n->n_magnitudes].name = arena_strndup(&n->arena, t->name, bytes);
        return n->magnitudes[n->n_magnitudes].name ? &n->magnitudes[n->n_magnitudes++] : NULL;
    }
    struct neurons_magnitudes *last = n->magnitudes + n->n_magnitudes - 1;
    const bool follows =
        n->n_magnitudes && strlen(last->name) == bytes && !memcmp(last->name, t->name, bytes);
    return follows ? last : NULL;
}

oato_status magnitudes_read(struct neurons *n, const struct gguf_tensor *t, int64_t layers,
                            struct oato_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(tensors); i++) {
        const size_t length = strlen(t->name), end = strlen(tensors[i].end);
        if (length <= end || strcmp(t->name + length - end, tensors[i].end) != 0 ||
            layer_of(t->name) < 0)
            continue;
        if (i == SHARES)
            return oato_fail(err, OATO_EFILE,
                             "%s: shares of inputs for each matrix (oato-profile --inputs), which "
                             "this version no longer reads; remove the file and count anew with "
                             "oato-profile --calibrate TEXT",
                             t->name);
        if (t->dtype != tensors[i].dtype || t->n_dims != 1 || t->ne[0] != tensors[i].n ||
            layer_of(t->name) >= layers)
            return oato_fail(err, OATO_EFILE,
                             "%s: type %s, %d dimensions, the first of %" PRId64
                             "; allowed: one dimension of %d %s, in a layer with neurons",
                             t->name, dtype_name(t->dtype), t->n_dims, t->ne[0], tensors[i].n,
                             dtype_name(tensors[i].dtype));
        struct neurons_magnitudes *m = entry_of(n, t, length - end, i);
        void *data = arena_alloc(&n->arena, 1, t->bytes);
        if (!m && i != QUANTILES)
            return oato_fail(err, OATO_EFILE, "%s: does not follow its quantiles", t->name);
        if (!m || !data)
            return oato_fail_memory(err, t->bytes, "a neurons sidecar");
        memcpy(data, t->data, t->bytes);
        if (i == QUANTILES)
            m->quantiles = data;
        else
            m->counts = data;
    }
    return OATO_OK;
}

static oato_status check_quantiles(const struct neurons_magnitudes *m, oato_status status,
                                   struct oato_error *err)
{
    float last = 0;
    for (int32_t i = 0; i < NEURONS_QUANTILES; last = m->quantiles[i++])
        if (!(m->quantiles[i] >= last && m->quantiles[i] <= FLT_MAX))
            return oato_fail(err, status,
                             "%s_quantiles: element %d is %g after %g; allowed: rising numbers "
                             "from 0 on",
                             m->name, i, (double)m->quantiles[i], (double)last);
    return OATO_OK;
}

static oato_status check_counts(const struct neurons_magnitudes *m, oato_status status,
                                struct oato_error *err)
{
    int64_t left = COUNTS_MOST;
    for (int32_t i = 0; m->counts && i < NEURONS_BINS; left -= m->counts[i++])
        if (m->counts[i] < 0 || m->counts[i] > left)
            return oato_fail(err, status, "%s_counts: element %d is %" PRId64, m->name, i,
                             m->counts[i]);
    return OATO_OK;
}

oato_status magnitudes_check(const struct neurons *n, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < n->n_magnitudes; i++)
        if (check_quantiles(&n->magnitudes[i], status, err) ||
            check_counts(&n->magnitudes[i], status, err))
            return err->status;
    return OATO_OK;
}
