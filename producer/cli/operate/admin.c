/*
 * evalq admin: the function library, access control, suites.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json_table.h"
#include "producer/cli/operate/acl.h"
#include "producer/cli/operate/suite_register.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/nearest.h"
#include "shared/queue/function_library.h"

static enum evq_status install(struct evq_cli *cli, struct evq_error *err)
{
    int64_t build = 0;
    enum evq_status status = evq_cli_connect(cli, err);
    if (status == EVQ_OK) {
        status =
            evq_function_library_install_for(cli->conn, evq_queue_prefix(cli->queue), &build, err);
    }
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:s, s:I, s:I}", "library", EVQ_FUNCTIONS_LIBRARY,
                                          "build", (json_int_t)build, "own_build",
                                          (json_int_t)evq_function_library_build),
                                err);
    } else if (status == EVQ_OK) {
        evq_cli_say(cli, "evalq: " EVQ_FUNCTIONS_LIBRARY " build %" PRId64 " is installed at %s",
                    build, evq_conn_where(cli->conn));
    }
    return status;
}

static enum evq_status acl(struct evq_cli *cli, struct evq_error *err)
{
    const char *role = evq_option_text(&cli->options, "role", NULL);
    bool offline = evq_option_flag(&cli->options, "offline");
    if (cli->terminal.json) {
        return evq_cli_usage(cli, err, "admin acl prints an ACL file: it has no --json");
    }
    enum evq_status status =
        evq_cli_connect(cli, err); // The queue's name, and the server when it is asked.
    if (status == EVQ_OK) {
        status = evq_acl_print(cli, role, evq_option_text(&cli->options, "passwords", NULL),
                               offline, err);
    }
    if (status == EVQ_OK && evq_option_text(&cli->options, "passwords", NULL) == NULL) {
        evq_cli_say(cli, "evalq: every role is off: give passwords with --passwords PATH, lines "
                         "\"ROLE PASSWORD\"");
    }
    return status;
}

static void cell_offered(struct evq_table *table, const json_t *suite)
{
    const bool offered = evq_json_true(suite, "offered");

    evq_table_cell(table, offered ? EVQ_COLOUR_GREEN : EVQ_COLOUR_YELLOW, "%s%s",
                   offered ? "yes" : "no", evq_json_true(suite, "paused") ? ", paused" : "");
}

static const struct evq_column suite_columns[] = {
    {"SUITE", .key = "name"},
    {"OFFERED", .cell = cell_offered},
    {"SHARDS", "shards", .kind = EVQ_COLUMN_INTEGER},
    {"EVERY", "every", .kind = EVQ_COLUMN_INTEGER},
    {"NEEDS", .key = "needs"},
    {"DIGEST", "digest", .colour = EVQ_COLOUR_DIM, .bytes_max = 12},
    {"DEFINED IN", .key = "where"},
};

static enum evq_status suite_list(struct evq_cli *cli, struct evq_error *err)
{
    static const struct evq_json_table table = {EVQ_COLUMNS(suite_columns)};
    json_t *stats = NULL;
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = evq_view_stats(cli, &stats, err);
    }
    json_t *suites = json_object_get(stats, "suites");
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:O}", "suites", suites), err);
    } else if (status == EVQ_OK) {
        status = evq_json_table_print(&table, suites, &cli->terminal, err);
    }
    json_decref(stats);
    return status;
}

/* Puts this configuration's definition in the place of the registered one. */
static enum evq_status suite_replace(struct evq_cli *cli, const char *name, struct evq_error *err)
{
    enum evq_status status = evq_cli_open(cli, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_suite *suite = evq_config_suite_find(cli->config, name, err);
    if (suite == NULL) {
        return EVQ_E_NOT_FOUND;
    }
    status = evq_cli_confirm(
        cli, "Replace the suite's definition? Its results before and after differ.", err);
    if (status == EVQ_OK) {
        status = evq_suite_register(cli, suite, true, err);
    }
    if (status == EVQ_OK) {
        evq_cli_say(cli,
                    "evalq: the suite '%s' is now as in %s; workers with another definition must "
                    "be restarted",
                    name, cli->config->file);
    }
    return status;
}

/* Caps on what runs at once, and a run's share of the workers. */
static enum evq_status limit(struct evq_cli *cli, const char *what, const char *name,
                             struct evq_error *err)
{
    const int64_t cap = evq_option_integer(&cli->options, "cap", -1);
    const int64_t weight = evq_option_integer(&cli->options, "weight", -1);
    const bool run = strcmp(what, "run") == 0;
    char mapped[EVQ_JOB_RUN_BYTES_MAX + 1];

    if (!run && strcmp(what, "suite") != 0) {
        return evq_cli_usage(cli, err, "admin limit is of 'run NAME' or 'suite NAME', not '%.60s'",
                             what);
    }
    if ((cap < 0 && weight < 0) || (!run && weight >= 0)) {
        return evq_cli_usage(cli, err,
                             run ? "admin limit run NAME needs --cap N, --weight PERCENT or both"
                                 : "admin limit suite NAME needs --cap N, and has no --weight");
    }
    evq_job_map_name(name, run ? EVQ_JOB_RUN_BYTES_MAX : EVQ_JOB_NAME_BYTES_MAX, mapped);
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK && cap >= 0) {
        status = evq_queue_limit(cli->queue, run ? "cap_run" : "cap_suite", mapped, cap, err);
    }
    if (status == EVQ_OK && weight >= 0) {
        status = evq_queue_limit(cli->queue, "weight", mapped, weight, err);
    }
    if (status == EVQ_OK && cap > 0) {
        evq_cli_say(cli, "evalq: at most %" PRId64 " job%s of %s %s at once", cap,
                    cap == 1 ? "" : "s", what, mapped);
    } else if (status == EVQ_OK && cap == 0) {
        evq_cli_say(cli, "evalq: %s %s has no cap", what, mapped);
    }
    if (status == EVQ_OK && weight >= 0) {
        evq_cli_say(cli, "evalq: run %s has %" PRId64 " %% of a run's usual share", mapped, weight);
    }
    return status;
}

static enum evq_status admin_run(struct evq_cli *cli, struct evq_error *err)
{
    static const char *const actions[] = {"install", "acl", "suite", "limit"};
    const char *action = evq_cli_arg(cli, 0);
    const char *what = evq_cli_arg(cli, 1);
    const char *name = evq_cli_arg(cli, 2);
    if (strcmp(action, "install") == 0 && what == NULL) {
        return install(cli, err);
    }
    if (strcmp(action, "acl") == 0 && what == NULL) {
        return acl(cli, err);
    }
    if (strcmp(action, "suite") == 0 && what != NULL && strcmp(what, "list") == 0 && name == NULL) {
        return suite_list(cli, err);
    }
    if (strcmp(action, "suite") == 0 && what != NULL && strcmp(what, "replace") == 0 &&
        name != NULL) {
        return suite_replace(cli, name, err);
    }
    if (strcmp(action, "limit") == 0 && what != NULL && name != NULL) {
        return limit(cli, what, name, err);
    }
    const char *near = evq_nearest_word(action, actions, sizeof actions / sizeof actions[0]);
    if (near != NULL && strcmp(near, action) != 0) {
        return evq_cli_usage(cli, err, "unknown action '%.60s'; did you mean 'admin %s'?", action,
                             near);
    }
    return evq_cli_usage(cli, err,
                         "usage: evalq admin install | acl | suite list | suite replace NAME | "
                         "limit run|suite NAME");
}

static const struct evq_option options[] = {
    {"role", 0, EVQ_OPTION_CHOICE, "init|producer|worker|logger|gateway|viewer|admin",
     "acl: print this role only", 0, 0},
    {"passwords", 0, EVQ_OPTION_TEXT, "PATH",
     "acl: a file with lines \"ROLE PASSWORD\", or a directory with a file per role; a role "
     "without a password is off",
     0, 0},
    {"offline", 0, EVQ_OPTION_FLAG, NULL,
     "acl: do not ask the server for its version; write for Redis 7.0 and newer", 0, 0},
    {"cap", 0, EVQ_OPTION_INTEGER, "N", "limit: at most N jobs at once; 0: no limit", 0, 1000000},
    {"weight", 0, EVQ_OPTION_INTEGER, "PERCENT",
     "limit run: share of the workers; default 100, 200 gets twice as much as other runs", 1,
     10000},
    {"yes", 'y', EVQ_OPTION_FLAG, NULL, "suite replace: do not ask", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_admin = {
    .name = "admin",
    .arguments =
        "install | acl [--role ROLE] [--passwords PATH] | suite list | suite replace NAME | "
        "limit run|suite NAME [--cap N] [--weight PERCENT]",
    .summary = "Install the function library, write an ACL file, manage suites and limits",
    .description =
        "`install` loads evalq's function library into Redis, or updates an older build. A "
        "newer build stays.\n\n`acl` prints an ACL file for Redis with one user per role: "
        "init, producer, worker, logger, gateway, viewer and admin. A user can run only the "
        "commands that its role needs, and only on the keys of this queue. The default user "
        "is off. The file is for the server's version, or for Redis 7.0 if no server "
        "answers. Passwords come from a file and are written as SHA-256.\n\n`suite list` "
        "shows the suites that workers have registered. `suite replace` registers the "
        "definition in this configuration instead of the present one. Workers that offer "
        "another definition under the same name are refused.\n\n`limit` sets how many jobs "
        "of a run or a suite can run at once, and the share of the workers that a run gets. "
        "Running jobs go on.\n\nExamples: `evalq admin install`, `evalq admin acl --role "
        "worker --passwords secrets`",
    .words = "install|acl|suite|limit",
    .options = options,
    .arg_min = 1,
    .arg_max = 3,
    .role = "admin",
    .run = admin_run,
};
