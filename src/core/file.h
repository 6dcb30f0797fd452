/* file.h: files that are written whole or not at all.
 *
 * A file is written in the directory of its place, without a name where the file system can do that
 * (else under another one, ".evenkeel-*.tmp"), synchronised, and then renamed: whoever reads sees
 * the old file or the new one, also after the power has failed. A process that is killed leaves
 * nothing, or, where files cannot be nameless or within the moment of renaming, its temporary.
 * Errors are EK_E_IO with the system's reason; `what` begins their sentences. */
#ifndef EK_CORE_FILE_H
#define EK_CORE_FILE_H

#include <stddef.h>
#include <stdio.h>

typedef struct ek_file {
    const char *what, *path;
    int descriptor;
} ek_file;

/* Writes what `write` writes. An old file has to be a regular one that the caller may write; its
 * permissions stay, and its owner where the system lets us give files away. Where `write` returns
 * an error, that is the result and nothing has changed. */
int ek_file_replace(const char *what, const char *path,
                    int (*write)(const ek_file *file, void *user), void *user);

/* For `write`. */
int ek_file_write(const ek_file *file, const void *data, size_t nbytes);

/* The same for text; that the stream took everything is checked here. */
int ek_file_replace_text(const char *what, const char *path, int (*write)(FILE *stream, void *user),
                         void *user);

#endif
