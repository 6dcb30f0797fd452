/* data.h: files of arrays, pictures and named tensors.
 *
 * Files are regular ones: pipes, sockets and devices are EK_E_IO, and nobody waits for their
 * writer. EK_E_NO_MEMORY says that the process, and not the file, is to blame. */
#ifndef EVENKEEL_DATA_H
#define EVENKEEL_DATA_H

#include "evenkeel/tensor.h"

EK_BEGIN_DECLARATIONS

/* Reads a whole IDX file of unsigned bytes (plain or gzip) into a u8 tensor on cpu. EK_E_IO
 * (missing, unreadable), EK_E_FORMAT (bad magic, another element type, sizes that overflow,
 * truncated, trailing bytes). */
EK_API ek_tensor *ek_read_idx(const char *path);

/* Reads NumPy's format (versions 1 to 3, plain or gzip) into a tensor on cpu, row-major even if
 * the file has Fortran's order. Every number is kept exactly:
 *
 *     '<f4', '<f8', '<i8', '|u1'                    f32, f64, i64, u8
 *     '|b1'                                         u8, 0 or 1
 *     '<f2'                                         f32
 *     '|i1', '<i2', '<i4', '<u2', '<u4'             i64
 *
 * EK_E_IO; EK_E_FORMAT as above, for more than EK_MAX_DIMS dimensions, and for a header that is not
 * what NumPy writes; EK_E_DTYPE names another type: '<u8', big-endian ones, structured ones, Python
 * objects, which are never unpickled. */
EK_API ek_tensor *ek_read_npy(const char *path);

/* One file of the binary version of CIFAR-10 or CIFAR-100 (`classes` says which: 10 or 100), plain
 * or gzip, then of at most 60000 records. *pictures is u8 (N, 3, 32, 32) on cpu; *labels i64 (N),
 * or of CIFAR-100 (N, 2): coarse, below 20, and fine. Both NULL on error: EK_E_IO, EK_E_FORMAT for
 * a file that is empty or no whole number of records, or for a label that is no class; both name
 * the file. */
EK_API int ek_read_cifar(const char *path, int classes, ek_tensor **pictures, ek_tensor **labels);

/* A PNG or JPEG file, told by its first bytes, as a tensor (channels, H, W) on cpu.
 *
 * `channels` 0: what the file has, value by value, as Pillow's open. A palette's indices are u8 of
 * one channel (masks of segmentation), 16 bits are i64 of the file's channels, all else is u8.
 * Brightness of 1, 2 and 4 bits is spread over 0 to 255; inks are RGB.
 *
 * Else u8 of 1 channel for brightness, 2 with alpha, 3 for RGB (palettes too), 4 for RGBA: pixels
 * are those of Pillow's convert: alpha is dropped without compositing, or 255; brightness is
 * 0.299 R + 0.587 G + 0.114 B; 16 bits become 8 by dropping the lower ones.
 *
 * Transparency that is no channel of the file is made one only if alpha is asked for. Gamma,
 * colour profiles and orientation change nothing. EK_E_IO; EK_E_FORMAT with the decoder's reason,
 * for a file without its end, and for more than 2^28 pixels; a JPEG file that has an end is read
 * even if bytes before it are missing or wrong. EK_E_BACKEND if libpng is of another version
 * than the one that Evenkeel was compiled for. */
EK_API ek_tensor *ek_read_image(const char *path, int channels);
/* The same from memory; `name` for sentences. */
EK_API ek_tensor *ek_decode_image(const void *bytes, size_t nbytes, int channels, const char *name);

/* ---- safetensors: files of named tensors, which Python's `safetensors` reads and writes too ----
 *
 * Layout: u64 length of the header, little endian; the header, JSON; then the tensors' elements,
 * row-major, without gaps. */

typedef struct ek_named_tensor {
    const char *name;
    ek_tensor *tensor; /* any dtype, layout, device */
} ek_named_tensor;

typedef struct ek_metadata {
    const char *key, *value;
} ek_metadata;

/* Writes `path` so that a reader sees the old file or the new one, never a part: to a temporary
 * file beside it, synchronised, renamed. A symbolic link is replaced, not followed. Names are
 * UTF-8, not empty, each once, and not "__metadata__" (EK_E_INVALID). EK_E_IO with the system's
 * reason, also if an old file or its directory may not be written; the old file stays then. */
EK_API int ek_safetensors_save(const char *path, const ek_named_tensor *tensors, int count,
                               const ek_metadata *metadata, int metadata_count);

/* An open file, mapped, its header checked: EK_E_IO (missing, unreadable), EK_E_FORMAT with what is
 * wrong and where (broken or deep JSON, lengths that overflow, offsets that overlap, leave gaps or
 * leave the file, names that repeat or hold a NUL, dtypes that are unknown). Any thread may read.
 * Replacing the file does no harm; who cuts it short while it is open kills its readers (SIGBUS).
 */
typedef struct ek_safetensors ek_safetensors;
EK_API ek_safetensors *ek_safetensors_open(const char *path);
EK_API void ek_safetensors_close(ek_safetensors *file);

/* Tensors in the order of their elements in the file; names live as long as it is open. Negative
 * and NULL with EK_E_INVALID for no file or no such index. */
EK_API int ek_safetensors_count(const ek_safetensors *file);
EK_API const char *ek_safetensors_name(const ek_safetensors *file, int index);
/* A copy of tensor `name` on cpu. Every number is kept exactly:
 *
 *     F32, F64, BF16, I64, U8                       f32, f64, bf16, i64, u8
 *     BOOL                                          u8, 0 or 1
 *     F16, F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ
 *                                                   f32
 *     I8, I16, I32, U16, U32                        i64
 *
 * NULL with EK_E_INVALID if there is none, with EK_E_DTYPE for the format's other dtypes (U64,
 * C64, F4, F6), with EK_E_SHAPE for more than EK_MAX_DIMS dimensions. */
EK_API ek_tensor *ek_safetensors_read(const ek_safetensors *file, const char *name);
/* The value of a key, as long as the file is open; NULL without an error if there is none. */
EK_API const char *ek_safetensors_metadata(const ek_safetensors *file, const char *key);

EK_END_DECLARATIONS
#endif
