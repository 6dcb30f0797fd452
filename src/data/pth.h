/* pth.h: files that torch.save wrote, as named tensors.
 *
 * Since PyTorch 1.6 such a file is a zip archive: data.pkl is a pickle of the objects, data/0,
 * data/1, ... are the elements of storages. Earlier files are a sequence of pickles, followed by
 * the storages' elements. Both are read; the pickles run no code (pickle.h).
 *
 * Nested values get dotted names, as in an archive: {"model": {"0.weight": w}} has the tensor
 * "model.0.weight", and element i of a list has the name "i". Numbers are tensors without
 * dimensions, i64 or f64; texts are metadata. A module that was saved whole has the names of its
 * state dictionary. Objects of other classes are left out. */
#ifndef EK_DATA_PTH_H
#define EK_DATA_PTH_H

#include "data/safetensors.h"

/* Returns true if the bytes begin as such a file does. */
bool ek_pth_begins(const unsigned char *bytes, size_t nbytes);
/* Reads a mapped file's tensors and texts, and fills the other members, which are zero before.
 * EK_E_FORMAT says what is wrong. ek_safetensors_close frees them, also after a failure. */
int ek_pth_read(ek_safetensors *file);

/* Writes a zip archive with a dictionary of the sources and texts, which torch.load reads. The file
 * replaces the old one when complete. EK_E_INVALID if a text has the name of a dictionary. */
int ek_pth_save_from(const char *path, const ek_array_source *sources, int count,
                     const ek_metadata *metadata, int metadata_count);

#endif
