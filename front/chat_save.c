/*
 * chat_save.c - conversations in files: the messages of a request as OpenAI's API has them, so that
 * other programs, and servers, can read them.
 */
#include "front/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { CONVERSATION_MOST = 64 << 20 };

oato_status messages_save(const struct messages *m, const char *path, struct oato_error *err)
{
    struct outfile f;
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_open(&t, "messages", '[');
    for (size_t i = 0; i < m->n; i++) {
        json_open(&t, NULL, '{');
        json_add(&t, JSON("role", m->at[i].role));
        json_add_slice(&t, "content", m->at[i].content, m->at[i].bytes);
        json_close(&t, '}');
    }
    json_close(&t, ']');
    json_close(&t, '}');
    text_add(&t, "\n", 1);
    oato_status status =
        t.failed ? oato_fail_memory(err, t.len, "the conversation") : outfile_open(&f, path, err);
    if (!status) {
        status = outfile_write(&f, t.data, t.len, err);
        status = status ? status : outfile_commit(&f, err);
        if (status)
            outfile_abort(&f);
    }
    text_free(&t);
    return status;
}

/* The text of a message: of a string, or of the parts of a list that are text. */
static oato_status content_read(const char *path, size_t i, const json_t *content, struct text *out,
                                struct oato_error *err)
{
    size_t k;
    const json_t *part;
    if (json_is_string(content)) {
        text_add(out, json_string_value(content), json_string_length(content));
        return OATO_OK;
    }
    if (!json_is_array(content))
        return oato_fail(err, OATO_EFILE, "%s: messages[%zu].content is no text", path, i);
    json_array_foreach(content, k, part)
    {
        const json_t *text = json_object_get(part, "text");
        if (!json_is_string(text))
            return oato_fail(err, OATO_EFILE, "%s: messages[%zu].content[%zu] is no text", path, i,
                             k);
        text_add(out, json_string_value(text), json_string_length(text));
    }
    return OATO_OK;
}

static oato_status message_read(struct messages *m, const char *path, size_t i, const json_t *from,
                                struct oato_error *err)
{
    static const struct {
        const char *name, *role;
    } roles[] = {{"system", "system"},
                 {"developer", "system"},
                 {"user", "user"},
                 {"assistant", "assistant"}};
    const char *name = json_string_value(json_object_get(from, "role"));
    const char *role = NULL;
    struct text content;
    for (size_t k = 0; name && k < ARRAY_LEN(roles); k++)
        role = strcmp(roles[k].name, name) == 0 ? roles[k].role : role;
    if (!role || (!strcmp(role, "system") && i))
        return oato_fail(err, OATO_EFILE,
                         "%s: messages[%zu] has the role '%s'; a conversation has user, assistant, "
                         "and system in its first message",
                         path, i, or_empty(name));
    text_init(&content);
    oato_status status = content_read(path, i, json_object_get(from, "content"), &content, err);
    if (!status)
        status = content.failed ? oato_fail_memory(err, content.len, "a message")
                                : message_add(m, role, content.data, content.len, err);
    text_free(&content);
    return status;
}

oato_status messages_load(struct messages *m, const char *path, struct oato_error *err)
{
    struct mapped_file file;
    struct messages *got = calloc(1, sizeof *got);
    json_error_t why;
    size_t i;
    const json_t *message;
    if (!got)
        return oato_fail_memory(err, sizeof *got, "a conversation");
    oato_status status = file_map(path, &file, err);
    if (status) {
        free(got);
        return status;
    }
    json_t *root = NULL;
    if (file.bytes > CONVERSATION_MOST)
        status = oato_fail(err, OATO_EFILE, "%s: %zu MiB; a conversation has at most %d", path,
                           file.bytes >> 20, CONVERSATION_MOST >> 20);
    else if (!(root = json_loadb(file.bytes ? (const char *)file.data : "", file.bytes,
                                 JSON_ALLOW_NUL, &why)))
        status = oato_fail(err, OATO_EFILE, "%s: line %d: %s; /save writes such files", path,
                           why.line, why.text);
    const json_t *list = json_is_array(root) ? root : json_object_get(root, "messages");
    if (!status && !json_is_array(list))
        status =
            oato_fail(err, OATO_EFILE, "%s: no list of messages; /save writes such files", path);
    if (!status && json_array_size(list) > MESSAGES_MAX - 4)
        status = oato_fail(err, OATO_EFILE, "%s: more than %d messages", path, MESSAGES_MAX - 4);
    if (!status)
        json_array_foreach(list, i, message)
        {
            status = message_read(got, path, i, message, err);
            if (status)
                break;
        }
    if (!status) {
        messages_drop(m, 0, m->n);
        *m = *got;
        got->n = 0;
    }
    messages_drop(got, 0, got->n);
    free(got);
    json_decref(root);
    file_unmap(&file);
    return status;
}
