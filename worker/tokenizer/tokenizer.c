#include "worker/tokenizer/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/hex.h"
#include "worker/tokenizer/tokenizer_files.h"
#include "worker/tokenizer/tokenizer_internal.h"

void evq_tokenizer_free(struct evq_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    evq_bpe_free(&tokenizer->bpe);
    evq_wordpiece_free(&tokenizer->wordpiece);
    evq_added_tokens_free(&tokenizer->raw);
    evq_added_tokens_free(&tokenizer->normalized);
    free(tokenizer->path);
    free(tokenizer);
}

/* Puts one added token into its list. A token that is searched in normalized text is normalized
 * first. */
static enum evq_status put_added(struct evq_tokenizer *tokenizer, struct evq_added_token added,
                                 struct evq_buffer buffers[3], struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (added.content.bytes == 0) {
        return EVQ_OK; // Such a token is never found.
    }
    added.written = added.content;
    tokenizer->vocabulary =
        added.id >= tokenizer->vocabulary ? added.id + 1 : tokenizer->vocabulary;
    if (!added.normalized) {
        return evq_added_tokens_put(&tokenizer->raw, &added, err);
    }
    status = evq_text_steps_normalize(&tokenizer->steps, added.content, buffers, &buffers[2],
                                      &added.content, err);
    if (status == EVQ_OK && added.content.bytes == 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "'%s': normalizing leaves nothing of the added token with id %d",
                             tokenizer->path, (int)added.id);
    }
    return status == EVQ_OK ? evq_added_tokens_put(&tokenizer->normalized, &added, err) : status;
}

static enum evq_status build_added(const struct evq_tokenizer_json *definition,
                                   struct evq_tokenizer *tokenizer, struct evq_error *err)
{
    struct evq_buffer buffers[3];
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < 3; i++) {
        evq_buffer_init(&buffers[i], SIZE_MAX);
    }
    for (size_t i = 0; status == EVQ_OK && i < definition->added_count; i++) {
        status = put_added(tokenizer, definition->added[i], buffers, err);
    }
    for (size_t i = 0; i < 3; i++) {
        evq_buffer_free(&buffers[i]);
    }
    if (status == EVQ_OK) {
        status = evq_added_tokens_sort(&tokenizer->raw, definition->path, err);
    }
    if (status == EVQ_OK) {
        status = evq_added_tokens_sort(&tokenizer->normalized, definition->path, err);
    }
    return status == EVQ_OK ? evq_added_tokens_check_apart(&tokenizer->raw, &tokenizer->normalized,
                                                           definition->path, err)
                            : status;
}

/* Chooses the pieces if there is no pre-tokenizer: the text is one piece, unless no merge crosses a
 * U+2581. */
static void choose_scan(struct evq_tokenizer *tokenizer)
{
    if (tokenizer->steps.scan_count == 0 && !tokenizer->bpe.byte_level &&
        tokenizer->bpe.divides_at_under) {
        tokenizer->steps.scans[tokenizer->steps.scan_count++] = EVQ_PRETOKENIZER_UNDERS;
    }
}

static enum evq_status build(const struct evq_tokenizer_json *definition,
                             struct evq_tokenizer *tokenizer, struct evq_error *err)
{
    tokenizer->steps = definition->steps;
    tokenizer->single = definition->single;
    tokenizer->cuts_left = definition->cuts_left;
    tokenizer->pair = definition->pair;
    tokenizer->path = strdup(definition->path);
    if (tokenizer->path == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", definition->path);
    }
    if (definition->entry_count == 0) {
        return evq_tokenizer_json_bad(definition, err, "its vocabulary is empty");
    }
    enum evq_status status = evq_bpe_build(definition, &tokenizer->bpe, err);
    if (status == EVQ_OK && definition->word_characters_max > 0) {
        status = evq_wordpiece_build(definition, &tokenizer->wordpiece, err);
    }
    if (status == EVQ_OK) {
        tokenizer->vocabulary = tokenizer->bpe.id_max + 1;
        choose_scan(tokenizer);
        status = build_added(definition, tokenizer, err);
    }
    return status;
}

static void finish_digest(struct evq_tokenizer *tokenizer, XXH3_state_t *state)
{
    // Other files name these.
    const int32_t told[] = {tokenizer->bos, tokenizer->eos, tokenizer->cuts_left,
                            tokenizer->typeless};

    (void)XXH3_128bits_update(state, told, sizeof(told)); // This fails only for a NULL state.
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    evq_hex_128(hash.high64, hash.low64, tokenizer->digest);
}

static enum evq_status open_files(const struct evq_tokenizer_files *files,
                                  struct evq_tokenizer *tokenizer, struct evq_error *err)
{
    struct evq_tokenizer_json definition = {0};
    XXH3_state_t *state = XXH3_createState();

    enum evq_status status = state != NULL ? evq_tokenizer_json_init(&definition, files->path, err)
                                           : evq_error_set(err, EVQ_E_NOMEM, "a tokenizer");
    if (status == EVQ_OK) {
        status = evq_tokenizer_files_read(files, files->path, &definition.file, err);
    }
    if (status == EVQ_OK) {
        // This comes before reading, because reading changes the buffer. It fails only for NULL.
        (void)XXH3_128bits_reset(state);
        (void)XXH3_128bits_update(state, definition.file.data, definition.file.bytes);
        status = evq_tokenizer_json_read(&definition, err);
    }
    if (status == EVQ_OK) {
        status = build(&definition, tokenizer, err);
    }
    if (status == EVQ_OK) {
        status = evq_tokenizer_files_set_bos_eos(files, tokenizer, err);
    }
    if (status == EVQ_OK) {
        finish_digest(tokenizer, state);
    }
    evq_tokenizer_json_free(&definition);
    XXH3_freeState(state); // It accepts NULL.
    return status;
}

enum evq_status evq_tokenizer_open(int root_fd, const char *path,
                                   struct evq_tokenizer **ret_tokenizer, struct evq_error *err)
{
    struct evq_tokenizer_files files;

    struct evq_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (tokenizer == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a tokenizer");
    }
    enum evq_status status = evq_tokenizer_files_find(root_fd, path, &files, err);
    if (status == EVQ_OK) {
        status = open_files(&files, tokenizer, err);
    }
    if (status != EVQ_OK) {
        evq_tokenizer_free(tokenizer);
        return status;
    }
    *ret_tokenizer = tokenizer;
    return EVQ_OK;
}

int32_t evq_tokenizer_prefix(const struct evq_tokenizer *tokenizer)
{
    return tokenizer->bos >= 0 ? tokenizer->bos : tokenizer->eos;
}

static bool begins(const struct evq_added_tokens *added, int32_t id, const char *text, size_t bytes)
{
    for (size_t i = 0; i < added->count; i++) {
        const struct evq_tokenizer_text written = added->tokens[i].written;
        if (added->tokens[i].id == id) {
            return bytes >= written.bytes && memcmp(text, written.text, written.bytes) == 0;
        }
    }
    return false;
}

bool evq_tokenizer_text_begins_with(const struct evq_tokenizer *tokenizer, int32_t id,
                                    const char *text, size_t bytes)
{
    return begins(&tokenizer->raw, id, text, bytes) ||
           begins(&tokenizer->normalized, id, text, bytes);
}

void evq_tokenizer_count_around(const struct evq_tokenizer *tokenizer, int64_t *ret_before,
                                int64_t *ret_after)
{
    *ret_before = 0;
    while (tokenizer->single.parts[*ret_before].id != EVQ_TEMPLATE_FIRST) {
        ++*ret_before;
    }
    *ret_after = (int64_t)tokenizer->single.count - *ret_before - 1;
}

const char *evq_tokenizer_name(const struct evq_tokenizer *tokenizer)
{
    return tokenizer->path;
}

const char *evq_tokenizer_digest(const struct evq_tokenizer *tokenizer)
{
    return tokenizer->digest;
}
