/* sha256.h: SHA-256 (FIPS 180-4), to identify a set of weights by a short text. */
#ifndef EK_NN_SHA256_H
#define EK_NN_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct ek_sha256 {
    uint32_t state[8];
    uint64_t nbytes; /* how many bytes have been added */
    uint8_t block[64];
} ek_sha256;

void ek_sha256_begin(ek_sha256 *hash);
void ek_sha256_add(ek_sha256 *hash, const void *data, size_t nbytes);
/* Writes 64 hex digits and a terminating zero. */
void ek_sha256_end(ek_sha256 *hash, char text[65]);

#endif
