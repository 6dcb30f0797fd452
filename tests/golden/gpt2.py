"""GPT-2 (Radford et al. 2019) in torch: the twin of ek_gpt2, with the names, shapes and order of random numbers that
the library has. For make_gpt2.py, make_gpt.py and exchange.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Projection(nn.Module):
    """x w + b, for w (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = Projection(width, 3 * width)
        self.c_proj = Projection(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (t.reshape(n, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        p = F.dropout(scores.masked_fill(future, -math.inf).softmax(-1), self.dropout, self.training)
        y = (p @ v).transpose(1, 2).reshape(n, length, width)
        return F.dropout(self.c_proj(y), self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.c_fc = Projection(width, 4 * width)
        self.c_proj = Projection(4 * width, width)

    def forward(self, x):
        # GELU's tanh form, written out
        y = self.c_fc(x)
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        return F.dropout(self.c_proj(y), self.dropout, self.training)


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, context=1024, width=768, layers=12, heads=12, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(p, 0, std)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[-1]]
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.h:
            x = layer(x)
        return F.linear(self.ln_f(x), self.wte.weight)
