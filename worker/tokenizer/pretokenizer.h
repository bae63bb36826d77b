/*
 * Divides a text into the pieces that are merged one by one. There is a hand-written scanner for
 * each known pattern, and none of them looks back. Any thread.
 */
#ifndef EVQ_WORKER_TOKENIZER_PRETOKENIZER_H
#define EVQ_WORKER_TOKENIZER_PRETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

enum evq_pretokenizer_kind {
    EVQ_PRETOKENIZER_GPT2,     // The pattern of ByteLevel.
    EVQ_PRETOKENIZER_LLAMA3,   // Numbers have up to three digits.
    EVQ_PRETOKENIZER_QWEN2,    // Each digit is a piece.
    EVQ_PRETOKENIZER_QWEN3_5,  // Like QWEN2, but marks belong to letters.
    EVQ_PRETOKENIZER_SEED,     // Like QWEN2, but line ends do not follow punctuation.
    EVQ_PRETOKENIZER_O200K,    // A word ends where small letters end.
    EVQ_PRETOKENIZER_TEKKEN,   // Like O200K, but each digit is a piece, and 's is apart.
    EVQ_PRETOKENIZER_DEEPSEEK, // The last of DeepSeek's three patterns; the others come first:
    EVQ_PRETOKENIZER_NUMBERS,  // numbers of up to three digits, and what is between them,
    EVQ_PRETOKENIZER_KANA,     // and runs of Chinese and Japanese, and what is between them.
    EVQ_PRETOKENIZER_DIGIT,    // Each digit is a piece, and so is the text between two digits.
    EVQ_PRETOKENIZER_DIGITS,   // A run of digits is a piece, and so is the text between two runs.
    EVQ_PRETOKENIZER_BERT,     // Words, single punctuation, and runs of white space.
    EVQ_PRETOKENIZER_UNDERS,   // Divides before each U+2581 that follows another character.
    EVQ_PRETOKENIZER_UNDER     // Divides before each U+2581.
};

/* Finds the kind of a pattern, GPT2 to KANA; false: the pattern is not known. From DEEPSEEK on, a
 * pattern does not match all text. */
bool evq_pretokenizer_find(const char *pattern, size_t bytes, enum evq_pretokenizer_kind *ret_kind);

/* Length of the first piece of text, which is valid UTF-8 and not empty. */
size_t evq_pretokenizer_next(enum evq_pretokenizer_kind kind, const char *text, size_t bytes);

#endif
