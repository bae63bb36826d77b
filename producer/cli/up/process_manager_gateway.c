/*
 * The gateway of `evalq up`, where the configuration has a section for it: with a token of its own
 * where none is given, and "up" once it says where it listens.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/up/process_manager.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define READY_MS 30000 // A machine that is busy beyond that is told so, and goes on.
#define LOOK_MS  20

/* DIRECTORY/gateway.tokens with one random token, unless it is there. */
static enum evq_status make_tokens(struct evq_process_manager *manager, struct evq_error *err)
{
    char line[128];
    enum evq_status status =
        evq_server_path(manager->directory, "gateway.tokens", manager->gateway_tokens, err);
    if (status != EVQ_OK || access(manager->gateway_tokens, F_OK) == 0) {
        return status;
    }
    (void)snprintf(line, sizeof line, "up write %016" PRIx64 "%016" PRIx64 "%016" PRIx64 "\n",
                   evq_clock_random(), evq_clock_random(), evq_clock_random());
    status = evq_file_replace(manager->gateway_tokens, line, strlen(line), 0600, err);
    explicit_bzero(line, sizeof line);
    return status;
}

enum evq_status evq_process_manager_start_gateway(struct evq_process_manager *manager,
                                                  struct evq_error *err)
{
    const struct evq_config *config = manager->cli->config;
    struct evq_service *service = &manager->gateway;
    enum evq_status status = EVQ_OK;

    if (!config->gateway.given) {
        return EVQ_OK;
    }
    status = evq_service_program("evalq-gateway", manager->gateway_program,
                                 sizeof manager->gateway_program, err);
    if (status == EVQ_E_NOT_FOUND) {
        return evq_error_set(err, status, "%s: install it, or remove the section `gateway` from %s",
                             err->message, config->file);
    }
    if (status == EVQ_OK) {
        status = evq_server_path(manager->directory, "gateway.log", manager->gateway_log, err);
    }
    if (status == EVQ_OK && config->gateway.tokens[0] == '\0') {
        status = make_tokens(manager, err);
    } else if (status == EVQ_OK) {
        (void)snprintf(manager->gateway_tokens, sizeof manager->gateway_tokens, "%s",
                       config->gateway.tokens);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const char *const argv[] = {manager->gateway_program,
                                "--config",
                                config->file,
                                "--queue",
                                config->redis.queue,
                                "--tokens",
                                manager->gateway_tokens,
                                NULL};
    memcpy(service->argv, argv, sizeof argv);
    (void)snprintf(service->name, sizeof service->name, "gateway");
    service->log_path = manager->gateway_log;
    service->keep_fd = -1;
    service->output_fd = -1;
    (void)unlink(service->log_path); // One life of `up`, one log.
    return evq_service_start(service, err);
}

/* Where it says that it listens; false: not yet. */
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
    return manager->gateway_address[0] != '\0';
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
                        "evalq: the gateway did not say where it listens within %d s; "
                        "see %s",
                        READY_MS / 1000, manager->gateway_log);
            return EVQ_OK;
        }
    }
    return EVQ_OK;
}
