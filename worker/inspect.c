#include "worker/inspect.h"

#include <stdio.h>
#include <string.h>

#include "shared/checkpoint/checkpoint.h"
#include "worker/evaluators/checkpoint_location.h"

struct facts {
    const struct evq_checkpoint *checkpoint;
    uint64_t parameters; // Elements of all tensors; views of one storage are counted separately.
    uint64_t bytes;      // Size of the files.
    char fingerprint[33];
    char digest[33]; // "": not requested.
};

static void facts_count(struct facts *facts)
{
    for (size_t i = 0; i < facts->checkpoint->tensor_count; i++) {
        size_t elements = 0;
        if (evq_tensor_elements(&facts->checkpoint->tensors[i], &elements)) {
            facts->parameters += elements;
        }
    }
    for (size_t i = 0; i < facts->checkpoint->file_count; i++) {
        facts->bytes += facts->checkpoint->files[i].bytes;
    }
}

static void shape_print(struct evq_buffer *out, const struct evq_tensor *tensor)
{
    evq_buffer_text(out, "[");
    for (int32_t i = 0; i < tensor->rank; i++) {
        evq_buffer_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)tensor->shape[i]);
    }
    evq_buffer_text(out, "]");
}

static void facts_json(const struct facts *facts, const char *path, struct evq_buffer *out)
{
    const struct evq_checkpoint *checkpoint = facts->checkpoint;

    evq_buffer_text(out, "{\"checkpoint\": ");
    evq_buffer_json_text(out, path);
    evq_buffer_text(out, ", \"format\": ");
    evq_buffer_json_text(out, checkpoint->format);
    evq_buffer_printf(
        out, ", \"complete\": true, \"bytes\": %llu, \"parameters\": %llu, \"fingerprint\": \"%s\"",
        (unsigned long long)facts->bytes, (unsigned long long)facts->parameters,
        facts->fingerprint);
    if (facts->digest[0] != '\0') {
        evq_buffer_printf(out, ", \"digest\": \"%s\"", facts->digest);
    }
    evq_buffer_text(out, ", \"files\": [");
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        evq_buffer_text(out, i > 0 ? ", {\"name\": " : "{\"name\": ");
        evq_buffer_json_text(out, checkpoint->files[i].name);
        evq_buffer_printf(out, ", \"bytes\": %llu}",
                          (unsigned long long)checkpoint->files[i].bytes);
    }
    evq_buffer_text(out, "], \"tensors\": [");
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        evq_buffer_text(out, i > 0 ? ", {\"name\": " : "{\"name\": ");
        evq_buffer_json_text(out, tensor->name);
        evq_buffer_text(out, ", \"dtype\": ");
        evq_buffer_json_text(out, tensor->dtype_name);
        evq_buffer_text(out, ", \"shape\": ");
        shape_print(out, tensor);
        evq_buffer_text(out, "}");
    }
    evq_buffer_text(out, "]}\n");
}

static void facts_table(const struct facts *facts, const char *path, struct evq_buffer *out)
{
    const struct evq_checkpoint *checkpoint = facts->checkpoint;
    char name[512];

    evq_buffer_printf(
        out, "checkpoint   %s\nformat       %s\ncomplete     yes\nfiles        %zu, %llu bytes\n",
        evq_error_escape(path, strlen(path), name, sizeof(name)), checkpoint->format,
        checkpoint->file_count, (unsigned long long)facts->bytes);
    evq_buffer_printf(out, "tensors      %zu\nparameters   %llu\nfingerprint  %s\n",
                      checkpoint->tensor_count, (unsigned long long)facts->parameters,
                      facts->fingerprint);
    if (facts->digest[0] != '\0') {
        evq_buffer_printf(out, "digest       %s\n", facts->digest);
    }
    evq_buffer_text(out, "\n");
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        evq_buffer_printf(out, "%-8s ", tensor->dtype_name);
        evq_buffer_printf(out, "%s  ",
                          evq_error_escape(tensor->name, strlen(tensor->name), name, sizeof(name)));
        shape_print(out, tensor);
        evq_buffer_text(out, "\n");
    }
}

static enum evq_status inspect_print(const struct evq_options *options,
                                     const struct evq_checkpoint_location *place,
                                     const struct evq_checkpoint *checkpoint, struct evq_error *err)
{
    struct facts facts = {.checkpoint = checkpoint};
    struct evq_buffer out;

    enum evq_status status =
        evq_checkpoint_fingerprint(place->root_fd, place->path, facts.fingerprint, NULL, err);
    if (status == EVQ_OK && options->digest) {
        status = evq_checkpoint_digest(checkpoint, facts.digest, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    facts_count(&facts);
    evq_buffer_init(&out, (size_t)1 << 30);
    if (options->json) {
        facts_json(&facts, options->path, &out);
    } else {
        facts_table(&facts, options->path, &out);
    }
    if (out.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "the description of '%s'", options->path);
    } else if (fwrite(out.data, 1, out.bytes, stdout) != out.bytes || fflush(stdout) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "standard output cannot be written");
    }
    evq_buffer_free(&out);
    return status;
}

/* Opens the checkpoint. The base of an adapter must lie in the checkpoint's own folder or where
 * --base says. */
static enum evq_status inspect_open(const struct evq_options *options,
                                    const struct evq_checkpoint_location *place,
                                    struct evq_checkpoint **ret_checkpoint, struct evq_error *err)
{
    struct evq_checkpoint_location base = {.root_fd = -1};
    char path[sizeof(base.root) + sizeof(base.path)] = "";
    enum evq_status status = EVQ_OK;

    if (options->base != NULL) {
        status = evq_checkpoint_location_open(options->base, &base, err);
        (void)snprintf(path, sizeof(path), "%s/%s", strcmp(base.root, "/") == 0 ? "" : base.root,
                       base.path);
    }
    const struct evq_checkpoint_options how = {.key = "",
                                               .base = path,
                                               .adapter = "apply",
                                               .root_fds = &base.root_fd,
                                               .root_count = base.root_fd >= 0};
    if (status == EVQ_OK) {
        status = evq_checkpoint_open(place->root_fd, place->path, &how, ret_checkpoint, err);
    }
    if (status == EVQ_E_NOT_FOUND && options->base == NULL) {
        // The status stays the same.
        (void)evq_error_set(err, status, "%s; name the folder of the base with --base PATH",
                            err->message);
    }
    evq_checkpoint_location_close(&base);
    return status;
}

enum evq_exit evq_inspect_main(const struct evq_options *options)
{
    struct evq_error err;
    struct evq_checkpoint_location place = {.root_fd = -1};
    struct evq_checkpoint *checkpoint = NULL;

    enum evq_status status = evq_checkpoint_location_open(options->path, &place, &err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_check_complete(place.root_fd, place.path, &err);
    }
    if (status == EVQ_OK) {
        status = inspect_open(options, &place, &checkpoint, &err);
    }
    if (status == EVQ_OK) {
        status = inspect_print(options, &place, checkpoint, &err);
    }
    evq_checkpoint_close(checkpoint);
    evq_checkpoint_location_close(&place);
    if (status == EVQ_OK) {
        return EVQ_EXIT_OK;
    }
    (void)fprintf(stderr, "evalq-worker: %s%s\n", err.message,
                  status == EVQ_E_UNSUPPORTED
                      ? "; a command or a Python evaluator can still evaluate it, because it reads "
                        "the file itself (docs/evaluators.md)"
                      : "");
    switch (status) {
    case EVQ_E_GONE:
    case EVQ_E_INCOMPLETE:
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
    case EVQ_E_LIMIT:
    case EVQ_E_INVALID:
    case EVQ_E_CHANGED:
    case EVQ_E_IO: // It concerns a file, because nothing else is contacted.
        return EVQ_EXIT_BAD_INPUT;
    default:
        return evq_status_exit_code(status);
    }
}
