/*
 * ov_api.h - what is used of OpenVINO's C API: prototypes of our own, found in the library when it
 * is opened. A release in which one is missing is refused by name.
 */
#ifndef OATO_OV_API_H
#define OATO_OV_API_H

#include "base/base.h"

struct ov_core;
struct ov_model;
struct ov_compiled_model;
struct ov_infer_request;
struct ov_tensor;
struct ov_port;
struct ov_shape {
    int64_t rank;
    int64_t *dims;
};
struct ov_device_list {
    char **name;
    size_t n;
};
struct ov_version {
    const char *build, *description;
};

/* Element types, in the order of ov_type_names. Their numbers differ between releases. */
enum ov_type { OV_F32, OV_F16, OV_BF16, OV_I4, OV_U4, OV_I8, OV_U8, OV_I64, OV_TYPES };
/* As representations call them: in attributes, and as the precision of a port. */
extern const char *const ov_type_names[OV_TYPES], *const ov_type_ports[OV_TYPES];

/* name, result, parameters; all but strings return a status, 0: done. */
/* clang-format off */
#define OV_SYMBOLS(row)                                                                            \
    row(get_openvino_version, int, (struct ov_version *out))                                       \
    row(version_free, void, (struct ov_version *version))                                          \
    row(get_last_err_msg, const char *, (void))                                                    \
    row(get_error_info, const char *, (int status))                                                \
    row(core_create, int, (struct ov_core **out))                                                  \
    row(core_free, void, (struct ov_core *core))                                                   \
    row(core_get_available_devices, int, (const struct ov_core *core, struct ov_device_list *out)) \
    row(available_devices_free, void, (struct ov_device_list *list))                               \
    row(core_get_property, int, (const struct ov_core *core, const char *device, const char *key, char **out)) \
    row(free, void, (const char *text))                                                            \
    row(core_read_model_from_memory_buffer, int, (const struct ov_core *core, const char *text,    \
            size_t bytes, const struct ov_tensor *consts, struct ov_model **out))                  \
    row(core_compile_model, int, (const struct ov_core *core, const struct ov_model *model,        \
            const char *device, size_t n_words, struct ov_compiled_model **out, ...))              \
    row(model_free, void, (struct ov_model *model))                                                \
    row(model_const_input_by_index, int, (const struct ov_model *model, size_t i, struct ov_port **out)) \
    row(port_get_element_type, int, (const struct ov_port *port, int *out))                        \
    row(output_const_port_free, void, (struct ov_port *port))                                      \
    row(compiled_model_create_infer_request, int, (const struct ov_compiled_model *model, struct ov_infer_request **out)) \
    row(compiled_model_get_property, int, (const struct ov_compiled_model *model, const char *key, char **out)) \
    row(compiled_model_free, void, (struct ov_compiled_model *model))                              \
    row(infer_request_set_input_tensor_by_index, int, (struct ov_infer_request *request, size_t i, const struct ov_tensor *tensor)) \
    row(infer_request_set_output_tensor_by_index, int, (struct ov_infer_request *request, size_t i, const struct ov_tensor *tensor)) \
    row(infer_request_infer, int, (struct ov_infer_request *request))                              \
    row(infer_request_free, void, (struct ov_infer_request *request))                              \
    row(tensor_create_from_host_ptr, int, (int type, struct ov_shape shape, void *data, struct ov_tensor **out)) \
    row(tensor_free, void, (struct ov_tensor *tensor))
/* clang-format on */

struct ov_api {
    void *library;
    char path[512];
    char version[48];
    int type[OV_TYPES]; /* this release's numbers */
#define OV_MEMBER(name, result, parameters) result(*name) parameters;
    OV_SYMBOLS(OV_MEMBER)
#undef OV_MEMBER
};

/* The library, opened when it is first asked for and kept until the process ends. OATO_EDEVICE: it
 * is missing, a symbol is, or it does not answer; in one line. */
oato_status ov_load(const struct ov_api **out, struct oato_error *err);
/* Where the library would be found, without opening it: a few stat calls. */
bool ov_present(char path[512]);
/* Fails with the library's last message, folded into one line. */
oato_status ov_fail(const struct ov_api *api, oato_status status, struct oato_error *err,
                    const char *what, const char *device);

#endif
