/*
 * verbs_file.c - the verbs of oato-plan that make other files: header-only models, sidecars.
 */
#include "solver/verbs.h"

oato_status run_header(struct command *c, struct text *out, struct oato_error *err)
{
    if (c->n_operands != 1 || !c->output)
        return oato_fail(err, OATO_EUSAGE, "header wants one MODEL.gguf and -o FILE.gguf");
    return report_header(c->operands[0], c->output, c->json, out, err);
}

oato_status run_import(struct command *c, struct text *out, struct oato_error *err)
{
    if (c->n_operands != 1 || !c->model || !c->output)
        return oato_fail(err, OATO_EUSAGE,
                         "import wants one FILE.gpuidx, -m MODEL.gguf and -o FILE.neurons.gguf");
    return report_import(c->operands[0], c->model, c->text_order, c->output, c->json, out, err);
}
