/* The native evaluator over tokens, on a random GPT-2: shards, packing, shared contexts, NaN,
 * adapters, refusals. That its numbers are right: tests/peers/. */
#include "gpt_fixture.h"

static const struct evq_sum *sum(const struct evq_result *result, const char *name)
{
    for (size_t i = 0; i < result->sum_count; i++) {
        if (strcmp(result->sums[i].name, name) == 0) {
            return &result->sums[i];
        }
    }
    fail_msg("no sum '%s'", name);
    return NULL;
}

/* Evaluates in so many shards and merges; every metric equals the whole's. */
static void assert_shards_agree(struct fixture *fx, const struct evq_task_config *task,
                                int32_t shards)
{
    struct evq_metric whole[EVQ_RESULT_METRICS_MAX];
    struct evq_result *merged = evq_result_new();
    struct evq_sum *sums = NULL;
    struct evq_error err = {0};

    assert_runs(fx, task);
    const size_t metrics = fx->seen.result->metric_count;
    const int64_t n = fx->seen.result->n;
    for (size_t i = 0; i < metrics; i++) {
        whole[i] = fx->seen.result->metrics[i];
    }
    for (int32_t shard = 0; shard < shards; shard++) {
        assert_int_equal(run(fx, task, shard, shards, &err), EVQ_OK);
        const struct evq_result *part = fx->seen.result;
        if (sums == NULL) {
            sums = evq_arena_array(merged->arena, part->sum_count, sizeof(*sums));
        }
        for (size_t s = 0; s < part->sum_count; s++) {
            sums[s].name = evq_arena_strdup(merged->arena, part->sums[s].name);
            sums[s].is_count = part->sums[s].is_count;
            sums[s].count += part->sums[s].count;
            sums[s].value += part->sums[s].value;
        }
        merged->sum_count = part->sum_count;
    }
    merged->sums = sums;
    assert_int_equal(evq_native_merge(task, merged, &err), EVQ_OK);
    assert_int_equal(merged->n, n);
    assert_int_equal(merged->metric_count, metrics);
    for (size_t i = 0; i < metrics; i++) {
        assert_near(merged->metrics[i].value, whole[i].value, 1e-9 * fabs(whole[i].value));
    }
    evq_result_free(merged);
}

static void tokens_in_shards_add_up_to_the_whole(void **state)
{
    static const int32_t counts[] = {2, 3, 7, 40};
    struct fixture *fx = *state;
    struct lm made;

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const char *const file = "data.txt";
        assert_shards_agree(fx, lm(fx, &made, "perplexity", file, "length", "9", NULL), counts[i]);
        assert_shards_agree(
            fx, lm(fx, &made, "perplexity", file, "mode", "strided", "stride", "5", NULL),
            counts[i]);
        assert_shards_agree(fx, lm(fx, &made, "perplexity", file, "mode", "blocks", NULL),
                            counts[i]);
        assert_shards_agree(fx,
                            lm(fx, &made, "perplexity", file, "mode", "trainer", "batch_size", "2",
                               "length", "7", NULL),
                            counts[i]);
        assert_shards_agree(fx, lm(fx, &made, "multiple_choice", "items.jsonl", NULL), counts[i]);
        assert_shards_agree(fx, lm(fx, &made, "loglikelihood", "items.jsonl", NULL), counts[i]);
    }
}

static void perplexity_counts_tokens_words_and_bytes(void **state)
{
    struct fixture *fx = *state;
    struct lm made;

    assert_runs(fx, lm(fx, &made, "perplexity", "data.txt", NULL));
    const struct evq_result *result = fx->seen.result;
    assert_int_equal(result->n, 5);
    assert_int_equal(sum(result, "words")->count, 12 + 18 + 1 + 1 + 18);
    assert_int_equal(sum(result, "bytes")->count, 52 + 84 + 6 + 1 + 85);
    const double tokens = (double)sum(result, "tokens")->count;
    const double loss = sum(result, "loss")->value;
    assert_near(metric(fx, "loss"), loss / tokens, 0.0);
    assert_near(metric(fx, "perplexity"), exp(loss / tokens), 0.0);
    assert_near(metric(fx, "word_perplexity"), exp(loss / 50.0), 0.0);
    assert_near(metric(fx, "byte_perplexity"), exp(loss / 228.0), 0.0);
    assert_near(metric(fx, "bits_per_byte"), loss / 228.0 / log(2.0), 1e-15);
    assert_true(result->timing.tokens >= (int64_t)tokens);
}

/* What a choice scores does not depend on those beside it, nor on how windows share a batch. */
static void choices_score_as_they_would_alone(void **state)
{
    struct fixture *fx = *state;
    struct lm made;
    double loss = 0.0;

    for (int i = 0; i < 2; i++) {
        char line[128];
        (void)snprintf(line, sizeof(line), "{\"q\": \"one and one is%s\"}\n", i == 0 ? "" : " A B");
        write_file(fx, "items.jsonl", line);
        assert_runs(fx, lm(fx, &made, "loglikelihood", "items.jsonl", NULL));
        loss += sum(fx->seen.result, "loss")->value;
    }
    write_file(fx, "items.jsonl", "{\"q\": \"one and one is\"}\n{\"q\": \"one and one is A B\"}\n");
    assert_runs(fx, lm(fx, &made, "loglikelihood", "items.jsonl", NULL));
    assert_near(sum(fx->seen.result, "loss")->value, loss, 1e-9 * loss);
    assert_int_equal(fx->seen.result->n, 2);
}

static int64_t rows_of_choices(struct fixture *fx, const char *choices)
{
    struct lm made;
    char line[128];

    (void)snprintf(line, sizeof(line), "{\"q\": \"one and one is\", \"c\": %s, \"label\": 0}\n",
                   choices);
    write_file(fx, "items.jsonl", line);
    (void)lm(fx, &made, "multiple_choice", "items.jsonl", NULL);
    made.data[made.task.data_count++] = (struct evq_pair){"target_delimiter", ""};
    assert_runs(fx, &made.task);
    return fx->seen.result->timing.tokens;
}

/* Choices of one token share the context's rows; one of two tokens has its own. */
static void choices_of_one_token_share_their_context(void **state)
{
    struct fixture *fx = *state;
    const int64_t rows = rows_of_choices(fx, "[\"!\", \"?\"]");

    assert_int_equal(rows_of_choices(fx, "[\"!\", \"?\", \".\", \";\"]"), rows);
    assert_int_equal(sum(fx->seen.result, "tokens")->count, 4);
    assert_int_equal(rows_of_choices(fx, "[\"!\", \"? !\"]"), rows + rows + 2);
}

/* The next checkpoint of a run brings the same tokenizer in files of its own. */
static void tokens_stay_warm_between_jobs(void **state)
{
    struct fixture *fx = *state;
    struct lm made;

    const struct evq_task_config *task = lm(fx, &made, "perplexity", "data.txt", NULL);
    assert_runs(fx, task);
    const void *tokenizer = fx->native->tokenizers.things[0];
    const void *corpus = fx->native->corpora.things[0];
    const double loss = metric(fx, "loss");
    write_gpt(fx, 0.0f);
    assert_runs(fx, task);
    assert_ptr_equal(fx->native->tokenizers.things[0], tokenizer);
    assert_ptr_equal(fx->native->corpora.things[0], corpus);
    assert_null(fx->native->corpora.things[1]);
    assert_true(metric(fx, "loss") == loss);
    write_file(fx, "data.txt", "Other words.\n");
    assert_runs(fx, task);
    assert_ptr_equal(fx->native->tokenizers.things[0], tokenizer);
    assert_ptr_equal(fx->native->corpora.things[1], corpus);
    assert_int_equal(fx->seen.result->n, 1);
    for (int i = 1; i <= 2 * EVQ_NATIVE_CACHE_MAX; i++) { // What was used longest ago goes.
        char text[32];
        (void)snprintf(text, sizeof(text), "Words%*d.\n", i, i); // Each of another size.
        write_file(fx, "data.txt", text);
        assert_runs(fx, task);
    }
    for (size_t i = 0; i < EVQ_NATIVE_CACHE_MAX; i++) {
        assert_non_null(fx->native->corpora.things[i]);
    }
}

/* Weights lie as they are computed with: the next task's are read again. */
static void tasks_may_compute_in_turn_in_fp32_and_bf16(void **state)
{
    struct fixture *fx = *state;
    struct lm made[3];
    struct evq_task_config tasks[3];
    struct evq_error err = {0};

    if (!fx->native->caps.bf16) {
        print_message("skipped: this processor does not multiply bf16\n");
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        static const char *const names[] = {"a", "b", "c"};
        tasks[i] =
            *lm(fx, &made[i], "perplexity", "data.txt", "compute", i == 1 ? "bf16" : "fp32", NULL);
        tasks[i].name = names[i];
    }
    assert_runs(fx, &made[0].task);
    const double alone = metric(fx, "loss");
    assert_string_equal(fx->seen.result->compute, "fp32");
    assert_runs(fx, &made[1].task);
    assert_string_equal(fx->seen.result->compute, "bf16");
    assert_near(metric(fx, "loss"), alone, 0.02 * alone);
    assert_true(metric(fx, "loss") != alone);
    if (eval(fx, fx->root_fd, "gpt", tasks, 3, -1, 0, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    assert_true(metric(fx, "loss") == alone);
}

static void nan_weights_are_flagged(void **state)
{
    struct fixture *fx = *state;
    struct lm made;

    write_gpt(fx, NAN); // Of token 0, and so of every row's logits.
    assert_runs(fx, lm(fx, &made, "perplexity", "data.txt", NULL));
    assert_true(isnan(metric(fx, "loss")) && isnan(metric(fx, "word_perplexity")));
    assert_true(metric(fx, "nan_tokens") == (double)sum(fx->seen.result, "tokens")->count);
    assert_runs(fx, lm(fx, &made, "multiple_choice", "items.jsonl", NULL));
    assert_true(isnan(metric(fx, "acc")) && isnan(metric(fx, "acc_norm")));
    assert_true(metric(fx, "nan_items") == 5.0);
    assert_runs(fx, lm(fx, &made, "loglikelihood", "items.jsonl", NULL));
    assert_true(isnan(metric(fx, "perplexity")) && isnan(metric(fx, "acc")));
    assert_true(metric(fx, "nan_items") == 5.0);
}

/* As Transformers 5 has it the head counts, as 4 had it the embedding. */
static void head_that_differs_from_its_embedding_is_refused_unless_told(void **state)
{
    struct fixture *fx = *state;
    static float values[VOCABULARY * WIDTH] = {1.0f};
    const struct fixture_tensor head = {.name = "lm_head.weight",
                                        .dtype = EVQ_DTYPE_F32,
                                        .rank = 2,
                                        .shape = {VOCABULARY, WIDTH},
                                        .data = values};
    struct evq_pair option = {"tie_word_embeddings", "true"};
    struct lm made;

    assert_runs(fx, lm(fx, &made, "perplexity", "data.txt", NULL));
    const double tied = metric(fx, "loss");
    write_gpt_with(fx, 0.0f, &head);
    assert_fault(fx, &made.task, EVQ_E_INVALID,
                 "tensor 'lm_head.weight' of 'gpt' differs from 'wte.weight'");
    made.task.model = &option;
    made.task.model_count = 1;
    assert_runs(fx, &made.task);
    assert_true(metric(fx, "loss") == tied);
    option.value = "false";
    assert_runs(fx, &made.task);
    const double untied = metric(fx, "loss");
    assert_true(untied != tied);

    // The tasks of a suite each have what they say, whatever the one before said.
    const struct evq_pair told[] = {{"tie_word_embeddings", "true"},
                                    {"tie_word_embeddings", "false"}};
    struct evq_task_config tasks[2] = {made.task, made.task};
    struct evq_error err = {0};
    tasks[1].name = "second";
    for (int i = 0; i < 2; i++) {
        tasks[0].model = &told[i];
        tasks[1].model = &told[1 - i];
        assert_int_equal(eval(fx, fx->root_fd, "gpt", tasks, 2, -1, 0, &err), EVQ_OK);
        assert_true(metric(fx, "loss") == (i == 0 ? untied : tied));
        tasks[1].model_count = 0;
        assert_int_equal(eval(fx, fx->root_fd, "gpt", tasks, 2, -1, 0, &err), EVQ_E_INVALID);
        assert_non_null(strstr(err.message, "'lm_head.weight' of 'gpt' differs from 'wte.weight'"));
        tasks[1].model_count = 1;
    }
}

static void tokens_of_a_file_are_scored(void **state)
{
    struct fixture *fx = *state;
    const uint16_t ids[] = {1, 2, 3, 4, 5, 6, 7};
    struct lm made;

    const int fd = openat(fx->root_fd, "data.bin", O_WRONLY | O_CREAT, 0666);
    assert_int_equal(write(fd, ids, sizeof(ids)), sizeof(ids));
    assert_int_equal(close(fd), 0);
    (void)lm(fx, &made, "perplexity", "data.bin", NULL);
    const struct evq_pair data[] = {{"format", "tokens"}, {"tokens", made.text}, {"dtype", "u16"}};
    made.task.data = data;
    made.task.data_count = 3;
    assert_runs(fx, &made.task);
    assert_int_equal(sum(fx->seen.result, "tokens")->count, 6); // Blocks: the first is not scored.
    assert_int_equal(fx->seen.result->metric_count, 2);
    made.options[made.task.option_count++] = (struct evq_pair){"mode", "rolling"};
    assert_fault(fx, &made.task, EVQ_E_INVALID, "set data: {prefix: TEXT}");
}

static void tokens_are_refused_in_a_sentence(void **state)
{
    struct fixture *fx = *state;
    struct lm made;

    assert_fault(fx, lm(fx, &made, "perplexity", "data.txt", "length", "33", NULL), EVQ_E_LIMIT,
                 "length is 33 tokens, but the model takes sequences of at most 32");
    assert_fault(fx, lm(fx, &made, "perplexity", "nowhere.txt", NULL), EVQ_E_NOT_FOUND,
                 "nowhere.txt");
    assert_fault(fx, lm(fx, &made, "multiple_choice", "items.jsonl", "length", "1", NULL),
                 EVQ_E_LIMIT, "tokens are to be scored, but the model takes 1");
    made.data[2].value = "370";
    (void)lm(fx, &made, "perplexity", "data.txt", NULL);
    made.data[2].value = "370";
    assert_fault(fx, &made.task, EVQ_E_INVALID,
                 "has token id 370, but the model's vocabulary ends at 369");
    assert_fault(fx, lm(fx, &made, "perplexity", "data.txt", "mode", "sliding", NULL),
                 EVQ_E_INVALID, "mode 'sliding' is not known; known: rolling, strided");
    assert_fault(fx, lm(fx, &made, "perplexity", "data.txt", "stride", "3", NULL), EVQ_E_INVALID,
                 "stride is for mode strided, not for rolling");
    assert_fault(fx, lm(fx, &made, "perplexity", "data.txt", "compute", "fp8", NULL), EVQ_E_INVALID,
                 "compute 'fp8' is not known; known: auto, fp32, bf16");
    (void)unlinkat(fx->root_fd, "gpt/tokenizer.json", 0);
    assert_fault(
        fx, lm(fx, &made, "perplexity", "data.txt", NULL), EVQ_E_NOT_FOUND,
        "text needs a tokenizer, beside the weights or as `data: {tokenizer: PATH}`: tokenizer");
}

/* An adapter of gpt/, as PEFT saves it: without a tokenizer. */
static void write_adapter_of(const struct fixture *fx, const struct fixture_tensor *tensors,
                             size_t count)
{
    char path[128];

    assert_true(mkdirat(fx->root_fd, "adapter", 0700) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof(path), "%s/adapter/adapter_model.safetensors", fx->directory);
    fixture_safetensors(path, tensors, count);
    write_file(fx, "adapter/adapter_config.json",
               "{\"peft_type\": \"LORA\", \"lora_alpha\": 2, \"r\": 1, \"fan_in_fan_out\": true, "
               "\"base_model_name_or_path\": \"gpt\"}");
}

/* One that changes nothing yet. */
static void write_adapter(const struct fixture *fx)
{
    static const float a[WIDTH] = {1.0f};
    static const float b[4 * WIDTH];
    const struct fixture_tensor tensors[] = {
        MATRIX("base_model.model.h.0.mlp.c_fc.lora_A.weight", 1, WIDTH, a),
        MATRIX("base_model.model.h.0.mlp.c_fc.lora_B.weight", 4 * WIDTH, 1, b)};

    write_adapter_of(fx, tensors, 2);
}

static void remove_adapter(const struct fixture *fx)
{
    static const char *const names[] = {"adapter/adapter_model.safetensors",
                                        "adapter/adapter_config.json", "adapter/tokenizer.json"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlinkat(fx->root_fd, names[i], 0);
    }
    assert_int_equal(unlinkat(fx->root_fd, "adapter", AT_REMOVEDIR), 0);
}

static void adapter_without_a_tokenizer_has_its_bases(void **state)
{
    struct fixture *fx = *state;
    struct evq_error err = {0};
    struct lm made;

    const struct evq_task_config *task = lm(fx, &made, "perplexity", "data.txt", NULL);
    assert_runs(fx, task);
    const double loss = metric(fx, "loss");
    write_adapter(fx);
    if (eval(fx, fx->root_fd, "adapter", task, 1, -1, 0, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
    assert_near(metric(fx, "loss"), loss, 1e-12);
    write_file(fx, "adapter/tokenizer.json", "{}"); // Its own goes before.
    assert_int_not_equal(eval(fx, fx->root_fd, "adapter", task, 1, -1, 0, &err), EVQ_OK);
    assert_non_null(strstr(err.message, "adapter/tokenizer.json"));
    assert_int_equal(unlinkat(fx->root_fd, "adapter/tokenizer.json", 0), 0);
    assert_int_equal(unlinkat(fx->root_fd, "gpt/tokenizer.json", 0), 0);
    assert_int_equal(eval(fx, fx->root_fd, "adapter", task, 1, -1, 0, &err), EVQ_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "text needs a tokenizer"));
    remove_adapter(fx);
}

/* PEFT trains it apart from the head, which stays. */
static void adapter_of_a_tied_embedding_is_refused_unless_told(void **state)
{
    struct fixture *fx = *state;
    static const float values[VOCABULARY * WIDTH] = {1.0f};
    const struct fixture_tensor whole[] = {
        MATRIX("base_model.model.wte.weight", VOCABULARY, WIDTH, values)};
    const struct fixture_tensor added[] = {
        MATRIX("base_model.model.wte.lora_embedding_A", 1, VOCABULARY, values),
        MATRIX("base_model.model.wte.lora_embedding_B", WIDTH, 1, values)};
    const struct evq_pair tied = {"tie_word_embeddings", "true"};
    struct evq_error err = {0};
    struct lm made;

    (void)lm(fx, &made, "perplexity", "data.txt", NULL);
    for (int i = 0; i < 2; i++) {
        write_adapter_of(fx, i == 0 ? whole : added, i == 0 ? 1 : 2);
        made.task.model_count = 0;
        assert_int_equal(eval(fx, fx->root_fd, "adapter", &made.task, 1, -1, 0, &err),
                         EVQ_E_INVALID);
        assert_non_null(
            strstr(err.message, "the adapter changes 'wte.weight' and the configuration ties"));
        made.task.model = &tied;
        made.task.model_count = 1;
        if (eval(fx, fx->root_fd, "adapter", &made.task, 1, -1, 0, &err) != EVQ_OK) {
            fail_msg("%s", err.message);
        }
    }
    remove_adapter(fx);
}

/* What takes long is told while it lasts, and may be stopped. */
static void reading_a_large_text_is_told(void **state)
{
    enum { BYTES = 5 << 20 };
    struct fixture *fx = *state;
    char *text = malloc(BYTES + 1);
    struct lm made;

    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++) {
        text[i] = "the best of times\n"[i % 18];
    }
    text[BYTES] = '\0';
    write_file(fx, "data.txt", text);
    free(text);
    (void)lm(fx, &made, "perplexity", "data.txt", NULL);
    made.data[made.task.data_count++] = (struct evq_pair){"limit", "1"}; // Of the lines: one.
    assert_runs(fx, &made.task);
    const int32_t told = fx->seen.progress; // Of its windows.
    assert_true(fx->seen.within > 0);       // And of the batch they are in.
    made.data[3].value = "none";            // One document.
    fx->seen = (struct seen){.result = fx->seen.result, .stop_at = 2 << 20};
    struct evq_error err = {0};
    assert_int_equal(run(fx, &made.task, -1, 0, &err), EVQ_E_STOPPED);
    assert_in_range(fx->seen.progress, 2, 3);
    assert_int_equal(fx->seen.total, BYTES);
    assert_true(told > 0);
    made.data[3].value = "lines";
    made.task.data_count--; // All of the lines.
    fx->seen = (struct seen){.result = fx->seen.result, .stop_at = 3 << 20};
    assert_int_equal(run(fx, &made.task, -1, 0, &err), EVQ_E_STOPPED);
    assert_in_range(fx->seen.progress, 3, 3);
    assert_in_range(fx->seen.done, 3 << 20, (3 << 20) + 4 * 18); // A line past each.
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gpt, teardown_gpt)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_in_shards_add_up_to_the_whole),
        TEST(perplexity_counts_tokens_words_and_bytes),
        TEST(choices_score_as_they_would_alone),
        TEST(choices_of_one_token_share_their_context),
        TEST(tokens_stay_warm_between_jobs),
        TEST(tasks_may_compute_in_turn_in_fp32_and_bf16),
        TEST(nan_weights_are_flagged),
        TEST(head_that_differs_from_its_embedding_is_refused_unless_told),
        TEST(tokens_of_a_file_are_scored),
        TEST(adapter_without_a_tokenizer_has_its_bases),
        TEST(adapter_of_a_tied_embedding_is_refused_unless_told),
        TEST(reading_a_large_text_is_told),
        TEST(tokens_are_refused_in_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
