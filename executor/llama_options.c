/*
 * llama_options.c - llama.cpp options without a direct equivalent; each is refused with a hint at
 * what to use instead. Options that mean the same here are aliases in main.c's table.
 */
#include "executor/run.h"

#define ON_GPU  "a plan decides what runs on a GPU: make one with oato-plan, give it with --plan"
#define KV_TYPE "--kv TYPE sets the type of both keys and values"
#define IN_MEMORY                                                                                  \
    "weights are prepared once and stay in memory; --prepared-cache makes later starts fast"
#define CHAT     "use oato-run chat MODEL.gguf for a conversation"
#define TEMPLATE "the model's own template is used; --chat-template NAME chooses another"

#define ANSWER(name, text)                                                                         \
    {                                                                                              \
        name, 0, OPT_ANSWER, NULL, text, 0                                                         \
    }

const struct option_row llama_options[LLAMA_OPTIONS] = {
    ANSWER("ngl", ON_GPU),
    ANSWER("gpu-layers", ON_GPU),
    ANSWER("n-gpu-layers", ON_GPU),
    ANSWER("ot", ON_GPU),
    ANSWER("override-tensor", ON_GPU),
    ANSWER("cmoe", ON_GPU),
    ANSWER("cpu-moe", ON_GPU),
    ANSWER("ncmoe", ON_GPU),
    ANSWER("n-cpu-moe", ON_GPU),
    ANSWER("ts", ON_GPU),
    ANSWER("tensor-split", ON_GPU),
    ANSWER("sm", ON_GPU),
    ANSWER("split-mode", ON_GPU),
    ANSWER("mg", ON_GPU),
    ANSWER("main-gpu", ON_GPU),
    ANSWER("fit", ON_GPU),
    ANSWER("nkvo", ON_GPU),
    ANSWER("no-kv-offload", ON_GPU),
    ANSWER("dev", "--devices LIST opens devices, --plan places the model on them"),
    ANSWER("device", "--devices LIST opens devices, --plan places the model on them"),
    ANSWER("ctk", KV_TYPE),
    ANSWER("ctv", KV_TYPE),
    ANSWER("cache-type-k", KV_TYPE),
    ANSWER("cache-type-v", KV_TYPE),
    ANSWER("mlock", IN_MEMORY),
    ANSWER("mmap", IN_MEMORY),
    ANSWER("no-mmap", IN_MEMORY),
    ANSWER("lm", IN_MEMORY),
    ANSWER("cnv", CHAT),
    ANSWER("conversation", CHAT),
    ANSWER("i", CHAT),
    ANSWER("interactive", CHAT),
    ANSWER("no-cnv", "a prompt is continued as it is unless --chat is given: leave it out"),
    ANSWER("no-conversation",
           "a prompt is continued as it is unless --chat is given: leave it out"),
    ANSWER("jinja", TEMPLATE),
    ANSWER("chat-template-file", TEMPLATE),
    /* bench has a -b of its own, which comes first */
    {"batch-size", 'b', OPT_ANSWER, NULL, "--ubatch N sets the maximum tokens per step", 0},
    ANSWER("tb", "-t N sets the threads for prompts, too"),
    ANSWER("threads-batch", "-t N sets the threads for prompts, too"),
    ANSWER("np", "repeat -p to answer several prompts together"),
    ANSWER("parallel", "repeat -p to answer several prompts together"),
    ANSWER("hf", "the model must be a local file; download the GGUF first"),
    ANSWER("hf-repo", "the model must be a local file; download the GGUF first"),
};
