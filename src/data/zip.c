/* zip.c: see zip.h. Offsets and sizes follow PKWARE's APPNOTE.TXT, sections 4.3 and 4.5. */
#include "data/zip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/error.h"

enum {
    LOCAL_NBYTES = 30,
    CENTRAL_NBYTES = 46,
    END_NBYTES = 22,
    LOCATOR_NBYTES = 20, /* precedes the end record if there is one with 64-bit numbers */
    END64_NBYTES = 56,
    LONGEST_COMMENT = 65535,
    ZIP64_EXTRA = 1 /* the id of the extra field that has 64-bit numbers */
};

#define LOCAL_SIGNATURE 0x04034b50u
#define CENTRAL_SIGNATURE 0x02014b50u
#define END_SIGNATURE 0x06054b50u
#define LOCATOR_SIGNATURE 0x07064b50u
#define END64_SIGNATURE 0x06064b50u

/* ---- numbers ---- */

/* Returns the little-endian number of `size` bytes at `at`, which lies in the archive. */
static uint64_t zip_number(const unsigned char *at, int size)
{
    uint64_t number = 0;
    for (int i = 0; i < size; i++)
        number |= (uint64_t)at[i] << 8 * i;
    return number;
}

/* Returns the record of `nbytes` at `offset` if it lies in the archive and has this signature, else
 * NULL. */
static const unsigned char *zip_record(const ek_zip *zip, uint64_t offset, size_t nbytes,
                                       uint32_t signature)
{
    if (offset > zip->nbytes || nbytes > zip->nbytes - offset ||
        zip_number(zip->bytes + offset, 4) != signature)
        return NULL;
    return zip->bytes + offset;
}

bool ek_zip_begins(const unsigned char *bytes, size_t nbytes)
{
    return nbytes >= 4 && zip_number(bytes, 4) == LOCAL_SIGNATURE;
}

/* ---- the directory ---- */

/* Where the directory begins, and how many entries it has. */
typedef struct directory {
    uint64_t offset, count;
} directory;

/* Finds the end record, which only a comment may follow. */
static const unsigned char *zip_find_end(const ek_zip *zip)
{
    for (size_t back = END_NBYTES; back <= END_NBYTES + LONGEST_COMMENT; back++) {
        if (back > zip->nbytes)
            break;
        const unsigned char *end = zip_record(zip, zip->nbytes - back, END_NBYTES, END_SIGNATURE);
        if (end)
            return end;
    }
    return NULL;
}

static int zip_find_directory(const ek_zip *zip, directory *d)
{
    const unsigned char *end = zip_find_end(zip), *locator = NULL, *end64 = NULL;
    if (!end)
        return EK_FAIL_IN(EK_E_FORMAT, zip, "truncated: the zip archive has no directory");
    *d = (directory){zip_number(end + 16, 4), zip_number(end + 10, 2)};
    size_t at = (size_t)(end - zip->bytes);
    if (at >= LOCATOR_NBYTES)
        locator = zip_record(zip, at - LOCATOR_NBYTES, LOCATOR_NBYTES, LOCATOR_SIGNATURE);
    if (locator)
        end64 = zip_record(zip, zip_number(locator + 8, 8), END64_NBYTES, END64_SIGNATURE);
    if (end64)
        *d = (directory){zip_number(end64 + 48, 8), zip_number(end64 + 32, 8)};
    return 0;
}

/* Replaces each of the three numbers that is UINT32_MAX by the next 64-bit number in the extra
 * fields. */
static void zip_widen(const unsigned char *extra, size_t nbytes, uint64_t *const numbers[3])
{
    while (nbytes >= 4) {
        uint64_t id = zip_number(extra, 2), size = zip_number(extra + 2, 2);
        extra += 4;
        nbytes -= 4;
        if (size > nbytes)
            return;
        for (int i = 0; id == ZIP64_EXTRA && i < 3; i++)
            if (*numbers[i] == UINT32_MAX && size >= 8) {
                *numbers[i] = zip_number(extra, 8);
                extra += 8;
                nbytes -= 8;
                size -= 8;
            }
        extra += size;
        nbytes -= size;
    }
}

/* Reads the entry at *offset and moves *offset past it. */
static int zip_read_entry(ek_zip *zip, uint64_t *offset)
{
    const unsigned char *record = zip_record(zip, *offset, CENTRAL_NBYTES, CENTRAL_SIGNATURE);
    uint64_t left = record ? zip->nbytes - *offset - CENTRAL_NBYTES : 0;
    size_t name = record ? (size_t)zip_number(record + 28, 2) : 0;
    size_t extra = record ? (size_t)zip_number(record + 30, 2) : 0;
    size_t comment = record ? (size_t)zip_number(record + 32, 2) : 0;
    if (!record || name + extra + comment > left)
        return EK_FAIL_IN(EK_E_FORMAT, zip, "damaged: entry %d of the zip archive's directory",
                          zip->count);
    EK_TRY(ek_grow(&zip->entries, &zip->room, zip->count + 1));
    ek_zip_entry *e = &zip->entries[zip->count++];
    bool encrypted = record[8] & 1;
    *e = (ek_zip_entry){.name = (const char *)record + CENTRAL_NBYTES,
                        .name_nbytes = name,
                        .header = zip_number(record + 42, 4),
                        .stored = zip_number(record + 20, 4),
                        .nbytes = zip_number(record + 24, 4),
                        .plain = !encrypted && zip_number(record + 10, 2) == 0};
    zip_widen(record + CENTRAL_NBYTES + name, extra,
              (uint64_t *const[]){&e->nbytes, &e->stored, &e->header});
    *offset += CENTRAL_NBYTES + name + extra + comment;
    return 0;
}

static int zip_compare_names(const char *a, size_t a_nbytes, const char *b, size_t b_nbytes)
{
    int order = memcmp(a, b, a_nbytes < b_nbytes ? a_nbytes : b_nbytes);
    return order ? order : (a_nbytes > b_nbytes) - (a_nbytes < b_nbytes);
}

static int zip_compare(const void *a, const void *b)
{
    const ek_zip_entry *x = a, *y = b;
    return zip_compare_names(x->name, x->name_nbytes, y->name, y->name_nbytes);
}

int ek_zip_open(ek_zip *zip)
{
    directory d = {0, 0};
    EK_TRY(zip_find_directory(zip, &d));
    for (uint64_t i = 0, offset = d.offset; i < d.count; i++)
        EK_TRY(zip_read_entry(zip, &offset));
    if (zip->count > 0)
        qsort(zip->entries, (size_t)zip->count, sizeof *zip->entries, zip_compare);
    return 0;
}

void ek_zip_close(ek_zip *zip)
{
    free(zip->entries);
    zip->entries = NULL;
    zip->count = zip->room = 0;
}

/* ---- entries ---- */

const ek_zip_entry *ek_zip_find(const ek_zip *zip, const char *name, size_t name_nbytes)
{
    const ek_zip_entry wanted = {.name = name, .name_nbytes = name_nbytes};
    return zip->count == 0 ? NULL
                           : bsearch(&wanted, zip->entries, (size_t)zip->count,
                                     sizeof *zip->entries, zip_compare);
}

int ek_zip_view(const ek_zip *zip, const ek_zip_entry *entry, const unsigned char **bytes)
{
    int shown = entry->name_nbytes < 200 ? (int)entry->name_nbytes : 200;
    if (!entry->plain || entry->stored != entry->nbytes)
        return EK_FAIL_IN(EK_E_FORMAT, zip,
                          "\"%.*s\" is compressed or encrypted; PyTorch stores it as it is", shown,
                          entry->name);
    const unsigned char *local = zip_record(zip, entry->header, LOCAL_NBYTES, LOCAL_SIGNATURE);
    uint64_t left = local ? zip->nbytes - entry->header - LOCAL_NBYTES : 0;
    uint64_t before = local ? zip_number(local + 26, 2) + zip_number(local + 28, 2) : 0;
    if (!local || before > left || entry->nbytes > left - before)
        return EK_FAIL_IN(EK_E_FORMAT, zip, "truncated: \"%.*s\" leaves the file", shown,
                          entry->name);
    *bytes = local + LOCAL_NBYTES + before;
    return 0;
}

/* ---- writing ---- */

enum {
    ZIP64_NBYTES = 28, /* an extra field with the entry's size, twice, and the header's offset */
    PAD_EXTRA = 0x4246 /* the id of the extra field with which PyTorch, too, aligns an entry */
};

/* Appends the little-endian number of `size` bytes, and returns the place after it. */
static unsigned char *zip_append(unsigned char *at, uint64_t number, int size)
{
    for (int i = 0; i < size; i++)
        *at++ = (unsigned char)(number >> 8 * i);
    return at;
}

/* Appends what a local header and an entry of the directory share, from the version that a reader
 * needs to the length of the name. */
static unsigned char *zip_append_common(unsigned char *at, const ek_zip_entry *e, uint32_t checksum,
                                        bool large)
{
    enum { VERSION = 45, DATE = 0x21 /* January 1st of 1980 */ };
    at = zip_append(at, VERSION, 2);
    at = zip_append(at, 0, 4); /* no flags; stored */
    at = zip_append(at, 0, 2); /* midnight */
    at = zip_append(at, DATE, 2);
    at = zip_append(at, checksum, 4);
    at = zip_append(at, large ? UINT32_MAX : e->nbytes, 4);
    at = zip_append(at, large ? UINT32_MAX : e->nbytes, 4);
    return zip_append(at, e->name_nbytes, 2);
}

static unsigned char *zip_append_large(unsigned char *at, const ek_zip_entry *e)
{
    at = zip_append(at, ZIP64_EXTRA, 2);
    at = zip_append(at, ZIP64_NBYTES - 4, 2);
    at = zip_append(at, e->nbytes, 8);
    at = zip_append(at, e->nbytes, 8);
    return zip_append(at, e->header, 8);
}

/* Adds an entry to the directory. */
static int zip_note(ek_zip_writer *zip, const ek_zip_entry *e, uint32_t checksum, bool large)
{
    size_t nbytes = CENTRAL_NBYTES + e->name_nbytes + (large ? ZIP64_NBYTES : 0);
    EK_TRY(ek_grow(&zip->directory, &zip->directory_room, zip->directory_nbytes + (int)nbytes));
    unsigned char *at = zip->directory + zip->directory_nbytes;
    at = zip_append(at, CENTRAL_SIGNATURE, 4);
    at = zip_append(at, 45, 2); /* made by this version, on no system in particular */
    at = zip_append_common(at, e, checksum, large);
    at = zip_append(at, large ? ZIP64_NBYTES : 0, 2);
    at = zip_append(at, 0, 8); /* no comment, the first disk, no attributes */
    at = zip_append(at, 0, 2);
    at = zip_append(at, large ? UINT32_MAX : e->header, 4);
    memcpy(at, e->name, e->name_nbytes);
    if (large)
        zip_append_large(at + e->name_nbytes, e);
    zip->directory_nbytes += (int)nbytes;
    zip->count++;
    return 0;
}

int ek_zip_put(ek_zip_writer *zip, const char *name, const void *bytes, size_t nbytes)
{
    enum { LONGEST_NAME = 64 };
    unsigned char header[LOCAL_NBYTES + LONGEST_NAME + ZIP64_NBYTES + 4 + EK_ZIP_ALIGNMENT] = {0};
    const ek_zip_entry e = {name, strlen(name), zip->at, nbytes, nbytes, true};
    bool large = nbytes >= UINT32_MAX || zip->at >= UINT32_MAX;
    uint32_t checksum = (uint32_t)crc32_z(0, bytes, nbytes);
    size_t before = LOCAL_NBYTES + e.name_nbytes + (large ? ZIP64_NBYTES : 0) + 4;
    size_t pad = -(zip->at + before) % EK_ZIP_ALIGNMENT;
    unsigned char *at = zip_append(header, LOCAL_SIGNATURE, 4);
    at = zip_append_common(at, &e, checksum, large);
    at = zip_append(at, before + pad - LOCAL_NBYTES - e.name_nbytes, 2);
    memcpy(at, name, e.name_nbytes);
    at += e.name_nbytes;
    if (large)
        at = zip_append_large(at, &e);
    zip_append(zip_append(at, PAD_EXTRA, 2), pad, 2);
    EK_TRY(zip_note(zip, &e, checksum, large));
    EK_TRY(ek_file_write(zip->file, header, before + pad));
    EK_TRY(ek_file_write(zip->file, bytes, nbytes));
    zip->at += before + pad + nbytes;
    return 0;
}

int ek_zip_finish(const ek_zip_writer *zip)
{
    const uint64_t count = (uint64_t)zip->count, size = (uint64_t)zip->directory_nbytes;
    unsigned char end[END64_NBYTES + LOCATOR_NBYTES + END_NBYTES] = {0};
    unsigned char *at = zip_append(end, END64_SIGNATURE, 4);
    at = zip_append(at, END64_NBYTES - 12, 8); /* the bytes that follow */
    at = zip_append(at, 45 | 45 << 16, 4);
    at = zip_append(at, 0, 8); /* the first disk */
    at = zip_append(at, count, 8);
    at = zip_append(at, count, 8);
    at = zip_append(at, size, 8);
    at = zip_append(at, zip->at, 8);
    at = zip_append(at, LOCATOR_SIGNATURE, 4);
    at = zip_append(at, 0, 4);
    at = zip_append(at, zip->at + size, 8);
    at = zip_append(at, 1, 4); /* one disk in all */
    at = zip_append(at, END_SIGNATURE, 4);
    at = zip_append(at, 0, 4);
    at = zip_append(at, count < UINT16_MAX ? count : UINT16_MAX, 2);
    at = zip_append(at, count < UINT16_MAX ? count : UINT16_MAX, 2);
    at = zip_append(at, size < UINT32_MAX ? size : UINT32_MAX, 4);
    zip_append(at, zip->at < UINT32_MAX ? zip->at : UINT32_MAX, 4);
    EK_TRY(ek_file_write(zip->file, zip->directory, (size_t)size));
    return ek_file_write(zip->file, end, sizeof end);
}
