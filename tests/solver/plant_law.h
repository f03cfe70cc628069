/*
 * plant_law.h - gives a model of random weights (oato-make-model) neurons that fire as often as a
 * sidecar says, so that what counts, predicts or skips neurons can be held to a known truth.
 */
#ifndef OATO_PLANT_LAW_H
#define OATO_PLANT_LAW_H

#include "planfmt/planfmt.h"

/* Changes the file's weights and sets n's hash of them. For llama with feed_forward_activation=relu
 * and for opt, with matrices of F32, F16, Q8_0 or Q4_0; others are OATO_EUSAGE and stay as they
 * are. The frequencies are those over tokens drawn at random from the whole vocabulary. rank: the
 * first matrices are such that a predictor of that rank, a multiple of 32, which n gets, names the
 * neurons that fire, but for rounding; 0: they stay random. */
oato_status plant_law(const char *model, struct neurons *n, int32_t rank, struct oato_error *err);

#endif
