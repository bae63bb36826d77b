/* The native evaluator over tokens, on a random GPT-2: shards, packing, shared contexts, batches
 * made smaller, NaN, refusals. That its numbers are right: tests/peers/. */
#include "native_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "worker/evaluators/native_run.h"

#define VOCABULARY 370
#define WIDTH      16
#define CONTEXT    32
#define PARTS      16

static const char config[] = "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\","
                             " \"vocab_size\": 370, \"n_positions\": 32, \"n_embd\": 16,"
                             " \"n_head\": 2, \"n_layer\": 1}";

static float uniform(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(*seed >> 40) / (float)(1 << 24) - 0.5f;
}

static void write_file(const struct fixture *fx, const char *name, const char *text)
{
    const int fd = openat(fx->root_fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

/* A link would lead out of the root. */
static void copy_tokenizer(const struct fixture *fx)
{
    static char text[1 << 16];
    FILE *file = fopen(EVQ_TEST_DATA "/tokenizers/gpt2/tokenizer.json", "rb");

    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    assert_int_equal(fclose(file), 0);
    text[bytes] = '\0';
    write_file(fx, "gpt/tokenizer.json", text);
}

/* A GPT-2 in gpt/, with a tokenizer beside it; the first value of its embedding is `first`. */
static void write_gpt(const struct fixture *fx, float first)
{
    static const struct {
        const char *name;
        int32_t rows, columns;
    } shapes[PARTS] = {
        {"wte.weight", VOCABULARY, WIDTH},
        {"wpe.weight", CONTEXT, WIDTH},
        {"h.0.ln_1.weight", 0, WIDTH},
        {"h.0.ln_1.bias", 0, WIDTH},
        {"h.0.attn.c_attn.weight", WIDTH, 3 * WIDTH},
        {"h.0.attn.c_attn.bias", 0, 3 * WIDTH},
        {"h.0.attn.c_proj.weight", WIDTH, WIDTH},
        {"h.0.attn.c_proj.bias", 0, WIDTH},
        {"h.0.ln_2.weight", 0, WIDTH},
        {"h.0.ln_2.bias", 0, WIDTH},
        {"h.0.mlp.c_fc.weight", WIDTH, 4 * WIDTH},
        {"h.0.mlp.c_fc.bias", 0, 4 * WIDTH},
        {"h.0.mlp.c_proj.weight", 4 * WIDTH, WIDTH},
        {"h.0.mlp.c_proj.bias", 0, WIDTH},
        {"ln_f.weight", 0, WIDTH},
        {"ln_f.bias", 0, WIDTH},
    };
    static float values[PARTS][VOCABULARY * WIDTH];
    struct evq_writer_tensor tensors[PARTS];
    struct evq_error err = {0};
    uint64_t seed = 20260401;
    char path[128];

    for (size_t i = 0; i < PARTS; i++) {
        const int64_t rows = shapes[i].rows > 0 ? shapes[i].rows : 1;
        for (int64_t v = 0; v < rows * shapes[i].columns; v++) {
            values[i][v] = 2.0f * uniform(&seed);
        }
        tensors[i] = (struct evq_writer_tensor){.name = shapes[i].name,
                                                .dtype = EVQ_DTYPE_F32,
                                                .rank = shapes[i].rows > 0 ? 2 : 1,
                                                .shape = {rows, shapes[i].columns},
                                                .data = values[i]};
        if (shapes[i].rows == 0) {
            tensors[i].shape[0] = shapes[i].columns;
        }
    }
    values[0][0] = first != 0.0f ? first : values[0][0];
    assert_true(mkdirat(fx->root_fd, "gpt", 0777) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof(path), "%s/gpt/model.safetensors", fx->directory);
    assert_int_equal(evq_safetensors_write(path, tensors, PARTS, NULL, 0, false, &err), EVQ_OK);
    write_file(fx, "gpt/config.json", config);
    copy_tokenizer(fx);
}

static int setup_gpt(void **state)
{
    if (setup(state) != 0) {
        return -1;
    }
    struct fixture *fx = *state;
    write_gpt(fx, 0.0f);
    write_file(
        fx, "data.txt",
        "It was the best of times, it was the worst of times.\n"
        "It was the age of wisdom, it was the age of foolishness, it was the epoch of belief.\n"
        "Short.\n"
        "x\n"
        "It was the season of Light, it was the season of Darkness, it was the spring of hope.\n");
    write_file(
        fx, "items.jsonl",
        "{\"q\": \"one and one is\", \"c\": [\"A\", \"B\", \"C\"], \"label\": 0}\n"
        "{\"q\": \"a question that is a good deal longer than the model can read, so that only\","
        " \"c\": [\"A\", \"two words\", \"B\", \"C\"], \"label\": 2}\n"
        "{\"q\": \"\", \"c\": [\"D\", \"E\"], \"label\": 1}\n"
        "{\"q\": \"what\", \"c\": [\"this\", \"that one\"], \"label\": 1}\n"
        "{\"q\": \"yes or\", \"c\": [\"no\", \"n\"], \"label\": 0}\n");
    return 0;
}

static int teardown_gpt(void **state)
{
    struct fixture *fx = *state;
    static const char *const names[] = {"gpt/model.safetensors", "gpt/config.json",
                                        "gpt/tokenizer.json",    "data.txt",
                                        "items.jsonl",           "data.bin"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlinkat(fx->root_fd, names[i], 0);
    }
    (void)unlinkat(fx->root_fd, "gpt", AT_REMOVEDIR);
    return teardown(state);
}

struct lm { // A task; its pairs live here.
    char text[128], tokenizer[128];
    struct evq_pair data[8], options[6];
    struct evq_task_config task;
};

/* Options are "key", "value", ..., NULL. */
static const struct evq_task_config *lm(const struct fixture *fx, struct lm *lm, const char *type,
                                        const char *file, ...)
{
    const bool documents = strcmp(type, "perplexity") == 0;
    size_t count = 0;
    va_list list;

    *lm =
        (struct lm){.task = {.name = "lm", .type = type, .data = lm->data, .options = lm->options}};
    (void)snprintf(lm->text, sizeof(lm->text), "%s/%s", fx->directory, file);
    lm->data[count++] = (struct evq_pair){"format", documents ? "text" : "jsonl"};
    lm->data[count++] = (struct evq_pair){"text", lm->text};
    lm->data[count++] = (struct evq_pair){"prefix", "360"};
    if (documents) {
        lm->data[count++] = (struct evq_pair){"split", "lines"};
    } else {
        lm->data[count++] = (struct evq_pair){"template", "{q}"};
        lm->data[count++] =
            (struct evq_pair){strcmp(type, "loglikelihood") == 0 ? "target" : "choices",
                              strcmp(type, "loglikelihood") == 0 ? " the end" : "c"};
    }
    lm->task.data_count = count;
    va_start(list, file);
    for (const char *key = va_arg(list, const char *); key != NULL;
         key = va_arg(list, const char *)) {
        lm->options[lm->task.option_count++] = (struct evq_pair){key, va_arg(list, const char *)};
    }
    va_end(list);
    return &lm->task;
}

static enum evq_status run(struct fixture *fx, const struct evq_task_config *task, int32_t shard,
                           int32_t shards, struct evq_error *err)
{
    return eval(fx, fx->root_fd, "gpt", task, 1, shard, shards, err);
}

static void assert_runs(struct fixture *fx, const struct evq_task_config *task)
{
    struct evq_error err = {0};

    if (run(fx, task, -1, 0, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
}

static void assert_fault(struct fixture *fx, const struct evq_task_config *task,
                         enum evq_status status, const char *part)
{
    struct evq_error err = {0};

    assert_int_equal(run(fx, task, -1, 0, &err), status);
    if (strstr(err.message, part) == NULL) {
        print_error("'%s' does not say:\n", err.message);
        fail_msg("%s", part);
    }
}

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

static int32_t rows_allowed;

static enum evq_status narrow_prepare(void *state, const struct evq_plan *plan,
                                      struct evq_error *err)
{
    return plan->rows_max > rows_allowed
               ? evq_error_set(err, EVQ_E_NOMEM, "%d rows", (int)plan->rows_max)
               : evq_backend_cpu.prepare(state, plan, err);
}

static void batches_get_smaller_when_memory_is_short(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow = evq_backend_cpu;
    struct lm made;

    const struct evq_task_config *task =
        lm(fx, &made, "perplexity", "data.txt", "length", "9", NULL);
    assert_runs(fx, task);
    const double whole = metric(fx, "loss");
    assert_string_equal(fx->seen.result->note, "");
    narrow.prepare = narrow_prepare;
    fx->native->backend.ops = &narrow;
    rows_allowed = 20;
    assert_runs(fx, task);
    assert_near(metric(fx, "loss"), whole, 1e-9 * whole);
    assert_non_null(strstr(fx->seen.result->note, "batches of 16 rows instead of"));
    print_message("%s\n", fx->seen.result->note);
    rows_allowed = 8; // A window has 9.
    assert_fault(fx, task, EVQ_E_NOMEM, "rows");
    fx->native->backend.ops = &evq_backend_cpu;
}

static enum evq_status narrow_exec(void *state, const struct evq_batch *batch,
                                   struct evq_row_result *results, struct evq_error *err)
{
    return batch->rows > rows_allowed ? evq_error_set(err, EVQ_E_NOMEM, "%d rows", (int)batch->rows)
                                      : evq_backend_cpu.exec(state, batch, results, err);
}

/* Memory that runs out in the middle: what was done stays, the rest goes on in smaller batches. */
static void batches_get_smaller_while_they_run(void **state)
{
    struct fixture *fx = *state;
    struct evq_backend_ops narrow = evq_backend_cpu;
    struct lm made;

    narrow.exec = narrow_exec;
    for (int i = 0; i < 2; i++) {
        const struct evq_task_config *task =
            i == 0 ? lm(fx, &made, "perplexity", "data.txt", "length", "9", NULL)
                   : lm(fx, &made, "multiple_choice", "items.jsonl", NULL);
        const char *name = i == 0 ? "loss" : "acc";
        fx->native->backend.ops = &evq_backend_cpu;
        assert_runs(fx, task);
        const double whole = metric(fx, name);
        const int64_t n = fx->seen.result->n;
        fx->native->backend.ops = &narrow;
        rows_allowed = 40;
        assert_runs(fx, task);
        assert_near(metric(fx, name), whole, 1e-9 * whole);
        assert_int_equal(fx->seen.result->n, n);
        assert_non_null(strstr(fx->seen.result->note, "batches of 32 rows instead of 2048"));
        rows_allowed = 2;
        assert_fault(fx, task, EVQ_E_NOMEM, "do not fit into memory");
    }
    fx->native->backend.ops = &evq_backend_cpu;
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
    for (int i = 1; i <= 2 * EVQ_WARM_MAX; i++) { // What was used longest ago goes.
        char text[32];
        (void)snprintf(text, sizeof(text), "Words%*d.\n", i, i); // Each of another size.
        write_file(fx, "data.txt", text);
        assert_runs(fx, task);
    }
    for (size_t i = 0; i < EVQ_WARM_MAX; i++) {
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
    assert_runs(fx, &made[1].task);
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
    assert_fault(fx, &made.task, EVQ_E_INVALID, "give data: prefix");
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
                 "compute 'fp8' is not known; known: fp32, bf16");
    (void)unlinkat(fx->root_fd, "gpt/tokenizer.json", 0);
    assert_fault(
        fx, lm(fx, &made, "perplexity", "data.txt", NULL), EVQ_E_NOT_FOUND,
        "text needs a tokenizer, beside the weights or as `data: {tokenizer: PATH}`: tokenizer");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_gpt, teardown_gpt)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(tokens_in_shards_add_up_to_the_whole),
        TEST(perplexity_counts_tokens_words_and_bytes),
        TEST(choices_score_as_they_would_alone),
        TEST(choices_of_one_token_share_their_context),
        TEST(batches_get_smaller_when_memory_is_short),
        TEST(batches_get_smaller_while_they_run),
        TEST(tokens_stay_warm_between_jobs),
        TEST(tasks_may_compute_in_turn_in_fp32_and_bf16),
        TEST(nan_weights_are_flagged),
        TEST(tokens_of_a_file_are_scored),
        TEST(tokens_are_refused_in_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
