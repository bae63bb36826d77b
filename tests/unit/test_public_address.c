/* Which addresses a webhook may go to by itself. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/un.h>

#include <cmocka.h>

#include "logger/sinks/public_address.h"

static bool is_public(const char *text)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address = {.v6 = {.sin6_family = AF_INET6}};

    if (strchr(text, ':') != NULL) {
        assert_int_equal(inet_pton(AF_INET6, text, &address.v6.sin6_addr), 1);
    } else {
        address.v4.sin_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, text, &address.v4.sin_addr), 1);
    }
    return evq_public_address_is(&address.any);
}

static void address_refuses_what_is_not_of_the_public_internet(void **state)
{
    static const char *const own[] = {"127.0.0.1",
                                      "127.255.255.255",
                                      "0.0.0.0",
                                      "10.0.0.1",
                                      "10.255.255.255",
                                      "172.16.0.1",
                                      "172.31.255.255",
                                      "192.168.1.1",
                                      "169.254.169.254",
                                      "100.64.0.1",
                                      "100.127.255.255",
                                      "192.0.0.8",
                                      "192.0.2.1",
                                      "198.18.0.1",
                                      "198.19.255.255",
                                      "198.51.100.7",
                                      "203.0.113.9",
                                      "224.0.0.1",
                                      "240.0.0.1",
                                      "255.255.255.255",
                                      "::1",
                                      "::",
                                      "fe80::1",
                                      "fc00::1",
                                      "fd12:3456::1",
                                      "ff02::1",
                                      "::ffff:127.0.0.1",
                                      "::ffff:10.1.2.3",
                                      "64:ff9b::10.0.0.1",
                                      "2002:7f00:1::",
                                      "2002:a00:1::1",
                                      "2001:db8::1",
                                      "2001::1",
                                      "2001:10::1",
                                      "fec0::1",
                                      "100::1",
                                      "4000::1",
                                      "3fff::1"};

    (void)state;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (is_public(own[i])) {
            fail_msg("%s is taken for public", own[i]);
        }
    }
    assert_false(evq_public_address_is(
        (const struct sockaddr *)&(struct sockaddr_un){.sun_family = AF_UNIX}));
}

static void address_takes_the_public_internet(void **state)
{
    static const char *const others[] = {
        "1.1.1.1",         "8.8.8.8",      "9.255.255.255",  "11.0.0.1",         "100.63.0.1",
        "100.128.0.1",     "126.1.1.1",    "128.0.0.1",      "172.15.0.1",       "172.32.0.1",
        "192.0.1.1",       "192.169.0.1",  "198.17.0.1",     "198.20.0.1",       "223.255.255.1",
        "2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1",
        "2001:4860::8888", "2001:200::1",  "3ffe::1"};

    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!is_public(others[i])) {
            fail_msg("%s is not taken for public", others[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_refuses_what_is_not_of_the_public_internet),
        cmocka_unit_test(address_takes_the_public_internet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
