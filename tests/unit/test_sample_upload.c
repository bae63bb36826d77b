/* A samples file that arrives in pieces: only a whole one with the right digest gets its name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "logger/sample_upload.h"
#include "shared/base/hex.h"
#include "shared/samples/samples_writer.h"

#define BYTES 10

static char directory[] = "/tmp/evq-upload-XXXXXX";
static const char content[BYTES + 1] = "0123456789";
static char right[33];

static struct evq_sample_piece piece_of(int64_t at, size_t bytes)
{
    return (struct evq_sample_piece){.entry = "1-1",
                                     .job = "r/1/regular/s",
                                     .token = "1.a",
                                     .task = "quiz",
                                     .digest = right,
                                     .bytes = BYTES,
                                     .at = at,
                                     .data = content + at,
                                     .data_bytes = bytes};
}

static const char *path_of(void)
{
    static char path[EVQ_SAMPLES_PATH_BYTES];

    assert_int_equal(evq_samples_path(directory, "r/1/regular/s", "quiz", path, NULL), EVQ_OK);
    return path;
}

static struct evq_sample_upload *upload_of(const struct evq_sample_piece *piece)
{
    struct evq_sample_upload *upload = NULL;

    (void)unlink(path_of());
    assert_int_equal(evq_sample_upload_new(directory, piece, &upload, NULL), EVQ_OK);
    assert_int_equal(evq_sample_upload_add(upload, piece, NULL), EVQ_OK);
    return upload;
}

static void add(struct evq_sample_upload *upload, struct evq_sample_piece piece)
{
    assert_true(evq_sample_upload_has(upload, &piece));
    assert_int_equal(evq_sample_upload_add(upload, &piece, NULL), EVQ_OK);
}

/* The temporary file is removed, too. */
static void assert_empty(void)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/r/1/regular/s", directory);
    assert_int_equal(rmdir(path), 0);
}

static void upload_is_stored_when_it_is_whole(void **state)
{
    const struct evq_sample_piece first = piece_of(0, 4);
    struct evq_sample_upload *upload = upload_of(&first);
    char got[BYTES + 1] = "";
    size_t count = 0;

    (void)state;
    assert_false(evq_sample_upload_whole(upload));
    add(upload, first); // It was sent again, because its answer was lost.
    add(upload, piece_of(4, 3));
    assert_false(evq_sample_upload_whole(upload));
    assert_int_not_equal(access(path_of(), F_OK), 0);
    add(upload, piece_of(7, 3));
    assert_true(evq_sample_upload_whole(upload));
    assert_int_equal(evq_sample_upload_store(upload, NULL), EVQ_OK);
    const struct evq_piece_entry *entries = evq_sample_upload_entries(upload, &count);
    assert_int_equal(count, 4);
    assert_int_equal(entries[0].file_bytes + entries[1].file_bytes, 2 * BYTES);
    assert_int_equal(entries[2].file_bytes + entries[3].file_bytes, 0);
    evq_sample_upload_free(upload);
    FILE *file = fopen(path_of(), "rb");
    assert_non_null(file);
    assert_int_equal(fread(got, 1, BYTES, file), BYTES);
    (void)fclose(file);
    assert_string_equal(got, content);
}

static void upload_with_a_gap_is_never_whole(void **state)
{
    const struct evq_sample_piece first = piece_of(0, 4);
    struct evq_sample_upload *upload = upload_of(&first);

    (void)state;
    add(upload, piece_of(7, 3));
    add(upload, piece_of(4, 3));
    add(upload, piece_of(7, 3));
    assert_false(evq_sample_upload_whole(upload));
    evq_sample_upload_free(upload);
    assert_int_not_equal(access(path_of(), F_OK), 0);
    assert_empty();
}

static void upload_of_another_size_or_digest_is_never_whole(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        const struct evq_sample_piece first = piece_of(0, 4);
        struct evq_sample_upload *upload = upload_of(&first);
        struct evq_sample_piece rest = piece_of(4, 6);
        if (which == 0) {
            rest.bytes = BYTES + 1;
        } else {
            rest.digest = "ffffffffffffffffffffffffffffffff";
        }
        add(upload, rest);
        assert_false(evq_sample_upload_whole(upload));
        evq_sample_upload_free(upload);
    }
    struct evq_sample_piece other = piece_of(0, 4);
    struct evq_sample_upload *upload = upload_of(&other);
    other.token = "2.b"; // Another attempt sends another file.
    assert_false(evq_sample_upload_has(upload, &other));
    evq_sample_upload_free(upload);
}

static void upload_with_changed_bytes_is_not_stored(void **state)
{
    struct evq_sample_piece whole = piece_of(0, BYTES);
    struct evq_error err = {EVQ_OK, ""};

    (void)state;
    whole.data = "012345678X";
    struct evq_sample_upload *upload = upload_of(&whole);
    assert_true(evq_sample_upload_whole(upload));
    assert_int_equal(evq_sample_upload_store(upload, &err), EVQ_E_CORRUPT);
    assert_non_null(strstr(err.message, "arrived with the digest"));
    evq_sample_upload_free(upload);
    assert_int_not_equal(access(path_of(), F_OK), 0);
    assert_empty();
}

static int make_directory(void **state)
{
    const XXH128_hash_t hash = XXH3_128bits(content, BYTES);

    (void)state;
    evq_hex_128(hash.high64, hash.low64, right);
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
        cmocka_unit_test(upload_is_stored_when_it_is_whole),
        cmocka_unit_test(upload_with_a_gap_is_never_whole),
        cmocka_unit_test(upload_of_another_size_or_digest_is_never_whole),
        cmocka_unit_test(upload_with_changed_bytes_is_not_stored),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
