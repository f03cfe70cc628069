/*
 * workload.c - reads the points of a workload, a YAML file for people:
 *
 *   points:
 *     - {prompt: 200, generate: 300, weight: 3}
 *     - {prompt: 6000, generate: 100}
 *     - {prompt: 200, generate: 300, depth: 7000}
 */
#include "planfmt/profile_reader_internal.h"

#include <string.h>

struct point_text {
    int32_t prompt, generate, depth;
    double weight;
};

#define AT(member) offsetof(struct point_text, member)

/* clang-format off */
static const struct schema point_schema = {"point", {
    {"prompt", AT(prompt), FIELD_I32, 0, REQUIRED},
    {"generate", AT(generate), FIELD_I32, 0, REQUIRED},
    {"depth", AT(depth), FIELD_I32, 0, OPTIONAL},
    {"weight", AT(weight), FIELD_F64, 0, OPTIONAL},
}, 4};
/* clang-format on */
enum { WEIGHT = 3 };
static const double WEIGHT_MOST = 1e12, WEIGHT_LEAST = 1e-12;

static oato_status read_point(struct reader *r)
{
    struct workload *w = r->workload;
    struct point_text t = {.weight = 0};
    struct mapping_marks m;
    if (read_mapping(r, &point_schema, &t, &m))
        return r->err->status;
    const bool weighs = m.seen >> WEIGHT & 1;
    if (w->n == REQUEST_POINTS_MAX)
        return fail_at(r, m.begin, "more than %d points", REQUEST_POINTS_MAX);
    if (t.prompt + (int64_t)t.generate < 1)
        return fail_at(r, m.begin, "point: prompt 0 and generate 0: there must be tokens");
    if (weighs && !(t.weight >= WEIGHT_LEAST && t.weight <= WEIGHT_MOST))
        return fail_at(r, m.value[WEIGHT], "weight: %g; allowed: %g to %g", t.weight, WEIGHT_LEAST,
                       WEIGHT_MOST);
    if (w->n && weighs != (w->weights[0] > 0))
        return fail_at(
            r, weighs ? m.value[WEIGHT] : m.begin,
            "this point has %s weight, unlike those before; give each point one, or none",
            weighs ? "a" : "no");
    w->points[w->n] = (struct plan_point){t.prompt, t.generate, t.depth, 0, 0, 0};
    w->weights[w->n++] = t.weight;
    return OATO_OK;
}

static oato_status read_workload(struct reader *r, yaml_mark_t begin)
{
    for (;;) {
        oato_status status = next_event(r);
        if (status)
            return status;
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return r->workload->n
                       ? OATO_OK
                       : fail_at(r, begin, "'points' is missing or empty: not a workload");
        if (r->event.type != YAML_SCALAR_EVENT ||
            strcmp((const char *)r->event.data.scalar.value, "points") != 0)
            return fail_at(r, r->event.start_mark, "'points' is the only key of a workload");
        if (r->workload->n)
            return fail_at(r, r->event.start_mark, "duplicate key 'points'");
        if ((status = next_event(r)) || (status = read_list(r, "points", read_point)))
            return status;
    }
}

oato_status workload_load_memory(const void *data, size_t bytes, const char *name,
                                 struct workload *out, struct oato_error *err)
{
    struct reader r = {.name = name, .what = "workload", .workload = out, .err = err};
    *out = (struct workload){.n = 0};
    return read_yaml(&r, data, bytes, read_workload);
}

oato_status workload_load(const char *path, struct workload *out, struct oato_error *err)
{
    struct mapped_file f;
    oato_status status = file_map(path, &f, err);
    if (status)
        return status;
    status = workload_load_memory(f.data, f.bytes, path, out, err);
    file_unmap(&f);
    return status;
}
