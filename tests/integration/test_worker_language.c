/*
 * Language models through the queue: a suite of perplexity and choices on checkpoints as
 * Transformers saves them, whole and in shards; NaN, which is never the best; two variants of one
 * file; an adapter on its base; a layout that has to be prepared first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fixture/folder.h"
#include "tests/fixture/program.h"
#include "tests/fixture/safetensors.h"
#include "tests/fixture/site.h"

#define BIN     EVQ_TEST_BIN "/evalq-worker"
#define WINDOWS 32 // More tokens than a sequence of expected.txt has.

/* 26 letters, a blank and three merges: it fits the vocabulary of 37 that the models have. */
static const char tokenizer_json[] =
    "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null, \"post_processor\": null,"
    " \"decoder\": {\"type\": \"ByteLevel\"}, \"pre_tokenizer\": {\"type\": \"ByteLevel\","
    " \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"model\":"
    " {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, \"e\": 4, \"f\": 5,"
    " \"g\": 6, \"h\": 7, \"i\": 8, \"j\": 9, \"k\": 10, \"l\": 11, \"m\": 12, \"n\": 13,"
    " \"o\": 14, \"p\": 15, \"q\": 16, \"r\": 17, \"s\": 18, \"t\": 19, \"u\": 20, \"v\": 21,"
    " \"w\": 22, \"x\": 23, \"y\": 24, \"z\": 25, \"\\u0120\": 26, \"th\": 27, \"the\": 28,"
    " \"\\u0120a\": 29}, \"merges\": [\"t h\", \"th e\", \"\\u0120 a\"]}}";

static const char text[] = "it was the best of times it was the worst of times\n"
                           "it was the age of wisdom it was the age of foolishness\n"
                           "it was the epoch of belief\n"
                           "a\n"
                           "it was the season of light it was the season of darkness\n"
                           "we had everything before us we had nothing before us\n";

static const char items[] =
    "{\"q\": \"one and one is\", \"c\": [\"two\", \"three\"], \"label\": 0}\n"
    "{\"q\": \"the\", \"c\": [\"a\", \"b\", \"c\"], \"label\": 2}\n"
    "{\"q\": \"\", \"c\": [\"d\", \"ef\"], \"label\": 1}\n"
    "{\"q\": \"it was the\", \"c\": [\"best\", \"worst\"], \"label\": 0}\n"
    "{\"q\": \"yes or\", \"c\": [\"no\", \"n\"], \"label\": 0}\n";

#define TEXT_DATA "text: $DIR/text.txt, split: lines"
#define COMMON    "tokenizer: $DIR/tokenizer.json, prefix: 30"
#define LANGUAGE(name, shards)                                                                     \
    "  " name ": {shards: " shards ", tasks: ["                                                    \
    "{name: choices, type: multiple_choice, data: {format: jsonl, text: $DIR/items.jsonl, "        \
    "template: '{q}', choices: c, " COMMON "}}, "                                                  \
    "{name: file, type: perplexity, data: {format: tokens, tokens: $DIR/tokens.bin, "              \
    "dtype: u16}}, "                                                                               \
    "{name: rolling, type: perplexity, length: 11, data: {format: text, " TEXT_DATA ", " COMMON    \
    "}}, "                                                                                         \
    "{name: trained, type: perplexity, mode: trainer, batch_size: 2, samples: documents, "         \
    "data: {format: text, " TEXT_DATA ", " COMMON "}}, "                                           \
    "{name: words, type: loglikelihood, data: {format: jsonl, text: $DIR/items.jsonl, "            \
    "template: '{q} in the end', " COMMON "}}]}\n"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt, models: $DATA/models, made: $DATA/checkpoints/made}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 3000, heartbeat_ms: 200, drain_seconds: 10}\n"
    "logger: {directory: $DIR/results}\n"
    "suites:\n" LANGUAGE("whole", "1") LANGUAGE("three", "3")
        LANGUAGE("many", "20") "  adapted: {tasks: [{name: file, type: perplexity, length: 4, "
                               "model: {base: lora/gpt2}, "
                               "data: {format: tokens, tokens: $DIR/few.bin, dtype: u16}}]}\n"
                               "  merged: {tasks: [{name: file, type: perplexity, length: 4, "
                               "model: {config_path: $DIR/gpt2.json}, "
                               "data: {format: tokens, tokens: $DIR/few.bin, dtype: u16}}]}\n"
                               "  points: {tasks: [{name: points, type: regression, data: "
                               "{format: npy, inputs: $DIR/inputs.npy, "
                               "targets: $DIR/targets.npy}}]}\n";

static void put(const struct fixture_site *site, const char *name, const void *data, size_t bytes)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", site->dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void copy(const struct fixture_site *site, const char *from, const char *name)
{
    size_t bytes = 0;
    uint8_t *data = fixture_file_load(from, &bytes);

    put(site, name, data, bytes);
    free(data);
}

/* The first sequence of a model's expected.txt as tokens.bin; returns the mean of its tokens'
 * negative log-probabilities, which Transformers computed in float64. */
static double put_tokens(const struct fixture_site *site, const char *model)
{
    char path[256];
    uint16_t tokens[WINDOWS];
    size_t count = 0;
    double loss = 0.0;
    int word = 0;
    double value = 0.0;

    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/models/%s/expected.txt", model);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "tokens"), 0);
    while (count < WINDOWS && fscanf(file, "%d", &word) == 1) {
        tokens[count++] = (uint16_t)word;
    }
    assert_in_range(count, 2, WINDOWS - 1);
    assert_int_equal(fscanf(file, " logprobs"), 0);
    for (size_t i = 1; i < count; i++) {
        assert_int_equal(fscanf(file, "%lf", &value), 1);
        loss -= value;
    }
    assert_int_equal(fclose(file), 0);
    put(site, "tokens.bin", tokens, count * sizeof(tokens[0]));
    return loss / (double)(count - 1);
}

static int setup(void **state)
{
    struct fixture_site *site =
        fixture_site_open(fixture_open(NULL), BIN, EVQ_TEST_DATA, site_yaml);
    const uint16_t few[] = {1, 2, 3, 5, 8, 0, 10, 9, 7};

    put(site, "tokenizer.json", tokenizer_json, sizeof(tokenizer_json) - 1);
    put(site, "text.txt", text, sizeof(text) - 1);
    put(site, "items.jsonl", items, sizeof(items) - 1);
    put(site, "few.bin", few, sizeof(few));
    copy(site, EVQ_TEST_DATA "/checkpoints/made/lora/gpt2/config.json", "gpt2.json");
    (void)put_tokens(site, "gpt2");
    *state = site;
    return 0;
}

static void submit(struct fixture_site *site, const char *id, const char *root, const char *path)
{
    struct evq_job *job = fixture_job(id);

    job->root = root;
    job->path = path;
    job->fingerprint = "";
    assert_int_equal(fixture_submit_job(site->fx, job).answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
}

static double published(struct fixture_site *site, const char *id, const char *task,
                        const char *metric)
{
    const struct fixture_published found = fixture_site_published(site, id, task, metric);

    assert_int_equal(found.tasks, 1);
    assert_int_equal(found.ends, 1);
    return found.value;
}

static void assert_same_metrics(struct fixture_site *site, const char *id, const char *whole)
{
    static const struct {
        const char *task, *metric;
    } all[] = {
        {"choices", "acc"},
        {"choices", "acc_norm"},
        {"choices", "acc_bytes"},
        {"file", "loss"},
        {"file", "perplexity"},
        {"rolling", "loss"},
        {"rolling", "perplexity"},
        {"rolling", "word_perplexity"},
        {"rolling", "byte_perplexity"},
        {"rolling", "bits_per_byte"},
        {"trained", "eval_loss"},
        {"trained", "loss"},
        {"words", "acc"},
        {"words", "perplexity"},
        {"words", "loglikelihood"},
    };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const double wanted = published(site, whole, all[i].task, all[i].metric);
        assert_near(published(site, id, all[i].task, all[i].metric), wanted, 1e-9 * fabs(wanted));
    }
}

/* Two workers, one of them with two slots; 20 shards are more than there are
 * windows. */
static void worker_scores_language_models_alike_in_any_number_of_shards(void **state)
{
    static const char *const models[] = {"gpt2", "llama", "qwen3"};
    struct fixture_site *site = *state;

    (void)fixture_site_worker(site, "--devices", "cpu", "--slots", "2", NULL);
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        static const char *const suites[] = {"whole", "three", "many"};
        char ids[3][64];
        const double loss = put_tokens(site, models[i]);
        for (size_t s = 0; s < 3; s++) {
            (void)snprintf(ids[s], sizeof(ids[s]), "%s/100/regular/%s", models[i], suites[s]);
            submit(site, ids[s], "models", models[i]);
        }
        for (size_t s = 0; s < 3; s++) {
            SITE_STATE_UNTIL(site, ids[s], "done");
        }
        assert_near(published(site, ids[0], "file", "loss"), loss, 1e-5);
        assert_same_metrics(site, ids[1], ids[0]);
        assert_same_metrics(site, ids[2], ids[0]);
    }
    fixture_audit(site->fx);
}

/* GPT-2 with NaN for the last value of its embedding, which every logit of that token reaches. */
static void put_broken_model(const struct fixture_site *site)
{
    static const uint8_t nan_f32[] = {0, 0, 0xc0, 0x7f};
    size_t bytes = 0;
    uint8_t *data = fixture_file_load(EVQ_TEST_DATA "/models/gpt2/model.safetensors", &bytes);
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/ckpt/broken", site->dir);
    memcpy(data + bytes - sizeof(nan_f32), nan_f32, sizeof(nan_f32));
    assert_int_equal(mkdir(path, 0755), 0);
    put(site, "ckpt/broken/model.safetensors", data, bytes);
    free(data);
    copy(site, EVQ_TEST_DATA "/models/gpt2/config.json", "ckpt/broken/config.json");
}

static enum evq_status find_best(struct fixture_site *site, const char *metric,
                                 struct evq_best *ret_best)
{
    struct evq_error err;

    return evq_queue_best_get(site->fx->queue, "curve", metric, ret_best, &err);
}

static void worker_flags_nan_weights_and_they_are_never_the_best(void **state)
{
    struct fixture_site *site = *state;
    static struct fixture_output output;
    const struct fixture_program logger = {
        .path = EVQ_TEST_BIN "/evalq-logger", .dir = site->dir, .url = site->fx->redis->url};
    const struct fixture_program evalq = {
        .path = EVQ_TEST_BIN "/evalq", .dir = site->dir, .url = site->fx->redis->url};
    struct evq_best best;

    put_broken_model(site);
    submit(site, "curve/1/regular/whole", "ckpt", "broken");
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    SITE_STATE_UNTIL(site, "curve/1/regular/whole", "done");
    assert_true(isnan(published(site, "curve/1/regular/whole", "file", "loss")));
    assert_true(published(site, "curve/1/regular/whole", "file", "nan_tokens") > 0.0);
    assert_true(isnan(published(site, "curve/1/regular/whole", "choices", "acc")));
    assert_near(published(site, "curve/1/regular/whole", "choices", "nan_items"), 5.0, 0.0);
    submit(site, "curve/2/regular/whole", "models", "gpt2");
    SITE_STATE_UNTIL(site, "curve/2/regular/whole", "done");
    (void)fixture_program_start(&logger, "logger", "--config", site->config, (char *)NULL);
    // The last metric of the last task: what came before it has been judged.
    FIXTURE_UNTIL(find_best(site, "eval/words/perplexity", &best) == EVQ_OK);
    assert_status(find_best(site, "eval/choices/acc", &best), EVQ_OK);
    assert_int_equal(best.step, 2);
    assert_status(find_best(site, "eval/file/nan_tokens", &best), EVQ_E_NOT_FOUND);
    fixture_program_run(&evalq, &output, "--plain", "best", "curve", (char *)NULL);
    assert_int_equal(output.exit_code, 0);
    assert_int_equal(strncmp(output.out, "2\t", 2), 0);
}

/* One job is run with the adapter and its base, one with what PEFT made of them. */
static void worker_evaluates_an_adapter_as_its_merged_weights(void **state)
{
    struct fixture_site *site = *state;

    submit(site, "lora/1/regular/adapted", "made", "lora/plain");
    submit(site, "lora/1/regular/merged", "made", "lora/plain.merged.safetensors");
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    SITE_STATE_UNTIL(site, "lora/1/regular/adapted", "done");
    SITE_STATE_UNTIL(site, "lora/1/regular/merged", "done");
    assert_near(published(site, "lora/1/regular/adapted", "file", "loss"),
                published(site, "lora/1/regular/merged", "file", "loss"), 1e-6);
}

/* A file of tensors in the site's directory. */
static void put_tensors(const struct fixture_site *site, const char *name,
                        const struct fixture_tensor *tensors, size_t count)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", site->dir, name);
    fixture_safetensors(path, tensors, count);
}

/* Writes a file of two rows of two numbers. */
static void put_npy(const struct fixture_site *site, const char *name, const float values[4])
{
    static const char shape[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
    unsigned char file[80 + 4 * sizeof(float)];

    memset(file, ' ', sizeof(file));
    memcpy(file, "\x93NUMPY\x01\x00\x46\x00", 10); // 70 bytes of text follow.
    memcpy(file + 10, shape, sizeof(shape) - 1);
    file[79] = '\n';
    memcpy(file + 80, values, 4 * sizeof(float));
    put(site, name, file, sizeof(file));
}

/* What is to come out is twice what goes in: as the averaged layer of ema_mlp.ckpt multiplies; the
 * trained one multiplies by 1. */
static void put_points(const struct fixture_site *site)
{
    static const float inputs[] = {1.0f, 2.0f, -3.0f, 1.0f};
    static const float targets[] = {2.0f, 4.0f, -6.0f, 2.0f};

    put_npy(site, "inputs.npy", inputs);
    put_npy(site, "targets.npy", targets);
}

static void run_evalq(struct fixture_site *site, struct fixture_output *output, const char *verb,
                      const char *what, const char *variant)
{
    const struct fixture_program evalq = {
        .path = EVQ_TEST_BIN "/evalq", .dir = site->dir, .url = site->fx->redis->url};

    if (variant != NULL) {
        fixture_program_run(&evalq, output, verb, what, "--run", "pair", "--step", "7", "--suite",
                            "points", "--variant", variant, "--config", site->config, (char *)NULL);
    } else {
        fixture_program_run(&evalq, output, "--plain", verb, what, (char *)NULL);
    }
    if (output->exit_code != 0) {
        fail_msg("evalq %s: %d: %s", verb, output->exit_code, output->err);
    }
}

/* From the submit to the results: one file, two variants, each with its own weights. */
static void worker_evaluates_both_variants_of_one_file(void **state)
{
    static const char file[] = EVQ_TEST_DATA "/checkpoints/made/ema_mlp.ckpt";
    static struct fixture_output output;
    struct fixture_site *site = *state;

    put_points(site);
    run_evalq(site, &output, "submit", file, "regular");
    run_evalq(site, &output, "submit", file, "ema");
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    SITE_STATE_UNTIL(site, "pair/7/regular/points", "done");
    SITE_STATE_UNTIL(site, "pair/7/ema/points", "done");
    assert_near(published(site, "pair/7/regular/points", "points", "mse"), 15.0 / 4.0, 1e-12);
    assert_near(published(site, "pair/7/ema/points", "points", "mse"), 0.0, 0.0);
    run_evalq(site, &output, "results", "pair", NULL);
    print_message("%s", output.out);
    assert_holds(output.out, "ema");
    assert_holds(output.out, "3.75");
    fixture_audit(site->fx);
}

/* Layouts that have to be joined first: the job ends with what to do about it. */
static void worker_says_what_prepares_layouts_that_are_cut(void **state)
{
    static const float flat[] = {1.0f, 2.0f};
    static const struct {
        const char *id, *path, *words;
    } cases[] = {
        {"flat/1/regular/points", "flat.safetensors",
         "flat parameter of FSDP (LOCAL_STATE_DICT), which does not say what it holds: save a full "
         "or sharded state dict, or convert it first, in a `prepare` command"},
        {"megatron/1/regular/points", "megatron",
         "this is a model-parallel checkpoint (mp_rank_01 and on), whose weights are cut by the "
         "model's own plan: join them first, in a `prepare` command"},
    };
    static struct fixture_output output;
    struct fixture_site *site = *state;
    const struct fixture_tensor tensor = {.name = "_fsdp_wrapped_module._flat_param",
                                          .dtype = EVQ_DTYPE_F32,
                                          .rank = 1,
                                          .shape = {2},
                                          .data = flat};
    char path[256];

    put_points(site);
    put_tensors(site, "ckpt/flat.safetensors", &tensor, 1);
    static const char *const folders[] = {"", "/mp_rank_00", "/mp_rank_01"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/ckpt/megatron%s", site->dir, folders[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    fixture_file_write(site->dir, "ckpt/megatron/mp_rank_00/model_optim_rng.pt", "x");
    (void)fixture_site_worker(site, "--devices", "cpu", NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        submit(site, cases[i].id, "ckpt", cases[i].path);
        SITE_STATE_UNTIL(site, cases[i].id, "dead");
        run_evalq(site, &output, "show", cases[i].id, NULL);
        assert_holds(output.out, cases[i].words);
    }
    fixture_audit(site->fx);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(worker_scores_language_models_alike_in_any_number_of_shards),
        TEST(worker_flags_nan_weights_and_they_are_never_the_best),
        TEST(worker_evaluates_an_adapter_as_its_merged_weights),
        TEST(worker_evaluates_both_variants_of_one_file),
        TEST(worker_says_what_prepares_layouts_that_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
