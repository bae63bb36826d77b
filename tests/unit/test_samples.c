/* Samples files: what is written is read, an unfinished file does not exist, and bad ones are
 * refused with one sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/base/json_memory.h"
#include "shared/samples/samples_reader.h"
#include "shared/samples/samples_set.h"
#include "shared/samples/samples_writer.h"

static char directory[] = "/tmp/evq-samples-XXXXXX";

static struct evq_samples_header header_of(const char *job)
{
    struct evq_samples_header header = {.task = "quiz",
                                        .suite_digest = "00112233445566778899aabbccddeeff"};

    (void)snprintf(header.job, sizeof header.job, "%s", job);
    return header;
}

static struct evq_sample sample_of(const char *id, double acc)
{
    return (struct evq_sample){.id = id,
                               .scores = {{"acc", acc}, {"loss", 0.1}},
                               .score_count = 2,
                               .output = "yes \x1b[31m \xe2\x82\xac",
                               .target = "no",
                               .logprob = -1.0 / 3.0,
                               .tokens = 7};
}

static struct evq_samples_writer *writer_open(const struct evq_samples_header *header)
{
    struct evq_samples_writer *writer = NULL;
    struct evq_error err = {.message = ""};

    if (evq_samples_writer_open(directory, header, &writer, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    return writer;
}

/* Writes items with the ids first to last - 1. Returns the digest. */
static const char *write_file(const struct evq_samples_header *header, int first, int last)
{
    static char digest[33];
    struct evq_samples_writer *writer = writer_open(header);
    int64_t bytes = 0;

    for (int i = first; i < last; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "q%d", i);
        const struct evq_sample sample = sample_of(id, i % 2);
        assert_int_equal(evq_samples_writer_add(writer, &sample, NULL), EVQ_OK);
    }
    assert_int_equal(evq_samples_writer_finish(writer, digest, &bytes, NULL), EVQ_OK);
    assert_true(bytes > 0);
    return digest;
}

static const char *path_of(const char *job)
{
    static char path[EVQ_SAMPLES_PATH_BYTES];

    assert_int_equal(evq_samples_path(directory, job, "quiz", path, NULL), EVQ_OK);
    return path;
}

static int files_of(const char *job)
{
    char path[EVQ_SAMPLES_PATH_BYTES + 1];
    int count = 0;

    (void)snprintf(path, sizeof path, "%s/%s", directory, job);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(dir);
    return count;
}

static void samples_read_back_what_was_written(void **state)
{
    const struct evq_samples_header header = header_of("back/1/regular/s");
    struct evq_samples_header read;
    struct evq_samples_reader *reader = NULL;
    struct evq_sample sample;
    bool end = false;

    (void)state;
    (void)write_file(&header, 0, 3);
    assert_int_equal(evq_samples_reader_open(path_of("back/1/regular/s"), &read, &reader, NULL),
                     EVQ_OK);
    assert_string_equal(read.job, header.job);
    assert_string_equal(read.task, "quiz");
    assert_string_equal(read.suite_digest, header.suite_digest);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(evq_samples_reader_next(reader, &sample, &end, NULL), EVQ_OK);
        assert_false(end);
        const struct evq_sample wanted = sample_of(sample.id, i % 2);
        assert_int_equal(sample.id[1], '0' + i);
        assert_string_equal(sample.output, wanted.output);
        assert_string_equal(sample.target, wanted.target);
        assert_null(sample.cluster);
        assert_true(sample.logprob == wanted.logprob); // Every digit is kept.
        assert_int_equal(sample.tokens, 7);
        assert_true(evq_sample_score(&sample, "acc")->value == i % 2);
        assert_true(evq_sample_score(&sample, "loss")->value == 0.1);
    }
    assert_int_equal(evq_samples_reader_next(reader, &sample, &end, NULL), EVQ_OK);
    assert_true(end);
    evq_samples_reader_close(reader);
}

static void samples_of_a_repeated_attempt_are_the_same_file(void **state)
{
    const struct evq_samples_header header = header_of("same/1/regular/s");
    char first[33];

    (void)state;
    (void)snprintf(first, sizeof first, "%s", write_file(&header, 0, 500));
    assert_string_equal(write_file(&header, 0, 500), first);
    assert_int_equal(files_of("same/1/regular/s"), 1);
}

static void samples_that_are_not_finished_do_not_exist(void **state)
{
    const struct evq_samples_header header = header_of("part/1/regular/s");
    struct evq_samples_writer *writer = writer_open(&header);
    const struct evq_sample sample = sample_of("q1", 1);

    (void)state;
    assert_int_equal(evq_samples_writer_add(writer, &sample, NULL), EVQ_OK);
    assert_int_not_equal(access(path_of("part/1/regular/s"), F_OK), 0);
    evq_samples_writer_free(writer);
    assert_int_equal(files_of("part/1/regular/s"), 0); // The temporary file is removed too.
}

static void samples_keep_at_most_the_limit(void **state)
{
    struct evq_samples_header header = header_of("limit/1/regular/s");
    struct evq_samples_set *set = NULL;

    (void)state;
    header.limit = 5;
    (void)write_file(&header, 0, 100);
    assert_int_equal(evq_samples_set_read(path_of("limit/1/regular/s"), true, NULL, &set, NULL),
                     EVQ_OK);
    assert_int_equal(set->count, 5);
    assert_int_equal(set->header.limit, 5);
    evq_samples_set_free(set);
}

static void assert_not_added(const struct evq_sample *sample, const char *said)
{
    const struct evq_samples_header header = header_of("refuse/1/regular/s");
    struct evq_samples_writer *writer = writer_open(&header);
    const struct evq_sample first = sample_of("q1", 1);
    struct evq_error err = {.message = ""};

    assert_int_equal(evq_samples_writer_add(writer, &first, NULL), EVQ_OK);
    assert_int_not_equal(evq_samples_writer_add(writer, sample, &err), EVQ_OK);
    assert_string_equal(err.message, said);
    evq_samples_writer_free(writer);
}

static void samples_writer_refuses_bad_items(void **state)
{
    struct evq_sample sample = sample_of("q1", 1);

    (void)state;
    assert_not_added(&sample, "the id 'q1' comes twice");
    sample = sample_of("q2", (double)NAN);
    assert_not_added(&sample, "score 'acc' of item 'q2' is nan");
    sample = sample_of("q2", 1);
    sample.scores[1].name = "other";
    assert_not_added(
        &sample, "item 'q2' has other scores than the first item, whose scores begin with 'loss'");
    char *large = malloc(EVQ_SAMPLES_LINE_BYTES_MAX + 2);
    assert_non_null(large);
    memset(large, 'x', EVQ_SAMPLES_LINE_BYTES_MAX + 1);
    large[EVQ_SAMPLES_LINE_BYTES_MAX + 1] = '\0';
    sample = sample_of("q2", 1);
    sample.output = large;
    assert_not_added(&sample, "a sample takes more than 8 MiB");
    free(large);
}

#define HEAD                                                                                       \
    "{\"evalq_samples\":2,\"job\":\"r/1/regular/s\",\"task\":\"quiz\",\"suite_digest\":\"\","      \
    "\"data_digest\":\"\",\"weighted\":\"\"}\n"

static uLong put(gzFile file, uLong crc, const char *text)
{
    (void)gzputs(file, text);
    return crc32(crc, (const Bytef *)text, (uInt)strlen(text));
}

/* Reads a file with this content; repeat writes the text so many times. The last line matches. */
static void assert_file_refused(const char *head, const char *text, size_t repeat,
                                enum evq_status status, const char *said)
{
    struct evq_samples_set *set = NULL;
    struct evq_error err = {.message = ""};
    char path[64];

    (void)snprintf(path, sizeof path, "%s/bad.gz", directory);
    gzFile file = gzopen(path, "wb1");
    assert_non_null(file);
    uLong crc = put(file, crc32(0, NULL, 0), head);
    for (size_t i = 0; i < repeat; i++) {
        crc = put(file, crc, text);
    }
    (void)gzprintf(file, "{\"evalq_samples_end\":%d,\"crc32\":%lu}\n", (int)repeat, crc);
    assert_int_equal(gzclose(file), Z_OK);
    assert_int_equal(evq_samples_set_read(path, true, NULL, &set, &err), status);
    if (strstr(err.message, said) == NULL) {
        fail_msg("'%s', expected '%s'", err.message, said);
    }
}

static void samples_reader_refuses_bad_files(void **state)
{
    static const char item[] = "{\"id\":\"a\",\"scores\":{\"acc\":1}}\n";

    (void)state;
    assert_file_refused("", item, 1, EVQ_E_CORRUPT, "the first line is not that of a samples file");
    assert_file_refused("", "", 1, EVQ_E_CORRUPT, "the first line is not that of a samples file");
    assert_file_refused("{\"evalq_samples\":1}\n", item, 1, EVQ_E_UNSUPPORTED,
                        "the samples have the format 1, and this evalq reads format 2");
    assert_file_refused(HEAD, item, 2, EVQ_E_CORRUPT, "the id 'a' comes twice");
    assert_file_refused(HEAD, "{\"id\":\"a\xff\"}\n", 1, EVQ_E_CORRUPT,
                        "line 2: not JSON: unable to decode byte 0xff");
    assert_file_refused(HEAD, "{\"id\":\"a\",\"scores\":{\"acc\":NaN}}\n", 1, EVQ_E_CORRUPT,
                        "line 2: not JSON");
    assert_file_refused(HEAD, "{\"id\":\"a\",\"scores\":{\"acc\":\"NaN\"}}\n", 1, EVQ_E_INVALID,
                        "line 2: score 'acc' is not a finite number");
    assert_file_refused(HEAD, "{\"id\":\"a\",\"scores\":{}}\n", 1, EVQ_E_INVALID,
                        "'scores' holds 0 scores, expected an object of 1 to 64 numbers");
    assert_file_refused(HEAD, "{\"scores\":{\"acc\":1}}\n", 1, EVQ_E_INVALID, "the id is ''");
    assert_file_refused(HEAD, "{\"id\":\"a\\u001b\",\"scores\":{\"acc\":1}}\n", 1, EVQ_E_INVALID,
                        "the id is 'a\\x1b', expected");
    assert_file_refused(HEAD, "{\"id\":\"a\",\"scores\":{\"acc\":1},\"score\":1}\n", 1,
                        EVQ_E_INVALID, "'score' is no field of a sample");
    assert_file_refused(HEAD, "{\"id\":\"a\",\"scores\":{\"acc\":1},\"tokens\":-1}\n", 1,
                        EVQ_E_INVALID, "'tokens' is not a count");
    assert_file_refused(HEAD, "[1]\n", 1, EVQ_E_INVALID, "line 2: it is not a JSON object");
    // An output of 100 MB is given up after 8 MiB.
    assert_file_refused(HEAD "{\"id\":\"a\",\"output\":\"",
                        "0123456789012345678901234567890123456789012345678901234567890123456789"
                        "012345678901234567890123456789",
                        1000000, EVQ_E_LIMIT, "line 2: more than 8 MiB");
}

static void samples_reader_refuses_a_truncated_file(void **state)
{
    const struct evq_samples_header header = header_of("cut/1/regular/s");
    struct evq_samples_set *set = NULL;
    struct evq_error err = {.message = ""};
    struct stat info;

    (void)state;
    (void)write_file(&header, 0, 2000);
    const char *path = path_of("cut/1/regular/s");
    assert_int_equal(stat(path, &info), 0);
    for (off_t bytes = info.st_size - 1; bytes > 20; bytes = bytes * 2 / 3) {
        assert_int_equal(truncate(path, bytes), 0);
        assert_int_equal(evq_samples_set_read(path, true, NULL, &set, &err), EVQ_E_CORRUPT);
        assert_non_null(strstr(err.message, "is truncated after line"));
    }
    assert_int_equal(evq_samples_set_read("/nowhere/x.gz", true, NULL, &set, &err),
                     EVQ_E_NOT_FOUND);
    assert_int_equal(evq_samples_set_read("/dev", true, NULL, &set, &err), EVQ_E_INVALID);
}

/* Decompresses a file, changes it with a call, and compresses it again. */
static void rewrite(const char *path, void (*change)(char *text))
{
    static char text[1 << 20];
    gzFile file = gzopen(path, "rb");

    assert_non_null(file);
    const int bytes = gzread(file, text, sizeof text - 1);
    assert_true(bytes > 0 && bytes < (int)sizeof text - 1);
    assert_int_equal(gzclose(file), Z_OK);
    text[bytes] = '\0';
    change(text);
    file = gzopen(path, "wb1");
    assert_non_null(file);
    (void)gzputs(file, text);
    assert_int_equal(gzclose(file), Z_OK);
}

static void change_score(char *text)
{
    *(strstr(text, "\"acc\":0") + strlen("\"acc\":")) = '1';
}

static void remove_item(char *text)
{
    char *line = strstr(text, "{\"id\":\"q3\"");
    char *next = strchr(line, '\n') + 1;

    memmove(line, next, strlen(next) + 1);
}

static void remove_end(char *text)
{
    *strstr(text, "{\"evalq_samples_end\"") = '\0';
}

static void append_item(char *text)
{
    (void)strcat(text, "{\"id\":\"more\",\"scores\":{\"acc\":1,\"loss\":1}}\n");
}

/* A file that somebody changed and compressed again has a valid gzip checksum. */
static void samples_reader_refuses_a_changed_file(void **state)
{
    static const struct {
        void (*change)(char *text);
        const char *said;
    } cases[] = {
        {change_score, "was changed after evalq wrote it"},
        {remove_item, "was changed after evalq wrote it"},
        {append_item, "was changed after evalq wrote it"},
        {remove_end, "is truncated after line 101: its last line is missing"},
    };
    const struct evq_samples_header header = header_of("changed/1/regular/s");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct evq_samples_set *set = NULL;
        struct evq_error err = {.message = ""};
        (void)write_file(&header, 0, 100);
        rewrite(path_of(header.job), cases[i].change);
        assert_int_equal(evq_samples_set_read(path_of(header.job), true, NULL, &set, &err),
                         EVQ_E_CORRUPT);
        if (strstr(err.message, cases[i].said) == NULL) {
            fail_msg("'%s', expected '%s'", err.message, cases[i].said);
        }
    }
}

/* A writer that was killed leaves its file and loses its lock. */
static void samples_sweep_removes_only_files_without_a_writer(void **state)
{
    struct evq_temporary_file file;
    char dead[sizeof file.path];
    char path[EVQ_SAMPLES_PATH_BYTES];

    (void)state;
    (void)snprintf(path, sizeof path, "%s/sweep/1/regular/s/quiz.jsonl.gz", directory);
    assert_int_equal(evq_temporary_file_open(path, &file, NULL), EVQ_OK);
    assert_false(evq_temporary_file_sweep(file.path)); // It has a writer.
    (void)snprintf(dead, sizeof dead, "%s.dead", path);
    assert_int_equal(link(file.path, dead), 0);
    assert_false(evq_temporary_file_sweep(dead)); // Not a temporary name.
    assert_int_equal(rename(dead, path), 0);
    (void)close(file.fd);
    assert_false(evq_temporary_file_sweep(path));
    assert_true(evq_temporary_file_sweep(file.path));
    assert_int_equal(files_of("sweep/1/regular/s"), 1);
}

static struct evq_samples_set *set_of(const struct evq_samples_header *header, int first, int last)
{
    struct evq_samples_set *set = NULL;

    (void)write_file(header, first, last);
    assert_int_equal(evq_samples_set_read(path_of(header->job), false, NULL, &set, NULL), EVQ_OK);
    return set;
}

static void samples_are_paired_by_id(void **state)
{
    struct evq_samples_header a = header_of("pair/1/regular/s");
    struct evq_samples_header b = header_of("pair/2/regular/s");
    struct evq_samples_set *one = set_of(&a, 0, 100);
    struct evq_samples_set *two = set_of(&b, 30, 120);
    struct evq_samples_pairs pairs;

    (void)state;
    assert_int_equal(evq_samples_pairs_make(one, two, &pairs, NULL), EVQ_OK);
    assert_int_equal(pairs.count, 70);
    assert_int_equal(pairs.only_a, 30);
    assert_int_equal(pairs.only_b, 20);
    assert_non_null(pairs.first_only_a);
    for (size_t i = 0; i < pairs.count; i++) {
        assert_string_equal(pairs.pairs[i].a->id, pairs.pairs[i].b->id);
        assert_int_equal(pairs.pairs[i].a->number, 30 + (int)i); // In the order of the file.
        assert_null(pairs.pairs[i].a->output);                   // Texts were not wanted.
    }
    free(pairs.pairs);
    evq_samples_set_free(two);

    const struct {
        const char *what;
        char *field;
        size_t bytes;
    } others[] = {{"different definitions of the suite", b.suite_digest, sizeof b.suite_digest},
                  {"different data", b.data_digest, sizeof b.data_digest}};
    for (size_t i = 0; i < 2; i++) {
        struct evq_error err = {.message = ""};
        b = header_of("pair/2/regular/s");
        (void)snprintf(others[i].field, others[i].bytes, "ffffffffffffffffffffffffffffffff");
        two = set_of(&b, 0, 10);
        assert_int_equal(evq_samples_pairs_make(one, two, &pairs, &err), EVQ_E_CONFLICT);
        assert_non_null(strstr(err.message, others[i].what));
        evq_samples_set_free(two);
    }
    evq_samples_set_free(one);
}

static int make_directory(void **state)
{
    (void)state;
    evq_json_memory_watch();
    return mkdtemp(directory) != NULL ? 0 : -1;
}

static int remove_directory(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_read_back_what_was_written),
        cmocka_unit_test(samples_of_a_repeated_attempt_are_the_same_file),
        cmocka_unit_test(samples_that_are_not_finished_do_not_exist),
        cmocka_unit_test(samples_keep_at_most_the_limit),
        cmocka_unit_test(samples_writer_refuses_bad_items),
        cmocka_unit_test(samples_reader_refuses_bad_files),
        cmocka_unit_test(samples_reader_refuses_a_truncated_file),
        cmocka_unit_test(samples_reader_refuses_a_changed_file),
        cmocka_unit_test(samples_sweep_removes_only_files_without_a_writer),
        cmocka_unit_test(samples_are_paired_by_id),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
