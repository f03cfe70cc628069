/*
 * cors.c - pages of other sites: which may read answers (--cors-origins), and what a browser is
 * told that asks first whether it may send a request (a preflight, as the Fetch standard has it).
 */
#include "server/server_internal.h"

#include <string.h>

/* http://localhost:8080, http://127.0.0.1, https://[::1]:3000 .. */
static bool is_local(const char *origin)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = strstr(origin, "://");
    for (size_t i = 0; i < ARRAY_LEN(hosts) && host; i++) {
        const size_t n = strlen(hosts[i]);
        if (!strncmp(host + 3, hosts[i], n) && (!host[3 + n] || host[3 + n] == ':'))
            return true;
    }
    return false;
}

/* May a page of this site ask? */
static bool origin_is_allowed(const struct server *s, const char *origin)
{
    for (const char *const *o = s->origins.item; *o; o++)
        if (!strcmp(*o, "localhost") ? is_local(origin) : !strcmp(*o, "*") || !strcmp(*o, origin))
            return true;
    return false;
}

void cors_add(struct exchange *x, struct MHD_Response *r)
{
    const char *origin = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Origin");
    if (origin && origin_is_allowed(x->server, origin))
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
    if (origin)
        MHD_add_response_header(r, "Vary", "Origin, Access-Control-Request-Headers");
}

/* The headers are named as they were asked for: with credentials * is only a name, and it never
 * covers Authorization. */
enum MHD_Result preflight(struct exchange *x)
{
    const char *asked = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND,
                                                    "Access-Control-Request-Headers");
    struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Access-Control-Allow-Credentials", "true");
    MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    MHD_add_response_header(r, "Access-Control-Allow-Headers",
                            asked && *asked ? asked : "Authorization, Content-Type, X-Api-Key");
    MHD_add_response_header(r, "Access-Control-Max-Age", "7200");
    MHD_add_response_header(r, "Allow", "GET, HEAD, POST, DELETE, OPTIONS");
    return respond(x, MHD_HTTP_OK, "text/html", r);
}
