/*
 * model_files.h - the models that --models names: the GGUF files of a folder, or a list of files.
 */
#ifndef OATO_MODEL_FILES_H
#define OATO_MODEL_FILES_H

#include "front/auto.h"

enum { MODEL_FILES_MOST = 256 };

struct model_files {
    struct auto_model of[MODEL_FILES_MOST]; /* by name */
    int32_t n;
    struct arena arena; /* of the texts */
};

/* list: a folder, or files with commas between. Of a folder its files "*.gguf", and of each folder
 * in it one, by the folder's name; of split models the first part, and no projectors (mmproj),
 * drafters (mtp-) or sidecars (.neurons.gguf). A model's name is its file's, without ".gguf" and
 * "-00001-of-..". OATO_EUSAGE: there is none, or there are too many, or two of one name;
 * OATO_EIO: one cannot be read. */
oato_status model_files_read(struct model_files *f, const char *list, struct oato_error *err);
void model_files_free(struct model_files *f);

#endif
