/*
 * vector_exp.h - e^x of a vector of any level, which has defined vec and what is used here:
 * vec_fma(a, b, c) = a b + c and vec_fnma = c - a b, each rounded once; vec_min and vec_max, whose
 * result is the second argument where that is NaN; vec_round; vec_scaled(x, n) = x 2^n of whole n;
 * vec_zero_less.
 */
#ifndef OATO_VECTOR_EXP_H
#define OATO_VECTOR_EXP_H

#include "kernels/cpu/kernels_internal.h"

/* Within 2 ulp; 0 below -87, at most e^88. x = n ln 2 + r with |r| <= ln 2 / 2, and the minimax
 * polynomial of Cephes' expf for e^r. NaN stays NaN. */
VECTOR_INLINE vec vec_exp(vec x)
{
    const vec lowest = vec_set(-87.0f), all = x;
    x = vec_min(vec_set(88.0f), vec_max(lowest, x));
    const vec n = vec_round(x * vec_set(1.44269504f));
    vec r = vec_fnma(n, vec_set(0.693359375f), x);
    r = vec_fnma(n, vec_set(-2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(r * r, p, r + vec_set(1.0f));
    return vec_zero_less(vec_scaled(p, n), all, lowest);
}

#endif
