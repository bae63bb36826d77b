/*
 * A samples file, as a worker, a program or a damaged disk left it. What is read is written again,
 * and that reads back as the same items. Without its texts, a file has the same items. If the first
 * byte is odd, the rest is the plain file of a program, without a first line of its own.
 */
// fuzz: samples
#include <math.h>

#include "shared/base/json_memory.h"
#include "shared/samples/samples_reader.h"
#include "shared/samples/samples_set.h"
#include "tests/fuzz/file.h"

/* Reads the samples of a program and writes each of them once more. */
static void read_program(const char *path)
{
    struct evq_samples_reader *reader = NULL;
    struct evq_error err = {EVQ_OK, ""};
    bool end = false;

    enum evq_status status = evq_samples_reader_open(path, NULL, &reader, &err);
    while (status == EVQ_OK && !end) {
        struct evq_sample sample;
        struct evq_buffer line;
        json_error_t fault;
        status = evq_samples_reader_next(reader, &sample, &end, &err);
        if (status != EVQ_OK || end) {
            break;
        }
        evq_buffer_init(&line, 0);
        evq_sample_write(&sample, &line);
        check(!line.failed && line.data[line.bytes - 1] == '\n');
        json_t *again = json_loadb((const char *)line.data, line.bytes, 0, &fault);
        struct evq_sample copy;
        check(again != NULL && evq_sample_read(again, &copy, NULL) == EVQ_OK);
        check(strcmp(copy.id, sample.id) == 0 && copy.score_count == sample.score_count);
        for (size_t i = 0; i < sample.score_count; i++) {
            const struct evq_sample_score *score = evq_sample_score(&copy, sample.scores[i].name);
            check(score != NULL && score->value == sample.scores[i].value);
        }
        json_decref(again);
        evq_buffer_free(&line);
    }
    check(status == EVQ_OK || err.message[0] != '\0');
    evq_samples_reader_close(reader);
}

/* Reads a whole file and pairs it with itself. */
static void read_set(const char *path)
{
    struct evq_samples_set *set = NULL;
    struct evq_samples_set *bare = NULL;
    struct evq_samples_pairs pairs;
    struct evq_error err = {EVQ_OK, ""};

    const enum evq_status status = evq_samples_set_read(path, true, NULL, &set, &err);
    check((evq_samples_set_read(path, false, NULL, &bare, NULL) == EVQ_OK) == (status == EVQ_OK));
    if (status != EVQ_OK) {
        check(err.message[0] != '\0');
        return;
    }
    check(evq_samples_pairs_make(set, bare, &pairs, &err) == EVQ_OK);
    check(pairs.count == set->count && pairs.only_a == 0 && pairs.only_b == 0);
    free(pairs.pairs);
    evq_samples_set_free(bare);
    check(evq_samples_pairs_make(set, set, &pairs, &err) == EVQ_OK);
    check(pairs.count == set->count && pairs.only_a == 0 && pairs.only_b == 0);
    for (size_t i = 0; i < pairs.count; i++) {
        check(pairs.pairs[i].a == pairs.pairs[i].b && pairs.pairs[i].a->number == (int64_t)i);
        for (size_t k = 0; k < set->name_count; k++) {
            check(isfinite(pairs.pairs[i].a->scores[k]));
        }
    }
    free(pairs.pairs);
    evq_samples_set_free(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool watched;

    if (!watched) {
        evq_json_memory_watch();
        watched = true;
    }
    if (bytes > 0 && data[0] % 2 == 1) {
        read_program(fuzz_file(data + 1, bytes - 1));
    } else if (bytes > 0) {
        read_set(fuzz_file(data + 1, bytes - 1));
    }
    return 0;
}
