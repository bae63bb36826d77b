#include "shared/checkpoint/json.h"

#include <string.h>

enum {
    EXPECT_VALUE,        // After ':' or at the start.
    EXPECT_FIRST_KEY,    // After '{'.
    EXPECT_FIRST_ITEM,   // After '['.
    EXPECT_COMMA_OR_END, // After a value inside an object or array.
    EXPECT_NOTHING       // After the whole value.
};

void evq_json_init(struct evq_json *json, char *text, size_t bytes)
{
    *json = (struct evq_json){.text = text, .bytes = bytes, .expect = EXPECT_VALUE};
}

static enum evq_status fault(struct evq_json *json, const char *expected, struct evq_error *err)
{
    if (json->at >= json->bytes) {
        json->ended = true;
        return evq_error_set(err, EVQ_E_CORRUPT, "JSON ends at byte %zu where %s was expected",
                             json->bytes, expected);
    }
    return evq_error_set(err, EVQ_E_CORRUPT, "JSON byte %zu is 0x%02x where %s was expected",
                         json->at, (unsigned)(unsigned char)json->text[json->at], expected);
}

static void skip_space(struct evq_json *json)
{
    while (json->at < json->bytes) {
        char c = json->text[json->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') {
            break;
        }
        json->at++;
    }
}

static bool hex4(const struct evq_json *json, size_t at, uint32_t *ret_code)
{
    uint32_t code = 0;

    if (json->bytes - at < 4) {
        return false;
    }
    for (size_t i = at; i < at + 4; i++) {
        unsigned char c = (unsigned char)json->text[i];
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = c - '0';
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            digit = (uint32_t)(c | 0x20) - 'a' + 10;
        } else {
            return false;
        }
        code = code * 16 + digit;
    }
    *ret_code = code;
    return true;
}

static size_t put_utf8(char *out, uint32_t code)
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | (code >> 12));
        out[1] = (char)(0x80 | ((code >> 6) & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | (code >> 18));
    out[1] = (char)(0x80 | ((code >> 12) & 0x3f));
    out[2] = (char)(0x80 | ((code >> 6) & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Reads an escape whose 'u' is at json->at, and moves json->at past its last digit. */
static enum evq_status read_unicode(struct evq_json *json, char *out, size_t *out_at,
                                    struct evq_error *err)
{
    uint32_t code = 0;
    uint32_t low = 0;

    if (!hex4(json, json->at + 1, &code)) {
        return fault(json, "\\u and four hexadecimal digits", err);
    }
    json->at += 5;
    if (code >= 0xd800 && code <= 0xdbff) {
        if (json->bytes - json->at < 6 || json->text[json->at] != '\\' ||
            json->text[json->at + 1] != 'u' || !hex4(json, json->at + 2, &low) || low < 0xdc00 ||
            low > 0xdfff) {
            return fault(json, "the second half of a surrogate pair", err);
        }
        json->at += 6;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        return evq_error_set(err, EVQ_E_CORRUPT, "JSON byte %zu: half of a surrogate pair alone",
                             json->at);
    } else if (code == 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "JSON byte %zu: a NUL inside a string", json->at);
    }
    *out_at += put_utf8(out + *out_at, code);
    return EVQ_OK;
}

static enum evq_status read_escapes(struct evq_json *json, size_t start,
                                    struct evq_json_token *token, struct evq_error *err)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    char *out = json->text + start;
    size_t out_at = json->at - start; // Bytes before the first escape stay where they are.

    while (json->at < json->bytes && json->text[json->at] != '"') {
        unsigned char c = (unsigned char)json->text[json->at];
        if (c < 0x20) {
            return fault(json, "no control byte inside a string", err);
        }
        if (c != '\\') {
            out[out_at++] = (char)c;
            json->at++;
            continue;
        }
        json->at++;
        if (json->at >= json->bytes) {
            return fault(json, "an escape", err);
        }
        if (json->text[json->at] == 'u') {
            enum evq_status status = read_unicode(json, out, &out_at, err);
            if (status != EVQ_OK) {
                return status;
            }
            continue;
        }
        const char *known =
            json->text[json->at] == '\0' ? NULL : strchr(from, json->text[json->at]);
        if (known == NULL) {
            return fault(json, "one of \"\\/bfnrtu after a backslash", err);
        }
        out[out_at++] = to[known - from];
        json->at++;
    }
    if (json->at >= json->bytes) {
        return fault(json, "the closing quote of a string", err);
    }
    out[out_at] = '\0';
    *token = (struct evq_json_token){.text = out, .bytes = out_at};
    json->at++;
    return EVQ_OK;
}

/* Reads a string. json->at is after the opening quote. */
static enum evq_status read_string(struct evq_json *json, struct evq_json_token *token,
                                   struct evq_error *err)
{
    size_t start = json->at;
    size_t at = start;

    while (at < json->bytes) {
        unsigned char c = (unsigned char)json->text[at];
        if (c == '"') {
            json->text[at] = '\0';
            *token = (struct evq_json_token){.text = json->text + start, .bytes = at - start};
            json->at = at + 1;
            return EVQ_OK;
        }
        if (c == '\\' || c < 0x20) {
            break;
        }
        at++;
    }
    json->at = at;
    return read_escapes(json, start, token, err);
}

static size_t skip_digits(struct evq_json *json)
{
    size_t start = json->at;

    while (json->at < json->bytes && json->text[json->at] >= '0' && json->text[json->at] <= '9') {
        json->at++;
    }
    return json->at - start;
}

static char peek(const struct evq_json *json)
{
    return json->at < json->bytes ? json->text[json->at] : '\0';
}

/* Reads NaN, Infinity or -Infinity if Python's numbers are allowed. */
static bool read_python_number(struct evq_json *json, struct evq_json_token *token)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; json->python && i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t bytes = strlen(words[i]);
        if (json->bytes - json->at >= bytes &&
            memcmp(json->text + json->at, words[i], bytes) == 0) {
            *token = (struct evq_json_token){
                .kind = EVQ_JSON_NUMBER, .text = json->text + json->at, .bytes = bytes};
            json->at += bytes;
            return true;
        }
    }
    return false;
}

static enum evq_status read_number(struct evq_json *json, struct evq_json_token *token,
                                   struct evq_error *err)
{
    size_t start = json->at;

    if (read_python_number(json, token)) {
        return EVQ_OK;
    }
    if (peek(json) == '-') {
        json->at++;
    }
    if (peek(json) == '0') {
        json->at++;
    } else if (skip_digits(json) == 0) {
        return fault(json, "a digit", err);
    }
    if (peek(json) == '.') {
        json->at++;
        if (skip_digits(json) == 0) {
            return fault(json, "a digit after the point", err);
        }
    }
    if (peek(json) == 'e' || peek(json) == 'E') {
        json->at++;
        if (peek(json) == '+' || peek(json) == '-') {
            json->at++;
        }
        if (skip_digits(json) == 0) {
            return fault(json, "a digit of the exponent", err);
        }
    }
    *token = (struct evq_json_token){
        .kind = EVQ_JSON_NUMBER, .text = json->text + start, .bytes = json->at - start};
    return EVQ_OK;
}

static enum evq_status open_level(struct evq_json *json, bool array, struct evq_error *err)
{
    if (json->depth == EVQ_JSON_DEPTH_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "JSON byte %zu: nested deeper than %d levels",
                             json->at, EVQ_JSON_DEPTH_MAX);
    }
    uint64_t bit = (uint64_t)1 << json->depth;
    json->arrays = array ? json->arrays | bit : json->arrays & ~bit;
    json->depth++;
    json->at++;
    json->expect = array ? EXPECT_FIRST_ITEM : EXPECT_FIRST_KEY;
    return EVQ_OK;
}

static bool in_array(const struct evq_json *json)
{
    return (json->arrays >> (json->depth - 1) & 1) != 0;
}

static void value_done(struct evq_json *json)
{
    json->expect = json->depth == 0 ? EXPECT_NOTHING : EXPECT_COMMA_OR_END;
}

static enum evq_status read_word(struct evq_json *json, const char *word, enum evq_json_kind kind,
                                 struct evq_json_token *token, struct evq_error *err)
{
    size_t bytes = strlen(word);

    if (json->bytes - json->at < bytes || memcmp(json->text + json->at, word, bytes) != 0) {
        if (json->bytes - json->at < bytes) {
            json->at = json->bytes;
        }
        return fault(json, "a value", err);
    }
    json->at += bytes;
    token->kind = kind;
    value_done(json);
    return EVQ_OK;
}

static enum evq_status read_value(struct evq_json *json, struct evq_json_token *token,
                                  struct evq_error *err)
{
    enum evq_status status;

    switch (peek(json)) {
    case '{':
        token->kind = EVQ_JSON_OBJECT;
        return open_level(json, false, err);
    case '[':
        token->kind = EVQ_JSON_ARRAY;
        return open_level(json, true, err);
    case '"':
        json->at++;
        status = read_string(json, token, err);
        token->kind = EVQ_JSON_STRING;
        value_done(json);
        return status;
    case 't':
        return read_word(json, "true", EVQ_JSON_TRUE, token, err);
    case 'f':
        return read_word(json, "false", EVQ_JSON_FALSE, token, err);
    case 'n':
        return read_word(json, "null", EVQ_JSON_NULL, token, err);
    case '-':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
        status = read_number(json, token, err);
        value_done(json);
        return status;
    default:
        if (read_python_number(json, token)) {
            value_done(json);
            return EVQ_OK;
        }
        return fault(json, "a value", err);
    }
}

static enum evq_status read_key(struct evq_json *json, struct evq_json_token *token,
                                struct evq_error *err)
{
    if (peek(json) != '"') {
        return fault(json, "a quoted key", err);
    }
    json->at++;
    enum evq_status status = read_string(json, token, err);
    if (status != EVQ_OK) {
        return status;
    }
    token->kind = EVQ_JSON_KEY;
    skip_space(json);
    if (peek(json) != ':') {
        return fault(json, "':'", err);
    }
    json->at++;
    json->expect = EXPECT_VALUE;
    return EVQ_OK;
}

static enum evq_status close_level(struct evq_json *json, struct evq_json_token *token)
{
    token->kind = in_array(json) ? EVQ_JSON_ARRAY_END : EVQ_JSON_OBJECT_END;
    json->at++;
    json->depth--;
    value_done(json);
    return EVQ_OK;
}

enum evq_status evq_json_next(struct evq_json *json, struct evq_json_token *ret_token,
                              struct evq_error *err)
{
    *ret_token = (struct evq_json_token){.kind = EVQ_JSON_END};
    skip_space(json);
    switch (json->expect) {
    case EXPECT_NOTHING:
        return json->at == json->bytes ? EVQ_OK : fault(json, "the end", err);
    case EXPECT_FIRST_KEY:
        return peek(json) == '}' ? close_level(json, ret_token) : read_key(json, ret_token, err);
    case EXPECT_FIRST_ITEM:
        return peek(json) == ']' ? close_level(json, ret_token) : read_value(json, ret_token, err);
    case EXPECT_COMMA_OR_END:
        if (peek(json) == (in_array(json) ? ']' : '}')) {
            return close_level(json, ret_token);
        }
        if (peek(json) != ',') {
            return fault(json, in_array(json) ? "',' or ']'" : "',' or '}'", err);
        }
        json->at++;
        skip_space(json);
        return in_array(json) ? read_value(json, ret_token, err) : read_key(json, ret_token, err);
    default:
        return read_value(json, ret_token, err);
    }
}

enum evq_status evq_json_skip(struct evq_json *json, const struct evq_json_token *token,
                              struct evq_error *err)
{
    if (token->kind != EVQ_JSON_OBJECT && token->kind != EVQ_JSON_ARRAY) {
        return EVQ_OK;
    }
    size_t outside = json->depth - 1;
    while (json->depth > outside) {
        struct evq_json_token inner;
        enum evq_status status = evq_json_next(json, &inner, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return EVQ_OK;
}

bool evq_json_u64(const struct evq_json_token *token, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (token->kind != EVQ_JSON_NUMBER || token->bytes > 20) {
        return false;
    }
    for (size_t i = 0; i < token->bytes; i++) {
        unsigned digit = (unsigned)(unsigned char)token->text[i] - '0';
        if (digit > 9 || __builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value)) {
            return false;
        }
    }
    *ret_value = value;
    return true;
}
