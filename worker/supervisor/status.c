/* Writes the state of this worker as the JSON that `evalq status` and the page show. */
#include <string.h>
#include <unistd.h>

#include "worker/supervisor/supervisor.h"

#define JSON_BYTES_MAX 8192

static void number_put(struct evq_buffer *out, const char *name, int64_t value)
{
    if (value >= 0) {
        evq_buffer_printf(out, ", \"%s\": %lld", name, (long long)value);
    }
}

/* Adds the present readings of the slot's GPUs, if NVML knows them. */
static void readings_put(const struct evq_supervisor *supervisor, const struct evq_slot *slot,
                         struct evq_buffer *out)
{
    char devices[EVQ_DEVICES_TEXT];
    struct evq_nvml_reading reading;
    char *rest = NULL;
    bool any = false;

    memcpy(devices, slot->devices, sizeof(devices));
    for (const char *id = strtok_r(devices, ",", &rest); id != NULL;
         id = strtok_r(NULL, ",", &rest)) {
        if (evq_gpu_monitor_read(supervisor->gpu_monitor, id, &reading)) {
            evq_buffer_text(out, any ? ", {\"gpu\": " : ", \"readings\": [{\"gpu\": ");
            evq_buffer_json_text(out, id);
            number_put(out, "busy_percent", reading.busy_percent);
            number_put(out, "memory_used_bytes", reading.memory_used_bytes);
            number_put(out, "memory_bytes", reading.memory_bytes);
            number_put(out, "temperature_c", reading.temperature_c);
            evq_buffer_text(out, "}");
            any = true;
        }
    }
    evq_buffer_text(out, any ? "]" : "");
}

static void slots_put(const struct evq_supervisor *supervisor, uint32_t shown,
                      struct evq_buffer *out)
{
    evq_buffer_printf(out, ", \"slot_count\": %u, \"slots\": [", supervisor->slot_count);
    for (uint32_t i = 0; i < shown; i++) {
        const struct evq_slot *slot = &supervisor->slots[i];
        evq_buffer_printf(out, "%s{\"number\": %u, \"devices\": ", i > 0 ? ", " : "", slot->number);
        evq_buffer_json_text(out, slot->devices);
        evq_buffer_printf(out, ", \"gpus\": %d, \"gpu_memory_bytes\": %lld", (int)slot->gpus,
                          (long long)slot->memory_bytes);
        evq_buffer_printf(out, ", \"state\": \"%s\", \"since\": %lld, \"job\": ",
                          evq_slot_state_name(slot->state), (long long)slot->since_unix_ms);
        evq_buffer_json_text(out, slot->lease != NULL ? slot->lease->claim->id : "");
        readings_put(supervisor, slot, out);
        if (evq_slot_waits_for_gpus(slot)) {
            evq_buffer_text(out, ", \"waits\": true");
        }
        if (slot->evaluators[0] != '\0') {
            evq_buffer_text(out, ", \"evaluators\": ");
            evq_buffer_json_text(out, slot->evaluators);
        }
        if (slot->note[0] != '\0') {
            evq_buffer_text(out, ", \"note\": ");
            evq_buffer_json_text(out, slot->note);
        }
        evq_buffer_text(out, "}");
    }
    evq_buffer_text(out, "]");
}

/* The first cause that has a word in `evalq status`, or NULL. */
static const char *problem_text(const struct evq_supervisor *supervisor)
{
    enum evq_cause cause = EVQ_CAUSE_NONE;

    if (supervisor->sick) {
        cause = EVQ_CAUSE_JOBS_CRASH;
    } else if (evq_disk_pause_any(supervisor)) {
        cause = EVQ_CAUSE_DISK_FULL;
    }
    return evq_cause_rule(cause)->status;
}

static void json_put(const struct evq_supervisor *supervisor, uint32_t slots_shown,
                     struct evq_buffer *out)
{
    const struct evq_config *config = supervisor->config;
    const char *comma = "";

    evq_buffer_text(out, "{\"host\": ");
    evq_buffer_json_text(out, supervisor->host);
    evq_buffer_printf(
        out, ", \"pid\": %ld, \"version\": \"%s\", \"started_ms\": %lld, \"backend\": \"%s\"",
        (long)getpid(), EVQ_VERSION, (long long)supervisor->started_unix_ms,
        supervisor->slots[0].gpus > 0 ? "cuda" : "cpu");
    evq_buffer_printf(out, ", \"sick\": %s, \"draining\": %s", supervisor->sick ? "true" : "false",
                      supervisor->draining ? "true" : "false");
    const char *problem = problem_text(supervisor);
    if (problem != NULL) {
        evq_buffer_text(out, ", \"problem\": ");
        evq_buffer_json_text(out, problem);
    }
    if (supervisor->gpus_seen > 0) {
        evq_buffer_printf(out, ", \"gpus_seen\": %u, \"gpus_taken\": %u", supervisor->gpus_seen,
                          supervisor->gpus_taken);
    }
    if (supervisor->gpus.boot[0] != '\0') {
        evq_buffer_text(out, ", \"machine\": ");
        evq_buffer_json_text(out, supervisor->gpus.boot);
    }
    evq_buffer_text(out, ", \"suites\": [");
    for (size_t i = 0; i < config->suite_count; i++) {
        if (supervisor->registry.suites[i]) {
            evq_buffer_text(out, comma);
            evq_buffer_json_text(out, config->suites[i].name);
            comma = ", ";
        }
    }
    evq_buffer_text(out, "], \"labels\": [");
    for (size_t i = 0; i < config->worker.label_count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_buffer_json_text(out, config->worker.labels[i]);
    }
    evq_buffer_text(out, "]");
    slots_put(supervisor, slots_shown, out);
    evq_buffer_text(out, "}");
}

void evq_worker_status_json(const struct evq_supervisor *supervisor, struct evq_buffer *out)
{
    // If a machine has very many slots, only as many as fit are shown.
    for (uint32_t shown = supervisor->slot_count;; shown /= 2) {
        evq_buffer_clear(out);
        json_put(supervisor, shown, out);
        if (out->bytes <= JSON_BYTES_MAX || shown == 0) {
            break;
        }
    }
    if (out->bytes > JSON_BYTES_MAX) {
        // If the names alone are too long, an empty status is better than no heartbeat.
        evq_buffer_clear(out);
        evq_buffer_text(out, "{}");
    }
}
