#include "producer/gateway/lmms/lmms_fields.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define INT_END 9223372036854775808.0 // Whole numbers lie below it.

void evq_lmms_fields_begin(struct evq_lmms_fields *fields, const json_t *body)
{
    *fields = (struct evq_lmms_fields){.body = body, .detail = json_array(), .out = json_object()};
    fields->failed = fields->detail == NULL || fields->out == NULL;
}

void evq_lmms_fields_end(struct evq_lmms_fields *fields)
{
    json_decref(fields->detail);
    json_decref(fields->out);
    *fields = (struct evq_lmms_fields){.body = NULL};
}

/* ["body", name, member]; member NULL: without it; index >= 0: a number in its place. */
static json_t *location(const char *name, const char *member, int index)
{
    json_t *list = json_pack("[s]", "body");
    if (name != NULL) {
        (void)json_array_append_new(list, json_string(name)); // Out of memory: dumping tells.
    }
    if (member != NULL) {
        (void)json_array_append_new(list, json_string(member));
    }
    if (index >= 0) {
        (void)json_array_append_new(list, json_integer(index));
    }
    return list;
}

static json_t *entry(const char *type, json_t *where, const char *message, const json_t *input)
{
    json_t *value = input != NULL ? json_deep_copy(input) : json_null();
    return json_pack("{s:s, s:o, s:s, s:o}", "type", type, "loc", where, "msg", message, "input",
                     value);
}

json_t *evq_lmms_fault(const char *type, const char *message, const json_t *input)
{
    return json_pack("{s:[o]}", "detail", entry(type, location(NULL, NULL, -1), message, input));
}

static void refuse(struct evq_lmms_fields *fields, json_t *fault)
{
    if (fault == NULL || json_array_append_new(fields->detail, fault) != 0) {
        fields->failed = true;
    }
}

struct word { // The texts of the error for a value of the wrong kind.
    const char *type;
    const char *message;
};

static const struct word none = {NULL, NULL};

/* Removes blanks around the text and "_" between its digits, with which Python writes large
 * numbers. false: it does not fit, or contains something that no decimal number contains. */
static bool trimmed(const char *text, char *out, size_t out_bytes)
{
    size_t used = 0;
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t bytes = strlen(text);
    while (bytes > 0 && isspace((unsigned char)text[bytes - 1])) {
        bytes--;
    }
    if (bytes == 0 || bytes >= out_bytes) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '_' && i > 0 && isdigit((unsigned char)text[i - 1]) && i + 1 < bytes &&
            isdigit((unsigned char)text[i + 1])) {
            continue;
        }
        if (strchr("0123456789+-.eE", text[i]) == NULL) {
            return false;
        }
        out[used++] = text[i];
    }
    out[used] = '\0';
    return true;
}

static bool int_of_text(const char *text, int64_t *ret)
{
    char digits[40];
    char *end = NULL;

    if (!trimmed(text, digits, sizeof digits) ||
        !(isdigit((unsigned char)digits[0]) || digits[0] == '-' || digits[0] == '+')) {
        return false;
    }
    errno = 0;
    *ret = strtoll(digits, &end, 10);
    if (errno != 0 || end == digits) {
        return false;
    }
    if (*end == '.' && end[1] != '\0') { // "3.0" is a whole number too.
        end++;
        end += strspn(end, "0");
    }
    return *end == '\0';
}

/* Each take_ function gives a new reference, or NULL and the words of the refusal. */
static json_t *take_int(const json_t *value, struct word *ret_why)
{
    static const struct word kind = {"int_type", "Input should be a valid integer"};
    static const struct word parse = {
        "int_parsing", "Input should be a valid integer, unable to parse string as an integer"};
    static const struct word cut = {
        "int_from_float", "Input should be a valid integer, got a number with a fractional part"};
    static const struct word large = {
        "int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size"};
    static const struct word infinite = {"finite_number", "Input should be a finite number"};
    int64_t number = 0;

    *ret_why = kind;
    if (json_is_integer(value)) {
        return json_integer(json_integer_value(value));
    }
    if (json_is_boolean(value)) {
        return json_integer(json_is_true(value));
    }
    if (json_is_real(value)) {
        const double real = json_real_value(value);
        const bool whole = isfinite(real) && real == floor(real);
        *ret_why = whole ? large : isfinite(real) ? cut : infinite;
        return whole && fabs(real) < INT_END ? json_integer((int64_t)real) : NULL;
    }
    if (json_is_string(value)) {
        *ret_why = parse;
        return int_of_text(json_string_value(value), &number) ? json_integer(number) : NULL;
    }
    return NULL;
}

static json_t *take_float(const json_t *value, struct word *ret_why)
{
    static const struct word kind = {"float_type", "Input should be a valid number"};
    static const struct word parse = {
        "float_parsing", "Input should be a valid number, unable to parse string as a number"};
    char digits[64];
    char *end = NULL;

    *ret_why = kind;
    if (json_is_number(value)) {
        return json_real(json_number_value(value));
    }
    if (json_is_boolean(value)) {
        return json_real(json_is_true(value) ? 1.0 : 0.0);
    }
    if (json_is_string(value)) {
        *ret_why = parse;
        if (trimmed(json_string_value(value), digits, sizeof digits)) {
            const double real = strtod(digits, &end);
            return end != digits && *end == '\0' && isfinite(real) ? json_real(real) : NULL;
        }
    }
    return NULL;
}

static json_t *take_text(const json_t *value, struct word *ret_why)
{
    static const struct word kind = {"string_type", "Input should be a valid string"};
    *ret_why = kind;
    return json_is_string(value) ? json_copy((json_t *)(uintptr_t)value) : NULL;
}

static json_t *take_bool(const json_t *value, struct word *ret_why)
{
    static const struct word kind = {"bool_type", "Input should be a valid boolean"};
    static const struct word parse = {"bool_parsing",
                                      "Input should be a valid boolean, unable to interpret input"};
    static const char *const yes[] = {"1", "on", "t", "true", "y", "yes"};
    static const char *const no[] = {"0", "off", "f", "false", "n", "no"};

    *ret_why = kind;
    if (json_is_boolean(value)) {
        return json_boolean(json_is_true(value));
    }
    if (json_is_number(value)) {
        const double real = json_number_value(value);
        *ret_why = real == floor(real) && fabs(real) < INT_END ? parse : kind;
        return real == 0.0 || real == 1.0 ? json_boolean(real != 0.0) : NULL;
    }
    if (json_is_string(value)) {
        *ret_why = parse;
        for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
            if (strcasecmp(yes[i], json_string_value(value)) == 0) {
                return json_true();
            }
            if (strcasecmp(no[i], json_string_value(value)) == 0) {
                return json_false();
            }
        }
    }
    return NULL;
}

/* A list of texts; what is wrong with its members goes to detail itself. */
static json_t *take_texts(struct evq_lmms_fields *fields, const char *name, const json_t *value,
                          struct word *ret_why)
{
    static const struct word kind = {"list_type", "Input should be a valid list"};
    struct word why = none;

    *ret_why = kind;
    if (!json_is_array(value)) {
        return NULL;
    }
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        json_t *text = take_text(item, &why);
        if (text == NULL) {
            refuse(fields, entry(why.type, location(name, NULL, (int)i), why.message, item));
            good = false;
        } else if (json_array_append_new(list, text) != 0) {
            fields->failed = true;
        }
    }
    if (!good) {
        json_decref(list);
        *ret_why = none; // The errors of the items are already in the detail.
        return NULL;
    }
    return list;
}

static json_t *take_object(const json_t *value, struct word *ret_why)
{
    static const struct word kind = {"dict_type", "Input should be a valid dictionary"};
    *ret_why = kind;
    return json_is_object(value) ? json_deep_copy(value) : NULL;
}

static void keep(struct evq_lmms_fields *fields, const char *name, json_t *value)
{
    if (value == NULL || json_object_set_new(fields->out, name, value) != 0) {
        fields->failed = true;
    }
}

/* Takes a value that may have one of two kinds. If both fit, it prefers the one without
 * conversion. */
static json_t *take_either(struct evq_lmms_fields *fields, const char *name, const json_t *value,
                           unsigned kinds)
{
    const bool text = (kinds & EVQ_LMMS_TEXT) != 0;
    const char *const members[] = {"int", text ? "str" : "float"};
    struct word whys[2] = {none, none};

    if ((text && json_is_string(value)) || (!text && json_is_real(value))) {
        return json_deep_copy(value);
    }
    json_t *taken = take_int(value, &whys[0]);
    if (taken == NULL) {
        taken = text ? take_text(value, &whys[1]) : take_float(value, &whys[1]);
    }
    for (int i = 0; taken == NULL && i < 2; i++) {
        refuse(fields, entry(whys[i].type, location(name, members[i], -1), whys[i].message, value));
    }
    return taken;
}

void evq_lmms_field(struct evq_lmms_fields *fields, const char *name, unsigned kinds,
                    const char *fallback)
{
    const json_t *value = json_object_get(fields->body, name);
    struct word why = none;
    json_t *taken = NULL;

    if (value == NULL && fallback != NULL) {
        keep(fields, name, json_loads(fallback, JSON_DECODE_ANY, NULL));
        return;
    }
    if ((value == NULL || json_is_null(value)) && (kinds & EVQ_LMMS_NULL) != 0) {
        keep(fields, name, json_null());
        return;
    }
    if (value == NULL) {
        refuse(fields, entry("missing", location(name, NULL, -1), "Field required", fields->body));
        return;
    }
    if ((kinds & EVQ_LMMS_PLAIN) != 0 && json_is_string(value)) {
        taken = take_text(value, &why);
    } else if ((kinds & EVQ_LMMS_INT) != 0 && (kinds & (EVQ_LMMS_TEXT | EVQ_LMMS_FLOAT)) != 0) {
        taken = take_either(fields, name, value, kinds);
    } else if ((kinds & EVQ_LMMS_INT) != 0) {
        taken = take_int(value, &why);
    } else if ((kinds & EVQ_LMMS_BOOL) != 0) {
        taken = take_bool(value, &why);
    } else if ((kinds & EVQ_LMMS_OBJECT) != 0) {
        taken = take_object(value, &why);
    } else if ((kinds & EVQ_LMMS_TEXTS) != 0) {
        taken = take_texts(fields, name, value, &why);
    } else {
        taken = take_text(value, &why);
    }
    if (taken != NULL) {
        keep(fields, name, taken);
    } else if (why.type != NULL) {
        refuse(fields, entry(why.type, location(name, NULL, -1), why.message, value));
    }
}

void evq_lmms_field_word(struct evq_lmms_fields *fields, const char *name, const char *first,
                         const char *second)
{
    const json_t *value = json_object_get(fields->body, name);
    const char *text = json_string_value(value);
    char expected[128];
    char message[160];

    if (value == NULL) {
        keep(fields, name, json_string(first));
        return;
    }
    if (text != NULL && (strcmp(text, first) == 0 || strcmp(text, second) == 0)) {
        keep(fields, name, json_string(text));
        return;
    }
    (void)snprintf(expected, sizeof expected, "'%s' or '%s'", first, second);
    (void)snprintf(message, sizeof message, "Input should be %s", expected);
    json_t *fault = entry("literal_error", location(name, NULL, -1), message, value);
    if (fault != NULL &&
        json_object_set_new(fault, "ctx", json_pack("{s:s}", "expected", expected)) != 0) {
        fields->failed = true;
    }
    refuse(fields, fault);
}
