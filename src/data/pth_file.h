/* pth_file.h: the two layouts of files that torch.save wrote: the object that was pickled, and the
 * storages that hold tensors' elements. */
#ifndef EK_DATA_PTH_FILE_H
#define EK_DATA_PTH_FILE_H

#include "data/pickle.h"
#include "data/safetensors.h"
#include "data/zip.h"

/* The elements of one storage, in the mapped file. */
typedef struct ek_pth_storage {
    const ek_element *element;
    const unsigned char *bytes;
    int64_t count;
} ek_pth_storage;

typedef struct ek_pth_file {
    const char *what, *path; /* for EK_FAIL_IN */
    ek_pickle pickle;
    ek_zip zip;         /* has entries if the file is a zip archive */
    const char *folder; /* the name of the folder of data.pkl in the archive */
    size_t folder_nbytes;
    struct old_storage *storages; /* sorted by key: those of a file from before PyTorch 1.6 */
    int storage_count, storage_room;
} ek_pth_file;

/* Returns the name of torch's class of storages for these elements. Every dtype has one. */
const char *ek_pth_storage_class(const ek_element *element);
/* Returns true if the bytes begin as a file from before PyTorch 1.6 does. */
bool ek_pth_is_old(const unsigned char *bytes, size_t nbytes);
/* Reads the pickles of a mapped file. `p` is zero before. Returns the index of the object that was
 * saved, or EK_E_FORMAT. ek_pth_file_close frees what was read, also after a failure. */
int ek_pth_file_open(ek_pth_file *p, const ek_safetensors *file);
void ek_pth_file_close(ek_pth_file *p);

/* Returns the element type of a global like torch.FloatStorage or torch.float32; NULL for others.
 */
const ek_element *ek_pth_element(const ek_pth_file *p, int global);
/* Finds the storage that an object refers to. `name` is the tensor's, for errors. */
int ek_pth_file_storage(const ek_pth_file *p, int object, const char *name, ek_pth_storage *s);

#endif
