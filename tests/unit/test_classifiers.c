/* Encoders that classify texts and images, as the native evaluator runs them, against loss and hits
 * that Transformers gave in float64 (tests/data/make_models.py); and what it refuses. */
#include "native_fixture.h"
#include "worker/datasets/corpus.h"
#include "worker/evaluators/native/native_images.h"

#define MODELS  EVQ_TEST_DATA "/models/"
#define SAMPLES 40

static const char *const names[] = {"bert", "roberta", "distilbert", "modernbert", "vit"};
enum { BERT, ROBERTA, DISTILBERT, MODERNBERT, VIT, MODEL_COUNT };

struct held { // A model and its data; the pairs hold the paths.
    char paths[5][128];
    struct evq_pair data[7];
    struct evq_pair options[1];
    struct evq_task_config task;
};

static void set_path(struct held *held, size_t at, const char *key, const char *model,
                     const char *file)
{
    (void)snprintf(held->paths[at], sizeof(held->paths[at]), MODELS "%s/%s", model, file);
    held->data[at] = (struct evq_pair){key, held->paths[at]};
}

static void held_init(struct held *held, int model)
{
    const bool image = model == VIT;

    *held = (struct held){.options = {{"top_k", "2"}}};
    set_path(held, 0, "labels", names[model], "labels.npy");
    set_path(held, 1, image ? "inputs" : "tokens", names[model],
             image ? "inputs.npy" : "tokens.npy");
    held->data[2] = (struct evq_pair){"format", image ? "npy" : "tokens"};
    held->data[3] = (struct evq_pair){"scale", "2/255"};
    held->data[4] = (struct evq_pair){"shift", "-1"};
    if (!image) {
        set_path(held, 3, "mask", names[model], "mask.npy");
        set_path(held, 4, "types", names[model], "types.npy");
    }
    held->task = (struct evq_task_config){.name = "held",
                                          .type = image ? "classification" : "text_classification",
                                          .data = held->data,
                                          .data_count = image || model == BERT ? 5 : 4,
                                          .options = held->options,
                                          .option_count = 1};
}

static enum evq_status run(struct fixture *fx, const char *model,
                           const struct evq_task_config *task, int32_t shard, int32_t shards,
                           struct evq_error *err)
{
    char path[128];

    (void)snprintf(path, sizeof(path), MODELS "%s", model);
    const int root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(root_fd >= 0);
    const enum evq_status status =
        eval(fx, root_fd, "model.safetensors", task, 1, shard, shards, err);
    (void)close(root_fd);
    return status;
}

static void classifiers_agree_with_transformers_in_float64(void **state)
{
    struct fixture *fx = *state;

    for (int m = 0; m < MODEL_COUNT; m++) {
        struct held held;
        struct evq_error err = {0};
        char path[128];
        double loss = 0;
        int hits = 0;
        int top = 0;
        (void)snprintf(path, sizeof(path), MODELS "%s/expected.txt", names[m]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        assert_int_equal(fscanf(file, "%lf %d %d", &loss, &hits, &top), 3);
        (void)fclose(file);
        held_init(&held, m);
        assert_status_err(run(fx, names[m], &held.task, -1, 0, &err), EVQ_OK, &err);
        assert_near(metric(fx, "cross_entropy"), loss, 1e-6 * loss);
        assert_near(metric(fx, "accuracy"), (double)hits / SAMPLES, 0.0);
        assert_near(metric(fx, "top2_accuracy"), (double)top / SAMPLES, 0.0);
        assert_int_equal(fx->seen.result->n, SAMPLES);
    }
}

static void shards_of_classifiers_add_up(void **state)
{
    struct fixture *fx = *state;

    for (int m = 0; m < MODEL_COUNT; m++) {
        struct held held;
        struct evq_error err = {0};
        int64_t correct[2] = {0};
        double loss[2] = {0};
        held_init(&held, m);
        for (int32_t shard = -1; shard < 3; shard++) {
            assert_status_err(run(fx, names[m], &held.task, shard, shard < 0 ? 0 : 3, &err), EVQ_OK,
                              &err);
            for (size_t i = 0; i < fx->seen.result->sum_count; i++) {
                const struct evq_sum *sum = &fx->seen.result->sums[i];
                correct[shard < 0] += strcmp(sum->name, "correct") == 0 ? sum->count : 0;
                loss[shard < 0] += strcmp(sum->name, "loss") == 0 ? sum->value : 0.0;
            }
        }
        assert_int_equal(correct[0], correct[1]);
        assert_near(loss[0], loss[1], 1e-12 * loss[1]);
    }
}

/* Writes an array of int32 with `columns` columns; 0: one dimension. */
static void write_numbers(const struct fixture *fx, const char *name, int32_t rows, int32_t columns,
                          const int32_t *values)
{
    char path[128];
    char header[118];
    char shape[40];
    const size_t count = (size_t)rows * (size_t)(columns > 0 ? columns : 1);

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    (void)snprintf(shape, sizeof(shape), columns > 0 ? "(%d, %d)" : "(%d,)", (int)rows,
                   (int)columns);
    memset(header, ' ', sizeof(header));
    const int length = snprintf(header, sizeof(header),
                                "{'descr': '<i4', 'fortran_order': False, 'shape': %s, }", shape);
    header[length] = ' ';
    header[117] = '\n';
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file), 10);
    assert_int_equal(fwrite(header, 1, 118, file), 118);
    assert_int_equal(fwrite(values, 4, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Texts of three tokens, one number of which is wrong. */
static void texts_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        int model;
        int32_t tokens[2][3], mask[2][3], types[2][3], labels[2];
        const char *words;
    } cases[] = {
        {BERT, {{5, 6}, {7, 8, 9}}, {{1, 1}, {1, 1, 1}}, {{0}, {1, 1}}, {0, 2}, ""},
        {BERT, {{5, 6}, {7, 8, 37}}, {{1, 1}, {1, 1, 1}}, {{0}}, {0, 2}, "has token id 37"},
        {BERT, {{5, 6}, {7, -8, 9}}, {{1, 1}, {1, 1, 1}}, {{0}}, {0, 2}, "value 4 of "},
        {BERT, {{5, 6}, {7, 8, 9}}, {{1, 0, 1}, {1, 1, 1}}, {{0}}, {0}, "text 0 of "},
        {BERT, {{5, 6}, {7, 8, 9}}, {{1, 1}, {0}}, {{0}}, {0}, "not a row of ones and then zeros"},
        {BERT, {{5, 6}, {7, 8, 9}}, {{1, 2}, {1}}, {{0}}, {0}, "expected the padding behind"},
        {BERT, {{5}, {7}}, {{1}, {1}}, {{2}}, {0, 2}, "a token of type 2, but the model's types"},
        {BERT, {{5}, {7}}, {{1}, {1}}, {{0}}, {0, 3}, "item 1 of "},
        {BERT, {{5}, {7}}, {{1}, {1}}, {{0}}, {0, 3}, "has label 3, expected 0 to 2"},
        {BERT, {{5}, {7}}, {{1}, {1}}, {{0}}, {0, -1}, "value 1 of "},
        {ROBERTA, {{5}, {7, 1, 8}}, {{1}, {1, 1, 1}}, {{0}}, {0}, "the padding token 1 inside"},
        {ROBERTA, {{5}, {7, 8, 1}}, {{1}, {1, 1}}, {{0}}, {0}, ""}, // Behind the text.
        {BERT, {{5}, {5}}, {{1}, {1}}, {{0}}, {0, 1}, ""},          // Each has a label of its own.
        {MODERNBERT, {{5}, {7}}, {{1}, {1}}, {{0}, {1}}, {0}, "model's types end at 0"},
    };
    struct fixture *fx = *state;
    char paths[4][128];
    const char *const files[] = {"tokens", "mask", "types", "labels"};
    struct evq_pair data[5] = {{"format", "tokens"}};

    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "%s/%s", fx->directory, files[i]);
        data[i + 1] = (struct evq_pair){files[i], paths[i]};
    }
    const struct evq_task_config task = {
        .name = "held", .type = "text_classification", .data = data, .data_count = 5};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_error err = {0};
        write_numbers(fx, "tokens", 2, 3, cases[i].tokens[0]);
        write_numbers(fx, "mask", 2, 3, cases[i].mask[0]);
        write_numbers(fx, "types", 2, 3, cases[i].types[0]);
        write_numbers(fx, "labels", 2, 0, cases[i].labels);
        const enum evq_status status = run(fx, names[cases[i].model], &task, -1, 0, &err);
        if ((status == EVQ_OK) != (cases[i].words[0] == '\0') ||
            strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
    const int32_t long_text[2 * 25] = {0};
    struct evq_error err = {0};
    write_numbers(fx, "labels", 3, 0, cases[0].tokens[0]);
    assert_int_not_equal(run(fx, "bert", &task, -1, 0, &err), EVQ_OK);
    assert_non_null(strstr(err.message, "labels' has another shape than"));
    write_numbers(fx, "labels", 2, 0, cases[0].labels);
    write_numbers(fx, "tokens", 2, 25, long_text); // 24 are taken.
    const struct evq_pair plain[] = {data[0], data[1], data[4]};
    const struct evq_task_config whole = {
        .name = "held", .type = "text_classification", .data = plain, .data_count = 3};
    assert_int_not_equal(run(fx, "bert", &whole, -1, 0, &err), EVQ_OK);
    assert_non_null(strstr(err.message, "has 25 tokens, but the model takes at most 24"));
    for (size_t i = 0; i < 4; i++) {
        (void)unlinkat(fx->root_fd, files[i], 0);
    }
}

/* A task, a model and data that do not belong together. */
static void tasks_of_other_models_are_refused(void **state)
{
    struct fixture *fx = *state;
    const struct {
        int data;
        const char *model, *option, *value, *words;
    } cases[] = {
        {VIT, "bert", NULL, NULL, "a bert model reads texts, expected a task of type text"},
        {BERT, "vit", NULL, NULL, "the model (vit) reads samples, not tokens"},
        {BERT, "llama", NULL, NULL, "a llama model scores tokens, but this task needs"},
        {VIT, "vit", "mean", "0.5, 0.5", "mean has 2 values and std has 0"},
        {VIT, "vit", "mean", "0.5, x", "mean is 'x', expected a number"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct held held;
        struct evq_error err = {0};
        held_init(&held, cases[i].data);
        if (cases[i].option != NULL) {
            held.data[held.task.data_count++] = (struct evq_pair){cases[i].option, cases[i].value};
        }
        if (run(fx, cases[i].model, &held.task, -1, 0, &err) == EVQ_OK ||
            strstr(err.message, cases[i].words) == NULL) {
            print_message("case %zu: \"%s\" lacks \"%s\"\n", i, err.message, cases[i].words);
            fail();
        }
    }
}

static void images_of_another_shape_are_refused(void **state)
{
    struct fixture *fx = *state;
    static const float values[SAMPLES * 48] = {0};
    struct held held;
    struct evq_error err = {0};

    write_npy(fx, "x.npy", SAMPLES, 48, values); // As many values, but no channels.
    held_init(&held, VIT);
    (void)snprintf(held.paths[1], sizeof(held.paths[1]), "%s/x.npy", fx->directory);
    assert_int_equal(run(fx, "vit", &held.task, -1, 0, &err), EVQ_E_INVALID);
    assert_non_null(
        strstr(err.message, "expected [2, 4, 6] (channels, height, width) or [4, 6, 2"));
    held_init(&held, VIT);
    held.data[held.task.data_count++] = (struct evq_pair){"mean", "0.5"};
    held.data[held.task.data_count++] = (struct evq_pair){"std", "0.5"};
    assert_int_equal(run(fx, "vit", &held.task, -1, 0, &err), EVQ_E_INVALID);
    assert_non_null(
        strstr(err.message, "mean and std have 1 values, but the model's images have 2"));
}

/* Images of 4 channels, rows and columns have the same shape in both orders. */
static void images_whose_order_does_not_show_are_refused(void **state)
{
    struct evq_dataset dataset = {.inputs = {.rank = 4, .shape = {9, 4, 4, 4}},
                                  .inputs_name = "x.npy"};
    struct evq_patches patches = {.channels = 4, .height = 4, .width = 4};
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(evq_native_images_check(&dataset, &patches, &err), EVQ_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'x.npy' does not show which come first"));
    dataset.inputs = (struct evq_array){.rank = 4, .shape = {9, 1, 1, 1}};
    patches = (struct evq_patches){.channels = 1, .height = 1, .width = 1};
    assert_int_equal(evq_native_images_check(&dataset, &patches, &err), EVQ_OK);
}

/* Mean and std of each channel say the same as one scale and shift. */
static void channels_have_a_mean_and_a_deviation(void **state)
{
    struct fixture *fx = *state;
    struct held held;
    struct evq_error err = {0};

    held_init(&held, VIT);
    assert_status_err(run(fx, "vit", &held.task, -1, 0, &err), EVQ_OK, &err);
    const double loss = metric(fx, "cross_entropy");
    held.data[3] = (struct evq_pair){"scale", "1/255"};
    held.data[4] = (struct evq_pair){"mean", "0.5 0.5"};
    held.data[held.task.data_count++] = (struct evq_pair){"std", "0.5, 0.5"};
    assert_status_err(run(fx, "vit", &held.task, -1, 0, &err), EVQ_OK, &err);
    assert_near(metric(fx, "cross_entropy"), loss, 1e-6);
    held.data[4] = (struct evq_pair){"mean", "0.5 0.25"};
    assert_status_err(run(fx, "vit", &held.task, -1, 0, &err), EVQ_OK, &err);
    assert_true(fabs(metric(fx, "cross_entropy") - loss) > 1e-3);
}

static struct evq_corpus *open_texts(const struct fixture *fx, const struct evq_pair *pairs,
                                     size_t count)
{
    const struct evq_task_config task = {.name = "t", .data = pairs, .data_count = count};
    struct evq_corpus_source source = {
        .task = &task, .kind = EVQ_CORPUS_LABELS, .directory = fx->directory};
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_corpus *corpus = NULL;
    struct evq_error err = {0};

    assert_status_err(evq_tokenizer_open(AT_FDCWD, EVQ_TEST_DATA "/tokenizers/bert/tokenizer.json",
                                         &tokenizer, &err),
                      EVQ_OK, &err);
    source.tokenizer = tokenizer;
    assert_status_err(evq_corpus_open(&source, &corpus, &err), EVQ_OK, &err);
    evq_tokenizer_free(tokenizer);
    return corpus;
}

static void texts_have_labels_of_every_form(void **state)
{
    static const char lines[] = "{\"a\": \"The fox\", \"b\": \"lazy\", \"y\": 1}\n"
                                "{\"a\": \"\", \"b\": \"dog\", \"y\": \"neg\"}\n";
    static const struct evq_pair pairs[] = {{"format", "jsonl"},         {"text", "texts"},
                                            {"template", "{a}"},         {"label", "y"},
                                            {"class_names", "neg, pos"}, {"pair_template", "{b}"}};
    static const struct evq_pair cut[] = {{"format", "jsonl"},     {"text", "texts"},
                                          {"template", "{a} {a}"}, {"label", "y"},
                                          {"limit", "1"},          {"max_length", "4"}};
    struct fixture *fx = *state;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/texts", fx->directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(lines, file) >= 0);
    assert_int_equal(fclose(file), 0);
    struct evq_corpus *corpus = open_texts(fx, pairs, 6);
    assert_int_equal(corpus->item_count, 2);
    assert_int_equal(corpus->items[0].gold, 1);
    assert_int_equal(corpus->items[1].gold, 0);
    assert_int_equal(corpus->types.count, corpus->tokens.count);
    const int32_t *ids = corpus->tokens.ids;
    const int32_t *types = corpus->types.ids;
    const int64_t second = corpus->passages[0].count;
    assert_int_equal(ids[0], 2); // [CLS]
    assert_int_equal(ids[second - 1], 3);
    assert_int_equal(types[second - 1], 1);
    assert_int_equal(ids[second], 2);
    assert_int_equal(ids[second + 1], 3); // Nothing is between [CLS] and [SEP].
    assert_int_equal(types[second + 1], 0);
    assert_int_equal(types[second + 2], 1);
    evq_corpus_free(corpus);
    corpus = open_texts(fx, cut, 6);
    assert_int_equal(corpus->tokens.count, 4);
    assert_int_equal(corpus->tokens.ids[3], 3);
    evq_corpus_free(corpus);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(classifiers_agree_with_transformers_in_float64, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(shards_of_classifiers_add_up, setup, teardown),
        cmocka_unit_test_setup_teardown(texts_that_do_not_fit_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(tasks_of_other_models_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(images_of_another_shape_are_refused, setup, teardown),
        cmocka_unit_test(images_whose_order_does_not_show_are_refused),
        cmocka_unit_test_setup_teardown(texts_have_labels_of_every_form, setup, teardown),
        cmocka_unit_test_setup_teardown(channels_have_a_mean_and_a_deviation, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
