/* Data set files, good and hostile. Every bad one is refused with a sentence that names the file.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>
#include <zlib.h>

#include "worker/datasets/dataset.h"

struct fixture {
    char directory[64];
};

static int setup(void **state)
{
    static struct fixture fixture;

    (void)snprintf(fixture.directory, sizeof(fixture.directory), "/tmp/evalq-data-XXXXXX");
    if (mkdtemp(fixture.directory) == NULL) {
        return -1;
    }
    *state = &fixture;
    return 0;
}

static const char *const names[] = {"x", "x.idx", "x.npy", "y.npy", "y.idx", "x.gz", "pipe"};

static int teardown(void **state)
{
    struct fixture *fx = *state;
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, names[i]);
        (void)unlink(path);
    }
    return rmdir(fx->directory);
}

static void write_file(const struct fixture *fx, const char *name, const void *bytes, size_t count)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void write_gz(const struct fixture *fx, const char *name, const void *bytes, size_t count)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned int)count), (int)count);
    assert_int_equal(gzclose(file), Z_OK);
}

/* version, header text as it is, then the values. Padded to 64 bytes as NumPy does. */
static size_t make_npy(uint8_t *out, int version, const char *header, const void *values,
                       size_t bytes)
{
    const size_t start = version == 1 ? 10 : 12;
    const size_t length = strlen(header);
    const size_t padded = (start + length + 1 + 63) / 64 * 64 - start;

    memcpy(out, "\x93NUMPY", 6);
    out[6] = (uint8_t)version;
    out[7] = 0;
    out[8] = (uint8_t)(padded & 255);
    out[9] = (uint8_t)(padded >> 8);
    if (version == 2) {
        out[10] = out[11] = 0;
    }
    memset(out + start, ' ', padded);
    memcpy(out + start, header, length);
    out[start + padded - 1] = '\n';
    if (bytes > 0) {
        memcpy(out + start + padded, values, bytes);
    }
    return start + padded + bytes;
}

static enum evq_status read_with(const struct evq_dataset_format *format, const struct fixture *fx,
                                 const char *name, size_t bytes_max, struct evq_array *array,
                                 struct evq_error *err)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    const struct evq_array_source source = {path, bytes_max};
    return format->read(&source, array, err);
}

static size_t refused; // Files that are as no writer writes them.

static void refuse(const struct evq_dataset_format *format, const struct fixture *fx,
                   const char *name, enum evq_status wanted, const char *words)
{
    struct evq_array array = {0};
    struct evq_error err = {0};

    const enum evq_status status = read_with(format, fx, name, 1 << 20, &array, &err);
    if (status != wanted || strstr(err.message, words) == NULL ||
        strstr(err.message, name) == NULL) {
        fail_msg("status %s, message \"%s\"; expected %s with \"%s\"", evq_status_name(status),
                 err.message, evq_status_name(wanted), words);
    }
    assert_null(array.data);
    refused++;
}

static void npy_reads_both_versions_and_all_types(void **state)
{
    struct fixture *fx = *state;
    uint8_t file[1024];
    struct evq_array array = {0};
    struct evq_error err = {0};
    const double numbers[] = {1.5, -2.0, 3.0, 4.0, 5.0, 6.25};
    static const struct {
        const char *descr;
        enum evq_dtype dtype;
    } types[] = {{"<f4", EVQ_DTYPE_F32}, {"<f8", EVQ_DTYPE_F64}, {"<i8", EVQ_DTYPE_I64},
                 {"<i4", EVQ_DTYPE_I32}, {"<i2", EVQ_DTYPE_I16}, {"|i1", EVQ_DTYPE_I8},
                 {"|u1", EVQ_DTYPE_U8}};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        char header[128];
        (void)snprintf(header, sizeof(header),
                       "{'descr': '%s', 'fortran_order': False, 'shape': (3, 2), }",
                       types[i].descr);
        const size_t bytes = 6 * evq_dtype_bytes(types[i].dtype);
        write_file(fx, "x.npy", file, make_npy(file, 1 + (int)(i % 2), header, numbers, bytes));
        assert_int_equal(read_with(&evq_dataset_npy, fx, "x.npy", 1000, &array, &err), EVQ_OK);
        assert_int_equal(array.dtype, types[i].dtype);
        assert_int_equal(array.rank, 2);
        assert_int_equal(array.shape[0], 3);
        assert_int_equal(array.bytes, bytes);
        assert_memory_equal(array.data, numbers, bytes);
        free(array.data);
    }
}

static void npy_refuses_hostile_headers(void **state)
{
    static const struct {
        const char *header;
        enum evq_status status;
        const char *words;
    } cases[] = {
        {"", EVQ_E_CORRUPT, "expected {"},
        {"{", EVQ_E_CORRUPT, "'key'"},
        {"{}", EVQ_E_CORRUPT, "missing"},
        {"{'descr': '<f4'}", EVQ_E_CORRUPT, "missing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,)} x", EVQ_E_CORRUPT, "text after"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (4,)}", EVQ_E_UNSUPPORTED, ">f4"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (4,)}", EVQ_E_UNSUPPORTED, "|O"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,)}", EVQ_E_UNSUPPORTED,
         "records"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", EVQ_E_UNSUPPORTED, "Fortran"},
        {"{'descr': '<f4', 'fortran_order': None, 'shape': (4,)}", EVQ_E_CORRUPT, "fortran_order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': ()}", EVQ_E_INVALID, "single number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}", EVQ_E_CORRUPT, "whole number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4.5,)}", EVQ_E_CORRUPT,
         "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
         EVQ_E_CORRUPT, "whole number"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
         EVQ_E_CORRUPT, "more than"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", EVQ_E_CORRUPT, "expected 20"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", EVQ_E_CORRUPT, "expected 12"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", EVQ_E_CORRUPT, "expected 0"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,4)}", EVQ_E_CORRUPT,
         "dimensions"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", EVQ_E_CORRUPT,
         "repeated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 1}", EVQ_E_CORRUPT,
         "unknown"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4", EVQ_E_CORRUPT, "does not end"},
        {"{'descr': '<f4", EVQ_E_CORRUPT, "descr"},
        {"__import__('os').system('true')", EVQ_E_CORRUPT, "expected {"},
    };
    struct fixture *fx = *state;
    const float values[] = {1.0f, 2.0f, 3.0f, 4.0f};
    uint8_t file[1024];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(fx, "x.npy", file, make_npy(file, 1, cases[i].header, values, sizeof(values)));
        refuse(&evq_dataset_npy, fx, "x.npy", cases[i].status, cases[i].words);
    }
}

static void npy_refuses_broken_files(void **state)
{
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}";
    struct fixture *fx = *state;
    const float values[] = {1.0f, 2.0f, 3.0f, 4.0f};
    uint8_t file[1024];

    const size_t bytes = make_npy(file, 1, header, values, sizeof(values));
    for (size_t cut = 0; cut < bytes; cut++) {
        struct evq_array array = {0};
        struct evq_error err = {0};
        write_file(fx, "x.npy", file, cut);
        assert_int_equal(read_with(&evq_dataset_npy, fx, "x.npy", 1000, &array, &err),
                         EVQ_E_CORRUPT);
        assert_non_null(strstr(err.message, "x.npy"));
    }
    file[6] = 3;
    write_file(fx, "x.npy", file, bytes);
    refuse(&evq_dataset_npy, fx, "x.npy", EVQ_E_UNSUPPORTED, "version 3");
    file[6] = 2;
    memset(file + 8, 255, 4);
    write_file(fx, "x.npy", file, bytes);
    refuse(&evq_dataset_npy, fx, "x.npy", EVQ_E_CORRUPT, "at most");
    file[0] = 'N';
    write_file(fx, "x.npy", file, bytes);
    refuse(&evq_dataset_npy, fx, "x.npy", EVQ_E_CORRUPT, "not an npy file");
    make_npy(file, 1, header, values, sizeof(values));
    file[40] = '\0';
    write_file(fx, "x.npy", file, bytes);
    refuse(&evq_dataset_npy, fx, "x.npy", EVQ_E_CORRUPT, "NUL");
    refuse(&evq_dataset_npy, fx, "missing.npy", EVQ_E_NOT_FOUND, "No such file");
}

static void idx_reads_plain_and_compressed(void **state)
{
    static const uint8_t file[] = {0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255};
    struct fixture *fx = *state;
    struct evq_array array = {0};
    struct evq_error err = {0};

    for (int packed = 0; packed < 2; packed++) {
        if (packed) {
            write_gz(fx, "x.idx", file, sizeof(file));
        } else {
            write_file(fx, "x.idx", file, sizeof(file));
        }
        assert_int_equal(read_with(&evq_dataset_idx, fx, "x.idx", 6, &array, &err), EVQ_OK);
        assert_int_equal(array.rank, 2);
        assert_int_equal(array.shape[1], 3);
        assert_memory_equal(array.data, file + 12, 6);
        free(array.data);
        assert_int_equal(read_with(&evq_dataset_idx, fx, "x.idx", 5, &array, &err), EVQ_E_LIMIT);
    }
}

static void idx_refuses_hostile_files(void **state)
{
    static const struct {
        const char *bytes;
        size_t count;
        enum evq_status status;
        const char *words;
    } cases[] = {
        {"", 0, EVQ_E_CORRUPT, "too early"},
        {"\0\0\x08", 3, EVQ_E_CORRUPT, "too early"},
        {"\0\0\x08\1\0\0", 6, EVQ_E_CORRUPT, "too early"},
        {"PNG\1\0\0\0\1x", 9, EVQ_E_CORRUPT, "not an IDX file"},
        {"\0\0\x0d\1\0\0\0\1xxxx", 12, EVQ_E_UNSUPPORTED, "0x0d"},
        {"\0\0\x08\0", 4, EVQ_E_CORRUPT, "0 dimensions"},
        {"\0\0\x08\x09", 4, EVQ_E_CORRUPT, "9 dimensions"},
        {"\0\0\x08\1\0\0\0\2x", 9, EVQ_E_CORRUPT, "says it holds 2"},
        {"\0\0\x08\1\0\0\0\1xx", 10, EVQ_E_CORRUPT, "says it holds 1"},
        {"\0\0\x08\1\0\0\0\0", 8, EVQ_E_INVALID, "empty"},
        {"\0\0\x08\1\xff\xff\xff\xffx", 9, EVQ_E_CORRUPT, "4294967295"},
        {"\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffx", 17, EVQ_E_CORRUPT,
         "more than"},
    };
    struct fixture *fx = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(fx, "x.idx", cases[i].bytes, cases[i].count);
        refuse(&evq_dataset_idx, fx, "x.idx", cases[i].status, cases[i].words);
        if (cases[i].count > 0) {
            write_gz(fx, "x.gz", cases[i].bytes, cases[i].count);
            struct evq_array array = {0};
            struct evq_error err = {0};
            assert_int_not_equal(read_with(&evq_dataset_idx, fx, "x.gz", 1 << 20, &array, &err),
                                 EVQ_OK);
            assert_non_null(strstr(err.message, "x.gz"));
        }
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* In a process of its own: status of reading x.idx.gz with no room for zlib's buffers. */
static enum evq_status read_without_room(const struct fixture *fx)
{
    struct evq_array array = {0};
    struct evq_error err = {0};
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file == NULL || fscanf(file, "%llu", &pages) != 1) {
        return EVQ_E_BUG;
    }
    (void)fclose(file);
    const rlim_t limit = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + 65536;
    if (setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) != 0) {
        return EVQ_E_BUG;
    }
    for (void *volatile taken = &err; taken != NULL;) {
        taken = malloc(131072); // What is free already.
    }
    return read_with(&evq_dataset_idx, fx, "x.gz", 1 << 20, &array, &err);
}
#endif

/* A file that could not be unpacked for want of memory is not damaged: its job is tried again. */
static void idx_that_finds_no_memory_is_not_damaged(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); // They reserve more than any limit.
#else
    static const uint8_t bytes[] = {0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3};
    int wait_status = 0;

    write_gz(*state, "x.gz", bytes, sizeof(bytes));
    const pid_t pid = fork();
    if (pid == 0) {
        _exit((int)read_without_room(*state));
    }
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_true(WIFEXITED(wait_status));
    assert_int_equal(WEXITSTATUS(wait_status), EVQ_E_NOMEM);
#endif
}

static void idx_refuses_damaged_gzip(void **state)
{
    struct fixture *fx = *state;
    uint8_t plain[4096 + 8] = {0, 0, 8, 1, 0, 0, 16, 0};
    uint8_t packed[8192];
    char path[128];

    for (size_t i = 0; i < 4096; i++) {
        plain[8 + i] = (uint8_t)(i * 2654435761u >> 13); // Does not compress: errors show at once.
    }
    write_gz(fx, "x.gz", plain, sizeof(plain));
    (void)snprintf(path, sizeof(path), "%s/x.gz", fx->directory);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t bytes = fread(packed, 1, sizeof(packed), file);
    assert_int_equal(fclose(file), 0);
    for (size_t cut = 1; cut < bytes; cut += cut < 40 || cut > bytes - 20 ? 1 : 101) {
        struct evq_array array = {0};
        struct evq_error err = {0};
        write_file(fx, "x.gz", packed, cut);
        assert_int_equal(read_with(&evq_dataset_idx, fx, "x.gz", 1 << 20, &array, &err),
                         EVQ_E_CORRUPT);
    }
    packed[bytes - 6] ^= 1; // The checksum.
    write_file(fx, "x.gz", packed, bytes);
    refuse(&evq_dataset_idx, fx, "x.gz", EVQ_E_CORRUPT, "");
    packed[bytes - 6] ^= 1;
    packed[bytes / 2] ^= 16;
    write_file(fx, "x.gz", packed, bytes);
    refuse(&evq_dataset_idx, fx, "x.gz", EVQ_E_CORRUPT, "");
    plain[6] = 8; // Says half of what it holds.
    write_gz(fx, "x.gz", plain, sizeof(plain));
    refuse(&evq_dataset_idx, fx, "x.gz", EVQ_E_CORRUPT, "more bytes");
}

static void idx_refuses_a_pipe_without_waiting(void **state)
{
    struct fixture *fx = *state;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/pipe", fx->directory);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(&evq_dataset_idx, fx, "pipe", EVQ_E_INVALID, "regular file");
    refuse(&evq_dataset_npy, fx, "pipe", EVQ_E_INVALID, "regular file");
}

/* Two inputs a sample, three samples, labels 0 1 2. */
static void write_pair(const struct fixture *fx)
{
    static const uint8_t x[] = {0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 2, 10, 20, 30, 40, 50, 60};
    static const uint8_t y[] = {0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2};

    write_file(fx, "x.idx", x, sizeof(x));
    write_file(fx, "y.idx", y, sizeof(y));
}

static void dataset_scales_limits_and_strides(void **state)
{
    struct fixture *fx = *state;
    const struct evq_pair data[] = {{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"},
                                    {"scale", "1/10"}, {"shift", "-1"},     {"limit", "2"}};
    struct evq_task_config task = {
        .name = "t", .type = "classification", .data = data, .data_count = 5};
    struct evq_dataset *all = NULL;
    struct evq_dataset *some = NULL;
    struct evq_error err = {0};
    float inputs[4];
    int32_t labels[2];

    write_pair(fx);
    assert_int_equal(evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &all, &err), EVQ_OK);
    assert_int_equal(all->count, 3);
    assert_int_equal(all->columns, 2);
    evq_dataset_inputs(all, 0, 2, 2, inputs);
    assert_true(fabsf(inputs[0]) < 1e-6f && fabsf(inputs[3] - 5.0f) < 1e-6f);
    evq_dataset_labels(all, 0, 2, 2, labels);
    assert_int_equal(labels[1], 2);
    assert_int_equal(evq_dataset_check_labels(all, 3, &err), EVQ_OK);
    assert_int_equal(evq_dataset_check_labels(all, 2, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "sample 2"));
    assert_non_null(strstr(err.message, "label 2, expected 0 to 1"));
    task.data_count = 6;
    assert_false(evq_dataset_current(all, &task, EVQ_ANSWER_LABELS, fx->directory));
    assert_int_equal(evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &some, &err),
                     EVQ_OK);
    assert_int_equal(some->count, 2);
    assert_string_not_equal(all->digest, some->digest);
    assert_int_equal(strlen(all->digest), 32);
    assert_true(evq_dataset_current(some, &task, EVQ_ANSWER_LABELS, fx->directory));
    write_file(fx, "y.idx", "", 0);
    assert_false(evq_dataset_current(some, &task, EVQ_ANSWER_LABELS, fx->directory));
    evq_dataset_free(all);
    evq_dataset_free(some);
    evq_dataset_free(NULL);
}

/* An id of a sample is made of the hash, so a kept hash must be that of its own inputs. */
static void dataset_hashes_are_kept_for_each_sample(void **state)
{
    struct fixture *fx = *state;
    const struct evq_pair data[] = {{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"}};
    const struct evq_task_config task = {
        .name = "t", .type = "classification", .data = data, .data_count = 3};
    const float nothing[2] = {0};
    struct evq_dataset *dataset = NULL;
    struct evq_error err = {0};
    float inputs[6];
    uint64_t hashes[3];

    write_pair(fx);
    assert_int_equal(evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &dataset, &err),
                     EVQ_OK);
    assert_int_equal(evq_dataset_bytes(dataset),
                     dataset->inputs.bytes + dataset->answers.bytes + sizeof hashes);
    evq_dataset_inputs(dataset, 0, 1, 3, inputs);
    for (int32_t i = 0; i < 3; i++) {
        hashes[i] = evq_dataset_hash(dataset, i, inputs + 2 * i);
        assert_int_equal(hashes[i], XXH3_64bits(inputs + 2 * i, 2 * sizeof *inputs));
    }
    for (int32_t i = 0; i < 3; i++) { // The inputs are not read again.
        assert_int_equal(evq_dataset_hash(dataset, i, nothing), hashes[i]);
    }
    evq_dataset_free(dataset);
}

static void dataset_refuses_what_does_not_fit(void **state)
{
    static const struct {
        struct evq_pair data[4];
        const char *words;
    } cases[] = {
        {{{"format", "csv"}, {"inputs", "x.idx"}, {"labels", "y.idx"}, {"scale", "1"}},
         "format 'csv' is not known"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"scale", "1"}, {"shift", "1"}},
         "labels is missing"},
        {{{"format", "idx"}, {"labels", "y.idx"}, {"scale", "1"}, {"shift", "1"}},
         "inputs is missing"},
        {{{"format", "safetensors"}, {"inputs", "x"}, {"labels", "y"}, {"scale", "1"}},
         "format 'safetensors' is not known"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"}, {"scal", "1"}},
         "'scal' is not known"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"}, {"scale", "1/0"}},
         "scale is '1/0'"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"}, {"scale", "nan"}},
         "scale is 'nan'"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "y.idx"}, {"limit", "0"}},
         "limit is '0'"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "x.idx"}, {"limit", "1"}},
         "2 values a sample"},
        {{{"format", "idx"}, {"inputs", "x.idx"}, {"labels", "x"}, {"limit", "1"}},
         "3 samples, but"},
        {{{"format", "idx"}, {"inputs", "gone"}, {"labels", "y.idx"}, {"limit", "1"}}, "gone"},
    };
    static const uint8_t four[] = {0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 3};
    struct fixture *fx = *state;

    write_pair(fx);
    write_file(fx, "x", four, sizeof(four));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct evq_task_config task = {
            .name = "t", .type = "classification", .data = cases[i].data, .data_count = 4};
        struct evq_dataset *dataset = NULL;
        struct evq_error err = {0};
        assert_int_not_equal(
            evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &dataset, &err), EVQ_OK);
        if (strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
}

static void dataset_refuses_wrong_labels(void **state)
{
    const struct evq_pair data[] = {{"format", "npy"}, {"inputs", "x.npy"}, {"labels", "y.npy"}};
    const struct evq_task_config task = {
        .name = "t", .type = "classification", .data = data, .data_count = 3};
    static const char floats[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
    static const char integers[] = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
    const float values[] = {1.0f, 2.0f};
    const int64_t labels[] = {1, -1};
    struct fixture *fx = *state;
    struct evq_dataset *dataset = NULL;
    struct evq_error err = {0};
    uint8_t file[256];

    size_t bytes = make_npy(file, 1, floats, values, sizeof(values));
    write_file(fx, "x.npy", file, bytes);
    write_file(fx, "y.npy", file, bytes);
    assert_int_equal(evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &dataset, &err),
                     EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "whole numbers"));
    bytes = make_npy(file, 1, integers, labels, sizeof(labels));
    write_file(fx, "y.npy", file, bytes);
    assert_int_equal(evq_dataset_open(&task, EVQ_ANSWER_LABELS, fx->directory, &dataset, &err),
                     EVQ_OK);
    assert_int_equal(evq_dataset_check_labels(dataset, 5, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "label -1"));
    evq_dataset_free(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(npy_reads_both_versions_and_all_types, setup, teardown),
        cmocka_unit_test_setup_teardown(npy_refuses_hostile_headers, setup, teardown),
        cmocka_unit_test_setup_teardown(npy_refuses_broken_files, setup, teardown),
        cmocka_unit_test_setup_teardown(idx_reads_plain_and_compressed, setup, teardown),
        cmocka_unit_test_setup_teardown(idx_refuses_hostile_files, setup, teardown),
        cmocka_unit_test_setup_teardown(idx_refuses_damaged_gzip, setup, teardown),
        cmocka_unit_test_setup_teardown(idx_that_finds_no_memory_is_not_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(idx_refuses_a_pipe_without_waiting, setup, teardown),
        cmocka_unit_test_setup_teardown(dataset_scales_limits_and_strides, setup, teardown),
        cmocka_unit_test_setup_teardown(dataset_hashes_are_kept_for_each_sample, setup, teardown),
        cmocka_unit_test_setup_teardown(dataset_refuses_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(dataset_refuses_wrong_labels, setup, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("%zu files of samples refused\n", refused);
    return failed;
}
