#include "logger/sink_owner.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/clock.h"

#define SAY_MS   3000
#define OTHER_MS (3 * SAY_MS) // Unheard so long, the other one has ended.

void evq_sink_owner_init(struct evq_sink_owner *owner, const char *directory)
{
    char host[65] = "";
    char real[PATH_MAX];

    memset(owner, 0, sizeof(*owner));
    (void)gethostname(host, sizeof(host) - 1); // If it fails, the name is empty.
    (void)snprintf(owner->place, sizeof(owner->place), "%s:%s", host,
                   realpath(directory, real) != NULL ? real : directory);
    (void)snprintf(owner->id, sizeof(owner->id), "%016" PRIx64, evq_clock_random());
}

enum evq_status evq_sink_owner_say(struct evq_sink_owner *owner, struct evq_queue *queue,
                                   const char *sink, bool *ret_changed, struct evq_error *err)
{
    const int64_t now = evq_clock_mono_ms();
    char other[EVQ_SINK_PLACE_BYTES_MAX];
    const bool had = owner->text[0] != '\0';

    *ret_changed = false;
    if (now < owner->due_ms) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_queue_sink_serve(queue, sink, owner->id, owner->place, other, err);
    if (status != EVQ_OK) {
        return status;
    }
    owner->due_ms = now + SAY_MS;
    if (owner->said && other[0] != '\0') {
        owner->other_ms = now;
        (void)snprintf(owner->text, sizeof(owner->text),
                       "two loggers take results of this sink, into %.*s and %s; each result goes "
                       "to one of them: keep one, or give their sinks other names",
                       EVQ_SINK_PLACE_BYTES_MAX, owner->place, other);
    } else if (had && now - owner->other_ms > OTHER_MS) {
        owner->text[0] = '\0';
    }
    *ret_changed = !owner->said || had != (owner->text[0] != '\0');
    owner->said = true;
    return EVQ_OK;
}
