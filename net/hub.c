/*
 * hub.c - the hub's interface: which files a repository has, with sizes and checksums
 * (GET /api/models/OWNER/REPO/tree/REVISION?recursive=true, in pages that a Link header joins).
 */
#include "net/net_internal.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MOST = 16 << 20, PAGES_MOST = 100 };

#define HUB "https://huggingface.co"

oato_status hub_endpoint(struct text *out, struct oato_error *err)
{
    const char *given = getenv("HF_ENDPOINT");
    const char *url = given && *given ? given : HUB;
    size_t n = strlen(url);
    while (n && url[n - 1] == '/')
        n--;
    if (!is_url(url))
        return oato_fail(err, OATO_EUSAGE, "HF_ENDPOINT is '%s': must be a URL of http or https",
                         url);
    text_add(out, url, n);
    return out->failed ? oato_fail_memory(err, n, "a URL") : OATO_OK;
}

void text_add_url(struct text *t, const char *path)
{
    for (const char *s = path; *s; s++) {
        if (isalnum((unsigned char)*s) || strchr("-._~/", *s))
            text_add(t, s, 1);
        else
            text_printf(t, "%%%02X", (unsigned char)*s);
    }
}

static bool take_list(void *user, const void *data, size_t bytes)
{
    struct text *body = user;
    if (!data)
        body->len = 0;
    else if (body->len + bytes > LIST_MOST)
        return false;
    else
        text_add(body, data, bytes);
    return !body->failed;
}

static bool is_revision(const char *s)
{
    return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

static oato_status add_page(struct hub_files *f, const struct text *body, const char *repo,
                            const char *host, struct oato_error *err)
{
    json_error_t wrong;
    json_t *list = json_loadb(or_empty(body->data), body->len, 0, &wrong), *item;
    size_t i;
    oato_status status = OATO_OK;
    if (!json_is_array(list))
        status =
            oato_fail(err, OATO_ENET,
                      "%s: %s answers with something else than a list of files: is HF_ENDPOINT "
                      "right?",
                      repo, host);
    json_array_foreach(list, i, item)
    {
        const char *type = json_string_value(json_object_get(item, "type"));
        const char *path = json_string_value(json_object_get(item, "path"));
        const json_t *lfs = json_object_get(item, "lfs");
        const json_t *size = json_object_get(json_is_object(lfs) ? lfs : item, "size");
        const char *sum =
            json_string_value(json_object_get(json_is_object(lfs) ? lfs : item, "oid"));
        if (!status && type && !strcmp(type, "file") && path && json_is_integer(size) &&
            json_integer_value(size) >= 0 &&
            !hub_files_add(f, path, (uint64_t)json_integer_value(size), or_empty(sum)))
            status = oato_fail_memory(err, strlen(path), "a list of files");
    }
    json_decref(list);
    return status;
}

oato_status hub_list(struct http *h, const char *endpoint, const char *repo, struct hub_files *out,
                     struct oato_error *err)
{
    struct text url, body;
    char host[HOST_BYTES];
    oato_status status = OATO_OK;
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    snprintf(out->revision, sizeof out->revision, "main");
    text_init(&url);
    text_init(&body);
    http_host(endpoint, host);
    text_printf(&url, "%s/api/models/%s/tree/main?recursive=true", endpoint, repo);
    for (int page = 0; !status && url.len; page++) {
        struct http_reply r;
        const struct http_request q = {.url = or_empty(url.data), .sink = take_list, .user = &body};
        if (page == PAGES_MOST)
            status = oato_fail(err, OATO_ENET, "%s: %s lists more than %d pages of files", repo,
                               host, PAGES_MOST);
        else
            status = http_get(h, &q, repo, &r, err);
        if (page == PAGES_MOST)
            break;
        if (!page && is_revision(r.commit))
            snprintf(out->revision, sizeof out->revision, "%s", r.commit);
        if (!status && body.len)
            status = add_page(out, &body, repo, host, err);
        else if (!status)
            status = oato_fail(err, OATO_ENET, "%s: %s answers with nothing", repo, host);
        url.len = 0;
        if (r.next.len)
            text_add(&url, r.next.data, r.next.len);
        http_reply_free(&r);
    }
    if (!status && (url.failed || body.failed))
        status = oato_fail_memory(err, body.len, "a list of files");
    text_free(&url);
    text_free(&body);
    return status ? status : hub_files_group(out, err);
}
