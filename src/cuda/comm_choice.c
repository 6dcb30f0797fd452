#include "cuda/comm_choice.h"

#include <string.h>

#include "core/thread.h"

int ek_comm_choice_parse(const char *word)
{
    static const char *const words[] = {"", "copy", "nccl", "nccl-sum"};
    for (int i = 0; i < 4; i++)
        if (strcmp(word ? word : "", words[i]) == 0)
            return i;
    return EK_FAIL(EK_E_INVALID,
                   "EVENKEEL_COMM is \"%s\"; it can be nccl, copy, or nccl-sum (NCCL adds, in its "
                   "own order), and unset chooses between nccl and copy",
                   word);
}
