/*
 * absent.c - in place of http.c and fetch.c where libcurl or OpenSSL was missing: no connection can
 * be made, so nothing else of theirs is ever asked for.
 */
#include "net/net_internal.h"

#include <string.h>

oato_status http_create(const char *origin, struct http **out, struct oato_error *err)
{
    (void)origin;
    *out = NULL;
    return oato_fail(err, OATO_ENET,
                     "this program was built without libcurl and fetches nothing: install "
                     "libcurl4-openssl-dev and libssl-dev, build again, or fetch the file by other "
                     "means");
}

void http_free(struct http *h)
{
    (void)h;
}

void http_host(const char *url, char host[HOST_BYTES])
{
    snprintf(host, HOST_BYTES, "%.200s", url);
}

oato_status http_get(struct http *h, const struct http_request *q, const char *what,
                     struct http_reply *r, struct oato_error *err)
{
    (void)q;
    (void)what;
    memset(r, 0, sizeof *r);
    return http_create(NULL, &h, err);
}

oato_status fetch_file(const struct fetch *f, uint64_t *fetched, struct oato_error *err)
{
    struct http *h = f->http;
    (void)fetched;
    return http_create(NULL, &h, err);
}
