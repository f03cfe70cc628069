/*
 * plant_guess.h - makes a matrix whose products a low-rank predictor can guess, and that predictor.
 */
#ifndef OATO_PLANT_GUESS_H
#define OATO_PLANT_GUESS_H

#include "planfmt/planfmt.h"

/* A matrix in the making: row i is a random combination of latent directions. */
struct plant_guess {
    int64_t k, n, first; /* columns before `first` stay as they are: directions have zeros there */
    int32_t latent;
    float *direction; /* [latent][k] */
    float *part;      /* [n][latent] */
    float *room;      /* of a row of the matrix and one of the predictor */
    struct neurons_predictor *predictor;
    float *bias; /* [n], of the predictor: zeros, for the caller to set */
};

/* Directions and predictor, of twice as many ranks: relu(s) - relu(-s) is s. latent: a multiple of
 * 16. False: memory, all of the arena, is short. */
bool plant_guess_begin(struct plant_guess *p, struct arena *a, uint64_t seed);
/* Row i of the matrix with that root mean square, to be kept as `dtype`; also tells the predictor.
 */
void plant_guess_row(struct plant_guess *p, int64_t i, double rms, oato_dtype dtype, uint8_t *row);

#endif
