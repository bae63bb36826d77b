#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/checkpoint/torch/zip.h"
#include "tests/fixture/archive.h"
#include "tests/fixture/check.h"

/* As torch: four entries "t/a" "t/b" "t/cc" "t/d", with descriptors and zip64 end records; else
 * plain. */
static void build(struct fixture_archive *archive, bool as_torch)
{
    fixture_archive_start(archive, as_torch);
    fixture_archive_add(archive, "t/a", "hello", 5);
    fixture_archive_add(archive, "t/b", "", 0);
    fixture_archive_add(archive, "t/cc", "0123456789", 10);
    fixture_archive_add(archive, "t/d", "x", 1);
}

/* The archive lies between other bytes of its file, as the parts of a distributed checkpoint do. */
static enum evq_status read_bytes(const void *data, size_t bytes, struct evq_zip **ret_zip,
                                  struct evq_zip_source *ret_source, struct evq_error *err)
{
    const struct evq_zip_source source = {
        .fd = memfd_create("zip", MFD_CLOEXEC), .origin = 13, .bytes = bytes};

    assert_true(source.fd >= 0);
    assert_int_equal(write(source.fd, "PK\5\6 in front", 13), 13);
    assert_int_equal(write(source.fd, data, bytes), (ssize_t)bytes);
    assert_int_equal(write(source.fd, "PK\5\6 behind", 11), 11);
    enum evq_status status = evq_zip_read(&source, 1000000, ret_zip, err);
    if (ret_source != NULL) {
        *ret_source = source;
    } else {
        (void)close(source.fd);
    }
    return status;
}

static void zip_reads_entries_of_both_writers(void **state)
{
    (void)state;
    for (int as_torch = 0; as_torch < 2; as_torch++) {
        struct fixture_archive archive;
        struct evq_zip *zip = NULL;
        struct evq_error err;
        uint8_t *data = NULL;
        struct evq_zip_source source;
        build(&archive, as_torch == 1);
        fixture_archive_finish(&archive);
        assert_status_err(read_bytes(archive.bytes.data, archive.bytes.bytes, &zip, &source, &err),
                          EVQ_OK, &err);
        assert_int_equal(zip->count, 4);
        assert_null(evq_zip_find(zip, "t/c"));
        const struct evq_zip_entry *entry = evq_zip_find(zip, "t/cc");
        assert_non_null(entry);
        assert_int_equal(entry->bytes, 10);
        assert_status_err(evq_zip_load(&source, entry, 10, &data, &err), EVQ_OK, &err);
        assert_memory_equal(data, "0123456789", 10);
        free(data);
        assert_status(evq_zip_load(&source, entry, 9, &data, &err), EVQ_E_LIMIT);
        evq_zip_free(zip);
        (void)close(source.fd);
        fixture_archive_free(&archive);
    }
}

static void zip_reads_an_archive_without_entries(void **state)
{
    struct fixture_archive archive;
    struct evq_zip *zip = NULL;

    (void)state;
    fixture_archive_start(&archive, false);
    fixture_archive_finish(&archive);
    assert_status(read_bytes(archive.bytes.data, archive.bytes.bytes, &zip, NULL, NULL), EVQ_OK);
    assert_int_equal(zip->count, 0);
    assert_null(evq_zip_find(zip, "x"));
    evq_zip_free(zip);
    fixture_archive_free(&archive);
}

enum region { LOCAL, CENTRAL, END, END64, LOCATOR };

struct patch {
    enum region region;
    size_t entry;
    size_t offset;
    const char *data;
    size_t bytes;
    bool as_torch;
    enum evq_status status;
    const char *holds;
};

static const struct patch patches[] = {
    // A name, size, method, flag or CRC that differs between the two headers of an entry.
    {LOCAL, 0, 0, "XK", 2, false, EVQ_E_CORRUPT, "'t/a' has another name in its local header"},
    {LOCAL, 0, 30, "T", 1, false, EVQ_E_CORRUPT, "another name"},
    {LOCAL, 2, 33, "X", 1, false, EVQ_E_CORRUPT, "'t/cc' has another name"},
    {LOCAL, 0, 26, "\2", 1, false, EVQ_E_CORRUPT, "another name"},
    {LOCAL, 0, 6, "\x08", 1, false, EVQ_E_CORRUPT, "other flags"},
    {LOCAL, 0, 6, "\x01", 1, true, EVQ_E_CORRUPT, "other flags"},
    {LOCAL, 0, 8, "\x08", 1, false, EVQ_E_CORRUPT, "other flags, method"},
    {LOCAL, 0, 14, "\x11", 1, false, EVQ_E_CORRUPT, "or CRC"},
    {LOCAL, 0, 14, "\x11", 1, true, EVQ_E_CORRUPT, "or CRC"},
    {LOCAL, 0, 18, "\4", 1, false, EVQ_E_CORRUPT, "size"},
    {LOCAL, 0, 22, "\6", 1, false, EVQ_E_CORRUPT, "size"},
    {LOCAL, 0, 22, "\6", 1, true, EVQ_E_CORRUPT, "size"},
    {LOCAL, 3, 28, "\xff\xff", 2, false, EVQ_E_CORRUPT, "'t/d' reaches into the central directory"},
    {LOCAL, 0, 28, "\1", 1, false, EVQ_E_CORRUPT, "overlap"},
    // The central directory.
    {CENTRAL, 0, 0, "PK\3\4", 4, false, EVQ_E_CORRUPT, "malformed central directory"},
    {CENTRAL, 0, 8, "\1", 1, false, EVQ_E_UNSUPPORTED, "'t/a' is encrypted"},
    {CENTRAL, 0, 8, "\x40", 1, false, EVQ_E_UNSUPPORTED, "has flags 0x0040"},
    {CENTRAL, 0, 9, "\x20", 1, false, EVQ_E_UNSUPPORTED, "has flags 0x2000"},
    {CENTRAL, 0, 20, "\4", 1, false, EVQ_E_CORRUPT, "stored, yet has two sizes"},
    {CENTRAL, 0, 20, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, false, EVQ_E_CORRUPT,
     "malformed extra fields"},
    {CENTRAL, 0, 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f", 8, true, EVQ_E_CORRUPT,
     "reaches into the central"},
    {CENTRAL, 0, 34, "\1", 1, false, EVQ_E_CORRUPT, "on another disk"},
    {CENTRAL, 0, 28, "\xff\xff", 2, false, EVQ_E_CORRUPT, "reaches behind the central directory"},
    {CENTRAL, 0, 30, "\xff\xff", 2, false, EVQ_E_CORRUPT, "reaches behind the central directory"},
    {CENTRAL, 0, 32, "\xff\xff", 2, false, EVQ_E_CORRUPT, "reaches behind the central directory"},
    {CENTRAL, 0, 28, "\0\0", 2, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 0, 42, "\xff\xff\xff\xff", 4, false, EVQ_E_CORRUPT, "malformed extra fields"},
    {CENTRAL, 0, 42, "\xff\xff\xff\x7f", 4, false, EVQ_E_CORRUPT, "begins behind the data"},
    {CENTRAL, 0, 46, "/", 1, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 0, 46, "\0", 1, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 0, 46, "\\", 1, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 0, 46, "..", 2, false, EVQ_E_CORRUPT, "another name"}, // "..a" is a name.
    {CENTRAL, 2, 46, "../", 3, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 2, 46, "x/..", 4, false, EVQ_E_CORRUPT, "not a plain entry name"},
    {CENTRAL, 2, 46, "\x1b[2J", 4, false, EVQ_E_CORRUPT, "\\x1b[2J"},
    // The end records.
    {END, 0, 4, "\1", 1, false, EVQ_E_CORRUPT, "several disks"},
    {END, 0, 6, "\1", 1, false, EVQ_E_CORRUPT, "several disks"},
    {END, 0, 8, "\3", 1, false, EVQ_E_CORRUPT, "several disks"},
    {END, 0, 8, "\3\0\3", 3, false, EVQ_E_CORRUPT, "holds more than its 3 entries"},
    {END, 0, 8, "\5\0\5", 3, false, EVQ_E_CORRUPT, "5 entries do not fit"},
    {END, 0, 8, "\xff\xff\xff\xff", 4, false, EVQ_E_CORRUPT, "65535 entries do not fit"},
    {END, 0, 12, "\1", 1, false, EVQ_E_CORRUPT, "does not reach"},
    {END, 0, 12, "\xff\xff\xff\xff", 4, false, EVQ_E_CORRUPT, "does not reach"},
    {END, 0, 16, "\1", 1, false, EVQ_E_CORRUPT, "does not reach"},
    {END, 0, 20, "\1", 1, false, EVQ_E_INCOMPLETE, "still being written"},
    {END, 0, 0, "QK", 2, false, EVQ_E_INCOMPLETE, "no end of central directory"},
    {LOCATOR, 0, 4, "\1", 1, true, EVQ_E_CORRUPT, "locator"},
    {LOCATOR, 0, 8, "\1", 1, true, EVQ_E_CORRUPT, "locator"},
    {LOCATOR, 0, 16, "\2", 1, true, EVQ_E_CORRUPT, "locator"},
    {LOCATOR, 0, 0, "QK", 2, true, EVQ_E_CORRUPT, "does not reach"},
    {END64, 0, 0, "QK", 2, true, EVQ_E_CORRUPT, "malformed zip64 end record"},
    {END64, 0, 4, "\x2d", 1, true, EVQ_E_CORRUPT, "malformed zip64 end record"},
    {END64, 0, 16, "\1", 1, true, EVQ_E_CORRUPT, "malformed zip64 end record"},
    {END64, 0, 24, "\1", 1, true, EVQ_E_CORRUPT, "malformed zip64 end record"},
    {END64, 0, 24, "\5\0\0\0\0\0\0\0\5", 9, true, EVQ_E_CORRUPT, "disagree"},
    {END64, 0, 40, "\1", 1, true, EVQ_E_CORRUPT, "disagree"},
    {END64, 0, 47, "\xff", 1, true, EVQ_E_CORRUPT, "disagree"},
    {END64, 0, 48, "\1", 1, true, EVQ_E_CORRUPT, "disagree"},
};

static size_t place_of(const struct fixture_archive *archive, const struct patch *patch)
{
    switch (patch->region) {
    case LOCAL:
        return archive->entries[patch->entry].local;
    case CENTRAL:
        return archive->entries[patch->entry].central;
    case END:
        return archive->end_at;
    case END64:
        return archive->end64_at;
    default:
        return archive->end64_at + 56;
    }
}

static void zip_refuses_every_spoiled_field_with_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++) {
        const struct patch *patch = &patches[i];
        struct fixture_archive archive;
        struct evq_zip *zip = NULL;
        struct evq_error err = {.status = EVQ_OK};
        build(&archive, patch->as_torch);
        fixture_archive_finish(&archive);
        fixture_archive_patch(&archive, place_of(&archive, patch) + patch->offset, patch->data,
                              patch->bytes);
        enum evq_status status =
            read_bytes(archive.bytes.data, archive.bytes.bytes, &zip, NULL, &err);
        if (status != patch->status || strstr(err.message, patch->holds) == NULL) {
            fail_msg("patch %zu: %s '%s', wanted %s '%s'", i, evq_status_name(status), err.message,
                     evq_status_name(patch->status), patch->holds);
        }
        assert_null(zip);
        fixture_archive_free(&archive);
    }
}

static void refuse(struct fixture_archive *archive, enum evq_status want, const char *holds)
{
    struct evq_zip *zip = NULL;
    struct evq_error err;

    assert_status_err(read_bytes(archive->bytes.data, archive->bytes.bytes, &zip, NULL, &err), want,
                      &err);
    assert_holds(err.message, holds);
    fixture_archive_free(archive);
}

static void zip_refuses_hidden_and_shared_bytes(void **state)
{
    struct fixture_archive archive;

    (void)state;
    build(&archive, false); // Two records for one content: how zip bombs overlap.
    archive.entries[3] = archive.entries[2];
    fixture_archive_finish(&archive);
    refuse(&archive, EVQ_E_CORRUPT, "entries overlap");

    build(&archive, false);
    fixture_archive_add(&archive, "t/a", "other", 5);
    fixture_archive_finish(&archive);
    refuse(&archive, EVQ_E_CORRUPT, "two entries named 't/a'");

    build(&archive, false);
    evq_buffer_append(&archive.bytes, "hidden", 6);
    fixture_archive_add(&archive, "t/e", "z", 1);
    fixture_archive_finish(&archive);
    refuse(&archive, EVQ_E_CORRUPT, "belong to no entry before 't/e'");

    build(&archive, false);
    evq_buffer_append(&archive.bytes, "hidden", 6);
    fixture_archive_finish(&archive);
    refuse(&archive, EVQ_E_CORRUPT, "belong to no entry before 'the central directory'");

    fixture_archive_start(&archive, false); // Something else in front: a polyglot.
    evq_buffer_append(&archive.bytes, "#!/bin/sh\n", 10);
    fixture_archive_add(&archive, "t/a", "z", 1);
    fixture_archive_finish(&archive);
    refuse(&archive, EVQ_E_CORRUPT, "belong to no entry before 't/a'");

    build(&archive, false);
    fixture_archive_finish(&archive);
    evq_buffer_append(&archive.bytes, "trailing", 8);
    refuse(&archive, EVQ_E_CORRUPT, "bytes or a comment follow");

    build(&archive, true); // A second archive behind: which one is meant?
    fixture_archive_finish(&archive);
    struct fixture_archive second;
    build(&second, true);
    fixture_archive_finish(&second);
    evq_buffer_append(&archive.bytes, second.bytes.data, second.bytes.bytes);
    fixture_archive_free(&second);
    refuse(&archive, EVQ_E_CORRUPT, "locator");
}

static void zip_load_refuses_what_the_crc_does_not_cover(void **state)
{
    struct fixture_archive archive;
    struct evq_zip *zip = NULL;
    struct evq_error err;
    uint8_t *data = NULL;
    struct evq_zip_source source;

    (void)state;
    build(&archive, true);
    fixture_archive_finish(&archive);
    fixture_archive_patch(&archive, archive.entries[0].local + 41, "J", 1);
    assert_status_err(read_bytes(archive.bytes.data, archive.bytes.bytes, &zip, &source, &err),
                      EVQ_OK, &err);
    assert_status(evq_zip_load(&source, evq_zip_find(zip, "t/a"), 100, &data, &err), EVQ_E_CORRUPT);
    assert_holds(err.message, "'t/a' does not match its CRC");
    zip->entries[1].method = 8;
    assert_status(evq_zip_load(&source, &zip->entries[1], 100, &data, &err), EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "compressed (method 8)");
    evq_zip_free(zip);
    (void)close(source.fd);
    fixture_archive_free(&archive);
}

static void zip_never_reads_past_a_cut_or_changed_byte(void **state)
{
    struct fixture_archive archive;

    (void)state;
    build(&archive, true);
    fixture_archive_finish(&archive);
    for (size_t cut = 0; cut < archive.bytes.bytes; cut++) {
        struct evq_zip *zip = NULL;
        assert_status(read_bytes(archive.bytes.data, cut, &zip, NULL, NULL), EVQ_E_INCOMPLETE);
    }
    for (size_t at = 0; at < archive.bytes.bytes; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            struct evq_zip *zip = NULL;
            archive.bytes.data[at] ^= (uint8_t)(1u << bit);
            if (read_bytes(archive.bytes.data, archive.bytes.bytes, &zip, NULL, NULL) == EVQ_OK) {
                evq_zip_free(zip); // Times, content and the like.
            }
            archive.bytes.data[at] ^= (uint8_t)(1u << bit);
        }
    }
    fixture_archive_free(&archive);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zip_reads_entries_of_both_writers),
        cmocka_unit_test(zip_reads_an_archive_without_entries),
        cmocka_unit_test(zip_refuses_every_spoiled_field_with_its_name),
        cmocka_unit_test(zip_refuses_hidden_and_shared_bytes),
        cmocka_unit_test(zip_load_refuses_what_the_crc_does_not_cover),
        cmocka_unit_test(zip_never_reads_past_a_cut_or_changed_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
