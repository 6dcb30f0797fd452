/** @file
 * onnx.h: modules as ONNX files, which onnxruntime and many other programs run.
 *
 *     ek_onnx_export("net.onnx", net, EK_VALUE(pictures));
 *     ek_onnx_export("lstm.onnx", lstm, EK_LIST(x, EK_LIST(h, c)),
 *                    .input_names = (const char *const[]){"x", "h", "c"});
 *
 * The export runs the module and writes what its operations compute, as torch.onnx.export does: a
 * forward in C of any kind is exported, if it is made of Evenkeel's operations on the calling
 * thread. Control flow becomes what the example inputs led to. Sizes other than that of the batch
 * are those of the example inputs. */
#ifndef EVENKEEL_ONNX_H
#define EVENKEEL_ONNX_H
#pragma GCC system_header /* see base.h */

#include "evenkeel/module.h"

EK_BEGIN_DECLARATIONS

typedef struct ek_onnx_options {
    int begin; /**< no option, see base.h */
    const char *path;
    ek_module *module;
    ek_value inputs;     /**< example inputs: a tensor's value, or a list of all arguments */
    int opset EK_IS(17); /**< the version of ONNX's operators: 17 to 20 */
    bool dynamic_batch EK_IS(true);  /**< the file takes any batch size, not the example's alone */
    const char *const *input_names;  /**< one for each tensor of the inputs; NULL: "input", or
                                          "input_0", "input_1", ... */
    const char *const *output_names; /**< as input_names; NULL: "output", or "output_0", ... */
} ek_onnx_options;
#define EK_DEFAULTS_ek_onnx_options EK_DEFAULT(opset, 17), EK_DEFAULT(dynamic_batch, true)
EK_API int ek_onnx_export_with(ek_onnx_options options);
/** Writes the module in evaluation mode to an ONNX file, whole or not at all. Modes are restored.
 * Tensors in lists, of the inputs and of the output, become inputs and outputs of the file one
 * after the other. Parameters and buffers become initializers with their paths as names; those of
 * recurrent networks are packed as ONNX wants them, as "rnn.W_l0", "rnn.R_l0", "rnn.B_l0".
 *
 * The forward runs twice, with two batches of other sizes and elements; both must give one graph.
 * What differs otherwise than by the batch's size is refused: EK_E_INVALID names the module and the
 * operation, also if an operation has no counterpart in ONNX. The batch is dimension 0 of each
 * tensor of the inputs, or the one that ek_value_batched marks, if its size is that of the first
 * tensor's. The file calls it "N". EK_E_INVALID if parameters and constants take 2 GiB or more,
 * which the format does not hold. Returns 0 or a negative status. */
#define ek_onnx_export(...) \
    EK_CALL_3(ek_onnx_export_with, ek_onnx_options, path, module, inputs, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
