/*
 * answers.c - llama.cpp's options that oato-plan has no counterpart of, each refused with a hint at
 * what to use instead, as oato-run does. Those that mean the same here are rows of main.c's table.
 */
#include "solver/verbs.h"

#define PLACED                                                                                     \
    "the plan decides what runs on a GPU: --budget DEVICE=BYTES and --devices LIST limit it"
#define KV_TYPE "--kv TYPE sets the type of both keys and values"
#define RUNS    "this only plans; it is an option of oato-run"
#define THREADS "the profile has them: oato-profile --threads N"

#define ANSWER(name, text)                                                                         \
    {                                                                                              \
        name, 0, OPT_ANSWER, NULL, text, 0                                                         \
    }

const struct option_row plan_answers[PLAN_ANSWERS] = {
    ANSWER("ngl", PLACED),
    ANSWER("gpu-layers", PLACED),
    ANSWER("n-gpu-layers", PLACED),
    ANSWER("ot", PLACED),
    ANSWER("override-tensor", PLACED),
    ANSWER("cmoe", PLACED),
    ANSWER("cpu-moe", PLACED),
    ANSWER("ncmoe", PLACED),
    ANSWER("n-cpu-moe", PLACED),
    ANSWER("ts", PLACED),
    ANSWER("tensor-split", PLACED),
    ANSWER("sm", PLACED),
    ANSWER("split-mode", PLACED),
    ANSWER("mg", PLACED),
    ANSWER("main-gpu", PLACED),
    ANSWER("fit", PLACED),
    ANSWER("nkvo", PLACED),
    ANSWER("no-kv-offload", PLACED),
    ANSWER("dev", "--devices LIST names the devices to plan for"),
    ANSWER("device", "--devices LIST names the devices to plan for"),
    ANSWER("ctk", KV_TYPE),
    ANSWER("ctv", KV_TYPE),
    ANSWER("cache-type-k", KV_TYPE),
    ANSWER("cache-type-v", KV_TYPE),
    ANSWER("ub", "--ubatch N sets the maximum tokens per step"),
    ANSWER("ubatch-size", "--ubatch N sets the maximum tokens per step"),
    ANSWER("batch-size", "--ubatch N sets the maximum tokens per step, -b N the sequences at once"),
    ANSWER("np", "-b N sets the sequences at once"),
    ANSWER("parallel", "-b N sets the sequences at once"),
    {"threads", 't', OPT_ANSWER, NULL, THREADS, 0},
    ANSWER("tb", THREADS),
    ANSWER("threads-batch", THREADS),
    ANSWER("fa", "flash attention is always on"),
    ANSWER("flash-attn", "flash attention is always on"),
    ANSWER("mlock", RUNS),
    ANSWER("mmap", RUNS),
    ANSWER("no-mmap", RUNS),
    ANSWER("temp", RUNS),
    ANSWER("seed", RUNS),
    ANSWER("s", RUNS),
    ANSWER("f", "--prompt N is a number of tokens; a text is read by oato-run -f"),
    ANSWER("file", "--prompt N is a number of tokens; a text is read by oato-run -f"),
    ANSWER("st", RUNS),
    ANSWER("single-turn", RUNS),
    ANSWER("cnv", RUNS),
    ANSWER("conversation", RUNS),
    ANSWER("no-cnv", RUNS),
    ANSWER("no-conversation", RUNS),
    ANSWER("keep", RUNS),
    ANSWER("jinja", RUNS),
    ANSWER("hf", "the model must be a local file; download the GGUF first"),
    ANSWER("hf-repo", "the model must be a local file; download the GGUF first"),
};
