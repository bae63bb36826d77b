/*
 * Reads the settings of tokenizer.json into the definition, and refuses those that it does not
 * know. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_TOKENIZER_SETTINGS_H
#define EVQ_WORKER_TOKENIZER_SETTINGS_H

#include "worker/tokenizer/json_tree.h"
#include "worker/tokenizer/tokenizer_json.h"

enum evq_settings_model {
    EVQ_SETTINGS_MODEL_TYPE,
    EVQ_SETTINGS_MODEL_DROPOUT,
    EVQ_SETTINGS_MODEL_UNK,
    EVQ_SETTINGS_MODEL_PREFIX,
    EVQ_SETTINGS_MODEL_SUFFIX,
    EVQ_SETTINGS_MODEL_FUSE_UNK,
    EVQ_SETTINGS_MODEL_BYTE_FALLBACK,
    EVQ_SETTINGS_MODEL_IGNORE_MERGES,
    EVQ_SETTINGS_MODEL_WORD_CHARACTERS,
    EVQ_SETTINGS_MODEL_COUNT
};

struct evq_settings { // NULL: the setting is missing.
    struct evq_json_tree *version, *truncation, *normalizer, *pre_tokenizer, *post_processor;
    struct evq_json_tree *model[EVQ_SETTINGS_MODEL_COUNT];
};

/* Where to store the tree of this member; NULL: the member does not matter. */
struct evq_json_tree **evq_settings_member(struct evq_settings *settings, const char *key);
struct evq_json_tree **evq_settings_model(struct evq_settings *settings, const char *key);

/* EVQ_E_UNSUPPORTED if the model's type was read and is neither BPE nor WordPiece. */
enum evq_status evq_settings_check_type(const struct evq_tokenizer_json *definition,
                                        struct evq_json_tree *const *model,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds one element of added_tokens. */
enum evq_status evq_settings_added(struct evq_tokenizer_json *definition,
                                   const struct evq_json_tree *tree,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Applies all other settings. EVQ_E_UNSUPPORTED names what is not known; EVQ_E_CORRUPT. */
enum evq_status evq_settings_apply(struct evq_tokenizer_json *definition,
                                   const struct evq_settings *settings,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* The parts of evq_settings_apply(). */
enum evq_status evq_settings_normalizer(struct evq_tokenizer_json *definition,
                                        const struct evq_json_tree *tree,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_settings_pre_tokenizer(struct evq_tokenizer_json *definition,
                                           const struct evq_json_tree *tree,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_settings_post_processor(struct evq_tokenizer_json *definition,
                                            const struct evq_json_tree *tree,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

#endif
