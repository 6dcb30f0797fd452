/** @file
 * data.h: files of arrays, pictures and named tensors.
 *
 * Files must be regular: pipes, sockets and devices are EK_E_IO, and are not waited for.
 * EK_E_NO_MEMORY blames the process, not the file. Tensors that are read are in the scope. */
#ifndef EVENKEEL_DATA_H
#define EVENKEEL_DATA_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/** Reads an IDX file of unsigned bytes (plain or gzip) into a u8 tensor on cpu. EK_E_IO if it is
 * missing or unreadable. EK_E_FORMAT for a bad magic number, another element type, sizes that
 * overflow, and missing or trailing bytes. */
EK_API ek_tensor *ek_read_idx(const char *path);

/** Reads a .npy file of NumPy (versions 1 to 3, plain or gzip) into a tensor on cpu, row-major also
 * if the file has Fortran's order. Every number is kept exactly:
 *
 *     '<f2', '<f4', '<f8'                           f16, f32, f64
 *     '<i4', '<i8', '|u1', '|b1'                    i32, i64, u8, bool
 *     '|i1', '<i2', '<u2', '<u4'                    i64
 *
 * EK_E_IO and EK_E_FORMAT as above. EK_E_FORMAT also for more than EK_MAX_DIMS dimensions, and for
 * a header that NumPy would not write. EK_E_DTYPE names any other type: '<u8', big-endian and
 * structured types, and Python objects, which are never unpickled. */
EK_API ek_tensor *ek_read_npy(const char *path);
/** Writes a .npy file (version 1) whole or not at all, to the byte as numpy.save: a tensor that is
 * column-major, and not row-major, is written in Fortran's order. The tensor may lie on any device.
 * EK_E_DTYPE for bf16, which NumPy lacks (ek_to_dtype converts to f32); EK_E_IO with the system's
 * reason. */
EK_API int ek_save_npy(const char *path, const ek_tensor *tensor);

/** Reads a file of the binary version of CIFAR-10 or CIFAR-100 (`classes`: 10 or 100), plain, or
 * gzip with at most 60000 records. *pictures is u8 (N, 3, 32, 32) on cpu. *labels is i64 (N); for
 * CIFAR-100 it is (N, 2), the coarse label, below 20, and the fine one. Both are NULL on error:
 * EK_E_IO, or EK_E_FORMAT for an empty file, an incomplete record, or a label that is no class. */
EK_API int ek_read_cifar(const char *path, int classes, ek_tensor **pictures, ek_tensor **labels);

/** Reads a PNG or JPEG file, as its first bytes say, into a tensor (channels, H, W) on cpu.
 *
 * With `channels` 0 the values are those of the file, as Pillow's open gives them. The indices of a
 * palette (as in segmentation masks) are u8 with one channel. 16-bit values are i64, all others u8.
 * Brightness of 1, 2 or 4 bits is scaled to 0 to 255. Inks (CMYK) become RGB.
 *
 * With `channels` 1 (brightness), 2 (brightness and alpha), 3 (RGB) or 4 (RGBA) the values are u8,
 * converted as by Pillow's convert. Alpha is dropped without compositing, or is 255 if the file has
 * none. Brightness is 0.299 R + 0.587 G + 0.114 B. Of 16 bits the upper 8 are kept.
 *
 * Transparency that the file does not store as a channel is read only if `channels` is 2 or 4.
 * Gamma, color profiles and orientation are ignored. EK_E_IO if unreadable. EK_E_FORMAT with the
 * decoder's reason, also for a file whose end is missing, for more than 2^28 pixels, and for a JPEG
 * file of more than 4096 pixels for each of its bytes, counted in each of its scans. A JPEG file
 * whose end is there is read even if earlier bytes are missing or wrong. EK_E_BACKEND if libpng
 * is of another version than Evenkeel was compiled for. */
EK_API ek_tensor *ek_read_image(const char *path, int channels);
/** Does what ek_read_image does, for a file in memory; error sentences call the file `name`. */
EK_API ek_tensor *ek_decode_image(const void *bytes, size_t nbytes, int channels, const char *name);

typedef struct ek_grid_options {
    int begin;           /**< no option, see base.h */
    ek_tensor *pictures; /**< (N, C, H, W), (C, H, W) or (H, W); floating, in [0, 1], or u8 */
    int columns EK_IS(8);
    int padding EK_IS(2); /**< pixels between pictures and around them */
    double pad_value;
    bool normalize;   /**< maps [low, high] to [0, 1] */
    double low, high; /**< if both are 0: the smallest and the largest value */
    bool scale_each;  /**< each picture has its own [low, high] */
} ek_grid_options;
#define EK_DEFAULTS_ek_grid_options EK_DEFAULT(columns, 8), EK_DEFAULT(padding, 2)
EK_API ek_tensor *ek_make_grid_with(ek_grid_options options);
/** ek_make_grid(pictures, .columns = 4): pictures side by side, as torchvision.utils.make_grid: f32
 * (C, H, W) on cpu, without history, in the scope. One channel becomes three. A single picture gets
 * no border. Pictures may lie on any device. */
#define ek_make_grid(...) EK_CALL_1(ek_make_grid_with, ek_grid_options, pictures, __VA_ARGS__)
EK_API int ek_save_image_with(const char *path, ek_grid_options options);
/** ek_save_image("samples.png", pictures): writes the grid as a PNG file, whole or not at all, as
 * torchvision.utils.save_image: values are rounded to 8 bits and clamped. EK_E_SHAPE for more than
 * 4 channels, EK_E_IO with the system's reason. */
#define ek_save_image(path, ...) \
    EK_CALL_AFTER_1(ek_save_image_with, (path), ek_grid_options, pictures, __VA_ARGS__)

/* ---- safetensors: files of named tensors, which Python's `safetensors` reads and writes too ----
 *
 * Layout: the length of the header as a little-endian u64; the header, in JSON; then the tensors'
 * elements, row-major, without gaps. */

typedef struct ek_named_tensor {
    const char *name;
    ek_tensor *tensor; /**< any dtype, layout and device; borrowed */
} ek_named_tensor;

typedef struct ek_metadata {
    const char *key, *value;
} ek_metadata;

/** Writes a file through a temporary one that is synchronised and then renamed to `path`, so that a
 * reader sees the old file or the new one. A symbolic link is replaced, not followed. Names must be
 * UTF-8, not empty, unique, and not "__metadata__" (else EK_E_INVALID). EK_E_IO with the system's
 * reason, also if the old file or its directory must not be written; the old file then stays. */
EK_API int ek_safetensors_save(const char *path, const ek_named_tensor *tensors, int count,
                               const ek_metadata *metadata, int metadata_count);

/** An open file, mapped to memory, with its header checked. Opening a file that is missing or
 * unreadable is EK_E_IO. EK_E_FORMAT says what is wrong and where: broken or too deep JSON, lengths
 * that overflow, offsets that overlap, leave gaps or lie outside the file, names that repeat or
 * hold a NUL, unknown dtypes. Any thread may read. The file may be replaced while it is open; but
 * if another process truncates it, readers are killed (SIGBUS). */
typedef struct ek_safetensors ek_safetensors;
EK_API ek_safetensors *ek_safetensors_open(const char *path);
EK_API void ek_safetensors_close(ek_safetensors *file);
#define ek_safetensors_close(file) ek_safetensors_close(EK_PLACED(file))

/** The number of tensors, and their names in the order of their elements in the file. Names are
 * valid as long as the file is open. Negative or NULL with EK_E_INVALID for a NULL file or an index
 * out of range. */
EK_API int ek_safetensors_count(const ek_safetensors *file);
EK_API const char *ek_safetensors_name(const ek_safetensors *file, int index);
/** Reads tensor `name` to cpu. Every number is kept exactly:
 *
 *     F32, F64, BF16, F16, I64, I32, U8, BOOL       f32, f64, bf16, f16, i64, i32, u8, bool
 *     F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ
 *                                                   f32
 *     I8, I16, U16, U32                             i64
 *
 * NULL with EK_E_INVALID if there is no such tensor, EK_E_DTYPE for the other dtypes of the format
 * (U64, C64, F4, F6), EK_E_SHAPE for more than EK_MAX_DIMS dimensions. */
EK_API ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name);
/** The value of a metadata key, valid as long as the file is open; NULL, without an error, if the
 * file lacks the key. */
EK_API const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key);

EK_END_DECLARATIONS
#endif
