/*
 * machine_peaks.c - oato-machine-peaks, a program for benchmarks: what this machine can do at most
 * with all threads busy, as JSON. Bytes a second read from memory, and operations a second in
 * registers for each level of instructions that the processor has (bench_peaks.c). --bandwidth
 * stops after the first, in a second: beside a measurement, where the machine is shared. --rows
 * reads one row of ten, too, as sparse products do. --file reads a file from end to end instead,
 * past the page cache, as file_stream.c does.
 */
#include "tests/kernels/bench_cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ID_THREADS, ID_BANDWIDTH, ID_ROWS, ID_FILE, ID_HELP, MAX_THREADS = 4096, MAX_ROW = 1 << 20 };

/* At least this much is read, and several times what the last cache holds. */
#define READ_BYTES   ((uint64_t)1 << 30)
#define CACHES_AWAY  4
#define MAX_L3_BYTES ((long)2 << 30)

static const struct option_row rows[] = {
    {"threads", 't', OPT_VALUE, "N", "threads (default: physical cores)", ID_THREADS},
    {"bandwidth", 'b', OPT_FLAG, NULL, "only the read bandwidth", ID_BANDWIDTH},
    {"rows", 'r', OPT_VALUE, "BYTES",
     "that, and of one row of ten at random (of BYTES, times of 64)", ID_ROWS},
    {"file", 'f', OPT_VALUE, "FILE", "only the rate of reading this file, of 4 MiB or more",
     ID_FILE},
    {"help", 'h', OPT_FLAG, NULL, "print this", ID_HELP},
    {NULL, 0, OPT_FLAG, NULL, NULL, 0},
};

static void print_levels(struct cpu_pool *pool)
{
    static const char *const levels[] = {"avx2", "avxvnni", "avx512", "amx"};
    static const char *const kinds[PEAK_KINDS] = {"int8", "int16", "f32", "bf16"};
    const char *between_levels = "";
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        const struct cpu_kernels *k;
        struct oato_error none;
        if (cpu_kernels_select(levels[i], &k, &none))
            continue;
        const char *between = "";
        printf("%s\"%s\":{", between_levels, levels[i]);
        between_levels = ",";
        for (int kind = 0; kind < PEAK_KINDS; kind++) {
            double peak = bench_peak(pool, levels[i], (enum peak_kind)kind);
            if (peak <= 0)
                continue;
            printf("%s\"%s\":%.0f", between, kinds[kind], peak * 1e9);
            between = ",";
        }
        putchar('}');
    }
}

static oato_status print_peaks(int64_t threads, int64_t row, bool only_bandwidth,
                               struct oato_error *err)
{
    struct cpu_pool *pool = NULL;
    oato_status status = cpu_pool_create(threads ? (int)threads : cpu_physical_cores(), &pool, err);
    if (status)
        return status;
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    uint64_t bytes = READ_BYTES;
    if (l3 > 0 && l3 < MAX_L3_BYTES && (uint64_t)l3 * CACHES_AWAY > bytes)
        bytes = (uint64_t)l3 * CACHES_AWAY;
    const double bandwidth = bench_bandwidth(pool, bytes, 0);
    if (bandwidth > 0) {
        printf("{\"threads\":%d,\"l3_bytes\":%ld,\"buffer_bytes\":%llu,\"read_bytes_per_s\":%.0f",
               cpu_pool_threads(pool), l3 > 0 ? l3 : 0, (unsigned long long)bytes, bandwidth * 1e9);
        if (row)
            printf(",\"rows_bytes_per_s\":%.0f", bench_bandwidth(pool, bytes, (uint64_t)row) * 1e9);
        if (!only_bandwidth) {
            printf(",\"operations_per_s\":{");
            print_levels(pool);
            putchar('}');
        }
        puts("}");
    } else {
        status = oato_fail_memory(err, bytes, "a buffer larger than the caches");
    }
    cpu_pool_free(pool);
    return status;
}

static oato_status file_read(const struct direct_file *f, uint8_t *buffer, uint64_t chunks,
                             struct oato_error *err)
{
    struct reader *r;
    uint64_t asked = 0, tag;
    oato_status status =
        reader_create(buffer, (size_t)READS_AHEAD * READ_CHUNK, READS_AHEAD, false, &r, err);
    for (uint64_t done = 0; done < chunks && !status; done++) {
        while (asked < chunks && asked - done < READS_AHEAD &&
               reader_start(r, f, asked * READ_CHUNK, buffer + asked % READS_AHEAD * READ_CHUNK,
                            READ_CHUNK, asked))
            asked++;
        status = reader_wait(r, &tag, err);
    }
    reader_free(r);
    return status;
}

static oato_status print_file(const char *path, struct oato_error *err)
{
    struct direct_file f;
    oato_status status = direct_open(path, &f, err);
    if (status)
        return status;
    const uint64_t chunks = f.bytes / READ_CHUNK;
    uint8_t *buffer = pages_alloc((size_t)READS_AHEAD * READ_CHUNK);
    if (!buffer)
        status = oato_fail_memory(err, (size_t)READS_AHEAD * READ_CHUNK, "reading a file");
    else if (!chunks)
        status = oato_fail(err, OATO_EFILE, "%s: has less than 4 MiB; use a larger file", path);
    const uint64_t begin_ns = now_ns();
    if (!status)
        status = file_read(&f, buffer, chunks, err);
    if (!status)
        printf("{\"file_bytes_per_s\":%.0f,\"direct\":%s}\n",
               (double)(chunks * READ_CHUNK) * 1e9 / (double)(now_ns() - begin_ns),
               f.direct ? "true" : "false");
    pages_free(buffer, (size_t)READS_AHEAD * READ_CHUNK);
    direct_close(&f);
    return status;
}

int main(int argc, char **argv)
{
    struct oato_error err = {0};
    struct options o;
    int64_t threads = 0, row = 0;
    bool only_bandwidth = false;
    const char *file = NULL;
    int id;
    options_init(&o, rows, argc - 1, argv + 1);
    while ((id = options_next(&o, &err)) != OPT_END && !err.status) {
        if (id == ID_HELP) {
            puts("usage: oato-machine-peaks [options]");
            options_help(rows, stdout);
            return OATO_OK;
        }
        if (id == ID_FILE)
            file = o.value;
        if (id == ID_BANDWIDTH || id == ID_ROWS)
            only_bandwidth = true;
        if (id == OPT_OPERAND ||
            (id == ID_THREADS && !parse_i64(o.value, 1, MAX_THREADS, &threads)) ||
            (id == ID_ROWS && (!parse_i64(o.value, 64, MAX_ROW, &row) || row % 64)))
            oato_fail(&err, OATO_EUSAGE, "'%s' is no value here; see --help", o.value);
    }
    if (!err.status && file)
        print_file(file, &err);
    else if (!err.status)
        print_peaks(threads, row, only_bandwidth, &err);
    if (err.status)
        fprintf(stderr, "oato-machine-peaks: %s\n", err.text);
    return (int)err.status;
}
