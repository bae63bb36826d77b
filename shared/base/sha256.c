#include "shared/base/sha256.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t value, unsigned count)
{
    return value >> count | value << (32 - count);
}

static void block(uint32_t state[8], const uint8_t data[64])
{
    uint32_t w[64];
    uint32_t s[8];
    for (size_t i = 0; i < 16; i++) {
        w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
               (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
    }
    for (size_t i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (size_t i = 0; i < 64; i++) {
        uint32_t e = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        uint32_t t1 = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
        uint32_t a = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        uint32_t t2 = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (size_t i = 0; i < 8; i++) {
        state[i] += s[i];
    }
}

struct hash {
    uint32_t state[8];
    uint64_t bytes; // Number of bytes so far. Those after the last whole block are in rest.
    uint8_t rest[64];
};

static void hash_start(struct hash *hash)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memset(hash, 0, sizeof *hash);
    memcpy(hash->state, first, sizeof first);
}

static void hash_add(struct hash *hash, const void *data, size_t bytes)
{
    const uint8_t *at = data;

    while (bytes > 0) {
        const size_t used = (size_t)(hash->bytes % 64);
        const size_t taken = bytes < 64 - used ? bytes : 64 - used;
        memcpy(hash->rest + used, at, taken);
        hash->bytes += taken;
        at += taken;
        bytes -= taken;
        if (hash->bytes % 64 == 0) {
            block(hash->state, hash->rest);
        }
    }
}

static void hash_end(struct hash *hash, uint8_t out[EVQ_SHA256_BYTES])
{
    static const uint8_t padding[64] = {0x80};
    const uint64_t bits = hash->bytes * 8;
    const size_t used = (size_t)(hash->bytes % 64);
    uint8_t length[8];

    for (size_t i = 0; i < 8; i++) {
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    hash_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    hash_add(hash, length, sizeof length);
    for (size_t i = 0; i < EVQ_SHA256_BYTES; i++) {
        out[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

static void hash_of(const void *data, size_t bytes, uint8_t out[EVQ_SHA256_BYTES])
{
    struct hash hash;

    hash_start(&hash);
    hash_add(&hash, data, bytes);
    hash_end(&hash, out);
}

void evq_sha256_hex(const void *data, size_t bytes, char out[65])
{
    uint8_t digest[EVQ_SHA256_BYTES];

    hash_of(data, bytes, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
}

void evq_sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes,
                     uint8_t out[EVQ_SHA256_BYTES])
{
    uint8_t inner[64] = {0};
    uint8_t outer[64];
    struct hash hash;

    if (key_bytes > sizeof inner) {
        hash_of(key, key_bytes, inner);
    } else if (key_bytes > 0) {
        memcpy(inner, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof inner; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    hash_start(&hash);
    hash_add(&hash, inner, sizeof inner);
    hash_add(&hash, data, bytes);
    hash_end(&hash, out);
    hash_start(&hash);
    hash_add(&hash, outer, sizeof outer);
    hash_add(&hash, out, EVQ_SHA256_BYTES);
    hash_end(&hash, out);
    explicit_bzero(inner, sizeof inner);
    explicit_bzero(outer, sizeof outer);
}
