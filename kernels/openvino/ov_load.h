/*
 * ov_load.h - OpenVINO's C interface by declarations of our own: nothing is needed to build, and
 * the library is opened when a device of it is. It keeps these functions from release to release;
 * the numbers of its element types it does not, so they are asked.
 */
#ifndef OATO_OV_LOAD_H
#define OATO_OV_LOAD_H

#include "base/base.h"

typedef struct ov_core ov_core;
typedef struct ov_model ov_model;
typedef struct ov_compiled_model ov_compiled_model;
typedef struct ov_infer_request ov_infer_request;
typedef struct ov_tensor ov_tensor;
typedef struct ov_port ov_port;
typedef int32_t ov_status;

struct ov_shape {
    int64_t rank;
    int64_t *dims;
};
struct ov_names {
    char **devices;
    size_t size;
};
struct ov_version {
    const char *build, *description;
};

/* X(result, member and symbol without its "ov_", arguments) */
/* clang-format off */
#define OV_FUNCTIONS(X)                                                                            \
    X(ov_status, get_openvino_version, (struct ov_version *out))                                   \
    X(void, version_free, (struct ov_version *version))                                            \
    X(const char *, get_last_err_msg, (void))                                                      \
    X(void, free, (const char *text))                                                              \
    X(ov_status, core_create, (ov_core **out))                                                     \
    X(void, core_free, (ov_core *core))                                                            \
    X(ov_status, core_get_available_devices, (const ov_core *core, struct ov_names *out))          \
    X(void, available_devices_free, (struct ov_names *names))                                      \
    X(ov_status, core_get_property, (const ov_core *core, const char *device, const char *key, char **out)) \
    X(ov_status, core_set_property, (const ov_core *core, const char *device, ...))                \
    X(ov_status, core_read_model_from_memory_buffer, (const ov_core *core, const char *text, size_t bytes, const ov_tensor *constants, ov_model **out)) \
    X(void, model_free, (ov_model *model))                                                         \
    X(ov_status, core_compile_model, (const ov_core *core, const ov_model *model, const char *device, size_t texts, ov_compiled_model **out, ...)) \
    X(void, compiled_model_free, (ov_compiled_model *compiled))                                    \
    X(ov_status, compiled_model_get_property, (const ov_compiled_model *compiled, const char *key, char **out)) \
    X(ov_status, compiled_model_create_infer_request, (const ov_compiled_model *compiled, ov_infer_request **out)) \
    X(void, infer_request_free, (ov_infer_request *request))                                       \
    X(ov_status, infer_request_set_tensor, (ov_infer_request *request, const char *name, const ov_tensor *tensor)) \
    X(ov_status, infer_request_infer, (ov_infer_request *request))                                 \
    X(ov_status, tensor_create_from_host_ptr, (int32_t type, struct ov_shape shape, void *data, ov_tensor **out)) \
    X(void, tensor_free, (ov_tensor *tensor))                                                      \
    X(ov_status, model_const_input_by_index, (const ov_model *model, size_t index, ov_port **out)) \
    X(ov_status, port_get_element_type, (const ov_port *port, int32_t *out))                       \
    X(void, output_const_port_free, (ov_port *port))
/* clang-format on */

/* Of values and weights, as texts name them. */
#define OV_ELEMENTS(X) X(F32, f32) X(F16, f16) X(BF16, bf16) X(I8, i8) X(U8, u8) X(I4, i4) X(U4, u4)
enum ov_element {
#define NUMBER(name, text) OV_##name,
    OV_ELEMENTS(NUMBER)
#undef NUMBER
        OV_ELEMENT_COUNT
};
extern const char *const ov_element_name[OV_ELEMENT_COUNT];

enum { OV_PATH_BYTES = 512 };

struct ov_library {
/* NOLINTBEGIN(bugprone-macro-parentheses): declarations */
#define MEMBER(result, name, arguments) result(*name) arguments;
    OV_FUNCTIONS(MEMBER)
#undef MEMBER
    /* NOLINTEND(bugprone-macro-parentheses) */
    void *handle;
    char path[OV_PATH_BYTES];          /* of the file */
    char version[64];                  /* "2026.4.1-..." */
    int32_t element[OV_ELEMENT_COUNT]; /* the library's numbers; -1: it has no such type */
};

/* Whether the library is installed where it is looked for; opens nothing. path: room for
 * OV_PATH_BYTES, or NULL. */
bool ov_library_found(char *path);
/* The library, opened once a process and never closed. NULL, with one line: there is none, or it
 * lacks a function. */
const struct ov_library *ov_library_open(struct oato_error *err);
/* Opens that file to *out, for tests; to be closed by dlclose(out->handle). */
oato_status ov_library_load(const char *path, struct ov_library *out, struct oato_error *err);
/* Fails with "id: doing: " and the library's message of its last failure as one line. */
oato_status ov_fail(const struct ov_library *l, ov_status status, const char *id, const char *doing,
                    struct oato_error *err);

#endif
