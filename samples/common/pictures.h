/* pictures.h: reads Fashion-MNIST's files. */
#ifndef COMMON_PICTURES_H
#define COMMON_PICTURES_H

#include <evenkeel/tensor.h>

enum { PICTURE = 28 }; /* height and width in pixels */

/* <directory>/<set>-images-idx3-ubyte.gz, or without the ending where only that is there: u8
 * (count, 28, 28), set "train" or "t10k". EK_E_FORMAT where the pictures are of another size. */
ek_tensor *pictures_read(const char *directory, const char *set);
/* <directory>/<set>-labels-idx1-ubyte[.gz]: u8 (count), 0 to 9. */
ek_tensor *picture_labels_read(const char *directory, const char *set, int64_t count);

/* The line after an error of the above: what the directory must hold and where it comes from. */
void pictures_explain(const char *program, const char *directory);

#endif
