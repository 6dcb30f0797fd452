/* sha256.h: FIPS 180-4's SHA-256, to name a set of weights by one number. */
#ifndef EK_NN_SHA256_H
#define EK_NN_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct ek_sha256 {
    uint32_t state[8];
    uint64_t nbytes; /* hashed so far */
    uint8_t block[64];
} ek_sha256;

void ek_sha256_begin(ek_sha256 *hash);
void ek_sha256_add(ek_sha256 *hash, const void *data, size_t nbytes);
/* Writes 64 hex digits and a terminating zero. */
void ek_sha256_end(ek_sha256 *hash, char text[65]);

#endif
