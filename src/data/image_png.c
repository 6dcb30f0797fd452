/* image_png.c: PNG by libpng's full interface. Its simplified interface would apply gamma, which
 * changes the file's values. */
#include <png.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/image.h"

/* A picture that is being decoded. Local variables may be stale after libpng's longjmp, so that
 * everything that the code after a jump needs is here. */
typedef struct png_decoding {
    const ek_encoded *picture;
    png_structp png;
    png_infop info;
    size_t done; /* bytes of the picture that were read */
    ek_tensor *tensor;
    uint8_t *rows;  /* one row; all rows if the picture is interlaced */
    bool no_memory; /* an allocation of libpng's failed */
    char reason[200];
} png_decoding;

/* ---- functions that libpng calls ---- */

static PNG_NORETURN void decoding_keep_reason(png_structp png, png_const_charp text)
{
    png_decoding *self = png_get_error_ptr(png);
    snprintf(self->reason, sizeof self->reason, "%s", text);
    png_longjmp(png, 1);
}

static void decoding_ignore_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static png_voidp decoding_allocate(png_structp png, png_alloc_size_t nbytes)
{
    png_decoding *self = png_get_mem_ptr(png);
    void *memory = malloc(nbytes);
    self->no_memory = self->no_memory || !memory;
    return memory;
}

static void decoding_release(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

static void decoding_give_bytes(png_structp png, png_bytep data, size_t nbytes)
{
    png_decoding *self = png_get_io_ptr(png);
    if (nbytes > self->picture->nbytes - self->done)
        png_error(png, "truncated");
    memcpy(data, self->picture->bytes + self->done, nbytes);
    self->done += nbytes;
}

/* ---- steps ---- */

/* Refuses a picture that is larger than the file can hold. A deflated byte expands to at most 1032
 * bytes, so that a small file can't claim much memory. */
static int decoding_check_claim(const png_decoding *self, int64_t width, int64_t height)
{
    uint64_t nbytes = (uint64_t)png_get_rowbytes(self->png, self->info) * (uint64_t)height;
    EK_TRY(ek_encoded_check_size(self->picture, width, height));
    if (nbytes / EK_DEFLATE_MOST > self->picture->nbytes)
        return EK_FAIL_IN(EK_E_FORMAT, self->picture,
                          "truncated: %lld x %lld pixels do not fit in a PNG file of %zu bytes",
                          (long long)width, (long long)height, self->picture->nbytes);
    return 0;
}

/* Sets up rows of 8 bits per channel, or of 16 if the file's own values are asked for. */
static int decoding_begin_rows(png_decoding *self, int64_t width, int64_t height)
{
    const bool own = self->picture->channels == 0;
    const bool wide = own && png_get_bit_depth(self->png, self->info) == 16;
    int type = png_get_color_type(self->png, self->info);
    if (type == PNG_COLOR_TYPE_PALETTE && own)
        png_set_packing(self->png);
    else if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(self->png);
    else if (type == PNG_COLOR_TYPE_GRAY)
        png_set_expand_gray_1_2_4_to_8(self->png);
    if (!own && png_get_valid(self->png, self->info, PNG_INFO_tRNS))
        png_set_tRNS_to_alpha(self->png);
    if (!wide)
        png_set_strip_16(self->png);
    bool interlaced = png_set_interlace_handling(self->png) > 1;
    png_read_update_info(self->png, self->info);
    size_t rows = interlaced ? (size_t)height : 1;
    self->rows = ek_calloc(rows, png_get_rowbytes(self->png, self->info));
    if (!self->rows)
        return EK_E_NO_MEMORY;
    self->tensor = ek_encoded_tensor(self->picture, png_get_channels(self->png, self->info), width,
                                     height, wide ? EK_I64 : EK_U8);
    return self->tensor ? 0 : ek_error_pending();
}

/* Writes a row of the file to row `y` of the result's planes. */
static void decoding_give_row(const png_decoding *self, const uint8_t *pixels, size_t y,
                              size_t width, size_t height)
{
    int from = png_get_channels(self->png, self->info), to = (int)self->tensor->shape[0];
    void *planes = ek_tensor_address(self->tensor);
    if (self->tensor->dtype == EK_I64)
        ek_decoded_wide_planes(pixels, from, (int64_t *)planes + y * width, width * height, width);
    else
        ek_decoded_planes(pixels, from, (uint8_t *)planes + y * width, width * height, to, width);
}

static void decoding_read_rows(png_decoding *self, size_t width, size_t height)
{
    size_t row = png_get_rowbytes(self->png, self->info);
    int passes = png_set_interlace_handling(self->png);
    for (int pass = 1; pass < passes; pass++)
        for (size_t y = 0; y < height; y++)
            png_read_row(self->png, self->rows + y * row, NULL);
    for (size_t y = 0; y < height; y++) {
        uint8_t *pixels = passes > 1 ? self->rows + y * row : self->rows;
        png_read_row(self->png, pixels, NULL);
        decoding_give_row(self, pixels, y, width, height);
    }
    png_read_end(self->png, NULL);
}

/* Holds every call of libpng's that may longjmp. */
static int decoding_decode(png_decoding *self)
{
    if (setjmp(png_jmpbuf(self->png)))
        return self->no_memory ? ek_encoded_fail_memory(self->picture)
                               : EK_FAIL_IN(EK_E_FORMAT, self->picture,
                                            "no PNG that can be read: %s", self->reason);
    png_set_read_fn(self->png, self, decoding_give_bytes);
    /* A wrong checksum is an error for optional chunks too. */
    png_set_crc_action(self->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    /* Chunks that don't change pixels are skipped: gamma, color profiles, texts. */
    png_set_keep_unknown_chunks(self->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_user_limits(self->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_read_info(self->png, self->info);
    int64_t width = png_get_image_width(self->png, self->info);
    int64_t height = png_get_image_height(self->png, self->info);
    EK_TRY(decoding_check_claim(self, width, height));
    EK_TRY(decoding_begin_rows(self, width, height));
    decoding_read_rows(self, (size_t)width, (size_t)height);
    return 0;
}

/* Fails after libpng failed to begin: memory is short, or its version isn't that of its headers. */
static int decoding_fail_begin(const png_decoding *self)
{
    if (self->png || self->no_memory)
        return ek_encoded_fail_memory(self->picture);
    return EK_FAIL(EK_E_BACKEND,
                   "%s: %.500s: libpng %s is here, and Evenkeel was compiled for libpng %s; both "
                   "must be of one version",
                   self->picture->what, self->picture->path, png_get_libpng_ver(NULL),
                   PNG_LIBPNG_VER_STRING);
}

ek_tensor *ek_encoded_png(const ek_encoded *picture)
{
    png_decoding self = {.picture = picture};
    self.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &self, decoding_keep_reason,
                                        decoding_ignore_warning, &self, decoding_allocate,
                                        decoding_release);
    self.info = self.png ? png_create_info_struct(self.png) : NULL;
    int status = self.info ? decoding_decode(&self) : decoding_fail_begin(&self);
    png_destroy_read_struct(&self.png, &self.info, NULL);
    free(self.rows);
    return status == 0 ? self.tensor : NULL;
}
