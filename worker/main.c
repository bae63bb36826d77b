#include "shared/base/program.h"
#include "worker/child/child.h"
#include "worker/convert/convert_command.h"
#include "worker/eval.h"
#include "worker/inspect.h"
#include "worker/options.h"
#include "worker/score.h"
#include "worker/supervisor/supervisor.h"

int main(int argc, char **argv)
{
    struct evq_option_set set = {.count = 0};
    struct evq_options options;
    struct evq_error err;
    int code = EVQ_EXIT_OK;

    if (!evq_program_begin(&evq_options_man, argc, argv, &set, &code)) {
        return code;
    }
    if (evq_options_read(&set, &options, &err) != EVQ_OK) {
        return evq_program_fail(&evq_options_man, &err, EVQ_EXIT_USAGE);
    }
    switch (options.command) {
    case EVQ_COMMAND_EVAL:
        return (int)evq_eval_main(&options);
    case EVQ_COMMAND_INSPECT:
        return (int)evq_inspect_main(&options);
    case EVQ_COMMAND_CONVERT:
        return evq_convert_main(&options);
    case EVQ_COMMAND_SCORE:
        return (int)evq_score_main(&options);
    case EVQ_COMMAND_CHILD:
        return (int)evq_child_main(&options);
    default:
        return (int)evq_supervisor_main(&options);
    }
}
