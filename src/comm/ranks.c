/* ranks.c: see ranks.h. */
#include "comm/ranks.h"

ek_ranks *(*ek_ranks_of)(ek_process_group *group);
ek_ranks *(*ek_ranks_of_wrapper)(struct ek_module *module, struct ek_module **child);
bool (*ek_ranks_set_sync)(struct ek_module *model, bool sync);
