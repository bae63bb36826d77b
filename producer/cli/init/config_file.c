#include "producer/cli/init/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "shared/base/file.h"

#define INDENT 2

void evq_config_file_quoted(struct evq_buffer *out, const char *text, size_t bytes)
{
    evq_buffer_text(out, "\"");
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (byte == '"' || byte == '\\') {
            evq_buffer_printf(out, "\\%c", byte);
        } else if (byte < 0x20 || byte == 0x7f) {
            evq_buffer_printf(out, "\\x%02x", byte);
        } else {
            evq_buffer_append(out, text + i, 1);
        }
    }
    evq_buffer_text(out, "\"");
}

void evq_config_file_head(struct evq_buffer *out)
{
    evq_buffer_text(out, "# What evalq evaluates in this project, and how. Every key: "
                         "docs/configuration.md.\nroots: {project: .} # The directory that "
                         "contains the checkpoints.\n");
}

enum evq_status evq_config_file_create(const char *text, bool *ret_exists, struct evq_error *err)
{
    int fd = open(EVQ_CONFIG_FILE, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

    *ret_exists = fd < 0 && errno == EEXIST;
    if (*ret_exists) {
        return EVQ_OK;
    }
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "write '" EVQ_CONFIG_FILE "': %s", strerror(errno));
    }
    enum evq_status status = evq_file_write(fd, text, strlen(text), EVQ_CONFIG_FILE, err);
    evq_file_close(&fd);
    return status;
}

static size_t line_bytes(const char *line)
{
    const size_t bytes = strcspn(line, "\n");
    return bytes + (line[bytes] == '\n');
}

/* Blank, or nothing but a comment. */
static bool says_nothing(const char *line)
{
    const char *first = line + strspn(line, " \t\r");
    return *first == '\n' || *first == '\0' || *first == '#';
}

/* The line that begins the section; NULL: there is none. */
static const char *section_find(const char *text, const char *section)
{
    const size_t bytes = strlen(section);
    for (const char *line = text; *line != '\0'; line += line_bytes(line)) {
        if (strncmp(line, section, bytes) == 0 && line[bytes] == ':') {
            return line;
        }
    }
    return NULL;
}

/* The end of the last entry of a section whose first entry begins at `line`, and the indentation of
 * its entries. */
static const char *section_end(const char *line, size_t *ret_indent)
{
    const char *end = line;
    size_t indent = 0;

    for (; *line != '\0' && (says_nothing(line) || *line == ' '); line += line_bytes(line)) {
        if (!says_nothing(line)) {
            indent = indent == 0 ? strspn(line, " ") : indent;
            end = line + line_bytes(line);
        }
    }
    *ret_indent = indent == 0 ? INDENT : indent;
    return end;
}

/* lines has the indentation INDENT. */
static void put_indented(const char *lines, size_t indent, struct evq_buffer *out)
{
    for (const char *line = lines; *line != '\0'; line += line_bytes(line)) {
        evq_buffer_printf(out, "%*s", (int)indent, "");
        evq_buffer_append(out, line + INDENT, line_bytes(line) - INDENT);
    }
}

static void put_newline(struct evq_buffer *out, const char *text, size_t bytes)
{
    if (bytes > 0 && text[bytes - 1] != '\n') {
        evq_buffer_text(out, "\n");
    }
}

enum evq_status evq_config_file_insert(const char *text, const char *section, const char *lines,
                                       struct evq_buffer *out, struct evq_error *err)
{
    const char *line = section_find(text, section);
    size_t indent = INDENT;

    if (line == NULL) {
        evq_buffer_text(out, text);
        put_newline(out, text, strlen(text));
        evq_buffer_printf(out, "%s:\n%s", section, lines);
        return EVQ_OK;
    }
    if (!says_nothing(line + strlen(section) + 1)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not written as one entry per line",
                             section);
    }
    const char *end = section_end(line + line_bytes(line), &indent);
    evq_buffer_append(out, text, (size_t)(end - text));
    put_newline(out, text, (size_t)(end - text));
    put_indented(lines, indent, out);
    evq_buffer_text(out, end);
    return EVQ_OK;
}
