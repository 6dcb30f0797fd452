/* program.c: programs as text: the names of their fields, writing and reading. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_TEXT(constant, text) text,
#define WORD_LIST(name, LIST) static const char *const name[] = {LIST(WORD_TEXT) NULL};
WORD_LIST(dtypes, DTYPES)
WORD_LIST(inputs, INPUTS)
WORD_LIST(outputs, OUTPUTS)
WORD_LIST(tasks, TASKS)
WORD_LIST(reductions, REDUCTIONS)
WORD_LIST(optimizers, OPTIMIZERS)
WORD_LIST(schedules, SCHEDULES)
WORD_LIST(clips, CLIPS)
WORD_LIST(judges, JUDGES)
WORD_LIST(wrappers, WRAPPERS)
WORD_LIST(splits, SPLITS)
WORD_LIST(plans, PLANS)
WORD_LIST(gathers, GATHERS)
WORD_LIST(layers, LAYERS)
WORD_LIST(wraps, WRAPS)
WORD_LIST(steps, STEPS)
WORD_LIST(events, EVENTS)
WORD_LIST(faults, FAULTS)
WORD_LIST(moments, MOMENTS)

#define NUMBER(record, member, low, high, simplest)                        \
    {                                                                      \
#member, offsetof(record, member), 1, simplest, 0, low, high, NULL \
    }
#define WORD(record, member, words)                                                               \
    {                                                                                             \
#member, offsetof(record, member), 1, 0, 0, 0, (int)(sizeof(words) / sizeof(*words)) - 2, \
            words                                                                                 \
    }
#define LIST(record, member, low, high, simplest, slope)                                 \
    {                                                                                    \
#member, offsetof(record, member), MAX_DEVICES, simplest, slope, low, high, NULL \
    }

const field program_fields[] = {NUMBER(program, seed, 0, 1 << 30, 1),
                                NUMBER(program, devices, 1, MAX_DEVICES, 1),
                                NUMBER(program, slow, 0, 1, 0),
                                WORD(program, dtype, dtypes),
                                NUMBER(program, autocast, 0, 1, 0),
                                NUMBER(program, rank, 0, 3, 0),
                                NUMBER(program, channels, 1, 4, 1),
                                NUMBER(program, size, 1, 9, 1),
                                WORD(program, input, inputs),
                                WORD(program, output, outputs),
                                NUMBER(program, dense, 0, 1, 0),
                                WORD(program, task, tasks),
                                NUMBER(program, classes, 1, 5, 1),
                                WORD(program, reduction, reductions),
                                NUMBER(program, weighted, 0, 1, 0),
                                NUMBER(program, ignored, 0, 2, 0),
                                NUMBER(program, smoothing, 0, 1, 0),
                                NUMBER(program, penalty, 0, 4, 0),
                                NUMBER(program, critic, 0, 3, 0),
                                WORD(program, optimizer, optimizers),
                                NUMBER(program, maximize, 0, 1, 0),
                                NUMBER(program, groups, 1, 2, 1),
                                WORD(program, schedule, schedules),
                                WORD(program, clip, clips),
                                NUMBER(program, plain_norm, 0, 1, 0),
                                WORD(program, judge, judges),
                                NUMBER(program, build_fault, 0, 100000, 0),
                                NUMBER(program, order, 0, 1000, 0),
                                {.name = NULL}};

const field way_fields[] = {WORD(way, wrapper, wrappers),
                            NUMBER(way, count, 1, MAX_DEVICES, 1),
                            LIST(way, on, 0, MAX_DEVICES - 1, 0, 1),
                            WORD(way, split, splits),
                            NUMBER(way, goal, 0, 1, 0),
                            WORD(way, plan, plans),
                            LIST(way, shares, 0, 20, 1, 0),
                            NUMBER(way, shard, 0, 2, 0),
                            NUMBER(way, offload, 0, 1, 0),
                            NUMBER(way, stats, 0, 1, 0),
                            NUMBER(way, own, 0, 1, 0),
                            WORD(way, gather, gathers),
                            NUMBER(way, patched, 0, 1, 0),
                            NUMBER(way, mean_of_means, 0, 1, 0),
                            NUMBER(way, micro, 0, 4, 0),
                            {.name = NULL}};

const field layer_fields[] = {WORD(layer, kind, layers),
                              NUMBER(layer, width, 1, 6, 1),
                              NUMBER(layer, size, 1, 3, 1),
                              NUMBER(layer, variant, 0, 1023, 0),
                              WORD(layer, wrap, wraps),
                              NUMBER(layer, frozen, 0, 1, 0),
                              {.name = NULL}};

const field step_fields[] = {NUMBER(step, batch, 1, 17, 2),
                             WORD(step, how, steps),
                             WORD(step, event, events),
                             WORD(step, fault, faults),
                             WORD(step, during, moments),
                             NUMBER(step, at, 0, 100000, 0),
                             {.name = NULL}};

const char *layer_word(int kind)
{
    return layers[kind];
}

const char *step_word(int how)
{
    return steps[how];
}

const char *fault_word(int fault)
{
    return faults[fault];
}

/* ---- writing ---- */

static bool is_simplest(const field *f, const int *values)
{
    for (int i = 0; i < f->count; i++)
        if (values[i] != f->simplest + f->slope * i)
            return false;
    return true;
}

static void write_record(char **at, const char *name, const field *fields, const void *record)
{
    if (name)
        *at += sprintf(*at, "%s ", name);
    for (const field *f = fields; f->name; f++) {
        const int *values = (const int *)(const void *)((const char *)record + f->offset);
        if (is_simplest(f, values))
            continue;
        *at += sprintf(*at, "%s=", f->name);
        for (int i = 0; i < f->count; i++)
            *at += f->words ? sprintf(*at, "%s", f->words[values[i]])
                            : sprintf(*at, "%s%d", i ? "," : "", values[i]);
        *at += sprintf(*at, " ");
    }
}

char *program_write(const program *p, char text[PROGRAM_TEXT])
{
    char *at = text;
    write_record(&at, NULL, program_fields, p);
    for (int i = 0; i < WAYS; i++)
        write_record(&at, "way", way_fields, &p->ways[i]);
    for (int i = 0; i < p->layer_count; i++)
        write_record(&at, "layer", layer_fields, &p->layers[i]);
    for (int i = 0; i < p->step_count; i++)
        write_record(&at, "step", step_fields, &p->steps[i]);
    at[-1] = '\0';
    return text;
}

/* ---- reading ---- */

static void make_simplest(const field *fields, void *record)
{
    for (const field *f = fields; f->name; f++)
        for (int i = 0; i < f->count; i++)
            field_values(f, record)[i] = f->simplest + f->slope * i;
}

static bool read_value(const field *f, const char **at, int *value)
{
    if (f->words) {
        for (*value = 0; f->words[*value]; ++*value)
            if (strcmp(f->words[*value], *at) == 0)
                break;
        *at += strlen(*at);
        return f->words[*value] != NULL;
    }
    char *end;
    long number = strtol(*at, &end, 10);
    if (end == *at || number < f->low || number > f->high)
        return false;
    *value = (int)number;
    *at = *end == ',' ? end + 1 : end;
    return true;
}

/* "name=value" or "name=value,value,...". */
static bool read_field(const field *fields, void *record, const char *token)
{
    size_t length = strcspn(token, "=");
    const field *f = fields;
    while (f->name && (strlen(f->name) != length || strncmp(f->name, token, length) != 0))
        f++;
    if (!f->name || token[length] != '=')
        return false;
    const char *at = token + length + 1;
    for (int i = 0; i < f->count; i++)
        if (!read_value(f, &at, &field_values(f, record)[i]))
            return false;
    return *at == '\0';
}

typedef struct reader {
    program *p;
    const field *fields; /* of the record that is read */
    void *record;
    int ways;
} reader;

static bool begin_record(reader *r, const char *name)
{
    program *p = r->p;
    if (strcmp(name, "way") == 0 && r->ways < WAYS) {
        r->fields = way_fields;
        r->record = &p->ways[r->ways++];
    } else if (strcmp(name, "layer") == 0 && p->layer_count < MAX_LAYERS) {
        r->fields = layer_fields;
        r->record = &p->layers[p->layer_count++];
    } else if (strcmp(name, "step") == 0 && p->step_count < MAX_STEPS) {
        r->fields = step_fields;
        r->record = &p->steps[p->step_count++];
    } else {
        return false;
    }
    make_simplest(r->fields, r->record);
    return true;
}

bool program_read(program *p, const char *text)
{
    char copy[PROGRAM_TEXT], *rest = copy;
    reader r = {.p = p, .fields = program_fields, .record = p};
    if (strlen(text) >= sizeof copy) {
        fprintf(stderr, "a program has at most %d characters\n", PROGRAM_TEXT - 1);
        return false;
    }
    memset(p, 0, sizeof *p);
    make_simplest(program_fields, p);
    for (int i = 0; i < WAYS; i++)
        make_simplest(way_fields, &p->ways[i]);
    strcpy(copy, text);
    for (char *token; (token = strsep(&rest, " \n")) != NULL;) {
        if (*token == '\0')
            continue;
        if (strchr(token, '=') ? !read_field(r.fields, r.record, token)
                               : !begin_record(&r, token)) {
            fprintf(stderr, "a program has no '%s' there\n", token);
            return false;
        }
    }
    program_settle(p);
    return true;
}
