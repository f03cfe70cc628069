/*
 * neurons.c - the neurons sidecar of a model (docs/neurons-format.md): a separate GGUF with
 * how often each FFN neuron and each expert fires, or at least their order. Reading checks every
 * number and a checksum of all data; what is written reads back the same. Tensors of unknown names
 * are skipped: later versions may add them.
 */
#include "planfmt/planfmt_internal.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "oato.neurons." name

enum { LAYERS_MAX = 4096, COUNT_MAX = 1 << 26 };

void neurons_init(struct neurons *n)
{
    memset(n, 0, sizeof *n);
    arena_init(&n->arena);
}

void neurons_free(struct neurons *n)
{
    arena_free(&n->arena);
    memset(n, 0, sizeof *n);
}

const struct neurons_layer *neurons_layer(const struct neurons *n, int32_t layer)
{
    if (layer < 0 || layer >= n->n_layers)
        return NULL;
    const struct neurons_layer *l = &n->layers[layer];
    return l->ffn_order || l->exp_order ? l : NULL;
}

/* Arrays are of 4-byte numbers. Orders beside frequencies follow from them. */
static uint64_t array_hash(const void *array, int32_t n)
{
    return array ? hash_bytes(array, (size_t)n * 4) : 0;
}

uint64_t neurons_hash(const struct neurons *n)
{
    const uint64_t model[] = {n->structure_hash, n->content_hash};
    uint64_t hash = hash_bytes(model, sizeof model);
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        const uint64_t layer[] = {hash,
                                  (uint64_t)l->n_ff,
                                  array_hash(l->ffn_freq, l->n_ff),
                                  l->ffn_freq ? 0 : array_hash(l->ffn_order, l->n_ff),
                                  (uint64_t)l->ffn_hot,
                                  (uint64_t)l->n_experts,
                                  array_hash(l->exp_freq, l->n_experts)};
        hash = hash_bytes(layer, sizeof layer);
    }
    return hash ? hash : 1;
}

/* -------------------------------------------------------------------------------- order ---- */

static int more_active(const void *a, const void *b, void *freq)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const float *f = freq;
    const int order = order_f64(f[y], f[x]);
    return order ? order : order_i64(x, y);
}

void neurons_order(const float *freq, int32_t n, int32_t *order)
{
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, more_active, (void *)freq);
}

/* ------------------------------------------------------------------------------- checks ---- */

/* The first entry that is out of range or there for the second time, -1 when there is none, -2 when
 * memory is short. */
static int32_t bad_order(const int32_t *order, int32_t n)
{
    bool *seen = calloc((size_t)n + 1, sizeof *seen);
    int32_t bad = seen ? -1 : -2;
    for (int32_t i = 0; seen && bad < 0 && i < n; i++) {
        if (order[i] < 0 || order[i] >= n || seen[order[i]])
            bad = i;
        else
            seen[order[i]] = true;
    }
    free(seen);
    return bad;
}

static oato_status check_freq(const float *freq, int32_t n, int32_t layer, const char *what,
                              oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < n; i++)
        if (!(freq[i] >= 0 && freq[i] <= 1))
            return oato_fail(err, status, "blk.%d.%s: element %d is %g; allowed: 0 to 1", layer,
                             what, i, (double)freq[i]);
    return OATO_OK;
}

static oato_status check_layer(const struct neurons_layer *l, int32_t layer, oato_status status,
                               struct oato_error *err)
{
    if (l->n_ff < 0 || l->n_ff > COUNT_MAX || l->n_experts < 0 || l->n_experts > COUNT_MAX ||
        (!l->n_ff && (l->ffn_freq || l->ffn_order)) || (!l->n_experts && l->exp_freq))
        return oato_fail(err, status, "blk.%d: %d neurons and %d experts; allowed: 1 to %d", layer,
                         l->n_ff, l->n_experts, COUNT_MAX);
    if (l->ffn_freq && check_freq(l->ffn_freq, l->n_ff, layer, "ffn_freq", status, err))
        return err->status;
    if (l->exp_freq && check_freq(l->exp_freq, l->n_experts, layer, "exp_freq", status, err))
        return err->status;
    const int32_t bad = l->ffn_order ? bad_order(l->ffn_order, l->n_ff) : -1;
    if (bad == -2)
        return oato_fail_memory(err, (size_t)l->n_ff, "an order of neurons");
    if (bad >= 0)
        return oato_fail(
            err, status,
            "blk.%d.ffn_order: entry %d is %d; each of 0 to %d must appear exactly once", layer,
            bad, l->ffn_order[bad], l->n_ff - 1);
    if (!(l->ffn_threshold >= 0 && l->ffn_threshold <= FLT_MAX))
        return oato_fail(err, status, "blk.%d: the threshold of its neurons is %g", layer,
                         (double)l->ffn_threshold);
    if (l->ffn_hot < 0 || l->ffn_hot > (l->ffn_order || l->ffn_freq ? l->n_ff : 0))
        return oato_fail(err, status, "blk.%d: %d hot neurons of %d", layer, l->ffn_hot, l->n_ff);
    return OATO_OK;
}

static oato_status check_all(const struct neurons *n, oato_status status, struct oato_error *err)
{
    if (n->n_layers < 1 || n->n_layers > LAYERS_MAX)
        return oato_fail(err, status, "%d layers; allowed: 1 to %d", n->n_layers, LAYERS_MAX);
    for (int32_t i = 0; i < n->n_layers; i++)
        if (check_layer(&n->layers[i], i, status, err))
            return err->status;
    if (!(n->level >= 0 && n->level <= 1))
        return oato_fail(err, status, KEY("level") " is %g; allowed: 0 to 1", n->level);
    return magnitudes_check(n, status, err) ? err->status : predictors_check(n, status, err);
}

/* The checksum: of every tensor, in file order, its name and its bytes. */
static void sum_add(struct hash_stream *sum, const char *name, const void *data, size_t bytes)
{
    hash_update(sum, name, strlen(name));
    hash_update(sum, data, bytes);
}

/* ------------------------------------------------------------------------------ reading ---- */

struct reader {
    const struct gguf *file;
    struct neurons *out;
};

int64_t neurons_layer_of(const char *name, const char *kind)
{
    char again[GGUF_MAX_NAME + 1];
    int64_t layer = -1;
    if (sscanf(name, "blk.%6" SCNd64 ".", &layer) != 1)
        return -1;
    snprintf(again, sizeof again, "blk.%" PRId64 ".%s", layer, kind);
    return strcmp(again, name) ? -1 : layer;
}

oato_status neurons_check_kind(const struct gguf *g, const char *what, const char *architecture,
                               struct oato_error *err)
{
    static const struct gguf_key_type keys[] = {{"general.architecture", GGUF_WANT_STRING}};
    struct gguf_string s = {"", 0};
    if (gguf_check_keys(g, "", keys, ARRAY_LEN(keys), err))
        return err->status;
    gguf_get_string(g, "general.architecture", &s);
    if (s.len == strlen(architecture) && !memcmp(s.data, architecture, s.len))
        return OATO_OK;
    return oato_fail(err, OATO_EFILE, "not %s: general.architecture is '%.*s', not '%s'", what,
                     (int)min_i64((int64_t)s.len, 40), s.data, architecture);
}

oato_status neurons_read_u64(const struct gguf *g, const char *key, uint64_t *out,
                             struct oato_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return oato_fail(err, OATO_EFILE, "key %s is missing", key);
    if (gguf_value_check("", key, v, GGUF_WANT_U64, err))
        return err->status;
    memcpy(out, v->data, sizeof *out);
    return OATO_OK;
}

static oato_status read_keys(struct reader *r, struct oato_error *err)
{
    struct gguf_string s = {"", 0};
    static const struct gguf_key_type keys[] = {
        {KEY("version"), GGUF_WANT_INTEGER},
        {KEY("source"), GGUF_WANT_STRING},
        {KEY("activation"), GGUF_WANT_STRING},
        {KEY("level"), GGUF_WANT_NUMBER},
    };
    struct neurons *n = r->out;
    int64_t version = 0;
    if (neurons_check_kind(r->file, "a neurons sidecar", "oato.neurons", err) ||
        gguf_check_keys(r->file, "", keys, ARRAY_LEN(keys), err))
        return err->status;
    gguf_get_i64(r->file, KEY("version"), &version);
    if (version != NEURONS_VERSION)
        return oato_fail(err, OATO_EFILE,
                         KEY("version") " is %" PRId64
                                        "; this program reads %d: update oato, or make "
                                        "the sidecar again",
                         version, NEURONS_VERSION);
    if (gguf_header_only(r->file))
        return oato_fail(err, OATO_EFILE, "it has a header but no data");
    if (neurons_read_u64(r->file, KEY("structure_hash"), &n->structure_hash, err) ||
        neurons_read_u64(r->file, KEY("content_hash"), &n->content_hash, err) ||
        neurons_read_u64(r->file, KEY("tokens"), &n->tokens, err))
        return err->status;
    gguf_get_string(r->file, KEY("source"), &s);
    n->source = arena_strndup(&n->arena, s.data, s.len);
    s.len = 0;
    gguf_get_string(r->file, KEY("activation"), &s);
    n->activation = arena_strndup(&n->arena, s.data, s.len);
    if (!n->source || !n->activation)
        return oato_fail_memory(err, s.len, "a neurons sidecar");
    const struct gguf_value *level = gguf_find(r->file, KEY("level"));
    if (level)
        (void)gguf_value_f64(level, 0, &n->level);
    if (!gguf_find(r->file, KEY("text_hash")))
        return OATO_OK;
    if (neurons_read_u64(r->file, KEY("text_hash"), &n->text_hash, err))
        return err->status;
    return neurons_read_u64(r->file, KEY("text_tokens"), &n->text_tokens, err);
}

static oato_status check_sum(const struct reader *r, struct oato_error *err)
{
    uint64_t want = 0;
    if (!gguf_find(r->file, KEY("checksum")))
        return OATO_OK;
    if (neurons_read_u64(r->file, KEY("checksum"), &want, err))
        return err->status;
    struct hash_stream *sum = hash_create();
    if (!sum)
        return oato_fail_memory(err, 1, "a checksum");
    for (size_t i = 0; i < gguf_tensor_count(r->file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->file, i);
        sum_add(sum, t->name, t->data, t->bytes);
    }
    const uint64_t is = hash_digest(sum);
    hash_free(sum);
    return is == want
               ? OATO_OK
               : oato_fail(err, OATO_EFILE,
                           "damaged: the data has the checksum %016" PRIx64 ", not %016" PRIx64, is,
                           want);
}

enum tensor_kind { FFN_FREQ, FFN_ORDER, EXP_FREQ, KINDS };
static const struct {
    const char *name;
    oato_dtype dtype;
} kinds[KINDS] = {{"ffn_freq", DT_F32}, {"ffn_order", DT_I32}, {"exp_freq", DT_F32}};

/* KINDS: it is none of ours. */
static enum tensor_kind kind_of(const char *name, int64_t *layer)
{
    int k = 0;
    while (k < KINDS && (*layer = neurons_layer_of(name, kinds[k].name)) < 0)
        k++;
    return (enum tensor_kind)k;
}

static oato_status read_tensor(struct reader *r, const struct gguf_tensor *t, enum tensor_kind kind,
                               struct neurons_layer *l, struct oato_error *err)
{
    if (t->dtype != kinds[kind].dtype || t->n_dims != 1 || t->ne[0] > COUNT_MAX)
        return oato_fail(err, OATO_EFILE,
                         "%s: type %s, %d dimensions, the first of %" PRId64 "; allowed: one "
                         "dimension of %s up to %d",
                         t->name, dtype_name(t->dtype), t->n_dims, t->ne[0],
                         dtype_name(kinds[kind].dtype), COUNT_MAX);
    const int32_t n = (int32_t)t->ne[0];
    void *data = arena_alloc(&r->out->arena, (size_t)n, sizeof(float));
    int32_t *order = arena_alloc(&r->out->arena, (size_t)n, sizeof *order);
    if (!data || !order)
        return oato_fail_memory(err, t->bytes, "a neurons sidecar");
    memcpy(data, t->data, t->bytes);
    if (kind == FFN_ORDER)
        l->ffn_order = data;
    else if (check_freq(data, n, (int32_t)(l - r->out->layers), kinds[kind].name, OATO_EFILE, err))
        return err->status;
    else
        neurons_order(data, n, order);
    if (kind == EXP_FREQ) {
        l->exp_freq = data;
        l->exp_order = order;
        l->n_experts = n;
        return OATO_OK;
    }
    if (l->n_ff)
        return oato_fail(err, OATO_EFILE,
                         "%s: the layer has both frequencies and an order; keep one of them",
                         t->name);
    if (kind == FFN_FREQ) {
        l->ffn_freq = data;
        l->ffn_order = order;
    }
    l->n_ff = n;
    return OATO_OK;
}

/* An optional array of 4-byte numbers, one for each layer, into the member at an offset in these.
 */
static oato_status read_array(struct reader *r, const char *key, enum gguf_type type, size_t member,
                              struct oato_error *err)
{
    const struct gguf_value *v = gguf_find(r->file, key);
    if (!v)
        return OATO_OK;
    if (v->type != GGUF_ARRAY || v->elem != type || v->count != (uint64_t)r->out->n_layers)
        return oato_fail(err, OATO_EFILE, "%s is not an array of %d %s, one per layer", key,
                         r->out->n_layers, type == GGUF_I32 ? "int32" : "float32");
    for (int32_t i = 0; i < r->out->n_layers; i++)
        memcpy((char *)&r->out->layers[i] + member, v->data + (size_t)i * 4, 4);
    return OATO_OK;
}

static oato_status read_layers(struct reader *r, struct oato_error *err)
{
    const size_t n = gguf_tensor_count(r->file);
    int64_t layer, last = -1;
    for (size_t i = 0; i < n; i++) {
        const char *name = gguf_tensor_at(r->file, i)->name;
        if (kind_of(name, &layer) == KINDS)
            continue;
        if (layer >= LAYERS_MAX)
            return oato_fail(err, OATO_EFILE, "%s: layers from 0 to %d are allowed", name,
                             LAYERS_MAX - 1);
        last = max_i64(last, layer);
    }
    if (last < 0)
        return oato_fail(err, OATO_EFILE, "no tensor blk.N.ffn_freq, ffn_order or exp_freq");
    r->out->n_layers = (int32_t)last + 1;
    r->out->layers = arena_alloc(&r->out->arena, (size_t)r->out->n_layers, sizeof *r->out->layers);
    r->out->magnitudes = arena_alloc(&r->out->arena, n, sizeof *r->out->magnitudes);
    if (!r->out->layers || !r->out->magnitudes)
        return oato_fail_memory(err, (size_t)last * sizeof *r->out->layers, "a neurons sidecar");
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(r->file, i);
        const enum tensor_kind kind = kind_of(t->name, &layer);
        if (kind == KINDS ? magnitudes_read(r->out, t, r->out->n_layers, err) ||
                                predictors_read(r->out, t, err)
                          : read_tensor(r, t, kind, &r->out->layers[layer], err))
            return err->status;
    }
    const size_t hot = offsetof(struct neurons_layer, ffn_hot),
                 threshold = offsetof(struct neurons_layer, ffn_threshold);
    return read_array(r, KEY("ffn_hot"), GGUF_I32, hot, err) ||
                   read_array(r, KEY("ffn_threshold"), GGUF_F32, threshold, err)
               ? err->status
               : predictors_read_verdicts(r->out, gguf_find(r->file, KEY("predictors")), err);
}

/* Takes the open file over. */
static oato_status load(struct gguf *g, const char *name, struct neurons *out,
                        struct oato_error *err)
{
    struct reader r = {g, out};
    oato_status status = read_keys(&r, err);
    if (!status)
        status = check_sum(&r, err);
    if (!status)
        status = read_layers(&r, err);
    if (!status)
        status = check_all(out, OATO_EFILE, err);
    gguf_close(g);
    if (!status)
        return OATO_OK;
    neurons_free(out);
    return oato_fail_at(err, "%s", name);
}

oato_status neurons_load(const char *path, struct neurons *out, struct oato_error *err)
{
    struct gguf *g;
    neurons_init(out);
    const oato_status status = gguf_open(path, &g, err);
    return status ? status : load(g, path, out, err);
}

oato_status neurons_load_memory(const void *data, size_t bytes, const char *name,
                                struct neurons *out, struct oato_error *err)
{
    struct gguf *g;
    neurons_init(out);
    const oato_status status = gguf_open_memory(data, bytes, name, &g, err);
    return status ? status : load(g, name, out, err);
}

/* ------------------------------------------------------------------------------ writing ---- */

struct writer {
    struct gguf_writer *file;
    struct hash_stream *sum;
};

static void write_matrix(struct writer *w, const char *name, oato_dtype dtype, int32_t n_dims,
                         const int64_t *ne, const void *data)
{
    size_t row = 0;
    dtype_row_bytes(dtype, ne[0], &row);
    gguf_writer_tensor(w->file, name, dtype, n_dims, ne, data);
    sum_add(w->sum, name, data, row * (n_dims > 1 ? (size_t)ne[1] : 1));
}

static void write_tensor(struct writer *w, const char *name, oato_dtype dtype, int32_t n,
                         const void *data)
{
    write_matrix(w, name, dtype, 1, &(int64_t){n}, data);
}

static void write_kind(struct writer *w, int32_t layer, enum tensor_kind kind, int32_t n,
                       const void *data)
{
    char name[GGUF_MAX_NAME + 1];
    snprintf(name, sizeof name, "blk.%d.%s", layer, kinds[kind].name);
    write_tensor(w, name, kinds[kind].dtype, n, data);
}

static void write_u64(struct writer *w, const char *key, uint64_t value)
{
    gguf_writer_scalar(w->file, key, GGUF_U64, &value);
}

/* hot, threshold: room for one for each layer. */
static void write_layers(struct writer *w, const struct neurons *n, int32_t *hot, float *threshold)
{
    bool any_hot = false, any_threshold = false;
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        if (l->ffn_freq)
            write_kind(w, i, FFN_FREQ, l->n_ff, l->ffn_freq);
        else if (l->ffn_order)
            write_kind(w, i, FFN_ORDER, l->n_ff, l->ffn_order);
        if (l->exp_freq)
            write_kind(w, i, EXP_FREQ, l->n_experts, l->exp_freq);
        hot[i] = l->ffn_hot;
        threshold[i] = l->ffn_threshold;
        any_hot |= l->ffn_hot != 0;
        any_threshold |= l->ffn_threshold > 0;
    }
    if (any_hot)
        gguf_writer_array(w->file, KEY("ffn_hot"), GGUF_I32, hot, (uint64_t)n->n_layers);
    if (any_threshold)
        gguf_writer_array(w->file, KEY("ffn_threshold"), GGUF_F32, threshold,
                          (uint64_t)n->n_layers);
}

static void write_magnitudes(struct writer *w, const struct neurons_magnitudes *m)
{
    char name[GGUF_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s_quantiles", m->name);
    write_tensor(w, name, DT_F32, NEURONS_QUANTILES, m->quantiles);
    snprintf(name, sizeof name, "%s_counts", m->name);
    if (m->counts)
        write_tensor(w, name, DT_I64, NEURONS_BINS, m->counts);
}

static void write_predictor(struct writer *w, int32_t layer, const struct neurons_predictor *p)
{
    const struct gguf_tensor *const parts[PREDICT_PARTS] = {p->down, p->up, p->bias};
    char name[GGUF_MAX_NAME + 1];
    for (int i = 0; i < PREDICT_PARTS; i++) {
        snprintf(name, sizeof name, "blk.%d.%s", layer, predictor_part_name[i]);
        if (parts[i])
            write_matrix(w, name, parts[i]->dtype, parts[i]->n_dims, parts[i]->ne, parts[i]->data);
    }
}

/* What predictors do on held-out text: three numbers for each layer. */
static void write_predictors(struct writer *w, const struct neurons *n)
{
    float *numbers = calloc((size_t)n->n_layers * 3, sizeof *numbers);
    bool any = false;
    for (int32_t i = 0; i < n->n_layers && numbers; i++) {
        const struct neurons_predictor *p = n->layers[i].predictor;
        if (!p)
            continue;
        any = true;
        write_predictor(w, i, p);
        memcpy(numbers + (ptrdiff_t)3 * i, (float[]){p->recall, p->predicted, p->active},
               3 * sizeof *numbers);
    }
    if (any)
        gguf_writer_array(w->file, KEY("predictors"), GGUF_F32, numbers, (uint64_t)n->n_layers * 3);
    free(numbers);
}

/* What is known of how it was counted. */
static void write_counting(struct writer *w, const struct neurons *n)
{
    if (or_empty(n->activation)[0])
        gguf_writer_string(w->file, KEY("activation"), n->activation);
    if (n->level > 0)
        gguf_writer_scalar(w->file, KEY("level"), GGUF_F64, &n->level);
    if (!n->text_tokens)
        return;
    write_u64(w, KEY("text_hash"), n->text_hash);
    write_u64(w, KEY("text_tokens"), n->text_tokens);
}

oato_status neurons_save(const struct neurons *n, const char *path, struct oato_error *err)
{
    if (check_all(n, OATO_EUSAGE, err))
        return oato_fail_at(err, "%s", path);
    const struct neurons_layer *last = &n->layers[n->n_layers - 1];
    if (!last->ffn_freq && !last->ffn_order && !last->exp_freq)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: the last layer, %d, has no frequencies and no order", path,
                         n->n_layers - 1);
    oato_status status;
    int32_t *hot = calloc((size_t)n->n_layers, sizeof *hot);
    float *threshold = calloc((size_t)n->n_layers, sizeof *threshold);
    struct writer w = {gguf_writer_create(), hash_create()};
    if (!hot || !threshold || !w.file || !w.sum) {
        status = oato_fail_memory(err, 1, "a neurons sidecar");
        goto out;
    }
    gguf_writer_string(w.file, "general.architecture", "oato.neurons");
    gguf_writer_scalar(w.file, KEY("version"), GGUF_U32, &(uint32_t){NEURONS_VERSION});
    write_u64(&w, KEY("structure_hash"), n->structure_hash);
    write_u64(&w, KEY("content_hash"), n->content_hash);
    write_u64(&w, KEY("tokens"), n->tokens);
    gguf_writer_string(w.file, KEY("source"), or_empty(n->source));
    write_counting(&w, n);
    write_layers(&w, n, hot, threshold);
    for (int32_t i = 0; i < n->n_magnitudes; i++)
        write_magnitudes(&w, &n->magnitudes[i]);
    write_predictors(&w, n);
    write_u64(&w, KEY("checksum"), hash_digest(w.sum));
    status = gguf_writer_save(w.file, path, err);
out:
    if (w.sum)
        hash_free(w.sum);
    gguf_writer_free(w.file);
    free(hot);
    free(threshold);
    return status;
}

/* -------------------------------------------------------------------------------- model ---- */

/* Dimension `dim` of a tensor of the model's layer; 0: it has none. */
static int64_t dimension(const struct gguf *g, int32_t layer, const char *name, int dim)
{
    char full[GGUF_MAX_NAME + 1];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    const struct gguf_tensor *t = gguf_tensor(g, full);
    return t ? t->ne[dim] : 0;
}

oato_status neurons_check_model(const struct neurons *n, const struct gguf *g,
                                struct oato_error *err)
{
    const uint64_t structure = gguf_structure_hash(g), content = gguf_content_hash(g);
    if (structure != n->structure_hash)
        return oato_fail(err, OATO_EFILE,
                         "the neurons sidecar is for another model: its structure is %016" PRIx64
                         ", that of %s %016" PRIx64,
                         n->structure_hash, gguf_path(g), structure);
    if (content && n->content_hash && content != n->content_hash)
        return oato_fail(err, OATO_EFILE,
                         "the neurons sidecar is for other weights of this shape: its content is "
                         "%016" PRIx64 ", that of %s %016" PRIx64,
                         n->content_hash, gguf_path(g), content);
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        const int64_t n_ff = dimension(g, i, "ffn_down", 0),
                      n_experts = dimension(g, i, "ffn_gate_inp", 1);
        if ((l->ffn_order && l->n_ff != n_ff) || (l->exp_order && l->n_experts != n_experts))
            return oato_fail(err, OATO_EFILE,
                             "the neurons sidecar has %d neurons and %d experts in layer %d, %s "
                             "%" PRId64 " and %" PRId64,
                             l->ffn_order ? l->n_ff : 0, l->exp_order ? l->n_experts : 0, i,
                             gguf_path(g), n_ff, n_experts);
    }
    return predictors_check_model(n, g, err);
}
