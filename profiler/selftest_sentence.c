/*
 * selftest_sentence.c - a model on the device says what it says on the CPU: all operators together,
 * with their copies, KV and events, as the engine runs them. The device is given the CPU's tokens
 * and asked for each next one, so that one near-tie does not make all that follows incomparable;
 * how far its probabilities are from the CPU's is the verdict.
 *
 * Without a model one of two layers is made up.
 */
#include "profiler/selftest_internal.h"
#include "text/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 24, SENTENCE = 16, CONTEXT = 256 };
#define KL_MOST                                                                                    \
    1e-2 /* 8-bit inputs of one or the other give less than a tenth; what is wrong, 1              \
          */

/* --------------------------------------------------------------------------------- a model - */

static oato_status model_fill(struct gguf_writer *w, struct gguf_tensor *t, size_t n, uint8_t *data)
{
    for (size_t i = 0; i < n; i++) {
        const bool matrix = t[i].ne[1] * t[i].ne[2] > 1;
        random_blocks_fill(t[i].dtype, data, t[i].bytes, !matrix,
                           matrix ? 1 / sqrt((double)t[i].ne[0]) : 0.1, 7 + i);
        gguf_writer_tensor(w, t[i].name, t[i].dtype, t[i].n_dims, t[i].ne, data);
        data += t[i].bytes;
    }
    return OATO_OK;
}

static oato_status model_make_up(struct model **out, struct oato_error *err)
{
    const struct shape_spec shape = {.architecture = "llama",
                                     .layers = 2,
                                     .width = 256,
                                     .ffn = 512,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .vocab = 512,
                                     .context = CONTEXT,
                                     .dtype = DT_Q8_0};
    struct arena arena;
    struct gguf_tensor *tensors = NULL;
    struct gguf *g = NULL;
    size_t n = 0, bytes = 0;
    uint8_t *data = NULL;
    arena_init(&arena);
    struct gguf_writer *w = gguf_writer_create();
    oato_status status =
        w ? shape_tensors(&shape, &arena, &tensors, &n, err) : oato_fail_memory(err, 1, "a model");
    for (size_t i = 0; !status && i < n; i++)
        bytes += tensors[i].bytes;
    if (!status && !(data = calloc(bytes + 1, 1)))
        status = oato_fail_memory(err, bytes, "a model");
    if (!status) {
        shape_put_keys(&shape, "made up", w);
        status = model_fill(w, tensors, n, data);
    }
    if (!status)
        status = gguf_writer_open(w, "the made-up model", &g, err);
    if (!status)
        status = model_from_gguf(g, out, err);
    gguf_writer_free(w);
    free(data);
    arena_free(&arena);
    return status;
}

/* ----------------------------------------------------------------------------------- a plan - */

static bool device_fuses(void *user, const struct graph *g, struct graph_match m)
{
    const struct oato_device *d = user;
    const struct graph_op fused = graph_fused(g, m);
    return d->ops->supports(d, &fused.op);
}

/* All that the device runs is there, the rest on the CPU. */
static oato_status plan_make(const struct model *m, const struct oato_device *d,
                             const struct device_info *info, struct plan *p, struct graph *fused,
                             struct oato_error *err)
{
    plan_init(p);
    p->tool = p->solver = "selftest";
    p->numerics[PHASE_PREFILL] = p->numerics[PHASE_DECODE] = "f32";
    p->structure_hash = gguf_structure_hash(m->gguf);
    p->request = (struct plan_request){.prompt = PROMPT,
                                       .generate = SENTENCE,
                                       .context = CONTEXT,
                                       .batch = 1,
                                       .ubatch = PROMPT,
                                       .kv = DT_F16};
    const size_t n = (size_t)graph_matches(&m->graph, NULL, 0) + 1;
    struct graph_match *taken = arena_alloc(&p->arena, n, sizeof *taken);
    p->fusions = arena_alloc(&p->arena, n, sizeof *p->fusions);
    p->devices = arena_alloc(&p->arena, 2, sizeof *p->devices);
    p->parts = arena_alloc(&p->arena, (size_t)m->graph.n_ops, sizeof *p->parts);
    p->kv = arena_alloc(&p->arena, (size_t)m->graph.n_layers + 1, sizeof *p->kv);
    if (!taken || !p->fusions || !p->devices || !p->parts || !p->kv)
        return oato_fail_memory(err, n * sizeof *taken, "a plan");
    p->n_devices = 2;
    snprintf(p->devices[0].id, sizeof p->devices[0].id, "cpu:0");
    snprintf(p->devices[0].kind, sizeof p->devices[0].kind, "cpu");
    p->devices[0].is_host = true;
    snprintf(p->devices[1].id, sizeof p->devices[1].id, "%s", info->id);
    snprintf(p->devices[1].kind, sizeof p->devices[1].kind, "%s", info->kind);
    p->n_fusions = graph_cover(&m->graph, device_fuses, (void *)(uintptr_t)d, taken);
    for (int32_t i = 0; i < p->n_fusions; i++)
        p->fusions[i] = (struct plan_fusion){op_fusions[taken[i].fusion].name,
                                             m->graph.ops[taken[i].first].name};
    if (graph_fuse(&m->graph, taken, p->n_fusions, fused, err))
        return err->status;
    for (int32_t i = 0; i < fused->n_ops; i++) {
        const struct graph_op *o = &fused->ops[i];
        const struct oato_op op = graph_op_with_kv(o, DT_F16);
        if (!d->ops->supports(d, &op))
            continue;
        if (op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, op.kv_heads, 1};
        p->parts[p->n_parts++] = (struct plan_part){
            .op = o->name, .end = op.n, .phases = (1 << PHASE_COUNT) - 1, .device = 1, .home = 1};
    }
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ a sentence - */

/* What an engine says: a row of logits for each token. */
struct speech {
    float *logits; /* SENTENCE x vocab */
    int32_t token[SENTENCE], vocab;
};

/* said: the tokens that go on; NULL: its own. */
static oato_status speak(const struct model *m, const struct plan *p,
                         const struct engine_options *options, const int32_t *said,
                         struct speech *out, struct oato_error *err)
{
    struct engine *e = NULL;
    struct engine_stats stats;
    int32_t seq, prompt[PROMPT];
    oato_status status = engine_open(m, p, options, NULL, NULL, &e, err);
    if (!status)
        status = engine_seq_create(e, &seq, err);
    if (status)
        goto out;
    engine_get_stats(e, &stats);
    out->vocab = stats.vocab;
    out->logits = calloc((size_t)SENTENCE * (size_t)stats.vocab, sizeof *out->logits);
    if (!out->logits) {
        status = oato_fail_memory(err, (size_t)stats.vocab * sizeof(float), "logits");
        goto out;
    }
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)((uint32_t)(i + 1) * 2654435761u % (uint32_t)stats.vocab);
    for (int32_t i = 0; i < SENTENCE && !status; i++) {
        const struct engine_input next = {.seq = seq,
                                          .ids = i ? (said ? said : out->token) + i - 1 : prompt,
                                          .n = i ? 1 : PROMPT,
                                          .logits = LOGITS_LAST,
                                          .prompt = !i};
        float *row = out->logits + (size_t)i * (size_t)stats.vocab;
        status = engine_step(e, &next, 1, err);
        if (!status && oato_interrupted)
            status = oato_fail(err, OATO_NEGATIVE, "interrupted");
        if (!status) {
            memcpy(row, engine_logits(e, 0), (size_t)stats.vocab * sizeof *row);
            out->token[i] = logits_likeliest(row, stats.vocab);
        }
    }
out:
    engine_close(e);
    return status;
}

/* How far the second speech is from the first one at token i. */
static double divergence(const struct speech speech[2], int32_t i)
{
    const int32_t vocab = speech[0].vocab;
    const float *row[2];
    double sum[2];
    for (int d = 0; d < 2; d++) {
        row[d] = speech[d].logits + (size_t)i * (size_t)vocab;
        sum[d] = logits_log_sum(row[d], vocab);
    }
    return logits_divergence(row[0], sum[0], row[1], sum[1], vocab);
}

static void sentence_add(struct selftest *s, const struct model *m, const struct speech speech[2],
                         bool *right)
{
    double kl = 0;
    int32_t same = 0;
    for (int32_t i = 0; i < SENTENCE; i++) {
        const double d = divergence(speech, i);
        kl = d >= 0 && d <= kl ? kl : d; /* what is no number stays */
        kl = isnan(d) ? INFINITY : kl;
        same += speech[0].token[i] == speech[1].token[i];
    }
    *right = kl <= KL_MOST;
    json_open(&s->json, "sentence", '{');
    json_add(&s->json, JSON("model", s->o->model ? m->shape.architecture : "made up"),
             JSON("tokens", (uint64_t)SENTENCE), JSON("same", (uint64_t)same),
             JSON("divergence", isfinite(kl) ? kl : 1e9), JSON("limit", KL_MOST),
             json_bool("right", *right));
    for (int d = 0; d < 2; d++) {
        json_open(&s->json, d ? "said" : "expected", '[');
        for (int32_t i = 0; i < SENTENCE; i++)
            json_add(&s->json, JSON(NULL, (uint64_t)speech[d].token[i]));
        json_close(&s->json, ']');
    }
    json_close(&s->json, '}');
    text_printf(&s->people, "%-10s %d of %d tokens as the CPU says them, KL %.2g (limit %.2g)%s\n",
                "sentence", (int)same, SENTENCE, kl, KL_MOST, *right ? "" : ": WRONG");
}

oato_status selftest_sentence(struct selftest *s, const struct device_info *info, bool *right,
                              struct oato_error *err)
{
    struct model *m = NULL;
    struct plan plan;
    struct graph fused = {0};
    struct speech speech[2] = {{NULL}};
    struct oato_device *d = NULL;
    struct text devices;
    text_init(&devices);
    plan_init(&plan);
    /* the CPU is compared with the definition of its kernels */
    struct engine_options options = {.devices = "cpu",
                                     .isa = info->is_host ? "ref" : NULL,
                                     .threads = s->o->threads,
                                     .context = CONTEXT,
                                     .ubatch = PROMPT,
                                     .kv = DT_F16,
                                     .kv_given = true};
    progress_begin(&s->progress, "self-test: a sentence", 1);
    oato_status status = s->o->model ? model_open(s->o->model, &m, err) : model_make_up(&m, err);
    if (!status)
        status = speak(m, NULL, &options, NULL, &speech[0], err);
    progress_update(&s->progress, 0.5, NULL);
    options.isa = NULL;
    if (!info->is_host) {
        if (!status)
            status = device_open(s->o->device, 0, NULL, &d, err);
        if (!status)
            status = plan_make(m, d, info, &plan, &fused, err);
        if (d)
            d->ops->close(d);
        text_printf(&devices, "cpu,%s", s->o->device);
        options.devices = or_empty(devices.data);
    }
    if (!status)
        status = speak(m, info->is_host ? NULL : &plan, &options, speech[0].token, &speech[1], err);
    if (!status)
        sentence_add(s, m, speech, right);
    progress_end(&s->progress);
    free(speech[0].logits);
    free(speech[1].logits);
    graph_free(&fused);
    plan_free(&plan);
    text_free(&devices);
    model_close(m);
    return status;
}
