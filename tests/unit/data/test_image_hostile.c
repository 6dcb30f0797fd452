/* test_image_hostile.c: pictures damaged in every way: refused with a sentence, and nothing is left
 * of them. */
#include <zlib.h>

#include "unit.h"

/* A picture that is changed. */
typedef struct encoded {
    uint8_t bytes[8192];
    size_t nbytes;
} encoded;

static encoded picture(const char *name)
{
    char path[100];
    encoded result;
    snprintf(path, sizeof path, "%s/file", name);
    ek_tensor *bytes = golden("images.golden", path);
    result.nbytes = (size_t)ek_tensor_count(bytes);
    ck_assert_uint_lt(result.nbytes, sizeof result.bytes);
    assert_ok(ek_to_data(bytes, result.bytes, result.nbytes));
    return result;
}

/* Decodes from memory of exactly this size, so that AddressSanitizer sees who reads on. */
static ek_tensor *decode(const encoded *self, int channels)
{
    uint8_t *bytes = malloc(self->nbytes ? self->nbytes : 1);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, self->bytes, self->nbytes);
    ek_tensor *tensor = ek_decode_image(bytes, self->nbytes, channels, "hostile");
    free(bytes);
    return tensor;
}

static void assert_picture_refused(const encoded *self, const char *part)
{
    ek_memory_stats before, after;
    assert_ok(ek_memory_get_stats(ek_cpu(), &before));
    if (decode(self, 4))
        ck_abort_msg("decoded instead of \"%s\"", part);
    assert_ok(ek_memory_get_stats(ek_cpu(), &after));
    ck_assert_uint_eq(before.in_use, after.in_use);
    assert_error(EK_E_FORMAT, "decode_image: hostile: ");
    decode(self, 4);
    assert_error(EK_E_FORMAT, part);
}

static size_t find(const encoded *self, const void *what, size_t nbytes)
{
    const uint8_t *at = memmem(self->bytes, self->nbytes, what, nbytes);
    ck_assert_ptr_nonnull(at);
    return (size_t)(at - self->bytes);
}

static void write_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* ---- PNG ---- */

enum { IHDR = 12, IHDR_DATA = 16, IHDR_SUM = 29 };

static void repair_header(encoded *self)
{
    write_u32(self->bytes + IHDR_SUM, (uint32_t)crc32(0, self->bytes + IHDR, IHDR_SUM - IHDR));
}

static void set_png_size(encoded *self, uint32_t width, uint32_t height)
{
    write_u32(self->bytes + IHDR_DATA, width);
    write_u32(self->bytes + IHDR_DATA + 4, height);
    repair_header(self);
}

TEST(png_truncated)
{
    static const char *const names[] = {"palette4_transparent", "rgb_alpha16_interlaced"};
    for (int i = 0; i < 2; i++) {
        encoded self = picture(names[i]);
        size_t whole = self.nbytes;
        for (self.nbytes = 0; self.nbytes < 8; self.nbytes++)
            assert_picture_refused(&self, self.nbytes ? "it begins with" : "empty");
        for (; self.nbytes < whole; self.nbytes++)
            assert_picture_refused(&self, "truncated");
    }
}

TEST(png_sums)
{
    static const char *const chunks[] = {"IHDR", "PLTE", "tRNS", "IDAT", "IEND"};
    for (int i = 0; i < 5; i++) {
        encoded self = picture("palette4_transparent");
        size_t at = find(&self, chunks[i], 4);
        uint32_t length = (uint32_t)self.bytes[at - 2] << 8 | self.bytes[at - 1];
        self.bytes[at + 4 + length] ^= 0x10;
        assert_picture_refused(&self, "CRC error");
    }
    encoded self = picture("rgb8_gamma"); /* of a chunk that is not even looked at */
    self.bytes[find(&self, "tEXt", 4) + 5] ^= 1;
    assert_picture_refused(&self, "CRC error");
}

TEST(png_headers)
{
    encoded self = picture("rgb8");
    set_png_size(&self, 0, 9);
    assert_picture_refused(&self, "Invalid IHDR");
    set_png_size(&self, 13, 0);
    assert_picture_refused(&self, "Invalid IHDR");
    set_png_size(&self, 0xffffffff, 9);
    assert_picture_refused(&self, "PNG unsigned integer out of range");
    self.bytes[IHDR_DATA + 8] = 3;
    set_png_size(&self, 13, 9);
    assert_picture_refused(&self, "Invalid IHDR");
    self.bytes[IHDR_DATA + 8] = 8;
    self.bytes[IHDR_DATA + 9] = 5;
    set_png_size(&self, 13, 9);
    assert_picture_refused(&self, "Invalid IHDR");
    self.bytes[IHDR_DATA + 9] = 3;
    set_png_size(&self, 13, 9);
    assert_picture_refused(&self, "PLTE");
}

TEST(png_sizes)
{
    encoded self = picture("gray1");
    set_png_size(&self, 1u << 15, 1u << 13); /* as many as are read */
    assert_picture_refused(&self, "truncated: 32768 x 8192 pixels do not fit in a PNG file of");
    set_png_size(&self, 1u << 15, (1u << 13) + 1);
    assert_picture_refused(&self, "32768 x 8193 pixels; at most 268435456 in all are read");
    set_png_size(&self, 0x7fffffff, 0x7fffffff);
    assert_picture_refused(&self, "2147483647 x 2147483647 pixels; at most");
    set_png_size(&self, 2000001, 1); /* more than libpng's own limit */
    assert_picture_refused(&self, "truncated: 2000001 x 1 pixels");
    set_png_size(&self, 300, 300); /* plausible, and yet too few */
    assert_picture_refused(&self, "no PNG that can be read");
}

/* ---- JPEG ---- */

TEST(jpeg_truncated)
{
    static const char *const names[] = {"jpeg_420", "jpeg_progressive", "jpeg_cmyk"};
    for (int i = 0; i < 3; i++) {
        encoded self = picture(names[i]);
        size_t whole = self.nbytes;
        for (self.nbytes = 3; self.nbytes < whole; self.nbytes++)
            assert_picture_refused(&self, "");
        self.nbytes = whole - 1;
        assert_picture_refused(&self, "truncated: a JPEG file without an end");
    }
}

/* An end within the bytes of a table is none; here the library finds that out. */
TEST(jpeg_end_in_a_table)
{
    encoded self = picture("jpeg_progressive");
    size_t last = self.nbytes - 2;
    static const uint8_t comment[] = {0xff, 0xfe, 0, 4, 0xff, 0xd9};
    memcpy(self.bytes + last, comment, sizeof comment);
    self.nbytes = last + sizeof comment;
    assert_picture_refused(&self, "Premature end of JPEG file");
}

static size_t frame_of(const encoded *self)
{
    for (size_t at = 2; at + 8 < self->nbytes;
         at += 2 + (self->bytes[at + 2] << 8 | self->bytes[at + 3]))
        if (self->bytes[at + 1] >= 0xc0 && self->bytes[at + 1] <= 0xc2)
            return at;
    ck_abort_msg("no frame");
}

static void set_jpeg_size(encoded *self, unsigned width, unsigned height)
{
    uint8_t *size = self->bytes + frame_of(self) + 5;
    size[0] = (uint8_t)(height >> 8), size[1] = (uint8_t)height;
    size[2] = (uint8_t)(width >> 8), size[3] = (uint8_t)width;
}

TEST(jpeg_headers)
{
    encoded self = picture("jpeg_420");
    set_jpeg_size(&self, 0, 21);
    assert_picture_refused(&self, "no JPEG that can be read");
    set_jpeg_size(&self, 35, 0);
    assert_picture_refused(&self, "no JPEG that can be read");
    set_jpeg_size(&self, 65500, 65500);
    assert_picture_refused(&self, "65500 x 65500 pixels; at most 268435456 in all are read");
    set_jpeg_size(&self, 16384, 16384);
    assert_picture_refused(&self, "truncated: 16384 x 16384 pixels do not fit in a JPEG file of");
    set_jpeg_size(&self, 35, 21);
    self.bytes[frame_of(&self) + 4] = 12; /* bits */
    assert_picture_refused(&self, "Unsupported JPEG data precision 12");
    self.nbytes = 2;
    memcpy(self.bytes + self.nbytes, (uint8_t[]){0xff, 0xd9}, 2);
    self.nbytes = 4;
    assert_picture_refused(&self, "tables without a picture");
}

/* Scans that cost time for all pixels and take no bytes, and arithmetic coding, which takes hardly
 * any for pixels: 0xc9 is sequential, 0xca progressive. */
TEST_LOOP(jpeg_bombs, 0, 4)
{
    static const struct {
        uint8_t coding;
        int side, scans;
        const char *sentence; /* NULL: it is read */
    } bombs[] = {{0xc9, 16384, 1, "16384 x 16384 pixels do not fit in a JPEG file of 100 bytes"},
                 {0xca, 16384, 20, "with 20 scans"},
                 {0xca, 1024, 500, "with 500 scans"},
                 {0xca, 1024, 4, NULL}};
    enum { SCAN = 14 };
    const uint8_t side[] = {(uint8_t)(bombs[_i].side >> 8), (uint8_t)bombs[_i].side};
    const uint8_t coding = bombs[_i].coding;
    const uint8_t frame[] = {0xff,    coding,  0, 11, 8,  side[0], side[1],
                             side[0], side[1], 1, 1,  17, 0};
    const uint8_t scan[SCAN] = {0xff, 0xda, 0, 8, 1, 1, 0, 0, coding == 0xca ? 0 : 63, 0};
    encoded self = {.nbytes = 71 + sizeof frame};
    memcpy(self.bytes, "\xff\xd8\xff\xdb\0\x43", 7); /* and a table of ones */
    memset(self.bytes + 7, 1, 64);
    memcpy(self.bytes + 71, frame, sizeof frame);
    for (int i = 0; i < bombs[_i].scans; i++, self.nbytes += SCAN)
        memcpy(self.bytes + self.nbytes, scan, SCAN);
    memcpy(self.bytes + self.nbytes, "\xff\xd9", 2);
    self.nbytes += 2;
    if (bombs[_i].sentence)
        assert_picture_refused(&self, bombs[_i].sentence);
    else
        assert_made(decode(&self, 0));
}

/* Two components mean nothing that is known. */
TEST(jpeg_of_two_components)
{
    encoded self = picture("jpeg_444");
    size_t frame = frame_of(&self), scan = find(&self, "\xff\xda\0\x0c\3", 5);
    self.bytes[frame + 3] = 14;
    self.bytes[frame + 9] = 2;
    self.bytes[scan + 3] = 10;
    self.bytes[scan + 4] = 2;
    memmove(self.bytes + scan + 9, self.bytes + scan + 11, self.nbytes - scan - 11);
    memmove(self.bytes + frame + 16, self.bytes + frame + 19, self.nbytes - frame - 19);
    self.nbytes -= 5;
    assert_picture_refused(&self, "unknown colors");
}

/* Pillow reads what has an end, whatever is missing before. */
TEST(jpeg_with_a_hole)
{
    encoded self = picture("jpeg_420"), tail;
    size_t hole = 40, at = self.nbytes - hole - 100;
    memmove(self.bytes + at, self.bytes + at + hole, self.nbytes - at - hole);
    self.nbytes -= hole;
    assert_made(decode(&self, 3));
    tail = picture("jpeg_420");
    memcpy(tail.bytes + tail.nbytes, "tail", 4);
    tail.nbytes += 4;
    ek_tensor *tensor = decode(&tail, 3);
    assert_made(tensor);
    tail.nbytes -= 4;
    assert_close(tensor, decode(&tail, 3), 0, 0);
}

/* ---- both ---- */

/* Whatever bytes say, there is a picture or a sentence. */
TEST_LOOP(flipped_bits, 0, 6)
{
    static const char *const names[] = {"rgb_alpha16_interlaced", "palette4_transparent",
                                        "jpeg_progressive",       "jpeg_cmyk",
                                        "jpeg_restart",           "jpeg_arithmetic"};
    encoded whole = picture(names[_i]);
    uint32_t state = 12345;
    for (int i = 0; i < 400; i++) {
        encoded self = whole;
        for (int k = 0; k <= i % 3; k++) {
            state = state * 1664525u + 1013904223u;
            self.bytes[(state >> 8) % self.nbytes] ^= (uint8_t)(1u << (state >> 5) % 8);
        }
        repair_header(&self);
        ek_scope scope = ek_scope_begin();
        if (!decode(&self, i % 5))
            assert_error(EK_E_FORMAT, "hostile");
        ck_assert_int_eq(ek_error_status(), 0);
        ek_scope_end(&scope);
    }
}
