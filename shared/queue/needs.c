#include "shared/queue/needs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/byte_size.h"
#include "shared/queue/job_id.h"

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

enum evq_status evq_needs_text(const struct evq_needs *needs, char *out, size_t out_bytes,
                               struct evq_error *err)
{
    const char *labels[EVQ_NEEDS_LABELS_MAX];
    struct evq_buffer text;
    enum evq_status status = EVQ_OK;

    if (needs->label_count > EVQ_NEEDS_LABELS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "needs.labels has %zu entries, allowed %d",
                             needs->label_count, EVQ_NEEDS_LABELS_MAX);
    }
    for (size_t i = 0; i < needs->label_count; i++) {
        if (!evq_job_name_valid(needs->labels[i], EVQ_JOB_NAME_BYTES_MAX)) {
            return evq_error_set(err, EVQ_E_INVALID, "needs.labels entry %zu is not a name", i);
        }
        labels[i] = needs->labels[i];
    }
    qsort(labels, needs->label_count, sizeof labels[0], compare_texts);

    evq_buffer_init(&text, 0);
    if (needs->gpus != 0) {
        evq_buffer_printf(&text, ",gpus=%" PRId32, needs->gpus);
    }
    if (needs->gpu_memory_bytes != 0) {
        evq_buffer_printf(&text, ",gpu_memory=%" PRId64, needs->gpu_memory_bytes);
    }
    for (size_t i = 0; i < needs->label_count; i++) {
        if (i == 0 || strcmp(labels[i], labels[i - 1]) != 0) {
            evq_buffer_printf(&text, "%s%s", i == 0 ? ",labels=" : "+", labels[i]);
        }
    }
    const char *whole = evq_buffer_string(&text);
    if (whole == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "needs");
        // The first comma is dropped, which leaves room for the NUL.
    } else if (text.bytes > out_bytes || out_bytes == 0) {
        status = evq_error_set(err, EVQ_E_LIMIT, "needs take %zu bytes, room for %zu", text.bytes,
                               out_bytes);
    } else {
        whole += whole[0] == ',' ? 1 : 0;
        memcpy(out, whole, strlen(whole) + 1);
    }
    evq_buffer_free(&text);
    return status;
}

static enum evq_status parse_gpus(const char *text, int32_t *ret, struct evq_error *err)
{
    char *end = NULL;
    const bool digits = text[0] >= '0' && text[0] <= '9' && strlen(text) <= 18;
    const long long value = digits ? strtoll(text, &end, 10) : -1;

    if (!digits || *end != '\0' || value > EVQ_NEEDS_GPUS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "needs: gpus is '%.40s', expected a whole number from 0 to %d", text,
                             EVQ_NEEDS_GPUS_MAX);
    }
    *ret = (int32_t)value;
    return EVQ_OK;
}

static enum evq_status parse_labels(char *text, const char **labels, struct evq_needs *needs,
                                    struct evq_error *err)
{
    char *rest = text;
    for (char *label = strsep(&rest, "+"); label != NULL; label = strsep(&rest, "+")) {
        if (needs->label_count >= EVQ_NEEDS_LABELS_MAX ||
            !evq_job_name_valid(label, EVQ_JOB_NAME_BYTES_MAX)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "needs: labels are not 1 to %d names joined by '+'",
                                 EVQ_NEEDS_LABELS_MAX);
        }
        labels[needs->label_count++] = label;
    }
    needs->labels = labels;
    return EVQ_OK;
}

/* Parses text, which it changes. labels has room for EVQ_NEEDS_LABELS_MAX. */
static enum evq_status parse(char *text, const char **labels, struct evq_needs *ret_needs,
                             struct evq_error *err)
{
    struct evq_needs needs = {0};
    enum evq_status status = EVQ_OK;

    if (evq_error_control(text) != 0) { // Shown in a message, it would reach a terminal.
        return evq_error_set(err, EVQ_E_INVALID,
                             "needs hold a control byte, their byte %zu: write them as "
                             "gpus=N,gpu_memory=BYTES,labels=A+B",
                             evq_error_control(text));
    }
    char *rest = text[0] != '\0' ? text : NULL;
    for (char *item = strsep(&rest, ","); item != NULL && status == EVQ_OK;
         item = strsep(&rest, ",")) {
        if (strncmp(item, "gpus=", 5) == 0 && needs.gpus == 0) {
            status = parse_gpus(item + 5, &needs.gpus, err);
        } else if (strncmp(item, "gpu_memory=", 11) == 0 && needs.gpu_memory_bytes == 0) {
            if (!evq_byte_size_parse(item + 11, &needs.gpu_memory_bytes)) {
                status = evq_error_set(err, EVQ_E_INVALID,
                                       "needs: gpu_memory is '%.40s', expected bytes (as 1048576, "
                                       "512MiB or 24GiB)",
                                       item + 11);
            }
        } else if (strncmp(item, "labels=", 7) == 0 && needs.labels == NULL) {
            status = parse_labels(item + 7, labels, &needs, err);
        } else {
            status = evq_error_set(err, EVQ_E_INVALID,
                                   "needs: '%.60s' is not gpus=, gpu_memory= or labels=, each once",
                                   item);
        }
    }
    if (status == EVQ_OK) {
        *ret_needs = needs;
    }
    return status;
}

enum evq_status evq_needs_parse(const char *text, struct evq_arena *arena,
                                struct evq_needs *ret_needs, struct evq_error *err)
{
    char *copy = evq_arena_strdup(arena, text);
    const char **labels = evq_arena_array(arena, EVQ_NEEDS_LABELS_MAX, sizeof *labels);

    if (copy == NULL || labels == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "needs");
    }
    return parse(copy, labels, ret_needs, err);
}

enum evq_status evq_needs_check(const char *text, struct evq_error *err)
{
    const char *labels[EVQ_NEEDS_LABELS_MAX];
    char copy[EVQ_NEEDS_BYTES_MAX];
    struct evq_needs ignored;

    const size_t bytes = strlen(text) + 1;
    if (bytes > sizeof copy) {
        return evq_error_set(err, EVQ_E_INVALID, "needs has %zu bytes, at most %zu", bytes - 1,
                             sizeof copy - 1);
    }
    memcpy(copy, text, bytes);
    return parse(copy, labels, &ignored, err);
}
