/* path.h: the paths of modules, tensors and members, such as "layer1.0.conv1". Each path is stored
 * once and stays until the process ends, so that spans, graph nodes and blocks of memory hold plain
 * pointers, and paths are equal if their addresses are. Any thread. */
#ifndef EK_CORE_PATH_H
#define EK_CORE_PATH_H

#include <stddef.h>

/* The empty path: that of a module without a parent, and of code outside of modules. */
extern const char ek_path_root[];

/* Returns the path of the member `name`, which has no dots, of the module at `parent`, which is a
 * path of this function or ek_path_root. If the name is empty, returns `parent`. NULL with
 * EK_E_NO_MEMORY. */
const char *ek_path_join(const char *parent, const char *name);

/* Returns the last `most` bytes of a path, or the whole path if it is shorter. */
const char *ek_path_end(const char *path, size_t most);

#endif
