/*
 * header_url.c - the headers of a model at a URL: of each file of it only the beginning is fetched,
 * by ranges that grow until they hold the keys and the descriptions of tensors. They lie in a
 * folder of their own for as long as the model is open, where a split model's parts find each
 * other.
 */
#include "net/net.h"
#include "solver/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_BYTES = 1 << 20, PARTS_MOST = 999 };

/* Where "-00001-of-00003.gguf" begins in the path of a URL, whose end is *end; *count parts. */
static const char *split_suffix(const char *url, const char **end, int *count)
{
    enum { SUFFIX = 20 };
    int no = 0;
    *end = url + strcspn(url, "?#");
    *count = 1;
    if (*end - url > SUFFIX && sscanf(*end - SUFFIX, "-%5d-of-%5d.gguf", &no, count) == 2 &&
        *count >= 1 && *count <= PARTS_MOST && no >= 1 && no <= *count)
        return *end - SUFFIX;
    *count = 1;
    return *end;
}

static oato_status read_grown(struct remote *r, const char *url, struct text *head,
                              struct oato_error *err)
{
    const uint64_t total = remote_bytes(r);
    uint64_t want = FIRST_BYTES, needs = 1;
    while (needs) {
        want = want < total ? want : total;
        if (!text_reserve(head, (size_t)want - head->len + 1))
            return oato_fail_memory(err, (size_t)want, "the header");
        if (remote_read(r, head->len, head->data + head->len, (size_t)want - head->len, err))
            return err->status;
        head->len = (size_t)want;
        if (gguf_head_needs(head->data, head->len, url, &needs, err))
            return err->status;
        if (needs && want == total)
            return oato_fail(err, OATO_EFILE, "%s: its %llu bytes end inside the header", url,
                             (unsigned long long)total);
        want = needs > want + want / 2 ? needs : want + want / 2;
    }
    return OATO_OK;
}

static oato_status save(const char *path, const struct text *head, struct oato_error *err)
{
    FILE *f = stream_open(path, "w");
    bool ok = f && fwrite(head->data, 1, head->len, f) == head->len;
    if (f)
        ok = !fclose(f) && ok;
    return ok ? OATO_OK : oato_fail(err, OATO_EIO, "%s: cannot write: %s", path, strerror(errno));
}

static oato_status fetch_head(const char *url, const char *path, struct oato_error *err)
{
    struct remote *r;
    struct text head;
    if (remote_open(url, &r, err))
        return err->status;
    text_init(&head);
    oato_status status = read_grown(r, url, &head, err);
    if (!status)
        status = save(path, &head, err);
    text_free(&head);
    remote_close(r);
    return status;
}

static void part_path(struct text *t, const char *folder, int i, int count)
{
    t->len = 0;
    text_printf(t, "%s/model", folder);
    if (count > 1)
        text_printf(t, "-%05d-of-%05d", i, count);
    text_printf(t, ".gguf");
}

oato_status header_of_url(const char *url, struct model **out, struct oato_error *err)
{
    const char *tmp = getenv("TMPDIR"), *end;
    int count;
    const char *suffix = split_suffix(url, &end, &count);
    struct text folder, path, at;
    struct gguf *g = NULL;
    oato_status status = OATO_OK;
    interrupt_catch(); /* the folder goes in any case */
    text_init(&folder);
    text_init(&path);
    text_init(&at);
    text_printf(&folder, "%s/oato-header-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (folder.failed || !mkdtemp(folder.data)) {
        oato_fail(err, OATO_EIO, "%s: cannot create: %s", or_empty(folder.data), strerror(errno));
        text_free(&folder);
        return err->status;
    }
    for (int i = 1; i <= count && !status; i++) {
        at.len = 0;
        text_add(&at, url, (size_t)(suffix - url));
        if (count > 1)
            text_printf(&at, "-%05d-of-%05d.gguf", i, count);
        text_printf(&at, "%s", end);
        part_path(&path, folder.data, i, count);
        status = at.failed || path.failed ? oato_fail_memory(err, at.len, "a URL")
                                          : fetch_head(at.data, path.data, err);
    }
    part_path(&path, folder.data, 1, count);
    if (!status)
        status = path.failed ? oato_fail_memory(err, folder.len, "a file name")
                             : gguf_open_head(path.data, &g, err);
    if (!status)
        status = model_from_gguf(g, out, err);
    for (int i = 1; i <= count; i++) { /* what is mapped stays */
        part_path(&path, folder.data, i, count);
        if (!path.failed)
            unlink(path.data);
    }
    rmdir(folder.data);
    text_free(&folder);
    text_free(&path);
    text_free(&at);
    return status;
}
