/* Paths of pinned checkpoints: OUT/.evalq/pins/PIN/NAME is a temporary copy of OUT/NAME. Any
 * thread. */
#ifndef EVQ_SHARED_CHECKPOINT_PIN_PATH_H
#define EVQ_SHARED_CHECKPOINT_PIN_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* Writes to out where the training saved the checkpoint of a path: OUT/NAME for a pinned one; any
 * other path is itself. Cut to out_bytes. Returns whether path was in a pin. */
bool evq_pin_path_saved(const char *path, char *out, size_t out_bytes);
/* Length of the pin's directory OUT/.evalq/pins/PIN in such a path; NAME may have several parts. 0:
 * not in a pin. */
size_t evq_pin_path_bytes(const char *path);

#endif
