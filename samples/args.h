/* args.h: command-line options, and the devices that they name. A program declares its options
 * once, as rows of a macro; they are members of `opt` and rows of `option_table`:
 *
 *     #define OPTIONS(ROW)                                     \
 *         ROW(int, batch, "64", 1, 4096, "rows per step")      \
 *         ROW(switch, plain, "pictures without augmentation")
 *     args_declare(OPTIONS);
 *
 *     int rc = args_read(argc, argv, "Trains a model.\n\n", option_table);
 *     ... opt.batch, opt.plain ...
 */
#ifndef SAMPLES_ARGS_H
#define SAMPLES_ARGS_H

#include <evenkeel/device.h>

/* Exit statuses of all samples: the run failed; it was not begun. */
enum { FAILED = 1, REFUSED = 2 };

/* A seed is at most this: a double holds it exactly. */
#define ARG_MOST_SEED 9007199254740992.0

typedef enum arg_kind {
    ARG_INT,    /* int64_t, in [low, high] */
    ARG_REAL,   /* double, in [low, high] */
    ARG_BYTES,  /* uint64_t: 4096, 512M, 1.5G */
    ARG_TEXT,   /* const char *, may point into argv */
    ARG_FOLDER, /* const char *, may point into argv; by default args_pictures() */
    ARG_SWITCH, /* bool */
    ARG_WORD,   /* int: the word's position in a list */
    ARG_DEVICE  /* int: EK_HOST or EK_CUDA; by default the library's default kind */
} arg_kind;

/* One option. */
typedef struct arg_spec {
    char name[24]; /* without the leading dashes; "" ends a table */
    arg_kind kind;
    void *value;
    const char
        *standard; /* the default, as a user would write it; NULL: the value is left as found */
    double low, high;
    const char *placeholder; /* for the help: "N" */
    const char *help;
    const char *const *words; /* NULL ends them */
} arg_spec;

/* Rows of a table: the option's name with '_' for '-', then its value. A '_' at the name's end is
 * left out: auto_ is --auto, whose name is a word of C. */
/* clang-format off */
#define arg_int(name, value, standard, low, high, help) \
    {#name, ARG_INT, value, standard, low, high, "N", help, NULL}
#define arg_real(name, value, standard, low, high, help) \
    {#name, ARG_REAL, value, standard, low, high, "X", help, NULL}
#define arg_bytes(name, value, help) {#name, ARG_BYTES, value, NULL, 0, 0, "BYTES", help, NULL}
#define arg_text(name, value, standard, holder, help) \
    {#name, ARG_TEXT, value, standard, 0, 0, holder, help, NULL}
#define arg_folder(name, value, help) {#name, ARG_FOLDER, value, NULL, 0, 0, "DIR", help, NULL}
#define arg_switch(name, value, help) {#name, ARG_SWITCH, value, NULL, 0, 0, "", help, NULL}
#define arg_word(name, value, standard, words, holder, help) \
    {#name, ARG_WORD, value, standard, 0, 0, holder, help, words}
#define arg_device(name, value, help) \
    {#name, ARG_DEVICE, value, NULL, 0, 0, "KIND", help, args_device_words}
#define arg_end {"", ARG_SWITCH, NULL, NULL, 0, 0, NULL, NULL, NULL}
/* clang-format on */

/* Declares `opt` and `option_table`. ROW(kind, name, ...) has what arg_<kind> takes after the
 * value. */
#define args_declare(OPTIONS) \
    static struct {           \
        OPTIONS(arg_member)   \
    } opt;                    \
    static arg_spec option_table[] = {OPTIONS(arg_row) arg_end}
#define arg_row(kind, name, ...) arg_##kind(name, &opt.name, __VA_ARGS__),
#define arg_member(kind, name, ...) arg_type_##kind name;
typedef int64_t arg_type_int;
typedef double arg_type_real;
typedef uint64_t arg_type_bytes;
typedef const char *arg_type_text, *arg_type_folder;
typedef bool arg_type_switch;
typedef int arg_type_word, arg_type_device;

extern const char *const args_device_words[];
/* Names of ek_dtype and of ek_plan_goal. */
extern const char *const args_dtype_words[], *const args_goal_words[];

/* Returns the folder with Fashion-MNIST's files: EVENKEEL_FASHION_MNIST if that is set, else the
 * folder of Debian's package. */
const char *args_pictures(void);

/* Writes the option's value as the command line takes it, "on" or "off" for a switch. Returns
 * `text`. */
char *arg_value_text(const arg_spec *arg, char text[64]);

/* Returns the option that is the first of *names, a list with blanks between, and moves *names
 * behind that name. NULL at the end. */
const arg_spec *args_next(const arg_spec *args, const char **names);

enum { ARGS_HELP = 1 };
/* Takes --name value and --name=value, and turns the table's names into the options'. Returns 0;
 * ARGS_HELP after it printed `about` and the options, if --help is among the arguments; -1 after a
 * complaint that says what is wrong and what would be right. */
int args_read(int argc, char **argv, const char *about, arg_spec *args);

/* If true, complaints are kept and not printed: another rank is likely to print them. */
extern bool args_quiet;
/* Prints the complaint that was kept last. */
void args_complain_late(void);
/* Prints "program: sentence" to standard error; returns -1. */
int args_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Prints "program: sentence" of the library's pending error, clears it and returns `status`. */
int args_fail(int status);

/* Checks that a file can be written later. Returns 0, or -1 after a complaint. NULL is no file. If
 * args_quiet is set, nothing is checked. */
int args_check_output(const char *option, const char *path);

/* ---- devices ---- */

/* Returns `count` devices of the kind; 0: all. EVENKEEL_HOST_DEVICES or EVENKEEL_CUDA_DEVICES says
 * which devices there are. If the variable is unset, `count` host devices are made, or logical
 * devices on the machine's GPUs in turn. Nothing may live on that kind. On an error the list's
 * count is -1. */
ek_device_list devices_open(int kind, int count);
/* Returns the devices that --devices names: by a number, or by a list as the environment takes it
 * ("512M@1,256M@0.5"; for GPUs "0,0:8G"), which takes the environment's place. NULL: all devices,
 * or one if `single`. */
ek_device_list devices_chosen(int kind, const char *text, bool single);
/* Returns how many devices --devices names. Returns -1 after a complaint: also if `single` and
 * there are several, and if a plan (NULL: none) is for another number. */
int devices_check(int kind, const char *text, bool single, const char *plan);
/* Returns the number in the text of --devices, 0 for a list, -1 after a complaint about a number
 * out of range. */
int devices_text_count(const char *text);

#endif
