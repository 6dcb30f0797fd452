/* picture_walk.h: the pictures below a directory, in an order that does not depend on the file
 * system. */
#ifndef EK_DATA_PICTURE_WALK_H
#define EK_DATA_PICTURE_WALK_H

#include <stddef.h>
#include <stdint.h>

/* Texts, one behind the other in one block; all zero to begin with. */
typedef struct ek_texts {
    char *block;
    size_t used, room;
    size_t *starts;
    int64_t count, places;
} ek_texts;

/* Appends `name`, or <directory>/<name> if that is not NULL. */
int ek_texts_add(ek_texts *texts, const char *directory, const char *name);
const char *ek_texts_at(const ek_texts *texts, int64_t index);
/* Gives back what was allocated for more. */
void ek_texts_fit(ek_texts *texts);
void ek_texts_free(ek_texts *texts);

/* Both follow symbolic links; a directory within itself is not entered again. EK_E_IO with the
 * system's reason for what cannot be listed. */

/* Appends the names of the directories directly in `root`, in the order of their bytes. */
int ek_walk_classes(const char *root, ek_texts *names);
/* Appends the paths of the regular files below `directory` whose names end in .png, .jpg or .jpeg,
 * in any case: directories in the order of their whole paths' bytes, in each the names.
 * EK_E_INVALID if links lead to so many directories that they must be running wild. */
int ek_walk_pictures(const char *directory, ek_texts *paths);

#endif
