/* write_log.c: write_log DIRECTORY FROM TO: writes what TensorBoard is to read: the entries of the
 * steps after FROM up to TO. */
#include <evenkeel/evenkeel.h>
#include <math.h>
#include <stdlib.h>

static void write_step(ek_run_log *log, int64_t step)
{
    ek_scope scope = ek_scope_begin();
    ek_tensor *noise = ek_randn(EK_SHAPE(1000));
    ek_log_scalar(log, "loss/train", step, step % 7 == 3 ? NAN : 1 / (double)step);
    ek_log_scalar(log, "rate, \"quoted\" \xc3\xa9", step, 1e-3 * (double)step);
    if (step % 5 == 0) {
        ek_log_histogram(log, "weights", step, ek_mul_scalar(noise, (double)step));
        ek_log_image(log, "made/pictures", step, ek_rand(EK_SHAPE(6, 3, 8, 8)));
        ek_log_image(log, "grey", step, ek_rand(EK_SHAPE(5, 7)));
    }
    ek_scope_end(&scope);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    const int64_t from = atoll(argv[2]), to = atoll(argv[3]);
    ek_run_log *log = from > 0 ? ek_log_open(argv[1], .resume_step = from) : ek_log_open(argv[1]);
    if (from == 0)
        ek_log_text(log, "settings", 0, "| lr |\n|---|\n| **0.1** |");
    for (int64_t step = from + 1; step <= to && ek_error_status() == 0; step++)
        write_step(log, step);
    const int rc = ek_log_close(log);
    ek_print_error(stderr);
    return rc < 0 || ek_shutdown() < 0;
}
