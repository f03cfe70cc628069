/*
 * cuda_rig.h - what the tests of the emulated CUDA driver share: a context, a stream and a module
 * of its own for every test, copies to and fro, launches of one block row. Included once by each
 * test program.
 */
#ifndef OATO_TEST_CUDA_RIG_H
#define OATO_TEST_CUDA_RIG_H

#include "kernels/cuda/cuda_driver.h"
#include "tests/cuda_on_cpu/selftest.h"
#include "tests/kernels/test_cpu.h"

#include <sys/wait.h>

enum { WARP = 32 };

static const struct cuda_driver *cu;
static cu_context context;
static cu_stream stream;
static cu_module module;

#define DO(call)                                                                                   \
    do {                                                                                           \
        cu_result result_ = (call);                                                                \
        if (result_)                                                                               \
            fail_msg("%s gave %d", #call, result_);                                                \
    } while (0)

static UNUSED void open_driver(void)
{
    struct oato_error err;
    cu = cuda_driver_open(&err);
    if (!cu) {
        fprintf(stderr, "%s (OATO_CUDA_DRIVER must name libcuda-on-cpu.so)\n", err.text);
        exit(EXIT_FAILURE);
    }
}

/* Every test has a context of its own. */
static UNUSED int open_device(void **state)
{
    (void)state;
    DO(cu->context_retain(&context, 0));
    DO(cu->context_set(context));
    DO(cu->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    DO(cu->module_load(&module, "any image"));
    return 0;
}

static UNUSED int close_device(void **state)
{
    (void)state;
    DO(cu->module_unload(module));
    DO(cu->stream_destroy(stream));
    DO(cu->context_release(0));
    return 0;
}

static cu_address device_alloc(size_t bytes)
{
    cu_address p;
    DO(cu->memory_alloc(&p, bytes));
    return p;
}

static UNUSED cu_address device_copy(const void *from, size_t bytes)
{
    cu_address p = device_alloc(bytes);
    DO(cu->upload(p, from, bytes, stream));
    return p;
}

/* Waits, copies back, frees. */
static UNUSED void take_back(void *to, cu_address from, size_t bytes)
{
    DO(cu->download(to, from, bytes, stream));
    DO(cu->stream_synchronize(stream));
    DO(cu->memory_free(from));
}

static cu_function find(const char *kernel)
{
    cu_function f;
    DO(cu->module_function(&f, module, kernel));
    return f;
}

static UNUSED cu_result try_launch(const char *kernel, unsigned blocks, unsigned threads,
                                   unsigned shared, void *args)
{
    return cu->launch(find(kernel), blocks, 1, 1, threads, 1, 1, shared, stream, (void *[]){args},
                      NULL);
}

static UNUSED void launch(const char *kernel, unsigned blocks, unsigned threads, unsigned shared,
                          void *args)
{
    DO(try_launch(kernel, blocks, threads, shared, args));
}

/* This program once more with one argument: what it wrote to stderr, and how it ended. */
static UNUSED int run_again(const char *argument, char *text, size_t size)
{
    int pipes[2], status;
    size_t used = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        execl("/proc/self/exe", "again", argument, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    for (ssize_t n; (n = read(pipes[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

#define DEVICE_TEST(name) cmocka_unit_test_setup_teardown(name, open_device, close_device)

#endif
