/*
 * TensorBoard's event file format: framing, masked CRC-32C, and the few protobuf messages that
 * scalars need, encoded and decoded by hand. Source of the format: TensorBoard's record_writer.py,
 * event.proto, summary.proto. Any thread.
 */
#ifndef EVQ_LOGGER_TENSORBOARD_TFEVENT_H
#define EVQ_LOGGER_TENSORBOARD_TFEVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/buffer.h"

#define EVQ_TFEVENT_RECORD_BYTES_MAX (16u << 20)
#define EVQ_TFEVENT_TAG_BYTES_MAX    512

/* Appends the record every file begins with. wall_seconds: unix time. */
void evq_tfevent_version(struct evq_buffer *out, double wall_seconds);

/* Appends one scalar as a `simple_value`, as PyTorch's SummaryWriter does. Programs read it with
 * TensorBoard's EventAccumulator.Scalars(). */
void evq_tfevent_scalar(struct evq_buffer *out, double wall_seconds, int64_t step, const char *tag,
                        float value);

struct evq_tfevent {
    double wall_seconds;
    int64_t step;
    char tag[EVQ_TFEVENT_TAG_BYTES_MAX]; // "" : no scalar (the version record).
    float value;
};

/*
 * Decodes the record at data. EVQ_OK: *ret_event and *ret_bytes (its length). EVQ_E_INCOMPLETE: the
 * record goes past bytes (a torn tail). EVQ_E_CORRUPT: a CRC or field is wrong.
 */
enum evq_status evq_tfevent_read(const uint8_t *data, size_t bytes, struct evq_tfevent *ret_event,
                                 size_t *ret_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* CRC-32C (Castagnoli) of bytes; "123456789" gives 0xe3069283. */
uint32_t evq_tfevent_crc32c(const void *data, size_t bytes);

#endif
