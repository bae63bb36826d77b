/*
 * The gateway of `evalq up`, which serves the page. Without a section `gateway` in the
 * configuration it listens on a free port of 127.0.0.1.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/up/process_manager.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define READY_MS 30000 // A slower start is reported, and `up` goes on.
#define LOOK_MS  20

/* Writes DIRECTORY/gateway.tokens with a new key, which is valid until the next `evalq up`. */
static enum evq_status make_key(struct evq_process_manager *manager, struct evq_error *err)
{
    char line[128];
    enum evq_status status =
        evq_server_path(manager->directory, "gateway.tokens", manager->gateway_tokens, err);
    if (status != EVQ_OK) {
        return status;
    }
    (void)snprintf(manager->page_key, sizeof manager->page_key,
                   "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, evq_clock_random(),
                   evq_clock_random(), evq_clock_random());
    (void)snprintf(line, sizeof line, "up write %s\n", manager->page_key);
    status = evq_file_replace(manager->gateway_tokens, line, strlen(line), 0600, err);
    explicit_bzero(line, sizeof line);
    return status;
}

enum evq_status evq_process_manager_start_gateway(struct evq_process_manager *manager,
                                                  struct evq_error *err)
{
    const struct evq_config *config = manager->cli->config;
    struct evq_service *service = &manager->gateway;
    size_t count = 0;

    enum evq_status status = evq_service_program("evalq-gateway", manager->gateway_program,
                                                 sizeof manager->gateway_program, err);
    if (status == EVQ_E_NOT_FOUND && !config->gateway.given) {
        evq_cli_say(manager->cli, "evalq: there is no page: %s", err->message);
        return EVQ_OK;
    }
    if (status == EVQ_E_NOT_FOUND) {
        return evq_error_set(err, status, "%s: install it, or remove the section `gateway` from %s",
                             err->message, config->file);
    }
    if (status == EVQ_OK) {
        status = evq_server_path(manager->directory, "gateway.log", manager->gateway_log, err);
    }
    if (status == EVQ_OK && config->gateway.tokens[0] == '\0') {
        status = make_key(manager, err);
    } else if (status == EVQ_OK) {
        (void)snprintf(manager->gateway_tokens, sizeof manager->gateway_tokens, "%s",
                       config->gateway.tokens);
    }
    if (status != EVQ_OK) {
        return status;
    }
    (void)snprintf(manager->gateway_listen, sizeof manager->gateway_listen, "%s",
                   config->gateway.given ? config->gateway.listen : "127.0.0.1:0");
    const char *const argv[] = {manager->gateway_program,
                                "--config",
                                config->file,
                                "--queue",
                                config->redis.queue,
                                "--tokens",
                                manager->gateway_tokens,
                                "--listen",
                                manager->gateway_listen};
    for (; count < sizeof argv / sizeof argv[0]; count++) {
        service->argv[count] = argv[count];
    }
    (void)snprintf(service->name, sizeof service->name, "gateway");
    service->log_path = manager->gateway_log;
    service->keep_fd = -1;
    service->output_fd = -1;
    (void)unlink(service->log_path); // Each `evalq up` begins its own log.
    return evq_service_start(service, err);
}

/* Reads from the gateway's log where it listens. A restart then takes the same port. false: the
 * gateway has not said it yet. */
static bool read_address(struct evq_process_manager *manager)
{
    static const char word[] = "gateway_started address=";
    char line[1024];
    FILE *file = fopen(manager->gateway_log, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *at = strstr(line, word);
        if (at != NULL) {
            at += sizeof word - 1;
            (void)snprintf(manager->gateway_address, sizeof manager->gateway_address, "%.*s",
                           (int)strcspn(at, " \n"), at);
        }
    }
    if (file != NULL) {
        (void)fclose(file); // Opened for reading: a failed close loses nothing.
    }
    const char *host = strstr(manager->gateway_address, "://");
    if (host != NULL) {
        (void)snprintf(manager->gateway_listen, sizeof manager->gateway_listen, "%s", host + 3);
    }
    return host != NULL;
}

/* Writes the address of the page, with its key, to DIRECTORY/page for `evalq page`. */
static enum evq_status announce(struct evq_process_manager *manager, struct evq_error *err)
{
    char path[EVQ_SERVER_PATH_MAX];
    char line[sizeof manager->page + 1];
    enum evq_status status = evq_server_path(manager->directory, "page", path, err);

    (void)snprintf(manager->page, sizeof manager->page, "%s/%s%s", manager->gateway_address,
                   manager->page_key[0] != '\0' ? "#key=" : "", manager->page_key);
    (void)snprintf(line, sizeof line, "%s\n", manager->page);
    return status == EVQ_OK ? evq_file_replace(path, line, strlen(line), 0600, err) : status;
}

enum evq_status evq_process_manager_await_gateway(struct evq_process_manager *manager,
                                                  struct evq_error *err)
{
    const int64_t deadline = evq_clock_mono_ms() + READY_MS;
    while (manager->gateway.argv[0] != NULL && !read_address(manager)) {
        enum evq_status status = evq_process_manager_step(manager, -1, LOOK_MS, NULL, err);
        if (status != EVQ_OK || manager->stop_count > 0) {
            return status;
        }
        if (evq_clock_mono_ms() > deadline) {
            evq_cli_say(manager->cli,
                        "evalq: the page did not start within %d s; read %s to find out why",
                        READY_MS / 1000, manager->gateway_log);
            return EVQ_OK;
        }
    }
    return manager->gateway.argv[0] != NULL ? announce(manager, err) : EVQ_OK;
}
