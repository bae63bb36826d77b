/*
 * A reply of Redis from few bytes, in its own framing: lengths that no mutation would keep right
 * are computed, so that what is inside them is what is looked at.
 *
 *   [ N items ]     an array: its number of items follows as one byte
 *   $ N bytes       a text of that length, cut where the input ends
 *   w N             a word that functions use, by number
 *   : N             an integer: as many of the next eight bytes as N modulo 9
 *   anything else   nil
 */
#ifndef EVQ_TESTS_FUZZ_REPLY_TEXT_H
#define EVQ_TESTS_FUZZ_REPLY_TEXT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "shared/base/buffer.h"

struct reply_input {
    const uint8_t *at;
    const uint8_t *end;
};

static const char *const reply_words[] = {
    "ok",       "jobs",    "none",    "job",           "queued",    "duplicate", "replaced",
    "followed", "skipped", "done",    "dead",          "cancelled", "running",   "delayed",
    "stale",    "cancel",  "changed", "refused",       "ended",     "not_found", "conflict",
    "record",   "1",       "0",       "r/1/regular/s", "quick",     "gpus=1"};

static inline uint8_t reply_byte(struct reply_input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

static inline void reply_bulk(struct evq_buffer *out, const void *data, size_t bytes)
{
    evq_buffer_printf(out, "$%zu\r\n", bytes);
    evq_buffer_append(out, data, bytes);
    evq_buffer_text(out, "\r\n");
}

static inline void reply_write(struct reply_input *input, int depth, struct evq_buffer *out)
{
    const uint8_t kind = reply_byte(input);
    const size_t count =
        kind == '[' || kind == '$' || kind == 'w' || kind == ':' ? reply_byte(input) : 0;
    const size_t left = (size_t)(input->end - input->at);

    if (kind == '[' && depth < 6) {
        evq_buffer_printf(out, "*%zu\r\n", count);
        for (size_t i = 0; i < count; i++) {
            reply_write(input, depth + 1, out);
        }
    } else if (kind == '$') {
        const size_t bytes = count < left ? count : left;
        reply_bulk(out, input->at, bytes);
        input->at += bytes;
    } else if (kind == 'w') {
        const char *word = reply_words[count % (sizeof(reply_words) / sizeof(reply_words[0]))];
        reply_bulk(out, word, strlen(word));
    } else if (kind == ':') {
        uint64_t value = 0;
        for (size_t i = 0; i < count % 9; i++) {
            value = value << 8 | reply_byte(input);
        }
        evq_buffer_printf(out, ":%" PRId64 "\r\n", (int64_t)value);
    } else {
        evq_buffer_text(out, "$-1\r\n");
    }
}

#endif
