/*
 * zeros.c - zero bytes in the texts of a request. JSON may hold them (\u0000), and so may what the
 * model reads; every other text is handled as a string of C, which ends at the first, and is
 * therefore refused instead of cut.
 */
#include "server/server_internal.h"

#include <string.h>

/* Where in the request a value is: a member, or an element of a list. */
struct place {
    const struct place *in;
    const char *member; /* NULL: the element */
    size_t element;
};

static void place_add(struct text *to, const struct place *p)
{
    if (p->in)
        place_add(to, p->in);
    if (p->member)
        text_printf(to, "%s%s", to->len ? "." : "", p->member);
    else
        text_printf(to, "[%zu]", p->element);
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

/* Read by the model as bytes and a length. */
static bool is_model_text(const struct place *p)
{
    static const char *const prompts[] = {"prompt", "content", "input", NULL};
    static const char *const said[] = {"content", "text", "reasoning_content", "arguments", NULL};
    static const char *const parts[] = {"prompt_string", "content", "text", NULL};
    const struct place *top = p;
    while (top->in)
        top = top->in;
    if (!strcmp(top->member, "messages"))
        return p->member && is_one_of(p->member, said);
    return is_one_of(top->member, prompts) &&
           (!p->member || p == top || is_one_of(p->member, parts));
}

static oato_status refuse(const struct place *p, struct oato_error *err)
{
    struct text name;
    text_init(&name);
    place_add(&name, p);
    oato_fail(err, OATO_EUSAGE,
              "%.200s holds a zero byte (\\u0000), which only prompts and the content of messages "
              "may; leave it out",
              or_empty(name.data));
    text_free(&name);
    return err->status;
}

/* Nests no deeper than JSON_PARSER_MAX_DEPTH. */
static oato_status value_check(const json_t *v, const struct place *at, struct oato_error *err)
{
    const char *key;
    const json_t *one;
    size_t i;
    if (json_is_string(v))
        return memchr(json_string_value(v), 0, json_string_length(v)) && !is_model_text(at)
                   ? refuse(at, err)
                   : OATO_OK;
    json_object_foreach((json_t *)v, key, one)
    {
        if (value_check(one, &(struct place){at, key, 0}, err))
            return err->status;
    }
    json_array_foreach(v, i, one)
    {
        if (value_check(one, &(struct place){at, NULL, i}, err))
            return err->status;
    }
    return OATO_OK;
}

oato_status zeros_check(const json_t *request, struct oato_error *err)
{
    const char *key;
    const json_t *one;
    json_object_foreach((json_t *)request, key, one)
    {
        if (value_check(one, &(struct place){NULL, key, 0}, err))
            return err->status;
    }
    return OATO_OK;
}
