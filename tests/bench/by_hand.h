/*
 * The queue's functions called by hand, on plain hiredis: what somebody writes who does without
 * shared/queue/queue.h. A peer to measure beside it. Any failure ends the program with a sentence.
 * One thread.
 */
#ifndef EVQ_TESTS_BENCH_BY_HAND_H
#define EVQ_TESTS_BENCH_BY_HAND_H

#include "shared/base/buffer.h"
#include "shared/queue/job.h"

struct by_hand;

/* socket: a path. prefix ("evalq:{default}:") and worker stay the caller's. Never NULL. */
struct by_hand *by_hand_open(const char *socket, const char *prefix, const char *worker);
void by_hand_close(struct by_hand *hand);

/* Each sends one call, for which by_hand_read() reads the reply. records: encoded. */
void by_hand_submit(struct by_hand *hand, const struct evq_job *job,
                    const struct evq_buffer *record);
void by_hand_submit_batch(struct by_hand *hand, struct evq_job *const *jobs,
                          const struct evq_buffer *records, int count); // count: at most 100.
void by_hand_complete(struct by_hand *hand, const char *id, const char *token);
void by_hand_read(struct by_hand *hand, int replies);

/* Claims 16 of a class and completes them with the next claim, in one write, until none is left;
 * returns how many. */
int by_hand_drain(struct by_hand *hand, uint32_t class_number);

#endif
