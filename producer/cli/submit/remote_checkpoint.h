/*
 * Checkpoints of remote stores, as submit and scan see them. The first call starts the helper
 * (shared/remote/remote.h), which evq_cli_close() ends. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SUBMIT_REMOTE_CHECKPOINT_H
#define EVQ_PRODUCER_CLI_SUBMIT_REMOTE_CHECKPOINT_H

#include "producer/cli/cli.h"
#include "producer/cli/submit/checkpoint_listing.h"
#include "producer/cli/submit/ready.h"
#include "shared/remote/remote.h"

/*
 * Lists the checkpoint `path` beneath root; address is its whole address. ready, which can be NULL,
 * decides whether the checkpoint is complete. EVQ_E_GONE: the checkpoint does not exist.
 * EVQ_E_INCOMPLETE: it is not complete. EVQ_E_IO: the store, the helper or this machine's set-up
 * failed. EVQ_E_INVALID, EVQ_E_NOMEM.
 */
enum evq_status evq_remote_checkpoint_inspect(struct evq_cli *cli, const struct evq_root *root,
                                              const char *path, const char *address,
                                              struct evq_ready *ready, char fingerprint[33],
                                              struct evq_buffer *manifest,
                                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Finds the checkpoints directly below an address, as evq_checkpoint_listing_read() does for a
 * directory. EVQ_E_NOT_FOUND: no root contains the address. Other errors are those of
 * evq_remote_checkpoint_inspect(). */
enum evq_status evq_remote_checkpoint_scan(struct evq_cli *cli, const char *address,
                                           const char *pattern,
                                           struct evq_checkpoint_listing_list *ret_list,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

#endif
