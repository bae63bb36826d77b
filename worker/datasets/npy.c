/* Reads NumPy arrays, format versions 1 and 2, with little-endian numbers in C order. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/datasets/dataset.h"

#define HEADER_BYTES_MAX 65536
#define PREAMBLE_BYTES   12 // Magic, version, and the longer form of the header's length.

static const struct {
    const char *descr;
    enum evq_dtype dtype;
} types[] = {
    {"<f4", EVQ_DTYPE_F32}, {"<f8", EVQ_DTYPE_F64}, {"<i8", EVQ_DTYPE_I64},
    {"<i4", EVQ_DTYPE_I32}, {"<i2", EVQ_DTYPE_I16}, {"|i1", EVQ_DTYPE_I8},
    {"<u4", EVQ_DTYPE_U32}, {"<u2", EVQ_DTYPE_U16}, {"|u1", EVQ_DTYPE_U8},
};

struct npy { // The header while it is read.
    const char *path;
    const char *at;
    bool has_descr, has_order, has_shape;
    bool fortran;
    struct evq_array array;
};

static enum evq_status bad(const struct npy *npy, const char *what, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_CORRUPT, "'%s' has a malformed npy header: %s", npy->path,
                         what);
}

static char next(struct npy *npy)
{
    while (*npy->at == ' ' || *npy->at == '\n' || *npy->at == '\t' || *npy->at == '\r') {
        npy->at++;
    }
    return *npy->at;
}

static bool take(struct npy *npy, char wanted)
{
    if (next(npy) != wanted) {
        return false;
    }
    npy->at++;
    return true;
}

/* Reads a quoted word without escapes; false and "" if there is none. */
static bool take_word(struct npy *npy, char *out, size_t out_bytes)
{
    const char quote = next(npy);

    out[0] = '\0';
    if (quote != '\'' && quote != '"') {
        return false;
    }
    const char *start = ++npy->at;
    while (*npy->at != quote && *npy->at != '\0' && *npy->at != '\\') {
        npy->at++;
    }
    const size_t bytes = (size_t)(npy->at - start);
    if (*npy->at != quote || bytes >= out_bytes) {
        return false;
    }
    memcpy(out, start, bytes);
    out[bytes] = '\0';
    npy->at++;
    return true;
}

static enum evq_status take_descr(struct npy *npy, struct evq_error *err)
{
    char descr[64];

    if (next(npy) == '[') {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "'%s' holds records, expected plain numbers",
                             npy->path);
    }
    if (!take_word(npy, descr, sizeof(descr))) {
        return bad(npy, "descr is not a short text", err);
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].descr, descr) == 0) {
            npy->array.dtype = types[i].dtype;
            npy->has_descr = true;
            return EVQ_OK;
        }
    }
    char shown[64 * 4 + 1];
    return evq_error_set(err, EVQ_E_UNSUPPORTED,
                         "'%s' holds '%s', expected <f4, <f8, <i8, <i4, <i2, |i1, <u4, <u2 or |u1",
                         npy->path, evq_error_escape(descr, strlen(descr), shown, sizeof(shown)));
}

static enum evq_status take_order(struct npy *npy, struct evq_error *err)
{
    (void)next(npy);
    if (strncmp(npy->at, "True", 4) == 0) {
        npy->fortran = true;
        npy->at += 4;
    } else if (strncmp(npy->at, "False", 5) == 0) {
        npy->at += 5;
    } else {
        return bad(npy, "fortran_order is neither True nor False", err);
    }
    npy->has_order = true;
    return EVQ_OK;
}

static enum evq_status take_shape(struct npy *npy, struct evq_error *err)
{
    if (!take(npy, '(')) {
        return bad(npy, "shape is not a tuple", err);
    }
    while (next(npy) != ')') {
        char *end = NULL;
        if (npy->array.rank == EVQ_TENSOR_RANK_MAX) {
            return bad(npy, "more than 8 dimensions", err);
        }
        errno = 0;
        const long long size = isdigit((unsigned char)*npy->at) ? strtoll(npy->at, &end, 10) : -1;
        if (size < 0 || errno != 0) {
            return bad(npy, "a dimension is not a whole number", err);
        }
        npy->array.shape[npy->array.rank++] = size;
        npy->at = end;
        if (!take(npy, ',') && next(npy) != ')') {
            return bad(npy, "shape does not end", err);
        }
    }
    npy->at++;
    npy->has_shape = true;
    return EVQ_OK;
}

static enum evq_status parse_header(struct npy *npy, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char key[32];

    if (!take(npy, '{')) {
        return bad(npy, "expected {", err);
    }
    while (next(npy) != '}') {
        if (!take_word(npy, key, sizeof(key)) || !take(npy, ':')) {
            return bad(npy, "expected 'key':", err);
        }
        if (strcmp(key, "descr") == 0 && !npy->has_descr) {
            status = take_descr(npy, err);
        } else if (strcmp(key, "fortran_order") == 0 && !npy->has_order) {
            status = take_order(npy, err);
        } else if (strcmp(key, "shape") == 0 && !npy->has_shape) {
            status = take_shape(npy, err);
        } else {
            status = bad(npy, "an unknown or repeated key", err);
        }
        if (status != EVQ_OK) {
            return status;
        }
        if (!take(npy, ',') && next(npy) != '}') {
            return bad(npy, "expected , or }", err);
        }
    }
    npy->at++;
    if (next(npy) != '\0') {
        return bad(npy, "text after }", err);
    }
    if (!npy->has_descr || !npy->has_order || !npy->has_shape) {
        return bad(npy, "descr, fortran_order or shape is missing", err);
    }
    if (npy->array.rank == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' is a single number, expected an array of samples", npy->path);
    }
    if (npy->fortran && npy->array.rank > 1) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s' is in Fortran order, expected C order (numpy.ascontiguousarray)",
                             npy->path);
    }
    return EVQ_OK;
}

static enum evq_status read_preamble(int fd, const char *path, uint64_t held, size_t *ret_start,
                                     size_t *ret_length, struct evq_error *err)
{
    uint8_t head[PREAMBLE_BYTES] = {0};

    enum evq_status status =
        evq_file_read_at(fd, head, held < sizeof(head) ? (size_t)held : sizeof(head), 0, path, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (held < sizeof(head)) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' ends too early: %" PRIu64 " bytes are not an npy file", path,
                             held);
    }
    if (memcmp(head, "\x93NUMPY", 6) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "'%s' is not an npy file: it does not begin with \\x93NUMPY", path);
    }
    if (head[6] != 1 && head[6] != 2) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s' has npy format version %d, expected 1 or 2", path, head[6]);
    }
    const size_t length = head[6] == 1 ? (size_t)head[8] | (size_t)head[9] << 8
                                       : (size_t)head[8] | (size_t)head[9] << 8 |
                                             (size_t)head[10] << 16 | (size_t)head[11] << 24;
    *ret_start = head[6] == 1 ? 10 : 12;
    if (length > HEADER_BYTES_MAX || length + *ret_start > held) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "'%s' has an npy header of %zu bytes, expected at most %d within its %" PRIu64 " bytes",
            path, length, HEADER_BYTES_MAX, held);
    }
    *ret_length = length;
    return EVQ_OK;
}

static enum evq_status read_array(int fd, uint64_t held, const struct evq_array_source *source,
                                  struct npy *npy, char *text, struct evq_error *err)
{
    size_t start = 0;
    size_t length = 0;

    enum evq_status status = read_preamble(fd, source->path, held, &start, &length, err);
    if (status == EVQ_OK) {
        status = evq_file_read_at(fd, text, length, start, source->path, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    text[length] = '\0';
    if (strlen(text) != length) {
        return bad(npy, "a NUL byte", err);
    }
    npy->at = text;
    status = parse_header(npy, err);
    if (status != EVQ_OK) {
        return status;
    }
    const uint64_t data = held - start - length;
    uint64_t wanted = evq_dtype_bytes(npy->array.dtype);
    bool fits = true;
    for (int32_t i = 0; i < npy->array.rank; i++) {
        fits = fits && !__builtin_mul_overflow(wanted, (uint64_t)npy->array.shape[i], &wanted);
    }
    if (!fits || wanted != data) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "'%s' holds %" PRIu64 " bytes of values, expected %s%" PRIu64 " by its shape",
            source->path, data, fits ? "" : "more than ", fits ? wanted : UINT64_MAX);
    }
    status = evq_array_alloc(&npy->array, source, err);
    return status == EVQ_OK ? evq_file_read_at(fd, npy->array.data, npy->array.bytes,
                                               start + length, source->path, err)
                            : status;
}

static enum evq_status npy_read(const struct evq_array_source *source, struct evq_array *ret_array,
                                struct evq_error *err)
{
    struct npy npy = {.path = source->path};
    struct stat info;
    int fd = -1;

    enum evq_status status = evq_array_open_file(source->path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    char *text = malloc(HEADER_BYTES_MAX + 1);
    status = text != NULL ? read_array(fd, (uint64_t)info.st_size, source, &npy, text, err)
                          : evq_error_set(err, EVQ_E_NOMEM, "'%s'", source->path);
    free(text);
    (void)close(fd); // It was opened for reading, so a failed close loses nothing.
    if (status != EVQ_OK) {
        free(npy.array.data);
        return status;
    }
    *ret_array = npy.array;
    return EVQ_OK;
}

const struct evq_dataset_format evq_dataset_npy = {.name = "npy", .read = npy_read};
