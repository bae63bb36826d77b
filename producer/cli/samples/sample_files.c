#include "producer/cli/samples/sample_files.h"

/* Wrong use of a verb has an exit code of its own. */
static enum evq_status told(struct evq_cli *cli, enum evq_status status, struct evq_error *err)
{
    return status == EVQ_E_INVALID ? evq_cli_usage(cli, err, "%s", err->message) : status;
}

static struct evq_sample_choice choice_of(const struct evq_cli *cli)
{
    return (struct evq_sample_choice){.directory = cli->config->samples.directory,
                                      .variant =
                                          evq_option_text(&cli->options, "variant", "regular"),
                                      .suite = evq_option_text(&cli->options, "suite", NULL),
                                      .task = evq_option_text(&cli->options, "task", NULL)};
}

enum evq_status evq_sample_place_parse(struct evq_cli *cli, const char *text,
                                       struct evq_sample_place *ret, struct evq_error *err)
{
    return told(cli, evq_samples_find_place(text, ret, err), err);
}

enum evq_status evq_sample_files_find(struct evq_cli *cli, const struct evq_sample_place *place,
                                      struct evq_sample_files *ret, struct evq_error *err)
{
    const struct evq_sample_choice choice = choice_of(cli);

    return told(cli, evq_samples_find_files(&choice, place, ret, err), err);
}

enum evq_status evq_sample_files_one(struct evq_cli *cli, const struct evq_sample_place *place,
                                     struct evq_sample_file *ret, struct evq_error *err)
{
    const struct evq_sample_choice choice = choice_of(cli);

    return told(cli, evq_samples_find_one(&choice, place, ret, err), err);
}
