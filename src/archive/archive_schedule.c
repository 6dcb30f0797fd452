/* archive_schedule.c: learning rates, and schedules: steps, initial rates, and the rates of now.
 *
 * If a schedule is made of others, child i is written below the name "i". */
#include <stdio.h>
#include <stdlib.h>

#include "archive/archive.h"
#include "core/error.h"
#include "core/tensor.h"
#include "optim/optimizer.h"

/* ---- learning rates of all groups ---- */

int ek_archive_put_rates(const ek_archive_put_call *put, const ek_optimizer *optimizer)
{
    int count = ek_optimizer_group_count(optimizer);
    double *rates = ek_calloc((size_t)count, sizeof *rates);
    if (!rates)
        return EK_E_NO_MEMORY;
    for (int i = 0; i < count; i++)
        rates[i] = ek_optimizer_lr(optimizer, i);
    int status = ek_archive_add_data(put, "lr", rates, EK_SHAPE(count), EK_F64, ek_cpu());
    free(rates);
    return status;
}

/* Reads at most `room` learning rates, and checks them. Returns how many there are. */
static int rates_read(const ek_archive_get_call *get, const char *path, double *values, int room)
{
    int count = ek_archive_view_floats(get, path, values, room);
    for (int i = 0; i < count; i++)
        if (!(values[i] >= 0))
            return EK_FAIL_IN(EK_E_FORMAT, get,
                              "\"%.100s.%s\" of group %d is %g; a rate is 0 or more", get->name,
                              path, i, values[i]);
    return count;
}

int ek_archive_read_rates(const ek_archive_get_call *get, double *values, int groups)
{
    int count = rates_read(get, "lr", values, groups);
    if (count >= 0 && count < groups)
        return EK_FAIL_IN(EK_E_SHAPE, get,
                          "\"%.100s.lr\" is of %d groups, and the optimizer has %d", get->name,
                          count, groups);
    return count < 0 ? count : 0;
}

void ek_archive_set_rates(ek_optimizer *optimizer, const double *values)
{
    for (int i = 0; i < ek_optimizer_group_count(optimizer); i++)
        ek_optimizer_set(optimizer, i, "lr", values[i]);
}

/* ---- writing ---- */

/* Adds the data from which a schedule, and the schedules that it is made of, continue. */
static int schedule_put(const ek_archive_put_call *put, ek_schedule *schedule)
{
    int count, numbers;
    ek_schedule *child;
    const double *initial = ek_schedule_initial(schedule, &count);
    const double *memory = ek_schedule_memory(schedule, &numbers);
    int64_t steps = ek_schedule_steps(schedule);
    EK_TRY(ek_archive_add_data(put, "steps", &steps, ek_scalar_shape(), EK_I64, ek_cpu()));
    EK_TRY(ek_archive_add_data(put, "initial_lr", initial, EK_SHAPE(count), EK_F64, ek_cpu()));
    if (numbers > 0)
        EK_TRY(ek_archive_add_data(put, "measures", memory, EK_SHAPE(numbers), EK_F64, ek_cpu()));
    for (int i = 0; (child = ek_schedule_child(schedule, i)); i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        char *name = ek_archive_join(put->name, number);
        if (!name)
            return EK_E_NO_MEMORY;
        const ek_archive_put_call below = {put->archive, put->what, name};
        int status = schedule_put(&below, child);
        free(name);
        EK_TRY(status);
    }
    return 0;
}

int ek_archive_put_schedule(ek_archive *archive, const char *name, ek_schedule *schedule)
{
    const ek_archive_put_call put = {archive, "archive_put_schedule", name};
    EK_TRY(ek_archive_check_put(&put));
    EK_TRY(ek_archive_check_given(&put, "the schedule", schedule));
    ek_archive_mark mark = ek_archive_begin(archive);
    int status = schedule_put(&put, schedule);
    if (status == 0)
        status = ek_archive_put_rates(&put, ek_schedule_optimizer(schedule));
    return ek_archive_end(archive, mark, status);
}

/* ---- loading ---- */

/* Checks what is below get->name, and with `commit` restores the schedule from it. `initial` has
 * room for a rate per group. */
static int schedule_load(const ek_archive_get_call *get, ek_schedule *schedule, double *initial,
                         int groups, bool commit)
{
    int64_t steps = 0;
    int numbers;
    double found[8], *memory = ek_schedule_memory(schedule, &numbers);
    ek_schedule *child;
    EK_TRY(ek_archive_view_int(get, "steps", &steps));
    if (steps < 0 || steps == INT64_MAX)
        return EK_FAIL_IN(EK_E_FORMAT, get, "\"%.200s\" is of a schedule after %lld steps",
                          get->name, (long long)steps);
    for (int i = 0; (child = ek_schedule_child(schedule, i)); i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        char *name = ek_archive_join(get->name, number);
        if (!name)
            return EK_E_NO_MEMORY;
        const ek_archive_get_call below = {get->archive, get->what, name, get->path};
        int status = schedule_load(&below, child, initial, groups, commit);
        free(name);
        EK_TRY(status);
    }
    int count = rates_read(get, "initial_lr", initial, groups);
    if (count < 0)
        return count;
    int held = numbers > 0 ? ek_archive_view_floats(get, "measures", found, numbers) : 0;
    if (held < 0)
        return held;
    if (held < numbers)
        return EK_FAIL_IN(EK_E_FORMAT, get, "\"%.200s.measures\" holds %d numbers, not %d",
                          get->name, held, numbers);
    if (commit)
        EK_TRY(ek_schedule_restore(schedule, steps, initial, count));
    for (int i = 0; commit && i < numbers; i++)
        memory[i] = found[i];
    return 0;
}

int ek_archive_load_schedule(const ek_archive *archive, const char *name, ek_schedule *schedule)
{
    ek_archive_get_call get = {archive, "archive_load_schedule", name, NULL};
    EK_TRY(ek_archive_check_get(&get));
    EK_TRY(ek_check_handle(get.what, "the schedule", schedule));
    ek_optimizer *optimizer = ek_schedule_optimizer(schedule);
    int groups = ek_optimizer_group_count(optimizer);
    double *numbers = ek_calloc(2 * (size_t)groups, sizeof *numbers);
    if (!numbers)
        return EK_E_NO_MEMORY;
    double *rates = numbers + groups;
    int status = schedule_load(&get, schedule, numbers, groups, false);
    if (status == 0)
        status = ek_archive_read_rates(&get, rates, groups);
    if (status == 0)
        status = schedule_load(&get, schedule, numbers, groups, true);
    if (status == 0)
        ek_archive_set_rates(optimizer, rates);
    free(numbers);
    return status;
}
