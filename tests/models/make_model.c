/*
 * make_model.c - oato-make-model, a program for tests and experiments: writes a model of random
 * weights and any shape, in seconds even for a billion parameters (random_model.h).
 */
#include "tests/models/random_model.h"

#include <string.h>

enum {
    ID_SHAPE,
    ID_ARCH,
    ID_KEYS,
    ID_OPTIONAL,
    ID_LAYERS,
    ID_WIDTH,
    ID_FFN,
    ID_HEADS,
    ID_KV_HEADS,
    ID_HEAD_DIM,
    ID_EXPERTS,
    ID_EXPERTS_USED,
    ID_VOCAB,
    ID_CONTEXT,
    ID_TYPE,
    ID_SEED,
    ID_TIED,
    ID_HEADER_ONLY,
    ID_NO_TOKENIZER,
    ID_SPLIT,
    ID_OUTPUT,
    ID_HELP
};

static const struct option_row rows[] = {
    {"shape", 0, OPT_VALUE, "NAME",
     "architecture and sizes of a known model: NAME[:TYPE] of oato-plan --shape list, or a NAME of "
     "tests/models/shapes; options behind it change them",
     ID_SHAPE},
    {"arch", 0, OPT_VALUE, "NAME", "any that oato runs (default llama)", ID_ARCH},
    {"keys", 0, OPT_VALUE, "WORDS",
     "more keys of the architecture, 'KEY=VALUE ...', or other values of its usual ones; a number "
     "with a dot is a float32, a list has commas (of numbers, or of true and false), a word is a "
     "string; they come behind a shape's, and those of further --keys behind these",
     ID_KEYS},
    {"optional", 0, OPT_VALUE, "WORDS",
     "optional tensors to make: those with one of the words in their name", ID_OPTIONAL},
    {"layers", 0, OPT_VALUE, "N", "blocks (default 2)", ID_LAYERS},
    {"width", 0, OPT_VALUE, "N", "embedding length (default 64)", ID_WIDTH},
    {"ffn", 0, OPT_VALUE, "N", "neurons of a layer, or of an expert (default 128)", ID_FFN},
    {"heads", 0, OPT_VALUE, "N", "attention heads (default 4)", ID_HEADS},
    {"kv-heads", 0, OPT_VALUE, "N", "key and value heads (default 2)", ID_KV_HEADS},
    {"head-dim", 0, OPT_VALUE, "N", "dimensions of a head (default width / heads)", ID_HEAD_DIM},
    {"experts", 0, OPT_VALUE, "N", "experts of a layer; qwen3moe needs some", ID_EXPERTS},
    {"experts-used", 0, OPT_VALUE, "N", "of them for a token", ID_EXPERTS_USED},
    {"vocab", 0, OPT_VALUE, "N", "tokens (default 512)", ID_VOCAB},
    {"context", 0, OPT_VALUE, "N", "context length in tokens (default 512)", ID_CONTEXT},
    {"type", 0, OPT_VALUE, "TYPE",
     "type of all matrices: F32 F16 BF16 Q4_0 ... MXFP4, or a mix, Q4_K_M Q5_K_S ... (default F32)",
     ID_TYPE},
    {"seed", 0, OPT_VALUE, "N", "of the weights (default 1)", ID_SEED},
    {"tied", 0, OPT_FLAG, NULL, "no output matrix of its own", ID_TIED},
    {"header-only", 0, OPT_FLAG, NULL, "shapes without weights", ID_HEADER_ONLY},
    {"no-tokenizer", 0, OPT_FLAG, NULL, "leave the vocabulary out", ID_NO_TOKENIZER},
    {"split", 0, OPT_VALUE, "N", "write N files, FILE-00001-of-0000N.gguf ... (default 1)",
     ID_SPLIT},
    {"output", 'o', OPT_VALUE, "FILE", "what to write; also taken as an operand", ID_OUTPUT},
    {"help", 'h', OPT_FLAG, NULL, "print this", ID_HELP},
    {NULL, 0, OPT_FLAG, NULL, NULL, 0},
};

/* Behind those that there are. */
static bool add_keys(struct random_model *m, const char *more)
{
    static char keys[2][SHAPE_KEYS];
    static int turn;
    char *to = keys[turn ^= 1];
    const int n = snprintf(to, SHAPE_KEYS, "%s %s", m->keys ? m->keys : "", more);
    m->keys = to;
    return n < SHAPE_KEYS;
}

/* False with a message when the value is not one. */
static bool set_option(struct random_model *m, int id, const struct options *o,
                       struct oato_error *err)
{
    int64_t *const counts[] = {[ID_LAYERS] = &m->layers,     [ID_WIDTH] = &m->width,
                               [ID_FFN] = &m->ffn,           [ID_HEADS] = &m->heads,
                               [ID_KV_HEADS] = &m->kv_heads, [ID_HEAD_DIM] = &m->head_dim,
                               [ID_EXPERTS] = &m->experts,   [ID_EXPERTS_USED] = &m->experts_used,
                               [ID_VOCAB] = &m->vocab,       [ID_CONTEXT] = &m->context,
                               [ID_SPLIT] = &m->parts};
    int64_t seed = 0;
    bool ok = true;
    switch (id) {
    case ID_SHAPE: ok = random_model_set_shape(m, o->value); break;
    case ID_ARCH: m->architecture = o->value; break;
    case ID_KEYS: ok = add_keys(m, o->value); break;
    case ID_OPTIONAL: m->optional = o->value; break;
    case ID_TYPE: ok = random_model_set_type(m, o->value); break;
    case ID_SEED:
        ok = parse_i64(o->value, 0, INT64_MAX, &seed);
        m->seed = (uint64_t)seed;
        break;
    case ID_TIED: m->tied = true; break;
    case ID_HEADER_ONLY: m->header_only = true; break;
    case ID_NO_TOKENIZER: m->tokenizer = false; break;
    default: ok = parse_i64(o->value, 1, INT32_MAX, counts[id]); break;
    }
    if (!ok)
        oato_fail(err, OATO_EUSAGE, "%s: '%s' is no value for it; %s", o->name, o->value,
                  id == ID_SHAPE ? "tests/models/shapes has some, oato-plan --shape list the others"
                                 : "--help lists them");
    return ok;
}

int main(int argc, char **argv)
{
    struct random_model m = random_model_default();
    struct oato_error err = {0};
    struct options o;
    const char *path = NULL;
    int id;
    program_begin("oato-make-model");
    options_init(&o, rows, argc - 1, argv + 1);
    while ((id = options_next(&o, &err)) != OPT_END) {
        if (id == ID_HELP) {
            puts("usage: oato-make-model [options] FILE.gguf");
            options_help(rows, stdout);
            stdout_check(&err);
            goto out;
        }
        if (id == ID_OUTPUT || id == OPT_OPERAND)
            path = o.value;
        else if (id == OPT_ERROR || !set_option(&m, id, &o, &err))
            goto out;
    }
    if (!path)
        oato_fail(&err, OATO_EUSAGE, "name the file to write; --help lists the options");
    else
        random_model_save(&m, path, &err);
out:
    if (err.status)
        fprintf(stderr, "oato-make-model: %s\n", err.text);
    return (int)err.status;
}
