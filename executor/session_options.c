/*
 * session_options.c - how options of sessions are read, and llama.cpp's options without a direct
 * equivalent, each refused with a hint at what to use instead. Those that mean the same here are
 * aliases in the tables.
 */
#include "executor/session_options.h"

#include <string.h>

#define ON_GPU                                                                                     \
    "a GPU is used by itself, as a plan says that is made for it; oato-plan makes others, for "    \
    "--plan"
#define KV_TYPE "--kv TYPE sets the type of both keys and values"
#define IN_MEMORY                                                                                  \
    "weights are prepared once and stay in memory; --prepared-cache makes later starts fast"
#define LOCAL     "the model must be a local file; download the GGUF first"
#define TEXT_ONLY "models read only text here"
#define NO_DRAFT  "drafts are not supported"
#define CHAT      "use oato-run chat MODEL.gguf for a conversation"
#define TEMPLATE  "the model's own template is used; --chat-template NAME chooses another"

const struct option_row llama_options[LLAMA_OPTIONS] = {
    OPTION_ANSWER("ngl", ON_GPU),
    OPTION_ANSWER("gpu-layers", ON_GPU),
    OPTION_ANSWER("n-gpu-layers", ON_GPU),
    OPTION_ANSWER("ot", ON_GPU),
    OPTION_ANSWER("override-tensor", ON_GPU),
    OPTION_ANSWER("cmoe", ON_GPU),
    OPTION_ANSWER("cpu-moe", ON_GPU),
    OPTION_ANSWER("ncmoe", ON_GPU),
    OPTION_ANSWER("n-cpu-moe", ON_GPU),
    OPTION_ANSWER("ts", ON_GPU),
    OPTION_ANSWER("tensor-split", ON_GPU),
    OPTION_ANSWER("sm", ON_GPU),
    OPTION_ANSWER("split-mode", ON_GPU),
    OPTION_ANSWER("mg", ON_GPU),
    OPTION_ANSWER("main-gpu", ON_GPU),
    OPTION_ANSWER("fit", ON_GPU),
    OPTION_ANSWER("fitt", ON_GPU),
    OPTION_ANSWER("fit-target", ON_GPU),
    OPTION_ANSWER("fitc", ON_GPU),
    OPTION_ANSWER("fit-ctx", ON_GPU),
    OPTION_ANSWER("nkvo", ON_GPU),
    OPTION_ANSWER("no-kv-offload", ON_GPU),
    OPTION_ANSWER("dev", "--devices LIST opens devices, --plan places the model on them"),
    OPTION_ANSWER("device", "--devices LIST opens devices, --plan places the model on them"),
    OPTION_ANSWER("ctk", KV_TYPE),
    OPTION_ANSWER("ctv", KV_TYPE),
    OPTION_ANSWER("cache-type-k", KV_TYPE),
    OPTION_ANSWER("cache-type-v", KV_TYPE),
    OPTION_ANSWER("mlock", IN_MEMORY),
    OPTION_ANSWER("mmap", IN_MEMORY),
    OPTION_ANSWER("no-mmap", IN_MEMORY),
    OPTION_ANSWER("lm", IN_MEMORY),
    OPTION_ANSWER("load-mode", IN_MEMORY),
    /* With one dash these would be -m with a value. */
    OPTION_ANSWER("mu", LOCAL),
    OPTION_ANSWER("model-url", LOCAL),
    OPTION_ANSWER("mm", TEXT_ONLY),
    OPTION_ANSWER("mmproj", TEXT_ONLY),
    OPTION_ANSWER("md", NO_DRAFT),
    OPTION_ANSWER("model-draft", NO_DRAFT),
    OPTION_ANSWER("mli", CHAT),
    OPTION_ANSWER("multiline-input", CHAT),
    OPTION_ANSWER("lora", "adapters are not supported; merge it into the model first"),
    OPTION_ANSWER("cnv", CHAT),
    OPTION_ANSWER("conversation", CHAT),
    OPTION_ANSWER("i", CHAT),
    OPTION_ANSWER("interactive", CHAT),
    OPTION_ANSWER("no-cnv", "a prompt is continued as it is unless --chat is given: leave it out"),
    OPTION_ANSWER("no-conversation",
                  "a prompt is continued as it is unless --chat is given: leave it out"),
    OPTION_ANSWER("jinja", TEMPLATE),
    OPTION_ANSWER("st", "oato-run --chat -p TEXT answers once"),
    OPTION_ANSWER("single-turn", "oato-run --chat -p TEXT answers once"),
    OPTION_ANSWER("keep", "an answer ends where the context is full; -c N allows a longer one"),
    /* bench has a -b of its own, which comes first */
    {"batch-size", 'b', OPT_ANSWER, NULL, "--ubatch N sets the maximum tokens per step", 0},
    OPTION_ANSWER("tb", "-t N sets the threads for prompts, too"),
    OPTION_ANSWER("threads-batch", "-t N sets the threads for prompts, too"),
    OPTION_ANSWER("np", "repeat -p to answer several prompts together"),
    OPTION_ANSWER("parallel", "repeat -p to answer several prompts together"),
    OPTION_ANSWER("hff", "-hf OWNER/REPO:FILE.gguf names a file"),
    OPTION_ANSWER("hf-file", "-hf OWNER/REPO:FILE.gguf names a file"),
    OPTION_ANSWER("hft",
                  "set HF_TOKEN, or write the token into the file that huggingface-cli uses"),
    OPTION_ANSWER("hf-token",
                  "set HF_TOKEN, or write the token into the file that huggingface-cli uses"),
};

oato_status session_take_int(const struct options *o, void *to, struct oato_error *err)
{
    const int64_t least = (int64_t)o->of->least, most = (int64_t)o->of->most;
    int64_t v;
    if (!parse_count(o->value, least, most, &v))
        return oato_fail(err, OATO_EUSAGE, "%s wants a whole number from %lld to %lld, not '%s'",
                         o->name, (long long)least, (long long)most, o->value);
    *(int32_t *)to = (int32_t)v;
    return OATO_OK;
}

oato_status session_take_float(const struct options *o, void *to, struct oato_error *err)
{
    double v;
    if (!parse_f64(o->value, o->of->least, o->of->most, &v))
        return oato_fail(err, OATO_EUSAGE, "%s wants a number from %.10g to %.10g, not '%s'",
                         o->name, o->of->least, o->of->most, o->value);
    *(float *)to = (float)v;
    return OATO_OK;
}

oato_status session_take_kv(const struct options *o, void *to, struct oato_error *err)
{
    struct engine_options *e = to;
    e->kv_given = dtype_parse_kv(o->value, &e->kv);
    return e->kv_given
               ? OATO_OK
               : oato_fail(err, OATO_EUSAGE, "--kv wants f16, q8_0 or f32, not '%s'", o->value);
}

oato_status session_take_breaker(const struct options *o, void *to, struct oato_error *err)
{
    struct dry_options *dry = to;
    if (dry->n_breakers == DRY_BREAKERS)
        return oato_fail(err, OATO_EUSAGE, "more than %d %s; give fewer", DRY_BREAKERS, o->name);
    dry->breaker[dry->n_breakers++] = strcmp(o->value, "none") != 0 ? o->value : "";
    return OATO_OK;
}

/* Attention here never materialises the full score matrix. */
oato_status session_take_flash(const struct options *o, void *to, struct oato_error *err)
{
    (void)to;
    const bool off = o->value && (!strcmp(o->value, "off") || !strcmp(o->value, "0"));
    return off ? oato_fail(err, OATO_EUSAGE, "%s: flash attention is always on here", o->name)
               : OATO_OK;
}

oato_status session_take_seed(const struct options *o, void *to, struct oato_error *err)
{
    int64_t v;
    if (!parse_i64(o->value, -1, INT64_MAX, &v))
        return oato_fail(err, OATO_EUSAGE,
                         "--seed wants a whole number from 0 on, or -1 for a random one, not '%s'",
                         o->value);
    *(uint64_t *)to = (uint64_t)v;
    return OATO_OK;
}
