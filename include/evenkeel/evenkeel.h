/** @file
 * evenkeel.h: includes all public headers.
 *
 * "PyTorch's" in their comments is PyTorch 1.13: its defaults, formulas and random numbers. Two
 * follow PyTorch 2: NAdam's second bias correction, and the rounding of hue in ek_color_jitter. */
#ifndef EVENKEEL_EVENKEEL_H
#define EVENKEEL_EVENKEEL_H
#pragma GCC system_header /* see base.h */

/* First, so that messages about calls need not tell of other headers on the way to these. */
#include "evenkeel/base.h"
#include "evenkeel/tensor.h"

#include "evenkeel/archive.h"
#include "evenkeel/attention.h"
#include "evenkeel/autograd.h"
#include "evenkeel/balance.h"
#include "evenkeel/comm.h"
#include "evenkeel/criteria.h"
#include "evenkeel/data.h"
#include "evenkeel/dataset.h"
#include "evenkeel/ddp.h"
#include "evenkeel/device.h"
#include "evenkeel/dist.h"
#include "evenkeel/dlpack.h"
#include "evenkeel/ema.h"
#include "evenkeel/fit.h"
#include "evenkeel/function.h"
#include "evenkeel/functional.h"
#include "evenkeel/gan.h"
#include "evenkeel/index.h"
#include "evenkeel/init.h"
#include "evenkeel/iterable.h"
#include "evenkeel/loader.h"
#include "evenkeel/log.h"
#include "evenkeel/loss.h"
#include "evenkeel/matrix.h"
#include "evenkeel/models.h"
#include "evenkeel/module.h"
#include "evenkeel/nn.h"
#include "evenkeel/norm.h"
#include "evenkeel/onnx.h"
#include "evenkeel/ops.h"
#include "evenkeel/optim.h"
#include "evenkeel/parallel.h"
#include "evenkeel/plan.h"
#include "evenkeel/precision.h"
#include "evenkeel/random.h"
#include "evenkeel/recurrent.h"
#include "evenkeel/report.h"
#include "evenkeel/sampler.h"
#include "evenkeel/scaler.h"
#include "evenkeel/schedule.h"
#include "evenkeel/scope.h"
#include "evenkeel/shape.h"
#include "evenkeel/sort.h"
#include "evenkeel/spatial.h"
#include "evenkeel/spatial_modules.h"
#include "evenkeel/spawn.h"
#include "evenkeel/status.h"
#include "evenkeel/train.h"
#include "evenkeel/transform.h"
#include "evenkeel/value.h"
#include "evenkeel/version.h"

#endif
