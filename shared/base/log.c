#include "shared/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"

#define LOG_LINE_BYTES_MAX  ((size_t)32768)
#define LOG_VALUE_BYTES_MAX ((size_t)4096)

static struct {
    const char *program;
    enum evq_log_level level;
    enum evq_log_format format;
    bool journal; // Lines begin with <N>, the priority that systemd's journal strips and keeps.
} settings = {.program = "evalq", .level = EVQ_LOG_INFO, .format = EVQ_LOG_LOGFMT};

static const struct {
    const char *name;
    char priority;
} levels[] = {
    [EVQ_LOG_ERROR] = {"error", '3'},
    [EVQ_LOG_WARN] = {"warn", '4'},
    [EVQ_LOG_INFO] = {"info", '6'},
    [EVQ_LOG_DEBUG] = {"debug", '7'},
};

/* One value of a log line: its text, and whether it is a single number. */
struct value {
    char text[LOG_VALUE_BYTES_MAX];
    size_t bytes;
    bool number;
};

/* JOURNAL_STREAM names the journal's socket, but standard error may have been redirected since. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat info;
    uintmax_t device;
    uintmax_t inode;
    return stream != NULL && sscanf(stream, "%ju:%ju", &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

void evq_log_open(const char *program, enum evq_log_level level, enum evq_log_format format)
{
    settings.program = program;
    settings.level = level;
    settings.format = format;
    settings.journal = stderr_is_journal();
}

enum evq_status evq_log_level_parse(const char *word, enum evq_log_level *ret_level)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (word != NULL && strcmp(word, levels[i].name) == 0) {
            *ret_level = (enum evq_log_level)i;
            return EVQ_OK;
        }
    }
    return EVQ_E_INVALID;
}

static void value_append(struct value *value, const char *text, size_t bytes)
{
    size_t room = sizeof value->text - value->bytes;
    if (bytes > room) {
        bytes = room; // A log line is not the place for long values.
    }
    memcpy(value->text + value->bytes, text, bytes);
    value->bytes += bytes;
}

/* A struct, so that the callee's va_arg moves the caller's list on every ABI. */
struct arguments {
    va_list list;
};

static int64_t argument_integer(struct arguments *args, const char *length, bool is_signed)
{
    if (strcmp(length, "ll") == 0) {
        return va_arg(args->list, long long);
    }
    if (strcmp(length, "l") == 0) {
        return va_arg(args->list, long);
    }
    if (strcmp(length, "z") == 0) {
        return (int64_t)va_arg(args->list, size_t);
    }
    if (strcmp(length, "j") == 0) {
        return va_arg(args->list, intmax_t);
    }
    if (strcmp(length, "t") == 0) {
        return va_arg(args->list, ptrdiff_t);
    }
    return is_signed ? va_arg(args->list, int) : (int64_t)va_arg(args->list, unsigned);
}

/* Consumes the argument of one conversion (width and flags are ignored, they only pad) and appends
 * it. */
static void value_convert(struct value *value, const char *length, int precision, char conversion,
                          struct arguments *args)
{
    char number[512]; // Room for %f of the largest double.
    int used = 0;
    switch (conversion) {
    case 's': {
        const char *text = va_arg(args->list, const char *);
        if (text == NULL) {
            text = "(null)";
        }
        size_t bytes = precision >= 0 ? strnlen(text, (size_t)precision) : strlen(text);
        value_append(value, text, bytes);
        return;
    }
    case 'c':
        number[0] = (char)va_arg(args->list, int);
        used = 1;
        break;
    case 'd':
    case 'i':
        used =
            snprintf(number, sizeof number, "%jd", (intmax_t)argument_integer(args, length, true));
        break;
    case 'u':
        used = snprintf(number, sizeof number, "%ju",
                        (uintmax_t)argument_integer(args, length, false));
        break;
    case 'x':
        used = snprintf(number, sizeof number, "%jx",
                        (uintmax_t)argument_integer(args, length, false));
        break;
    case 'f':
        used =
            snprintf(number, sizeof number, "%.*f",
                     precision < 0 || precision > 100 ? 6 : precision, va_arg(args->list, double));
        break;
    case 'g':
        used =
            snprintf(number, sizeof number, "%.*g",
                     precision < 0 || precision > 100 ? 6 : precision, va_arg(args->list, double));
        break;
    case 'p':
        used = snprintf(number, sizeof number, "%p", va_arg(args->list, void *));
        break;
    default:
        break;
    }
    value_append(value, number, used > 0 ? (size_t)used : 0);
}

/* Reads one conversion after its '%'; returns what follows it. */
static const char *value_take(struct value *value, const char *format, struct arguments *args)
{
    char length[3] = "";
    int precision = -1;
    format += strspn(format, "-+ #0123456789");
    if (*format == '.') {
        format++;
        if (*format == '*') {
            precision = va_arg(args->list, int);
            format++;
        } else {
            precision = 0;
            while (*format >= '0' && *format <= '9') {
                precision = precision < 1000 ? precision * 10 + (*format - '0') : precision;
                format++;
            }
        }
    }
    size_t modifiers = strspn(format, "hlzjt");
    if (modifiers > 0 && modifiers < sizeof length) {
        memcpy(length, format, modifiers);
    }
    format += modifiers;
    if (*format == '\0') {
        return format;
    }
    value_convert(value, length, precision, *format, args);
    value->number = strchr("diufg", *format) != NULL;
    return format + 1;
}

static void line_quoted(struct evq_buffer *line, const char *text, size_t bytes)
{
    evq_buffer_json(line, text, bytes); // Its escapes are also what logfmt readers understand.
}

static void line_value(struct evq_buffer *line, const struct value *value)
{
    bool plain = value->bytes > 0;
    for (size_t i = 0; i < value->bytes && plain; i++) {
        unsigned char byte = (unsigned char)value->text[i];
        plain = byte > 0x20 && byte < 0x7f && byte != '"' && byte != '\\' && byte != '=';
    }
    if (settings.format == EVQ_LOG_JSON) {
        // "inf" and "nan" are no JSON numbers.
        bool bare = value->number && plain && memchr(value->text, 'n', value->bytes) == NULL;
        if (bare) {
            evq_buffer_append(line, value->text, value->bytes);
            return;
        }
        plain = false;
    }
    if (plain) {
        evq_buffer_append(line, value->text, value->bytes);
    } else {
        line_quoted(line, value->text, value->bytes);
    }
}

static void line_key(struct evq_buffer *line, const char *key, size_t bytes)
{
    if (settings.format == EVQ_LOG_JSON) {
        evq_buffer_append(line, ",", 1);
        evq_buffer_json(line, key, bytes);
        evq_buffer_append(line, ":", 1);
    } else {
        evq_buffer_append(line, " ", 1);
        evq_buffer_append(line, key, bytes);
        evq_buffer_append(line, "=", 1);
    }
}

static void line_pairs(struct evq_buffer *line, const char *pairs, struct arguments *args)
{
    struct value value;
    while (*pairs != '\0') {
        pairs += strspn(pairs, " ");
        size_t key_bytes = strcspn(pairs, "= ");
        if (key_bytes == 0 && *pairs != '=') {
            break;
        }
        const char *key = pairs;
        pairs += key_bytes;
        value.bytes = 0;
        value.number = false;
        int parts = 0;
        if (*pairs == '=') {
            pairs++;
            while (*pairs != '\0' && *pairs != ' ') {
                if (pairs[0] == '%' && pairs[1] != '%') {
                    pairs = value_take(&value, pairs + 1, args);
                } else {
                    value_append(&value, pairs, 1);
                    pairs += pairs[0] == '%' ? 2 : 1;
                    value.number = false;
                    parts++;
                }
                parts++;
            }
        }
        value.number = value.number && parts == 1;
        line_key(line, key, key_bytes);
        line_value(line, &value);
    }
}

static void line_open(struct evq_buffer *line, enum evq_log_level level, const char *event)
{
    char now[EVQ_CLOCK_ISO_BYTES];
    evq_clock_iso(evq_clock_unix_ms(), now);
    if (settings.journal) {
        evq_buffer_printf(line, "<%c>", levels[level].priority);
    }
    if (settings.format == EVQ_LOG_JSON) {
        evq_buffer_printf(line, "{\"time\":\"%s\",\"level\":\"%s\",\"program\":", now,
                          levels[level].name);
        evq_buffer_json_text(line, settings.program);
        evq_buffer_text(line, ",\"event\":");
        evq_buffer_json_text(line, event);
    } else {
        evq_buffer_printf(line, "time=%s level=%s program=%s event=%s", now, levels[level].name,
                          settings.program, event);
    }
}

static void line_write(struct evq_buffer *line)
{
    evq_buffer_text(line, settings.format == EVQ_LOG_JSON ? "}\n" : "\n");
    if (line->failed) {
        return;
    }
    ssize_t wrote;
    do {
        wrote = write(STDERR_FILENO, line->data, line->bytes);
    } while (wrote < 0 && errno == EINTR);
}

void evq_log(enum evq_log_level level, const char *event, const char *pairs, ...)
{
    struct evq_buffer line;
    struct arguments args;
    int saved = errno; // The caller may still want it.

    if ((unsigned)level > (unsigned)settings.level || (unsigned)level > EVQ_LOG_DEBUG) {
        return;
    }
    evq_buffer_init(&line, LOG_LINE_BYTES_MAX);
    line_open(&line, level, event);
    va_start(args.list, pairs);
    line_pairs(&line, pairs, &args);
    va_end(args.list);
    if (line.failed || line.bytes + 2 > LOG_LINE_BYTES_MAX) {
        evq_buffer_clear(&line);
        line_open(&line, level, event);
        line_key(&line, "truncated", strlen("truncated"));
        evq_buffer_text(&line, "true");
    }
    line_write(&line);
    evq_buffer_free(&line);
    errno = saved;
}
