/*
 * Where a text divides into the pieces that are merged one by one: scanners written for the known
 * patterns, none of which looks back. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_SCAN_H
#define EVQ_WORKER_TOKENIZER_SCAN_H

#include <stdbool.h>
#include <stddef.h>

enum evq_scan_kind {
    EVQ_SCAN_WHOLE,   // One piece.
    EVQ_SCAN_GPT2,    // ByteLevel's own pattern.
    EVQ_SCAN_LLAMA3,  // Numbers of up to three digits.
    EVQ_SCAN_QWEN2,   // Each digit by itself.
    EVQ_SCAN_QWEN3_5, // As that, marks belonging to letters.
    EVQ_SCAN_UNDERS,  // Before each U+2581 that follows another character.
    EVQ_SCAN_UNDER    // Before each U+2581.
};

/* The kind whose pattern is written like this; false: none. GPT2 to QWEN3_5. */
bool evq_scan_find(const char *pattern, size_t bytes, enum evq_scan_kind *ret_kind);

/* Bytes of the piece that text, valid UTF-8 and not empty, begins with. */
size_t evq_scan_next(enum evq_scan_kind kind, const char *text, size_t bytes);

#endif
