/*
 * lm_scores CHECKPOINT TOKENS [--bf16] [--time=THREADS] [KEY=VALUE ...]: loads a language model
 * with evalq's own reader, models, loader and CPU kernels, and prints as JSON how likely each token
 * of each sequence is after those before it. TOKENS: a file of lines, each the ids of one sequence.
 * KEY=VALUE: model options, after --bf16 where it is to compute so. --time: computes twice with so
 * many threads, and prints the seconds of the second time, by the wall and by the processor. Exit
 * status 1 with the sentence on stderr where something is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker/loader/loader.h"
#include "worker/models/model.h"

#define OPTIONS_MAX 32

struct text { // Sequences packed one after another, each token but the first of each scored.
    int32_t *tokens, *starts, *score_rows, *score_targets;
    int32_t rows, sequences, scores, longest;
};

static void *grown(void *array, size_t count, size_t item_bytes)
{
    void *out = realloc(array, (count + 1) * item_bytes);

    if (out == NULL) {
        abort();
    }
    return out;
}

static void add_token(struct text *text, int32_t token)
{
    text->tokens = grown(text->tokens, (size_t)text->rows, sizeof(int32_t));
    text->tokens[text->rows++] = token;
}

static void end_sequence(struct text *text)
{
    const int32_t first = text->starts[text->sequences];
    const int32_t length = text->rows - first;

    if (length == 0) {
        return;
    }
    for (int32_t i = first; i + 1 < text->rows; i++) {
        text->score_rows = grown(text->score_rows, (size_t)text->scores, sizeof(int32_t));
        text->score_targets = grown(text->score_targets, (size_t)text->scores, sizeof(int32_t));
        text->score_rows[text->scores] = i;
        text->score_targets[text->scores++] = text->tokens[i + 1];
    }
    text->longest = length > text->longest ? length : text->longest;
    text->starts = grown(text->starts, (size_t)text->sequences + 1, sizeof(int32_t));
    text->starts[++text->sequences] = text->rows;
}

static bool read_text(const char *path, struct text *text)
{
    char *line = NULL;
    size_t capacity = 0;
    FILE *file = fopen(path, "r");

    if (file == NULL) {
        (void)fprintf(stderr, "'%s': %s\n", path, strerror(errno));
        return false;
    }
    text->starts = grown(NULL, 1, sizeof(int32_t));
    text->starts[0] = 0;
    while (getline(&line, &capacity, file) > 0) {
        char *end = NULL;
        for (char *at = line;; at = end) {
            const long token = strtol(at, &end, 10);
            if (end == at) {
                break;
            }
            add_token(text, (int32_t)token);
        }
        end_sequence(text);
    }
    free(line);
    (void)fclose(file); // Opened for reading.
    return text->scores > 0;
}

static void text_free(struct text *text)
{
    free(text->tokens);
    free(text->starts);
    free(text->score_rows);
    free(text->score_targets);
}

static void print_scores(const struct text *text, const struct evq_model *model,
                         const struct evq_loaded *loaded, const struct evq_row_result *results)
{
    double total = 0;

    (void)printf("{\"family\": \"%s\", \"digest\": \"%s\", \"tied_differ\": %s, \"logprobs\": [",
                 model->family, loaded->digest, loaded->tied_differ ? "true" : "false");
    for (int32_t i = 0, sequence = 0; i < text->scores; i++) {
        const bool first = i == 0 || text->score_rows[i] >= text->starts[sequence + 1];
        if (first) {
            (void)printf("%s[", i == 0 ? "" : "], ");
            while (text->score_rows[i] >= text->starts[sequence + 1]) {
                sequence++;
            }
        }
        (void)printf("%s%.17g", first ? "" : ", ", -results[i].loss);
        total += results[i].loss;
    }
    (void)printf("]], \"correct\": [");
    for (int32_t i = 0; i < text->scores; i++) {
        (void)printf("%s%d", i > 0 ? ", " : "", results[i].correct ? 1 : 0);
    }
    (void)printf("], \"nll\": %.17g}\n", total / text->scores);
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Computes once more, and prints what the time was. */
static enum evq_status time_again(void *state, const struct evq_batch *batch,
                                  struct evq_row_result *results, struct evq_error *err)
{
    const double wall = seconds_of(CLOCK_MONOTONIC);
    const double processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID);

    const enum evq_status status = evq_backend_cpu.exec(state, batch, results, err);
    if (status == EVQ_OK) {
        (void)printf("{\"seconds\": %.6f, \"processor_seconds\": %.6f}\n",
                     seconds_of(CLOCK_MONOTONIC) - wall,
                     seconds_of(CLOCK_PROCESS_CPUTIME_ID) - processor);
    }
    return status;
}

/* threads: -1: without a second time. */
static enum evq_status score(const struct evq_model_request *request, const struct text *text,
                             enum evq_compute compute, int32_t threads, struct evq_error *err)
{
    const struct evq_backend_ops *backend = &evq_backend_cpu;
    const struct evq_backend_config config = {.threads = threads > 0 ? threads : 0};
    struct evq_row_result *results = calloc((size_t)text->scores, sizeof(*results));
    struct evq_model *model = NULL;
    void *state = NULL;
    struct evq_loader *loader = NULL;
    struct evq_loaded loaded = {0};
    const struct evq_batch batch = {.rows = text->rows,
                                    .tokens = text->tokens,
                                    .starts = text->starts,
                                    .sequences = text->sequences,
                                    .score_rows = text->score_rows,
                                    .score_targets = text->score_targets,
                                    .scores = text->scores};

    enum evq_status status = evq_model_build(request, &model, err);
    if (status == EVQ_OK) {
        status = backend->open(&config, &state, err);
    }
    if (status == EVQ_OK) {
        model->plan.compute = compute;
        status = backend->prepare(state, &model->plan, err);
    }
    if (status == EVQ_OK) {
        status = evq_loader_new(backend, state, 0, &loader, err);
    }
    if (status == EVQ_OK) {
        status = evq_loader_fill(loader, request->checkpoint, model, &loaded, err);
    }
    if (status == EVQ_OK) {
        status = backend->exec(state, &batch, results, err);
    }
    if (status == EVQ_OK && threads >= 0) {
        status = time_again(state, &batch, results, err);
    }
    if (status == EVQ_OK) {
        print_scores(text, model, &loaded, results);
    }
    evq_loader_free(loader);
    backend->close(state);
    evq_model_free(model);
    free(results);
    return status;
}

static bool read_options(int count, char **words, struct evq_pair *pairs)
{
    for (int i = 0; i < count; i++) {
        char *equals = strchr(words[i], '=');
        if (equals == NULL || count > OPTIONS_MAX) {
            return false;
        }
        *equals = '\0';
        pairs[i] = (struct evq_pair){.key = words[i], .value = equals + 1};
    }
    return true;
}

int main(int argc, char **argv)
{
    struct evq_pair pairs[OPTIONS_MAX];
    struct evq_checkpoint *checkpoint = NULL;
    struct text text = {0};
    struct evq_error err = {.message = "bad usage"};
    enum evq_compute compute = EVQ_COMPUTE_F32;
    enum evq_status status = EVQ_E_INVALID;
    int32_t threads = -1;

    if (argc > 3 && strcmp(argv[3], "--bf16") == 0) {
        compute = EVQ_COMPUTE_BF16;
        memmove(argv + 3, argv + 4, (size_t)(argc-- - 4) * sizeof(*argv));
    }
    if (argc > 3 && strncmp(argv[3], "--time=", 7) == 0) {
        threads = (int32_t)strtol(argv[3] + 7, NULL, 10);
        memmove(argv + 3, argv + 4, (size_t)(argc-- - 4) * sizeof(*argv));
    }
    if (argc < 3 || !read_options(argc - 3, argv + 3, pairs) || !read_text(argv[2], &text)) {
        (void)fprintf(
            stderr,
            "usage: lm_scores CHECKPOINT TOKENS [--bf16] [--time=THREADS] [KEY=VALUE ...]\n");
        return 2;
    }
    const struct evq_task_config task = {
        .name = "scores", .model = pairs, .model_count = (size_t)argc - 3};
    const struct evq_checkpoint_options options = {
        .key = evq_pair_get(pairs, (size_t)argc - 3, "key", ""),
        .base = evq_pair_get(pairs, (size_t)argc - 3, "base", ""),
        .adapter = evq_pair_get(pairs, (size_t)argc - 3, "adapter", "")};
    char *slash = strrchr(argv[1], '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    const int root = open(slash == NULL ? "." : argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root >= 0) {
        status = evq_model_check(&task, &err);
    }
    if (root >= 0 && status == EVQ_OK) {
        status = evq_checkpoint_open(root, slash == NULL ? argv[1] : slash + 1, &options,
                                     &checkpoint, &err);
    }
    if (status == EVQ_OK) {
        const struct evq_model_request request = {.checkpoint = checkpoint,
                                                  .task = &task,
                                                  .head = {.kind = EVQ_OP_SCORE},
                                                  .rows_max = text.rows,
                                                  .length_max = text.longest};
        status = score(&request, &text, compute, threads, &err);
    }
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "%s: %s\n", evq_status_name(status), err.message);
    }
    evq_checkpoint_close(checkpoint);
    if (root >= 0) {
        (void)close(root); // Opened for reading.
    }
    text_free(&text);
    return status == EVQ_OK ? 0 : 1;
}
