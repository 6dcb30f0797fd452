/** @file
 * onnx.h: modules as ONNX files, which onnxruntime and many other programs run.
 *
 *     ek_onnx_export("net.onnx", net, EK_VALUE(pictures));
 *     ek_onnx_export("lstm.onnx", lstm, EK_LIST(x, ek_value_batched(EK_LIST(h, c), 1)),
 *                    .input_names = ((const char *const[]){"x", "h", "c"}));
 *
 * The export runs the module and writes what its operations compute, as torch.onnx.export does. A
 * user's own forward is exported, too, if it is made of Evenkeel's operations on the calling
 * thread. Branches of the forward are those that the example inputs take. All sizes but the batch's
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
 * Each tensor in the inputs and in the output, also in lists, is an input or output of the file.
 * Parameters and buffers are initializers with their paths as names. A recurrent network is a node
 * per layer, whose weights of layer k are packed as "rnn.W_lk", "rnn.R_lk" and "rnn.B_lk"; lengths
 * of sequences must be at least 1 there.
 *
 * The forward runs twice, with two batches of different sizes and elements, and keeps all its
 * activations meanwhile. EK_E_INVALID, with the path of the module and the operation, if an
 * operation has no counterpart in ONNX, if the runs differ by more than sizes that are multiples of
 * the batch's size, or if memory is written through views. EK_E_INVALID also if parameters and
 * constants take 2 GiB or more, which the format does not hold.
 *
 * The batch, "N" in the file, is the dimension of the first tensor that ek_value_batched marks,
 * dimension 0 without a mark. Other tensors of the inputs have a batch if their dimension has the
 * same size. Returns 0 or a negative status. */
#define ek_onnx_export(...) \
    EK_CALL_3(ek_onnx_export_with, ek_onnx_options, path, module, inputs, __VA_ARGS__)

EK_END_DECLARATIONS
#endif
