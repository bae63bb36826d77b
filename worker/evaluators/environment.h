/*
 * The environment of an evaluator program. It is built from nothing, so neither the worker's
 * secrets nor variables that Slurm or torchrun set for another process reach the program. Any
 * thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_ENVIRONMENT_H
#define EVQ_WORKER_EVALUATORS_ENVIRONMENT_H

#include "shared/config/config.h"

/*
 * Takes PATH, HOME, LANG, LC_ALL, TZ and TMPDIR from our environment, then the evaluator's env_pass
 * (except dangerous names) and env, then CUDA_VISIBLE_DEVICES = devices ("" hides all), MASTER_ADDR
 * and a free MASTER_PORT, then extra. A later value of a name replaces an earlier one.
 * NULL-terminated, in arena; NULL: out of memory.
 */
char *const *evq_environment_build(const struct evq_evaluator *evaluator, const char *devices,
                                   const struct evq_pair *extra, size_t extra_count,
                                   struct evq_arena *arena);

#endif
