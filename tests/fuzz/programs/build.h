/* build.h: a program's net, criterion and optimizer on the devices of one of its ways. */
#ifndef EK_TESTS_FUZZ_BUILD_H
#define EK_TESTS_FUZZ_BUILD_H

#include <evenkeel/evenkeel.h>

#include "layers.h"
#include "program.h"

typedef struct trainer {
    const program *p;
    const way *w;
    placed_net net;
    ek_device home; /* where a plain module lies, and where classic outputs meet */
    ek_module *model, *criterion, *on_fake;
    ek_optimizer *optimizer;
    ek_schedule *schedule;
    ek_report *report;
    ek_value held; /* an output with its graph */
} trainer;

/* What stands in for a way on the run that others are compared with. */
extern const way one_device;

/* 0 or a negative status with an error; then nothing is left. */
int trainer_open(trainer *t, const program *p, const way *w);

/* Frees all, in an order that `order` says. */
void trainer_close(trainer *t, int order);

bool trainer_is_plain(const trainer *t);

ek_dtype program_dtype(const program *p);

#endif
