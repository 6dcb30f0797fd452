/* comm_choice.h: EVENKEEL_COMM. */
#ifndef EK_CUDA_COMM_CHOICE_H
#define EK_CUDA_COMM_CHOICE_H

#include "core/device.h"

typedef enum ek_comm_choice {
    EK_COMM_AUTO, /* unset or empty */
    EK_COMM_COPY,
    EK_COMM_NCCL,
    EK_COMM_NCCL_SUM
} ek_comm_choice;

/* The word's choice, or EK_E_INVALID with the words there are. NULL is unset. */
int ek_comm_choice_parse(const char *word);

/* 1 for a list with devices that are no GPUs, which communicates by copies, whatever is asked for:
 * that is logged, once. 0 for GPUs only, negative for a word there isn't. */
int ek_comm_choice_mixed(ek_dev *const *devs, int count);

#endif
