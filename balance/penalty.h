/* penalty.h: what gradient penalties share. */
#ifndef EK_BALANCE_PENALTY_H
#define EK_BALANCE_PENALTY_H

#include "evenkeel/gan.h"

/* "wgan_gp" etc. for sentences; NULL for what is no kind. */
const char *ek_penalty_name(ek_penalty_kind kind);

#endif
