#!/usr/bin/env python3
"""rearrange.golden: order, choice, shapes, indices and products by subscripts, for tests/unit/ops/test_ops_rearrange.c.

Cases are as in make_ops.py.
"""

import torch
import torch.nn.functional as F

from golden import Golden, away_from_0 as randn, values

torch.manual_seed(23)


def pieces(parts):
    """Uses some of the pieces, and not in order."""
    return torch.cat([parts[-1].reshape(-1) * 3, parts[0].reshape(-1)])


def index_put(x, values, *indices, accumulate=False):
    return x.index_put(indices, values, accumulate=accumulate)


def mask_put(x, mask, values):
    return x.index_put((mask.bool(),), values)


def grid(indexing):
    def make(x, y):
        a, b = torch.meshgrid(x, y, indexing=indexing)
        return a * 2 + b
    return make


def pad(*numbers, mode="constant", value=None):
    return lambda x: F.pad(x, numbers, mode=mode, **({} if value is None else {"value": value}))


def shuffled(x):
    """F.channel_shuffle in three groups, which has no gradient in PyTorch."""
    y = x.reshape(2, 3, 2, 2, 3).transpose(1, 2).reshape(2, 6, 2, 3)
    assert torch.equal(y, F.channel_shuffle(x.detach(), 3))
    return y


def einsum(equation):
    return lambda *x: torch.einsum(equation, *x)


INDEX = torch.tensor([2, 0, 2, 1])
DISTINCT = torch.tensor([3, 0, 2])
POSITIONS = torch.tensor([[0, 2, 1], [1, 1, 0]])
APART = torch.tensor([[0, 2, 1], [3, 1, 0]])
TIMES = torch.tensor([2, 0, 3])
MASK = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.uint8)
ROWS = torch.tensor([[0, 2], [1, -1]])
APART_ROWS = torch.tensor([[0, 2], [1, -2]])
COLUMNS = torch.tensor([3, -4])
FIRST = torch.tensor([0, 2, 0])
SECOND = torch.tensor([1, 3, 1])

CASES = {
    "sort": (lambda x: x.sort(1).values, randn(3, 7, 2)),
    "sort_descending": (lambda x: x.sort(-1, descending=True).values, randn(4, 60)),
    "topk": (lambda x: x.topk(3, 1).values, randn(2, 9, 2)),
    "topk_of_many": (lambda x: x.topk(5, -1, largest=False).values, randn(2, 300)),
    "kthvalue": (lambda x: x.kthvalue(3, 1).values, randn(3, 8)),
    "kthvalue_keepdim": (lambda x: x.kthvalue(2, 0, keepdim=True).values, randn(3, 8)),
    "masked_select": (lambda x, m: x.masked_select(m.bool()), randn(3, 4), MASK),
    "masked_select_broadcast": (lambda x, m: x.masked_select(m.bool()), randn(2, 1, 4), MASK),
    "masked_fill": (lambda x, m: x.masked_fill(m.bool(), -2.5), randn(2, 3, 4), MASK),
    "flip": (lambda x: x.flip((0, 2)), randn(2, 3, 4)),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), randn(3, 5)),
    "roll_flat": (lambda x: x.roll(4), randn(3, 5)),
    "repeat": (lambda x: x.repeat(2, 1, 3), randn(2, 3)),
    "tile": (lambda x: x.tile(2), randn(2, 3)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), randn(2, 3, 2)),
    "repeat_interleave_by": (lambda x, t: x.repeat_interleave(t, 0), randn(3, 2), TIMES),
    "tril": (torch.tril, randn(2, 3, 4)),
    "tril_above": (lambda x: x.tril(1), randn(4, 4)),
    "triu": (torch.triu, randn(4, 3)),
    "triu_below": (lambda x: x.triu(-2), randn(4, 4)),
    "diagonal": (lambda x: x.diagonal(1, 0, 2), randn(3, 2, 4)),
    "diagonal_below": (lambda x: x.diagonal(-1), randn(4, 3)),
    "diag_of_vector": (lambda x: x.diag(-1), randn(3)),
    "diag_of_matrix": (lambda x: x.diag(1), randn(3, 4)),
    "movedim": (lambda x: x.movedim(0, 2), randn(2, 3, 4, 2)),
    "movedim_back": (lambda x: x.movedim(-1, 1), randn(2, 3, 4, 2)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), randn(2, 6, 3)),
    "unbind": (lambda x: pieces(x.unbind(1)), randn(2, 4, 3)),
    "meshgrid_ij": (grid("ij"), randn(3), randn(4)),
    "meshgrid_xy": (grid("xy"), randn(3), randn(4)),
    "pad_constant": (pad(1, 2, 0, 3, value=1.5), randn(2, 3, 4)),
    "pad_cut": (pad(-1, 2, 1, -2), randn(2, 3, 4)),
    "pad_pictures": (pad(1, 0, 2, 1), randn(2, 3, 4, 5)),
    "pad_all": (pad(0, 1, 1, 0, 2, 0), randn(2, 3, 2)),
    "pad_reflect_1d": (pad(2, 3, mode="reflect"), randn(2, 3, 4)),
    "pad_reflect_2d": (pad(1, 2, 3, 0, mode="reflect"), randn(2, 3, 4, 5)),
    "pad_reflect_3d": (pad(1, 1, 2, 0, 1, 1, mode="reflect"), randn(1, 2, 3, 4, 3)),
    "pad_replicate_1d": (pad(2, 3, mode="replicate"), randn(2, 3, 4)),
    "pad_replicate_2d": (pad(1, 2, 5, 0, mode="replicate"), randn(2, 3, 4, 5)),
    "pad_replicate_3d": (pad(1, 1, 2, 0, 1, 3, mode="replicate"), randn(1, 2, 3, 4, 3)),
    "pad_circular_1d": (pad(4, 3, mode="circular"), randn(2, 3, 4)),
    "pad_circular_2d": (pad(1, 2, 3, 0, mode="circular"), randn(2, 3, 4, 5)),
    "pad_circular_3d": (pad(1, 1, 2, 0, 1, 2, mode="circular"), randn(1, 2, 3, 4, 3)),
    "unfold": (lambda x: x.unfold(1, 3, 2), randn(2, 8, 3)),
    "unfold_pictures": (lambda x: F.unfold(x, 3, padding=1), randn(2, 3, 4, 5)),
    "unfold_each": (lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=(0, 2), stride=(2, 1)), randn(2, 2, 5, 6)),
    "fold": (lambda x: F.fold(x, (4, 5), 3, padding=1), randn(2, 18, 20)),
    "fold_each": (lambda x: F.fold(x, (5, 6), (2, 3), dilation=(1, 2), padding=(0, 2), stride=(2, 1)), randn(2, 12, 12)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), randn(2, 8, 2, 3)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 3), randn(2, 2, 6, 3)),
    "channel_shuffle": (shuffled, randn(2, 6, 2, 3)),
    "scatter_dim": (lambda x, i, s: x.scatter(0, i, s), randn(4, 5), APART, randn(2, 3)),
    "scatter_larger": (lambda x, i, s: x.scatter(1, i, s[:2, :3]), randn(2, 5), APART, randn(3, 4)),
    "scatter_fill": (lambda x, i: x.scatter(0, i, 2.5), randn(4, 5), POSITIONS),
    "index_add": (lambda x, i, s: x.index_add(1, i, s, alpha=-1.5), randn(2, 3), INDEX, randn(2, 4)),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), randn(4, 2), DISTINCT, randn(3, 2)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3), randn(2, 3), INDEX),
    "index": (lambda x, i, j: x[i, j], randn(3, 4, 2), ROWS, COLUMNS),
    "index_second": (lambda x, j: x[:, j], randn(3, 4, 2), COLUMNS),
    "index_apart": (lambda x, i, j: x[i, :, j], randn(3, 2, 4), ROWS, COLUMNS),
    "index_mask": (lambda x, m: x[m.bool()], randn(3, 4, 2), MASK),
    "index_mask_last": (lambda x, m: x[:, m.bool()], randn(2, 3, 4), MASK),
    "index_put": (lambda x, v, i, j: index_put(x, v, i, j), randn(3, 4, 2), randn(2, 2, 2), APART_ROWS, COLUMNS),
    "index_put_accumulate": (lambda x, v, i, j: index_put(x, v, i, j, accumulate=True), randn(3, 4, 2), randn(3, 1),
                             FIRST, SECOND),
    "index_put_mask": (mask_put, randn(3, 4), MASK, randn(1)),
    "slice_scatter": (lambda x, s: torch.slice_scatter(x, s, 1, 1, 8, 3), randn(2, 9), randn(2, 3)),
    "select_scatter": (lambda x, s: torch.select_scatter(x, s, 1, -2), randn(2, 4, 3), randn(2, 3)),
    "bmm": (torch.bmm, randn(2, 3, 4), randn(2, 4, 2)),
    "outer": (torch.outer, randn(3), randn(4)),
    "einsum_product": (einsum("ij,jk->ik"), randn(2, 3), randn(3, 4)),
    "einsum_attention": (einsum("bqhd, bkhd -> bhqk"), randn(2, 3, 2, 4), randn(2, 5, 2, 4)),
    "einsum_implied": (einsum("ba,c"), randn(2, 3), randn(2)),
    "einsum_trace": (einsum("ii"), randn(3, 3)),
    "einsum_diagonal": (einsum("bii->ib"), randn(2, 3, 3)),
    "einsum_sum": (einsum("ijk->j"), randn(2, 3, 4)),
    "einsum_ellipsis": (einsum("...ij,...jk->...ik"), randn(2, 1, 3, 2), randn(4, 2, 3)),
    "einsum_middle": (einsum("a...b,b->...a"), randn(2, 3, 2, 4), randn(4)),
    "einsum_ellipsis_sum": (einsum("...a->a"), randn(2, 3, 4)),
    "einsum_three": (einsum("bi,ijk,bk->bj"), randn(4, 2), randn(2, 3, 2), randn(4, 2)),
    "einsum_elementwise": (einsum("ij,ij->ij"), randn(2, 3), randn(2, 3)),
    "einsum_dropped": (einsum("ij,kj->k"), randn(2, 3), randn(4, 3)),
    "einsum_one": (einsum("ij,jk->ik"), randn(2, 1), randn(3, 4)),
    "cdist": (torch.cdist, randn(2, 3, 4), randn(5, 4)),
    "cdist_1": (lambda x, y: torch.cdist(x, y, p=1), randn(3, 4), randn(5, 4)),
    "cdist_of_many": (torch.cdist, randn(2, 30, 3), randn(2, 4, 3)),
    "cdist_of_few": (lambda x, y: torch.cdist(x, y), values(1, 2, 3, 4).reshape(2, 2), values(1, 2, 0, 4).reshape(2, 2)),
    "pairwise_distance": (F.pairwise_distance, randn(3, 4), randn(3, 4)),
    "pairwise_distance_keepdim": (lambda x, y: F.pairwise_distance(x, y, eps=0.1, keepdim=True), randn(3, 4), randn(4)),
    "cosine_similarity": (F.cosine_similarity, randn(3, 4, 2), randn(4, 1)),
    "cosine_similarity_short": (lambda x, y: F.cosine_similarity(x, y, dim=-1, eps=2.0), randn(3, 2), randn(3, 2)),
    "normalize": (F.normalize, randn(3, 4, 2)),
    "normalize_short": (lambda x: F.normalize(x, dim=0, eps=9.0), randn(3, 4)),
}

nan, inf = float("nan"), float("inf")
TIES = torch.tensor([[2, nan, -1, 2, 0, -0.0, inf, -inf, 2, nan, -1, 1]] * 2, dtype=torch.float64)
TIES[1] = TIES[1].flip(0)
MANY = torch.randint(-50, 50, (3, 700)).double()


def masses(*shape):
    p = torch.rand(shape, dtype=torch.float64)
    return torch.where(p < 0.2, torch.zeros_like(p), p)


def draws(golden):
    """Positions that a seeded generator draws, and the next number of the generator after them."""
    cases = [
        ("vector", masses(20), 6, False), ("rows", masses(3, 40), 5, False), ("one", masses(4, 9), 1, True),
        ("replaced", masses(3, 40), 50, True), ("vector_replaced", masses(7), 20, True),
        ("all", masses(12) + 0.1, 12, False),
    ]
    for name, p, count, replacement in cases:
        for dtype in (torch.float64, torch.float32):
            key = f"multinomial/{name}/{'f64' if dtype == torch.float64 else 'f32'}"
            generator = torch.Generator().manual_seed(77)
            drawn = torch.multinomial(p.to(dtype), count, replacement, generator=generator)
            golden.add_all(key, p=p.to(dtype), drawn=drawn, options=[float(count), float(replacement)],
                           next=torch.rand(1, generator=generator, dtype=torch.float64))


with Golden("rearrange.golden") as golden:
    for name, (function, *inputs) in CASES.items():
        golden.add_operation(name, function, *inputs)
    for name, x in (("ties", TIES), ("many", MANY)):
        for descending in (False, True):
            found, index = x.sort(dim=1, descending=descending, stable=True)
            golden.add_all(f"order/{name}/{int(descending)}", x=x, y=found, index=index)
        golden.add(f"order/{name}/kth", x.kthvalue(4, 1).values)
        golden.add(f"order/{name}/top", x.topk(4, 1).values)
        golden.add(f"order/{name}/least", x.topk(4, 1, largest=False).values)
    u = torch.randint(0, 9, (4, 6))
    found, inverse, counts = torch.unique(u, return_inverse=True, return_counts=True)
    golden.add_all("unique", x=u, y=found, inverse=inverse, counts=counts)
    lines = torch.randint(0, 6, (3, 8)).double().sort(1).values
    looked = torch.randint(-1, 8, (3, 5)).double()
    looked[0, 0] = nan
    golden.add_all("searchsorted", lines=lines, x=looked, left=torch.searchsorted(lines, looked),
                   right=torch.searchsorted(lines, looked, right=True),
                   buckets=torch.bucketize(looked, lines[0].contiguous()))
    w = torch.rand(10, dtype=torch.float64)
    b = torch.randint(0, 6, (10,))
    golden.add_all("bincount", x=b, w=w, y=torch.bincount(b), longer=torch.bincount(b, minlength=9),
                   weighted=torch.bincount(b, w))
    golden.add_all("nonzero", x=MASK, y=MASK.nonzero())
    golden.add_all("rows", arange=torch.arange(1, 2.5, 0.3, dtype=torch.float64), whole=torch.arange(10, -3, -4),
                   linspace=torch.linspace(-1, 2, 7, dtype=torch.float64), eye=torch.eye(2, 3, dtype=torch.float64),
                   floats=torch.cat([torch.linspace(-1, 0.1 * n, n) for n in range(2, 16)]))
    draws(golden)
    golden.add_operation("pairwise_distance_3", lambda x, y: F.pairwise_distance(x, y, p=3), randn(3, 4), randn(3, 4))
    golden.add_operation("normalize_1", lambda x: F.normalize(x, p=1, dim=-1), randn(3, 4, 2))
