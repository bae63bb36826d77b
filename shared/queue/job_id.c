#include "shared/queue/job_id.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static bool name_byte(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

bool evq_job_name_valid(const char *text, size_t bytes_max)
{
    if (text == NULL || text[0] == '\0' || strcmp(text, ".") == 0 || strcmp(text, "..") == 0) {
        // The names "." and ".." would leave the directory where names become directories.
        return false;
    }
    size_t bytes = 0;
    while (text[bytes] != '\0') {
        if (bytes >= bytes_max || !name_byte(text[bytes])) {
            return false;
        }
        bytes++;
    }
    return true;
}

void evq_job_map_name(const char *text, size_t bytes_max, char *out)
{
    const size_t suffix_bytes = 9; // "-" and 8 digits.
    if (evq_job_name_valid(text, bytes_max)) {
        memcpy(out, text, strlen(text) + 1);
        return;
    }
    size_t text_bytes = strlen(text);
    char suffix[16];
    (void)snprintf(suffix, sizeof suffix, "-%08" PRIx32,
                   (uint32_t)(XXH3_64bits(text, text_bytes) & UINT32_MAX)); // Fits.
    size_t kept = bytes_max > suffix_bytes ? bytes_max - suffix_bytes : 0;
    size_t used = 0;
    for (size_t i = 0; i < text_bytes && used < kept; i++) {
        bool legal = name_byte(text[i]);
        if (!legal && used > 0 && out[used - 1] == '-') {
            continue; // One dash for a run of illegal bytes.
        }
        out[used++] = legal ? text[i] : '-';
    }
    const char *tail = suffix;
    while (used > 0 && out[used - 1] == '-') {
        used--;
    }
    if (used == 0) {
        tail++; // No leading dash, because the name is used in command lines.
    }
    size_t tail_bytes = strnlen(tail, bytes_max - used);
    memcpy(out + used, tail, tail_bytes);
    out[used + tail_bytes] = '\0';
}

/* Reads a decimal number without sign or leading zero, within min to max. */
static bool parse_number(const char *text, int64_t min, int64_t max, int64_t *ret)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 18 || text[digits] != '\0' || (digits > 1 && text[0] == '0')) {
        return false;
    }
    int64_t value = 0;
    for (size_t i = 0; i < digits; i++) {
        value = value * 10 + (text[i] - '0');
    }
    if (value < min || value > max) {
        return false;
    }
    *ret = value;
    return true;
}

enum evq_status evq_job_id_parse(const char *id, char scratch[EVQ_JOB_ID_BYTES_MAX],
                                 struct evq_job_name *ret_name, struct evq_error *err)
{
    char *parts[4] = {scratch, NULL, NULL, NULL};
    int64_t step = 0;
    int64_t generation = 1;
    int64_t shard = -1;
    size_t count = 1;

    if (strlen(id) >= EVQ_JOB_ID_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "job id '%.160s...' is longer than %d bytes", id,
                             EVQ_JOB_ID_BYTES_MAX - 1);
    }
    memcpy(scratch, id, strlen(id) + 1);
    for (char *c = scratch; *c != '\0'; c++) {
        if (*c == '/') {
            *c = '\0';
            if (count < 4) {
                parts[count] = c + 1;
            }
            count++;
        }
    }
    if (count != 4) {
        return evq_error_set(err, EVQ_E_INVALID, "job id '%.160s' is not RUN/STEP/VARIANT/SUITE",
                             id);
    }
    char *at = strchr(parts[3], '@');
    if (at != NULL) {
        *at = '\0';
    }
    char *tilde = strchr(parts[3], '~');
    if (tilde != NULL) {
        *tilde = '\0';
    }
    bool good = evq_job_name_valid(parts[0], EVQ_JOB_RUN_BYTES_MAX) &&
                parse_number(parts[1], 0, EVQ_JOB_STEP_MAX - 1, &step) &&
                evq_job_name_valid(parts[2], EVQ_JOB_NAME_BYTES_MAX) &&
                evq_job_name_valid(parts[3], EVQ_JOB_NAME_BYTES_MAX) &&
                (tilde == NULL || parse_number(tilde + 1, 2, INT32_MAX, &generation)) &&
                (at == NULL || parse_number(at + 1, 0, INT32_MAX, &shard));
    if (!good) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "job id '%.160s' is not RUN/STEP/VARIANT/SUITE[~GENERATION][@SHARD]",
                             id);
    }
    *ret_name = (struct evq_job_name){.run = parts[0],
                                      .step = step,
                                      .variant = parts[2],
                                      .suite = parts[3],
                                      .generation = (int32_t)generation,
                                      .shard = (int32_t)shard};
    return EVQ_OK;
}
