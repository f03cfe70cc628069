/*
 * dialect.c - what the interfaces of several makers have in common: an answer as a list of parts,
 * whole or as it comes.
 */
#include "server/server_internal.h"

#include <string.h>

const char *job_digits(const struct job *j)
{
    return j->ask.id + strlen("chatcmpl-");
}

struct part_view part_at(const struct choice *c, size_t index)
{
    const struct part *p = &c->parts[index];
    if (p->kind == PART_CALL) {
        const struct call *call = &c->calls[p->from];
        return (struct part_view){p->kind, call->name, or_empty(call->arguments.data),
                                  call->arguments.len, call->whole};
    }
    const struct text *all = p->kind == PART_THINKS ? &c->thinks : &c->says;
    size_t next = index + 1;
    while (next < c->n_parts && c->parts[next].kind != p->kind)
        next++;
    const size_t end = next < c->n_parts ? c->parts[next].from : all->len;
    return (struct part_view){p->kind, NULL, or_empty(all->data) + p->from, end - p->from, true};
}

bool part_next(struct choice *c, struct part_piece *p)
{
    const size_t index = c->sent_parts;
    struct call_piece call = {0};
    if (index == c->n_parts)
        return false;
    *p = (struct part_piece){
        .index = index, .part = part_at(c, index), .begins = !c->part_begun, .ends = c->ended};
    if (p->part.kind == PART_CALL) {
        if (call_next(c, &call)) {
            p->text = call.arguments;
            p->n = call.n;
        }
        p->ends = p->ends || call.ended;
    } else {
        size_t *sent = p->part.kind == PART_THINKS ? &c->sent_thinks : &c->sent_says;
        const size_t from = *sent - c->parts[index].from;
        p->text = p->part.text + from;
        p->n = p->part.n - from;
        *sent += p->n;
    }
    p->ends = p->ends || index + 1 < c->n_parts;
    if (!p->begins && !p->n && !p->ends)
        return false;
    c->part_begun = !p->ends;
    c->sent_parts += p->ends;
    return true;
}

enum MHD_Result reply_value(struct exchange *x, json_t *value)
{
    struct text t;
    text_init(&t);
    value_write(&t, value);
    return reply_json(x, &t);
}

json_t *arguments_value(const char *s, size_t n, const char *otherwise)
{
    json_t *arguments = json_loadb(s, n, JSON_ALLOW_NUL, NULL);
    if (json_is_object(arguments))
        return arguments;
    json_decref(arguments);
    return json_pack("{s:o}", otherwise, text_value(s, n));
}

void value_event(struct text *out, json_t *event)
{
    text_printf(out,
                "event: %s\ndata: ", or_empty(json_string_value(json_object_get(event, "type"))));
    value_write(out, event);
    text_printf(out, "\n\n");
}
