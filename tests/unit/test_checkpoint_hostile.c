/* Headers, indexes and directories that mean harm or are none: each refused with its fault; no
 * changed byte crashes a reader. */
#include "hostile_checkpoint.h"
#include "shared/checkpoint/checkpoint_builder.h"

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

static const struct {
    const char *header;
    size_t header_bytes; // 0: strlen.
    size_t data_bytes;
    enum evq_status status;
    const char *holds;
} headers[] = {
    // JSON that is none.
    {" ", 0, 0, EVQ_E_CORRUPT, "a value was expected"},
    {"{", 0, 0, EVQ_E_CORRUPT, "ends at byte 1 where a quoted key"},
    {"{}x", 0, 0, EVQ_E_CORRUPT, "where the end was expected"},
    {"{}{}", 0, 0, EVQ_E_CORRUPT, "where the end was expected"},
    {"{}\0", 3, 0, EVQ_E_CORRUPT, "JSON byte 2 is 0x00"},
    {"[]", 0, 0, EVQ_E_CORRUPT, "an object was expected"},
    {"null", 0, 0, EVQ_E_CORRUPT, "an object was expected"},
    {"{,}", 0, 0, EVQ_E_CORRUPT, "a quoted key"},
    {"{\"a\"}", 0, 0, EVQ_E_CORRUPT, "':'"},
    {"{a:1}", 0, 0, EVQ_E_CORRUPT, "a quoted key"},
    {"{'a':1}", 0, 0, EVQ_E_CORRUPT, "a quoted key"},
    {"{\"a\":}", 0, 0, EVQ_E_CORRUPT, "a value was expected"},
    {"{\"a\":nul}", 0, 0, EVQ_E_CORRUPT, "a value was expected"},
    {"{\"a\":" T("I8", "1", "0,1") ",}", 0, 1, EVQ_E_CORRUPT, "a quoted key"},
    {"{\"a\":" T("I8", "1", "0,1") "]", 0, 1, EVQ_E_CORRUPT, "',' or '}'"},
    {"{\"a\":" T("I8", "1,", "0,1") "}", 0, 1, EVQ_E_CORRUPT, "a value was expected"},
    {"{/**/}", 0, 0, EVQ_E_CORRUPT, "a quoted key"},
    {"\xef\xbb\xbf{}", 0, 0, EVQ_E_CORRUPT, "a value was expected"},
    {"{\"a\nb\":{}}", 0, 0, EVQ_E_CORRUPT, "no control byte"},
    {"{\"a\\qb\":{}}", 0, 0, EVQ_E_CORRUPT, "after a backslash"},
    {"{\"a\\u12g4\":{}}", 0, 0, EVQ_E_CORRUPT, "four hexadecimal digits"},
    {"{\"a\\u1", 0, 0, EVQ_E_CORRUPT, "four hexadecimal digits"},
    {"{\"a\\", 0, 0, EVQ_E_CORRUPT, "an escape"},
    {"{\"a\\ud800\":{}}", 0, 0, EVQ_E_CORRUPT, "second half of a surrogate"},
    {"{\"a\\ud800\\u0041\":{}}", 0, 0, EVQ_E_CORRUPT, "second half of a surrogate"},
    {"{\"a\\ud800\\", 0, 0, EVQ_E_CORRUPT, "second half of a surrogate"},
    {"{\"a\\udc00\":{}}", 0, 0, EVQ_E_CORRUPT, "half of a surrogate pair alone"},
    {"{\"a\\u0000b\":{}}", 0, 0, EVQ_E_CORRUPT, "a NUL inside a string"},
    {"{\"a\0b\":{}}", 10, 0, EVQ_E_CORRUPT, "no control byte"},
    // UTF-8 that is none.
    {"{\"\xff\":{}}", 0, 0, EVQ_E_CORRUPT, "header byte 2 is not UTF-8"},
    {"{\"\xc0\x80\":{}}", 0, 0, EVQ_E_CORRUPT, "is not UTF-8"},
    {"{\"\xed\xa0\x80\":{}}", 0, 0, EVQ_E_CORRUPT, "is not UTF-8"},
    {"{\"\xf4\x90\x80\x80\":{}}", 0, 0, EVQ_E_CORRUPT, "is not UTF-8"},
    {"{\"\xe0\x80\xaf\":{}}", 0, 0, EVQ_E_CORRUPT, "is not UTF-8"},
    {"{\"abcdefgh\xc3", 0, 0, EVQ_E_CORRUPT, "is not UTF-8"},
    // The schema.
    {"{\"a\":1}", 0, 0, EVQ_E_CORRUPT, "tensor 'a': an object was expected"},
    {"{\"a\":{}}", 0, 0, EVQ_E_CORRUPT, "tensor 'a': dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\"}}", 0, 0, EVQ_E_CORRUPT, "shape is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, 4, EVQ_E_CORRUPT, "data_offsets is missing"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, EVQ_E_CORRUPT, "dtype is missing"},
    {"{\"a\":" T("F31", "1", "0,4") "}", 0, 4, EVQ_E_UNSUPPORTED, "unknown dtype 'F31'"},
    {"{\"a\":" T("f32", "1", "0,4") "}", 0, 4, EVQ_E_UNSUPPORTED, "unknown dtype 'f32'"},
    {"{\"a\":" T("\\u001b[2J", "1", "0,4") "}", 0, 4, EVQ_E_UNSUPPORTED,
     "unknown dtype '\\x1b[2J'"},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 0, 4, EVQ_E_CORRUPT,
     "a string as dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 0, 4, EVQ_E_CORRUPT,
     "an array as shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":4}}", 0, 4, EVQ_E_CORRUPT,
     "an array as data_offsets"},
    {"{\"a\":" T("F32", "-1", "0,4") "}", 0, 4, EVQ_E_CORRUPT,
     "shape holds something else than non-negative"},
    {"{\"a\":" T("F32", "1.0", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "shape holds something else"},
    {"{\"a\":" T("F32", "1e0", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "shape holds something else"},
    {"{\"a\":" T("F32", "01", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "',' or ']'"},
    {"{\"a\":" T("F32", "+1", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "a value was expected"},
    {"{\"a\":" T("F32", "1.", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "a digit after the point"},
    {"{\"a\":" T("F32", "1e", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "a digit of the exponent"},
    {"{\"a\":" T("F32", "-", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "a digit"},
    {"{\"a\":" T("F32", "NaN", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "a value was expected"},
    {"{\"a\":" T("F32", "\"1\"", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "shape holds something else"},
    {"{\"a\":" T("F32", "[1]", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "shape holds something else"},
    {"{\"a\":" T("F32", "null", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "shape holds something else"},
    {"{\"a\":" T("F32", "99999999999999999999", "0,4") "}", 0, 4, EVQ_E_CORRUPT,
     "shape holds something else"},
    {"{\"a\":" T("F32", "1,1,1,1,1,1,1,1,1", "0,4") "}", 0, 4, EVQ_E_LIMIT,
     "shape has more than 8 numbers"},
    {"{\"a\":" T("F32", "1", "0") "}", 0, 4, EVQ_E_CORRUPT,
     "data_offsets has 1 numbers, expected 2"},
    {"{\"a\":" T("F32", "1", "0,4,4") "}", 0, 4, EVQ_E_LIMIT, "data_offsets has more than 2"},
    {"{\"a\":" T("F32", "1", "-4,0") "}", 0, 4, EVQ_E_CORRUPT, "data_offsets holds something else"},
    {"{\"a\":" T("F32", "1", "0,4.0") "}", 0, 4, EVQ_E_CORRUPT,
     "data_offsets holds something else"},
    // Duplicates: readers differ in which one counts.
    {"{\"a\":" T("I8", "1", "0,1") ",\"a\":" T("I8", "1", "1,2") "}", 0, 2, EVQ_E_CORRUPT,
     "duplicate tensor name 'a'"},
    {"{\"a\":" T("I8", "1", "0,1") ",\"\\u0061\":" T("I8", "1", "1,2") "}", 0, 2, EVQ_E_CORRUPT,
     "duplicate tensor name 'a'"},
    {"{\"a\":" T("I8", "0", "0,0") ",\"a\":" T("I8", "1", "0,1") "}", 0, 1, EVQ_E_CORRUPT,
     "duplicate tensor name 'a'"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1,
     EVQ_E_CORRUPT, "duplicate key 'dtype'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"shape\":[1],\"data_offsets\":[0,1]}}", 0, 1,
     EVQ_E_CORRUPT, "duplicate key 'shape'"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"data_offsets\":[0,1]}}", 0, 1,
     EVQ_E_CORRUPT, "duplicate key 'data_offsets'"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, EVQ_E_CORRUPT,
     "duplicate key '__metadata__'"},
    {"{\"__metadata__\":{\"k\":\"1\",\"j\":\"2\",\"k\":\"3\"}}", 0, 0, EVQ_E_CORRUPT,
     "duplicate key 'k' in __metadata__"},
    {"{\"__metadata__\":{\"k\":1}}", 0, 0, EVQ_E_CORRUPT, "a string as value in __metadata__"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, 0, EVQ_E_CORRUPT, "a string as value in __metadata__"},
    {"{\"__metadata__\":[]}", 0, 0, EVQ_E_CORRUPT, "an object as __metadata__"},
    {"{\"__metadata__\":null}", 0, 0, EVQ_E_CORRUPT, "an object as __metadata__"},
    // Places: overlap, gap, order, what is missing, what is too much.
    {"{\"a\":" T("I8", "2", "0,2") ",\"b\":" T("I8", "2", "1,3") "}", 0, 3, EVQ_E_CORRUPT,
     "'b' begins at data byte 1, expected 2 (overlap)"},
    {"{\"a\":" T("I8", "2", "0,2") ",\"b\":" T("I8", "2", "0,2") "}", 0, 2, EVQ_E_CORRUPT,
     "(overlap)"},
    {"{\"a\":" T("I8", "1", "0,1") ",\"b\":" T("I8", "1", "2,3") "}", 0, 3, EVQ_E_CORRUPT,
     "'b' begins at data byte 2, expected 1 (gap)"},
    {"{\"a\":" T("I8", "1", "1,2") "}", 0, 2, EVQ_E_CORRUPT, "(gap)"},
    {"{\"a\":" T("I8", "0", "1,1") "}", 0, 1, EVQ_E_CORRUPT, "(gap)"},
    {"{\"a\":" T("I8", "1", "1,0") "}", 0, 1, EVQ_E_CORRUPT, "end before they begin"},
    {"{\"a\":" T("I8", "1", "0,1") "}", 0, 2, EVQ_E_CORRUPT,
     "1 bytes trail behind the last tensor"},
    {"{}", 0, 1, EVQ_E_CORRUPT, "1 bytes trail"},
    {"{\"a\":" T("I8", "2", "0,2") "}", 0, 1, EVQ_E_INCOMPLETE,
     "needs 2 bytes of data, the file has 1"},
    {"{\"a\":" T("I8", "1", "18446744073709551614,18446744073709551615") "}", 0, 1,
     EVQ_E_INCOMPLETE, "still being written"},
    // Sizes that disagree or overflow.
    {"{\"a\":" T("F32", "1", "0,1") "}", 0, 1, EVQ_E_CORRUPT,
     "span 1 bytes, shape and dtype need 4"},
    {"{\"a\":" T("F32", "2", "0,4") "}", 0, 4, EVQ_E_CORRUPT,
     "span 4 bytes, shape and dtype need 8"},
    {"{\"a\":" T("F32", "0", "0,4") "}", 0, 4, EVQ_E_CORRUPT,
     "span 4 bytes, shape and dtype need 0"},
    {"{\"a\":" T("F32", "", "0,0") "}", 0, 0, EVQ_E_CORRUPT,
     "span 0 bytes, shape and dtype need 4"},
    {"{\"a\":" T("F32", "4611686018427387904,4", "0,0") "}", 0, 0, EVQ_E_CORRUPT,
     "shape overflows 64 bits"},
    {"{\"a\":" T("F32", "4611686018427387904", "0,0") "}", 0, 0, EVQ_E_CORRUPT,
     "shape overflows 64 bits"},
    {"{\"a\":" T("F32", "1073741825,1073741825,16", "0,0") "}", 0, 0, EVQ_E_CORRUPT,
     "shape overflows 64 bits"},
    {"{\"a\":" T("F32", "0,9223372036854775807,9223372036854775807", "0,0") "}", 0, 0,
     EVQ_E_CORRUPT, "shape overflows 64 bits"},
    {"{\"a\":" T("F32", "18446744073709551615", "0,4") "}", 0, 4, EVQ_E_CORRUPT, "overflows"},
    {"{\"a\":" T("F4", "3", "0,1") "}", 0, 1, EVQ_E_CORRUPT,
     "12 bits of F4 are not a whole number of bytes"},
    {"{\"a\":" T("F6_E2M3", "1", "0,1") "}", 0, 1, EVQ_E_CORRUPT, "not a whole number of bytes"},
    {"{\"\\u001b]0;x\\u0007\":{}}", 0, 0, EVQ_E_CORRUPT, "tensor '\\x1b]0;x\\x07'"},
};

static void put_safetensors(const struct fixture_folder *folder, const char *name, uint64_t length,
                            const void *header, size_t header_bytes, size_t data_bytes)
{
    uint8_t *bytes = calloc(1, 8 + header_bytes + data_bytes);

    for (unsigned i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, header_bytes);
    fixture_folder_write(folder, name, bytes, 8 + header_bytes + data_bytes);
    free(bytes);
}

static void safetensors_refuses_every_hostile_header_with_the_fault(void **state)
{
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        size_t bytes =
            headers[i].header_bytes != 0 ? headers[i].header_bytes : strlen(headers[i].header);
        put_safetensors(*state, "x.safetensors", bytes, headers[i].header, bytes,
                        headers[i].data_bytes);
        refuse(*state, "x.safetensors", headers[i].header, headers[i].status, headers[i].holds);
    }
    print_message("%zu hostile headers refused\n", sizeof(headers) / sizeof(headers[0]));
}

/* Whatever a reader took for the place of a tensor: it lies in the file, or nothing is read. */
static void directory_refuses_a_tensor_past_the_end_of_its_file(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_tensor tensor = {.name = "w", .dtype = EVQ_DTYPE_U8, .bytes = 4, .rank = 1};
    struct evq_error err;
    struct stat info;

    fixture_folder_write(folder, "x", "12345678", 8);
    const int fd = openat(folder->fd, "x", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fstat(fd, &info), 0);
    assert_status_err(evq_builder_new("x", &checkpoint, &err), EVQ_OK, &err);
    assert_status_err(evq_builder_add_file(checkpoint, "x", fd, &info, &tensor.file, &err), EVQ_OK,
                      &err);
    tensor.shape[0] = 4;
    tensor.offset = 4;
    assert_status_err(evq_builder_add_tensor(checkpoint, &tensor, &err), EVQ_OK, &err);
    tensor.offset = 5;
    assert_status(evq_builder_add_tensor(checkpoint, &tensor, &err), EVQ_E_CORRUPT);
    assert_holds(err.message, "lie past the end of the file");
    tensor.offset = 0;
    tensor.bytes = 9;
    assert_status(evq_builder_add_tensor(checkpoint, &tensor, &err), EVQ_E_CORRUPT);
    tensor.offset = UINT64_MAX;
    tensor.bytes = 2;
    assert_status(evq_builder_add_tensor(checkpoint, &tensor, &err), EVQ_E_CORRUPT);
    evq_checkpoint_close(checkpoint);
}

static void safetensors_refuses_lengths_that_cannot_be(void **state)
{
    static const struct {
        uint64_t length;
        size_t bytes;
        enum evq_status status;
        const char *holds;
    } cases[] = {
        {0, 0, EVQ_E_CORRUPT, "header of 0 bytes"},
        {3, 2, EVQ_E_INCOMPLETE, "header of 3 bytes in a file of 10"},
        {100000000, 2, EVQ_E_INCOMPLETE, "header of 100000000 bytes in a file of 10"},
        {100000001, 2, EVQ_E_LIMIT, "header of 100000001 bytes, allowed 100000000"},
        {UINT64_MAX, 2, EVQ_E_LIMIT, "header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, 2, EVQ_E_LIMIT, "allowed 100000000"},
        {(uint64_t)1 << 63, 2, EVQ_E_LIMIT, "allowed 100000000"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        put_safetensors(*state, "x.safetensors", cases[i].length, "{}", cases[i].bytes, 0);
        refuse(*state, "x.safetensors", cases[i].holds, cases[i].status, cases[i].holds);
    }
    for (size_t bytes = 0; bytes < 8; bytes++) {
        fixture_folder_write(*state, "x.safetensors", "\2\0\0\0\0\0\0", bytes);
        refuse(*state, "x.safetensors", "short", EVQ_E_INCOMPLETE,
               bytes == 0 ? "is empty" : "takes 8");
    }
    const struct evq_checkpoint_options small = {.header_bytes_max = 1};
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    put_safetensors(folder, "x.safetensors", 2, "{}", 2, 0);
    assert_status(evq_checkpoint_open(folder->fd, "x.safetensors", &small, &checkpoint, NULL),
                  EVQ_E_LIMIT);
}

static void safetensors_refuses_depth_long_names_and_too_many_levels(void **state)
{
    char header[6000];
    size_t at = (size_t)sprintf(header, "{\"a\":{\"x\":");

    memset(header + at, '[', 100);
    memcpy(header + at + 100, "", 1);
    put_safetensors(*state, "x.safetensors", at + 100, header, at + 100, 0);
    refuse(*state, "x.safetensors", "depth", EVQ_E_LIMIT, "nested deeper than 64 levels");

    at = (size_t)sprintf(header, "{\"");
    memset(header + at, 'n', 4097);
    at += 4097;
    at += (size_t)sprintf(header + at, "\":" T("I8", "0", "0,0") "}");
    put_safetensors(*state, "x.safetensors", at, header, at, 0);
    refuse(*state, "x.safetensors", "name", EVQ_E_LIMIT,
           "a tensor name of 4097 bytes, allowed 4096");
}

static const struct {
    const char *index;
    size_t bytes; // 0: strlen.
    enum evq_status status;
    const char *holds;
} indexes[] = {
    {"{}", 0, EVQ_E_CORRUPT, "maps no tensor"},
    {"[]", 0, EVQ_E_CORRUPT, "the index is not an object"},
    {"{\"weight_map\":{}}", 0, EVQ_E_CORRUPT, "maps no tensor"},
    {"{\"weight_map\":[]}", 0, EVQ_E_CORRUPT, "weight_map is not an object"},
    {"{\"weight_map\":{\"a\":1}}", 0, EVQ_E_CORRUPT, "a value that is not a string"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\"},\"weight_map\":{\"a\":\"s1.safetensors\"}}", 0,
     EVQ_E_CORRUPT, "duplicate key 'weight_map'"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\"}", 0, EVQ_E_INCOMPLETE, "still being written"},
    {"{\"weight_map\":{\"a\":\"s1.safe", 0, EVQ_E_INCOMPLETE, "still being written"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\"}}}", 0, EVQ_E_CORRUPT,
     "where the end was expected"},
    {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", 0, EVQ_E_INVALID,
     "shard '../x.safetensors' is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", 0, EVQ_E_INVALID,
     "shard '/etc/passwd' is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"sub/s1.safetensors\"}}", 0, EVQ_E_INVALID,
     "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"..\"}}", 0, EVQ_E_INVALID, "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\".\"}}", 0, EVQ_E_INVALID, "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"\"}}", 0, EVQ_E_INVALID, "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\".hidden\"}}", 0, EVQ_E_INVALID, "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"x\\\\y\"}}", 0, EVQ_E_INVALID, "is not a plain file name"},
    {"{\"weight_map\":{\"a\":\"s1\\u0000.safetensors\"}}", 0, EVQ_E_CORRUPT,
     "a NUL inside a string"},
    {"{\"weight_map\":{\"a\":\"\xff\"}}", 0, EVQ_E_CORRUPT, "is not UTF-8"},
    {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", 0, EVQ_E_INCOMPLETE,
     "'none.safetensors' is not there (yet)"},
    {"{\"weight_map\":{\"a\":\"folder\"}}", 0, EVQ_E_INVALID, "'folder' is not a regular file"},
    {"{\"weight_map\":{\"a\":\"fifo\"}}", 0, EVQ_E_INVALID, "not a regular file"},
    {"{\"weight_map\":{\"a\":\"out\"}}", 0, EVQ_E_INVALID, "leaves its root directory"},
    {"{\"weight_map\":{\"b\":\"s1.safetensors\"}}", 0, EVQ_E_CORRUPT,
     "tensor 'b' is not in shard 's1.safetensors'"},
    {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}", 0, EVQ_E_CORRUPT,
     "is not in shard"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1copy.safetensors\"}}", 0, EVQ_E_CORRUPT,
     "duplicate tensor name 'a'"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"junk.safetensors\"}}", 0, EVQ_E_INCOMPLETE,
     "'junk.safetensors'"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"model.safetensors.index.json\"}}", 0,
     EVQ_E_UNSUPPORTED, "no checkpoint"},
};

static void index_refuses_every_hostile_file_with_the_fault(void **state)
{
    static const char one[] = "{\"a\":" T("I8", "1", "0,1") "}";
    static const char two[] = "{\"b\":" T("I8", "1", "0,1") "}";
    const struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "step");
    fixture_folder_mkdir(folder, "step/folder");
    put_safetensors(folder, "step/s1.safetensors", sizeof(one) - 1, one, sizeof(one) - 1, 1);
    put_safetensors(folder, "step/s1copy.safetensors", sizeof(one) - 1, one, sizeof(one) - 1, 1);
    put_safetensors(folder, "step/s2.safetensors", sizeof(two) - 1, two, sizeof(two) - 1, 1);
    fixture_folder_write(folder, "step/junk.safetensors", "\x05\0\0\0\0\0\0\0{", 9);
    assert_int_equal(mkfifoat(folder->fd, "step/fifo", 0644), 0);
    assert_int_equal(symlinkat("/etc/hostname", folder->fd, "step/out"), 0);
    for (size_t i = 0; i < sizeof(indexes) / sizeof(indexes[0]); i++) {
        size_t bytes = indexes[i].bytes != 0 ? indexes[i].bytes : strlen(indexes[i].index);
        fixture_folder_write(folder, "step/model.safetensors.index.json", indexes[i].index, bytes);
        refuse(folder, "step", indexes[i].index, indexes[i].status, indexes[i].holds);
        refuse(folder, "step/model.safetensors.index.json", indexes[i].index, indexes[i].status,
               indexes[i].holds);
    }
    fixture_folder_write(folder, "step/model.safetensors.index.json", "", 0);
    refuse(folder, "step", "empty", EVQ_E_INCOMPLETE, "the index is empty");
    print_message("%zu hostile indexes refused\n", sizeof(indexes) / sizeof(indexes[0]));
}

static void layout_refuses_what_is_not_a_checkpoint_of_its_kind(void **state)
{
    static const struct {
        const char *name;
        const char *holds;
        enum evq_status status;
    } cases[] = {
        {"config.json", "no weights file that evalq reads", EVQ_E_UNSUPPORTED},
        {"optimizer.pt", "no weights file that evalq reads", EVQ_E_UNSUPPORTED},
        {".model.safetensors", "no weights file that evalq reads", EVQ_E_UNSUPPORTED},
        {"model-00001-of-00002.safetensors", "not yet their index", EVQ_E_INCOMPLETE},
    };
    const struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "step");
    refuse(folder, "step", "empty", EVQ_E_UNSUPPORTED, "no weights file that evalq reads");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "step/%s", cases[i].name);
        fixture_folder_write(folder, path, "x", 1);
        refuse(folder, "step", cases[i].name, cases[i].status, cases[i].holds);
        assert_int_equal(unlinkat(folder->fd, path, 0), 0);
    }
    assert_int_equal(mkfifoat(folder->fd, "step/model.safetensors", 0644), 0);
    refuse(folder, "step", "fifo", EVQ_E_INVALID, "not a regular file"); // And returns.
    assert_int_equal(unlinkat(folder->fd, "step/model.safetensors", 0), 0);
    fixture_folder_mkdir(folder, "step/model.safetensors");
    refuse(folder, "step", "directory", EVQ_E_INVALID, "not a regular file");
    assert_int_equal(unlinkat(folder->fd, "step/model.safetensors", AT_REMOVEDIR), 0);
    assert_int_equal(symlinkat("../../../../../etc/hostname", folder->fd, "step/model.safetensors"),
                     0);
    refuse(folder, "step", "link", EVQ_E_INVALID, "leaves its root directory");
    assert_int_equal(unlinkat(folder->fd, "step/model.safetensors", 0), 0);
    assert_int_equal(symlinkat("nowhere", folder->fd, "step/model.safetensors"), 0);
    refuse(folder, "step", "dangling", EVQ_E_GONE, "is not there");
}

static void open_refuses_paths_that_leave_and_other_formats_by_name(void **state)
{
    static const struct {
        const char *data;
        size_t bytes;
        const char *holds;
        enum evq_status status;
    } formats[] = {
        {"GGUF\3\0\0\0\0\0\0\0", 12, "a GGUF file", EVQ_E_UNSUPPORTED},
        {"\x89HDF\r\n\x1a\n", 8, "an HDF5 file", EVQ_E_UNSUPPORTED},
        {"\x93NUMPY\1\0", 8, "a NumPy array", EVQ_E_UNSUPPORTED},
        {"\x80\4\x95\0\0\0\0\0\0\0\0N.", 13, "a bare pickle", EVQ_E_UNSUPPORTED},
        {"\x80\2}q\0.", 6, "a bare pickle", EVQ_E_UNSUPPORTED},
        {"\x1f\x8b\x08\0", 4, "gzip", EVQ_E_UNSUPPORTED},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "a Git LFS pointer",
         EVQ_E_UNSUPPORTED},
        {"P", 1, "still being written", EVQ_E_INCOMPLETE},
        {"PK\3", 3, "still being written", EVQ_E_INCOMPLETE},
        {"PK\3\4", 4, "still being written", EVQ_E_INCOMPLETE},
        {"<!DOCTYPE html>", 15, "no checkpoint, but 15 bytes that begin with 3c 21", EVQ_E_CORRUPT},
        {"\0\0\0\0\0\0\0\0", 8, "no checkpoint, but 8 bytes", EVQ_E_CORRUPT},
    };
    const struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        fixture_folder_write(folder, "x.pt", formats[i].data, formats[i].bytes);
        refuse(folder, "x.pt", formats[i].holds, formats[i].status, formats[i].holds);
    }
    refuse(folder, "../x.pt", "..", EVQ_E_INVALID, "holds '..'");
    refuse(folder, "/etc/hostname", "absolute", EVQ_E_INVALID, "is absolute");
    refuse(folder, "none.pt", "none", EVQ_E_GONE, "does not exist");
    assert_int_equal(mkfifoat(folder->fd, "fifo.pt", 0644), 0);
    refuse(folder, "fifo.pt", "fifo", EVQ_E_INVALID, "is not a regular file");
}

/* Whatever one byte becomes, the reader says something or reads; a sanitizer says whether it stayed
 * inside. */
static void open_survives_every_changed_byte_of_small_fixtures(void **state)
{
    static const char *const files[] = {
        "safetensors/small_mixed.safetensors", "torch_zip/candle_test_with_key.pt",
        "made/lightning.ckpt", "torch_zip/torchscript_foo.pt", "torch_legacy/simple_legacy.pt"};
    static const uint8_t values[] = {0x00, 0xff, 0x80, 0x01, '"', '.', '('};
    const struct fixture_folder *folder = *state;
    size_t opened = 0;
    size_t refused = 0;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[512];
        size_t bytes = 0;
        (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/%s", files[i]);
        uint8_t *data = fixture_file_load(path, &bytes);
        fixture_folder_write(folder, "x.pt", data, bytes);
        int fd = openat(folder->fd, "x.pt", O_WRONLY | O_CLOEXEC);
        for (size_t at = 0; at < bytes; at++) {
            const uint8_t byte =
                values[at % sizeof(values)] ^ (data[at] == values[at % sizeof(values)] ? 0x55 : 0);
            struct evq_checkpoint *checkpoint = NULL;
            struct evq_error err = {.message = ""};
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            if (evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err) == EVQ_OK) {
                char digest[33];
                assert_status(evq_checkpoint_digest(checkpoint, digest, NULL), EVQ_OK);
                evq_checkpoint_close(checkpoint);
                opened++;
            } else {
                assert_true(err.message[0] != '\0');
                refused++;
            }
            assert_int_equal(pwrite(fd, &data[at], 1, (off_t)at), 1);
        }
        (void)close(fd);
        free(data);
    }
    assert_true(opened > 0 && refused > 0);
    print_message("%zu changed bytes: %zu opened, %zu refused\n", opened + refused, opened,
                  refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(safetensors_refuses_every_hostile_header_with_the_fault),
        TEST(directory_refuses_a_tensor_past_the_end_of_its_file),
        TEST(safetensors_refuses_lengths_that_cannot_be),
        TEST(safetensors_refuses_depth_long_names_and_too_many_levels),
        TEST(index_refuses_every_hostile_file_with_the_fault),
        TEST(layout_refuses_what_is_not_a_checkpoint_of_its_kind),
        TEST(open_refuses_paths_that_leave_and_other_formats_by_name),
        TEST(open_survives_every_changed_byte_of_small_fixtures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
