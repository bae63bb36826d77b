/*
 * Loaded before a test program (LD_PRELOAD): of its cases only the one that $EVQ_TEST_ONLY names is
 * run. cmocka has the filter, but nothing outside the program to set it with. In programs without
 * cmocka it does nothing.
 */
#include <stdlib.h>

__attribute__((weak)) void cmocka_set_test_filter(const char *pattern);
__attribute__((constructor)) static void only_set(void);

static void only_set(void)
{
    const char *name = getenv("EVQ_TEST_ONLY");

    if (cmocka_set_test_filter != NULL && name != NULL) {
        cmocka_set_test_filter(name);
    }
}
