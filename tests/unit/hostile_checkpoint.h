/*
 * A folder for bad checkpoints, each of which must be refused with a status and words that name it.
 */
#ifndef EVQ_TESTS_UNIT_HOSTILE_CHECKPOINT_H
#define EVQ_TESTS_UNIT_HOSTILE_CHECKPOINT_H

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

/* The checkpoint x (or path) in the folder must be refused with this status and these words. */
static inline void refuse(const struct fixture_folder *folder, const char *path, const char *label,
                          enum evq_status want, const char *holds)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.status = EVQ_OK};
    enum evq_status status = evq_checkpoint_open(folder->fd, path, NULL, &checkpoint, &err);

    if (status == EVQ_OK) {
        fail_msg("%s: opened, wanted %s", label, evq_status_name(want));
    }
    if (status != want || err.status != want || strstr(err.message, holds) == NULL) {
        fail_msg("%s: %s '%s', wanted %s '%s'", label, evq_status_name(status), err.message,
                 evq_status_name(want), holds);
    }
    assert_holds(err.message, path); // Which one, among thousands.
    assert_null(checkpoint);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

#endif
