/*
 * Tests what a program gets to evaluate, and what happens to its results if the checkpoint changes
 * meanwhile: no metric comes from a mixture, or from files outside the root.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/memory.h"
#include "tests/fixture/safetensors.h"
#include "worker/child/runner.h"

/* Each evaluator runs the script `act` beside the root, and then reports a result. */
static const char config_text[] =
    "worker: {scratch: $DIR/scratch}\n"
    "evaluators:\n"
    "  once: {kind: command, argv: [/bin/sh, -c, '. $DIR/act; echo \"{\\\"x\\\": 1}\" > "
    "$EVALQ_RESULT']}\n"
    "  warm: {kind: persistent, argv: [/bin/sh, $DIR/warm.sh]}\n"
    "suites:\n"
    "  once: {evaluator: once, tasks: [{name: t, type: any}]}\n"
    "  warm: {evaluator: warm, tasks: [{name: t, type: any}]}\n";
static const char warm_sh[] =
    "echo '{\"type\": \"ready\"}'\n"
    "while read line; do\n"
    "  case $line in *'\"exit\"'*) exit 0 ;; esac\n"
    "  . $DIR/act\n"
    "  echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"x\": 1}, \"n\": 1}'\n"
    "  echo '{\"type\": \"done\"}'\n"
    "done\n";

enum shortage { SHORT_OF_NOTHING, SHORT_OF_MEMORY, SHORT_OF_DESCRIPTORS };

struct scene {
    const struct fixture_folder *folder;
    struct evq_config *config;
    char root[96];
    int root_fd;
    int published;
    int attempts;
    enum shortage shortage; // The change begins when the evaluator reports progress.
};

/* Writes text; $DIR becomes the folder's path. */
static void write_text(const struct fixture_folder *folder, const char *name, const char *text)
{
    char out[2048] = "";
    size_t used = 0;

    for (const char *at = text; *at != '\0' && used + 80 < sizeof(out);) {
        if (strncmp(at, "$DIR", 4) == 0) {
            used += (size_t)snprintf(out + used, sizeof(out) - used, "%s", folder->path);
            at += 4;
        } else {
            out[used++] = *at++;
        }
    }
    fixture_folder_write(folder, name, out, used);
}

static void scene_open(struct scene *scene, const struct fixture_folder *folder)
{
    struct evq_error err = {0};
    char path[128];
    size_t bytes = 0;

    *scene = (struct scene){.folder = folder};
    fixture_folder_mkdir(folder, "root");
    fixture_folder_mkdir(folder, "scratch");
    fixture_folder_mkdir(folder, "scratch/logs");
    write_text(folder, "warm.sh", warm_sh);
    write_text(folder, "evalq.yaml", config_text);
    (void)snprintf(path, sizeof(path), "%s/evalq.yaml", folder->path);
    uint8_t *text = fixture_file_load(path, &bytes);
    assert_status_err(
        evq_config_parse((const char *)text, bytes, "evalq.yaml", &scene->config, &err), EVQ_OK,
        &err);
    free(text);
    (void)snprintf(scene->root, sizeof(scene->root), "%s/root", folder->path);
    scene->root_fd = open(scene->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(scene->root_fd >= 0);
}

static void scene_close(struct scene *scene)
{
    (void)close(scene->root_fd);
    evq_config_free(scene->config);
}

/* Uses all descriptors below the limit, so that the next open() fails. Returns the old limit. */
static rlim_t descriptors_limit(rlim_t count)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static enum evq_status on_progress(void *context, int64_t done, int64_t total, const char *status)
{
    const struct scene *scene = context;

    (void)done;
    (void)total;
    if (status == NULL || strcmp(status, "now") != 0) {
        return EVQ_OK;
    }
    if (scene->shortage == SHORT_OF_MEMORY) {
        fixture_memory_refuse(2048, 5000); // The blocks of a fingerprint have these sizes.
    } else if (scene->shortage == SHORT_OF_DESCRIPTORS) {
        const int free_fd = dup(scene->root_fd);
        assert_true(free_fd >= 0);
        (void)close(free_fd);
        (void)descriptors_limit((rlim_t)free_fd);
    }
    return EVQ_OK;
}

static enum evq_status on_task(void *context, const struct evq_result *result,
                               struct evq_error *err)
{
    struct scene *scene = context;

    (void)err;
    assert_string_equal(result->task, "t");
    assert_int_equal(strlen(result->weights_digest), 32);
    scene->published++;
    return EVQ_OK;
}

/* Evaluates `path` in the root with a new runner. act is the shell script that runs. */
static enum evq_status evaluate(struct scene *scene, const char *suite, const char *path,
                                const char *act, struct evq_error *err)
{
    const struct evq_runner_config config = {.config = scene->config, .devices = "", .threads = 1};
    const struct evq_eval_report report = {scene, on_progress, on_task};
    char scratch[128];
    struct evq_runner *runner = NULL;
    struct evq_failure failure;

    write_text(scene->folder, "act", act);
    (void)snprintf(scratch, sizeof(scratch), "%s/scratch/attempt%d", scene->folder->path,
                   scene->attempts++);
    assert_int_equal(mkdir(scratch, 0700), 0);
    const struct evq_eval_request request = {.config = scene->config,
                                             .suite = evq_config_suite(scene->config, suite),
                                             .root_fd = scene->root_fd,
                                             .root_path = scene->root,
                                             .path = path,
                                             .prepared = "",
                                             .shard = -1,
                                             .scratch = scratch,
                                             .attempt = 1};
    scene->published = 0;
    assert_status(evq_runner_open(&config, &runner, NULL), EVQ_OK);
    const enum evq_status status =
        evq_runner_eval(runner, "r/1/regular/s", &request, &report, &failure, err);
    evq_runner_close(runner);
    return status;
}

static const char *const suites[] = {"once", "warm"};
#define SUITE_COUNT (sizeof(suites) / sizeof(suites[0]))

static void checkpoint_write(const struct scene *scene)
{
    (void)mkdirat(scene->root_fd, "ck", 0755);
    fixture_folder_write(scene->folder, "root/file.bin", "0123456789", 10);
    const int fd =
        openat(scene->root_fd, "ck/a.npz", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0 && write(fd, "0123456789", 10) == 10);
    (void)close(fd);
    (void)unlinkat(scene->root_fd, "ck/added", 0);
}

static void result_is_published_only_for_an_unchanged_checkpoint(void **state)
{
    static const struct {
        const char *what;
        const char *act; // This path is in the root.
        enum evq_status status;
    } rows[] = {
        {"nothing", ":", EVQ_OK},
        {"deleted", "rm file.bin ck/a.npz", EVQ_E_GONE},
        {"its folder is deleted", "rm -r ck file.bin", EVQ_E_GONE},
        {"truncated", ": > file.bin; : > ck/a.npz", EVQ_E_CHANGED},
        {"rewritten in place", "echo 012345678 > file.bin; echo 012345678 > ck/a.npz",
         EVQ_E_CHANGED},
        {"replaced", "for f in file.bin ck/a.npz; do cp $f new; mv new $f; done", EVQ_E_CHANGED},
        {"rewritten under its old time",
         "for f in file.bin ck/a.npz; do cp -p $f old; echo 98765432 > $f; echo x >> $f; "
         "touch -r old $f; done",
         EVQ_E_CHANGED},
        {"touched", "touch -d 2001-01-01 file.bin ck/a.npz", EVQ_E_CHANGED},
    };
    static const char *const paths[] = {"file.bin", "ck"};
    struct scene scene;
    size_t tried = 0;

    scene_open(&scene, *state);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t k = 0; k < SUITE_COUNT * 2; k++) {
            struct evq_error err = {0};
            char act[512];
            (void)snprintf(act, sizeof(act), "cd $DIR/root; %s\ncd /\n", rows[i].act);
            checkpoint_write(&scene);
            const enum evq_status status = evaluate(&scene, suites[k / 2], paths[k % 2], act, &err);
            if (status != rows[i].status || scene.published != (rows[i].status == EVQ_OK)) {
                fail_msg("%s of %s, %s: %s, %d results; %s", rows[i].what, paths[k % 2],
                         suites[k / 2], evq_status_name(status), scene.published, err.message);
            }
            tried++;
        }
    }
    print_message("%zu changes of a checkpoint tried\n", tried);
    // For a format that evalq knows, other files beside the weights are not part of the checkpoint.
    static const float one = 1.0f;
    static const struct fixture_tensor tensor = {
        .name = "w", .dtype = EVQ_DTYPE_F32, .rank = 1, .shape = {1}, .data = &one};
    char path[128];
    fixture_folder_mkdir(scene.folder, "root/known");
    (void)snprintf(path, sizeof(path), "%s/known/model.safetensors", scene.root);
    fixture_safetensors(path, &tensor, 1);
    assert_status(evaluate(&scene, "once", "known", "echo new > $DIR/root/known/log\n", NULL),
                  EVQ_OK);
    assert_int_equal(scene.published, 1);
    scene_close(&scene);
}

/* A pin is a second name of the file. What the training does with its own name does not matter,
 * unless it writes into the file. */
static void pinned_checkpoint_is_published_unless_its_file_is_rewritten(void **state)
{
    static const struct {
        const char *act; // This path is in the root.
        enum evq_status status;
    } rows[] = {{"rm file.bin", EVQ_OK},
                {"cp file.bin new; mv new file.bin", EVQ_OK},
                {"echo 012345678 > file.bin", EVQ_E_CHANGED},
                {": > file.bin", EVQ_E_CHANGED},
                {"rm pins/file.bin", EVQ_E_GONE}};
    struct scene scene;

    scene_open(&scene, *state);
    assert_int_equal(mkdirat(scene.root_fd, "pins", 0755), 0);
    for (size_t i = 0; i < SUITE_COUNT * (sizeof(rows) / sizeof(rows[0])); i++) {
        const size_t row = i / SUITE_COUNT;
        struct evq_error err = {0};
        char act[128];
        (void)snprintf(act, sizeof(act), "cd $DIR/root; %s\ncd /\n", rows[row].act);
        (void)unlinkat(scene.root_fd, "pins/file.bin", 0);
        checkpoint_write(&scene);
        assert_int_equal(linkat(scene.root_fd, "file.bin", scene.root_fd, "pins/file.bin", 0), 0);
        const enum evq_status status =
            evaluate(&scene, suites[i % SUITE_COUNT], "pins/file.bin", act, &err);
        if (status != rows[row].status || scene.published != (rows[row].status == EVQ_OK)) {
            fail_msg("%s, %s: %s, %d results; %s", rows[row].act, suites[i % SUITE_COUNT],
                     evq_status_name(status), scene.published, err.message);
        }
    }
    scene_close(&scene);
}

static void checkpoint_is_not_called_changed_when_it_cannot_be_checked(void **state)
{
    static const struct {
        enum shortage shortage;
        enum evq_status status;
    } rows[] = {{SHORT_OF_NOTHING, EVQ_OK},
                {SHORT_OF_MEMORY, EVQ_E_NOMEM},
                {SHORT_OF_DESCRIPTORS, EVQ_E_IO}};
    static const char *const paths[] = {"file.bin", "ck"};
    const rlim_t limit = descriptors_limit(1024);
    struct scene scene;

    scene_open(&scene, *state);
    checkpoint_write(&scene);
    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        struct evq_error err = {0};
        scene.shortage = rows[i / 2].shortage;
        const enum evq_status status =
            evaluate(&scene, "warm", paths[i % 2],
                     "echo '{\"type\": \"progress\", \"status\": \"now\"}'\n", &err);
        (void)descriptors_limit(1024);
        const uint32_t refused = fixture_memory_give();
        if (status != rows[i / 2].status || scene.published != (status == EVQ_OK) ||
            (scene.shortage == SHORT_OF_MEMORY && refused == 0)) {
            fail_msg("shortage %d, %s: %s, %d results; %s", (int)scene.shortage, paths[i % 2],
                     evq_status_name(status), scene.published, err.message);
        }
    }
    (void)descriptors_limit(limit);
    scene_close(&scene);
}

static void program_cannot_leave_its_root(void **state)
{
    static const char *const paths[] = {"absolute", "climbing", "inside", "pipe", "folder_link"};
    struct scene scene;

    scene_open(&scene, *state);
    fixture_folder_write(*state, "secret", "secret", 6);
    fixture_folder_mkdir(*state, "outside");
    fixture_folder_write(*state, "outside/secret", "secret", 6);
    assert_int_equal(symlinkat("/dev/zero", scene.root_fd, "absolute"), 0);
    assert_int_equal(symlinkat("../secret", scene.root_fd, "climbing"), 0);
    assert_int_equal(mkdirat(scene.root_fd, "inside", 0755), 0);
    fixture_folder_write(*state, "root/weights", "weights", 7);
    assert_int_equal(symlinkat("../../secret", scene.root_fd, "inside/link"), 0);
    assert_int_equal(mkdirat(scene.root_fd, "pipe", 0755), 0);
    assert_int_equal(mkfifoat(scene.root_fd, "pipe/fifo", 0644), 0);
    assert_int_equal(symlinkat("../outside", scene.root_fd, "folder_link"), 0);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        for (size_t k = 0; k < SUITE_COUNT; k++) {
            struct evq_error err = {0};
            const enum evq_status status =
                evaluate(&scene, suites[k], paths[i], "echo ran >> $DIR/ran\n", &err);
            if (status != EVQ_E_INVALID || scene.published != 0 || err.message[0] == '\0') {
                fail_msg("%s, %s: %s, %d results; %s", paths[i], suites[k], evq_status_name(status),
                         scene.published, err.message);
            }
        }
    }
    struct stat info;
    assert_int_equal(fstatat(scene.folder->fd, "ran", &info, 0), -1);
    // A link that stays within the root is followed.
    assert_int_equal(symlinkat("weights", scene.root_fd, "alias"), 0);
    assert_status(evaluate(&scene, "once", "alias", "echo ran >> $DIR/ran\n", NULL), EVQ_OK);
    assert_int_equal(scene.published, 1);
    scene_close(&scene);
}

#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, fixture_folder_setup, fixture_folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(result_is_published_only_for_an_unchanged_checkpoint),
        TEST(pinned_checkpoint_is_published_unless_its_file_is_rewritten),
        TEST(checkpoint_is_not_called_changed_when_it_cannot_be_checked),
        TEST(program_cannot_leave_its_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
