/*
 * shape_internal.h - what the files of shapes share: shapes.c reads them, shape_types.c knows the
 * types of tensors, shape_model.c makes headers.
 */
#ifndef OATO_SHAPE_INTERNAL_H
#define OATO_SHAPE_INTERNAL_H

#include "models/models.h"

/* OATO_EUSAGE: there is no mix of that name. */
oato_status mix_fail(const char *name, struct oato_error *err);
/* Sets the types of all tensors, which are in the order of the graph. */
void shape_set_types(const struct shape_spec *s, struct gguf_tensor *const *tensors, size_t n);
/* A word of the list, or the beginning of one, is part of the name. */
bool shape_word_in(const char *words, const char *name);

#endif
