#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/archive.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/golden.h"

static void dcp_reads_what_torch_reads_from_every_fixture(void **state)
{
    const struct evq_checkpoint_options ema = {.variant = "ema"};
    const struct evq_checkpoint_options deep = {.key = "optimizer.state"};

    (void)state;
    assert_int_equal(fixture_golden_check("made/dcp", "model.", NULL), 6);
    assert_int_equal(fixture_golden_check("made/dcp_grid", "", NULL), 4);
    assert_int_equal(fixture_golden_check("made/fsdp", "model.", NULL), 1);
    assert_int_equal(fixture_golden_check("made/dcp", "ema.", &ema), 1);
    assert_int_equal(fixture_golden_check("made/dcp_averaged", "current_model_state.", NULL), 1);
    assert_int_equal(fixture_golden_check("made/dcp_averaged", "state_dict.", &ema), 1);
    assert_int_equal(fixture_golden_check("made/dcp_app", "", NULL), 2);
    assert_int_equal(fixture_golden_check("made/dcp_app_ema", "app.ema.", &ema), 1);
    assert_int_equal(fixture_golden_check("made/dcp", "optimizer.state.", &deep), 2);
}

static void dcp_says_what_it_holds_when_asked_for_what_it_does_not(void **state)
{
    static const struct {
        const char *file;
        struct evq_checkpoint_options options;
        const char *holds;
    } cases[] = {
        {"made/dcp", {.key = "nothing"}, "there are no tensors under 'nothing'; it holds: "},
        {"made/dcp", {.key = "mode"}, "there are no tensors under 'mode'"},
        {"made/dcp", {.key = "step"}, "there are no tensors under 'step'"},
        {"made/fsdp/pytorch_model_fsdp_0",
         {.variant = "ema"},
         "it holds no EMA weights, but: model.w"},
        {"made/dcp_app", {.variant = "ema"}, "it holds no EMA weights, but: app.model.w"},
    };
    int root_fd = fixture_golden_root();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_error err;
        assert_status_err(
            evq_checkpoint_open(root_fd, cases[i].file, &cases[i].options, &checkpoint, &err),
            EVQ_E_NOT_FOUND, &err);
        assert_holds(err.message, cases[i].holds);
        assert_null(checkpoint);
    }
    (void)close(root_fd);
}

/* The digest is of values: the same whether a tensor lies in one piece or in many. */
static void dcp_digest_is_that_of_the_same_weights_in_one_file(void **state)
{
    const struct evq_checkpoint_options options = {.key = "model"};
    int root_fd = fixture_golden_root();
    struct evq_checkpoint *checkpoint = NULL;
    char digest[33];
    char other[33];
    struct evq_buffer manifest;

    (void)state;
    assert_status(evq_checkpoint_open(root_fd, "made/fsdp", NULL, &checkpoint, NULL), EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, digest, NULL), EVQ_OK);
    const struct evq_tensor *w = evq_checkpoint_find(checkpoint, "w");
    assert_non_null(w);
    assert_int_equal(w->piece_count, 2);
    assert_false(w->contiguous);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(root_fd, "made/dcp_one.pt", &options, &checkpoint, NULL),
                  EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, other, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_string_equal(digest, other);
    assert_status(evq_checkpoint_check_complete(root_fd, "made/dcp", NULL), EVQ_OK);
    evq_buffer_init(&manifest, 0);
    assert_status(evq_checkpoint_fingerprint(root_fd, "made/dcp", digest, &manifest, NULL), EVQ_OK);
    assert_holds(evq_buffer_string(&manifest), ".metadata\t");
    assert_holds(evq_buffer_string(&manifest), "__1_0.distcp\t");
    evq_buffer_free(&manifest);
    (void)close(root_fd);
}

static void copy_fixture(const struct fixture_folder *folder, const char *name, size_t *ret_bytes)
{
    char from[512];
    char to[64];

    (void)snprintf(from, sizeof(from), EVQ_TEST_DATA "/checkpoints/made/dcp/%s", name);
    (void)snprintf(to, sizeof(to), "d/%s", name);
    uint8_t *data = fixture_file_load(from, ret_bytes);
    fixture_folder_write(folder, to, data, *ret_bytes);
    free(data);
}

/* As the reader of single files has it: nothing but averages, so they are the weights. */
static void dcp_takes_averages_for_regular_when_there_is_nothing_else(void **state)
{
    static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
    const struct fixture_folder *folder = *state;
    const struct evq_checkpoint_options ema = {.variant = "ema"};
    struct evq_checkpoint *regular = NULL;
    struct evq_checkpoint *averages = NULL;
    size_t bytes = 0;

    fixture_folder_mkdir(folder, "d");
    for (size_t i = 0; i < 3; i++) {
        copy_fixture(folder, names[i], &bytes);
    }
    uint8_t *data = fixture_file_load(EVQ_TEST_DATA "/checkpoints/made/dcp/.metadata", &bytes);
    for (uint8_t *at = data; (at = memmem(at, bytes - (size_t)(at - data), "model", 5)) != NULL;
         at++) {
        memcpy(at, "mudel", 5); // No name of weights.
    }
    fixture_folder_write(folder, "d/.metadata", data, bytes);
    free(data);
    assert_status(evq_checkpoint_open(folder->fd, "d", NULL, &regular, NULL), EVQ_OK);
    assert_status(evq_checkpoint_open(folder->fd, "d", &ema, &averages, NULL), EVQ_OK);
    assert_int_equal(regular->tensor_count, 1);
    assert_int_equal(averages->tensor_count, 1);
    assert_string_equal(regular->tensors[0].name, averages->tensors[0].name);
    evq_checkpoint_close(regular);
    evq_checkpoint_close(averages);
}

static void dcp_is_incomplete_when_any_file_is_cut_or_missing(void **state)
{
    static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
    const struct fixture_folder *folder = *state;
    struct evq_error err;
    size_t bytes[3];
    char path[64];

    fixture_folder_mkdir(folder, "d");
    for (size_t i = 0; i < 3; i++) {
        copy_fixture(folder, names[i], &bytes[i]);
    }
    assert_status_err(evq_checkpoint_check_complete(folder->fd, "d", &err), EVQ_OK, &err);
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "d/%s", names[i]);
        int fd = openat(folder->fd, path, O_WRONLY | O_CLOEXEC);
        for (size_t left = bytes[i]; left > 0; left--) {
            assert_int_equal(ftruncate(fd, (off_t)(left - 1)), 0);
            assert_status_err(evq_checkpoint_check_complete(folder->fd, "d", &err),
                              EVQ_E_INCOMPLETE, &err);
        }
        (void)close(fd);
        assert_int_equal(unlinkat(folder->fd, path, 0), 0);
        assert_status_err(evq_checkpoint_check_complete(folder->fd, "d", &err), EVQ_E_INCOMPLETE,
                          &err);
        copy_fixture(folder, names[i], &bytes[i]);
    }
    fixture_folder_mkdir(folder, "e"); // As accelerate saves it, while it does.
    fixture_folder_mkdir(folder, "e/pytorch_model_fsdp_0");
    assert_status_err(evq_checkpoint_check_complete(folder->fd, "e", &err), EVQ_E_INCOMPLETE, &err);
}

/* A description of one tensor of four floats in two pieces; each part of it may be replaced. */
#define TEXT(length, text)   "X" length "\0\0\0" text
#define OBJECT(class, state) "cm\n" class "\n)\x81" state "b"
#define SIZE1(n)             "ctorch\nSize\nK" n "\x85\x85R"

enum part {
    CLASS,
    TENSORS_OPEN,
    NAME,
    TENSOR_CLASS,
    PROPERTIES,
    SIZE,
    CHUNKS_OPEN,
    CHUNK0,
    CHUNK1,
    CHUNKS_CLOSE,
    TENSORS_CLOSE,
    STORAGE_OPEN,
    INDEX0,
    INFO0,
    INDEX1,
    INFO1,
    STORAGE_CLOSE,
    PLANNER,
    END,
    PARTS
};

struct bytes {
    const char *data;
    size_t bytes;
};
#define B(text)                                                                                    \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

#define CHUNK(begin, size)                                                                         \
    OBJECT("ChunkStorageMetadata",                                                                 \
           "}(" TEXT("\7", "offsets") SIZE1(begin) TEXT("\5", "sizes") SIZE1(size) "u")
#define INDEX(begin)                                                                               \
    OBJECT("MetadataIndex",                                                                        \
           "}(" TEXT("\3", "fqn") TEXT("\1", "w") TEXT("\6", "offset") SIZE1(begin) "u")
#define INFO(path_length, path, offset, length)                                                    \
    OBJECT("_StorageInfo", "}(" TEXT("\x0d", "relative_path") TEXT(path_length, path)              \
                               TEXT("\6", "offset") offset TEXT("\6", "length") length "u")
#define FLOATS OBJECT("TensorProperties", "(ctorch\nfloat32\nNt")

static const struct bytes defaults[PARTS] = {
    [CLASS] = B("\x80\2"
                "cm\nMetadata\n)\x81}("),
    [TENSORS_OPEN] = B(TEXT("\x13", "state_dict_metadata") "}("),
    [NAME] = B(TEXT("\1", "w")),
    [TENSOR_CLASS] = B("cm\nTensorStorageMetadata\n)\x81}("),
    [PROPERTIES] = B(TEXT("\x0a", "properties") FLOATS),
    [SIZE] = B(TEXT("\4", "size") SIZE1("\4")),
    [CHUNKS_OPEN] = B(TEXT("\6", "chunks") "]("),
    [CHUNK0] = B(CHUNK("\0", "\2")),
    [CHUNK1] = B(CHUNK("\2", "\2")),
    [CHUNKS_CLOSE] = B("eub"),
    [TENSORS_CLOSE] = B("u"),
    [STORAGE_OPEN] = B(TEXT("\x0c", "storage_data") "}("),
    [INDEX0] = B(INDEX("\0")),
    [INDEX1] = B(INDEX("\2")),
    [STORAGE_CLOSE] = B("u"),
    [PLANNER] = B(TEXT("\x0c", "planner_data") "N"),
    [END] = B("ub."),
};

/* The archive of a tensor of two floats, its bytes being those of data. */
static void put_archive(struct evq_buffer *out, const char *data)
{
    static const char pickle[] =
        "\x80\2"
        "ctorch._utils\n_rebuild_tensor_v2\n((" TEXT(
            "\7", "storage") "ctorch\n"
                             "FloatStorage\n" TEXT("\1", "0")
                                 TEXT("\3", "cpu") "K\2tQK\0K\2\x85K\1\x85\x89}tR.";
    struct fixture_archive archive;

    fixture_archive_start(&archive, true);
    fixture_archive_add(&archive, "archive/data.pkl", pickle, sizeof(pickle) - 1);
    fixture_archive_add(&archive, "archive/data/0", data, 8);
    fixture_archive_finish(&archive);
    evq_buffer_append(out, archive.bytes.data, archive.bytes.bytes);
    fixture_archive_free(&archive);
}

/* Writes d/p with two archives and d/.metadata with the part replaced; returns an archive's length.
 */
static size_t put_checkpoint(const struct fixture_folder *folder, enum part part,
                             const struct bytes *with)
{
    struct evq_buffer file;
    struct evq_buffer metadata;

    evq_buffer_init(&file, 0);
    put_archive(&file, "\0\0\x80\x3f\0\0\0\x40");
    const size_t length = file.bytes;
    put_archive(&file, "\0\0\x40\x40\0\0\x80\x40");
    fixture_folder_write(folder, "d/p", file.data, file.bytes);
    const uint8_t number[3] = {'M', (uint8_t)length, (uint8_t)(length >> 8)};
    evq_buffer_init(&metadata, 0);
    for (int i = 0; i < PARTS; i++) {
        static const char begin[] = "cm\n_StorageInfo\n)\x81}(" TEXT("\x0d", "relative_path")
            TEXT("\1", "p") TEXT("\6", "offset");
        if (with != NULL && i == (int)part) {
            evq_buffer_append(&metadata, with->data, with->bytes);
        } else if (i == INFO0 || i == INFO1) {
            evq_buffer_append(&metadata, begin, sizeof(begin) - 1);
            evq_buffer_append(&metadata, i == INFO0 ? "K\0" : (const char *)number,
                              i == INFO0 ? 2 : 3);
            evq_buffer_append(&metadata, TEXT("\6", "length"), 11);
            evq_buffer_append(&metadata, number, 3);
            evq_buffer_append(&metadata, "ub", 2);
        } else {
            evq_buffer_append(&metadata, defaults[i].data, defaults[i].bytes);
        }
    }
    fixture_folder_write(folder, "d/.metadata", metadata.data, metadata.bytes);
    evq_buffer_free(&metadata);
    evq_buffer_free(&file);
    return length;
}

static const struct {
    enum part part;
    struct bytes with;
    enum evq_status status;
    const char *holds;
} cases[] = {
    // What is no Metadata.
    {CLASS,
     B("\x80\2"
       "cm\nMetadatum\n)\x81}("),
     EVQ_E_CORRUPT, "it is not the Metadata"},
    {CLASS, B("\x80\2N}("), EVQ_E_CORRUPT, "gives state to what is no object"},
    {CLASS,
     B("\x80\2"
       "cos\nsystem\n)\x81}("),
     EVQ_E_INVALID, "refused as hostile"},
    {CLASS, B("\x80\6"), EVQ_E_CORRUPT, "expected one protocol number of 2 to 5"},
    {END, B("ub"), EVQ_E_INCOMPLETE, "still being written"},
    {END, B("ub.x"), EVQ_E_CORRUPT, "1 bytes follow the end"},
    {END, B("u00N."), EVQ_E_CORRUPT, "it is not the Metadata"},
    {TENSORS_OPEN, B(TEXT("\x13", "state_dict_metadat_") "}("), EVQ_E_CORRUPT,
     "its state_dict_metadata is no dict"},
    {STORAGE_OPEN, B(TEXT("\x0c", "storage_dat_") "}("), EVQ_E_CORRUPT,
     "its storage_data is no dict"},
    // Names.
    {NAME, B(TEXT("\0", "")), EVQ_E_CORRUPT, "is a name that is empty"},
    {NAME, B(TEXT("\2", "w\0")), EVQ_E_CORRUPT, "holds a NUL"},
    {NAME, B(TEXT("\1", "\xff")), EVQ_E_CORRUPT, "is not UTF-8"},
    {NAME, B(TEXT("\1", "v")), EVQ_E_CORRUPT, "'v' has a chunk that is stored nowhere"},
    {NAME, B("K\1"), EVQ_E_NOT_FOUND, "it holds no tensors"},
    {NAME, B("N"), EVQ_E_NOT_FOUND, "it holds no tensors"},
    {TENSOR_CLASS, B("cm\nBytesStorageMetadata\n)\x81}("), EVQ_E_NOT_FOUND,
     "it holds no tensors, but: w"},
    // dtype and shape of the whole.
    {PROPERTIES, B(TEXT("\x0a", "propertie_") "N"), EVQ_E_CORRUPT, "without dtype and size"},
    {PROPERTIES, B(TEXT("\x0a", "properties") "N"), EVQ_E_CORRUPT, "without dtype and size"},
    {PROPERTIES, B(TEXT("\x0a", "properties") OBJECT("T", ")")), EVQ_E_CORRUPT,
     "without dtype and size"},
    {PROPERTIES, B(TEXT("\x0a", "properties") OBJECT("T", "(N\x85t")), EVQ_E_UNSUPPORTED,
     "its dtype is not one that is read"},
    {PROPERTIES, B(TEXT("\x0a", "properties") OBJECT("T", "(ctorch\nqint8\nt")), EVQ_E_UNSUPPORTED,
     "its dtype is not one that is read"},
    {PROPERTIES, B(TEXT("\x0a", "properties") OBJECT("T", "(ctorch\nfloat8_e8m0fnu\nt")),
     EVQ_E_UNSUPPORTED, "its dtype is not one that is read"},
    {PROPERTIES, B(TEXT("\x0a", "properties") OBJECT("T", "(ctorch\nfloat64\nt")), EVQ_E_CORRUPT,
     "'w' has a chunk whose archive holds another dtype"},
    {SIZE, B(TEXT("\4", "siz_") SIZE1("\4")), EVQ_E_CORRUPT, "without dtype and size"},
    {SIZE, B(TEXT("\4", "size") "N"), EVQ_E_CORRUPT, "its size is no tuple"},
    {SIZE, B(TEXT("\4", "size") "J\xff\xff\xff\xff\x85"), EVQ_E_CORRUPT,
     "its size holds what is no integer of 0 or more"},
    {SIZE, B(TEXT("\4", "size") "G\x40\x10\0\0\0\0\0\0\x85"), EVQ_E_CORRUPT, "what is no integer"},
    {SIZE, B(TEXT("\4", "size") "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t"), EVQ_E_LIMIT,
     "9 dimensions, allowed 8"},
    {SIZE, B(TEXT("\4", "size") "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"), EVQ_E_CORRUPT,
     "'w' has a size that overflows"},
    {SIZE, B(TEXT("\4", "size") "\x8a\x08\0\0\0\0\0\0\0\x40\x8a\x08\0\0\0\0\0\0\0\x40\x86"),
     EVQ_E_CORRUPT, "'w' has a size that overflows"},
    {SIZE, B(TEXT("\4", "size") SIZE1("\5")), EVQ_E_CORRUPT, "its pieces hold 4 of its 5 elements"},
    {SIZE, B(TEXT("\4", "size") SIZE1("\3")), EVQ_E_CORRUPT,
     "a piece reaches from 2 over 2 of the 3 in dimension 0"},
    {SIZE, B(TEXT("\4", "size") "K\2K\2\x86"), EVQ_E_CORRUPT, "has a chunk of another rank"},
    {SIZE, B(TEXT("\4", "size") "\x8a\x05\0\0\0\0\1\x85"), EVQ_E_CORRUPT,
     "its pieces hold 4 of its 4294967296 elements"},
    // Chunks.
    {CHUNKS_OPEN, B(TEXT("\6", "chunk_") "]("), EVQ_E_CORRUPT, "without a list of chunks"},
    {CHUNK0, B("N"), EVQ_E_CORRUPT, "has a chunk without offsets and sizes"},
    {CHUNK0, B("K\1"), EVQ_E_CORRUPT, "has a chunk without offsets and sizes"},
    {CHUNK0, B(OBJECT("C", "}" TEXT("\7", "offsets") SIZE1("\0") "s")), EVQ_E_CORRUPT,
     "has a chunk without offsets and sizes"},
    {CHUNK0, B(OBJECT("C", "N")), EVQ_E_CORRUPT, "has a chunk without offsets and sizes"},
    {CHUNK0, B(CHUNK("\1", "\2")), EVQ_E_CORRUPT, "has a chunk that is stored nowhere"},
    {CHUNK0, B(CHUNK("\0", "\1")), EVQ_E_CORRUPT, "whose archive holds another shape"},
    {CHUNK0, B(CHUNK("\0", "\4")), EVQ_E_CORRUPT, "whose archive holds another shape"},
    {CHUNK0, B(CHUNK("\2", "\2")), EVQ_E_CORRUPT, "two of its pieces overlap"},
    {CHUNK0, B(CHUNK("\0", "\0")), EVQ_E_CORRUPT, "its pieces hold 2 of its 4 elements"},
    {CHUNK1, B(""), EVQ_E_CORRUPT, "its pieces hold 2 of its 4 elements"},
    {CHUNK1, B(CHUNK("\2", "\2") CHUNK("\0", "\2")), EVQ_E_CORRUPT, "two of its pieces overlap"},
    {CHUNK1, B(OBJECT("C", "}(" TEXT("\7", "offsets") "N" TEXT("\5", "sizes") SIZE1("\2") "u")),
     EVQ_E_CORRUPT, "its place is no tuple"},
    {CHUNK1,
     B(OBJECT("C", "}(" TEXT("\7", "offsets") "J\xff\xff\xff\xff\x85" TEXT("\5", "sizes")
                       SIZE1("\2") "u")),
     EVQ_E_CORRUPT, "its place holds what is no integer"},
    // Where they are stored.
    {INDEX0, B("N"), EVQ_E_CORRUPT, "under what is no index of a name"},
    {INDEX0, B(TEXT("\1", "w")), EVQ_E_CORRUPT, "under what is no index of a name"},
    {INDEX0, B(OBJECT("MetadataIndex", "}" TEXT("\3", "fqn") "K\1s")), EVQ_E_CORRUPT,
     "under what is no index of a name"},
    {INDEX0, B(OBJECT("MetadataIndex", "}" TEXT("\3", "fqn") TEXT("\1", "w") "s")), EVQ_E_CORRUPT,
     "has a chunk that is stored nowhere"},
    {INDEX0, B(INDEX("\2")), EVQ_E_CORRUPT, "'w' has two parts at one place"},
    {INDEX0,
     B(OBJECT("MetadataIndex", "}(" TEXT("\3", "fqn") TEXT("\1", "w")
                                   TEXT("\6", "offset") "(K\0K\0K\0K\0K\0K\0K\0K\0K\0tu")),
     EVQ_E_LIMIT, "9 dimensions, allowed 8"},
    {INDEX0,
     B(OBJECT("MetadataIndex",
              "}(" TEXT("\3", "fqn") TEXT("\1", "w") TEXT("\6", "offset") "K\0K\0\x86u")),
     EVQ_E_CORRUPT, "has a chunk that is stored nowhere"},
    {INFO0, B("N"), EVQ_E_CORRUPT, "'w' is stored at what is no path, offset and length"},
    {INFO0, B(OBJECT("_StorageInfo", "N")), EVQ_E_CORRUPT, "at what is no path, offset and length"},
    {INFO0, B(INFO("\1", "p", "N", "K\1")), EVQ_E_CORRUPT, "at what is no path, offset and length"},
    {INFO0, B(INFO("\1", "p", "K\0", "N")), EVQ_E_CORRUPT, "at what is no path, offset and length"},
    {INFO0, B(INFO("\1", "p", "J\xff\xff\xff\xff", "K\1")), EVQ_E_CORRUPT,
     "at what is no path, offset and length"},
    {INFO0, B(INFO("\1", "p", "K\0", "J\xff\xff\xff\xff")), EVQ_E_CORRUPT,
     "at what is no path, offset and length"},
    {INFO0, B(INFO("\1", "p", "\x8a\x09\0\0\0\0\0\0\0\0\1", "K\1")), EVQ_E_CORRUPT,
     "at what is no path, offset and length"},
    {INFO0, B(INFO("\2", "..", "K\0", "K\1")), EVQ_E_INVALID, "'..' is not a plain file name"},
    {INFO0, B(INFO("\4", "../p", "K\0", "K\1")), EVQ_E_INVALID, "'../p' is not a plain file name"},
    {INFO0, B(INFO("\x0b", "/etc/passwd", "K\0", "K\1")), EVQ_E_INVALID,
     "'/etc/passwd' is not a plain file name"},
    {INFO0, B(INFO("\5", "sub/p", "K\0", "K\1")), EVQ_E_INVALID, "is not a plain file name"},
    {INFO0, B(INFO("\0", "", "K\0", "K\1")), EVQ_E_INVALID, "'' is not a plain file name"},
    {INFO0, B(INFO("\2", "p\0", "K\0", "K\1")), EVQ_E_INVALID, "is not a plain file name"},
    {INFO0, B(INFO("\4", "none", "K\0", "K\1")), EVQ_E_INCOMPLETE, "'none' is not there (yet)"},
    {INFO0, B(INFO("\6", "folder", "K\0", "K\1")), EVQ_E_INVALID, "'folder' is not a regular file"},
    {INFO0, B(INFO("\4", "fifo", "K\0", "K\1")), EVQ_E_INVALID, "is not a regular file"},
    {INFO0, B(INFO("\3", "out", "K\0", "K\1")), EVQ_E_INVALID, "leaves its root directory"},
    {INFO0, B(INFO("\1", "p", "K\0", "J\xff\xff\xff\x7f")), EVQ_E_INCOMPLETE,
     "a part reaches to byte 2147483647: still being written"},
    {INFO0, B(INFO("\1", "p", "J\xff\xff\xff\x7f", "K\1")), EVQ_E_INCOMPLETE,
     "still being written"},
    {INFO0,
     B(INFO("\1", "p", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
            "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")),
     EVQ_E_INCOMPLETE, "still being written"},
    {INFO0, B(INFO("\1", "p", "K\0", "K\0")), EVQ_E_INCOMPLETE, "'p' byte 0: zip: 0 bytes"},
    {INFO0, B(INFO("\1", "p", "K\0", "K\x20")), EVQ_E_INCOMPLETE, "'p' byte 0: zip: no end of"},
    {INFO0,
     B(OBJECT("_StorageInfo",
              "}(" TEXT("\x0d", "relative_path") TEXT("\1", "p")
                  TEXT("\6", "offset") "K\0" TEXT("\6", "length") "K\1" TEXT(
                      "\x15", "transform_descriptors") "]" TEXT("\4", "zstd") "au")),
     EVQ_E_UNSUPPORTED, "compressed or otherwise transformed"},
    {STORAGE_OPEN, B(TEXT("\x0c", "storage_data") "}" TEXT("\x06", "unused") "}("), EVQ_E_CORRUPT,
     "has a chunk that is stored nowhere"},
};

static void dcp_refuses_every_hostile_metadata_with_the_fault(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    float values[4];
    size_t wrong = 0;

    fixture_folder_mkdir(folder, "d");
    fixture_folder_mkdir(folder, "d/folder");
    assert_int_equal(mkfifoat(folder->fd, "d/fifo", 0644), 0);
    assert_int_equal(symlinkat("/etc/hostname", folder->fd, "d/out"), 0);
    (void)put_checkpoint(folder, PARTS, NULL); // What the others are bent from.
    assert_status_err(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK, &err);
    assert_status(evq_checkpoint_read_f32(checkpoint, &checkpoint->tensors[0], values, 4, NULL),
                  EVQ_OK);
    assert_true(values[0] == 1.0f && values[1] == 2.0f && values[2] == 3.0f && values[3] == 4.0f);
    evq_checkpoint_close(checkpoint);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        checkpoint = NULL;
        (void)put_checkpoint(folder, cases[i].part, &cases[i].with);
        enum evq_status status = evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err);
        if (status != cases[i].status || strstr(err.message, cases[i].holds) == NULL) {
            print_error("case %zu: %s '%s', wanted %s '%s'\n", i, evq_status_name(status),
                        status == EVQ_OK ? "" : err.message, evq_status_name(cases[i].status),
                        cases[i].holds);
            wrong++;
        }
        assert_true(status == EVQ_OK || strstr(err.message, "checkpoint 'd'") != NULL);
        evq_checkpoint_close(checkpoint);
    }
    assert_int_equal(wrong, 0);
    fixture_folder_write(folder, "d/.metadata", "", 0);
    assert_status(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_E_INCOMPLETE);
    assert_holds(err.message, "it is empty");
    print_message("%zu hostile descriptions refused\n", sizeof(cases) / sizeof(cases[0]));
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(dcp_reads_what_torch_reads_from_every_fixture),
        TEST(dcp_says_what_it_holds_when_asked_for_what_it_does_not),
        TEST(dcp_digest_is_that_of_the_same_weights_in_one_file),
        TEST(dcp_takes_averages_for_regular_when_there_is_nothing_else),
        TEST(dcp_is_incomplete_when_any_file_is_cut_or_missing),
        TEST(dcp_refuses_every_hostile_metadata_with_the_fault),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
