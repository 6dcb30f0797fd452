/* file.h: opens files, writes files whole or not at all, and appends to files.
 *
 * A file that is replaced is first written as a temporary file in its directory, then synchronised,
 * then renamed. So a reader sees the old file or the new one, even after a loss of power. If the
 * file system allows, the temporary file has no name. Otherwise its name is ".evenkeel-*.tmp", and
 * the file stays if the process is killed. Errors are EK_E_IO with the system's reason; `what`
 * begins their sentences. */
#ifndef EK_CORE_FILE_H
#define EK_CORE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- opening ---- */

/* Calls open(2) with O_CLOEXEC and mode 0666, again if it is interrupted. Returns -1 with errno on
 * error. */
int ek_open(const char *path, int flags);

/* Opens a regular file for reading; *nbytes becomes its size. Refuses directories, pipes, sockets
 * and devices, because reading some of them would never end. Returns the descriptor, which the
 * caller closes, or a negative status. */
int ek_file_open(const char *what, const char *path, size_t *nbytes);

/* A file in memory, for reading. If another process truncates it, readers are killed (SIGBUS). */
typedef struct ek_mapped {
    const unsigned char *bytes; /* NULL for an empty file */
    size_t nbytes;
} ek_mapped;
/* Maps a file that ek_file_open opens. After an error there is nothing to unmap. */
int ek_file_map(const char *what, const char *path, ek_mapped *mapped);
/* Maps the open file's first `nbytes` bytes; the mapping stays when the file is closed. `path` is
 * for sentences. */
int ek_file_map_open(const char *what, const char *path, int descriptor, size_t nbytes,
                     ek_mapped *mapped);
void ek_file_unmap(ek_mapped *mapped); /* an ek_mapped of zeros is ignored */

/* Sets the error "<what>: cannot <verb> <path>: <the system's reason>" from errno. Returns
 * EK_E_NO_MEMORY if errno is ENOMEM, else EK_E_IO. */
int ek_file_fail(const char *what, const char *verb, const char *path);

/* ---- writing ---- */

typedef struct ek_file {
    const char *what, *path;
    int descriptor;
} ek_file;

/* Replaces the file at `path` by what `write` writes. An old file must be regular and writable for
 * the caller. The new file gets the old one's permissions and, if the system allows, its owner. If
 * `write` returns an error, the old file stays and the error is returned. */
int ek_file_replace(const char *what, const char *path,
                    int (*write)(const ek_file *file, void *user), void *user);

/* Opens a new file without a name in the environment's TMPDIR, or in /tmp, for reading and writing.
 * The file is gone once it is closed and unmapped. Returns the descriptor or a negative status. */
int ek_file_open_nameless(const char *what);

/* Writes bytes to the file. Called by `write`, and for a file of ek_file_open_nameless. */
int ek_file_write(const ek_file *file, const void *data, size_t nbytes);

/* Does what ek_file_replace does, for text that `write` writes to a stream, and checks the stream's
 * errors. */
int ek_file_replace_text(const char *what, const char *path, int (*write)(FILE *stream, void *user),
                         void *user);

/* ---- appending ---- */

/* Makes a directory and its parents. A directory that is there is no error. */
int ek_file_make_directory(const char *what, const char *path);

/* A file to which records are appended, each whole or not at all, by one write(2) as a rule. */
typedef struct ek_appended {
    ek_file file;    /* `path` is borrowed, and `what` may change between calls */
    uint64_t nbytes; /* the file's size: all whole records */
    bool torn;       /* the file has part of a record after them */
} ek_appended;

/* Opens a file, which is made if it is missing. Returns 0 or EK_E_IO. */
int ek_appended_open(ek_appended *to, const char *what, const char *path);
/* Appends a record. After an error the part that was written is removed, at the latest before the
 * next record. */
int ek_appended_add(ek_appended *to, const void *record, size_t nbytes);
/* Synchronises and closes the file. */
int ek_appended_close(ek_appended *to);

#endif
