"""Writes attention.golden: attention, RMS norm, rotary positions and embeddings as functions.

Cases are those of golden.py. Attention is written out in operations: a query without keys gives 0. All
numbers are f64; the tests also run them rounded to f32.
"""

import math

import torch
import torch.nn.functional as F

from golden import Cases

torch.manual_seed(78)
torch.set_default_dtype(torch.float64)


def attention(q, k, v, mask=None, causal=False, scale=None, gqa=False):
    if gqa:
        k = k.repeat_interleave(q.size(-3) // k.size(-3), -3)
        v = v.repeat_interleave(q.size(-3) // v.size(-3), -3)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    alive = (scores > -math.inf).any(-1, keepdim=True)
    return torch.where(alive, torch.softmax(torch.where(alive, scores, 0.0), -1), 0.0) @ v


def attentions(file):
    hole = torch.rand(3, 5) > 0.4
    hole[1] = False
    keys = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    keys[1, ..., 2:] = False
    #    q             k             v             causal gqa scale mask
    for q, k, v, causal, gqa, scale, mask in [
        ((2, 2, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2), True, False, None, None),
        ((1, 2, 3, 2), (1, 2, 5, 2), (1, 2, 5, 1), False, False, None, hole),
        ((1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 1), False, True, 0.7, None),
        ((2, 2, 5), (2, 4, 5), (2, 4, 5), True, False, None, None),
        ((4, 2), (3, 2), (3, 2), False, False, None, None),
        ((2, 1, 2, 3), (2, 1, 4, 3), (2, 1, 4, 2), False, False, None, keys),
        ((2, 1, 3, 2), (2, 2, 2), (2, 2, 2), True, False, 0.0, None),
        ((2, 1, 2, 2, 2), (2, 1, 4, 2), (1, 2, 4, 2), False, False, None, torch.randn(2, 2, 1, 2, 4)),
    ]:
        constants = {} if mask is None else {"mask": mask}
        if scale is not None:
            constants["scale"] = torch.tensor(scale)
        file.case("attention", lambda q, k, v: attention(q, k, v, mask, causal, scale, gqa),
                  [int(causal), int(gqa)], {"x": torch.randn(q), "k": torch.randn(k), "v": torch.randn(v)},
                  second=True, **constants)
    file.case("attention_bias", lambda q, k, v, m: attention(q, k, v, m), None,
              {key: torch.randn(2, 2, 3, 4) for key in "xkv"} | {"m": torch.randn(2, 3, 3)})


def rms_norm(x, dims, w=None, eps=None):
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = x * torch.rsqrt(x.pow(2).mean(tuple(range(-dims, 0)), keepdim=True) + eps)
    return y if w is None else y * w


def norms(file):
    for x, dims, affine, eps in [
        ((3, 5), 1, True, 1e-5),
        ((2, 3, 4), 1, True, 1e-2),
        ((2, 3, 4), 2, True, 1e-3),
        ((2, 2, 3, 4), 1, False, 1e-5),
        ((2, 3, 2, 2), 3, True, 0.0),
    ]:
        inputs = {"x": torch.randn(x) * 2 + 1}
        if affine:
            inputs["w"] = torch.rand(x[-dims:]) + 0.5
        file.case("rms_norm", lambda x, w=None: rms_norm(x, dims, w, eps), [dims], inputs, second=True, eps=eps)


def rotary(x, cosine, sine, interleaved):
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cosine - b * sine, b * cosine + a * sine), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)


def positions(file):
    for x in [(4, 6), (2, 3, 4, 6), (2, 5, 2)]:
        for interleaved in [0, 1]:
            angle = torch.arange(x[-2])[:, None] / 10000 ** (torch.arange(0, x[-1], 2) / x[-1])
            cosine, sine = angle.cos().float().double(), angle.sin().float().double()
            file.case("rotary", lambda x: rotary(x, cosine, sine, interleaved), [interleaved],
                      {"x": torch.randn(x)}, cosine=cosine, sine=sine)


def embeddings(file):
    for shape, padding in [((5,), None), ((2, 3), 0), ((2, 2, 2), 4), ((), None), ((4,), -2)]:
        index = torch.randint(5, shape)
        if shape == (2, 3):
            index[0, 1] = 0
        file.case("embedding", lambda w: F.embedding(index, w, padding), [padding is not None, padding or 0],
                  {"x": torch.randn(5, 3)}, index=index)


with Cases("attention.golden") as file:
    attentions(file)
    norms(file)
    positions(file)
    embeddings(file)
