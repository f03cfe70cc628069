/*
 * ov_ir.c - writes a function as text of OpenVINO's intermediate representation: layers with
 * numbered ports, edges between ports, and numbers of constants in a block of bytes beside it.
 * Shapes of values are left out, for the reader infers them.
 */
#include "kernels/openvino/ov_internal.h"

#include <inttypes.h>
#include <string.h>

void ov_ir_init(struct ov_ir *ir, bool half)
{
    *ir = (struct ov_ir){.half = half};
    text_init(&ir->layers);
    text_init(&ir->edges);
    text_init(&ir->consts);
}

void ov_ir_free(struct ov_ir *ir)
{
    text_free(&ir->layers);
    text_free(&ir->edges);
    text_free(&ir->consts);
}

/* data: its attributes; out: whether it has an output, of a precision that may be NULL. */
static struct ov_node add_layer(struct ov_ir *ir, const char *type, const char *set,
                                const char *data, int n_in, const struct ov_node *in, bool out,
                                const char *precision)
{
    const int id = ir->n++;
    text_printf(&ir->layers, "<layer id=\"%d\" name=\"%d\" type=\"%s\" version=\"%s\">", id, id,
                type, set);
    if (data)
        text_printf(&ir->layers, "<data %s/>", data);
    if (n_in)
        text_printf(&ir->layers, "<input>");
    for (int i = 0; i < n_in; i++) {
        text_printf(&ir->layers, "<port id=\"%d\"/>", i);
        text_printf(&ir->edges,
                    "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"%d\"/>",
                    in[i].layer, in[i].port, id, i);
    }
    if (n_in)
        text_printf(&ir->layers, "</input>");
    if (out)
        text_printf(&ir->layers, "<output><port id=\"%d\"%s%s%s/></output>", n_in,
                    precision ? " precision=\"" : "", or_empty(precision), precision ? "\"" : "");
    text_printf(&ir->layers, "</layer>");
    return (struct ov_node){id, n_in};
}

struct ov_node ov_layer(struct ov_ir *ir, const char *type, const char *set, const char *data,
                        int n_in, const struct ov_node *in)
{
    return add_layer(ir, type, set, data, n_in, in, true, NULL);
}

static void write_shape(char *to, size_t room, int n, const int64_t *shape)
{
    size_t used = 0;
    *to = 0;
    for (int i = 0; i < n && used < room; i++)
        used += (size_t)snprintf(to + used, room - used, "%s%" PRId64, i ? "," : "", shape[i]);
}

struct ov_node ov_parameter(struct ov_ir *ir, enum ov_type type, int n, const int64_t *shape)
{
    char data[160], dims[96];
    write_shape(dims, sizeof dims, n, shape);
    snprintf(data, sizeof data, "shape=\"%s\" element_type=\"%s\"", dims, ov_type_names[type]);
    return add_layer(ir, "Parameter", "opset1", data, 0, NULL, true, ov_type_ports[type]);
}

void ov_result(struct ov_ir *ir, struct ov_node value)
{
    add_layer(ir, "Result", "opset1", NULL, 1, &value, false, NULL);
}

static struct ov_node add_const(struct ov_ir *ir, enum ov_type type, const char *shape,
                                const void *bytes, size_t n)
{
    static const char zeros[8];
    char data[160];
    text_add(&ir->consts, zeros, size_align(ir->consts.len, sizeof zeros) - ir->consts.len);
    snprintf(data, sizeof data, "element_type=\"%s\" shape=\"%s\" offset=\"%zu\" size=\"%zu\"",
             ov_type_names[type], shape, ir->consts.len, n);
    text_add(&ir->consts, bytes, n);
    return add_layer(ir, "Const", "opset1", data, 0, NULL, true, ov_type_ports[type]);
}

struct ov_node ov_number(struct ov_ir *ir, double value)
{
    const float f = (float)value;
    return add_const(ir, OV_F32, "", &f, sizeof f);
}

struct ov_node ov_integers(struct ov_ir *ir, int n, const int64_t *values)
{
    char shape[16];
    snprintf(shape, sizeof shape, "%d", n);
    return add_const(ir, OV_I64, shape, values, (size_t)n * sizeof *values);
}

struct ov_node ov_unary(struct ov_ir *ir, const char *type, struct ov_node x)
{
    return ov_layer(ir, type, "opset1", NULL, 1, &x);
}

struct ov_node ov_binary(struct ov_ir *ir, const char *type, struct ov_node a, struct ov_node b)
{
    const struct ov_node in[2] = {a, b};
    return ov_layer(ir, type, "opset1", "auto_broadcast=\"numpy\"", 2, in);
}

struct ov_node ov_convert(struct ov_ir *ir, enum ov_type type, struct ov_node x)
{
    char data[48];
    snprintf(data, sizeof data, "destination_type=\"%s\"", ov_type_names[type]);
    return ov_layer(ir, "Convert", "opset1", data, 1, &x);
}

struct ov_node ov_reshape(struct ov_ir *ir, struct ov_node x, int n, const int64_t *shape)
{
    const struct ov_node in[2] = {x, ov_integers(ir, n, shape)};
    return ov_layer(ir, "Reshape", "opset1", "special_zero=\"false\"", 2, in);
}

bool ov_ir_text(const struct ov_ir *ir, struct text *out)
{
    text_printf(out, "<?xml version=\"1.0\"?><net name=\"oato\" version=\"11\"><layers>");
    text_add(out, or_empty(ir->layers.data), ir->layers.len);
    text_printf(out, "</layers><edges>");
    text_add(out, or_empty(ir->edges.data), ir->edges.len);
    text_printf(out, "</edges></net>");
    return !out->failed && !ir->layers.failed && !ir->edges.failed && !ir->consts.failed;
}
