/* layout.h: what tensors a module has, and how tensors travel between ranks as one. */
#ifndef EK_TRAIN_LAYOUT_H
#define EK_TRAIN_LAYOUT_H

#include "evenkeel/module.h"
#include "link/communication.h"

/* ---- what a module has ---- */

typedef struct ek_module_layout_item {
    ek_tensor *tensor; /* of the module; borrowed */
    char *text;        /* path, dtype and shape, such as "\"2.weight\" f32[6, 10]"; owned */
    int64_t digest;    /* of path, dtype and shape */
} ek_module_layout_item;

typedef struct ek_module_layout {
    ek_module_layout_item *items; /* parameters, then buffers; owned */
    int count, room;
} ek_module_layout;

/* Lists the module's parameters, and with `buffers` its buffers too. The layout must be zero before
 * the call. The caller clears the layout, also after an error. */
int ek_layout_read(ek_module_layout *layout, ek_module *module, bool buffers);
void ek_layout_clear(ek_module_layout *layout);

/* Checks that the module's parameters and buffers have equal paths, dtypes and shapes on all ranks.
 * If not, fails with EK_E_STATE on all ranks. The sentence begins with `what` and names the first
 * difference. */
int ek_layout_agree(const char *what, ek_module *module, ek_process_group *group);

/* Checks that each parameter of the module that requires a gradient is one of these leaves. They
 * are found fastest in the order of registration. */
int ek_layout_check_leaves(ek_module *module, ek_tensor *const *leaves, int count);

/* ---- tensors that travel as one ---- */

typedef struct ek_pack {
    ek_tensor *memory;         /* all tensors' elements, one tensor after another; one reference */
    ek_tensor *const *tensors; /* borrowed */
    int count;
} ek_pack;

/* Makes memory for the tensors (at least one). If all tensors lie on one GPU, the memory lies
 * there, else on cpu. Tensors of several dtypes travel as bytes (EK_U8). Each tensor then begins at
 * a multiple of 64 bytes. */
int ek_pack_open(ek_pack *pack, ek_dtype dtype, ek_tensor *const *tensors, int count);
void ek_pack_close(ek_pack *pack);

/* Copies the tensors to the memory. If the memory is the host's, the copies are complete on
 * return. */
int ek_pack_fill(const ek_pack *pack);
/* Copies the memory to the tensors. `what` names the call that writes to them. */
int ek_pack_deliver(const ek_pack *pack, const char *what);

/* Gives all ranks the elements that rank `root` of the group has in these tensors, as one message.
 * Adds the number of bytes to *nbytes unless nbytes is NULL. */
int ek_layout_broadcast(ek_tensor *const *tensors, int count, int root, ek_process_group *group,
                        uint64_t *nbytes);

#endif
