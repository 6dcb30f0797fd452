"""Writes transformer.golden: attention, encoders, decoders and transformers as modules.

A case "name" has initial parameters "first" (f32, drawn after manual_seed(3)), and in f64: inputs "x" and
"memory", masks (u8, or floating), "target", the output in evaluation "eval", and of a training of 20 steps by
SGD with momentum after manual_seed(4): the first output "y", the first gradients "dx" and "dmemory", the losses
"loss" and the last parameters "last". Parameters are joined in PyTorch's order.
"""

import torch
from torch import nn

from golden import Golden

STEPS = 20


def joined(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def causal(n):
    return torch.full((n, n), float("-inf"), dtype=torch.float64).triu(1)


def padding(batch, length):
    mask = torch.zeros(batch, length, dtype=torch.bool)
    mask[0, -1] = True
    mask[-1, -2:] = True
    return mask


def train(file, name, make, call, x, memory=None, masks=None):
    masks = masks or {}
    torch.manual_seed(3)
    module = make()
    file.add(f"{name}/first", joined(module))
    module.double()
    file.add(f"{name}/x", x)
    if memory is not None:
        file.add(f"{name}/memory", memory)
    for key, mask in masks.items():
        file.add(f"{name}/{key}", mask)
    inputs = [t.clone().requires_grad_() for t in ([x] if memory is None else [x, memory])]
    module.eval()
    y = call(module, *inputs, **masks)
    file.add(f"{name}/eval", y)
    module.train()
    target = torch.randn(y.shape, dtype=torch.float64)
    file.add(f"{name}/target", target)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(4)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        y = call(module, *inputs, **masks)
        loss = ((y - target) ** 2).mean()
        loss.backward()
        if step == 0:
            file.add(f"{name}/y", y)
            for key, leaf in zip(["dx", "dmemory"], inputs):
                file.add(f"{name}/{key}", leaf.grad)
        optimizer.step()
        losses.append(loss.item())
    file.add(f"{name}/loss", torch.tensor(losses, dtype=torch.float64))
    file.add(f"{name}/last", joined(module))


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


with Golden("transformer.golden") as file:
    torch.manual_seed(79)
    D, H = 8, 2
    layer = dict(d_model=D, nhead=H, dim_feedforward=16)
    itself = lambda m, x, **k: m(x, x, x, **k)[0]
    x, memory = randn(5, 3, D), randn(4, 3, D)  # (length, batch, features)
    turned, turned_memory = x.transpose(0, 1).contiguous(), memory.transpose(0, 1).contiguous()

    train(file, "mha", lambda: nn.MultiheadAttention(D, H, dropout=0.1), itself, x, masks=dict(attn_mask=causal(5)))
    train(
        file,
        "mha_kv",
        lambda: nn.MultiheadAttention(D, H, kdim=6, vdim=6, batch_first=True),
        lambda m, x, y, **k: m(x, y, y, **k)[0],
        turned,
        randn(3, 4, 6),
        dict(key_padding_mask=padding(3, 4)),
    )
    mask = torch.rand(3 * H, 5, 5) > 0.6
    mask[:, :, 0] = False
    train(file, "mha_bare", lambda: nn.MultiheadAttention(D, H, bias=False), itself, x, masks=dict(attn_mask=mask))
    train(file, "mha_alone", lambda: nn.MultiheadAttention(D, H, batch_first=True), itself, randn(5, D))
    torch.manual_seed(3)
    module = nn.MultiheadAttention(D, H).double()
    y, weights = module(x, x, memory.new_zeros(5, 3, D), key_padding_mask=padding(3, 5))
    file.add("mha/weights", weights)

    train(
        file,
        "encoder_layer",
        lambda: nn.TransformerEncoderLayer(**layer),
        lambda m, x, **k: m(x, **k),
        x,
        masks=dict(src_key_padding_mask=padding(3, 5)),
    )
    train(
        file,
        "encoder_layer_first",
        lambda: nn.TransformerEncoderLayer(**layer, activation="gelu", norm_first=True, batch_first=True),
        lambda m, x, **k: m(x, **k),
        turned,
        masks=dict(src_mask=causal(5)),
    )
    train(
        file,
        "decoder_layer",
        lambda: nn.TransformerDecoderLayer(**layer, layer_norm_eps=1e-3),
        lambda m, x, y, **k: m(x, y, **k),
        x,
        memory,
        dict(tgt_mask=causal(5), memory_key_padding_mask=padding(3, 4)),
    )
    train(
        file,
        "decoder_layer_first",
        lambda: nn.TransformerDecoderLayer(**layer, dropout=0.2, activation="gelu", norm_first=True, batch_first=True),
        lambda m, x, y, **k: m(x, y, **k),
        turned,
        turned_memory,
        dict(tgt_key_padding_mask=padding(3, 5)),
    )
    train(
        file,
        "encoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, nn.LayerNorm(D)),
        lambda m, x, **k: m(x, **k),
        x,
        masks=dict(mask=causal(5)),
    )
    train(
        file,
        "decoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer, dropout=0), 2),
        lambda m, x, y, **k: m(x, y, **k),
        x,
        memory,
        dict(tgt_mask=causal(5)),
    )
    train(
        file,
        "transformer",
        lambda: nn.Transformer(D, H, 2, 2, 16),
        lambda m, x, y, **k: m(y, x, **k),
        x,
        memory,
        dict(tgt_mask=causal(5), src_key_padding_mask=padding(3, 4), memory_key_padding_mask=padding(3, 4)),
    )
    train(
        file,
        "transformer_first",
        lambda: nn.Transformer(D, H, 1, 2, 16, activation="gelu", batch_first=True, norm_first=True),
        lambda m, x, y, **k: m(y, x, **k),
        turned,
        turned_memory,
        dict(tgt_mask=causal(5)),
    )
    torch.manual_seed(3)
    file.add("embedding/first", nn.Embedding(5, 4).weight)
    torch.manual_seed(3)
    file.add("embedding/padded", nn.Embedding(5, 4, padding_idx=-2).weight)
