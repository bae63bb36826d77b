#include "producer/gateway/metrics/metrics.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "producer/gateway/metrics/exposition.h"
#include "shared/base/json_memory.h"

#define LABELS_MAX EVQ_EXPOSITION_LABELS_MAX

struct page {
    struct evq_exposition to;
    struct evq_metrics_registry *registry;
    const json_t *stats;
};

static void family(struct page *page, const char *name, const char *type, const char *help)
{
    evq_exposition_family(&page->to, name, type, help);
}

static void sample(const struct page *page, const struct evq_label *labels, double value)
{
    evq_exposition_sample(&page->to, "", labels, value);
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static double truth_of(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name)) ? 1 : 0;
}

static void jobs_put(struct page *page)
{
    static const char *const open[] = {"queued", "delayed", "running"};
    static const char *const ended[] = {"done", "dead", "skipped", "cancelled"};
    const json_t *states = json_object_get(page->stats, "states");

    family(page, "evalq_jobs", "gauge", "Unfinished jobs by state.");
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
        sample(page, (struct evq_label[LABELS_MAX]){{"state", open[i]}},
               number_of(states, open[i]));
    }
    family(page, "evalq_jobs_kept", "gauge", "Ended jobs whose records are still kept, by state.");
    for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]); i++) {
        sample(page, (struct evq_label[LABELS_MAX]){{"state", ended[i]}},
               number_of(states, ended[i]));
    }
    family(page, "evalq_oldest_waiting_seconds", "gauge",
           "How long the oldest queued job waits; 0: none does.");
    sample(page, NULL, fmax(number_of(page->stats, "oldest_waiting_ms"), 0) / 1e3);
}

/* Whether no live worker can run the class. A class that waits because somebody paused or capped it
 * does not count. */
static bool is_unserved(const json_t *class)
{
    const char *why = text_of(class, "why");

    return why[0] != '\0' && strncmp(why, "paused (", 8) != 0 &&
           strcmp(why, "cap of suite reached") != 0;
}

static void classes_put(struct page *page)
{
    static const struct {
        const char *family, *help, *field;
    } counts[] = {
        {"evalq_class_queued", "Queued jobs of a class: a suite and its needs.", "queued"},
        {"evalq_class_running", "Attempts that run of a class.", "running"},
    };
    const json_t *classes = json_object_get(page->stats, "classes");
    const json_t *class;
    size_t i;

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        family(page, counts[c].family, "gauge", counts[c].help);
        json_array_foreach(classes, i, class)
        {
            sample(page,
                   (struct evq_label[LABELS_MAX]){{"suite", text_of(class, "suite")},
                                                  {"needs", text_of(class, "needs")}},
                   number_of(class, counts[c].field));
        }
    }
    family(page, "evalq_class_unserved", "gauge",
           "Queued jobs of a class that no live worker can run.");
    json_array_foreach(classes, i, class)
    {
        evq_metrics_registry_add_suite(page->registry, text_of(class, "suite"));
        sample(page,
               (struct evq_label[LABELS_MAX]){{"suite", text_of(class, "suite")},
                                              {"needs", text_of(class, "needs")}},
               is_unserved(class) ? number_of(class, "queued") : 0);
    }
}

static void totals_put(struct page *page)
{
    static const struct {
        const char *family, *help, *field;
    } totals[] = {
        {"evalq_jobs_submitted_total", "Jobs ever submitted.", "submitted"},
        {"evalq_results_published_total", "Results of tasks ever published.", "published"},
        {"evalq_leases_reclaimed_total", "Attempts taken back because their worker fell silent.",
         "reclaimed"},
        {"evalq_leases_regained_total", "Attempts whose worker came back before another took them.",
         "regained"},
        {"evalq_records_bad_total", "Records set aside because they could not be read.", "bad"},
        {"evalq_losses_total", "Ranges of results that some sink lost.", "losses"},
    };
    const json_t *values = json_object_get(page->stats, "totals");

    for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
        family(page, totals[i].family, "counter", totals[i].help);
        sample(page, NULL, number_of(values, totals[i].field));
    }
    family(page, "evalq_queue_paused", "gauge", "1 while the whole queue is paused.");
    sample(page, NULL, truth_of(json_object_get(page->stats, "paused"), "queue"));
    family(page, "evalq_results_kept", "gauge", "Entries of the stream of results.");
    sample(page, NULL, number_of(json_object_get(page->stats, "results"), "length"));
}

static size_t busy_slots(const json_t *info)
{
    const json_t *slot;
    size_t i, count = 0;

    json_array_foreach(json_object_get(info, "slots"), i, slot)
    {
        count += strcmp(text_of(slot, "state"), "running") == 0 ? 1 : 0;
    }
    return count;
}

static void worker_states_put(struct page *page, const json_t *workers)
{
    static const char *const states[] = {"alive", "stale", "dead"};
    const json_t *worker;
    size_t i;

    family(page, "evalq_workers", "gauge", "Workers that the queue knows, by state.");
    for (size_t s = 0; s < sizeof(states) / sizeof(states[0]); s++) {
        size_t count = 0;
        json_array_foreach(workers, i, worker)
        {
            count += strcmp(text_of(worker, "state"), states[s]) == 0 ? 1 : 0;
        }
        sample(page, (struct evq_label[LABELS_MAX]){{"state", states[s]}}, (double)count);
    }
}

static void workers_put(struct page *page)
{
    const json_t *workers = json_object_get(page->stats, "workers");
    const json_t *worker;
    size_t i;

    worker_states_put(page, workers);
    family(page, "evalq_worker_heartbeat_age_seconds", "gauge", "Since the worker was heard of.");
    json_array_foreach(workers, i, worker)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"worker", text_of(worker, "id")}},
               number_of(worker, "heartbeat_age_ms") / 1e3);
    }
    family(page, "evalq_worker_slots", "gauge", "Slots of the worker.");
    json_array_foreach(workers, i, worker)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"worker", text_of(worker, "id")}},
               number_of(json_object_get(worker, "info"), "slot_count"));
    }
    family(page, "evalq_worker_slots_running", "gauge", "Slots of the worker that evaluate.");
    json_array_foreach(workers, i, worker)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"worker", text_of(worker, "id")}},
               (double)busy_slots(json_object_get(worker, "info")));
    }
    family(page, "evalq_worker_sick", "gauge",
           "1: jobs crash on the worker, and it claims no more.");
    json_array_foreach(workers, i, worker)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"worker", text_of(worker, "id")}},
               truth_of(json_object_get(worker, "info"), "sick"));
    }
}

/* One family over the GPUs that NVML told of. */
static void gpus_put(struct page *page, const char *field, double scale)
{
    const json_t *worker, *slot, *gpu;
    size_t i, j, k;

    json_array_foreach(json_object_get(page->stats, "workers"), i, worker)
    {
        json_array_foreach(json_object_get(json_object_get(worker, "info"), "slots"), j, slot)
        {
            json_array_foreach(json_object_get(slot, "readings"), k, gpu)
            {
                const double value = number_of(gpu, field);
                if (!isnan(value)) {
                    sample(page,
                           (struct evq_label[LABELS_MAX]){{"worker", text_of(worker, "id")},
                                                          {"gpu", text_of(gpu, "gpu")}},
                           value * scale);
                }
            }
        }
    }
}

static void sinks_put(struct page *page)
{
    const json_t *sinks = json_object_get(page->stats, "sinks");
    const json_t *sink;
    size_t i;

    family(page, "evalq_sink_lag", "gauge", "Results that the sink has not been given yet.");
    json_array_foreach(sinks, i, sink)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"sink", text_of(sink, "name")}},
               number_of(sink, "lag"));
    }
    family(page, "evalq_sink_pending", "gauge", "Results given to the sink and not acknowledged.");
    json_array_foreach(sinks, i, sink)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"sink", text_of(sink, "name")}},
               number_of(sink, "pending"));
    }
    family(page, "evalq_sink_failing", "gauge", "1 while the sink's last attempt failed.");
    json_array_foreach(sinks, i, sink)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"sink", text_of(sink, "name")}},
               text_of(sink, "error")[0] != '\0' ? 1 : 0);
    }
    family(page, "evalq_sink_seen_age_seconds", "gauge", "Since a logger asked for the sink.");
    json_array_foreach(sinks, i, sink)
    {
        sample(page, (struct evq_label[LABELS_MAX]){{"sink", text_of(sink, "name")}},
               number_of(sink, "seen_age_ms") / 1e3);
    }
}

static void stats_put(struct page *page)
{
    jobs_put(page);
    classes_put(page);
    totals_put(page);
    workers_put(page);
    family(page, "evalq_gpu_busy_ratio", "gauge",
           "Share of the last second in which the GPU worked.");
    gpus_put(page, "busy_percent", 0.01);
    family(page, "evalq_gpu_memory_used_bytes", "gauge", "Memory of the GPU that is taken.");
    gpus_put(page, "memory_used_bytes", 1);
    family(page, "evalq_gpu_memory_bytes", "gauge", "Memory of the GPU.");
    gpus_put(page, "memory_bytes", 1);
    family(page, "evalq_gpu_temperature_celsius", "gauge", "Temperature of the GPU.");
    gpus_put(page, "temperature_c", 1);
    sinks_put(page);
}

enum evq_status evq_metrics_write(const char *queue, const char *stats, double rtt_seconds,
                                  struct evq_metrics_registry *registry, struct evq_buffer *out,
                                  struct evq_error *err)
{
    json_error_t where;
    struct page page = {.to = {.out = out, .queue = queue}, .registry = registry};
    json_t *root = stats != NULL ? json_loads(stats, 0, &where) : NULL;

    if (evq_json_memory_failed()) {
        json_decref(root);
        return evq_error_set(err, EVQ_E_NOMEM, "stats of the queue");
    }
    if (stats != NULL && !json_is_object(root)) {
        json_decref(root);
        return evq_error_set(err, EVQ_E_INVALID, "stats of the queue are not a JSON object");
    }
    family(&page, "evalq_build_info", "gauge", "1; the version of the gateway.");
    sample(&page, (struct evq_label[LABELS_MAX]){{"version", EVQ_VERSION}}, 1);
    family(&page, "evalq_redis_up", "gauge", "1: Redis answered.");
    sample(&page, NULL, root != NULL ? 1 : 0);
    if (root != NULL) {
        family(&page, "evalq_redis_stats_seconds", "gauge",
               "How long Redis took to tell all this.");
        sample(&page, NULL, rtt_seconds);
        page.stats = root;
        stats_put(&page);
    }
    json_decref(root);
    return out->failed ? evq_error_set(err, EVQ_E_NOMEM, "metrics") : EVQ_OK;
}
