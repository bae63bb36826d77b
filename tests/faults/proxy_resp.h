/*
 * Where one value of the Redis protocol (RESP2, and the types of RESP3) ends in a stream, and the
 * words of a request. Nothing is copied, nothing kept.
 */
#ifndef EVQ_TESTS_FAULTS_PROXY_RESP_H
#define EVQ_TESTS_FAULTS_PROXY_RESP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes of the first whole value; 0: it is not all there yet; -1: no such protocol. */
ssize_t proxy_resp_value(const char *data, size_t bytes);

struct proxy_word {
    const char *at; // Into the caller's bytes.
    size_t bytes;
};

/* Words of a whole request or of one array of strings: at most words_max are set, the count of all
 * is returned; 0 when it is no array. Items that are no strings are empty words. */
size_t proxy_resp_words(const char *data, size_t bytes, struct proxy_word *words, size_t words_max);

/* The items of a whole array, each as the bytes of its value; a value that is no array is its own
 * only item. At most items_max are set; returns the count of all. */
size_t proxy_resp_items(const char *data, size_t bytes, struct proxy_word *items, size_t items_max);

#endif
