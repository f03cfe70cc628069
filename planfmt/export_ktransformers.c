/*
 * export_ktransformers.c - a plan as the YAML rules of ktransformers. The first rule applies whose
 * regular expression matches a module's name and whose class, if any, is the module's; it sets the
 * class to run the module as, and its device. Attention and KV need a GPU: each layer belongs to
 * one, consecutive layers move from GPU to GPU (`transfer_map`), and only matrices
 * (KLinearCPUInfer) and experts (KExpertsCPU) can run on the CPU, returning results to the layer's
 * GPU. A matrix on another GPU than its layer's cannot be expressed.
 */
#include "planfmt/exporter_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Classes of an architecture there; NULL: it needs none. */
static const struct family {
    const char *architecture;
    const char *rope, *rope_as;
    const char *attention_as;
    const char *model_as;
    const char *experts, *experts_as; /* the block around router and experts */
} families[] = {
    {"llama", "ktransformers.models.modeling_llama.LlamaRotaryEmbedding",
     "operators.RoPE.RotaryEmbeddingV2", "operators.attention.KLlamaAttention",
     "operators.models.KLlamaModel", NULL, NULL},
    {"qwen3moe", "ktransformers.models.modeling_qwen2_moe.Qwen2MoeRotaryEmbedding",
     "operators.RoPE.RotaryEmbedding", NULL, "operators.models.KQwen2MoeModel",
     "ktransformers.models.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
     "operators.experts.KQwen3MoeSparseMoeBlock"},
};

/* Tensors that are matrices of a layer, and the modules that hold them. */
static const struct {
    const char *tensor, *module;
} matrices[] = {{"attn_q.weight", "self_attn.q_proj"}, {"attn_k.weight", "self_attn.k_proj"},
                {"attn_v.weight", "self_attn.v_proj"}, {"attn_output.weight", "self_attn.o_proj"},
                {"ffn_gate.weight", "mlp.gate_proj"},  {"ffn_up.weight", "mlp.up_proj"},
                {"ffn_down.weight", "mlp.down_proj"}};

static const char *module_of(const char *tensor)
{
    for (size_t i = 0; i < ARRAY_LEN(matrices); i++)
        if (!strcmp(matrices[i].tensor, tensor))
            return matrices[i].module;
    return NULL;
}

static bool is_experts(const char *tensor)
{
    const size_t n = strlen(tensor), m = strlen("_exps.weight");
    return n > m && !strcmp(tensor + n - m, "_exps.weight");
}

/* ------------------------------------------------------------------------------- checks ---- */

static const struct family *find_family(const struct exporter *x, struct oato_error *err)
{
    const char *name = x->model->shape.architecture;
    struct text known;
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (!strcmp(families[i].architecture, name))
            return &families[i];
    text_init(&known);
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        text_printf(&known, "%s%s", i ? ", " : "", families[i].architecture);
    oato_fail(err, OATO_EUSAGE, "ktransformers has no rules for architecture '%s'; known: %s", name,
              or_empty(known.data));
    text_free(&known);
    return NULL;
}

static bool is_gpu_name(const char *s)
{
    return !strncmp(s, "cuda:", 5) && s[5] && strspn(s + 5, "0123456789") == strlen(s + 5);
}

/* The accelerators that the plan uses, in order; *n of them. */
static oato_status find_gpus(const struct exporter *x, int32_t *gpus, int32_t *n,
                             struct oato_error *err)
{
    *n = 0;
    if (strcmp(x->names[x->host], "cpu") != 0)
        return oato_fail(err, OATO_EUSAGE, "ktransformers names the host cpu, not '%.60s'",
                         x->names[x->host]);
    for (int32_t d = 0; d < x->plan->n_devices; d++) {
        if (!x->used[d] || d == x->host)
            continue;
        if (!is_gpu_name(x->names[d]))
            return oato_fail(err, OATO_EUSAGE,
                             "ktransformers names its devices cuda:0, cuda:1 ..., not '%.60s'; "
                             "give a name with --device-name %s=cuda:0",
                             x->names[d], x->plan->devices[d].id);
        gpus[(*n)++] = d;
    }
    return *n ? OATO_OK
              : oato_fail(err, OATO_EUSAGE, "the plan uses no GPU, which ktransformers needs");
}

/* -------------------------------------------------------------------------------- layers --- */

/* A layer goes where most of its tensors on GPUs are, above all its KV; the output's device is that
 * of the last layer. */
static oato_status choose_layers(struct exporter *x, const int32_t *gpus, int32_t n_gpus,
                                 struct oato_error *err)
{
    enum { KV_COST = 1000 };
    int32_t *cost = arena_alloc(&x->arena, (size_t)x->n_layers * (size_t)n_gpus, sizeof *cost);
    if (!cost)
        return oato_fail_memory(err, (size_t)x->n_layers * sizeof *cost, "an export");
    for (int32_t i = 0; i < x->n_layers; i++)
        for (int32_t r = 0; r < n_gpus; r++)
            if (x->wanted[i] != x->host && x->wanted[i] != gpus[r])
                cost[i * n_gpus + r] += KV_COST;
    for (size_t t = 0; t < gguf_tensor_count(x->model->gguf); t++) {
        const char *rest;
        int32_t layer;
        const int32_t device = x->tensor[t];
        if (device == NOWHERE || device == x->host ||
            !export_layer_of(gguf_tensor_at(x->model->gguf, t)->name, &layer, &rest) ||
            layer >= x->n_layers)
            continue;
        for (int32_t r = 0; r < n_gpus; r++)
            cost[layer * n_gpus + r] += device != gpus[r];
    }
    if (export_choose(x, gpus, n_gpus, x->n_layers, cost, err))
        return err->status;
    x->layer[x->n_layers] = x->layer[x->n_layers - 1];
    return OATO_OK;
}

/* ------------------------------------------------------------------------ what is missing -- */

/* Matrices, experts and the output matrix; what a bias is beside goes with its matrix. */
static bool can_be_on_cpu(const char *rest)
{
    const size_t n = strlen(rest);
    return module_of(rest) || is_experts(rest) || (n > 5 && !strcmp(rest + n - 5, ".bias")) ||
           !strcmp(rest, "output.weight") || !strcmp(rest, "token_embd.weight");
}

static bool is_lost(const struct exporter *x, size_t t, struct tensor_group *group)
{
    const char *rest;
    int32_t layer;
    if (!export_planned(x, t, &layer, &rest) || x->tensor[t] == x->layer[layer])
        return false;
    group->device = x->tensor[t];
    group->key = x->layer[layer];
    return group->device != x->host || !can_be_on_cpu(rest);
}

static oato_status list_lost_tensors(const struct exporter *x, struct oato_error *err)
{
    struct tensor_group *all;
    size_t n;
    oato_status status = export_group(x, is_lost, &all, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        text_printf(x->lost, "%s", all[i].name);
        for (char *s = all[i].layers.data; s && *s; s++)
            *s = *s == '|' ? ' ' : *s;
        if (all[i].layers.len)
            text_printf(x->lost, " of layers %s", all[i].layers.data);
        text_printf(x->lost, " is planned on %s; it stays with its layer on %s\n",
                    export_name(x, all[i].device), export_name(x, all[i].key));
    }
    export_groups_free(all, n);
    return status;
}

static void list_lost_request(const struct exporter *x)
{
    const struct plan_request *q = &x->plan->request;
    if (q->kv != DT_F16)
        text_printf(x->lost, "KV of type %s; ktransformers keeps it in half precision\n",
                    dtype_name(q->kv));
    if (q->batch > 1)
        text_printf(x->lost, "%d sequences at once; these rules serve one\n", q->batch);
    if (!gguf_tensor(x->model->gguf, "output.weight"))
        text_printf(x->lost, "the output matrix is the embedding; ktransformers looks for "
                             "output.weight in the file\n");
}

/* --------------------------------------------------------------------------------- rules --- */

/* Layers of a device, as the inside of a pattern; empty: it has none. */
static struct text layers_of(const struct exporter *x, int32_t device)
{
    struct text layers;
    text_init(&layers);
    for (int32_t i = 0; i < x->n_layers; i++)
        if (x->layer[i] == device)
            text_printf(&layers, "%s%d", layers.len ? "|" : "", i);
    return layers;
}

/* Begins a rule for modules of some layers, or of none (NULL). */
static void open_rule(const struct exporter *x, const char *layers, const char *name,
                      const char *class)
{
    text_printf(x->command, "- match:\n    name: '");
    if (layers)
        text_printf(x->command, "^model\\.layers\\.(%s)\\.", layers);
    text_printf(x->command, "%s'\n", name);
    if (class)
        text_printf(x->command, "    class: %s\n", class);
    text_printf(x->command, "  replace:\n");
}

static void add_devices(const struct exporter *x, const char *class, const char *generate,
                        const char *prefill)
{
    text_printf(x->command, "    class: %s%s\n    kwargs:\n", class ? "ktransformers." : "",
                class ? class : "default");
    text_printf(x->command, "      generate_device: '%s'\n      prefill_device: '%s'\n", generate,
                prefill);
}

static void add_operators(const struct exporter *x, const char *generate, const char *prefill)
{
    text_printf(x->command, "      generate_op: %s\n      prefill_op: %s\n", generate, prefill);
}

/* A rule for modules that need nothing but a device. */
static void write_rule(const struct exporter *x, const char *layers, int32_t device,
                       const char *behind, const char *class, const char *replace)
{
    open_rule(x, layers, behind, class);
    add_devices(x, replace, export_name(x, device), export_name(x, device));
}

static void write_linear(const struct exporter *x, const char *layers, const char *name,
                         bool on_cpu, int32_t gpu)
{
    const char *there = export_name(x, gpu), *device = on_cpu ? export_name(x, x->host) : there;
    open_rule(x, layers, name, "torch.nn.Linear");
    add_devices(x, "operators.linear.KTransformersLinear", device, device);
    if (on_cpu) {
        add_operators(x, "KLinearCPUInfer", "KLinearCPUInfer");
        text_printf(x->command, "      out_device: '%s'\n", there);
    } else {
        add_operators(x, "KLinearMarlin", "KLinearTorch");
    }
}

static bool is_cpu_matrix(const struct exporter *x, size_t t, struct tensor_group *group)
{
    const char *rest;
    int32_t layer;
    if (!export_planned(x, t, &layer, &rest) || x->tensor[t] != x->host || !module_of(rest))
        return false;
    group->device = x->host;
    group->key = x->layer[layer];
    return true;
}

static oato_status write_cpu_matrices(const struct exporter *x, struct oato_error *err)
{
    struct tensor_group *all;
    size_t n;
    oato_status status = export_group(x, is_cpu_matrix, &all, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        struct text name;
        if (all[i].written)
            continue;
        text_init(&name);
        text_printf(&name, "(");
        for (size_t j = i; j < n; j++) {
            if (!export_same_layers(&all[i], &all[j]))
                continue;
            text_printf(&name, j > i ? "|" : "");
            export_escape(&name, module_of(all[j].name));
            all[j].written = true;
        }
        text_printf(&name, ")$");
        write_linear(x, all[i].layers.data, name.data, true, all[i].key);
        text_free_part(&name, x->command);
    }
    export_groups_free(all, n);
    return status;
}

/* All matrices of the layers that no rule before took. */
static void write_gpu_matrices(const struct exporter *x, const char *layers, int32_t gpu)
{
    struct text name;
    text_init(&name);
    text_printf(&name, "(");
    for (size_t i = 0; i < ARRAY_LEN(matrices); i++) {
        text_printf(&name, i ? "|" : "");
        export_escape(&name, matrices[i].module);
    }
    text_printf(&name, ")$");
    write_linear(x, layers, name.data, false, gpu);
    text_free_part(&name, x->command);
}

static bool is_expert_tensor(const struct exporter *x, size_t t, struct tensor_group *group)
{
    const char *rest;
    int32_t layer;
    if (!export_planned(x, t, &layer, &rest) || strcmp(rest, "ffn_down_exps.weight") != 0)
        return false;
    group->device = x->tensor[t] == x->host ? x->host : x->layer[layer];
    group->key = x->layer[layer];
    return true;
}

/* A layer's experts are one module: where their last matrix is planned. */
static oato_status write_experts(const struct exporter *x, struct oato_error *err)
{
    struct tensor_group *all;
    size_t n;
    oato_status status = export_group(x, is_expert_tensor, &all, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        const bool on_cpu = all[i].device == x->host;
        open_rule(x, all[i].layers.data, "mlp\\.experts$", NULL);
        add_devices(x, "operators.experts.KTransformersExperts", export_name(x, all[i].device),
                    export_name(x, all[i].key));
        add_operators(x, on_cpu ? "KExpertsCPU" : "KExpertsMarlin", "KExpertsTorch");
        text_printf(x->command, "      out_device: '%s'\n  recursive: False\n",
                    export_name(x, all[i].key));
    }
    export_groups_free(all, n);
    return status;
}

/* Gate and up of a layer that are not where down is. */
static void list_divided_experts(const struct exporter *x)
{
    for (int32_t i = 0; i < x->n_layers; i++) {
        const struct gguf_tensor *first = gguf_tensor_at(x->model->gguf, 0), *t[3];
        static const char *const names[] = {"down", "gate", "up"};
        for (int k = 0; k < 3; k++) {
            char name[GGUF_MAX_NAME + 1];
            snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", i, names[k]);
            t[k] = gguf_tensor(x->model->gguf, name);
            if (k && t[0] && t[k] && x->tensor[t[k] - first] != x->tensor[t[0] - first])
                text_printf(x->lost, "%s is planned on %s; it will be where %s is\n", name,
                            export_name(x, x->tensor[t[k] - first]), t[0]->name);
        }
    }
}

static void write_ends(const struct exporter *x)
{
    const int32_t gpu = x->layer[x->n_layers];
    const char *host = export_name(x, x->host);
    open_rule(x, NULL, "^model\\.embed_tokens$", NULL);
    add_devices(x, NULL, host, host);
    write_rule(x, NULL, gpu, "^model\\.norm$", NULL, NULL);
    write_linear(x, NULL, "^lm_head$", x->wanted[x->n_layers] == x->host, gpu);
}

/* Where the hidden state changes the GPU. It begins on the first. */
static void write_model(const struct exporter *x, const struct family *family)
{
    int32_t before = -1;
    write_rule(x, NULL, x->layer[0], "^model$", NULL, family->model_as);
    /* spelt as they spell it; 0: whole prompts do not stream the layers through the GPU */
    text_printf(x->command, "      per_layer_prefill_intput_threshold: 0\n");
    if (!strcmp(export_name(x, x->layer[0]), "cuda:0"))
        before = x->layer[0];
    for (int32_t i = 0, any = 0; i < x->n_layers; i++) {
        if (x->layer[i] == before)
            continue;
        before = x->layer[i];
        text_printf(x->command, "%s        %d: '%s'\n", any++ ? "" : "      transfer_map:\n", i,
                    export_name(x, before));
    }
}

static oato_status write_rules(const struct exporter *x, const struct family *family,
                               const int32_t *gpus, int32_t n_gpus, struct oato_error *err)
{
    const struct plan_request *q = &x->plan->request;
    text_printf(x->command, "# for --optimize_config_path, with --cache_lens %d --chunk_size %d\n",
                q->context, q->ubatch);
    if (write_cpu_matrices(x, err) || write_experts(x, err))
        return err->status;
    for (int32_t r = 0; r < n_gpus; r++) {
        struct text layers = layers_of(x, gpus[r]);
        if (layers.len) {
            write_rule(x, layers.data, gpus[r], "", family->rope, family->rope_as);
            if (family->attention_as)
                write_rule(x, layers.data, gpus[r], "self_attn$", NULL, family->attention_as);
            if (family->experts)
                write_rule(x, layers.data, gpus[r], "mlp$", family->experts, family->experts_as);
            write_gpu_matrices(x, layers.data, gpus[r]);
        }
        text_free_part(&layers, x->command);
    }
    write_ends(x);
    write_model(x, family);
    for (int32_t r = 0; r < n_gpus; r++) {
        struct text layers = layers_of(x, gpus[r]);
        if (layers.len)
            write_rule(x, layers.data, gpus[r], "", NULL, NULL);
        text_free_part(&layers, x->command);
    }
    return x->command->failed || x->lost->failed ? oato_fail_memory(err, x->command->len, "rules")
                                                 : OATO_OK;
}

oato_status export_ktransformers(struct exporter *x, struct oato_error *err)
{
    const struct family *family = find_family(x, err);
    int32_t n_gpus, *gpus = arena_alloc(&x->arena, (size_t)x->plan->n_devices, sizeof *gpus);
    if (!gpus)
        return oato_fail_memory(err, sizeof *gpus, "an export");
    if (!family || find_gpus(x, gpus, &n_gpus, err) || choose_layers(x, gpus, n_gpus, err))
        return err->status;
    export_list_lost_kv(x);
    list_lost_request(x);
    list_divided_experts(x);
    if (list_lost_tensors(x, err))
        return err->status;
    return write_rules(x, family, gpus, n_gpus, err);
}
