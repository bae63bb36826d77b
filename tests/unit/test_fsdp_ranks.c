#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

/* What each rank of FSDP2 saved: not read here, but known to be whole, and told from others. */

#define SHARD EVQ_TEST_DATA "/checkpoints/torch_zip/bfloat16.pt"

static char shard[65536];
static size_t shard_bytes;

static void put(const struct fixture_folder *folder, const char *name)
{
    fixture_folder_write(folder, name, shard, shard_bytes);
}

static void expect(const struct fixture_folder *folder, enum evq_status want, const char *words)
{
    struct evq_error err = {EVQ_OK, ""};

    assert_status(evq_checkpoint_check_complete(folder->fd, "d", &err), want);
    if (words != NULL && strstr(err.message, words) == NULL) {
        fail_msg("'%s' does not say '%s'", err.message, words);
    }
}

static void ranks_are_whole_when_all_are_there(void **state)
{
    const struct fixture_folder *folder = *state;
    char first[33];
    char second[33];

    fixture_folder_mkdir(folder, "d");
    fixture_folder_mkdir(folder, "d/pytorch_model_fsdp_0");
    put(folder, "d/pytorch_model_fsdp_0/model_world_size_2_rank_1.pt");
    expect(folder, EVQ_E_INCOMPLETE, "rank_0.pt' is not there (yet)");
    fixture_folder_write(folder, "d/pytorch_model_fsdp_0/model_world_size_2_rank_0.pt", shard,
                         shard_bytes / 2);
    expect(folder, EVQ_E_INCOMPLETE, "rank_0.pt'");
    put(folder, "d/pytorch_model_fsdp_0/model_world_size_2_rank_0.pt");
    expect(folder, EVQ_OK, NULL);
    assert_status(evq_checkpoint_fingerprint(folder->fd, "d", first, NULL, NULL), EVQ_OK);
    fixture_folder_mkdir(folder, "d/pytorch_ema_model_fsdp_0");
    put(folder, "d/pytorch_ema_model_fsdp_0/model_world_size_1_rank_0.pt");
    assert_status(evq_checkpoint_fingerprint(folder->fd, "d", second, NULL, NULL), EVQ_OK);
    assert_string_not_equal(first, second); // The averages are of the checkpoint too.
    put(folder, "d/pytorch_ema_model_fsdp_0/model_world_size_3_rank_0.pt");
    expect(folder, EVQ_E_INVALID, "of 1 ranks and of 3");
}

static void ranks_are_found_without_a_folder_of_their_own(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {EVQ_OK, ""};

    fixture_folder_mkdir(folder, "d");
    put(folder, "d/model_world_size_1_rank_0.pt");
    expect(folder, EVQ_OK, NULL);
    // Their weights are for a program to join: nothing evaluates one rank's part.
    assert_status(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_E_UNSUPPORTED);
}

static void ranks_of_averages_alone_are_whole(void **state)
{
    const struct fixture_folder *folder = *state;

    fixture_folder_mkdir(folder, "d");
    fixture_folder_mkdir(folder, "d/pytorch_ema_model_fsdp_0");
    put(folder, "d/pytorch_ema_model_fsdp_0/model_world_size_1_rank_0.pt");
    expect(folder, EVQ_OK, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_are_whole_when_all_are_there, fixture_folder_setup,
                                        fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(ranks_are_found_without_a_folder_of_their_own,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(ranks_of_averages_alone_are_whole, fixture_folder_setup,
                                        fixture_folder_teardown),
    };
    FILE *file = fopen(SHARD, "rb");
    shard_bytes = file != NULL ? fread(shard, 1, sizeof(shard), file) : 0;
    if (file == NULL || shard_bytes == 0 || fclose(file) != 0) {
        (void)fprintf(stderr, "%s cannot be read\n", SHARD);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
