/*
 * training_internal.h - training a predictor of a layer's active neurons from what calibration
 * recorded (train.c).
 *
 * A predictor is a low-rank product beside the feed-forward block (Deja Vu, PowerInfer section 5):
 * neuron i is predicted active when (up relu(down x) + bias)[i] > 0, where x is the block's input.
 * Its threshold is folded into the bias.
 */
#ifndef OATO_TRAINING_INTERNAL_H
#define OATO_TRAINING_INTERNAL_H

#include "base/base.h"

/* What a layer did at each token of a text, in the order of the text. Borrowed. */
struct training_samples {
    int64_t tokens;
    int32_t k, neurons;    /* width of the block's input; multiples of 32 */
    const uint16_t *input; /* F16 [tokens][k] */
    /* F16 [tokens][neurons]: magnitude of what the neuron hands to the down product, 0: silent */
    const uint16_t *mass;
};

struct training_options {
    int threads; /* of OpenBLAS; the result's bits depend on their number */
    uint64_t seed;
    int epochs;        /* most; training stops when the held-out text no longer gains */
    double recall;     /* of the active neurons' mass on held-out text, e.g. 0.95 */
    double most_share; /* of the predictor's weights in those of the block, e.g. 0.1 */
    bool gated;        /* the block has gate, up and down, else up and down */
};

struct predictor {
    int32_t k, rank, neurons; /* rank: a multiple of 32 */
    float *down;              /* [rank][k] */
    float *up;                /* [neurons][rank] */
    float *bias;              /* [neurons] */
    /* On held-out text, with weights as Q8_0 keeps them. */
    double recall;    /* share of the mass in neurons predicted active */
    double predicted; /* share of neurons predicted active */
    double active;    /* share of neurons that are */
};

/* Called after each epoch of each rank that is tried; false: stop with OATO_NEGATIVE. */
typedef bool training_report_fn(void *user, int32_t rank, int epoch, double recall,
                                double predicted);

/* Trains predictors of several ranks, beginning with one that follows from the layer's sparsity and
 * skew, and keeps the one of least cost: weights of predictor and block that a token reads. The
 * last tenth of the text is held out. Weights are rounded to what Q8_0 can hold, so that storing
 * them as Q8_0 loses nothing. The same arguments give the same bits. predictor_free releases out.
 * OATO_EUSAGE: fewer than 256 tokens, or a layer in which nothing is active, or a block so small
 * that no predictor is within most_share. */
oato_status predictor_train(const struct training_samples *samples,
                            const struct training_options *options, training_report_fn *report,
                            void *user, struct predictor *out, struct oato_error *err);
void predictor_free(struct predictor *p);

/* The rank that training begins with: width / 4 for a dense layer, less with sparsity (PowerInfer
 * 5.1: sparser layers need smaller predictors) and with skew (what few neurons do is easily
 * predicted). active: share of active neurons; top: share of activations by the most active fifth.
 */
int32_t training_first_rank(int32_t k, double active, double top);

#endif
