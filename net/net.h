/*
 * net.h - models from a hub (Hugging Face, or whatever speaks its interface) and the folder in
 * which they are kept; and the beginning of a file at any URL.
 *
 * A model is named OWNER/REPO or OWNER/REPO:QUANT, as it is with llama.cpp's -hf. What is fetched
 * appears under its name only when it is complete and has the checksum that the hub tells. Where
 * libcurl was missing when this was built, what needs a network fails in one line and the rest
 * works.
 *
 * Environment: HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME, OATO_CACHE, CURL_CA_BUNDLE,
 * SSL_CERT_FILE, SSL_CERT_DIR, and those of proxies that libcurl knows (https_proxy, no_proxy ..).
 */
#ifndef OATO_NET_H
#define OATO_NET_H

#include "base/base.h"

/* -------------------------------------------------------------------------------- names --- */

enum { HUB_WORD = 96, HUB_QUANT = 255 };

struct hub_name {
    char repo[2 * HUB_WORD + 2]; /* OWNER/REPO */
    char quant[HUB_QUANT + 1];   /* "": none was named */
};

/* False when the text is not of that form. */
bool hub_name_parse(const char *text, struct hub_name *out);
/* Whether a URL of http or https. */
bool is_url(const char *text);

/* ------------------------------------------------------------------- files of a repository --- */

struct hub_file {
    const char *path; /* in the repository: relative, none of its parts begins with a dot */
    uint64_t bytes;
    char sum[65]; /* 64 hex digits: SHA-256; 40: SHA-1 of a blob of git; "": not told */
};

/* A model among them: one file, or all parts of one. */
struct hub_model {
    const char *stem; /* its path without .gguf and without the number of a part */
    const char *tag;  /* the end of that, which names the quantisation: "Q4_K_M" */
    uint64_t bytes;
    int32_t parts;                      /* 1, or as many as the names of its parts say */
    const struct hub_file *const *part; /* in order; NULL: that one is missing */
};

struct hub_files {
    struct arena arena;
    struct hub_file *file; /* in order of their paths */
    size_t n, cap;
    struct hub_model *model; /* those that are models: no mmproj, no imatrix, no drafter */
    size_t n_models;
    char revision[65]; /* a commit, or "main" */
};

void hub_files_free(struct hub_files *f);
/* Adds a file, unless its path could lead out of a folder; false: memory is short. */
bool hub_files_add(struct hub_files *f, const char *path, uint64_t bytes, const char *sum);
/* Sorts the files and finds the models among them; after the last file was added. */
oato_status hub_files_group(struct hub_files *f, struct oato_error *err);
/* The model of that quantisation, or of that file name; "": Q4_K_M, else Q8_0, else the first, as
 * llama.cpp does. OATO_EUSAGE, with what there is, when there is none or more than one; `where` is
 * for the message. */
oato_status hub_choose(const struct hub_files *f, const char *where, const char *quant,
                       const struct hub_model **out, struct oato_error *err);
/* The only one there is; OATO_EUSAGE with their names when there are more. */
oato_status hub_choose_only(const struct hub_files *f, const char *where,
                            const struct hub_model **out, struct oato_error *err);
/* OATO_EUSAGE when one of its parts is missing. */
oato_status hub_model_whole(const struct hub_model *m, const char *where, struct oato_error *err);

/* ------------------------------------------------------------------------ what is kept here --- */

/* A model in the folder, or one of which only some is there. */
struct kept_model {
    const char *name; /* OWNER/REPO:QUANT, or the file's path in the folder */
    const char *path; /* of the first part */
    uint64_t bytes;   /* of its files */
    uint64_t missing; /* bytes that are still to be fetched, as far as is known */
    int64_t changed_s;
    int32_t parts;
    bool whole;
};

struct kept_models {
    struct arena arena;
    struct kept_model *model; /* in order of their names */
    size_t n;
    uint64_t disk_bytes; /* that all in the folder takes */
};

/* Appends the folder's path: $OATO_CACHE/models, or models in cache_folder. */
void kept_folder(struct text *out);
oato_status kept_list(struct kept_models *out, struct oato_error *err);
void kept_models_free(struct kept_models *k);
/* Appends the path of the first file of the model of that name; OATO_EUSAGE when it is not there,
 * or when several could be meant. */
oato_status kept_find(const char *name, struct text *path, struct oato_error *err);
/* Removes the files of a model, of unfinished ones too, and the folders that are then empty.
 * Refuses what is not in the folder, and what another process fetches just now. *freed: bytes. */
oato_status kept_remove(const char *name, uint64_t *freed, struct oato_error *err);

/* -------------------------------------------------------------------------------- pulling --- */

struct pull_options {
    int32_t jobs;    /* connections at the same time; 0: 4 */
    bool kept_first; /* a model that is here already is taken without asking the hub */
    warn_fn warn;    /* that it waits for somebody, or begins again; NULL: not told */
    void *user;
};

struct pulled {
    struct text name; /* OWNER/REPO:QUANT */
    struct text path; /* of the first file */
    uint64_t bytes;
    uint64_t fetched_bytes; /* by this call */
};

/* Fetches a model into the folder, with a progress line; what an earlier call left unfinished is
 * gone on with. Texts are appended. Statuses: OATO_EUSAGE no such model, OATO_EDENIED the hub wants
 * a token or refuses this one, OATO_ENET the hub or the way to it failed, OATO_EFILE a wrong
 * checksum, OATO_EIO the disk failed or is full, or Ctrl-C. */
oato_status hub_pull(const char *name, const struct pull_options *o, struct pulled *out,
                     struct oato_error *err);
/* What a command line names as a model: *model is an operand, the path of a file or the name of a
 * model that is here, or NULL; hf is -hf's value, which is pulled if it is not here, or NULL.
 * *model becomes a path, which is valid until the next call. */
oato_status model_locate(const char **model, const char *hf, warn_fn warn, struct oato_error *err);

/* ---------------------------------------------------------------------------- any URL ----- */

/* A file on a server that is read piece by piece. */
struct remote;
oato_status remote_open(const char *url, struct remote **out, struct oato_error *err);
void remote_close(struct remote *r);
uint64_t remote_bytes(const struct remote *r);
/* All of it, or a failure: also when the file there is no longer the one that was opened. */
oato_status remote_read(struct remote *r, uint64_t offset, void *to, size_t bytes,
                        struct oato_error *err);

#endif
