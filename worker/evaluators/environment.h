/*
 * The environment of a program that evaluates: built from nothing, so that neither a secret of the
 * worker nor what Slurm or torchrun set for another process reaches it. Any thread.
 */
#ifndef EVQ_WORKER_ENVIRONMENT_H
#define EVQ_WORKER_ENVIRONMENT_H

#include "shared/config/config.h"

/*
 * PATH, HOME, LANG, LC_ALL, TZ, TMPDIR as we have them, the evaluator's env_pass (but for scrubbed
 * names) and env, then CUDA_VISIBLE_DEVICES = devices ("" hides all), MASTER_ADDR and a free
 * MASTER_PORT, then extra. A later one of a name takes the place of an earlier one.
 * NULL-terminated, in arena; NULL when out of memory.
 */
char *const *evq_environment_build(const struct evq_evaluator *evaluator, const char *devices,
                                   const struct evq_pair *extra, size_t extra_count,
                                   struct evq_arena *arena);

#endif
