/*
 * Where a text divides into the pieces that are merged one by one: scanners written for the known
 * patterns, none of which looks back. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_PRETOKENIZER_H
#define EVQ_WORKER_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

enum evq_pretokenizer_kind {
    EVQ_PRETOKENIZER_WHOLE,   // One piece.
    EVQ_PRETOKENIZER_GPT2,    // ByteLevel's own pattern.
    EVQ_PRETOKENIZER_LLAMA3,  // Numbers of up to three digits.
    EVQ_PRETOKENIZER_QWEN2,   // Each digit by itself.
    EVQ_PRETOKENIZER_QWEN3_5, // As that, marks belonging to letters.
    EVQ_PRETOKENIZER_UNDERS,  // Before each U+2581 that follows another character.
    EVQ_PRETOKENIZER_UNDER    // Before each U+2581.
};

/* The kind whose pattern is written like this; false: none. GPT2 to QWEN3_5. */
bool evq_pretokenizer_find(const char *pattern, size_t bytes, enum evq_pretokenizer_kind *ret_kind);

/* Bytes of the piece that text, valid UTF-8 and not empty, begins with. */
size_t evq_pretokenizer_next(enum evq_pretokenizer_kind kind, const char *text, size_t bytes);

#endif
