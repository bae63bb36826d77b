/* Archives of torch.save that mean harm or are none: each refused with its fault. */
#include "hostile_checkpoint.h"

/* A pickle of one tensor: dict {"w": rebuild(...)}; %s-like parts are joined by the compiler. */
#define TEXT(length, text) "X" length "\0\0\0" text
#define STORAGE(type, key_length, key, numel)                                                      \
    "(" TEXT("\7", "storage") "ctorch\n" type "\n" TEXT(key_length, key) TEXT("\3", "cpu") numel   \
        "tQ"
#define REBUILD_V2(storage, offset, size, stride)                                                  \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage offset size stride "\x89}tR"
#define ONE(tensor) "\x80\2}" TEXT("\1", "w") tensor "s."
#define FLOATS4     STORAGE("FloatStorage", "\1", "0", "K\4")

static const struct {
    const char *pickle;
    size_t bytes;
    enum evq_status status;
    const char *holds;
} tensors[] = {
#define CASE(pickle, status, holds)                                                                \
    {                                                                                              \
        pickle, sizeof(pickle) - 1, status, holds                                                  \
    }
    // data/0 holds 16 bytes.
    CASE(ONE(REBUILD_V2(FLOATS4, "K\1", "K\4\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "tensor 'w': it reaches to element 4 of a storage that has 4"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "K\5\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "reaches to element 4"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "K\2K\2\x86", "K\3K\1\x86")), EVQ_E_CORRUPT,
         "reaches to element 4"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\4", ")", ")")), EVQ_E_CORRUPT, "reaches to element 4"),
    CASE(ONE(REBUILD_V2(FLOATS4, "J\xff\xff\xff\xff", "K\1\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its offset is no integer of 0 or more"),
    CASE(ONE(REBUILD_V2(FLOATS4, "N", "K\1\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its offset is no integer"),
    CASE(ONE(REBUILD_V2(FLOATS4, "\x8a\x09\1\1\1\1\1\1\1\1\1", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "its offset is no integer"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "J\xff\xff\xff\xff\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its shape holds what is no integer"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "K\2\x85", "J\xff\xff\xff\xff\x85")), EVQ_E_CORRUPT,
         "its stride holds what is no integer"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "N", "K\1\x85")), EVQ_E_CORRUPT, "its shape is no tuple"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "G\x3f\xf0\0\0\0\0\0\0\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its shape holds what is no integer"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1K\1\x86")), EVQ_E_CORRUPT,
         "different lengths"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", "K\1\x85")), EVQ_E_LIMIT,
         "9 dimensions, allowed 8"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85",
                        "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85")),
         EVQ_E_CORRUPT, "its shape overflows"),
    CASE(ONE(REBUILD_V2(FLOATS4, "K\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "K\0\x85")),
         EVQ_E_LIMIT, "it is expanded to 9223372036854775807 elements"),
    CASE(ONE(REBUILD_V2(
             FLOATS4, "K\0",
             "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x86",
             "K\0K\0\x86")),
         EVQ_E_CORRUPT, "its shape overflows"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\1", "0", "K\5"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "'data/0' holds 16 bytes, 5 elements of F32 were expected"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\1", "0", "K\3"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "'data/0' holds 16 bytes, 3 elements"),
    CASE(ONE(REBUILD_V2(STORAGE("DoubleStorage", "\1", "0", "K\4"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "4 elements of F64 were expected"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\1", "0", "\x8a\x08\4\0\0\0\0\0\0\x40"), "K\0",
                        "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "'data/0' holds 16 bytes"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\1", "0", "J\xff\xff\xff\xff"), "K\0", "K\1\x85",
                        "K\1\x85")),
         EVQ_E_CORRUPT, "its storage is not ('storage'"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\1", "7", "K\4"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "'data/7' is not in the archive"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\0", "", "K\4"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "has the key ''"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\4", "../0", "K\4"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "has the key '../0'"),
    CASE(ONE(REBUILD_V2(STORAGE("FloatStorage", "\2", "0\0", "K\4"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "has the key '0\\x00'"),
    CASE(ONE(REBUILD_V2(STORAGE("QInt8Storage", "\1", "0", "K\x10"), "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_UNSUPPORTED, "its storage is of type QInt8Storage"),
    CASE(ONE(REBUILD_V2("NQ", "K\0", "K\1\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its storage is not ('storage'"),
    CASE(ONE(REBUILD_V2("N", "K\0", "K\1\x85", "K\1\x85")), EVQ_E_CORRUPT,
         "its storage is not ('storage'"),
    CASE(ONE(REBUILD_V2("(" TEXT("\6", "module") "NNNNtQ", "K\0", "K\1\x85", "K\1\x85")),
         EVQ_E_CORRUPT, "its storage is not ('storage'"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v2\n)R"), EVQ_E_CORRUPT, "too few arguments"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v3\n(" FLOATS4 "K\0K\1\x85K\1\x85tR"), EVQ_E_CORRUPT,
         "too few arguments"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v3\n(" FLOATS4
             "K\0K\1\x85K\1\x85\x89Nctorch\nfloat3\ntR"),
         EVQ_E_UNSUPPORTED, "its dtype is not known"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE(
             "UntypedStorage", "\1", "0", "K\x0f") "K\0K\1\x85K\1\x85\x89Nctorch\nfloat32\ntR"),
         EVQ_E_CORRUPT, "not a whole number of elements"),
    // What a view marks as lazy is not what is stored; False marks nothing.
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS4
             "K\0K\4\x85K\1\x85\x89}}" TEXT("\3", "neg") "\x88stR"),
         EVQ_E_UNSUPPORTED, "tensor 'w': it is a lazy view (torch's 'neg' bit)"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE(
             "UntypedStorage", "\1", "0",
             "K\x10") "K\0K\1\x85K\1\x85\x89}ctorch\ncomplex64\n}" TEXT("\4", "conj") "\x88stR"),
         EVQ_E_UNSUPPORTED, "save tensor.resolve_conj()"),
    CASE(ONE("ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS4
             "K\0K\5\x85K\1\x85\x89}}" TEXT("\3", "neg") "\x89stR"),
         EVQ_E_CORRUPT, "reaches to element 4"),
    CASE(ONE("ctorch._utils\n_rebuild_parameter\nN\x85R"), EVQ_E_CORRUPT,
         "rebuilt from what is no tensor"),
    CASE(ONE("ctorch._utils\n_rebuild_qtensor\n)R"), EVQ_E_UNSUPPORTED, "_rebuild_qtensor"),
    CASE(ONE("ctorch._utils\n_rebuild_sparse_tensor\n)R"), EVQ_E_UNSUPPORTED,
         "_rebuild_sparse_tensor"),
    CASE(ONE("ctorch._tensor\n_rebuild_from_type_v2\n(cmy\nf\nN)NtR"), EVQ_E_UNSUPPORTED,
         "_rebuild_from_type_v2"),
    // The same name twice, names that are none.
    CASE("\x80\2}(" TEXT("\1", "w") REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1\x85") TEXT("\1", "w")
             REBUILD_V2(FLOATS4, "K\1", "K\1\x85", "K\1\x85") "u.",
         EVQ_E_CORRUPT, "duplicate tensor name 'w'"),
    CASE("\x80\2}" TEXT("\2", "w\0") REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1\x85") "s.",
         EVQ_E_CORRUPT, "holds a NUL or is not UTF-8"),
    CASE("\x80\2}" TEXT("\1", "\xff") REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1\x85") "s.",
         EVQ_E_CORRUPT, "is not UTF-8"),
    CASE("\x80\2}" TEXT("\0", "") REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1\x85") "s.",
         EVQ_E_CORRUPT, "is empty"),
    // No tensors, cycles, hostile names.
    CASE("\x80\2}.", EVQ_E_NOT_FOUND, "holds no tensors"),
    CASE("\x80\2K\1.", EVQ_E_NOT_FOUND, "holds no tensors"),
    CASE("\x80\2}" TEXT("\1", "w") "K\1s.", EVQ_E_NOT_FOUND, "holds no tensors, but: w"),
    CASE("\x80\2}q\0(" TEXT("\1", "a") REBUILD_V2(FLOATS4, "K\0", "K\1\x85", "K\1\x85")
             TEXT("\1", "b") "h\0u.",
         EVQ_E_LIMIT, "nested too deep, or refer to themselves"),
    CASE("\x80\2}" TEXT("\1", "w") "cos\nsystem\n" TEXT("\2", "id") "\x85Rs.", EVQ_E_INVALID,
         "'os.system', which no checkpoint needs"),
    CASE("\x80\2", EVQ_E_CORRUPT, "ends without STOP"),
    CASE("", EVQ_E_CORRUPT, "ends without STOP"),
};

static void put_torch(const struct fixture_folder *folder, const void *pickle, size_t bytes,
                      const char *byteorder)
{
    struct fixture_archive archive;

    fixture_archive_start(&archive, true);
    fixture_archive_add(&archive, "x/data.pkl", pickle, bytes);
    fixture_archive_add(&archive, "x/byteorder", byteorder, strlen(byteorder));
    fixture_archive_add(&archive, "x/data/0", "0123456789abcdef", 16);
    fixture_archive_add(&archive, "x/version", "3\n", 2);
    fixture_archive_finish(&archive);
    fixture_folder_write(folder, "x.pt", archive.bytes.data, archive.bytes.bytes);
    fixture_archive_free(&archive);
}

static void torch_refuses_every_hostile_tensor_with_the_fault(void **state)
{
    static const char good[] = ONE(REBUILD_V2(FLOATS4, "K\1", "K\3\x85", "K\1\x85"));
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    put_torch(folder, good, sizeof(good) - 1, "little"); // What the others are bent from.
    assert_status_err(evq_checkpoint_open(folder->fd, "x.pt", NULL, &checkpoint, &err), EVQ_OK,
                      &err);
    assert_int_equal(checkpoint->tensors[0].shape[0], 3);
    evq_checkpoint_close(checkpoint);
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        char label[32];
        (void)snprintf(label, sizeof(label), "tensor %zu", i);
        put_torch(folder, tensors[i].pickle, tensors[i].bytes, "little");
        refuse(folder, "x.pt", label, tensors[i].status, tensors[i].holds);
    }
    put_torch(folder, good, sizeof(good) - 1, "big");
    refuse(folder, "x.pt", "big", EVQ_E_UNSUPPORTED, "byteorder is not little");
    put_torch(folder, good, sizeof(good) - 1, "little and more than that");
    refuse(folder, "x.pt", "long", EVQ_E_LIMIT, "byteorder");
    print_message("%zu hostile tensors refused\n", sizeof(tensors) / sizeof(tensors[0]));
}

/* A list of ten lists of ten lists ...: a small pickle, a walk without end. */
static void torch_refuses_a_walk_that_would_never_end(void **state)
{
    struct evq_buffer pickle;

    evq_buffer_init(&pickle, 0);
    evq_buffer_append(&pickle, "\x80\2]q\0", 5);
    for (char level = 1; level <= 30; level++) {
        const char get[2] = {'h', (char)(level - 1)};
        const char put[2] = {'q', level};
        evq_buffer_append(&pickle, "](", 2);
        for (int i = 0; i < 10; i++) {
            evq_buffer_append(&pickle, get, 2);
        }
        evq_buffer_append(&pickle, "e", 1);
        evq_buffer_append(&pickle, put, 2);
    }
    // All levels but the last are dropped from the stack.
    evq_buffer_append(&pickle, "q\x7f", 2);
    for (int level = 0; level <= 30; level++) {
        evq_buffer_append(&pickle, "0", 1);
    }
    evq_buffer_append(&pickle, "h\x7f.", 3);
    put_torch(*state, pickle.data, pickle.bytes, "little");
    refuse(*state, "x.pt", "billion", EVQ_E_LIMIT, "nested too deep, or refer to themselves");
    evq_buffer_free(&pickle);
}

static void torch_refuses_archives_that_torch_never_writes(void **state)
{
    static const char *const names[][3] = {
        {"data.pkl", NULL, "is not in the archive's one folder"},
        {"x/data.pkl", "y/data/0", "is not in the archive's one folder"},
        {"x/other", NULL, "holds no data.pkl"},
        {"x/sub/data.pkl", NULL, "holds no data.pkl"},
        {"xl/workbook.xml", "[Content_Types].xml", "is not in the archive's one folder"},
    };
    struct fixture_archive archive;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        fixture_archive_start(&archive, true);
        fixture_archive_add(&archive, names[i][0], "\x80\2}.", 4);
        if (names[i][1] != NULL) {
            fixture_archive_add(&archive, names[i][1], "x", 1);
        }
        fixture_archive_finish(&archive);
        fixture_folder_write(*state, "x.pt", archive.bytes.data, archive.bytes.bytes);
        fixture_archive_free(&archive);
        refuse(*state, "x.pt", names[i][0], EVQ_E_UNSUPPORTED, names[i][2]);
    }
    fixture_archive_start(&archive, false);
    fixture_archive_finish(&archive);
    fixture_folder_write(*state, "x.pt", archive.bytes.data, archive.bytes.bytes);
    fixture_archive_free(&archive);
    refuse(*state, "x.pt", "empty", EVQ_E_UNSUPPORTED, "holds no data.pkl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(torch_refuses_every_hostile_tensor_with_the_fault),
        TEST(torch_refuses_a_walk_that_would_never_end),
        TEST(torch_refuses_archives_that_torch_never_writes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
