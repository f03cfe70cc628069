/*
 * compile_device.c - compiles a .cu file for one kind of GPU where there is no nvcc, by NVIDIA's
 * compiler library (NVRTC).
 * usage: compile-device source.cu sm_90|compute_90 out OPTION...
 *   sm_90: machine code; compute_90: PTX. The options are the library's.
 * Writes a piece of an image (kernels/cuda/cuda_image.h).
 */
#include "kernels/cuda/cuda_image.h"

#include <nvrtc.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MOST_OPTIONS = 32 };

/* The library has no headers of C, and kernels include this one. */
static const char stdint_h[] = "typedef signed char int8_t;\n"
                               "typedef short int16_t;\n"
                               "typedef int int32_t;\n"
                               "typedef long long int64_t;\n"
                               "typedef unsigned char uint8_t;\n"
                               "typedef unsigned short uint16_t;\n"
                               "typedef unsigned int uint32_t;\n"
                               "typedef unsigned long long uint64_t;\n"
                               "typedef unsigned long long uintptr_t;\n"
                               "#define INT32_MAX 2147483647\n"
                               "#define UINT32_MAX 4294967295u\n";

_Noreturn static void fail(const char *what, const char *why)
{
    fprintf(stderr, "compile-device: %s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static void check(nvrtcResult result, const char *what)
{
    if (result != NVRTC_SUCCESS)
        fail(what, nvrtcGetErrorString(result));
}

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        fail("memory", "there is none left");
    return p;
}

/* With a NUL behind it. */
static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        fail(path, "cannot be read");
    const long bytes = ftell(f);
    rewind(f);
    char *text = allocate((size_t)bytes + 1);
    if (bytes < 0 || fread(text, 1, (size_t)bytes, f) != (size_t)bytes)
        fail(path, "cannot be read");
    fclose(f);
    text[bytes] = 0;
    return text;
}

/* What the compiler says, warnings too, as nvcc would on the terminal. */
static void show_log(nvrtcProgram program)
{
    size_t bytes = 0;
    check(nvrtcGetProgramLogSize(program, &bytes), "the log");
    char *log = allocate(bytes);
    check(nvrtcGetProgramLog(program, log), "the log");
    if (bytes > 1)
        fputs(log, stderr);
    free(log);
}

static void *compile(const char *source, const char *gpu, char **more, int n_more, size_t *bytes)
{
    static const char *const names[] = {"stdint.h"}, *const headers[] = {stdint_h};
    char architecture[64], *text = read_all(source);
    const char *options[MOST_OPTIONS] = {architecture, "--device-as-default-execution-space",
                                         "--define-macro=INFINITY=__int_as_float(0x7f800000)",
                                         "--define-macro=NAN=__int_as_float(0x7fffffff)"};
    int n = 4;
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", gpu);
    if (n_more > MOST_OPTIONS - n)
        fail(source, "too many options");
    for (int i = 0; i < n_more; i++)
        options[n++] = more[i];
    nvrtcProgram program;
    check(nvrtcCreateProgram(&program, text, source, 1, headers, names), source);
    const nvrtcResult result = nvrtcCompileProgram(program, n, options);
    show_log(program);
    check(result, source);
    const bool ptx = strncmp(gpu, "compute_", 8) == 0;
    check(ptx ? nvrtcGetPTXSize(program, bytes) : nvrtcGetCUBINSize(program, bytes), source);
    char *content = allocate(*bytes);
    check(ptx ? nvrtcGetPTX(program, content) : nvrtcGetCUBIN(program, content), source);
    check(nvrtcDestroyProgram(&program), source);
    free(text);
    return content;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        fail("usage", "compile-device source.cu sm_90|compute_90 out OPTION...");
    const char *gpu = argv[2], *number = strchr(gpu, '_');
    if (!number)
        fail(gpu, "neither sm_NUMBER nor compute_NUMBER");
    size_t bytes = 0;
    void *content = compile(argv[1], gpu, argv + 4, argc - 4, &bytes);
    uLongf packed = compressBound(bytes);
    struct cuda_code *piece = allocate(sizeof *piece + packed);
    if (compress2(piece->packed, &packed, content, bytes, Z_BEST_COMPRESSION) != Z_OK)
        fail(argv[1], "cannot be compressed");
    memcpy(piece->magic, CUDA_PIECE_MAGIC, sizeof piece->magic);
    piece->capability = (uint32_t)atoi(number + 1);
    piece->ptx = *gpu == 'c';
    piece->bytes = (uint32_t)bytes;
    piece->packed_bytes = (uint32_t)packed;
    FILE *out = fopen(argv[3], "wb");
    if (!out || fwrite(piece, sizeof *piece + packed, 1, out) != 1 || fclose(out))
        fail(argv[3], "cannot be written");
    free(piece);
    free(content);
    return EXIT_SUCCESS;
}
