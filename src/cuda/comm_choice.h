/* comm_choice.h: EVENKEEL_COMM. */
#ifndef EK_CUDA_COMM_CHOICE_H
#define EK_CUDA_COMM_CHOICE_H

typedef enum ek_comm_choice {
    EK_COMM_AUTO, /* unset or empty */
    EK_COMM_COPY,
    EK_COMM_NCCL,
    EK_COMM_NCCL_SUM
} ek_comm_choice;

/* The word's choice, or EK_E_INVALID with the words there are. NULL is unset. */
int ek_comm_choice_parse(const char *word);

#endif
