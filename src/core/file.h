/* file.h: opening files, and writing them whole or not at all.
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

/* ---- opening ---- */

/* open(2), closed by exec, with permissions 0666 for what it makes; interruptions are not
 * errors. -1 with errno. */
int ek_open(const char *path, int flags);

/* The descriptor of a regular file that is to be read, and its size. Directories, pipes, sockets
 * and devices are refused: some would keep their reader waiting for ever. The caller closes it. */
int ek_file_open(const char *what, const char *path, size_t *nbytes);

/* "<what>: cannot <verb> <path>: <the system's reason>" from errno. Returns EK_E_NO_MEMORY if that
 * is ENOMEM, else EK_E_IO. */
int ek_file_fail(const char *what, const char *verb, const char *path);

/* ---- writing ---- */

typedef struct ek_file {
    const char *what, *path;
    int descriptor;
} ek_file;

/* Writes what `write` writes. An old file has to be a regular one that the caller may write; its
 * permissions stay, and its owner where the system lets us give files away. If `write` returns
 * an error, that is the result and nothing has changed. */
int ek_file_replace(const char *what, const char *path,
                    int (*write)(const ek_file *file, void *user), void *user);

/* For `write`. */
int ek_file_write(const ek_file *file, const void *data, size_t nbytes);

/* The same for text; that the stream took everything is checked here. */
int ek_file_replace_text(const char *what, const char *path, int (*write)(FILE *stream, void *user),
                         void *user);

#endif
