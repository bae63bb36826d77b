/*
 * Names as people and other programs write them: addresses of Redis, job ids, needs, run names.
 * What is taken keeps its promises and reads back as itself; what is not has a sentence for a
 * terminal that never shows a password.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/pin_path.h"
#include "shared/queue/job.h"
#include "shared/redis/conn_url.h"
#include "tests/fuzz/check.h"

static void check_sentence(const struct evq_error *err)
{
    check(err->message[0] != '\0');
    for (const char *c = err->message; *c != '\0'; c++) {
        check((unsigned char)*c >= 0x20 && *c != 0x7f);
    }
}

static void try_url(const char *text)
{
    char where[EVQ_CONN_WHERE_BYTES_MAX];
    struct evq_conn_url url = {.port = 1};
    struct evq_conn_url again;
    struct evq_error err = {EVQ_OK, ""};

    if (evq_conn_url_parse(text, &url, &err) != EVQ_OK) {
        check_sentence(&err);
        return;
    }
    check(url.host[0] != '\0' && (url.is_unix || url.port != 0) && url.db >= 0);
    evq_conn_url_where(&url, where);
    check(strlen(where) < sizeof(where));
    const char *host = strchr(text, '@'); // A move keeps user and database.
    if (!url.is_unix) {
        again = url;
        if (evq_conn_url_move(&again, host != NULL ? host + 1 : text, &err) == EVQ_OK) {
            check(again.host[0] != '\0' && again.port != 0 && strcmp(again.user, url.user) == 0);
        } else {
            check(memcmp(&again, &url, sizeof(url)) == 0);
        }
    }
}

static void try_id(const char *text)
{
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;
    struct evq_error err = {EVQ_OK, ""};

    if (evq_job_id_parse(text, scratch, &name, &err) != EVQ_OK) {
        check_sentence(&err);
        return;
    }
    check(evq_job_name_valid(name.run, EVQ_JOB_RUN_BYTES_MAX));
    check(evq_job_name_valid(name.variant, EVQ_JOB_NAME_BYTES_MAX));
    check(evq_job_name_valid(name.suite, EVQ_JOB_NAME_BYTES_MAX));
    check(name.step >= 0 && name.generation >= 1 && name.shard >= -1);
}

static void try_name(const char *text)
{
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    char again[EVQ_JOB_NAME_BYTES_MAX + 1];
    char saved[64];

    evq_job_map_name(text, EVQ_JOB_NAME_BYTES_MAX, name);
    check(evq_job_name_valid(name, EVQ_JOB_NAME_BYTES_MAX));
    evq_job_map_name(name, EVQ_JOB_NAME_BYTES_MAX, again);
    check(strcmp(name, again) == 0);
    (void)evq_pin_path_saved(text, saved, sizeof(saved));
    check(memchr(saved, '\0', sizeof(saved)) != NULL);
}

static void try_needs(const char *text)
{
    char canonical[EVQ_NEEDS_BYTES_MAX];
    char again[EVQ_NEEDS_BYTES_MAX];
    struct evq_needs needs;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_arena *arena = evq_arena_new(0);

    check(arena != NULL);
    const enum evq_status status = evq_needs_parse(text, arena, &needs, &err);
    check(strlen(text) >= EVQ_NEEDS_BYTES_MAX ||
          (status == EVQ_OK) == (evq_needs_check(text, NULL) == EVQ_OK));
    if (status != EVQ_OK) {
        check_sentence(&err);
    } else if (evq_needs_text(&needs, canonical, sizeof(canonical), NULL) == EVQ_OK) {
        check(evq_needs_parse(canonical, arena, &needs, NULL) == EVQ_OK);
        check(evq_needs_text(&needs, again, sizeof(again), NULL) == EVQ_OK);
        check(strcmp(canonical, again) == 0);
    }
    evq_arena_free(arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1);

    check(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    try_url(text);
    try_id(text);
    try_name(text);
    try_needs(text);
    free(text);
    return 0;
}
