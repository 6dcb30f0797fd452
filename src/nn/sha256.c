/* sha256.c: SHA-256 (FIPS 180-4, sections 4.1.2, 5.3.3, 6.2), and a hash of a module's parameters.
 */
#include "nn/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "evenkeel/module.h"

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t sha256_rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
               (uint32_t)block[4 * t + 2] << 8 | (uint32_t)block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = sha256_rotate(w[t - 15], 7) ^ sha256_rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = sha256_rotate(w[t - 2], 17) ^ sha256_rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t++) {
        uint32_t s1 = sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25);
        uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[t] + w[t];
        uint32_t s0 = sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22);
        uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void ek_sha256_begin(ek_sha256 *hash)
{
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, initial, sizeof initial);
    hash->nbytes = 0;
}

void ek_sha256_add(ek_sha256 *hash, const void *data, size_t nbytes)
{
    const uint8_t *next = data;
    while (nbytes > 0) {
        size_t used = (size_t)(hash->nbytes % 64);
        size_t n = 64 - used < nbytes ? 64 - used : nbytes;
        memcpy(hash->block + used, next, n);
        hash->nbytes += n;
        next += n;
        nbytes -= n;
        if (used + n == 64)
            sha256_compress(hash->state, hash->block);
    }
}

void ek_sha256_end(ek_sha256 *hash, char text[65])
{
    uint8_t tail[72] = {0x80};
    uint64_t bits = 8 * hash->nbytes;
    /* Padding: a one bit, zeros up to 56 bytes of the last block, the length in bits. */
    size_t zeros = (size_t)((119 - hash->nbytes % 64) % 64);
    for (int i = 0; i < 8; i++)
        tail[1 + zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    ek_sha256_add(hash, tail, zeros + 9);
    for (int i = 0; i < 8; i++)
        snprintf(text + 8 * i, 9, "%08x", (unsigned)hash->state[i]);
}

/* ---- parameters: dtype, ndim, sizes (little-endian), then the elements' bytes, row-major ---- */

static void sha256_add_number(ek_sha256 *hash, uint64_t number, int nbytes)
{
    uint8_t bytes[8];
    for (int i = 0; i < nbytes; i++)
        bytes[i] = (uint8_t)(number >> (8 * i));
    ek_sha256_add(hash, bytes, (size_t)nbytes);
}

static int sha256_add_tensor(const char *path, ek_tensor *tensor, void *user)
{
    ek_sha256 *hash = user;
    (void)path;
    sha256_add_number(hash, (uint64_t)tensor->dtype, 4);
    sha256_add_number(hash, (uint64_t)tensor->ndim, 4);
    for (int i = 0; i < tensor->ndim; i++)
        sha256_add_number(hash, (uint64_t)tensor->shape[i], 8);
    size_t nbytes = (size_t)ek_count(tensor) * ek_dtype_size(tensor->dtype);
    void *data = ek_calloc(nbytes, 1);
    if (!data)
        return EK_E_NO_MEMORY;
    int status = ek_to_data(tensor, data, nbytes);
    if (status == 0)
        ek_sha256_add(hash, data, nbytes);
    free(data);
    return status;
}

int ek_module_sha256(ek_module *module, char text[65])
{
    if (!text)
        return EK_FAIL(EK_E_INVALID, "sha256: text is NULL");
    ek_sha256 hash;
    ek_sha256_begin(&hash);
    text[0] = '\0';
    EK_TRY(ek_module_parameters(module, sha256_add_tensor, &hash));
    ek_sha256_end(&hash, text);
    return 0;
}
