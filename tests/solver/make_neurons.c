/*
 * make_neurons.c - oato-make-neurons, a program for tests and experiments: writes a made-up neurons
 * sidecar for a model, also for a header-only one (power_law.h), or plants it in the model
 * (plant_law.h).
 */
#include "tests/solver/plant_law.h"
#include "tests/solver/power_law.h"

enum {
    ID_HOT,
    ID_MEAN,
    ID_SPREAD,
    ID_EXPERTS,
    ID_SEED,
    ID_PLANT,
    ID_PREDICTORS,
    ID_COUNTED,
    ID_OUTPUT,
    ID_HELP
};

static const struct option_row rows[] = {
    {"hot", 0, OPT_VALUE, "S", "share of the neurons that cause 80 % of activations (0.26)",
     ID_HOT},
    {"mean", 0, OPT_VALUE, "S", "mean share of tokens in which a neuron fires (0.1)", ID_MEAN},
    {"spread", 0, OPT_VALUE, "S", "how far layers' means differ from it, relatively (0)",
     ID_SPREAD},
    {"hot-experts", 0, OPT_VALUE, "S", "share of the experts that get 80 % of tokens (0.5)",
     ID_EXPERTS},
    {"seed", 0, OPT_VALUE, "N", "of the order in each layer (1)", ID_SEED},
    {"plant", 0, OPT_FLAG, NULL,
     "change the model's weights, so that its neurons do fire so: of oato-make-model, opt, or "
     "llama "
     "with --keys feed_forward_activation=relu",
     ID_PLANT},
    {"predictors", 0, OPT_VALUE, "RANK",
     "with --plant: neurons that predictors of this rank, a multiple of 32, can guess; with them",
     ID_PREDICTORS},
    {"counted", 0, OPT_FLAG, NULL, "as of a text of which half is counted", ID_COUNTED},
    {"output", 'o', OPT_VALUE, "FILE", "the sidecar to write", ID_OUTPUT},
    {"help", 'h', OPT_FLAG, NULL, "print this", ID_HELP},
    {NULL, 0, OPT_FLAG, NULL, NULL, 0},
};

static bool set_option(struct power_law *law, int32_t *rank, int id, const struct options *o,
                       struct oato_error *err)
{
    double *const shares[] = {[ID_HOT] = &law->hot,
                              [ID_MEAN] = &law->mean,
                              [ID_SPREAD] = &law->spread,
                              [ID_EXPERTS] = &law->hot_experts};
    int64_t seed = 0;
    bool ok;
    if (id == ID_PREDICTORS)
        return parse_i64(o->value, 32, 4096, &seed) && seed % 32 == 0
                   ? (*rank = (int32_t)seed, true)
                   : (oato_fail(err, OATO_EUSAGE, "%s: '%s' is no multiple of 32", o->name,
                                o->value),
                      false);
    if (id == ID_SEED) {
        ok = parse_i64(o->value, 0, INT64_MAX, &seed);
        law->seed = (uint64_t)seed;
    } else {
        ok = parse_f64(o->value, id == ID_SPREAD ? 0 : 1e-6, 1, shares[id]);
    }
    if (!ok)
        oato_fail(err, OATO_EUSAGE, "%s: '%s' is no %s", o->name, o->value,
                  id == ID_SEED ? "number" : "share from 0 to 1");
    return ok;
}

/* What counting adds to frequencies, for one layer. */
static void add_counts(struct neurons *n, struct neurons_magnitudes *m)
{
    static int64_t counts[NEURONS_BINS];
    static float quantiles[NEURONS_QUANTILES];
    for (int i = 0; i < NEURONS_BINS; i++)
        counts[i] = i / 3;
    for (int i = 0; i < NEURONS_QUANTILES; i++)
        quantiles[i] = neurons_quantile(counts, i / 100.0);
    m[0] = (struct neurons_magnitudes){"blk.0.ffn_act", quantiles, counts};
    m[1] = (struct neurons_magnitudes){"blk.0.attn_q.in", quantiles, NULL};
    n->magnitudes = m;
    n->n_magnitudes = 2;
    n->activation = "silu";
    n->level = 0.7;
    n->layers[0].ffn_threshold = 0.25F;
    n->tokens = 1000;
    n->text_tokens = 2000;
    n->text_hash = 1;
}

static oato_status make(const char *model, const char *path, const struct power_law *law,
                        bool plants, int32_t rank, bool counted, struct oato_error *err)
{
    struct neurons_magnitudes m[2];
    struct gguf *g;
    struct neurons n;
    oato_status status = gguf_open(model, &g, err);
    if (status)
        return status;
    status = power_law_neurons(g, law, &n, err);
    gguf_close(g);
    if (status)
        return status;
    if (plants)
        status = plant_law(model, &n, rank, err);
    if (counted)
        add_counts(&n, m);
    if (!status)
        status = neurons_save(&n, path, err);
    neurons_free(&n);
    return status;
}

int main(int argc, char **argv)
{
    struct power_law law = power_law_default();
    struct oato_error err = {0};
    struct options o;
    const char *path = NULL, *model = NULL;
    bool plants = false, counted = false;
    int32_t rank = 0;
    int id;
    options_init(&o, rows, argc - 1, argv + 1);
    while ((id = options_next(&o, &err)) != OPT_END) {
        if (id == ID_HELP) {
            puts("usage: oato-make-neurons [options] MODEL.gguf -o MODEL.neurons.gguf");
            options_help(rows, stdout);
            return OATO_OK;
        }
        if (id == ID_PLANT)
            plants = true;
        else if (id == ID_COUNTED)
            counted = true;
        else if (id == ID_OUTPUT || id == OPT_OPERAND)
            *(id == ID_OUTPUT ? &path : &model) = o.value;
        else if (id == OPT_ERROR || !set_option(&law, &rank, id, &o, &err))
            goto out;
    }
    if (!path || !model)
        oato_fail(&err, OATO_EUSAGE, "name the model and, with -o, the file to write; see --help");
    else if (rank && !plants)
        oato_fail(&err, OATO_EUSAGE, "--predictors needs --plant");
    else
        make(model, path, &law, plants, rank, counted, &err);
out:
    if (err.status)
        fprintf(stderr, "oato-make-neurons: %s\n", err.text);
    return (int)err.status;
}
