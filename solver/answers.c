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

const struct option_row plan_answers[PLAN_ANSWERS] = {
    OPTION_ANSWER("ngl", PLACED),
    OPTION_ANSWER("gpu-layers", PLACED),
    OPTION_ANSWER("n-gpu-layers", PLACED),
    OPTION_ANSWER("ot", PLACED),
    OPTION_ANSWER("override-tensor", PLACED),
    OPTION_ANSWER("cmoe", PLACED),
    OPTION_ANSWER("cpu-moe", PLACED),
    OPTION_ANSWER("ncmoe", PLACED),
    OPTION_ANSWER("n-cpu-moe", PLACED),
    OPTION_ANSWER("ts", PLACED),
    OPTION_ANSWER("tensor-split", PLACED),
    OPTION_ANSWER("sm", PLACED),
    OPTION_ANSWER("split-mode", PLACED),
    OPTION_ANSWER("mg", PLACED),
    OPTION_ANSWER("main-gpu", PLACED),
    OPTION_ANSWER("fit", PLACED),
    OPTION_ANSWER("fitt", PLACED),
    OPTION_ANSWER("fit-target", PLACED),
    OPTION_ANSWER("fitc", PLACED),
    OPTION_ANSWER("fit-ctx", PLACED),
    OPTION_ANSWER("nkvo", PLACED),
    OPTION_ANSWER("no-kv-offload", PLACED),
    OPTION_ANSWER("dev", "--devices LIST names the devices to plan for"),
    OPTION_ANSWER("device", "--devices LIST names the devices to plan for"),
    OPTION_ANSWER("ctk", KV_TYPE),
    OPTION_ANSWER("ctv", KV_TYPE),
    OPTION_ANSWER("cache-type-k", KV_TYPE),
    OPTION_ANSWER("cache-type-v", KV_TYPE),
    OPTION_ANSWER("ub", "--ubatch N sets the maximum tokens per step"),
    OPTION_ANSWER("ubatch-size", "--ubatch N sets the maximum tokens per step"),
    OPTION_ANSWER("batch-size",
                  "--ubatch N sets the maximum tokens per step, -b N the sequences at once"),
    OPTION_ANSWER("np", "-b N sets the sequences at once"),
    OPTION_ANSWER("parallel", "-b N sets the sequences at once"),
    {"threads", 't', OPT_ANSWER, NULL, THREADS, 0},
    OPTION_ANSWER("tb", THREADS),
    OPTION_ANSWER("threads-batch", THREADS),
    OPTION_ANSWER("fa", "flash attention is always on"),
    OPTION_ANSWER("flash-attn", "flash attention is always on"),
    OPTION_ANSWER("mlock", RUNS),
    OPTION_ANSWER("mmap", RUNS),
    OPTION_ANSWER("no-mmap", RUNS),
    /* With one dash these would be -m with a value. */
    OPTION_ANSWER("mm", RUNS),
    OPTION_ANSWER("md", RUNS),
    OPTION_ANSWER("mli", RUNS),
    OPTION_ANSWER("temp", RUNS),
    OPTION_ANSWER("seed", RUNS),
    OPTION_ANSWER("s", RUNS),
    OPTION_ANSWER("f", "--prompt N is a number of tokens; a text is read by oato-run -f"),
    OPTION_ANSWER("file", "--prompt N is a number of tokens; a text is read by oato-run -f"),
    OPTION_ANSWER("st", RUNS),
    OPTION_ANSWER("single-turn", RUNS),
    OPTION_ANSWER("cnv", RUNS),
    OPTION_ANSWER("conversation", RUNS),
    OPTION_ANSWER("no-cnv", RUNS),
    OPTION_ANSWER("no-conversation", RUNS),
    OPTION_ANSWER("keep", RUNS),
    OPTION_ANSWER("jinja", RUNS),
    OPTION_ANSWER("hf", "oato pull OWNER/REPO[:QUANT] fetches a model and prints its path"),
    OPTION_ANSWER("hf-repo", "oato pull OWNER/REPO[:QUANT] fetches a model and prints its path"),
};
