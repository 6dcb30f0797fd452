/* anomaly.h: finds the operation that first makes a NaN or an infinity, with
 * EVENKEEL_CHECK=anomaly.
 *
 * An operation makes such a number if its results have one, and its inputs, saved tensors and
 * options have none. Each kind of number is reported once in forward and once in backward, as a
 * warning: the number may be meant, or may be multiplied away. Results are read on the host, so
 * that GPUs are slow. */
#ifndef EK_AUTOGRAD_ANOMALY_H
#define EK_AUTOGRAD_ANOMALY_H

#include "autograd/graph.h"
#include "core/check.h"

/* Checks the results of an operation in forward. */
void ek_anomaly_check(ek_tensor *const *outputs, int output_count, const ek_operation *operation,
                      const ek_record_options *options);
/* Notes whether x is finite, before an operation writes it in place. */
void ek_anomaly_note(const ek_tensor *x);
/* Checks the results of the node's backward. */
void ek_anomaly_check_backward(ek_node *node, ek_tensor *const *gradients,
                               ek_tensor *const *results);

#endif
