/*
 * base.h - what every room of OATO shares: status values and error messages, checked sizes,
 * arenas, budgets of work, memory-mapped files, files that are written whole or not at all, element
 * types, hashing, growing text and JSON, progress lines and command-line options. Nothing here
 * knows models.
 *
 * Functions that can fail return an oato_status and, unless told otherwise, leave a message in
 * the oato_error that the caller passes (never NULL). Nothing in a library prints or exits.
 */
#ifndef OATO_BASE_H
#define OATO_BASE_H

#include "base/dtypes.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ------------------------------------------------------------------ status and messages --- */

/* The values are the exit statuses of the programs. */
typedef enum oato_status {
    OATO_OK = 0,
    OATO_NEGATIVE = 1, /* a negative verdict: check, diff */
    OATO_EUSAGE = 2,   /* wrong command line or argument */
    OATO_EFILE = 3,    /* a file that cannot be used: damaged, wrong kind, wrong model */
    OATO_EFIT = 4,     /* does not fit: host memory, device memory, context */
    OATO_EDEVICE = 5,  /* a device failed */
    OATO_EIO = 6,      /* reading or writing failed: disk full, permission, missing file */
    OATO_UNSURE = 7,   /* too noisy to tell: check, where measurements vary more than is asked */
    OATO_ENET = 8,     /* a server, or the way to it, failed */
    OATO_EDENIED = 9,  /* a server wants a token, or refuses this one */
} oato_status;

/* One line for the user: what, where, why and what to do. */
struct oato_error {
    oato_status status;
    char text[512];
};

/* Formats the message into err and returns status. */
oato_status oato_fail(struct oato_error *err, oato_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " in front of the message that err holds; returns its status. */
oato_status oato_fail_at(struct oato_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The message for a failed allocation; status OATO_EFIT. */
oato_status oato_fail_memory(struct oato_error *err, size_t bytes, const char *what);
/* True when err came from oato_fail_memory: its OATO_EFIT then means that this process ran out of
 * memory, not that a plan or model does not fit. */
bool oato_failed_memory(const struct oato_error *err);

/* Gets a line for each warning; user is the caller's. NULL where warnings are not wanted. */
typedef void (*warn_fn)(void *user, const char *text);
/* Formats the line and calls warn with it, unless that is NULL. */
void warn_line(warn_fn warn, void *user, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ----------------------------------------------------------------------- checked sizes --- */

/* False on overflow; *out is then unchanged. */
bool size_mul(size_t a, size_t b, size_t *out);
bool size_add(size_t a, size_t b, size_t *out);
/* x rounded up to a multiple of align (a power of two). The caller makes sure that it does not
 * overflow. */
static inline size_t size_align(size_t x, size_t align)
{
    return (x + align - 1) & ~(align - 1);
}

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Negative, 0 or positive as a is before, with or after b: for qsort, one key after the other. */
static inline int order_i64(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}
static inline int order_f64(double a, double b)
{
    return (a > b) - (a < b);
}

/* --------------------------------------------------------------------------- arenas ------- */

/* Memory that is freed all at once. Blocks are 64-byte aligned and zeroed. */
struct arena {
    struct arena_block *blocks;
    size_t used_bytes; /* allocated so far, for limits and reports */
};

void arena_init(struct arena *a);
/* count elements of size bytes; NULL when memory is short or the product overflows. */
void *arena_alloc(struct arena *a, size_t count, size_t size);
/* A zero-terminated copy of n bytes; NULL when memory is short. */
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_free(struct arena *a);

/* An array of malloc with room for one element more behind its n, which may move it; NULL, and
 * nothing changes, when memory is short. */
void *array_room(void *array, size_t n, size_t *cap, size_t size);

/* 64-byte aligned, zeroed memory of its own, 2 MiB aligned and advised to use huge pages when
 * large. Free with pages_free and the same size. */
void *pages_alloc(size_t bytes);
void pages_free(void *p, size_t bytes);
/* True when `bytes` can be allocated now: to check before calling a library that crashes on a
 * failed allocation. */
bool memory_spare(size_t bytes);
/* Peak resident set of this process so far. */
uint64_t peak_rss_bytes(void);

/* --------------------------------------------------------------------------- budgets ------ */

/* What one request may spend on work whose amount its text chooses: schemas, grammars, templates,
 * tokenizing, lists of biases. Steps are counted, not timed, so that the same request is refused or
 * answered alike on every machine: one step is work of about 10 ns. One thread at a time. */
struct budget {
    uint64_t steps;                /* that are left */
    size_t bytes;                  /* that are left */
    bool (*cancelled)(void *user); /* nobody waits for the answer any more; NULL: never */
    void *user;
};

/* A request's own: about 0.3 s of one core, and less than the 100 MB that it may take in all. */
#define BUDGET_REQUEST ((struct budget){.steps = 30000000, .bytes = (size_t)64 << 20})

/* Takes both from b, before the work is done. OATO_EUSAGE, with `what` as the subject of the
 * message ("the grammar needs more work than .."), when either is not there any more or the
 * request was cancelled: the request is then given up. A NULL b has no limits. */
oato_status budget_spend(struct budget *b, uint64_t steps, size_t bytes, const char *what,
                         struct oato_error *err);

/* ----------------------------------------------------------------- input and output ------- */

/* The value of a system call, made again for as long as a signal ends it early: every call that may
 * say EINTR is made by this or by the functions below. */
#define RETRY(call)                                                                                \
    __extension__({                                                                                \
        __typeof__(call) value_;                                                                   \
        do                                                                                         \
            value_ = (call);                                                                       \
        while (value_ < 0 && errno == EINTR);                                                      \
        value_;                                                                                    \
    })

/* Writes all of it; fewer bytes, with errno, on failure. For signal handlers, too. */
size_t fd_write(int fd, const void *data, size_t bytes);
/* Makes the file of that size, with room where its file system can promise it: 0, or -1 with errno.
 */
int fd_allocate(int fd, uint64_t bytes);
int temporary_make(char *name); /* mkostemp, closed on exec */
/* As fopen ("r" and "w") and fdopen, but no signal fails their reads and writes; only a read that
 * Ctrl-C ends (oato_interrupted) fails, with EINTR. Descriptors are closed on exec; fileno does not
 * know these streams. */
FILE *stream_open(const char *path, const char *mode);
FILE *stream_take(int fd, const char *mode);
int stream_fd(FILE *file); /* fileno of any stream */
/* Opens those of the descriptors 0, 1 and 2 that are closed on /dev/null, so that no file becomes
 * one of them, and makes stdin, stdout and stderr such streams. program_begin calls it. */
void streams_begin(void);

/* ----------------------------------------------------------------------------- files ------ */

/* A whole file mapped read-only. */
struct mapped_file {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
    uint32_t owner, mode; /* user id and permissions */
};

/* Regular files only. */
oato_status file_map(const char *path, struct mapped_file *out, struct oato_error *err);
void file_unmap(struct mapped_file *f);
/* Tells the kernel that [offset, offset + bytes) of the mapping is no longer needed: it and the
 * pages mapped around it leave the resident set. Reading it again is allowed. */
void file_release(const struct mapped_file *f, size_t offset, size_t bytes);
/* Asks the kernel to read the range in the background; parts beyond the end are ignored. */
void file_prefetch(const struct mapped_file *f, size_t offset, size_t bytes);

/* Makes the folder, and those that it is in. Whoever writes there finds out if that failed. */
void folder_make(const char *path);
/* Syncs the folder of this file, after a rename. */
void folder_sync(const char *path);
/* Appends the folder of files that can be made again, $XDG_CACHE_HOME/oato or ~/.cache/oato, and
 * makes it. */
struct text;
void cache_folder(struct text *out);

/* A file that is read past the page cache (O_DIRECT) if its file system allows it. */
struct direct_file {
    int fd; /* -1: not open */
    bool direct;
    uint64_t bytes;
    char *path; /* for messages */
};

oato_status direct_open(const char *path, struct direct_file *out, struct oato_error *err);
/* A file of so many bytes to read and write that no name leads to, in a folder (NULL: cache_folder,
 * which is made); path is the folder's. OATO_EIO: there is no room, or no such folder. */
oato_status direct_scratch(const char *folder, uint64_t bytes, struct direct_file *out,
                           struct oato_error *err);
void direct_close(struct direct_file *f); /* of one that was opened, or tried to */

/* Reads such files ahead of use into a buffer, several reads at once where the kernel has io_uring.
 * One thread at a time. Offsets, sizes and addresses are multiples of READ_ALIGN. */
struct reader;
/* Weights are streamed, and storage is measured, by READS_AHEAD reads of READ_CHUNK at a time: so
 * many that storage is busy while the thread that asks waits for a processor. */
enum { READ_ALIGN = 4096, READ_CHUNK = 4 << 20, READS_AHEAD = 16 };

/* depth: reads on their way at most. plain: without io_uring. The buffer must outlive the reader.
 */
oato_status reader_create(void *buffer, size_t bytes, int depth, bool plain, struct reader **out,
                          struct oato_error *err);
void reader_free(struct reader *r);           /* waits for what is on its way */
bool reader_overlaps(const struct reader *r); /* with io_uring */
/* False: `depth` reads are on their way already. */
bool reader_start(struct reader *r, const struct direct_file *f, uint64_t offset, void *to,
                  size_t bytes, uint64_t tag);
int reader_on_way(const struct reader *r);
/* Waits until one of the reads on their way is done. OATO_EIO: it failed; OATO_EFILE: the file ends
 * before. *tag is set in any case. */
oato_status reader_wait(struct reader *r, uint64_t *tag, struct oato_error *err);

/* Called first in main: streams_begin. If a mapped file is truncated, the program then names it and
 * exits with OATO_EFILE instead of dying of SIGBUS; a write beyond RLIMIT_FSIZE fails instead of
 * raising SIGXFSZ. name is stored. */
void program_begin(const char *name);
/* Prints "NAME: warning: text" on stderr, over a line of progress; user is not looked at. */
void program_warn(void *user, const char *text);

/* Prints "NAME: " and a formatted line in the same way: what a program does for a while, or chose.
 */
void program_tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Prints "NAME: text", unless it is empty, on stderr and ends the program with the error's status,
 * from any thread. */
void program_abort(const struct oato_error *err);

/* From here on the program only closes what it has open, and exits with that status; err: what is
 * still to be told, or NULL. If a stage of closing takes longer than OATO_CLOSING_LIMIT seconds
 * (30), the program ends so without it, and a line names the stage. */
void program_ends(int status, const struct oato_error *err);
/* A stage of closing that may wait for others begins, and the one before it is over; NULL: the last
 * one is over. OATO_TRACE_CLOSING=1: each is told on stderr. */
void program_closes(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Returns the status, for main to return. Exit handlers of libraries are a stage, too, if there was
 * any. */
int program_exit(int status);

/* Marks an input file: from now on no outfile replaces it, under whatever path. NULL and files that
 * do not exist are ignored. Called by main before threads start. */
void outfile_keep(const char *path);
/* Fails as outfile_open would now: an input or a GGUF file would be replaced, or nothing can be
 * created there. For programs that compute for a long time before they write. */
oato_status outfile_check(const char *path, struct oato_error *err);

/* A file that appears under its name only when complete: it is written next to it under a temporary
 * name, synced and renamed. An abandoned write leaves the old file in place. Symbolic links are
 * followed, a replaced file keeps its permissions, and devices and pipes are written to directly.
 * */
struct outfile {
    FILE *stream; /* write here with stdio; errors are found at commit */
    char *path, *target, *temporary;
};

oato_status outfile_open(struct outfile *f, const char *path, struct oato_error *err);
/* The same, but also replaces a GGUF file: for callers that checked that this is wanted. */
oato_status outfile_open_over(struct outfile *f, const char *path, struct oato_error *err);
oato_status outfile_write(struct outfile *f, const void *data, size_t bytes,
                          struct oato_error *err);
/* Closes in every case; after a failure the temporary file is gone. */
oato_status outfile_commit(struct outfile *f, struct oato_error *err);
/* The same without waiting for the disk: if the machine loses its power, the file may be damaged
 * under its name. For files that tell when they are, and can be made again. */
oato_status outfile_commit_unsynced(struct outfile *f, struct oato_error *err);
void outfile_abort(struct outfile *f);
/* OATO_EIO when a write to stdout failed. */
oato_status stdout_check(struct oato_error *err);

/* ------------------------------------------------------------------------ element types --- */

/* The numbers are GGUF's tensor types, so that a file's value is cast after a check. */
#define DTYPE_NUMBER(name, number, ...) DT_##name = number,
typedef enum oato_dtype {
    WEIGHT_TYPES(DTYPE_NUMBER) OTHER_TYPES(DTYPE_NUMBER) DT_COUNT = TYPE_NUMBERS
} oato_dtype;
#undef DTYPE_NUMBER

struct dtype_info {
    const char *name;    /* "Q4_K"; NULL for a number that this build does not know */
    int32_t block_elems; /* elements in a block; rows are whole blocks */
    int32_t block_bytes;
};

/* NULL when the type is unknown. */
const struct dtype_info *dtype_info(int dtype);
/* The name, or "?" for an unknown type. */
const char *dtype_name(oato_dtype dtype);
/* True and *out set when name is known (case as printed). */
bool dtype_parse(const char *name, oato_dtype *out);
/* The types of a KV cache, in any case: f16, q8_0 and f32. */
bool dtype_parse_kv(const char *name, oato_dtype *out);
/* False for the integer types and F64, which weights cannot have. */
bool dtype_is_weight(oato_dtype dtype);
/* Bytes of one row of k elements; false when k is no multiple of the block or it overflows. */
bool dtype_row_bytes(oato_dtype dtype, int64_t k, size_t *out);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even */
#define F16_MOST 65504.0f
/* Clamps finite numbers to +-F16_MOST; infinities and NaN are kept. */
uint16_t f32_to_finite_f16(float f);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f); /* round to nearest even, NaN stays NaN */

/* ------------------------------------------------------------------------------ hashing --- */

uint64_t hash_bytes(const void *data, size_t bytes); /* XXH64, seed 0 */

/* A file that was compiled in (cmake/embed.cmake). */
struct embedded_file {
    const char *name; /* without folder and extension */
    const uint8_t *data;
    size_t bytes;
};

struct hash_stream;                    /* XXH64 fed in pieces */
struct hash_stream *hash_create(void); /* NULL when memory is short */
void hash_update(struct hash_stream *h, const void *data, size_t bytes);
uint64_t hash_digest(const struct hash_stream *h);
void hash_free(struct hash_stream *h);

/* --------------------------------------------------------------------------------- text --- */

/* A growing string. After an allocation failure `failed` is set and text stays as it was. */
struct text {
    char *data; /* zero-terminated once anything was added; NULL before */
    size_t len, cap;
    bool failed;
};

void text_init(struct text *t);
/* Makes room for `more` further bytes; false, and `failed` is set, when memory is short. */
bool text_reserve(struct text *t, size_t more);
void text_add(struct text *t, const char *s, size_t n);
void text_printf(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_free(struct text *t);
/* Frees t, whose text was added to `whole`; if t has failed, `whole` is marked failed, too. */
void text_free_part(struct text *t, struct text *whole);
/* Texts from outside may begin with a byte-order mark, which this skips; OATO_EFILE: one of UTF-16
 * or UTF-32. name: of the text, for the message. */
oato_status text_mark_skip(const char *name, const char **s, size_t *n, struct oato_error *err);
void text_ends_unify(char *s, size_t *n); /* "\r\n" and "\r" become "\n", in place */
/* Bytes of the UTF-8 character at s (n > 0): 1..4; 0: valid so far but the text ends; -1: not
 * UTF-8.
 */
int utf8_char(const char *s, size_t n);
bool utf8_is_text(const char *s, size_t n); /* whole characters only */
/* White_Space of Unicode. */
bool char_is_white(uint32_t c);
/* s as the inside of a JSON string: quotes, backslashes and control characters escaped; bytes
 * that are no UTF-8 become U+FFFD. */
void text_add_json(struct text *t, const char *s, size_t n);
/* s as text or attribute of HTML and XML: their five characters as entities; control characters and
 * bytes that are no UTF-8 become U+FFFD. */
void text_add_html(struct text *t, const char *s, size_t n);
/* Makes untrusted text safe for a terminal, in place: invalid UTF-8 and control characters other
 * than newline and tab become '?'. */
void text_tame(char *s, size_t n);
static inline const char *or_empty(const char *s)
{
    return s ? s : "";
}
/* Prints untrusted text: through text_tame on stderr and terminals, unchanged to files and pipes.
 * */
void text_print(FILE *to, const char *s, size_t n);
/* The same of a formatted line on stderr: for names of files, and what users typed. */
void text_tell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* JSON, appended to a text in which only these functions write. */
struct json_field {
    enum {
        JSON_KIND_END,
        JSON_KIND_TEXT,
        JSON_KIND_WORD,
        JSON_KIND_REAL,
        JSON_KIND_WHOLE,
        JSON_KIND_HASH
    } kind;
    const char *key, *text; /* both borrowed */
    double real;
    uint64_t whole;
};
struct json_field json_text(const char *key, const char *value); /* NULL is "" */
struct json_field json_bool(const char *key, bool value);
struct json_field json_number(const char *key, double value); /* six digits; 0 if not finite */
struct json_field json_whole(const char *key, uint64_t value);
struct json_field json_hash(const char *key, uint64_t value); /* as text of 16 hex digits */
/* A member of an object, written as the type of the value says; key NULL inside arrays. In C17
 * true and a < b are ints: json_bool for those. */
#define JSON(key, value)                                                                           \
    _Generic((value), char *: json_text, const char *: json_text, bool: json_bool,                 \
             float: json_number, double: json_number, default: json_whole)(key, value)
/* Adds fields, such as JSON("n", 3), to the object or array that is open. */
#define json_add(t, ...) json_fields(t, (const struct json_field[]){__VA_ARGS__, {JSON_KIND_END}})
/* The same as an object of its own; key NULL inside arrays. */
#define json_add_object(t, key, ...)                                                               \
    (json_open(t, key, '{'), json_add(t, __VA_ARGS__), json_close(t, '}'))
void json_fields(struct text *t, const struct json_field *f); /* JSON_KIND_END is behind the last */
/* A member that is a text of n bytes, which may be zero; s NULL: of none. */
void json_add_slice(struct text *t, const char *key, const char *s, size_t n);
void json_key(struct text *t, const char *key); /* the value follows, by text_printf */
void json_open(struct text *t, const char *key, char bracket);
void json_close(struct text *t, char bracket);

/* "64MiB", "1.5G", "900GB/s" and the like: a number and a unit. K M G T count by 1000, Ki Mi Gi Ti
 * by 1024; a suffix after it must equal `unit` ("B", "B/s", "FLOP/s", "s"), or be missing. For "s"
 * the prefixes are n, u, m. False when the text is malformed or negative. */
bool parse_quantity(const char *s, const char *unit, double *out);
bool parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out);
/* The same for counts (tokens etc.): "4k" is 4096, "1m" 1048576. */
bool parse_count(const char *s, int64_t lo, int64_t hi, int64_t *out);
bool parse_f64(const char *s, double lo, double hi, double *out);
/* The shortest text that reads back as v, which is finite, as Python and JSON write it: a whole
 * number below 1e16 has a zero behind the point, others have an exponent when that is small or
 * large. */
enum { F64_TEXT = 40 };
void print_f64(double v, char text[F64_TEXT]);

/* ----------------------------------------------------------------- share of the machine --- */

/* What this process may use, within its CPU affinity and its control groups. */
struct host_share {
    int32_t processors;       /* logical processors, or a cgroup quota rounded down; at least 1 */
    double quota;             /* processors' worth of time that a cgroup allows; 0: no such limit */
    uint64_t memory_bytes;    /* in all */
    uint64_t available_bytes; /* free, or kept for files that can be read again */
};
/* root: "" for this machine; tests pass a folder with its own /proc and cgroups. */
void host_share_read(const char *root, struct host_share *out);
/* Whether this is a container, as its engine marks it. */
bool host_contained(const char *root);
/* The first line of a file of the system, "/sys/...", without its end; false, and "": none. */
bool host_line(const char *root, const char *path, char *out, size_t bytes);
/* The number behind `key` in such a file of lines "key: number"; 0: there is none. */
uint64_t host_value(const char *root, const char *path, const char *key);
int32_t host_processors(void);
/* Returns `wanted`, limited to host_processors; when limited, `why` holds a line to warn with, else
 * "". */
int32_t host_threads(int32_t wanted, char *why, size_t why_bytes);

/* ------------------------------------------------------------------- time and progress ---- */

uint64_t now_ns(void); /* monotonic */
/* Sorts v, n times of the same work; the one at quantile q in [0, 1], between neighbours. */
double quantile(double *v, int32_t n, double q);

/* Call once per iteration of a loop that waits for another thread's store. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* How many cpu_relax calls take `ns`, measured once: one call takes 5 ns on some processors, 50 on
 * others. */
int32_t spins_in(uint64_t ns);

/* What may be written to a descriptor: whoever writes escape sequences asks first. */
enum terminal {
    TERMINAL_NONE,  /* a file, a pipe */
    TERMINAL_DUMB,  /* text alone: TERM is dumb or not set */
    TERMINAL_LINES, /* lines can be redrawn; no colours, no styles (NO_COLOR) */
    TERMINAL_STYLES,
};
enum terminal terminal_of(int fd);

/* One line on stderr, redrawn in place on a terminal, silent elsewhere. */
struct progress {
    const char *what; /* stored, not copied */
    uint64_t begin_ns, drawn_ns;
    double total;
    bool on, plain; /* plain: it cannot be redrawn */
};

void progress_begin(struct progress *p, const char *what, double total);
/* `done` of `total` so far; note (may be NULL) says what is being worked on. */
void progress_update(struct progress *p, double done, const char *note);
void progress_end(struct progress *p);
/* Takes the line away if one is shown, for other text; the next update draws it again. */
void progress_clear(void);

/* The number of the signal, SIGINT, SIGTERM or SIGHUP, that came since interrupt_catch was called;
 * long loops look at it and stop. A second signal ends the process as usual. One that was ignored
 * when the program began stays ignored. */
#ifndef __cplusplus /* the emulated GPU, which reads this file, has no _Atomic */
extern _Atomic int oato_interrupted;
#endif
void interrupt_catch(void);
/* A process still running this many seconds after such a signal exits with status 130: for long
 * steps that leave nothing to clean up. */
void interrupt_deadline(unsigned seconds);

/* ---------------------------------------------------------------- command-line options ---- */

enum option_kind {
    OPT_FLAG,
    OPT_VALUE,
    OPT_CHOICE, /* may be followed by one of the words of `value`, "on|off" */
    OPT_ANSWER, /* an option of another program: refused; `help` says what to use instead */
};

/* A row of a program's option table; the table ends with a NULL name. */
struct option_row {
    const char *name; /* without dashes: "threads" */
    char letter;      /* 't', or 0 */
    enum option_kind kind;
    const char *value; /* name of the value in the help: "N" */
    const char *help;  /* one line with unit and default; NULL: an alias, not listed */
    int id;            /* what options_next returns */
};
/* The row of an option of another program: text says what to use instead. */
#define OPTION_ANSWER(name, text)                                                                  \
    {                                                                                              \
        name, 0, OPT_ANSWER, NULL, text, 0                                                         \
    }

/* Walks argv: options in any order, "--name=value", "--name value", "-t4", "-t 4", "--" ends
 * them. A misspelt option is refused with the nearest name as a suggestion. */
struct options {
    const struct option_row *rows;
    int argc, index;
    char **argv;
    bool only_operands;
    bool glued;        /* the value is the rest of a word that begins with a letter's row */
    const char *value; /* of the option just returned, or the operand itself */
    const char *name;  /* as written, for messages */
    const struct option_of *of; /* of the option that options_take takes */
};

enum { OPT_END = -1, OPT_OPERAND = -2, OPT_ERROR = -3 };

void options_init(struct options *o, const struct option_row *rows, int argc, char **argv);
/* The id of the row; OPT_OPERAND, OPT_END, or OPT_ERROR with a message in err. */
int options_next(struct options *o, struct oato_error *err);

/* A row of a table that says where a value goes in the program's structure of arguments. */
struct option_of {
    const char *name;
    char letter;
    const char *value, *help; /* as in option_row; value NULL: a flag, "on|off": a choice */
    unsigned verbs;           /* those that have the option, a bit each */
    /* Reads o->value into `to`. */
    oato_status (*take)(const struct options *o, void *to, struct oato_error *err);
    size_t at;          /* of `to` in the structure */
    double least, most; /* for a `take` that has bounds */
};
/* The rows of those among n that one of the verbs has; an id is an index of `all`. Returns how
 * many; an empty row follows them. */
size_t options_rows(const struct option_of *all, size_t n, unsigned verbs, struct option_row *rows);
/* options_next, and the value is taken into the structure: an id means done. */
int options_take(struct options *o, const struct option_of *all, void *into,
                 struct oato_error *err);
/* Takers of a flag, to a bool, and of a text, to a const char *. */
oato_status option_flag(const struct options *o, void *to, struct oato_error *err);
oato_status option_text(const struct options *o, void *to, struct oato_error *err);

/* Prints the rows as aligned help lines. */
void options_help(const struct option_row *rows, FILE *out);
/* The nearest of n names by edit distance, or one that is a prefix of the word or has it as a
 * prefix; NULL when none is near. */
const char *nearest_name(const char *word, const char *const *names, size_t n);
/* Fails where the word, which no verb is, was likely meant for one of n verbs and not for a file.
 */
oato_status verb_check(const char *word, const char *const *verbs, size_t n,
                       struct oato_error *err);

#endif
