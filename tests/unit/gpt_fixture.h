/*
 * A random GPT-2 with its tokenizer, and tasks over a little text, for the native evaluator.
 */
#ifndef EVQ_TESTS_UNIT_GPT_FIXTURE_H
#define EVQ_TESTS_UNIT_GPT_FIXTURE_H

#include "native_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/fixture/random.h"
#include "worker/evaluators/native/native_run.h"

#define VOCABULARY 370
#define WIDTH      16
#define CONTEXT    32
#define PARTS      16

static const char gpt_config[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\","
    " \"vocab_size\": 370, \"n_positions\": 32, \"n_embd\": 16,"
    " \"n_head\": 2, \"n_layer\": 1}";

static inline void write_file(const struct fixture *fx, const char *name, const char *text)
{
    const int fd = openat(fx->root_fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(close(fd), 0);
}

/* A link would lead out of the root. */
static inline void copy_tokenizer(const struct fixture *fx)
{
    static char text[1 << 16];
    FILE *file = fopen(EVQ_TEST_DATA "/tokenizers/gpt2/tokenizer.json", "rb");

    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    assert_int_equal(fclose(file), 0);
    text[bytes] = '\0';
    write_file(fx, "gpt/tokenizer.json", text);
}

/* A GPT-2 in gpt/, with a tokenizer beside it; the first value of its embedding is `first`. more: a
 * tensor that the model does not use; NULL: none. */
static inline void write_gpt_with(const struct fixture *fx, float first,
                                  const struct fixture_tensor *more)
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
    struct fixture_tensor tensors[PARTS + 1];
    uint64_t seed = 20260401;
    char path[128];

    for (size_t i = 0; i < PARTS; i++) {
        const int64_t rows = shapes[i].rows > 0 ? shapes[i].rows : 1;
        for (int64_t v = 0; v < rows * shapes[i].columns; v++) {
            values[i][v] = fixture_random_float(&seed);
        }
        tensors[i] = (struct fixture_tensor){.name = shapes[i].name,
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
    if (more != NULL) {
        tensors[PARTS] = *more;
    }
    fixture_safetensors(path, tensors, PARTS + (more != NULL));
    write_file(fx, "gpt/config.json", gpt_config);
    copy_tokenizer(fx);
}

static inline void write_gpt(const struct fixture *fx, float first)
{
    write_gpt_with(fx, first, NULL);
}

static inline int setup_gpt(void **state)
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

static inline int teardown_gpt(void **state)
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
static inline const struct evq_task_config *lm(const struct fixture *fx, struct lm *lm,
                                               const char *type, const char *file, ...)
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

static inline enum evq_status run(struct fixture *fx, const struct evq_task_config *task,
                                  int32_t shard, int32_t shards, struct evq_error *err)
{
    return eval(fx, fx->root_fd, "gpt", task, 1, shard, shards, err);
}

static inline void assert_runs(struct fixture *fx, const struct evq_task_config *task)
{
    struct evq_error err = {0};

    if (run(fx, task, -1, 0, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
}

static inline void assert_fault(struct fixture *fx, const struct evq_task_config *task,
                                enum evq_status status, const char *part)
{
    struct evq_error err = {0};

    assert_int_equal(run(fx, task, -1, 0, &err), status);
    if (strstr(err.message, part) == NULL) {
        print_error("'%s' does not say:\n", err.message);
        fail_msg("%s", part);
    }
}

#endif
