#include "producer/client/pins/pin_releaser.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/checkpoint/json.h"
#include "shared/queue/codec.h"

#define LOOK_EVERY_MS 5000
#define LOOK_SOON_MS  100 // The pause if most of the pins that were checked could be released.
#define LOOK_PINS_MAX 64

struct visit {
    struct evq_pin_releaser *releaser;
    const char *queue;
    const char *run;
};

static void visit_pin(void *context, const struct evq_pin_info *pin)
{
    const struct visit *visit = context;

    if (strcmp(pin->queue, visit->queue) == 0 && strcmp(pin->run, visit->run) == 0) {
        evq_pin_releaser_add(visit->releaser, pin->directory, pin->copied_bytes);
    }
}

void evq_pin_releaser_visit(struct evq_pin_releaser *releaser, const char *output_dir,
                            const char *queue, const char *run)
{
    for (size_t at = 0; at < releaser->output_count; at++) {
        if (strcmp(releaser->outputs[at], output_dir) == 0) {
            return;
        }
    }
    char **outputs =
        realloc(releaser->outputs, (releaser->output_count + 1) * sizeof(releaser->outputs[0]));
    if (outputs == NULL) {
        return; // `evalq gc` releases the others.
    }
    releaser->outputs = outputs;
    outputs[releaser->output_count] = strdup(output_dir);
    if (outputs[releaser->output_count] == NULL) {
        return;
    }
    releaser->output_count++;
    struct visit visit = {.releaser = releaser, .queue = queue, .run = run};
    (void)!evq_pin_list(output_dir, visit_pin, &visit, NULL); // Unreadable: nothing to take over.
}

void evq_pin_releaser_add(struct evq_pin_releaser *releaser, const char *directory,
                          int64_t copied_bytes)
{
    for (size_t at = 0; at < releaser->pin_count; at++) {
        if (strcmp(releaser->pins[at].directory, directory) == 0) {
            return;
        }
    }
    if (releaser->pin_count == releaser->pin_room) {
        size_t room = releaser->pin_room == 0 ? 16 : 2 * releaser->pin_room;
        struct evq_pin_releaser_pin *pins = realloc(releaser->pins, room * sizeof(pins[0]));
        if (pins == NULL) {
            return;
        }
        releaser->pins = pins;
        releaser->pin_room = room;
    }
    char *copy = strdup(directory);
    if (copy == NULL) {
        return;
    }
    releaser->pins[releaser->pin_count++] =
        (struct evq_pin_releaser_pin){.directory = copy, .copied_bytes = copied_bytes};
    releaser->copied_bytes += copied_bytes;
}

/* Keeps the message beside the pin, for the case that Redis loses its data. */
static void message_keep(const char *directory, const struct evq_job *job, const char *sent_as)
{
    struct evq_buffer message;

    evq_buffer_init(&message, EVQ_JOB_BYTES_MAX);
    if (evq_codec_job_encode(job, &message, NULL) == EVQ_OK) {
        // Without the message the pin still keeps the checkpoint, and `evalq scan` may find it.
        (void)!evq_pin_message_keep(directory, sent_as, message.data, message.bytes, NULL);
    }
    evq_buffer_free(&message);
}

void evq_pin_releaser_record(const char *directory, const struct evq_job *job,
                             const struct evq_submitted *sent, const char *epoch)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    evq_job_id(job, id);
    if (sent == NULL || sent->state >= EVQ_JOB_DONE) {
        (void)!evq_pin_note_refused(directory, id,
                                    NULL); // pin_releaser.h says what happens if this fails.
    } else {
        message_keep(directory, job, sent->id);
        (void)!evq_pin_note_sent(directory, id, sent->id, epoch, NULL); // The same.
    }
}

/* Finds the value of key in the object that json is in. Returns false if there is none, or if the
 * text is not JSON. */
static bool json_member(struct evq_json *json, const char *key, struct evq_json_token *ret_value)
{
    struct evq_json_token token;

    while (evq_json_next(json, &token, NULL) == EVQ_OK && token.kind == EVQ_JSON_KEY) {
        bool wanted = strcmp(token.text, key) == 0;
        if (evq_json_next(json, ret_value, NULL) != EVQ_OK) {
            return false;
        }
        if (wanted) {
            return true;
        }
        if (evq_json_skip(json, ret_value, NULL) != EVQ_OK) {
            return false;
        }
    }
    return false;
}

/* Reads state and end from {"job": {"state": ..., "ended": ...}}; other objects of the text have
 * states too. Changes the text. *ret_ended_ms: unix ms; 0: not given. */
static bool json_state(char *text, enum evq_job_state *ret_state, int64_t *ret_ended_ms)
{
    struct evq_json json;
    struct evq_json_token token;
    struct evq_json_token value;
    bool known = false;

    *ret_ended_ms = 0;
    evq_json_init(&json, text, strlen(text));
    if (evq_json_next(&json, &token, NULL) != EVQ_OK || token.kind != EVQ_JSON_OBJECT ||
        !json_member(&json, "job", &token) || token.kind != EVQ_JSON_OBJECT) {
        return false;
    }
    while (evq_json_next(&json, &token, NULL) == EVQ_OK && token.kind == EVQ_JSON_KEY) {
        const bool state = strcmp(token.text, "state") == 0;
        const bool ended = strcmp(token.text, "ended") == 0;
        if (evq_json_next(&json, &value, NULL) != EVQ_OK) {
            return false;
        }
        if (state && value.kind == EVQ_JSON_STRING) {
            if (strcmp(value.text, "bad") == 0) { // Set aside: it can neither run nor be retried.
                *ret_state = EVQ_JOB_CANCELLED;
                known = true;
            } else {
                known = evq_job_state_parse(value.text, ret_state) == EVQ_OK;
            }
        } else if (ended && value.kind == EVQ_JSON_STRING) {
            *ret_ended_ms = strtoll(value.text, NULL, 10);
        } else if (evq_json_skip(&json, &value, NULL) != EVQ_OK) {
            return false;
        }
    }
    return known;
}

/* Sends a job that the queue lost again, with its first message. */
static enum evq_pin_job job_again(struct evq_pin_releaser_ask *ask, const char *job)
{
    struct evq_buffer message;
    struct evq_job *lost = NULL;
    struct evq_submitted again;
    char id[EVQ_JOB_ID_BYTES_MAX];
    enum evq_pin_job state = EVQ_PIN_JOB_LOST;

    evq_buffer_init(&message, EVQ_JOB_BYTES_MAX);
    if (evq_pin_message_read(ask->directory, job, &message, NULL) == EVQ_OK &&
        evq_codec_job_decode(message.data, message.bytes, &lost, NULL) == EVQ_OK &&
        evq_queue_submit(ask->queue, lost, 0, &again, &ask->error) == EVQ_OK) {
        evq_job_id(lost, id);
        // If this cannot be recorded, the next check may send the job again: a duplicate, which the
        // queue recognises.
        (void)!evq_pin_message_keep(ask->directory, again.id, message.data, message.bytes, NULL);
        (void)!evq_pin_note_sent(ask->directory, id, again.id, ask->epoch, NULL);
        ask->sent_again++;
        state = EVQ_PIN_JOB_OPEN;
    }
    evq_job_free(lost);
    evq_buffer_free(&message);
    return state;
}

enum evq_pin_job evq_pin_releaser_job_state(void *context, const char *queue, const char *job,
                                            const char *epoch)
{
    struct evq_pin_releaser_ask *ask = context;
    enum evq_job_state state = EVQ_JOB_QUEUED;
    char *json = NULL;

    if (ask->failed || strcmp(queue, evq_queue_name(ask->queue)) != 0) {
        return EVQ_PIN_JOB_UNKNOWN;
    }
    enum evq_status status = evq_queue_show(ask->queue, job, &json, &ask->error);
    if (status == EVQ_E_NOT_FOUND && epoch[0] != '\0' && strcmp(epoch, ask->epoch) == 0) {
        return EVQ_PIN_JOB_ENDED; // The queue removed its record some time after its end.
    }
    if (status == EVQ_E_NOT_FOUND) {
        return ask->directory != NULL ? job_again(ask, job) : EVQ_PIN_JOB_LOST;
    }
    if (status != EVQ_OK) {
        ask->failed = true;
        return EVQ_PIN_JOB_UNKNOWN;
    }
    int64_t ended_ms = 0;
    bool known = json_state(json, &state, &ended_ms);
    free(json);
    if (!known) {
        return EVQ_PIN_JOB_UNKNOWN;
    }
    if (state == EVQ_JOB_DEAD && ask->keep_dead && ended_ms > 0 &&
        ask->now_ms - ended_ms < EVQ_PIN_RELEASER_DEAD_MS) {
        ask->dead_ms = ended_ms > ask->dead_ms ? ended_ms : ask->dead_ms;
        return EVQ_PIN_JOB_OPEN; // It can be retried.
    }
    return state == EVQ_JOB_QUEUED || state == EVQ_JOB_DELAYED || state == EVQ_JOB_RUNNING
               ? EVQ_PIN_JOB_OPEN
               : EVQ_PIN_JOB_ENDED;
}

/* Checks one pin. Returns true if it was released; the last pin of the list then has its place. */
static bool release_if_ended(struct evq_pin_releaser *releaser, size_t at,
                             struct evq_pin_releaser_ask *ask)
{
    struct evq_pin_releaser_pin *pin = &releaser->pins[at];
    bool released = false;

    ask->directory = pin->directory;
    ask->dead_ms = 0;
    // If it cannot be removed now, the next check tries again.
    (void)!evq_pin_release_if_ended(pin->directory, evq_pin_releaser_job_state, ask, -1, &released,
                                    NULL);
    pin->dead_ms = ask->dead_ms;
    if (released) {
        releaser->copied_bytes -= pin->copied_bytes;
        free(pin->directory);
        *pin = releaser->pins[--releaser->pin_count];
    }
    return released;
}

/* Releases the oldest pins that are kept for a retry until `most` are left. */
static bool dead_trim(struct evq_pin_releaser *releaser, struct evq_pin_releaser_ask *ask,
                      size_t most)
{
    bool any = false;

    ask->keep_dead = false;
    for (;;) {
        size_t count = 0;
        size_t oldest = 0;
        for (size_t at = 0; at < releaser->pin_count; at++) {
            const int64_t dead_ms = releaser->pins[at].dead_ms;
            if (dead_ms > 0 && (count++ == 0 || dead_ms < releaser->pins[oldest].dead_ms)) {
                oldest = at;
            }
        }
        if (count <= most || ask->failed) {
            return any;
        }
        any = release_if_ended(releaser, oldest, ask) || any;
    }
}

bool evq_pin_releaser_spare(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                            const struct evq_queue_info *info)
{
    struct evq_pin_releaser_ask ask = {
        .queue = queue, .epoch = info->epoch, .now_ms = info->now_ms};

    return dead_trim(releaser, &ask, 0);
}

size_t evq_pin_releaser_trim_dead(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                                  const struct evq_queue_info *info)
{
    struct evq_pin_releaser_ask ask = {
        .queue = queue, .epoch = info->epoch, .now_ms = info->now_ms, .keep_dead = true};
    const size_t before = releaser->pin_count;

    for (size_t at = 0; at < releaser->pin_count && !ask.failed;) {
        at +=
            !release_if_ended(releaser, at, &ask); // Another pin takes the place of a released one.
    }
    (void)dead_trim(releaser, &ask, EVQ_PIN_RELEASER_DEAD_PINS_MAX);
    return before - releaser->pin_count;
}

bool evq_pin_releaser_check(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                            struct evq_queue_info *info, struct evq_error *err)
{
    struct evq_pin_releaser_ask ask = {.queue = queue, .epoch = info->epoch, .keep_dead = true};
    size_t looks = releaser->pin_count < LOOK_PINS_MAX ? releaser->pin_count : LOOK_PINS_MAX;
    size_t released = 0;

    ask.failed = evq_queue_info(queue, info, &ask.error) != EVQ_OK;
    ask.now_ms = info->now_ms;
    for (size_t look = 0; look < looks && releaser->pin_count > 0 && !ask.failed; look++) {
        size_t at = releaser->next % releaser->pin_count;
        const bool gone = release_if_ended(releaser, at, &ask);
        releaser->next = gone ? at : at + 1;
        released += gone;
    }
    (void)dead_trim(releaser, &ask, EVQ_PIN_RELEASER_DEAD_PINS_MAX);
    const bool soon = released > LOOK_PINS_MAX / 2;
    releaser->due_ms = evq_clock_mono_ms() + (soon ? LOOK_SOON_MS : LOOK_EVERY_MS);
    releaser->sent_again += ask.sent_again;
    if (ask.failed && err != NULL) {
        *err = ask.error;
    }
    return !ask.failed;
}

void evq_pin_releaser_free(struct evq_pin_releaser *releaser)
{
    for (size_t at = 0; at < releaser->pin_count; at++) {
        free(releaser->pins[at].directory);
    }
    for (size_t at = 0; at < releaser->output_count; at++) {
        evq_pin_tidy(releaser->outputs[at]);
        free(releaser->outputs[at]);
    }
    free(releaser->pins);
    free(releaser->outputs);
    memset(releaser, 0, sizeof(*releaser));
}
