/* evenkeel.h: includes all public headers. */
#ifndef EVENKEEL_EVENKEEL_H
#define EVENKEEL_EVENKEEL_H

#include "evenkeel/archive.h"
#include "evenkeel/autograd.h"
#include "evenkeel/balance.h"
#include "evenkeel/base.h"
#include "evenkeel/comm.h"
#include "evenkeel/data.h"
#include "evenkeel/dataset.h"
#include "evenkeel/device.h"
#include "evenkeel/function.h"
#include "evenkeel/gan.h"
#include "evenkeel/loader.h"
#include "evenkeel/module.h"
#include "evenkeel/nn.h"
#include "evenkeel/ops.h"
#include "evenkeel/optim.h"
#include "evenkeel/parallel.h"
#include "evenkeel/plan.h"
#include "evenkeel/precision.h"
#include "evenkeel/random.h"
#include "evenkeel/report.h"
#include "evenkeel/sampler.h"
#include "evenkeel/scope.h"
#include "evenkeel/status.h"
#include "evenkeel/tensor.h"
#include "evenkeel/train.h"
#include "evenkeel/transform.h"
#include "evenkeel/value.h"

#endif
