/*
 * cuda_image.c - chooses among the pieces of an image as the driver does among those of a fat
 * binary.
 */
#include "kernels/cuda/cuda_image.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* NULL behind the last one. An image that was not made is one byte, which no more is read of. */
static const struct cuda_code *piece_at(const unsigned char *p)
{
    return strcmp((const char *)p, CUDA_PIECE_MAGIC) == 0 ? (const struct cuda_code *)p : NULL;
}

static const struct cuda_code *next(const struct cuda_code *p)
{
    return piece_at((const unsigned char *)p + (sizeof *p + p->packed_bytes + 7) / 8 * 8);
}

static bool runs(const struct cuda_code *p, uint32_t capability)
{
    return p->capability <= capability && (p->ptx || p->capability / 10 == capability / 10);
}

const struct cuda_code *cuda_image_choose(const void *image, int capability)
{
    const struct cuda_code *best = NULL;
    for (const struct cuda_code *p = piece_at(image); p; p = next(p))
        if (runs(p, (uint32_t)capability) &&
            (!best || p->ptx < best->ptx ||
             (p->ptx == best->ptx && p->capability > best->capability)))
            best = p;
    return best;
}

void *cuda_image_unpack(const struct cuda_code *piece)
{
    uLongf bytes = piece->bytes;
    void *content = malloc(bytes);
    if (content && (uncompress(content, &bytes, piece->packed, piece->packed_bytes) != Z_OK ||
                    bytes != piece->bytes)) {
        free(content);
        return NULL;
    }
    return content;
}

cu_result cuda_image_load(const struct cuda_driver *cu, const void *image, int capability,
                          cu_module *module)
{
    if (!piece_at(image))
        return cu->module_load(module, image);
    const struct cuda_code *piece = cuda_image_choose(image, capability);
    if (!piece)
        piece = image; /* for the driver to refuse */
    void *content = cuda_image_unpack(piece);
    if (!content)
        return CU_ERROR_OUT_OF_MEMORY;
    const cu_result result = cu->module_load(module, content);
    free(content); /* the driver has copied it */
    return result;
}
