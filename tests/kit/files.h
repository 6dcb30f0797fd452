/* files.h: a directory for each test, and files in it: FIXTURE(make_directory, remove_directory).
 */
#ifndef EK_TESTS_KIT_FILES_H
#define EK_TESTS_KIT_FILES_H

#include "unit.h"

/* The test's directory, and the path of "file" in it. */
extern char directory[48], file_path[64];

void make_directory(void);
/* Removes the directory and the file at `file_path`. No other file may be left. */
void remove_directory(void);
/* Removes the directory with all files. */
void empty_directory(void);

/* Returns the path of a name in the directory, valid until the next call. */
const char *path_of(const char *name);
int files_in_directory(void);
void remove_files(void);
/* Returns path_of(name). */
const char *write_file(const char *name, const void *bytes, size_t nbytes);
/* Reads the file at the path `name`, which must have fewer than `room` bytes. Returns their number.
 */
size_t read_file(const char *name, void *bytes, size_t room);

#endif
