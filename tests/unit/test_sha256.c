/* SHA-256, HMAC-SHA256 and base64 against published vectors (FIPS 180-4, RFC 4231, RFC 4648). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "shared/base/base64.h"
#include "shared/base/sha256.h"

static void sha256_equals_the_published_vectors(void **state)
{
    char out[65];
    char thousand[1000];

    (void)state;
    evq_sha256_hex("", 0, out);
    assert_string_equal(out, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    evq_sha256_hex("abc", 3, out);
    assert_string_equal(out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    evq_sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, out);
    assert_string_equal(out, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(thousand, 'a', sizeof thousand);
    evq_sha256_hex(thousand, sizeof thousand, out);
    assert_string_equal(out, "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

static void assert_hmac(const void *key, size_t key_bytes, const char *data, const char *want)
{
    uint8_t digest[EVQ_SHA256_BYTES];
    char hex[65];

    evq_sha256_hmac(key, key_bytes, data, strlen(data), digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    assert_string_equal(hex, want);
}

static void sha256_hmac_equals_the_published_vectors(void **state)
{
    uint8_t key[131];

    (void)state;
    memset(key, 0x0b, 20);
    assert_hmac(key, 20, "Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_hmac("Jefe", 4, "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key); // A key over one block is hashed first.
    assert_hmac(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void base64_goes_both_ways(void **state)
{
    static const char *const texts[] = {"", "f", "fo", "foo", "foob", "fooba", "foobar"};
    static const char *const coded[] = {"",         "Zg==",     "Zm8=",    "Zm9v",
                                        "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char out[16];
        uint8_t back[16];
        size_t bytes = 99;
        evq_base64_encode(texts[i], strlen(texts[i]), out);
        assert_string_equal(out, coded[i]);
        assert_int_equal(strlen(out), EVQ_BASE64_CHARS(strlen(texts[i])));
        assert_true(evq_base64_decode(out, strlen(out), back, sizeof back, &bytes));
        assert_int_equal(bytes, strlen(texts[i]));
        assert_memory_equal(back, texts[i], bytes);
        assert_true(evq_base64_decode(out, strcspn(out, "="), back, sizeof back, &bytes));
        assert_int_equal(bytes, strlen(texts[i]));
    }
}

static void base64_refuses_what_is_none(void **state)
{
    static const char *const bad[] = {"Z", "Zm9vY", "Zg=a", "Zg===", "Z g=", "Zm9v-_==", "=Zg="};
    uint8_t back[16];
    size_t bytes = 0;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(evq_base64_decode(bad[i], strlen(bad[i]), back, sizeof back, &bytes));
    }
    assert_false(evq_base64_decode("Zm9vYmFy", 8, back, 5, &bytes)); // More than there is room for.
    assert_false(evq_base64_decode("Zm\0v", 4, back, sizeof back, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_equals_the_published_vectors),
        cmocka_unit_test(sha256_hmac_equals_the_published_vectors),
        cmocka_unit_test(base64_goes_both_ways),
        cmocka_unit_test(base64_refuses_what_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
