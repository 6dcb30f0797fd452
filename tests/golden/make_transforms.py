"""transforms.golden: pictures changed as torchvision's transforms change tensors, written with torch.

Random ones draw with torch.randint and torch.rand in torchvision's order: crops draw the top edge, then the
left one, and nothing where the size is right already; flips draw one number a picture.
"""

import torch
import torch.nn.functional as F

from golden import Golden

DTYPES = {
    "u8": torch.uint8,
    "i64": torch.int64,
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
}


def pictures(shape, dtype, seed):
    """Whole numbers in [0, 256) of integers; others of floating types."""
    g = torch.Generator().manual_seed(seed)
    if dtype in (torch.uint8, torch.int64):
        return torch.randint(0, 256, shape, generator=g).to(dtype)
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


def pad(x, left, top, right, bottom, fill):
    """F.pad has no kernels for all dtypes."""
    h, w = x.shape[-2:]
    out = torch.full((*x.shape[:-2], h + top + bottom, w + left + right), fill, dtype=x.dtype)
    out[..., top : top + h, left : left + w] = x
    return out


def random_crop(x, th, tw, padding=0, fill=0, pad_if_needed=False):
    x = pad(x, padding, padding, padding, padding, fill)
    h, w = x.shape[-2:]
    if pad_if_needed and w < tw:
        x = pad(x, tw - w, 0, tw - w, 0, fill)
    if pad_if_needed and h < th:
        x = pad(x, 0, th - h, 0, th - h, fill)
    h, w = x.shape[-2:]
    top = left = 0
    if (h, w) != (th, tw):
        top = torch.randint(0, h - th + 1, (1,)).item()
        left = torch.randint(0, w - tw + 1, (1,)).item()
    return x[..., top : top + th, left : left + tw]


def center_crop(x, th, tw, padding=0, fill=0):
    x = pad(x, padding, padding, padding, padding, fill)
    h, w = x.shape[-2:]
    more_h, more_w = max(th - h, 0), max(tw - w, 0)
    x = pad(x, more_w // 2, more_h // 2, (more_w + 1) // 2, (more_h + 1) // 2, fill)
    h, w = x.shape[-2:]
    top, left = int(round((h - th) / 2.0)), int(round((w - tw) / 2.0))
    return x[..., top : top + th, left : left + tw]


def flip(x, p, dim):
    return x.flip(dim) if torch.rand(1) < p else x


def resize(x, size, mode):
    """size: (height, width), or the length of the shorter edge."""
    h, w = x.shape[-2:]
    if isinstance(size, int):
        size = (int(size * h / w), size) if w <= h else (size, int(size * w / h))
    if size == (h, w):
        return x
    wide = x.reshape(1, -1, h, w).to(x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32)
    if mode == "bilinear":
        wide = F.interpolate(wide, size=size, mode=mode, align_corners=False)
    else:
        wide = F.interpolate(wide, size=size, mode=mode)
    if x.dtype == torch.uint8:
        wide = wide.round()
    return wide.to(x.dtype).reshape(*x.shape[:-2], *size)


CROPS = {
    "padded": dict(th=11, tw=11, padding=2),
    "filled": dict(th=5, tw=7, padding=3, fill=7),
    "inside": dict(th=8, tw=5),
    "exact": dict(th=11, tw=11),
    "needed": dict(th=14, tw=17, padding=1, fill=5, pad_if_needed=True),
    "needed_width": dict(th=9, tw=15, pad_if_needed=True),
}
CENTERS = {
    "even": dict(th=7, tw=9),
    "odd": dict(th=8, tw=6),  # halves: 1.5 and 2.5
    "larger": dict(th=14, tw=5, fill=3),
    "padded": dict(th=17, tw=13, padding=2, fill=9),
}
SIZES = {
    "down": (5, 6),
    "up": (19, 17),
    "double": (26, 18),
    "edge": 7,
    "one": (1, 1),
    "wide": (13, 5),
}

with Golden("transforms.golden") as g:
    for name, dtype in DTYPES.items():
        x = pictures((2, 11, 11), dtype, 1)
        g.add(f"in/{name}", x)
        for crop, options in CROPS.items():
            if name != "u8" and crop != "filled":
                continue
            torch.manual_seed(42)
            g.add(f"random_crop/{crop}/{name}", torch.stack([random_crop(x, **options) for _ in range(6)]))
            g.add(f"random_crop/{crop}/{name}/next", torch.randint(0, 1000, (3,)))
        for dim, way in ((-1, "horizontal"), (-2, "vertical")):
            torch.manual_seed(3)
            g.add(f"flip/{way}/{name}", torch.stack([flip(x[0, :5, :7], 0.3, dim) for _ in range(10)]))
            g.add(f"flip/{way}/{name}/next", torch.randint(0, 1000, (3,)))
        g.add(f"to_float/{name}", x.float().div(255) if dtype == torch.uint8 else x.float())
        tall = pictures((2, 13, 9), dtype, 2)
        g.add(f"tall/{name}", tall)
        for size, value in SIZES.items():
            g.add(f"nearest/{size}/{name}", resize(tall, value, "nearest"))
            if name in ("u8", "f32", "f64"):
                g.add(f"bilinear/{size}/{name}", resize(tall, value, "bilinear"))
            if name == "u8":  # before it is rounded
                g.add(f"bilinear/{size}/exact", resize(tall.double(), value, "bilinear"))
    for center, options in CENTERS.items():
        g.add(f"center_crop/{center}", center_crop(pictures((2, 11, 11), torch.uint8, 1), **options))
    # Wider than high, for the shorter edge.
    wide = pictures((1, 17, 31), torch.uint8, 5)
    g.add("wide", wide)
    g.add("bilinear/edge_wide", resize(wide, 23, "bilinear"))
    for name in ("f32", "f64"):
        x = pictures((2, 3, 5, 4), DTYPES[name], 4)
        mean = torch.tensor([0.4914, 0.4822, 0.4465], dtype=x.dtype)
        std = torch.tensor([0.247, 0.2435, 0.2616], dtype=x.dtype)
        g.add(f"normalize/in/{name}", x)
        g.add(f"normalize/channels/{name}", x.sub(mean[:, None, None]).div(std[:, None, None]))
        one = torch.tensor([0.1307], dtype=x.dtype), torch.tensor([0.3081], dtype=x.dtype)
        g.add(f"normalize/one/{name}", x.sub(one[0]).div(one[1]))
    # All bytes through both: the roundings of two divisions and a subtraction.
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    g.add("pixels", x.float().div(255).sub(torch.tensor(0.1307)).div(torch.tensor(0.3081)))
    labels = torch.tensor([[3, 0, 9], [1, 1, 4]])
    g.add("labels", labels)
    g.add("one_hot", F.one_hot(labels, 10).float())
    # A whole chain over several pictures: draws go picture by picture.
    batch = pictures((7, 1, 12, 12), torch.uint8, 6)
    torch.manual_seed(11)
    out = []
    for x in batch:
        x = flip(random_crop(x, 12, 12, padding=2), 0.5, -1)
        out.append(x.float().div(255).sub(torch.tensor(0.1307)).div(torch.tensor(0.3081)))
    g.add("chain/in", batch)
    g.add("chain/out", torch.stack(out))
    g.add("chain/next", torch.randint(0, 1000, (3,)))
