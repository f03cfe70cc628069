/*
 * ov_ir.c - writes functions as OpenVINO's intermediate representation, version 11: XML that names
 * layers, ports and edges, and constants beside it. Shapes and types follow from those of
 * inputs: ports leave out dimensions, and of the type, which is mandatory, no reader takes notice.
 */
#include "kernels/openvino/ov_parts.h"

#include <string.h>

void ov_ir_free(struct ov_ir *ir)
{
    text_free(&ir->layers);
    text_free(&ir->edges);
    text_free(&ir->constants);
}

void ov_ir_write(const struct ov_ir *ir, struct text *out)
{
    text_printf(out, "<net name=\"oato\" version=\"11\"><layers>%s</layers><edges>%s</edges></net>",
                or_empty(ir->layers.data), or_empty(ir->edges.data));
    out->failed = out->failed || ir->layers.failed || ir->edges.failed || ir->constants.failed;
}

struct ov_node ov_ir_layer(struct ov_ir *ir, const char *type, int opset, const char *attributes,
                           int n_in, const struct ov_node *in)
{
    const struct ov_node out = {ir->n++, n_in};
    struct text *t = &ir->layers;
    text_printf(t, "<layer id=\"%d\" name=\"l%d\" type=\"%s\" version=\"opset%d\">", out.layer,
                out.layer, type, opset);
    if (*attributes)
        text_printf(t, "<data %s/>", attributes);
    if (n_in)
        text_printf(t, "<input>");
    for (int i = 0; i < n_in; i++) {
        text_printf(t, "<port id=\"%d\"/>", i);
        text_printf(&ir->edges,
                    "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"%d\"/>",
                    in[i].layer, in[i].port, out.layer, i);
    }
    if (n_in)
        text_printf(t, "</input>");
    if (strcmp(type, "Result") != 0)
        text_printf(t, "<output><port id=\"%d\" precision=\"FP32\" names=\"t%d\"/></output>",
                    out.port, out.layer);
    text_printf(t, "</layer>");
    return out;
}

static void dims_print(char out[96], int rank, const int64_t *dims)
{
    *out = 0;
    for (int i = 0, n = 0; i < rank; i++)
        n += snprintf(out + n, 96 - (size_t)n, "%s%lld", i ? "," : "", (long long)dims[i]);
}

struct ov_node ov_ir_input(struct ov_ir *ir, enum ov_element element, int rank, const int64_t *dims)
{
    char shape[96], attributes[160];
    dims_print(shape, rank, dims);
    snprintf(attributes, sizeof attributes, "shape=\"%s\" element_type=\"%s\"", shape,
             ov_element_name[element]);
    return ov_ir_layer(ir, "Parameter", 1, attributes, 0, NULL);
}

void ov_ir_result(struct ov_ir *ir, struct ov_node of)
{
    ov_ir_layer(ir, "Result", 1, "", 1, &of);
}

static struct ov_node constant(struct ov_ir *ir, const char *element, const char *shape,
                               const void *data, size_t bytes)
{
    char attributes[160];
    snprintf(attributes, sizeof attributes,
             "element_type=\"%s\" shape=\"%s\" offset=\"%zu\" size=\"%zu\"", element, shape,
             ir->constants.len, bytes);
    text_add(&ir->constants, data, bytes);
    return ov_ir_layer(ir, "Const", 1, attributes, 0, NULL);
}

struct ov_node ov_ir_number(struct ov_ir *ir, float x)
{
    static const char unused[4] = {0};
    const struct ov_node out = constant(ir, "f32", "", &x, sizeof x);
    text_add(&ir->constants, unused, sizeof unused); /* whole numbers stay aligned */
    return out;
}

struct ov_node ov_ir_whole(struct ov_ir *ir, int n, const int64_t *x)
{
    char shape[16];
    snprintf(shape, sizeof shape, "%d", n);
    return constant(ir, "i64", shape, x, (size_t)n * sizeof *x);
}

struct ov_node ov_ir_1(struct ov_ir *ir, const char *type, struct ov_node a)
{
    return ov_ir_layer(ir, type, 1, "", 1, &a);
}

struct ov_node ov_ir_2(struct ov_ir *ir, const char *type, struct ov_node a, struct ov_node b)
{
    return ov_ir_layer(ir, type, 1, "auto_broadcast=\"numpy\"", 2, (struct ov_node[]){a, b});
}

struct ov_node ov_ir_convert(struct ov_ir *ir, struct ov_node a, enum ov_element to)
{
    char attributes[40];
    snprintf(attributes, sizeof attributes, "destination_type=\"%s\"", ov_element_name[to]);
    return ov_ir_layer(ir, "Convert", 1, attributes, 1, &a);
}

struct ov_node ov_ir_reshape(struct ov_ir *ir, struct ov_node a, int rank, const int64_t *dims)
{
    const struct ov_node shape = ov_ir_whole(ir, rank, dims);
    return ov_ir_layer(ir, "Reshape", 1, "special_zero=\"false\"", 2, (struct ov_node[]){a, shape});
}
