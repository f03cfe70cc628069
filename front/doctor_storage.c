/*
 * doctor_storage.c - what `oato doctor` says of the places where the cache and the model lie, of
 * how files can be read there, and of what can join several processes.
 */
#include "front/doctor.h"
#include "kernels/ranks/collective.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DISK_LEAST ((uint64_t)4 << 30) /* prepared weights of an 8B model of 4 bits */

/* The type of the file system that a device number is of, from /proc/self/mountinfo:
 * "31 23 0:28 / /mount options - type source super". */
static void file_system(const struct doctor *d, dev_t device, char out[32])
{
    char path[4096], line[4096], wanted[32];
    snprintf(wanted, sizeof wanted, "%u:%u", major(device), minor(device));
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", d->root);
    FILE *f = stream_open(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        char number[32];
        const char *rest = strstr(line, " - ");
        if (rest && sscanf(line, "%*s %*s %31s", number) == 1 && !strcmp(number, wanted))
            sscanf(rest, " - %31s", out);
    }
    if (f)
        fclose(f);
}

/* Whether this is a virtual machine: its disks say that they turn, whatever they lie on. */
static bool is_virtual(const struct doctor *d)
{
    char path[4096], line[8192];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/cpuinfo", d->root);
    FILE *f = stream_open(path, "r");
    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, "flags", 5) && strstr(line, " hypervisor");
    if (f)
        fclose(f);
    return found;
}

/* A partition has its queue in the disk's folder, which is above its own. */
static bool disk_turns(const struct doctor *d, dev_t device)
{
    static const char *const queues[] = {"queue", "../queue"};
    bool turns = false;
    if (is_virtual(d))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(queues); i++) {
        char path[128], line[16];
        snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s/rotational", major(device),
                 minor(device), queues[i]);
        turns = turns || (host_line(d->root, path, line, sizeof line) && line[0] == '1');
    }
    return turns;
}

static bool reads_overlap(void)
{
    enum { DEPTH = 2 };
    struct reader *r;
    struct oato_error err;
    void *buffer = pages_alloc(READ_ALIGN);
    const bool created = buffer && !reader_create(buffer, READ_ALIGN, DEPTH, false, &r, &err);
    const bool overlaps = created && reader_overlaps(r);
    if (created)
        reader_free(r);
    pages_free(buffer, READ_ALIGN);
    return overlaps;
}

void doctor_disk_judge(struct doctor *d, const struct doctor_disk *s)
{
    char line[16], command[192];
    doctor_line(d, !strcmp(s->use, "model") ? "model file" : s->use, "%s", s->path);
    if (!s->readable) {
        doctor_line(d, "", "cannot be used");
    } else {
        doctor_line(d, "", "%s%s%.1f GiB free, %s, %s%s", s->kind, s->kind[0] ? ", " : "",
                    (double)s->free_bytes / (1 << 30), s->direct ? "O_DIRECT" : "no O_DIRECT",
                    s->overlaps ? "io_uring" : "no io_uring",
                    s->turns ? ", a disk that turns" : "");
    }
    json_add_object(&d->json, NULL, JSON("use", s->use), JSON("path", s->path),
                    json_bool("usable", s->readable), JSON("file_system", s->kind),
                    JSON("free_bytes", s->free_bytes), json_bool("direct", s->direct),
                    json_bool("io_uring", s->overlaps), json_bool("turns", s->turns));
    if (!s->readable) {
        snprintf(command, sizeof command, "export XDG_CACHE_HOME=FOLDER");
        doctor_problem(d, "cache-unusable", command, "nothing can be written in %s", s->path);
        return;
    }
    if (!s->overlaps) {
        const bool off =
            host_line(d->root, "/proc/sys/kernel/io_uring_disabled", line, sizeof line) &&
            line[0] != '0';
        doctor_advise(d, ADVICE_IO_URING_OFF,
                      off            ? "sudo sysctl kernel.io_uring_disabled=0"
                      : d->contained ? "docker run --security-opt seccomp=unconfined ..."
                                     : "",
                      "io_uring is %s: files are read by one request at a time",
                      off ? "switched off" : "refused");
    }
    if (s->turns)
        doctor_advise(d, ADVICE_DISK_SLOW,
                      strcmp(s->use, "cache") != 0 ? "" : "export XDG_CACHE_HOME=FOLDER",
                      "%s lies on a disk that turns; use one on flash", s->path);
    else if (!s->direct)
        doctor_advise(d, ADVICE_DISK_CACHED,
                      strcmp(s->use, "cache") != 0 ? "" : "export XDG_CACHE_HOME=FOLDER",
                      "%s%s allows no O_DIRECT: what is read from %s pushes other files out of "
                      "memory",
                      s->kind[0] ? "the file system " : "the file system", s->kind, s->path);
    if (!strcmp(s->use, "cache") && s->free_bytes < DISK_LEAST)
        doctor_advise(d, ADVICE_DISK_FULL, "export XDG_CACHE_HOME=FOLDER",
                      "%s has %.1f GiB left, too little for models and their prepared weights",
                      s->path, (double)s->free_bytes / (1 << 30));
}

static void disk_look(struct doctor *d, const char *use, const char *path, bool overlaps)
{
    const bool cache = !strcmp(use, "cache");
    struct doctor_disk s = {.use = use, .path = path, .overlaps = overlaps};
    struct direct_file f;
    struct oato_error err;
    struct stat st;
    struct statvfs v;
    if (!stat(path, &st)) {
        file_system(d, st.st_dev, s.kind);
        s.turns = disk_turns(d, st.st_dev);
    }
    if (!statvfs(path, &v))
        s.free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    s.readable =
        !(cache ? direct_scratch(path, READ_ALIGN, &f, &err) : direct_open(path, &f, &err));
    if (s.readable) {
        s.direct = f.direct;
        direct_close(&f);
    }
    if (cache || s.readable) /* else opening the model says it */
        doctor_disk_judge(d, &s);
}

void doctor_storage(struct doctor *d, const char *model)
{
    const bool overlaps = reads_overlap();
    struct text cache;
    text_init(&cache);
    cache_folder(&cache);
    json_open(&d->json, "storage", '[');
    disk_look(d, "cache", or_empty(cache.data), overlaps);
    if (model)
        disk_look(d, "model", model, overlaps);
    json_close(&d->json, ']');
    text_free_part(&cache, &d->people);
}

void doctor_ranks(struct doctor *d)
{
    char why[256];
    const char *name;
    struct text usable;
    text_init(&usable);
    json_open(&d->json, "ranks", '[');
    for (int i = 0; (name = collective_module(i, why, sizeof why)); i++) {
        json_add_object(&d->json, NULL, JSON("name", name), json_bool("usable", !why[0]),
                        JSON("why", why));
        text_printf(&usable, "%s%s%s%s", usable.len ? "; " : "", name, why[0] ? ": " : "", why);
    }
    json_close(&d->json, ']');
    doctor_line(d, "ranks", "%s", or_empty(usable.data));
    text_free_part(&usable, &d->people);
}
