/*
 * slots.c - POST /slots/{id}?action=save|restore|erase, as llama.cpp has it. Answers have no fixed
 * place here and prompts share memory, so a slot is only a name: of the text of the last answer
 * that asked for it (id_slot), or that ended when it was this slot's turn. What is saved is what
 * memory has of that text, in whole pages; restored, any prompt may begin with it.
 */
#include "executor/text_file.h"
#include "server/server_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

oato_status slots_open(struct instance *m, struct oato_error *err)
{
    if (!m->options->slot_save_path)
        return OATO_OK;
    if (text_folder_use(m->options->slot_save_path, "--slot-save-path", err))
        return err->status;
    m->slots = text_slots_create(m->options->session.engine.seqs);
    return m->slots ? OATO_OK : oato_fail_memory(err, 1 << 10, "slots");
}

void slot_note(struct choice *c)
{
    struct instance *m = c->job->instance;
    const size_t n = (size_t)c->n_ids + c->n_tokens;
    const int32_t slot = c->job->ask.slot;
    int32_t *ids = m->slots && c->begun_ns && c->sampler ? malloc(n * sizeof *ids) : NULL;
    if (!ids)
        return;
    memcpy(ids, c->ids, (size_t)c->n_ids * sizeof *ids);
    if (c->n_tokens)
        memcpy(ids + c->n_ids, c->tokens, c->n_tokens * sizeof *ids);
    text_slots_set(m->slots, slot < m->options->session.engine.seqs ? slot : -1, ids, (int32_t)n);
}

/* A name of a file in the folder, and nothing else. */
static oato_status path_of(struct exchange *x, struct text *path, const char **name,
                           struct oato_error *err)
{
    const json_t *o = body_json(x, err), *file = o ? json_object_get(o, "filename") : NULL;
    *name = json_string_value(file);
    if (!o)
        return err->status;
    if (!*name || !**name || **name == '.' || strpbrk(*name, "/\\\n") ||
        strlen(*name) != json_string_length(file) || strlen(*name) > NAME_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "filename wants the name of a file, without a folder and not hidden");
    text_printf(path, "%s/%s", x->instance->options->slot_save_path, *name);
    return path->failed ? oato_fail_memory(err, 64, "a file name") : OATO_OK;
}

static enum MHD_Result file_reply(struct exchange *x, int32_t slot, const char *name, bool saved,
                                  int32_t tokens, uint64_t bytes, uint64_t ns)
{
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("id_slot", slot), JSON("filename", name),
             JSON(saved ? "n_saved" : "n_restored", tokens),
             JSON(saved ? "n_written" : "n_read", bytes));
    json_add_object(&t, "timings", JSON(saved ? "save_ms" : "restore_ms", (double)ns * 1e-6));
    json_close(&t, '}');
    return reply_json(x, &t);
}

static enum MHD_Result file_pass(struct exchange *x, int32_t slot, bool saves)
{
    struct instance *m = x->instance;
    const struct text_file file = {m->session.engine, loop_turn, m};
    const uint64_t begin_ns = now_ns();
    const char *name;
    struct oato_error err;
    struct text path;
    int32_t n = 0, tokens = 0, *ids = NULL;
    uint64_t bytes = 0;
    text_init(&path);
    oato_status status = path_of(x, &path, &name, &err);
    const bool named = !status;
    if (!status && saves && !(ids = text_slots_get(m->slots, slot, &n)))
        status = oato_fail(&err, OATO_EUSAGE, "slot %d has no prompt yet", slot);
    if (!status)
        status = saves ? text_file_save(&file, ids, n, path.data, &tokens, &bytes, &err)
                       : text_file_load(&file, path.data, &ids, &n, &tokens, &bytes, &err);
    text_free(&path);
    if (!status && !saves) {
        text_slots_set(m->slots, slot, ids, n);
        ids = NULL;
    }
    free(ids);
    if (status && atomic_load(&m->state) != INSTANCE_READY)
        return reply_ending(x);
    if (status)
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "slot %d cannot be %s%s%.255s: %s", slot,
                           saves ? "saved" : "restored", named ? saves ? " to " : " from " : "",
                           named ? name : "", err.text);
    return file_reply(x, slot, name, saves, tokens, bytes, now_ns() - begin_ns);
}

struct erasing {
    struct engine *engine;
    int32_t *ids, n;
};

static void erase_turn(void *arg)
{
    const struct erasing *e = arg;
    engine_forget(e->engine, e->ids, e->n);
}

static enum MHD_Result erase(struct exchange *x, int32_t slot)
{
    struct instance *m = x->instance;
    struct erasing e = {.engine = m->session.engine};
    struct text t;
    e.ids = text_slots_get(m->slots, slot, &e.n);
    if (e.ids && !loop_turn(m, erase_turn, &e)) {
        free(e.ids);
        return reply_ending(x);
    }
    free(e.ids);
    text_slots_set(m->slots, slot, NULL, 0);
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("id_slot", slot), JSON("n_erased", e.n));
    json_close(&t, '}');
    return reply_json(x, &t);
}

enum MHD_Result route_slot(struct exchange *x)
{
    const char *action = or_empty(json_string_value(json_object_get(x->query, "action")));
    int64_t slot;
    if (!x->instance->slots)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                           "slots are not saved here; start the server with --slot-save-path DIR");
    if (!parse_i64(x->rest, 0, x->instance->options->session.engine.seqs - 1, &slot))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "there is no slot %.40s; see /slots", x->rest);
    if (!strcmp(action, "erase"))
        return erase(x, (int32_t)slot);
    if (!strcmp(action, "save") || !strcmp(action, "restore"))
        return file_pass(x, (int32_t)slot, *action == 's');
    return reply_error(x, MHD_HTTP_BAD_REQUEST, "action wants save, restore or erase");
}
