#include "producer/gateway/http/http_length.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    const char *value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return value != NULL ? value : "";
}

bool evq_http_length_announced(struct MHD_Connection *connection)
{
    const char *length = header_of(connection, "Content-Length");

    return header_of(connection, "Transfer-Encoding")[0] != '\0' ||
           length[strspn(length, "0")] != '\0';
}

bool evq_http_length_over(struct MHD_Connection *connection, size_t bytes_max)
{
    const char *text = header_of(connection, "Content-Length");
    const size_t digits = strspn(text, "0123456789");

    return digits > 18 || strtoull(digits > 0 ? text : "0", NULL, 10) > bytes_max;
}

static enum MHD_Result count_length(void *context, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    (void)kind;
    (void)value;
    // "Content-Length : 4": a proxy may take the length from it, and the library here does not.
    *(int *)context += key[strcspn(key, " \t")] != '\0' ? 2 : 0;
    *(int *)context +=
        strcasecmp(key, "Content-Length") == 0 || strcasecmp(key, "Transfer-Encoding") == 0;
    return MHD_YES;
}

bool evq_http_length_is_ambiguous(struct MHD_Connection *connection)
{
    int count = 0;

    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, count_length, &count);
    return count > 1;
}
