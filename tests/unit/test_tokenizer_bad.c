#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/tokenizer/tokenizer.h"

/* The tokenizer t of the folder must be refused with this status and these words. */
static void refuse(const struct fixture_folder *folder, const char *path, const char *label,
                   enum evq_status want, const char *holds)
{
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_error err = {.status = EVQ_OK};
    const enum evq_status status = evq_tokenizer_open(folder->fd, path, &tokenizer, &err);

    if (status == EVQ_OK) {
        fail_msg("%s: opened, wanted %s", label, evq_status_name(want));
    }
    if (status != want || err.status != want || strstr(err.message, holds) == NULL) {
        fail_msg("%s: %s '%s', wanted %s '%s'", label, evq_status_name(status), err.message,
                 evq_status_name(want), holds);
    }
    assert_null(tokenizer);
}

#define VOCAB        "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MERGES       "\"merges\":[\"a b\"]"
#define MODEL        "\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES "}"
#define WITH(member) "{" member "," MODEL "}"
#define BPE(member)  "{\"model\":{" member "," VOCAB "," MERGES "}}"
#define ONLY(member) "{\"model\":{" member "}}"
#define SPLIT(rest)  WITH("\"pre_tokenizer\":{\"type\":\"Split\"," rest "}")
#define ADDED(token) WITH("\"added_tokens\":[" token "]")
#define POST(rest)   WITH("\"post_processor\":{\"type\":\"TemplateProcessing\"," rest "}")
#define TEXT_A       "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define UNK          "\"unk_token\":\"a\""
#define PREFIX(text) "\"continuing_subword_prefix\":" text
#define BERT         "{\"type\":\"BertPreTokenizer\"}"
#define LONG         "################################################################"
#define NFC2         "{\"type\":\"NFC\"},{\"type\":\"NFC\"}"
#define NFC4         NFC2 "," NFC2
#define DIGITS2      "{\"type\":\"Digits\"},{\"type\":\"Digits\"}"
#define DIGITS4      DIGITS2 "," DIGITS2
#define WORDS(prefix, characters, unk)                                                             \
    "{\"pre_tokenizer\":" BERT ",\"model\":{\"type\":\"WordPiece\"," prefix                        \
    "\"max_input_chars_per_word\":" characters "," unk "," VOCAB "}}"
#define LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

static const struct {
    const char *json;
    enum evq_status status;
    const char *holds;
} files[] = {
    // JSON that is none, or not of this kind.
    {"", EVQ_E_CORRUPT, "is empty"},
    {"{", EVQ_E_CORRUPT, "JSON ends at byte 1"},
    {"[]", EVQ_E_CORRUPT, "not a JSON object"},
    {"null", EVQ_E_CORRUPT, "not a JSON object"},
    {"{}", EVQ_E_CORRUPT, "has no model"},
    {"{\"model\":null}", EVQ_E_CORRUPT, "model is no object"},
    {"{" MODEL "," MODEL "}", EVQ_E_CORRUPT, "two models"},
    {"{" MODEL "}x", EVQ_E_CORRUPT, "the end was expected"},
    {"{\"a\":\"\xff\"," MODEL "}", EVQ_E_CORRUPT, "byte 6 is not UTF-8"},
    {"{\"a\":\"\\u0000\"," MODEL "}", EVQ_E_CORRUPT, "NUL inside a string"},
    {"{\"a\":\"\\ud800\"," MODEL "}", EVQ_E_CORRUPT, "surrogate"},
    {WITH("\"version\":\"2.0\""), EVQ_E_UNSUPPORTED, "version other than 1.0"},
    {WITH("\"version\":1"), EVQ_E_UNSUPPORTED, "version other than 1.0"},
    {WITH("\"version\":\"1.0\",\"version\":\"1.0\""), EVQ_E_CORRUPT, "version comes twice"},
    // The vocabulary.
    {ONLY(MERGES), EVQ_E_CORRUPT, "no vocabulary"},
    {ONLY(VOCAB), EVQ_E_CORRUPT, "no merges"},
    {ONLY("\"vocab\":[]"), EVQ_E_CORRUPT, "not an object of tokens"},
    {ONLY("\"vocab\":[[\"a\",-1.5]]"), EVQ_E_CORRUPT, "not an object of tokens"},
    {ONLY("\"vocab\":{},\"merges\":[]"), EVQ_E_CORRUPT, "vocabulary is empty"},
    {ONLY(VOCAB "," VOCAB), EVQ_E_CORRUPT, "two vocabularies"},
    {ONLY("\"vocab\":{\"a\":-1}"), EVQ_E_CORRUPT, "'a' has no whole number"},
    {ONLY("\"vocab\":{\"a\":1.0}"), EVQ_E_CORRUPT, "'a' has no whole number"},
    {ONLY("\"vocab\":{\"a\":\"1\"}"), EVQ_E_CORRUPT, "'a' has no whole number"},
    {ONLY("\"vocab\":{\"a\":null}"), EVQ_E_CORRUPT, "'a' has no whole number"},
    {ONLY("\"vocab\":{\"a\":{}}"), EVQ_E_CORRUPT, "'a' has no whole number"},
    {ONLY("\"vocab\":{\"a\":4194304}"), EVQ_E_LIMIT, "id 4194304, expected less than 4194304"},
    {ONLY("\"vocab\":{\"a\":18446744073709551616}"), EVQ_E_CORRUPT, "no whole number"},
    {ONLY("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), EVQ_E_CORRUPT, "a token twice: 'a'"},
    {ONLY("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), EVQ_E_CORRUPT, "an id twice: 'b'"},
    // Merges.
    {ONLY(VOCAB "," MERGES "," MERGES), EVQ_E_CORRUPT, "two lists of merges"},
    {ONLY(VOCAB ",\"merges\":{}"), EVQ_E_CORRUPT, "merges are no list"},
    {ONLY(VOCAB ",\"merges\":[1]"), EVQ_E_CORRUPT, "merge 0 is neither text nor a pair"},
    {ONLY(VOCAB ",\"merges\":[\"a b\",\"ab\"]"), EVQ_E_CORRUPT, "merge 1 is 'ab'"},
    {ONLY(VOCAB ",\"merges\":[\"a  b\"]"), EVQ_E_CORRUPT, "one space between"},
    {ONLY(VOCAB ",\"merges\":[\"a b c\"]"), EVQ_E_CORRUPT, "one space between"},
    {ONLY(VOCAB ",\"merges\":[\" b\"]"), EVQ_E_CORRUPT, "one space between"},
    {ONLY(VOCAB ",\"merges\":[\"a \"]"), EVQ_E_CORRUPT, "one space between"},
    {ONLY(VOCAB ",\"merges\":[\"\"]"), EVQ_E_CORRUPT, "one space between"},
    {ONLY(VOCAB ",\"merges\":[[\"a\"]]"), EVQ_E_CORRUPT, "no pair of two"},
    {ONLY(VOCAB ",\"merges\":[[\"a\",\"b\",\"c\"]]"), EVQ_E_CORRUPT, "no pair of two"},
    {ONLY(VOCAB ",\"merges\":[[\"a\",1]]"), EVQ_E_CORRUPT, "no pair of two"},
    {ONLY(VOCAB ",\"merges\":[[[\"a\",\"b\"]]]"), EVQ_E_CORRUPT, "no pair of two"},
    {ONLY(VOCAB ",\"merges\":[\"x b\"]"), EVQ_E_CORRUPT, "lacks the first"},
    {ONLY(VOCAB ",\"merges\":[\"a x\"]"), EVQ_E_CORRUPT, "lacks the second"},
    {ONLY(VOCAB ",\"merges\":[\"b a\"]"), EVQ_E_CORRUPT, "lacks what they make"},
    // Settings of the model.
    {BPE("\"type\":\"Unigram\""), EVQ_E_UNSUPPORTED,
     "'Unigram', expected BPE or WordPiece; 'python -m evalq.tokenize' can"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", EVQ_E_UNSUPPORTED, "'Unigram'"},
    {ONLY(VOCAB "," MERGES ",\"type\":\"WordLevel\""), EVQ_E_UNSUPPORTED, "'WordLevel'"},
    {BPE("\"dropout\":0.1"), EVQ_E_UNSUPPORTED, "dropout"},
    {BPE("\"dropout\":\"0\""), EVQ_E_UNSUPPORTED, "dropout"},
    {BPE("\"continuing_subword_prefix\":\"##\""), EVQ_E_UNSUPPORTED, "continuing_subword_prefix"},
    {BPE("\"end_of_word_suffix\":\"</w>\""), EVQ_E_UNSUPPORTED, "end_of_word_suffix"},
    {BPE("\"unk_token\":\"?\""), EVQ_E_CORRUPT, "unk_token '?' is not in its vocabulary"},
    {BPE("\"unk_token\":7"), EVQ_E_CORRUPT, "unk_token is no text"},
    {BPE("\"fuse_unk\":1"), EVQ_E_CORRUPT, "fuse_unk is neither"},
    {BPE("\"byte_fallback\":\"yes\""), EVQ_E_CORRUPT, "byte_fallback is neither"},
    {BPE("\"ignore_merges\":{}"), EVQ_E_CORRUPT, "ignore_merges is neither"},
    {"{\"pre_tokenizer\":" LEVEL ",\"model\":{\"byte_fallback\":true," VOCAB "," MERGES "}}",
     EVQ_E_UNSUPPORTED, "lacks the byte 0x00"},
    // Normalizers.
    {WITH("\"normalizer\":{}"), EVQ_E_CORRUPT, "a normalizer has no type"},
    {WITH("\"normalizer\":[]"), EVQ_E_CORRUPT, "a normalizer has no type"},
    {WITH("\"normalizer\":{\"type\":\"NFKC\"}"), EVQ_E_UNSUPPORTED, "normalizer 'NFKC'"},
    {WITH("\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":1}"), EVQ_E_CORRUPT,
     "BertNormalizer is neither"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" NFC4 "," NFC4 "," NFC4 "," NFC4
          ",{\"type\":\"NFC\"}]}"),
     EVQ_E_LIMIT, "more than 16 normalizers"},
    // WordPiece.
    {WORDS("", "64", UNK), EVQ_E_CORRUPT, "continuing_subword_prefix is no text"},
    {WORDS(PREFIX("7") ",", "64", UNK), EVQ_E_CORRUPT, "continuing_subword_prefix is no text"},
    {WORDS(PREFIX("\"" LONG "#\"") ",", "64", UNK), EVQ_E_CORRUPT, "at most 64 bytes"},
    {WORDS(PREFIX("\"##\"") ",", "0", UNK), EVQ_E_CORRUPT, "whole number from 1 to 1000"},
    {WORDS(PREFIX("\"##\"") ",", "1001", UNK), EVQ_E_CORRUPT, "whole number from 1 to 1000"},
    {WORDS(PREFIX("\"##\"") ",", "\"9\"", UNK), EVQ_E_CORRUPT, "whole number from 1 to 1000"},
    {WORDS(PREFIX("\"##\"") ",", "64", "\"x\":1"), EVQ_E_CORRUPT, "has no unk_token"},
    {WORDS(PREFIX("\"##\"") ",", "64", "\"unk_token\":\"x\""), EVQ_E_CORRUPT, "'x' is not in"},
    {"{\"model\":{\"type\":\"WordPiece\"," PREFIX("\"##\"") ",\"max_input_chars_per_word\":100," UNK
                                                            "," VOCAB "}}",
     EVQ_E_UNSUPPORTED, "WordPiece without BertPreTokenizer"},
    {WITH("\"pre_tokenizer\":" BERT), EVQ_E_UNSUPPORTED, "BertPreTokenizer without WordPiece"},
    {WITH("\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"}"), EVQ_E_UNSUPPORTED,
     "'Prepend'"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\"}"), EVQ_E_CORRUPT, "no list of normalizers"},
    {WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"}]}"),
     EVQ_E_UNSUPPORTED, "'Strip'"},
    {WITH("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"},\"content\":\"x\"}"),
     EVQ_E_UNSUPPORTED, "'Replace'"},
    // Pre-tokenizers.
    {WITH("\"pre_tokenizer\":{\"type\":\"Whitespace\"}"), EVQ_E_UNSUPPORTED, "'Whitespace'"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" LEVEL "," LEVEL "]}"),
     EVQ_E_UNSUPPORTED, "again after ByteLevel"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},"
          "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}]}"),
     EVQ_E_UNSUPPORTED, "Metaspace behind other steps"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" DIGITS4 "," DIGITS4
          "," DIGITS4 "," DIGITS4 ",{\"type\":\"Digits\"}]}"),
     EVQ_E_LIMIT, "more than 16 pre-tokenizers"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":7}"), EVQ_E_CORRUPT,
     "no list of pretokenizers"},
    {WITH("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":0}"), EVQ_E_CORRUPT,
     "ByteLevel is neither"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":7}"), EVQ_E_CORRUPT,
     "Digits is neither"},
    {WITH("\"normalizer\":{\"type\":\"StripAccents\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
          "\"replacement\":\"\u2581\",\"prepend_scheme\":\"first\"}"),
     EVQ_E_UNSUPPORTED, "'first' behind a normalizer that removes characters"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}"), EVQ_E_UNSUPPORTED,
     "Metaspace"},
    {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
          "\"prepend_scheme\":\"last\"}"),
     EVQ_E_UNSUPPORTED, "prepend_scheme"},
    {SPLIT("\"pattern\":{\"Regex\":\"\\\\w+\"},\"behavior\":\"Isolated\""), EVQ_E_UNSUPPORTED,
     "pattern that is not known: '\\w+'"},
    {SPLIT("\"pattern\":{\"String\":\"x\"},\"behavior\":\"Isolated\""), EVQ_E_UNSUPPORTED,
     "not known: ''"},
    {SPLIT("\"pattern\":7"), EVQ_E_UNSUPPORTED, "not known: ''"},
    {SPLIT("\"pattern\":{\"Regex\":\"'(?:[sdmt]|ll|ve|re)| ?\\\\p{L}+| ?\\\\p{N}+|"
           " ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"MergedWithNext\""),
     EVQ_E_UNSUPPORTED, "keep each match by itself"},
    {ADDED("{\"content\":\"\u0301\",\"id\":3,\"normalized\":true}],"
           "\"normalizer\":{\"type\":\"StripAccents\"},\"x\":["),
     EVQ_E_UNSUPPORTED, "leaves nothing of the added token with id 3"},
    {SPLIT("\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Removed\",\"invert\":true"),
     EVQ_E_UNSUPPORTED, "keep each match by itself"},
    // Added tokens.
    {WITH("\"added_tokens\":{}"), EVQ_E_CORRUPT, "added_tokens is no list"},
    {WITH("\"added_tokens\":[],\"added_tokens\":[]"), EVQ_E_CORRUPT, "added_tokens comes twice"},
    {ADDED("7"), EVQ_E_CORRUPT, "added token 0 lacks"},
    {ADDED("{\"id\":3}"), EVQ_E_CORRUPT, "added token 0 lacks"},
    {ADDED("{\"content\":\"x\"}"), EVQ_E_CORRUPT, "added token 0 lacks"},
    {ADDED("{\"content\":\"x\",\"id\":-3}"), EVQ_E_CORRUPT, "added token 0 lacks"},
    {ADDED("{\"content\":\"x\",\"id\":99999999}"), EVQ_E_CORRUPT, "an id below 4194304"},
    {ADDED("{\"content\":\"x\",\"id\":3,\"lstrip\":1}"), EVQ_E_CORRUPT, "added token 0 is neither"},
    {ADDED("{\"content\":\"x\",\"id\":5}"), EVQ_E_UNSUPPORTED, "'x' the id 5, expected 3"},
    {ADDED("{\"content\":\"a\",\"id\":3}"), EVQ_E_UNSUPPORTED, "'a' the id 3, expected 0"},
    {ADDED("{\"content\":\"a\",\"id\":0},{\"content\":\"a\",\"id\":0}"), EVQ_E_CORRUPT,
     "'a' comes twice"},
    {ADDED("{\"content\":\"a\",\"id\":0},{\"content\":\"a\",\"id\":0,\"special\":true}"),
     EVQ_E_CORRUPT, "'a' comes twice"},
    {ADDED("{\"content\":\"a\",\"content\":\"b\",\"id\":0}"), EVQ_E_CORRUPT, "twice in one object"},
    // Templates.
    {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), EVQ_E_CORRUPT,
     "cls of the post_processor is no pair"},
    {WITH("\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",0],\"sep\":[1]}"),
     EVQ_E_CORRUPT, "sep of the post_processor is no pair"},
    {WITH(
         "\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0],\"sep\":[\"b\",9]}"),
     EVQ_E_CORRUPT, "the id 9, expected below 3"},
    {WITH("\"post_processor\":{\"type\":\"ByteFallback\"}"), EVQ_E_UNSUPPORTED, "'ByteFallback'"},
    {WITH("\"post_processor\":{\"type\":\"Sequence\"}"), EVQ_E_CORRUPT, "no list of processors"},
    {WITH("\"post_processor\":7"), EVQ_E_CORRUPT, "post_processor has no type"},
    {POST("\"single\":\"$A\""), EVQ_E_CORRUPT, "single is no list"},
    {POST("\"single\":[]"), EVQ_E_UNSUPPORTED, "use each text once"},
    {POST("\"single\":[" TEXT_A "],\"pair\":[" TEXT_A "]"), EVQ_E_UNSUPPORTED,
     "use each text once"},
    {POST("\"single\":[" TEXT_A "],\"pair\":7"), EVQ_E_CORRUPT, "pair is no list"},
    {POST("\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":-1}}]"), EVQ_E_CORRUPT,
     "a type_id is no whole number"},
    {POST("\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":2147483648}}]"), EVQ_E_CORRUPT,
     "the type id 2147483648"},
    {POST("\"single\":[" TEXT_A "," TEXT_A "]"), EVQ_E_UNSUPPORTED, "use each text once"},
    {POST("\"single\":[7," TEXT_A "]"), EVQ_E_CORRUPT, "special token without ids"},
    {POST("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}," TEXT_A "]"), EVQ_E_CORRUPT,
     "special token without ids"},
    {POST("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}," TEXT_A "],"
          "\"special_tokens\":{\"x\":{\"ids\":[\"0\"]}}"),
     EVQ_E_CORRUPT, "no whole number"},
    {POST("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}," TEXT_A "],"
          "\"special_tokens\":{\"x\":{\"ids\":[3]}}"),
     EVQ_E_CORRUPT, "the id 3, expected below 3"},
    {POST("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}," TEXT_A "],"
          "\"special_tokens\":{\"x\":{\"ids\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
          "0,0,0,0,0,0,0]}}"),
     EVQ_E_LIMIT, "more than 33 parts"},
};

static void tokenizer_json_is_refused_when_it_is_wrong(void **state)
{
    struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "t");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        fixture_folder_write(folder, "t/tokenizer.json", files[i].json, strlen(files[i].json));
        refuse(folder, "t", files[i].json, files[i].status, files[i].holds);
        refuse(folder, "t/tokenizer.json", files[i].json, files[i].status, "t/tokenizer.json");
    }
    print_message("%zu tokenizer.json refused\n", sizeof(files) / sizeof(files[0]));
}

/* What the refusals above vary is itself accepted. */
static void tokenizer_json_is_accepted_when_it_is_right(void **state)
{
    static const char *const right[] = {
        "{" MODEL "}",
        " {" MODEL "}\n",
        WITH("\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"decoder\":{\"x\":[]}"),
        WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}"),
        BPE("\"dropout\":0.0,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null"),
        ADDED("{\"content\":\"x\",\"id\":3},{\"content\":\"a\",\"id\":0},{\"content\":\"\",\"id\":"
              "9}"),
        POST("\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}," TEXT_A "],"
             "\"special_tokens\":{\"x\":{\"ids\":[2]}}"),
        SPLIT("\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"},\"behavior\":\"Isolated\""),
        SPLIT("\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\\\p{L}\\\\p{N}]?"
              "\\\\p{L}+|"
              "\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\r\\n]*|\\\\s*[\\r\\n]+|\\\\s+(?!\\\\S)|"
              "\\\\s+\"},\"behavior\":\"Removed\",\"invert\":true"),
        WORDS(PREFIX("\"" LONG "\"") ",", "1000", UNK),
        WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" NFC4 "," NFC4 "," NFC4
             "," NFC4 "]}"),
        ADDED("{\"content\":\"a\u0301\",\"id\":3,\"normalized\":true}],"
              "\"normalizer\":{\"type\":\"StripAccents\"},\"x\":["),
    };
    struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "t");
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        struct evq_tokenizer *tokenizer = NULL;
        struct evq_error err = {.status = EVQ_OK};
        fixture_folder_write(folder, "t/tokenizer.json", right[i], strlen(right[i]));
        assert_status_err(evq_tokenizer_open(folder->fd, "t", &tokenizer, &err), EVQ_OK, &err);
        evq_tokenizer_free(tokenizer);
    }
}

static void tokenizer_json_is_refused_when_it_nests_or_is_cut(void **state)
{
    struct fixture_folder *folder = *state;
    const size_t bytes = strlen("{" MODEL "}");
    char deep[20000];

    fixture_folder_mkdir(folder, "t");
    memset(deep, '[', sizeof(deep));
    memcpy(deep, "{\"x\":", 5);
    fixture_folder_write(folder, "t/tokenizer.json", deep, sizeof(deep));
    refuse(folder, "t", "a deep one", EVQ_E_LIMIT, "t/tokenizer.json");
    memcpy(deep, "{\"normalizer\":", 14);
    fixture_folder_write(folder, "t/tokenizer.json", deep, sizeof(deep));
    refuse(folder, "t", "a deep setting", EVQ_E_LIMIT, "t/tokenizer.json");
    for (size_t cut = 0; cut < bytes; cut++) {
        fixture_folder_write(folder, "t/tokenizer.json", "{" MODEL "}", cut);
        refuse(folder, "t", "cut", EVQ_E_CORRUPT, "t/tokenizer.json");
    }
}

static void tokenizer_settings_of_too_many_values_are_refused(void **state)
{
    struct fixture_folder *folder = *state;
    const size_t bytes = 4 << 20;
    char *text = malloc(bytes);

    assert_non_null(text);
    memset(text, ',', bytes);
    memcpy(text, "{\"normalizer\":[", 15);
    for (size_t i = 15; i < bytes; i += 2) {
        text[i] = '1';
    }
    fixture_folder_mkdir(folder, "t");
    fixture_folder_write(folder, "t/tokenizer.json", text, bytes);
    refuse(folder, "t", "a long list", EVQ_E_LIMIT, "more values than expected");
    free(text);
}

static const struct {
    const char *name, *text;
    enum evq_status status;
    const char *holds;
} beside[] = {
    {"tokenizer_config.json", "[]", EVQ_E_CORRUPT, "tokenizer_config.json' is not a JSON object"},
    {"tokenizer_config.json", "{\"bos_token\":7}", EVQ_E_CORRUPT, "neither text nor an object"},
    {"tokenizer_config.json", "{\"split_special_tokens\":true}", EVQ_E_UNSUPPORTED,
     "split_special_tokens is true, expected false"},
    {"tokenizer_config.json", "{\"truncation_side\":\"middle\"}", EVQ_E_CORRUPT,
     "truncation_side is neither left nor right"},
    {"special_tokens_map.json", "{\"bos_token\":\"\"}", EVQ_E_CORRUPT,
     "special_tokens_map.json': a special token has 0 bytes"},
    {"config.json", "{\"bos_token_id\":", EVQ_E_CORRUPT, "config.json"},
};

static void files_beside_a_tokenizer_are_refused_when_they_are_wrong(void **state)
{
    static const char json[] = ONLY(VOCAB "," MERGES);
    struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        char name[16];
        char path[64];
        (void)snprintf(name, sizeof(name), "t%zu", i);
        fixture_folder_mkdir(folder, name);
        (void)snprintf(path, sizeof(path), "%s/tokenizer.json", name);
        fixture_folder_write(folder, path, json, sizeof(json) - 1);
        (void)snprintf(path, sizeof(path), "%s/%s", name, beside[i].name);
        fixture_folder_write(folder, path, beside[i].text, strlen(beside[i].text));
        refuse(folder, name, name, beside[i].status, beside[i].holds);
    }
}

static void directory_without_a_tokenizer_is_refused(void **state)
{
    struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "t");
    fixture_folder_write(folder, "t/vocab.json", "{}", 2);
    refuse(folder, "t", "vocab.json alone", EVQ_E_NOT_FOUND, "'t' has no tokenizer.json");
}

static void tokenizer_outside_its_root_is_refused(void **state)
{
    struct fixture_folder *folder = *state;
    char path[128];

    refuse(folder, "../x", "above", EVQ_E_INVALID, "'..'");
    refuse(folder, "/etc/hostname", "absolute", EVQ_E_INVALID, "absolute");
    refuse(folder, "none", "missing", EVQ_E_GONE, "does not exist");
    fixture_folder_mkdir(folder, "t");
    (void)snprintf(path, sizeof(path), "%s/t/tokenizer.json", folder->path);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    refuse(folder, "t", "a link out", EVQ_E_INVALID, "symbolic link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse(folder, "t", "a pipe", EVQ_E_INVALID, "regular file");
}

static void tokenizer_file_beyond_the_limit_is_refused(void **state)
{
    struct fixture_folder *folder = *state;
    char path[128];

    fixture_folder_write(folder, "tokenizer.json", "{", 1);
    (void)snprintf(path, sizeof(path), "%s/tokenizer.json", folder->path);
    assert_int_equal(truncate(path, (off_t)EVQ_TOKENIZER_FILE_BYTES_MAX + 1), 0); // A hole.
    refuse(folder, "", "a large file", EVQ_E_LIMIT, "expected at most 67108864");
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokenizer_json_is_refused_when_it_is_wrong),
        TEST(tokenizer_json_is_accepted_when_it_is_right),
        TEST(tokenizer_json_is_refused_when_it_nests_or_is_cut),
        TEST(tokenizer_settings_of_too_many_values_are_refused),
        TEST(files_beside_a_tokenizer_are_refused_when_they_are_wrong),
        TEST(directory_without_a_tokenizer_is_refused),
        TEST(tokenizer_outside_its_root_is_refused),
        TEST(tokenizer_file_beyond_the_limit_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
