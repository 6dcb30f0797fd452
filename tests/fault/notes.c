/* notes.c: what stages compute, for comparison to the bit; their devices and files. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"

static fault_notes notes;
static char folder[64];

void fault_notes_begin(void)
{
    memset(&notes, 0, sizeof notes);
    notes.parts[0] = "result";
}

void fault_note_part(const char *name)
{
    if (notes.part + 1 < FAULT_PARTS)
        notes.part++;
    notes.parts[notes.part] = name;
}

fault_notes fault_notes_end(void)
{
    return notes;
}

void fault_broken(const char *promise)
{
    notes.broken = promise;
}

void fault_note_bytes(const void *data, size_t nbytes)
{
    const unsigned char *bytes = data;
    unsigned long long *digest = &notes.digests[notes.part];
    for (size_t i = 0; i < nbytes; i++)
        *digest = (*digest ^ bytes[i] ^ 0x9e) * 0x100000001b3u;
}

void fault_note(double number)
{
    fault_note_bytes(&number, sizeof number);
    if (notes.count < FAULT_NUMBERS)
        notes.numbers[notes.count++] = number;
}

int fault_note_tensor(ek_tensor *tensor)
{
    static unsigned char data[1 << 16];
    if (!tensor) {
        fault_note_bytes("none", 4);
        return ek_error_status();
    }
    size_t nbytes = (size_t)ek_tensor_count(tensor) * ek_dtype_size(ek_tensor_dtype(tensor));
    if (nbytes > sizeof data)
        return ek_error(EK_E_USER, "a stage notes %zu bytes, more than there is room for", nbytes);
    int status = ek_to_data(tensor, data, nbytes);
    ek_shape shape = ek_tensor_shape(tensor);
    fault_note_bytes(shape.dims, (size_t)shape.ndim * sizeof *shape.dims);
    fault_note_bytes(data, status < 0 ? 0 : nbytes);
    return status;
}

int fault_note_numbers(ek_tensor *tensor)
{
    float data[FAULT_NUMBERS];
    int64_t count = tensor ? ek_tensor_count(tensor) : 0;
    if (!tensor)
        return ek_error_status();
    if (notes.count + count > FAULT_NUMBERS)
        return ek_error(EK_E_USER, "a stage notes %lld numbers more than there is room for",
                        (long long)(notes.count + count - FAULT_NUMBERS));
    int status = ek_to_data(tensor, data, (size_t)count * sizeof *data);
    for (int64_t i = 0; i < count && status >= 0; i++)
        fault_note(data[i]);
    return status;
}

int fault_note_value(ek_value value)
{
    int status = 0;
    if (value.kind == EK_VALUE_ERROR)
        return ek_error_status();
    fault_note_bytes(&value.kind, sizeof value.kind);
    if (value.kind == EK_VALUE_TENSOR)
        return fault_note_tensor(value.as.tensor);
    if (value.kind == EK_VALUE_INT)
        fault_note((double)value.as.integer);
    if (value.kind == EK_VALUE_FLOAT)
        fault_note(value.as.floating);
    for (int i = 0; i < ek_value_length(value) && status >= 0; i++)
        status = fault_note_value(ek_value_at(value, i));
    return status;
}

static int note_visited(const char *path, ek_tensor *tensor, void *user)
{
    fault_note_bytes(path, strlen(path));
    return fault_note_tensor(tensor);
}

int fault_note_parameters(ek_module *module)
{
    char text[65] = "";
    fault_note_part("parameters");
    int status = ek_module_sha256(module, text);
    fault_note_bytes(text, sizeof text);
    return status;
}

int fault_note_buffers(ek_module *module)
{
    fault_note_part("buffers");
    return ek_module_buffers(module, note_visited, NULL);
}

static int note_gradient(const char *path, ek_tensor *tensor, void *user)
{
    fault_note_bytes(path, strlen(path));
    return fault_note_tensor(ek_gather_grad(tensor));
}

int fault_note_gradients(ek_module *module)
{
    fault_note_part("gradients");
    return ek_module_parameters(module, note_gradient, NULL);
}

static int note_state(const char *path, ek_tensor *tensor, void *user)
{
    ek_optimizer *optimizer = user;
    fault_note_bytes(path, strlen(path));
    fault_note((double)ek_optimizer_steps(optimizer, tensor));
    const char *name;
    int status = 0;
    for (int i = 0; status >= 0 && (name = ek_optimizer_state_name(optimizer, i)); i++)
        status = fault_note_tensor(ek_optimizer_state(optimizer, tensor, name));
    return status;
}

int fault_note_optimizer(ek_optimizer *optimizer, ek_module *module)
{
    fault_note_part("optimizer");
    for (int i = 0; i < ek_optimizer_group_count(optimizer); i++)
        fault_note(ek_optimizer_lr(optimizer, i));
    return ek_module_parameters(module, note_state, optimizer);
}

/* ---- devices ---- */

ek_device_list fault_devices(void)
{
    return ek_devices(EK_HOST, FAULT_DEVICES);
}

int fault_use_one_thread(void)
{
    int status = ek_device_set_threads(ek_cpu(), 1);
    for (int i = 0; i < FAULT_DEVICES && status >= 0; i++)
        status = ek_device_set_threads(ek_host(i), 1);
    return status;
}

/* ---- files ---- */

int fault_folder_make(void)
{
    const char *where = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/evenkeel-fault-XXXXXX",
             where && strlen(where) < 32 ? where : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

/* By another process: this one's heap may be broken. */
void fault_folder_remove(void)
{
    char command[sizeof folder + 20];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (*folder && system(command) != 0)
        fprintf(stderr, "fault_stages: %s stays\n", folder);
    *folder = '\0';
}

const char *fault_path(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

char *fault_folder_names(void)
{
    struct dirent **list;
    int count = scandir(folder, &list, NULL, alphasort);
    if (count < 0)
        return NULL;
    char *names = calloc((size_t)count * 258 + 1, 1);
    for (int i = 0; i < count; i++) {
        if (names && strcmp(list[i]->d_name, ".") != 0 && strcmp(list[i]->d_name, "..") != 0)
            strcat(strcat(names, list[i]->d_name), " ");
        free(list[i]);
    }
    free(list);
    return names;
}
