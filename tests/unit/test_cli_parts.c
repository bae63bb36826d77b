/*
 * The parts of evalq that need no Redis: names of checkpoints, options, tables, result tables,
 * SHA-256, durations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/inspect/health.h"
#include "producer/cli/inspect/result_table.h"
#include "producer/cli/submit/checkpoint_listing.h"
#include "producer/cli/table.h"
#include "shared/base/option.h"
#include "tests/fixture/check.h"

static void found_step_reads_names_by_the_rules(void **state)
{
    static const struct {
        const char *name;
        bool is_directory;
        const char *pattern;
        int64_t step; // -1: no checkpoint.
    } cases[] = {
        {"checkpoint-500", true, NULL, 500},
        {"global_step1000", true, NULL, 1000},
        {"500", true, NULL, 500},
        {"step-100.safetensors", false, NULL, 100},
        {"step_000100.safetensors", false, NULL, 100},
        {"model_7b_step_200.pt", false, NULL, 200},
        {"epoch=3-step=200-v1.ckpt", false, NULL, 200},
        {"epoch=3.ckpt", false, NULL, 3},
        {"iter_12.bin", false, NULL, 12},
        {"Step-7.PT", false, NULL, -1},
        {"last.ckpt", false, NULL, -1},
        {"model.safetensors", false, NULL, -1},
        {"model-00001-of-00002.safetensors", false, NULL, -1},
        {"mlp_784_512.safetensors", false, NULL, -1},
        {"mlp_784_512.safetensors", false, "mlp*", 512},
        {"mlp_784_512.safetensors", false, "step*", -1},
        {"logs2", true, NULL, -1},
        {".checkpoint-5", true, NULL, -1},
        {"checkpoint-5.tmp", true, NULL, -1},
        {"tmp-checkpoint-5", true, NULL, -1},
        {"step-99999999999999999999.pt", false, NULL, -1},
        {"training_7.log", false, NULL, -1},
        {"step-8.gguf", false, NULL, 8},
        {"model_9.npz", false, NULL, 9},
        {"state-10.msgpack", false, NULL, 10},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t step = -1;
        bool found = evq_checkpoint_listing_step(cases[i].name, cases[i].is_directory,
                                                 cases[i].pattern, &step);
        if (found != (cases[i].step >= 0) || (found && step != cases[i].step)) {
            fail_msg("'%s': %s %lld, expected %lld", cases[i].name, found ? "found" : "not found",
                     (long long)step, (long long)cases[i].step);
        }
    }
}

static const struct evq_option table[] = {
    {"step", 's', EVQ_OPTION_INTEGER, "N", "help", 0, 1000},
    {"policy", 0, EVQ_OPTION_CHOICE, "all|latest", "help", 0, 0},
    {"param", 'p', EVQ_OPTION_LIST, "K=V", "help", 0, 0},
    {"watch", 'w', EVQ_OPTION_FLAG, NULL, "help", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

static enum evq_status parse(struct evq_option_set *set, struct evq_error *err, ...)
{
    static char *words[32];
    static char copies[32][64];
    int count = 0;
    va_list list;
    va_start(list, err);
    words[count++] = strcpy(copies[0], "verb");
    for (const char *word = NULL; (word = va_arg(list, const char *)) != NULL; count++) {
        (void)snprintf(copies[count], sizeof copies[count], "%s", word);
        words[count] = copies[count];
    }
    va_end(list);
    words[count] = NULL;
    memset(set, 0, sizeof *set);
    static const struct evq_option *const tables[] = {table, NULL};
    return evq_option_parse(set, tables, count, words, false, err);
}

static void option_parse_takes_what_the_table_says(void **state)
{
    struct evq_option_set set;
    struct evq_error err = {EVQ_OK, ""};
    (void)state;
    assert_status_err(parse(&set, &err, "a", "-s5", "--param", "x=1", "b", "-wp", "y=2",
                            "--policy=latest", "--", "-s", "c", (char *)NULL),
                      EVQ_OK, &err);
    assert_int_equal(set.arg_count, 4);
    assert_string_equal(set.args[0], "a");
    assert_string_equal(set.args[1], "b");
    assert_string_equal(set.args[2], "-s");
    assert_int_equal(evq_option_integer(&set, "step", -1), 5);
    assert_string_equal(evq_option_item(&set, "param", 0), "x=1");
    assert_string_equal(evq_option_item(&set, "param", 1), "y=2");
    assert_null(evq_option_item(&set, "param", 2));
    assert_true(evq_option_flag(&set, "watch"));
    assert_string_equal(evq_option_text(&set, "policy", ""), "latest");
    static const char *const bad[] = {
        "--step=1001", "--step=-1", "--step=1e3", "--step=", "--policy=none",
        "--policy=al", "--param=",  "--unknown",  "-x",      "--watch=1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_status(parse(&set, &err, bad[i], (char *)NULL), EVQ_E_INVALID);
        assert_true(err.message[0] != '\0');
    }
}

static char *printed(struct evq_table *rows, const struct evq_terminal *terminal)
{
    char *text = NULL;
    size_t bytes = 0;
    struct evq_error err = {EVQ_OK, ""};
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_status_err(evq_table_print(rows, terminal, 0, out, &err), EVQ_OK, &err);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void table_aligns_cuts_and_escapes(void **state)
{
    struct evq_table *rows = evq_table_new();
    (void)state;
    assert_non_null(rows);
    evq_table_column(rows, "N", true);
    evq_table_column(rows, "TEXT", false);
    evq_table_row(rows);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "%d", 7);
    evq_table_cell(rows, EVQ_COLOUR_RED, "%s", "a\033[31m\n");
    evq_table_row(rows);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "%d", 1234);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "%s", "gr\xc3\xbc\xc3\x9f dich");
    char *text = printed(rows, &(struct evq_terminal){0});
    assert_string_equal(text, "   N  TEXT\n   7  a\\x1b[31m\\x0a\n1234  gr\xc3\xbc\xc3\x9f dich\n");
    free(text);
    text = printed(rows, &(struct evq_terminal){.plain = true});
    assert_string_equal(text, "7\ta\\x1b[31m\\x0a\n1234\tgr\xc3\xbc\xc3\x9f dich\n");
    free(text);
    text = printed(rows, &(struct evq_terminal){.width = 10});
    assert_string_equal(text, "   N  TEXT\n   7  a\\x1\n1234  gr\xc3\xbc\xc3\x9f\n");
    free(text);
    evq_table_free(rows);
}

static void add(struct evq_result_table *results, const char *job, int64_t step, const char *task,
                const char *metric, double value, int32_t higher)
{
    struct evq_result *result = evq_result_new();
    struct evq_metric one = {
        .name = metric, .value = value, .higher_is_better = higher, .std_error = NAN};
    assert_non_null(result);
    result->job = job;
    result->run = "r";
    result->step = step;
    result->variant = strstr(job, "/ema/") != NULL ? "ema" : "regular";
    result->suite = "s";
    result->task = task;
    result->state = EVQ_JOB_DONE;
    result->metrics = &one;
    result->metric_count = metric != NULL ? 1 : 0;
    assert_non_null(evq_result_table_add(results, result));
    evq_result_free(result);
}

static void result_table_finds_the_best_and_nan_never_wins(void **state)
{
    struct evq_result_table *results = evq_result_table_new();
    char title[64];
    (void)state;
    assert_non_null(results);
    add(results, "r/300/regular/s", 300, "t", "accuracy", NAN, 1);
    add(results, "r/200/regular/s", 200, "t", "accuracy", 0.5, 1);
    add(results, "r/100/regular/s", 100, "t", "accuracy", 0.5, 1);
    add(results, "r/100/regular/s", 100, "t", "cross_entropy", 2.0, -1); // Lower, by its name.
    add(results, "r/200/regular/s", 200, "t", "cross_entropy", 1.0, -1);
    add(results, "r/200/regular/s", 200, "t", "nan_tokens", 1.0, -1); // Neither.
    // Times and rates of the evaluation are not shown.
    add(results, "r/200/regular/s", 200, "t", "eval_runtime", 1.0, -1);
    add(results, "r/200/regular/s", 200, "t", "eval_samples_per_second", 1.0, -1);
    add(results, "r/200/regular/s", 200, "t", "tokens_per_second", 1.0, 1);
    add(results, "r/200/regular/s", 200, "", NULL, 0.0, 0);
    assert_int_equal(results->row_count, 3);
    assert_int_equal(results->metric_count, 3);
    evq_result_table_sort(results);
    assert_true(results->metrics[2].best == SIZE_MAX);
    assert_int_equal(results->rows[results->metrics[0].best].step,
                     100); // The tie goes to the lower step.
    assert_int_equal(results->rows[results->metrics[1].best].step, 200);
    assert_true(results->rows[1].ended);
    assert_false(results->rows[2].ended);
    evq_result_table_title(results, 0, title, sizeof title);
    assert_string_equal(title, "accuracy");
    add(results, "r/100/regular/s", 100, "other", "accuracy", 0.1, 1);
    evq_result_table_title(results, 0, title, sizeof title);
    assert_string_equal(title, "t/accuracy");
    add(results, "r/100/ema/s", 100, "t", "accuracy", 0.9, 1); // Two would be called t/accuracy.
    evq_result_table_title(results, 0, title, sizeof title);
    assert_string_equal(title, "eval/t/accuracy");
    evq_result_table_title(results, results->metric_count - 1, title, sizeof title);
    assert_string_equal(title, "eval_ema/t/accuracy");
    evq_result_table_free(results);
}

/* The later one below the earlier, also the tenth; what is no generation is not shown: it may hold
 * what a terminal obeys. */
static void result_table_tells_generations_of_a_step_apart(void **state)
{
    static const char *const jobs[] = {"r/50/regular/s~10", "r/50/regular/s~2", "r/50/regular/s",
                                       "r/60/regular/s~\x1b[2J"};
    static const char *const steps[] = {"50", "50~2", "50~10", "60"};
    struct evq_result_table *results = evq_result_table_new();
    char step[EVQ_RESULT_TABLE_STEP_BYTES];
    (void)state;
    assert_non_null(results);
    for (size_t i = 0; i < 4; i++) {
        add(results, jobs[i], i < 3 ? 50 : 60, "t", "accuracy", 0.5, 1);
    }
    evq_result_table_sort(results);
    for (size_t i = 0; i < 4; i++) {
        evq_result_table_step_text(results->rows[i].job, results->rows[i].step, step);
        assert_string_equal(step, steps[i]);
    }
    evq_result_table_free(results);
}

/* Metrics of the same name share a column however many tasks report them: a terminal is narrow. */
static void result_table_has_a_line_per_task_and_a_column_per_name(void **state)
{
    struct evq_result_table *results = evq_result_table_new();
    const char *tasks[EVQ_RESULT_TABLE_METRICS_MAX];
    (void)state;
    assert_non_null(results);
    add(results, "r/100/regular/s", 100, "a", "accuracy", 0.5, 1);
    add(results, "r/100/regular/s", 100, "a", "loss", 1.5, -1);
    assert_false(results->shape.task);
    add(results, "r/100/regular/s", 100, "b", "accuracy", 0.7, 1);
    assert_true(results->shape.task);
    assert_false(results->shape.suite);
    assert_int_equal(results->shape.name_count, 2);
    assert_int_equal(evq_result_table_tasks(results, &results->rows[0], tasks), 2);
    assert_string_equal(tasks[0], "a");
    assert_string_equal(tasks[1], "b");
    size_t metric = evq_result_table_metric(results, &results->rows[0], "b", "accuracy");
    assert_true(metric < results->metric_count);
    assert_true(!(fabs(results->rows[0].values[metric] - 0.7) > 1e-12));
    assert_true(evq_result_table_metric(results, &results->rows[0], "b", "loss") == SIZE_MAX);
    evq_result_table_free(results);
}

static void terminal_number_shows_whole_numbers_in_full(void **state)
{
    char out[EVQ_TERMINAL_NUMBER_BYTES];
    (void)state;
    assert_string_equal(evq_terminal_number(1876040.0, out), "1876040");
    assert_string_equal(evq_terminal_number(0.0, out), "0");
    assert_string_equal(evq_terminal_number(0.227082265970, out), "0.227082");
    assert_string_equal(evq_terminal_number(1e300, out), "1e+300");
    assert_string_equal(evq_terminal_number(-HUGE_VAL, out), "-inf");
    assert_string_equal(evq_terminal_number(NAN, out), "nan");
}

static void table_leaves_out_optional_columns_that_do_not_fit(void **state)
{
    struct evq_table *rows = evq_table_new();
    (void)state;
    assert_non_null(rows);
    evq_table_column(rows, "STEP", true);
    evq_table_column(rows, "WAIT", true);
    evq_table_optional(rows);
    evq_table_column(rows, "TOOK", true);
    evq_table_optional(rows);
    evq_table_column(rows, "STATE", false);
    evq_table_row(rows);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "%d", 7);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "1 ms");
    evq_table_cell(rows, EVQ_COLOUR_NONE, "2 ms");
    evq_table_cell(rows, EVQ_COLOUR_NONE, "done");
    char *text = printed(rows, &(struct evq_terminal){.width = 23});
    assert_string_equal(text, "STEP  WAIT  TOOK  STATE\n   7  1 ms  2 ms  done\n");
    free(text);
    text = printed(rows, &(struct evq_terminal){.width = 22});
    assert_string_equal(text, "STEP  WAIT  STATE\n   7  1 ms  done\n");
    free(text);
    text = printed(rows, &(struct evq_terminal){.width = 12});
    assert_string_equal(text, "STEP  STATE\n   7  done\n");
    free(text);
    evq_table_free(rows);
}

static void table_keeps_the_cause_of_a_failure_when_it_cuts(void **state)
{
    struct evq_table *rows = evq_table_new();
    (void)state;
    assert_non_null(rows);
    evq_table_column(rows, "JOB", false);
    evq_table_column(rows, "WORKER", false);
    evq_table_optional(rows);
    evq_table_column(rows, "REASON", false);
    evq_table_row(rows);
    evq_table_cell(rows, EVQ_COLOUR_NONE, "r/1");
    evq_table_cell(rows, EVQ_COLOUR_NONE, "host-0123456789");
    evq_table_cell(rows, EVQ_COLOUR_NONE, "open '/data/of/a/long/path/w.bin': permission denied");
    char *text = printed(rows, &(struct evq_terminal){.width = 200});
    assert_non_null(strstr(text, "  open '/data/of/a/long/path/w.bin': permission denied\n"));
    free(text);
    text = printed(rows, &(struct evq_terminal){.width = 48});
    assert_string_equal(text, "JOB  REASON\n"
                              "r/1  open: permission denied ('/data/of/a/long/p\n");
    free(text);
    evq_table_free(rows);
}

static void result_table_keeps_rows_apart_when_there_are_many(void **state)
{
    struct evq_result_table *results = evq_result_table_new();
    (void)state;
    assert_non_null(results);
    for (int64_t step = 5000; step > 0; step--) {
        char job[64];
        (void)snprintf(job, sizeof job, "r/%lld/regular/s", (long long)step);
        add(results, job, step, "t", "loss", (double)(step % 997), 0);
        if (step == 2500) {
            evq_result_table_sort(results); // What comes later still finds its row.
        }
    }
    for (int64_t step = 1; step <= 5000; step++) {
        char job[64];
        (void)snprintf(job, sizeof job, "r/%lld/regular/s", (long long)step);
        add(results, job, step, "", NULL, 0.0, 0);
    }
    assert_int_equal(results->row_count, 5000);
    evq_result_table_sort(results);
    for (size_t i = 0; i < 5000; i++) {
        assert_int_equal(results->rows[i].step, (int64_t)i + 1);
        assert_true(results->rows[i].ended && results->rows[i].has[0]);
    }
    assert_int_equal(results->rows[results->metrics[0].best].step, 997);
    evq_result_table_free(results);
}

static void durations_and_sizes_are_short(void **state)
{
    char out[EVQ_TERMINAL_SPAN_BYTES];
    (void)state;
    assert_string_equal(evq_terminal_span(850, out), "850 ms");
    assert_string_equal(evq_terminal_span(119999, out), "119 s");
    assert_string_equal(evq_terminal_span(120000, out), "2 min");
    assert_string_equal(evq_terminal_span(INT64_C(400) * 86400000, out), "400 d");
    assert_string_equal(evq_terminal_span(-1, out), "");
    assert_string_equal(evq_terminal_took(3210, out), "3.21 ms");
    assert_string_equal(evq_terminal_took(125000000, out), "2 min 5 s");
    assert_string_equal(evq_terminal_bytes(512, out), "512 B");
    assert_string_equal(evq_terminal_bytes(INT64_C(3) << 29, out), "1.5 GiB");
}

static void health_keeps_a_check_whose_text_is_cut(void **state)
{
    json_t *checks = json_array();
    char long_text[602] = "x"; // Cut in the middle of one.
    (void)state;
    for (size_t i = 1; i + 2 < sizeof long_text; i += 2) {
        memcpy(long_text + i, "\xc3\xa9", 3);
    }
    evq_health_add(checks, "sinks", EVQ_HEALTH_FAIL, "", "%s", long_text);
    evq_health_add(checks, "sinks", EVQ_HEALTH_FAIL, "", "caf\xe9");
    assert_int_equal(json_array_size(checks), 2);
    assert_string_equal(evq_json_text(json_array_get(checks, 1), "text", ""), "caf\\xe9");
    json_decref(checks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_step_reads_names_by_the_rules),
        cmocka_unit_test(option_parse_takes_what_the_table_says),
        cmocka_unit_test(table_aligns_cuts_and_escapes),
        cmocka_unit_test(result_table_finds_the_best_and_nan_never_wins),
        cmocka_unit_test(result_table_tells_generations_of_a_step_apart),
        cmocka_unit_test(result_table_has_a_line_per_task_and_a_column_per_name),
        cmocka_unit_test(terminal_number_shows_whole_numbers_in_full),
        cmocka_unit_test(table_leaves_out_optional_columns_that_do_not_fit),
        cmocka_unit_test(table_keeps_the_cause_of_a_failure_when_it_cuts),
        cmocka_unit_test(result_table_keeps_rows_apart_when_there_are_many),
        cmocka_unit_test(durations_and_sizes_are_short),
        cmocka_unit_test(health_keeps_a_check_whose_text_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
