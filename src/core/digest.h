/* digest.h: FNV-1a (Fowler, Noll, Vo), 64 bits, of bytes or of words. Used to hash keys of tables,
 * and to compare data of several ranks: different data have equal digests only by chance. */
#ifndef EK_CORE_DIGEST_H
#define EK_CORE_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The digest of no data. Every digest starts from it. */
#define EK_DIGEST UINT64_C(0xcbf29ce484222325)

static inline uint64_t ek_digest_word(uint64_t digest, uint64_t word)
{
    return (digest ^ word) * UINT64_C(0x100000001b3);
}

static inline uint64_t ek_digest_bytes(uint64_t digest, const void *data, size_t nbytes)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < nbytes; i++)
        digest = ek_digest_word(digest, bytes[i]);
    return digest;
}

static inline uint64_t ek_digest_text(uint64_t digest, const char *text)
{
    return ek_digest_bytes(digest, text, strlen(text));
}

#endif
