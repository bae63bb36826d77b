/* The web page. page/embed.cmake makes the files of page/ part of the program. Any thread. */
#ifndef EVQ_PRODUCER_GATEWAY_PAGE_H
#define EVQ_PRODUCER_GATEWAY_PAGE_H

#include <stddef.h>

struct evq_page_file {
    const char *name; // "page.js"
    const char *content_type;
    const unsigned char *data;
    size_t bytes;
};

extern const struct evq_page_file evq_page_files[];
extern const size_t evq_page_file_count;

#endif
