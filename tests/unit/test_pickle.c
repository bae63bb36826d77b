#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/checkpoint/torch/pickle.h"
#include "tests/fixture/check.h"

#define V2 "\x80\x02"

struct bytes {
    const char *data;
    size_t bytes;
};
#define BYTES(text)                                                                                \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

static const struct evq_pickle_node *read_ok(const char *data, size_t bytes,
                                             struct evq_pickle **pickle)
{
    struct evq_error err;

    assert_status_err(evq_pickle_read((const uint8_t *)data, bytes, pickle, &err), EVQ_OK, &err);
    return evq_pickle_root(*pickle);
}
#define READ(text, pickle) read_ok(text, sizeof(text) - 1, pickle)

static void pickle_reads_numbers_of_every_width(void **state)
{
    static const struct {
        struct bytes pickle;
        enum evq_pickle_kind kind;
        int64_t want;
    } cases[] = {
        {BYTES(V2 "K\xff."), EVQ_PICKLE_INT, 255},
        {BYTES(V2 "M\xff\xff."), EVQ_PICKLE_INT, 65535},
        {BYTES(V2 "J\xff\xff\xff\xff."), EVQ_PICKLE_INT, -1},
        {BYTES(V2 "J\0\0\0\x80."), EVQ_PICKLE_INT, INT32_MIN},
        {BYTES(V2 "\x8a\0."), EVQ_PICKLE_INT, 0},
        {BYTES(V2 "\x8a\1\xfe."), EVQ_PICKLE_INT, -2},
        {BYTES(V2 "\x8a\5\0\0\0\0\1."), EVQ_PICKLE_INT, 1LL << 32},
        {BYTES(V2 "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), EVQ_PICKLE_INT, INT64_MAX},
        {BYTES(V2 "\x8a\x08\0\0\0\0\0\0\0\x80."), EVQ_PICKLE_INT, INT64_MIN},
        {BYTES(V2 "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\0."), EVQ_PICKLE_INT, INT64_MAX},
        {BYTES(V2 "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."), EVQ_PICKLE_BIG_INT, -1},
        {BYTES(V2 "\x8a\x09\0\0\0\0\0\0\0\0\1."), EVQ_PICKLE_BIG_INT, 0},
        {BYTES(V2 "\x8b\1\0\0\0\7."), EVQ_PICKLE_INT, 7},
        {BYTES(V2 "\x88."), EVQ_PICKLE_BOOL, 1},
        {BYTES(V2 "\x89."), EVQ_PICKLE_BOOL, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_pickle *pickle = NULL;
        const struct evq_pickle_node *root =
            read_ok(cases[i].pickle.data, cases[i].pickle.bytes, &pickle);
        assert_int_equal(root->kind, cases[i].kind);
        assert_true(root->as.integer == cases[i].want);
        evq_pickle_free(pickle);
    }
    struct evq_pickle *pickle = NULL;
    assert_near(READ(V2 "G\x3f\xf8\0\0\0\0\0\0.", &pickle)->as.real, 1.5,
                0); // Big-endian, alone of all.
    evq_pickle_free(pickle);
}

static void pickle_builds_containers_and_keeps_the_last_of_a_key(void **state)
{
    struct evq_pickle *pickle = NULL;

    (void)state;
    const struct evq_pickle_node *root = READ(V2 "}q\0(X\1\0\0\0aK\1X\1\0\0\0bK\2u"
                                                 "X\1\0\0\0aK\3s.",
                                              &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_DICT);
    assert_int_equal(evq_pickle_get(root, "a")->as.integer, 3);
    assert_int_equal(evq_pickle_get(root, "b")->as.integer, 2);
    assert_null(evq_pickle_get(root, "c"));
    evq_pickle_free(pickle);
    root = READ(V2 "](K\1K\2eK\3a.", &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_LIST);
    assert_int_equal(root->count, 3);
    evq_pickle_free(pickle);
    root = READ("\x80\4\x95\x0c\0\0\0\0\0\0\0\x8f\x94(K\1K\2\x90h\0\x86.", &pickle);
    assert_ptr_equal(root->as.items[0], root->as.items[1]);
    assert_int_equal(root->as.items[0]->count, 2);
    evq_pickle_free(pickle);
    root = READ(V2 "ccollections\nOrderedDict\n](](X\1\0\0\0kK\5eX\1\0\0\0xK\6\x86"
                   "e\x85R.",
                &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_DICT); // As Python 2 wrote it: a list of pairs.
    assert_int_equal(evq_pickle_get(root, "k")->as.integer, 5);
    assert_int_equal(evq_pickle_get(root, "x")->as.integer, 6);
    evq_pickle_free(pickle);
}

/* A class that nobody knows: nothing is called, and all it was given stays below it. */
static void pickle_keeps_unknown_objects_inert_with_their_children(void **state)
{
    struct evq_pickle *pickle = NULL;

    (void)state;
    const struct evq_pickle_node *root =
        READ(V2 "cmy.code\nThing\nK\1\x85\x81}X\1\0\0\0wK\2sb(K\3K\4u.", &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_OBJECT);
    assert_true(evq_pickle_is_global(root->as.object->callable, "my.code", "Thing"));
    assert_int_equal(root->as.object->arguments->as.items[0]->as.integer, 1);
    assert_int_equal(evq_pickle_get(root->as.object->state, "w")->as.integer, 2);
    assert_int_equal(root->as.object->items->count, 2);
    evq_pickle_free(pickle);
    root = READ("\x80\4\x8c\5enumm\x8c\4Kind\x93\x8c\1x\x85R.", &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_OBJECT);
    evq_pickle_free(pickle);
    // How Python writes a member of an Enum: getattr of a class and a plain name.
    root = READ(V2 "cbuiltins\ngetattr\ncmy.code\nKind\nX\4\0\0\0FAST\x86R.", &pickle);
    assert_int_equal(root->kind, EVQ_PICKLE_OBJECT);
    evq_pickle_free(pickle);
}

struct hostile {
    struct bytes pickle;
    enum evq_status status;
    const char *holds;
};

static const struct hostile hostile[] = {
    // Nothing, no protocol, a wrong one, no end, two ends.
    {BYTES(""), EVQ_E_CORRUPT, "ends without STOP"},
    {BYTES("N."), EVQ_E_CORRUPT, "expected a protocol number first"},
    {BYTES("(dp0\n."), EVQ_E_CORRUPT, "expected a protocol number first"},
    {BYTES("\x80"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\1N."), EVQ_E_CORRUPT, "protocol number of 2 to 5"},
    {BYTES("\x80\6N."), EVQ_E_CORRUPT, "protocol number of 2 to 5"},
    {BYTES(V2 V2 "N."), EVQ_E_CORRUPT, "at the start"},
    {BYTES(V2 "N"), EVQ_E_CORRUPT, "ends without STOP"},
    {BYTES(V2 "."), EVQ_E_CORRUPT, "exactly one value"},
    {BYTES(V2 "NN."), EVQ_E_CORRUPT, "exactly one value"},
    {BYTES(V2 "N(."), EVQ_E_CORRUPT, "exactly one value"},
    {BYTES(V2 "N.N"), EVQ_E_CORRUPT, "1 bytes follow the end"},
    {BYTES(V2 "N." V2 "N."), EVQ_E_CORRUPT, "4 bytes follow the end"},
    // Operands cut, lengths beyond the pickle.
    {BYTES(V2 "K"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "M\1"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "J\1\2\3"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "G\1\2\3\4\5\6\7"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "\x8a\5\1\2\3\4"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "\x8b\xff\xff\xff\xff\1."), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "\x8b\xff\xff\xff\x7f\1."), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "X\5\0\0\0abcd"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "X\xff\xff\xff\xff"
              "abc."),
     EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "U\4abc"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "T\xff\xff\xff\x7f."), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\4\x8c\4abc"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\4\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
           "abc."),
     EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\4\x8e\0\0\0\0\1\0\0\0"
           "abc."),
     EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\4\x95\xff\0\0\0\0\0\0\0N."), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES("\x80\5\x96\xff\xff\xff\xff\xff\xff\xff\x7f."), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "B\2\0\0\0a"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "C\2a"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "q"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "q\0."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "Nq"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "Nr\1\2\3"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "h"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "ctorch\nSize"), EVQ_E_CORRUPT, "reaches past the end"},
    {BYTES(V2 "ctorch"), EVQ_E_CORRUPT, "reaches past the end"},
    // Every opcode that needs values, with too few.
    {BYTES(V2 "0."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "1."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "2."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "t."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "l."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "d."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "\x91."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "\x85."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "N\x86."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "NN\x87."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "N(N\x86."), EVQ_E_CORRUPT, "holds too little"}, // Not across a mark.
    {BYTES(V2 "](Na."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "a."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "]a."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "e."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "(Ne."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "]((e."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "s."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "}Ns."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "u."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "(NNu."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "\x90."), EVQ_E_CORRUPT, "no mark"},
    {BYTES(V2 "\x94."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "R."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 ")R."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "\x81."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "))\x92."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "b."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "}b."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "Q."), EVQ_E_CORRUPT, "holds too little"},
    {BYTES(V2 "\x93."), EVQ_E_CORRUPT, "holds too little"},
    // Values of the wrong kind.
    {BYTES(V2 "]NNs."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 "NNNs."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 ")(NNu."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 "X\1\0\0\0a(NNu."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 "ctorch\nSize\n(NNu."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 "NQ(NNu."), EVQ_E_CORRUPT, "sets an item of what is no dict"},
    {BYTES(V2 "}Na."), EVQ_E_CORRUPT, "appends to what is no list"},
    {BYTES(V2 "NNa."), EVQ_E_CORRUPT, "appends to what is no list"},
    {BYTES(V2 ")(Ne."), EVQ_E_CORRUPT, "appends to what is no list"},
    {BYTES(V2 "](N\x90."), EVQ_E_CORRUPT, "adds to what is no set"},
    {BYTES(V2 "cmy\nT\n)R(NNuNa."), EVQ_E_CORRUPT, "appends to what is no list"},
    {BYTES(V2 "(Nd."), EVQ_E_CORRUPT, "a key without a value"},
    {BYTES(V2 "}(Nu."), EVQ_E_CORRUPT, "a key without a value"},
    {BYTES(V2 "N)R."), EVQ_E_CORRUPT, "calls what is no class"},
    {BYTES(V2 "X\4\0\0\0eval)R."), EVQ_E_CORRUPT, "calls what is no class"},
    {BYTES(V2 "cmy\nT\nNR."), EVQ_E_CORRUPT, "arguments are no tuple"},
    {BYTES(V2 "cmy\nT\n]\x81."), EVQ_E_CORRUPT, "arguments are no tuple"},
    {BYTES(V2 "cmy\nT\nN}\x92."), EVQ_E_CORRUPT, "arguments are no tuple"},
    {BYTES(V2 "K\1}b."), EVQ_E_CORRUPT, "gives state to what is no object"},
    {BYTES(V2 ")}b."), EVQ_E_CORRUPT, "gives state to what is no object"},
    {BYTES(V2 "cmy\nT\n}b."), EVQ_E_CORRUPT, "gives state to what is no object"},
    {BYTES(V2 "ccollections\nOrderedDict\n]Na\x85R."), EVQ_E_CORRUPT, "no pairs"},
    {BYTES("\x80\4\x8c\1aK\1\x93."), EVQ_E_CORRUPT, "whose name is no text"},
    {BYTES("\x80\4N\x8c\1a\x93."), EVQ_E_CORRUPT, "whose name is no text"},
    {BYTES("\x80\4\x8c\2o\0\x8c\1a\x93."), EVQ_E_CORRUPT, "holds a NUL"},
    {BYTES(V2 "c\nSize\n."), EVQ_E_CORRUPT, "name is empty"},
    {BYTES(V2 "ctorch\n\n."), EVQ_E_CORRUPT, "name is empty"},
    // The memo.
    {BYTES(V2 "h\0."), EVQ_E_CORRUPT, "never stored"},
    {BYTES(V2 "Nq\1h\0."), EVQ_E_CORRUPT, "never stored"},
    {BYTES(V2 "j\xff\xff\xff\xff."), EVQ_E_CORRUPT, "never stored"},
    {BYTES(V2 "Nr\xff\xff\xff\xff."), EVQ_E_LIMIT, "memo index 4294967295 in a pickle of 9 bytes"},
    {BYTES(V2 "Nr\0\0\1\0."), EVQ_E_LIMIT, "memo index 65536"},
    // Opcodes that torch.save never writes.
    {BYTES(V2 "P1\n."), EVQ_E_UNSUPPORTED, "opcode 0x50"},
    {BYTES(V2 "(ios\nsystem\n."), EVQ_E_UNSUPPORTED, "opcode 0x69"},
    {BYTES(V2 "(cmy\nT\no."), EVQ_E_UNSUPPORTED, "opcode 0x6f"},
    {BYTES(V2 "\x82\1."), EVQ_E_UNSUPPORTED, "opcode 0x82"},
    {BYTES(V2 "\x83\1\0."), EVQ_E_UNSUPPORTED, "opcode 0x83"},
    {BYTES(V2 "\x84\1\0\0\0."), EVQ_E_UNSUPPORTED, "opcode 0x84"},
    {BYTES(V2 "I1\n."), EVQ_E_UNSUPPORTED, "opcode 0x49"},
    {BYTES(V2 "L1L\n."), EVQ_E_UNSUPPORTED, "opcode 0x4c"},
    {BYTES(V2 "F1.5\n."), EVQ_E_UNSUPPORTED, "opcode 0x46"},
    {BYTES(V2 "S'a'\n."), EVQ_E_UNSUPPORTED, "opcode 0x53"},
    {BYTES(V2 "Va\n."), EVQ_E_UNSUPPORTED, "opcode 0x56"},
    {BYTES(V2 "Np0\n."), EVQ_E_UNSUPPORTED, "opcode 0x70"},
    {BYTES(V2 "g0\n."), EVQ_E_UNSUPPORTED, "opcode 0x67"},
    {BYTES("\x80\5\x97."), EVQ_E_UNSUPPORTED, "opcode 0x97"},
    {BYTES("\x80\5\x98."), EVQ_E_UNSUPPORTED, "opcode 0x98"},
    {BYTES(V2 "\xff."), EVQ_E_UNSUPPORTED, "opcode 0xff"},
    {BYTES(V2 "\0."), EVQ_E_UNSUPPORTED, "opcode 0x00"},
    // What only an attack has use for.
    {BYTES(V2 "cos\nsystem\nX\2\0\0\0id\x85R."), EVQ_E_INVALID,
     "'os.system', which no checkpoint needs"},
    {BYTES(V2 "cposix\nsystem\n."), EVQ_E_INVALID, "'posix.system'"},
    {BYTES(V2 "cnt\nsystem\n."), EVQ_E_INVALID, "'nt.system'"},
    {BYTES(V2 "cos.path\njoin\n."), EVQ_E_INVALID, "'os.path.join'"},
    {BYTES(V2 "csubprocess\nPopen\n."), EVQ_E_INVALID, "'subprocess.Popen'"},
    {BYTES(V2 "cbuiltins\neval\n."), EVQ_E_INVALID, "'builtins.eval'"},
    {BYTES(V2 "c__builtin__\nexec\n."), EVQ_E_INVALID, "'__builtin__.exec'"},
    {BYTES(V2 "cbuiltins\n__import__\n."), EVQ_E_INVALID, "'builtins.__import__'"},
    {BYTES(V2 "cbuiltins\ncompile\n."), EVQ_E_INVALID, "'builtins.compile'"},
    {BYTES(V2 "cbuiltins\nopen\n."), EVQ_E_INVALID, "'builtins.open'"},
    {BYTES(V2 "csys\nmodules\n."), EVQ_E_INVALID, "'sys.modules'"},
    {BYTES(V2 "csocket\nsocket\n."), EVQ_E_INVALID, "'socket.socket'"},
    {BYTES(V2 "cimportlib\nimport_module\n."), EVQ_E_INVALID, "'importlib.import_module'"},
    {BYTES(V2 "crunpy\n_run_code\n."), EVQ_E_INVALID, "'runpy._run_code'"},
    {BYTES(V2 "cctypes\nCDLL\n."), EVQ_E_INVALID, "'ctypes.CDLL'"},
    {BYTES(V2 "cpickle\nloads\n."), EVQ_E_INVALID, "'pickle.loads'"},
    {BYTES(V2 "cshutil\nrmtree\n."), EVQ_E_INVALID, "'shutil.rmtree'"},
    {BYTES(V2 "ctorch.hub\nload\n."), EVQ_E_INVALID, "'torch.hub.load'"},
    {BYTES(V2 "ctorch\nload\n."), EVQ_E_INVALID, "'torch.load'"},
    {BYTES(V2 "ctorch\nos.system\n."), EVQ_E_INVALID, "'torch.os.system'"},
    {BYTES("\x80\4\x8c\5torch\x8c\x10serialization.os\x94\x30\x8c\x0bx.os.system\x93."),
     EVQ_E_INVALID, "os.system"},
    {BYTES("\x80\4\x8c\2os\x8c\6system\x93\x8c\2id\x85R."), EVQ_E_INVALID, "'os.system'"},
    {BYTES(V2 "cmy\nT\x1b[2Jos\n(cpty\nspawn\n."), EVQ_E_INVALID, "'pty.spawn'"},
    {BYTES(V2 "cbuiltins\ngetattr\n)R."), EVQ_E_INVALID, "calls getattr"},
    {BYTES(V2 "cbuiltins\ngetattr\ncmy\nT\nX\7\0\0\0__dict_\x86R."), EVQ_E_INVALID,
     "calls getattr"},
    {BYTES(V2 "cbuiltins\ngetattr\ncmy\nT\n)RX\1\0\0\0a\x86R."), EVQ_E_INVALID, "calls getattr"},
    {BYTES(V2 "cbuiltins\ngetattr\ncmy\nT\nX\3\0\0\0a.b\x86R."), EVQ_E_INVALID, "calls getattr"},
};

static void pickle_refuses_every_hostile_program_with_the_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        struct evq_pickle *pickle = NULL;
        struct evq_error err = {.status = EVQ_OK};
        // On the heap and exactly as long, so that a sanitizer sees the first byte read too far.
        uint8_t *copy = malloc(hostile[i].pickle.bytes == 0 ? 1 : hostile[i].pickle.bytes);
        memcpy(copy, hostile[i].pickle.data, hostile[i].pickle.bytes);
        enum evq_status status = evq_pickle_read(copy, hostile[i].pickle.bytes, &pickle, &err);
        if (status != hostile[i].status || strstr(err.message, hostile[i].holds) == NULL) {
            fail_msg("pickle %zu: %s '%s', wanted %s '%s'", i, evq_status_name(status),
                     status == EVQ_OK ? "" : err.message, evq_status_name(hostile[i].status),
                     hostile[i].holds);
        }
        assert_null(pickle);
        free(copy);
    }
    print_message("%zu hostile pickles refused\n", sizeof(hostile) / sizeof(hostile[0]));
}

#define PUT(buffer, text) evq_buffer_append(buffer, text, sizeof(text) - 1)

/* Copying a dict into a dict again and again grows with the square of the pickle. */
/* A dict of 20,000 entries is built anew `copies` times: five bytes each, 320 kB. */
static void refuse_copies(int copies)
{
    struct evq_buffer buffer;
    struct evq_pickle *pickle = NULL;
    struct evq_error err;

    evq_buffer_init(&buffer, 0);
    PUT(&buffer, V2 "](ccollections\nOrderedDict\nq\0}q\1(");
    for (int i = 0; i < 20000; i++) {
        PUT(&buffer, "NN");
    }
    evq_buffer_append(&buffer,
                      "u\x85q\2"
                      "0"
                      "0",
                      6);
    evq_buffer_append(&buffer, "(", 1);
    for (int i = 0; i < copies; i++) {
        PUT(&buffer, "h\0h\2R");
    }
    assert_status(evq_pickle_read(buffer.data, buffer.bytes, &pickle, &err), EVQ_E_LIMIT);
    assert_holds(err.message, "more objects than a pickle of");
    evq_buffer_free(&buffer);
}

static void pickle_bounds_memory_by_its_size(void **state)
{
    (void)state;
    refuse_copies(100);   // 32 MB are too many for 40 kB,
    refuse_copies(20000); // 6 GB for any.
}

static void pickle_reads_deep_nesting_without_recursion(void **state)
{
    enum { DEPTH = 200000 };
    struct evq_buffer buffer;
    struct evq_pickle *pickle = NULL;

    (void)state;
    evq_buffer_init(&buffer, 0);
    evq_buffer_append(&buffer, V2 "N", 3);
    for (int i = 0; i < DEPTH; i++) {
        evq_buffer_append(&buffer, "\x85", 1);
    }
    evq_buffer_append(&buffer, ".", 1);
    const struct evq_pickle_node *node = read_ok((const char *)buffer.data, buffer.bytes, &pickle);
    int depth = 0;
    for (; node->kind == EVQ_PICKLE_TUPLE; node = node->as.items[0]) {
        depth++;
    }
    assert_int_equal(depth, DEPTH);
    evq_pickle_free(pickle);
    evq_buffer_free(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pickle_reads_numbers_of_every_width),
        cmocka_unit_test(pickle_builds_containers_and_keeps_the_last_of_a_key),
        cmocka_unit_test(pickle_keeps_unknown_objects_inert_with_their_children),
        cmocka_unit_test(pickle_refuses_every_hostile_program_with_the_fault),
        cmocka_unit_test(pickle_bounds_memory_by_its_size),
        cmocka_unit_test(pickle_reads_deep_nesting_without_recursion),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
