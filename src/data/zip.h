/* zip.h: reads and writes zip archives whose entries are stored uncompressed, as PyTorch writes
 * them. Nothing in an archive that is read is trusted. Checksums aren't verified. */
#ifndef EK_DATA_ZIP_H
#define EK_DATA_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/file.h"

/* ---- reading ---- */

typedef struct ek_zip_entry {
    const char *name; /* in the archive's bytes, without a NUL */
    size_t name_nbytes;
    uint64_t header;         /* offset of the entry's local header */
    uint64_t stored, nbytes; /* bytes in the archive, and bytes unpacked */
    bool plain;              /* neither compressed nor encrypted */
} ek_zip_entry;

typedef struct ek_zip {
    const char *what, *path; /* borrowed, for error messages */
    const unsigned char *bytes;
    size_t nbytes;
    ek_zip_entry *entries; /* sorted by name */
    int count, room;
} ek_zip;

/* Returns true if the bytes begin as a zip archive does. */
bool ek_zip_begins(const unsigned char *bytes, size_t nbytes);
/* Reads the directory. The members before `entries` are set, the others zero. EK_E_FORMAT says what
 * is wrong. ek_zip_close frees what was read, even after a failure. */
int ek_zip_open(ek_zip *zip);
void ek_zip_close(ek_zip *zip);

/* The entry of this name, or NULL. */
const ek_zip_entry *ek_zip_find(const ek_zip *zip, const char *name, size_t name_nbytes);
/* Sets *bytes to the entry's first byte. EK_E_FORMAT if the entry is compressed, encrypted, or
 * reaches beyond the archive. */
int ek_zip_view(const ek_zip *zip, const ek_zip_entry *entry, const unsigned char **bytes);

/* ---- writing ---- */

/* The data of each entry begins at a multiple of this in the file. */
enum { EK_ZIP_ALIGNMENT = 64 };

/* The members after `at` are zero before the first entry. */
typedef struct ek_zip_writer {
    const ek_file *file;
    uint64_t at;              /* offset of the next byte in the file */
    unsigned char *directory; /* the directory's bytes; the caller frees them */
    int directory_nbytes, directory_room;
    int count;
} ek_zip_writer;

/* Writes an entry. */
int ek_zip_put(ek_zip_writer *zip, const char *name, const void *bytes, size_t nbytes);
/* Writes the directory, which ends the archive. */
int ek_zip_finish(const ek_zip_writer *zip);

#endif
