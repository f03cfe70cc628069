/*
 * sparse.c - the words of enum sparse_mode, and the option --sparse that every program reads with
 * them.
 */
#include "kernels/op.h"

#include <string.h>

static const struct {
    const char *word; /* with a value behind it if it ends so */
    enum sparse_mode mode;
    double most; /* of the value; from 0 */
} words[] = {
    {"off", SPARSE_OFF, 0},         {"dense", SPARSE_DENSE, 0},
    {"exact", SPARSE_EXACT, 0},     {"predict", SPARSE_PREDICT, 0},
    {"above=", SPARSE_ABOVE, 1e30}, {"threshold=", SPARSE_THRESHOLD, 0.99},
};

const char *sparse_mode_name(enum sparse_mode mode)
{
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (words[i].mode == mode)
            return words[i].word;
    return NULL;
}

static bool mode_parse(const char *text, struct sparse_choice *out)
{
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        const size_t n = strlen(words[i].word);
        double value = 0;
        if (words[i].most > 0 ? strncmp(text, words[i].word, n) != 0 ||
                                    !parse_f64(text + n, 0, words[i].most, &value)
                              : strcmp(text, words[i].word) != 0)
            continue;
        out->mode = words[i].mode;
        out->threshold = (float)value;
        return true;
    }
    return false;
}

/* Cuts "input=S", alone or behind a comma, off the mode's text. */
static bool input_parse(const char *text, char *mode, size_t bytes, double *input)
{
    const char *comma = strrchr(text, ','), *own = comma ? comma + 1 : text;
    const size_t length = comma ? (size_t)(comma - text) : 0;
    if (length >= bytes || strncmp(own, "input=", 6) != 0 || !parse_f64(own + 6, 0, 0.99, input))
        return false;
    snprintf(mode, bytes, "%.*s", comma ? (int)length : 3, comma ? text : "off");
    return true;
}

oato_status sparse_parse(const char *text, struct sparse_choice *out, struct oato_error *err)
{
    double input = 0;
    char mode[32];
    *out = (struct sparse_choice){.mode = SPARSE_OFF};
    if (!strcmp(text, "auto"))
        return OATO_OK;
    out->given = true;
    out->skips_inputs = input_parse(text, mode, sizeof mode, &input);
    out->input = (float)input;
    if (mode_parse(out->skips_inputs ? mode : text, out))
        return OATO_OK;
    return oato_fail(err, OATO_EUSAGE,
                     "--sparse wants auto, off, dense, exact, predict, threshold=S (the share of "
                     "neurons to skip, 0 to 0.99), above=T (the least |activation|, 0 or more) or "
                     "input=S (the share of matrices' inputs to skip, also behind one of the "
                     "others and a comma), not '%s'",
                     text);
}

oato_status option_sparse(const struct options *o, void *to, struct oato_error *err)
{
    return sparse_parse(o->value, to, err);
}
