#include "cuda/comm_choice.h"

#include <stdatomic.h>
#include <stdlib.h>
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

int ek_comm_choice_mixed(ek_dev *const *devs, int count)
{
    static atomic_bool told;
    int other = 0;
    while (other < count && devs[other]->id.kind == EK_CUDA)
        other++;
    if (other == count)
        return 0;
    int choice = ek_comm_choice_parse(getenv("EVENKEEL_COMM"));
    EK_TRY(choice);
    if (!atomic_exchange(&told, true))
        ek_log_line(choice >= EK_COMM_NCCL ? EK_LOG_WARNING : EK_LOG_INFO,
                    "%s and %d more communicate by copies%s: %s is no GPU", devs[0]->name,
                    count - 1, choice >= EK_COMM_NCCL ? ", though EVENKEEL_COMM asks for NCCL" : "",
                    devs[other]->name);
    return 1;
}
