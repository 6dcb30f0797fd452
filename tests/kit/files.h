/* files.h: a directory for each test, and files in it: FIXTURE(make_directory, remove_directory).
 */
#ifndef EK_TESTS_KIT_FILES_H
#define EK_TESTS_KIT_FILES_H

#include "unit.h"

/* A directory of the test's, and the file_path of "file" in it. */
extern char directory[48], file_path[64];

void make_directory(void);
/* Nothing but `file_path` may be left. */
void remove_directory(void);
/* With all files. */
void empty_directory(void);

/* The file_path of a name in it, until the next call. */
const char *path_of(const char *name);
int files_in_directory(void);
void remove_files(void);
/* Returns path_of(name). */
const char *write_file(const char *name, const void *bytes, size_t nbytes);
/* A file of fewer bytes than there is room for. */
size_t read_file(const char *name, void *bytes, size_t room);

#endif
