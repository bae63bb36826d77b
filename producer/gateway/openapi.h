/*
 * openapi.json, as the gateway serves it: every route of routes.c is in it, and no other. Any
 * thread.
 */
#ifndef EVQ_GATEWAY_OPENAPI_H
#define EVQ_GATEWAY_OPENAPI_H

extern const char evq_openapi_text[]; // NUL-terminated.

#endif
