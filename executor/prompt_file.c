/*
 * prompt_file.c - see prompt_file.h. Every byte of a record is covered by a hash, and the header
 * must be the one that this engine would write, so that a record is used whole or not at all.
 */
#include "executor/prompt_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records of prompts are little-endian, and so must be the machine"
#endif

enum { VERSION = 1 };

static const char magic[8] = {'O', 'A', 'T', 'O', 'P', 'A', 'G', 'E'};

const char *const prompt_part_names[PROMPT_PARTS] = {"page", "window", "state"};

struct record_header {
    char magic[8];
    uint32_t version, part;
    uint32_t first, n;
    uint64_t structure, content, engine;
    uint64_t bytes;
    uint64_t ids_hash, data_hash;
    uint64_t hash; /* of everything before */
};
_Static_assert(sizeof(struct record_header) == 80, "no padding");

static size_t ids_bytes(const struct prompt_record *r)
{
    return (size_t)(r->n - r->first) * sizeof *r->ids;
}

uint64_t prompt_record_bytes(const struct prompt_record *r)
{
    return sizeof(struct record_header) + ids_bytes(r) + r->bytes;
}

/* Without the hashes. */
static struct record_header header_of(const struct prompt_identity *who,
                                      const struct prompt_record *r)
{
    struct record_header h = {.version = VERSION,
                              .part = (uint32_t)r->part,
                              .first = (uint32_t)r->first,
                              .n = (uint32_t)r->n,
                              .structure = who->structure,
                              .content = who->content,
                              .engine = who->engine,
                              .bytes = r->bytes};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

oato_status prompt_record_write(struct outfile *f, const struct prompt_identity *who,
                                const struct prompt_record *r, const void *data,
                                struct oato_error *err)
{
    struct record_header h = header_of(who, r);
    h.ids_hash = hash_bytes(r->ids + r->first, ids_bytes(r));
    h.data_hash = hash_bytes(data, r->bytes);
    h.hash = hash_bytes(&h, offsetof(struct record_header, hash));
    oato_status status = outfile_write(f, &h, sizeof h, err);
    if (!status)
        status = outfile_write(f, r->ids + r->first, ids_bytes(r), err);
    return status ? status : outfile_write(f, data, r->bytes, err);
}

static oato_status bytes_read(int fd, uint64_t offset, void *to, size_t bytes,
                              struct oato_error *err)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = RETRY(pread(fd, (uint8_t *)to + at, bytes - at, (off_t)(offset + at)));
        if (n < 0)
            return oato_fail(err, OATO_EIO, "cannot be read: %s", strerror(errno));
        if (!n)
            return oato_fail(err, OATO_EFILE, "is cut off");
        at += (size_t)n;
    }
    return OATO_OK;
}

static oato_status header_read(int fd, uint64_t offset, const struct prompt_identity *who,
                               struct record_header *h, struct oato_error *err)
{
    if (bytes_read(fd, offset, h, sizeof *h, err))
        return err->status;
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return oato_fail(err, OATO_EFILE, "holds no prompt");
    if (h->hash != hash_bytes(h, offsetof(struct record_header, hash)))
        return oato_fail(err, OATO_EFILE, "has a damaged header");
    if (h->version != VERSION)
        return oato_fail(err, OATO_EFILE, "has another version of the format");
    if (h->structure != who->structure || h->content != who->content)
        return oato_fail(err, OATO_EFILE, "belongs to another model");
    if (h->engine != who->engine)
        return oato_fail(err, OATO_EFILE,
                         "was computed with another KV type, arithmetic or placement");
    return OATO_OK;
}

oato_status prompt_record_head(int fd, uint64_t offset, const struct prompt_identity *who,
                               struct prompt_record *r, struct oato_error *err)
{
    struct record_header h;
    if (header_read(fd, offset, who, &h, err))
        return err->status;
    if (h.part >= PROMPT_PARTS || h.n > INT32_MAX || h.first >= h.n)
        return oato_fail(err, OATO_EFILE, "has a damaged header");
    *r = (struct prompt_record){.part = (enum prompt_part)h.part,
                                .first = (int32_t)h.first,
                                .n = (int32_t)h.n,
                                .bytes = h.bytes};
    return OATO_OK;
}

oato_status prompt_record_ids(int fd, uint64_t offset, const struct prompt_record *r, int32_t *ids,
                              struct oato_error *err)
{
    return bytes_read(fd, offset + sizeof(struct record_header), ids, ids_bytes(r), err);
}

oato_status prompt_record_read(int fd, uint64_t offset, const struct prompt_identity *who,
                               const struct prompt_record *r, void *data, struct oato_error *err)
{
    const struct record_header want = header_of(who, r);
    struct record_header h;
    if (header_read(fd, offset, who, &h, err))
        return err->status;
    if (memcmp(&h, &want, offsetof(struct record_header, ids_hash)) != 0)
        return oato_fail(err, OATO_EFILE, "holds another text");
    int32_t *ids = malloc(ids_bytes(r));
    if (!ids)
        return oato_fail_memory(err, ids_bytes(r), "the tokens of a prompt");
    oato_status status = bytes_read(fd, offset + sizeof h, ids, ids_bytes(r), err);
    if (!status && hash_bytes(ids, ids_bytes(r)) != h.ids_hash)
        status = oato_fail(err, OATO_EFILE, "is damaged");
    if (!status && memcmp(ids, r->ids + r->first, ids_bytes(r)) != 0)
        status = oato_fail(err, OATO_EFILE, "holds another text");
    free(ids);
    if (!status)
        status = bytes_read(fd, offset + sizeof h + ids_bytes(r), data, r->bytes, err);
    if (!status && hash_bytes(data, r->bytes) != h.data_hash)
        status = oato_fail(err, OATO_EFILE, "is damaged");
    return status;
}

const char *prompt_file_owner(int fd)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return "is not a file";
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return "belongs to another user";
    return st.st_mode & (S_IWGRP | S_IWOTH) ? "can be written by others" : NULL;
}

oato_status prompt_file_open(struct outfile *f, const char *path, struct oato_error *err)
{
    struct stat st;
    *f = (struct outfile){.path = NULL};
    if (!lstat(path, &st) && !S_ISREG(st.st_mode))
        return oato_fail(err, OATO_EIO, "%s: is not a file; name another one", path);
    oato_status status = outfile_open(f, path, err);
    if (!status)
        fchmod(stream_fd(f->stream), S_IRUSR | S_IWUSR);
    return status;
}
