#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/queue/result.h"
#include "tests/fixture/check.h"

static struct evq_result *result_good(void)
{
    struct evq_result *result = evq_result_new();
    assert_non_null(result);
    result->job = "digits/100/regular/quick";
    result->task = "mnist";
    result->run = "digits";
    result->step = 100;
    result->suite = "quick";
    return result;
}

static void result_id_and_keys_are_deterministic(void **state)
{
    (void)state;
    char id[EVQ_RESULT_ID_BYTES_MAX];
    char key[128];
    char small[8];
    const struct evq_metric metric = {"accuracy", 1, -1, NAN};
    struct evq_result *result = result_good();
    evq_result_id(result, id);
    assert_string_equal(id, "digits/100/regular/quick#mnist");
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "eval/mnist/accuracy");
    result->variant = "ema";
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "eval_ema/mnist/accuracy");
    result->metric_prefix = "val/";
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "val_ema/accuracy"); // Another curve than that of the same step:
    result->variant = "regular";
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "val/accuracy");
    evq_result_metric_key(result, &metric, small, sizeof small);
    assert_string_equal(small, "val/acc");
    result->metric_prefix = "eval_";
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "eval_accuracy");
    result->variant = "ema";
    evq_result_metric_key(result, &metric, key, sizeof key);
    assert_string_equal(key, "eval_ema_accuracy");
    result->variant = "regular";
    result->metric_prefix = "";
    static const char *const trainers[][4] = {
        {"eval", "regular", "eval_accuracy", "eval/accuracy"},
        {"eval", "ema", "eval_accuracy", "eval_ema/accuracy"},
        {"wiki", "regular", "eval_wiki_accuracy", "eval/wiki_accuracy"},
        {"wiki", "regular", "eval_accuracy", "eval/wiki_accuracy"},
        {"wiki", "ema", "eval_wiki_accuracy", "eval_ema/wiki_accuracy"},
        {"wiki", "regular", "eval_wikipedia", "eval/wiki_wikipedia"},
        {"eval", "regular", "eval_", "eval/eval/eval_"},
        {"eval", "regular", "accuracy", "eval/eval/accuracy"},
    };
    for (size_t i = 0; i < sizeof trainers / sizeof *trainers; i++) {
        const struct evq_metric one = {trainers[i][2], 1, -1, NAN};
        result->task = trainers[i][0];
        result->variant = trainers[i][1];
        evq_result_metric_key(result, &one, key, sizeof key);
        assert_string_equal(key, trainers[i][3]);
    }
    result->variant = "regular";
    result->task = "";
    evq_result_id(result, id);
    assert_string_equal(id, "digits/100/regular/quick#=done.1");
    result->state = EVQ_JOB_DEAD;
    result->retries = 2;
    evq_result_id(result, id);
    assert_string_equal(id, "digits/100/regular/quick#=dead.1.2");
    evq_result_free(result);
    evq_result_free(NULL);
}

static void result_json_holds_every_field(void **state)
{
    (void)state;
    struct evq_buffer out;
    json_error_t error;
    const struct evq_metric metrics[] = {
        {"accuracy", 1.0 / 3, 1, 0.25}, {"loss", INFINITY, -1, NAN}, {"a \"b\"", NAN, 0, NAN}};
    const struct evq_sum sums[] = {{"correct", true, 0, INT64_C(9007199254740993)},
                                   {"nll", false, 0.1, 0}};
    const struct evq_pair trackers[] = {{"wandb_run_id", "abc"}};
    struct evq_result *result = result_good();
    result->metrics = metrics;
    result->metric_count = 3;
    result->sums = sums;
    result->sum_count = 2;
    result->trackers = trackers;
    result->tracker_count = 1;
    result->n = 10000;
    result->epoch = 1.5;
    result->timing.load_us = 12;
    result->finished_ms = INT64_C(1795221300123);
    result->attempt = 2;
    result->retries = 1;
    evq_buffer_init(&out, 0);
    evq_result_json(result, &out);
    assert_null(strchr(evq_buffer_string(&out), '\n'));
    assert_holds(evq_buffer_string(&out), "\"accuracy\":0.33333333333333331");
    assert_holds(evq_buffer_string(&out), "\"correct\":9007199254740993");
    json_t *json = json_loads(evq_buffer_string(&out), JSON_REJECT_DUPLICATES, &error);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "result_id")),
                        "digits/100/regular/quick#mnist");
    assert_string_equal(json_string_value(json_object_get(json, "finished_at")),
                        "2026-11-21T00:35:00.123Z");
    assert_int_equal(json_integer_value(json_object_get(json, "global_step")), 100);
    assert_int_equal(json_integer_value(json_object_get(json, "step")), 100);
    assert_int_equal(json_integer_value(json_object_get(json, "attempt")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "retries")), 1);
    assert_int_equal(json_integer_value(json_object_get(json, "n")), 10000);
    assert_string_equal(json_string_value(json_object_get(json, "state")), "done");
    json_t *values = json_object_get(json, "metrics");
    assert_string_equal(json_string_value(json_object_get(values, "loss")), "Infinity");
    assert_string_equal(json_string_value(json_object_get(values, "a \"b\"")), "NaN");
    json_t *detail = json_object_get(json, "metrics_detail");
    assert_true(
        json_is_true(json_object_get(json_object_get(detail, "accuracy"), "higher_is_better")));
    assert_near(json_real_value(json_object_get(json_object_get(detail, "accuracy"), "std_error")),
                0.25, 0);
    // Not said of the loss, but known by its name.
    assert_true(
        json_is_false(json_object_get(json_object_get(detail, "loss"), "higher_is_better")));
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(json, "timing"), "load_us")), 12);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(json, "trackers"), "wandb_run_id")),
        "abc");
    json_decref(json);
    evq_buffer_free(&out);
    evq_result_free(result);
}

static void result_json_of_an_end_says_what_is_unknown(void **state)
{
    (void)state;
    struct evq_buffer out;
    json_error_t error;
    struct evq_result *result = result_good();
    result->task = "";
    result->state = EVQ_JOB_DEAD;
    result->reason = "crashed\ntwice";
    evq_buffer_init(&out, 0);
    evq_result_json(result, &out);
    json_t *json = json_loads(evq_buffer_string(&out), JSON_REJECT_DUPLICATES, &error);
    assert_non_null(json);
    assert_true(json_is_null(json_object_get(json, "epoch")));
    assert_true(json_is_null(json_object_get(json, "n")));
    assert_null(json_object_get(json, "metrics_detail"));
    assert_null(json_object_get(json, "retries"));
    assert_string_equal(json_string_value(json_object_get(json, "state")), "dead");
    assert_string_equal(json_string_value(json_object_get(json, "reason")), "crashed\ntwice");
    json_decref(json);
    evq_buffer_free(&out);
    evq_result_free(result);
}

static void refused(struct evq_result *result, const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    assert_status(evq_result_check(result, &err), EVQ_E_INVALID);
    assert_holds(err.message, because);
    evq_result_free(result);
}

#define REFUSED(because, change)                                                                   \
    do {                                                                                           \
        struct evq_result *result = result_good();                                                 \
        change;                                                                                    \
        refused(result, because);                                                                  \
    } while (0)

static void result_check_names_the_field(void **state)
{
    (void)state;
    struct evq_error err;
    char longer[200];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    const struct evq_metric twice[] = {{"a", 1, -1, NAN}, {"a", 1, -1, NAN}};
    const struct evq_metric empty[] = {{"", 1, -1, NAN}};
    const struct evq_metric control[] = {{"a\x1b[m", 1, -1, NAN}};
    const struct evq_metric csi[] = {{"a\xc2\x9b", 1, -1, NAN}};
    const struct evq_metric bytes[] = {{"a\xff", 1, -1, NAN}};
    const struct evq_metric big[] = {{longer, 1, -1, NAN}};
    const struct evq_metric direction[] = {{"a", 1, 2, NAN}};
    const struct evq_sum sums[] = {{NULL, false, 1, 0}};
    struct evq_result *good = result_good();
    good->metrics = twice;
    good->metric_count = 1;
    assert_status_err(evq_result_check(good, &err), EVQ_OK, &err);
    evq_result_free(good);
    REFUSED("job is missing", result->job = "");
    REFUSED("job has 199", result->job = longer);
    REFUSED("task", result->task = "a b");
    REFUSED("step", result->step = -1);
    REFUSED("state", result->state = EVQ_JOB_STATE_COUNT);
    REFUSED("n is negative", result->n = -2);
    REFUSED("attempt", result->attempt = -1);
    REFUSED("metrics has 'a' twice", (result->metrics = twice, result->metric_count = 2));
    REFUSED("metrics[0].name has 0", (result->metrics = empty, result->metric_count = 1));
    REFUSED("printable UTF-8 at byte 1", (result->metrics = control, result->metric_count = 1));
    REFUSED("printable", (result->metrics = csi, result->metric_count = 1));
    REFUSED("printable", (result->metrics = bytes, result->metric_count = 1));
    REFUSED("199 bytes", (result->metrics = big, result->metric_count = 1));
    REFUSED("higher_is_better is 2", (result->metrics = direction, result->metric_count = 1));
    REFUSED("metrics has 257", (result->metrics = twice, result->metric_count = 257));
    REFUSED("sums has 257", (result->sums = sums, result->sum_count = 257));
    REFUSED("sums[0].name", (result->sums = sums, result->sum_count = 1));
}

static void metric_direction_goes_by_flag_then_name(void **state)
{
    (void)state;
    const char *const lower[] = {"loss",
                                 "eval_loss",
                                 "cross_entropy",
                                 "nll",
                                 "token_nll",
                                 "perplexity",
                                 "word_perplexity,none",
                                 "ppl",
                                 "error",
                                 "top1-error",
                                 "mse",
                                 "MAE",
                                 "rmse",
                                 "wer",
                                 "cer",
                                 "bits_per_byte",
                                 "bpb",
                                 "byte_perplexity"};
    const char *const higher[] = {"accuracy",    "acc_norm,none", "f1",       "bleu",
                                  "exact_match", "auc",           "lossless", "top5",
                                  "r2",          "mcc",           "",         "_"};
    const char *const neither[] = {"eval_runtime",
                                   "eval_samples_per_second",
                                   "eval_steps_per_second",
                                   "eval_model_preparation_time",
                                   "epoch",
                                   "nan_tokens",
                                   "total_ms"};
    for (size_t i = 0; i < sizeof neither / sizeof neither[0]; i++) {
        const struct evq_metric metric = {neither[i], 0, -1, NAN};
        const struct evq_metric said = {neither[i], 0, 1, NAN};
        if (evq_metric_direction(&metric) != -1 || evq_metric_direction(&said) != 1) {
            fail_msg("%s", neither[i]);
        }
    }
    for (size_t i = 0; i < sizeof lower / sizeof lower[0]; i++) {
        const struct evq_metric metric = {lower[i], 0, -1, NAN};
        const struct evq_metric said = {lower[i], 0, 1, NAN};
        if (evq_metric_direction(&metric) != 0 || evq_metric_direction(&said) != 1) {
            fail_msg("%s", lower[i]);
        }
    }
    for (size_t i = 0; i < sizeof higher / sizeof higher[0]; i++) {
        const struct evq_metric metric = {higher[i], 0, -1, NAN};
        const struct evq_metric said = {higher[i], 0, 0, NAN};
        if (evq_metric_direction(&metric) != 1 || evq_metric_direction(&said) != 0) {
            fail_msg("%s", higher[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(result_id_and_keys_are_deterministic),
        cmocka_unit_test(result_json_holds_every_field),
        cmocka_unit_test(result_json_of_an_end_says_what_is_unknown),
        cmocka_unit_test(result_check_names_the_field),
        cmocka_unit_test(metric_direction_goes_by_flag_then_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
