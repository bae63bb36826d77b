/*
 * `evalq-worker convert`: writes the weights of a checkpoint of any format that evalq reads as a
 * Transformers directory. Nothing in the checkpoint is executed. One thread.
 */
#ifndef EVQ_WORKER_CONVERT_CONVERT_COMMAND_H
#define EVQ_WORKER_CONVERT_CONVERT_COMMAND_H

#include "worker/options.h"

/* Reports errors on standard error. Without a path, the checkpoint and the output are those of a
 * `prepare` command: $EVALQ_CHECKPOINT, $EVALQ_OUTPUT, and the variant of $EVALQ_JOB. The exit
 * status is then 65 if trying again is useless. */
int evq_convert_main(const struct evq_options *options);

#endif
