/* exchange.c: the library's side of exchange.py.
 *
 *     exchange NET FILE NAME WRITTEN INPUT OUTPUT
 *
 * Loads the weights below NAME (or "") of FILE into NET (resnet50 or gpt2), writes them to WRITTEN,
 * and what the network gives in f64 for INPUT to OUTPUT. Prints how many tensors were loaded,
 * missing and unexpected. */
#include <string.h>

#include <evenkeel/evenkeel.h>

static int exchange(ek_module *net, char **argv)
{
    ek_load_report report = {0};
    ek_archive *file = ek_archive_open(argv[2]), *written = ek_archive_new();
    ek_archive_load_module(file, argv[3], net, .strict = false, .report = &report);
    ek_archive_put_module(written, "", net);
    ek_archive_put_text(written, "format", "pt");
    ek_archive_save(written, argv[4]);
    ek_archive_free(written);
    ek_archive_free(file);
    ek_module_to_dtype(net, EK_F64);
    ek_module_train(net, false);
    ek_set_grad_enabled(false);
    ek_archive *output = ek_archive_new();
    ek_archive_put(output, "y", EK_VALUE(ek_apply(net, ek_read_npy(argv[5]))));
    ek_archive_save(output, argv[6]);
    ek_archive_free(output);
    printf("%d %d %d\n", report.loaded, report.missing, report.unexpected);
    return ek_error_status();
}

int main(int argc, char **argv)
{
    if (argc != 7 || (strcmp(argv[1], "resnet50") != 0 && strcmp(argv[1], "gpt2") != 0)) {
        fprintf(stderr, "usage: %s resnet50|gpt2 FILE NAME WRITTEN INPUT OUTPUT\n", argv[0]);
        return 2;
    }
    ek_module *net = strcmp(argv[1], "gpt2") == 0 ? ek_gpt2() : ek_resnet50();
    int rc = exchange(net, argv);
    if (rc < 0)
        ek_print_error(stderr);
    ek_module_free(net);
    return ek_shutdown() < 0 || rc < 0;
}
