#include "producer/gateway/http/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/gateway/http/http.h"
#include "shared/base/file.h"
#include "shared/base/sha256.h"

#define FILE_BYTES_MAX 65536
#define DIGEST_CHARS   64

struct token {
    char name[EVQ_TOKEN_NAME_BYTES];
    unsigned rights;
    char digest[DIGEST_CHARS + 1]; // SHA-256 in lower-case hex.
};

struct list {
    struct token tokens[EVQ_TOKENS_MAX];
    size_t count;
};

struct evq_tokens {
    pthread_mutex_t lock; // Protects list.
    struct list *list;
    char *path;       // NULL: there is no file.
    struct stat read; // The file's status when it was read. Used by the reloading thread only.
};

static const struct {
    const char *name;
    unsigned rights;
} roles[] = {
    {"read", EVQ_HTTP_READ},
    {"write", EVQ_HTTP_READ | EVQ_HTTP_WRITE | EVQ_HTTP_LMMS},
    {"lmms", EVQ_HTTP_LMMS},
};

/* Reads the third word of a line: a token or its digest. */
static bool read_secret(const char *text, size_t bytes, char digest[DIGEST_CHARS + 1])
{
    if (bytes > 7 && memcmp(text, "sha256:", 7) == 0) {
        const bool good =
            bytes == 7 + DIGEST_CHARS && strspn(text + 7, "0123456789abcdefABCDEF") >= DIGEST_CHARS;
        for (size_t i = 0; good && i < DIGEST_CHARS; i++) {
            digest[i] =
                (char)(text[7 + i] >= 'A' && text[7 + i] <= 'F' ? text[7 + i] | 0x20 : text[7 + i]);
        }
        return good;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] == 0x7f) {
            return false;
        }
    }
    if (bytes < EVQ_TOKEN_BYTES_MIN || bytes > EVQ_TOKEN_BYTES_MAX) {
        return false;
    }
    evq_sha256_hex(text, bytes, digest);
    return true;
}

static enum evq_status read_line(struct list *list, const char *path, size_t number,
                                 const char *line, size_t bytes, struct evq_error *err)
{
    const char *words[4] = {NULL, NULL, NULL, NULL};
    size_t lengths[4] = {0, 0, 0, 0};
    size_t count = 0;
    for (size_t at = 0; at < bytes && count < 4;) {
        at += strspn(line + at, " \t\r");
        const size_t word = at < bytes ? strcspn(line + at, " \t\r\n") : 0;
        if (word > 0) {
            words[count] = line + at;
            lengths[count++] = word;
        }
        at += word;
    }
    if (count == 0 || words[0][0] == '#') {
        return EVQ_OK;
    }
    if (list->count == EVQ_TOKENS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%s:%zu: more than %d tokens", path, number,
                             EVQ_TOKENS_MAX);
    }
    struct token *token = &list->tokens[list->count];
    memset(token, 0, sizeof *token);
    if (count == 3 && lengths[0] < sizeof token->name) {
        memcpy(token->name, words[0], lengths[0]);
    }
    if (count != 3 || !evq_job_name_valid(token->name, sizeof token->name - 1)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s:%zu: expected NAME ROLE TOKEN, the name of 1 to %zu of the bytes "
                             "[A-Za-z0-9._-]",
                             path, number, sizeof token->name - 1);
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (lengths[1] == strlen(roles[i].name) &&
            memcmp(words[1], roles[i].name, lengths[1]) == 0) {
            token->rights = roles[i].rights;
        }
    }
    if (token->rights == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s:%zu: the role of '%s' is not read, write or lmms", path, number,
                             token->name);
    }
    if (!read_secret(words[2], lengths[2], token->digest)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s:%zu: the token of '%s' is neither %d to %d printable bytes nor "
                             "sha256: and 64 hex digits",
                             path, number, token->name, EVQ_TOKEN_BYTES_MIN, EVQ_TOKEN_BYTES_MAX);
    }
    list->count++;
    return EVQ_OK;
}

static enum evq_status read_text(const char *path, const char *text, struct list *list,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    for (size_t number = 1; status == EVQ_OK && *text != '\0'; number++) {
        const size_t bytes = strcspn(text, "\n");
        status = read_line(list, path, number, text, bytes, err);
        text += bytes + (text[bytes] == '\n');
    }
    return status;
}

static enum evq_status read_file(const char *path, struct list **ret_list, struct stat *ret_info,
                                 struct evq_error *err)
{
    static const char secrets[] =
        "/run/secrets/"; // Container engines make the files here readable by all.
    enum evq_status status = EVQ_OK;
    struct list *list = calloc(1, sizeof *list);
    char *text = calloc(1, FILE_BYTES_MAX + 1);

    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, ret_info) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "open the tokens '%s': %s", path, strerror(errno));
        goto out;
    }
    if (list == NULL || text == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the tokens");
        goto out;
    }
    if (!S_ISREG(ret_info->st_mode) || ret_info->st_size > FILE_BYTES_MAX) {
        status = evq_error_set(err, EVQ_E_INVALID,
                               "the tokens '%s' are not a regular file of at most %d bytes", path,
                               FILE_BYTES_MAX);
        goto out;
    }
    if ((ret_info->st_mode & S_IROTH) != 0 && strncmp(path, secrets, sizeof secrets - 1) != 0) {
        status = evq_error_set(
            err, EVQ_E_INVALID,
            "the tokens '%s' are readable by every user: run chmod 600 on the file", path);
        goto out;
    }
    const ssize_t got = pread(fd, text, FILE_BYTES_MAX, 0);
    if (got < 0 || strlen(text) != (size_t)got) {
        status = evq_error_set(err, EVQ_E_INVALID, "the tokens '%s' are no text", path);
        goto out;
    }
    status = read_text(path, text, list, err);
    if (status == EVQ_OK) {
        *ret_list = list;
        list = NULL;
    }
out:
    free(list);
    if (text != NULL) {
        explicit_bzero(text, FILE_BYTES_MAX);
    }
    free(text);
    evq_file_close(&fd);
    return status;
}

enum evq_status evq_tokens_open(const char *path, struct evq_tokens **ret_tokens,
                                struct evq_error *err)
{
    struct evq_tokens *tokens = calloc(1, sizeof *tokens);
    if (tokens == NULL || pthread_mutex_init(&tokens->lock, NULL) != 0) {
        free(tokens);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the tokens");
    }
    enum evq_status status = EVQ_OK;
    if (path != NULL && path[0] != '\0') {
        tokens->path = strdup(path);
        status = tokens->path == NULL ? evq_error_set(err, EVQ_E_NOMEM, "no memory for the tokens")
                                      : read_file(path, &tokens->list, &tokens->read, err);
    }
    if (status != EVQ_OK) {
        evq_tokens_free(tokens);
        return status;
    }
    *ret_tokens = tokens;
    return EVQ_OK;
}

void evq_tokens_free(struct evq_tokens *tokens)
{
    if (tokens != NULL) {
        free(tokens->list);
        free(tokens->path);
        (void)pthread_mutex_destroy(&tokens->lock); // Nobody holds it any more.
        free(tokens);
    }
}

bool evq_tokens_changed(const struct evq_tokens *tokens)
{
    struct stat now;
    if (tokens->path == NULL || stat(tokens->path, &now) != 0) {
        return false; // The file is being replaced or is gone: the tokens that were read stay
                      // valid.
    }
    return !evq_file_unchanged(&now, &tokens->read);
}

enum evq_status evq_tokens_reload(struct evq_tokens *tokens, size_t *ret_count,
                                  struct evq_error *err)
{
    struct list *list = NULL;
    struct stat info = {0};
    *ret_count = 0;
    if (tokens->path == NULL) {
        return EVQ_OK;
    }
    enum evq_status status = read_file(tokens->path, &list, &info, err);
    if (info.st_ino != 0) {
        tokens->read = info; // A faulty file is reported once.
    }
    if (status != EVQ_OK) {
        return status;
    }
    (void)pthread_mutex_lock(&tokens->lock);
    struct list *before = tokens->list;
    tokens->list = list;
    (void)pthread_mutex_unlock(&tokens->lock);
    free(before);
    *ret_count = list->count;
    return EVQ_OK;
}

bool evq_tokens_check(struct evq_tokens *tokens, const char *authorization, unsigned *ret_rights,
                      char ret_name[EVQ_TOKEN_NAME_BYTES])
{
    char digest[DIGEST_CHARS + 1] = "";
    size_t found = SIZE_MAX;

    if (strncasecmp(authorization, "Bearer ", 7) != 0) {
        return false;
    }
    const char *secret = authorization + 7 + strspn(authorization + 7, " ");
    const size_t bytes = strnlen(secret, EVQ_TOKEN_BYTES_MAX + 1);
    if (bytes < EVQ_TOKEN_BYTES_MIN || bytes > EVQ_TOKEN_BYTES_MAX) {
        return false;
    }
    evq_sha256_hex(secret, bytes, digest);
    (void)pthread_mutex_lock(&tokens->lock);
    for (size_t i = 0; tokens->list != NULL && i < tokens->list->count; i++) {
        unsigned differ = 0; // Compare every byte of every token, so that the time says nothing.
        for (size_t k = 0; k < DIGEST_CHARS; k++) {
            differ |= (unsigned)(digest[k] ^ tokens->list->tokens[i].digest[k]);
        }
        found = differ == 0 ? i : found;
    }
    if (found != SIZE_MAX) {
        *ret_rights = tokens->list->tokens[found].rights;
        memcpy(ret_name, tokens->list->tokens[found].name, EVQ_TOKEN_NAME_BYTES);
    }
    (void)pthread_mutex_unlock(&tokens->lock);
    explicit_bzero(digest, sizeof digest);
    return found != SIZE_MAX;
}
