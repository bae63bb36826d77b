/* Keeps this thread's last error for evalq_client_error(). */
#include <stdio.h>

#include "producer/client/client.h"
#include "producer/client/fork.h"

static _Thread_local char last_error[512];

int evq_client_fail(const struct evq_error *error)
{
    (void)snprintf(last_error, sizeof(last_error), "%s", error->message);
    switch (error->status) {
    case EVQ_OK:
        return EVALQ_OK;
    case EVQ_E_FULL:
        return EVALQ_FULL;
    case EVQ_E_TIMEOUT:
        return EVALQ_TIMEOUT;
    case EVQ_E_IO:
    case EVQ_E_RETRY:
    case EVQ_E_AUTH:
    case EVQ_E_VERSION:
    case EVQ_E_STOPPED:
        return EVALQ_UNAVAILABLE;
    case EVQ_E_NOT_FOUND:
        return EVALQ_NOT_FOUND;
    case EVQ_E_NOMEM:
        return EVALQ_NOMEM;
    case EVQ_E_BUG:
        return EVALQ_BUG;
    default:
        return EVALQ_INVALID;
    }
}

int evq_client_usable(const struct evalq_client *client)
{
    if (client == NULL) {
        (void)snprintf(last_error, sizeof(last_error),
                       "there is no client: open failed, or was not called");
        return EVALQ_INVALID;
    }
    if (client->fork_depth != evq_fork_depth()) {
        (void)snprintf(last_error, sizeof(last_error),
                       "this process was forked after the client was opened: open another one");
        return EVALQ_FORKED;
    }
    return EVALQ_OK;
}

void evq_client_error_clear(void)
{
    last_error[0] = '\0';
}

const char *evalq_client_error(const struct evalq_client *client)
{
    (void)client; // The sentence belongs to the thread, whichever client failed.
    return last_error;
}
