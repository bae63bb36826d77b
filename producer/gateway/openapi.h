/*
 * The text of openapi.json, which the gateway serves. It describes exactly the routes of
 * api/routes.c. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_OPENAPI_H
#define EVQ_PRODUCER_GATEWAY_OPENAPI_H

extern const char evq_openapi_text[]; // NUL-terminated.

#endif
