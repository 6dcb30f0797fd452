/* Checkpoints: a run that was stopped goes on to the bit. */
#include <evenkeel/evenkeel.h>
#include <string.h>

/* All that a run goes on from. */
typedef struct job {
    ek_module *net;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    int64_t step;
} job;

static job job_begin(uint64_t seed)
{
    job j = {0};
    ek_manual_seed(seed);
    j.net = ek_sequential(ek_linear(8, 32), ek_relu(), ek_dropout(0.1), ek_linear(32, 1));
    j.optimizer = ek_adamw(j.net, .lr = 3e-2);
    j.schedule = ek_cosine_annealing_lr(j.optimizer, 100, 0);
    return j;
}

static int job_run(job *j, int64_t until, double *loss)
{
    int rc = 0;
    for (; j->step < until && rc == 0; j->step++) {
        EK_SCOPE(step);
        ek_tensor *x = ek_randn(EK_SHAPE(64, 8)), *y = ek_sum(x, EK_DIMS(1), .keepdim = true);
        ek_tensor *l = ek_f_mse_loss(ek_apply(j->net, x), y);
        rc = ek_minimize(j->optimizer, l, .value = loss);
        if (rc == 0)
            rc = ek_schedule_step(j->schedule);
    }
    return rc;
}

static int job_save(const job *j, const char *path)
{
    ek_archive *a = ek_archive_new();
    ek_archive_put_module(a, "model", j->net);
    ek_archive_put_optimizer(a, "optimizer", j->optimizer, j->net);
    ek_archive_put_schedule(a, "schedule", j->schedule);
    ek_archive_put_random(a, "random");
    ek_archive_put(a, "step", ek_value_of_int(j->step));
    int rc = ek_archive_save(a, path); /* whole or not at all; fails if one of the above did */
    ek_archive_free(a);
    return rc;
}

static int job_load(job *j, const char *path)
{
    ek_archive *a = ek_archive_open(path); /* NULL on an error; then the rest does nothing */
    ek_archive_load_module(a, "model", j->net);
    ek_archive_load_optimizer(a, "optimizer", j->optimizer, j->net);
    ek_archive_load_schedule(a, "schedule", j->schedule);
    ek_archive_load_random(a, "random");
    ek_archive_get_int(a, "step", &j->step);
    ek_archive_free(a);
    return ek_error_status(); /* the first of their errors stays pending; 0: there was none */
}

static void job_end(job *j)
{
    ek_schedule_free(j->schedule);
    ek_optimizer_free(j->optimizer);
    ek_module_free(j->net);
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "tutorial.safetensors";
    double loss = 0, resumed = 0;
    char before[65] = "", after[65] = "";
    job first = job_begin(7),
        second = job_begin(8); /* the second has other numbers until it loads */
    if (job_run(&first, 50, &loss) == 0 && job_save(&first, path) == 0) {
        printf("saved after step %d: loss %.3f\n", (int)first.step, loss);
        if (job_run(&first, 100, &loss) == 0 && job_load(&second, path) == 0)
            job_run(&second, 100, &resumed);
        ek_module_sha256(first.net, before);
        ek_module_sha256(second.net, after);
        printf("step 100: loss %.3f; resumed: loss %.3f\n", loss, resumed);
        printf("parameters: %s\n", strcmp(before, after) == 0 ? "equal to the bit" : "different");
    }
    int rc = ek_error_status();
    ek_print_error(stderr); /* if one is pending */
    job_end(&first);
    job_end(&second);
    return ek_shutdown() < 0 || rc < 0;
}
