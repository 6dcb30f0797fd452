"""augment.golden: pictures changed by torchvision's random transforms, applied to tensors several times from one seed.

Each entry has the results one after the other, and "/next": three numbers that the generator draws afterwards.
Hues of u8 and "trivial/sixteenth" are those of torchvision 0.15 and PyTorch 2 and later; the others are of 0.14, too.
"""

import torch
from torchvision import transforms as T
from torchvision.transforms import InterpolationMode as I
from torchvision.transforms.autoaugment import AutoAugmentPolicy as P

from golden import Golden

adjust_hue = T.functional.adjust_hue


def hue(x, factor):
    """In torchvision 0.14, too, u8 are multiplied by 255.999 before they are cut."""
    if x.dtype != torch.uint8:
        return adjust_hue(x, factor)
    to = T.functional.convert_image_dtype
    return to(adjust_hue(to(x, torch.float32), factor), torch.uint8)


T.functional.adjust_hue = hue


def pictures():
    g = torch.Generator().manual_seed(7)
    # Smooth, with noise: neighbours differ, but not without bound.
    y, x = torch.meshgrid(torch.arange(11.0), torch.arange(14.0), indexing="ij")
    waves = torch.stack([torch.sin(x / 3 + y / 5), torch.cos(x / 4 - y / 3), torch.sin(x * y / 40)])
    u8 = (127 + 90 * waves + 70 * (torch.rand(waves.shape, generator=g) - 0.5)).clamp(0, 255).to(torch.uint8)
    u8[:, 2, 3] = torch.tensor([255, 255, 255], dtype=torch.uint8)
    u8[:, 3, 3] = 0
    u8[:, 4, 3] = 77
    f64 = u8.double() / 255 * 0.98 + 0.01
    return {"u8": u8, "f32": f64.float(), "f64": f64}


ERASE = {
    "zero": dict(p=0.7),
    "mean": dict(p=1.0, value=(10, 20, 30), scale=(0.1, 0.4)),
    "wide": dict(p=1.0, scale=(0.9, 1.0), ratio=(0.2, 6.0), value=5),
}
FLOATING = {"random": dict(p=0.9, value="random")}
PAD = {
    "constant": dict(padding=3, fill=9),
    "edge": dict(padding=(2, 5, 0, 1), padding_mode="edge"),
    "reflect": dict(padding=4, padding_mode="reflect"),
    "symmetric": dict(padding=(14, 11, 2, 3), padding_mode="symmetric"),
}
JITTER = {
    "brightness": dict(brightness=0.7),
    "contrast": dict(contrast=0.6),
    "saturation": dict(saturation=1.5),
    "hue": dict(hue=0.5),
    "all": dict(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    "ranges": dict(brightness=(0.2, 0.3), contrast=(1.5, 2.5), hue=(-0.2, -0.1)),
}
RESIZED = {
    "bilinear": dict(size=(9, 7)),
    "nearest": dict(size=(9, 7), interpolation=I.NEAREST),
    "bicubic": dict(size=(20, 8), interpolation=I.BICUBIC),
    "antialias": dict(size=(4, 5), antialias=True),
    "middle": dict(size=(5, 5), scale=(1.5, 2.0), ratio=(0.5, 0.9)),
    "narrow": dict(size=(6, 6), scale=(0.2, 0.5), ratio=(1.0, 3.0)),
}
RESIZE = {
    "cubic_up": dict(size=(23, 31), interpolation=I.BICUBIC),
    "cubic_down": dict(size=(5, 7), interpolation=I.BICUBIC),
    "cubic_one": dict(size=(1, 1), interpolation=I.BICUBIC),
    "aa_down": dict(size=(4, 5), antialias=True),
    "aa_up": dict(size=(22, 40), antialias=True),
    "aa_mixed": dict(size=(30, 3), antialias=True),
    "aa_cubic_down": dict(size=(4, 5), interpolation=I.BICUBIC, antialias=True),
    "aa_cubic_up": dict(size=(19, 27), interpolation=I.BICUBIC, antialias=True),
}
ROTATE = {
    "nearest": dict(degrees=40),
    "bilinear": dict(degrees=(20, 70), interpolation=I.BILINEAR, fill=7),
    "centre": dict(degrees=180, center=(3, 5), fill=200),
}
AFFINE = {
    "turn": dict(degrees=30),
    "shift": dict(degrees=0, translate=(0.3, 0.2), fill=11),
    "all": dict(degrees=(-15, 40), translate=(0.1, 0.3), scale=(0.6, 1.7), shear=(-20, 20, -5, 15)),
    "bilinear": dict(degrees=25, scale=(0.8, 0.9), shear=12, interpolation=I.BILINEAR, fill=50),
}
BLUR = {"square": dict(kernel_size=5), "oblong": dict(kernel_size=(3, 9), sigma=(0.5, 3.0))}  # width, height
TONE = {
    "invert": T.RandomInvert(0.6),
    "solarize": T.RandomSolarize(0.4, 0.6),
    "sharpen": T.RandomAdjustSharpness(2.3, 0.6),
    "soften": T.RandomAdjustSharpness(0.2, 0.6),
    "autocontrast": T.RandomAutocontrast(0.6),
    "grayscale": T.RandomGrayscale(0.6),
}
BYTES = {
    "solarize_bytes": T.RandomSolarize(100.5, 0.6),
    "posterize": T.RandomPosterize(3, 0.6),
    "equalize": T.RandomEqualize(0.6),
}


def scaled(options, dtype):
    """Values and fills of floating types lie in [0, 1]. 1 / 256 is exact, as torchvision's f32 values then are."""
    options = dict(options)
    for key in ("fill", "value"):
        value = options.get(key)
        if value is not None and dtype != "u8" and value != "random":
            options[key] = tuple(v / 256 for v in value) if isinstance(value, tuple) else value / 256
    return options


with Golden("augment.golden") as g:
    for dtype, x in pictures().items():
        g.add(f"in/{dtype}", x)

        def add(name, transform, times=4, seed=5, x=x, dtype=dtype):
            torch.manual_seed(seed)
            g.add(f"{name}/{dtype}", torch.stack([transform(x) for _ in range(times)]))
            g.add(f"{name}/{dtype}/next", torch.randint(0, 1000, (3,)))

        for name, options in ERASE.items():
            add(f"erase/{name}", T.RandomErasing(**scaled(options, dtype)))
        for name, options in FLOATING.items():
            if dtype != "u8":
                add(f"erase/{name}", T.RandomErasing(**options), 2)
        for name, options in PAD.items():
            if dtype == "u8":
                g.add(f"pad/{name}", T.Pad(**options)(x))
        for name, options in JITTER.items():
            add(f"jitter/{name}", T.ColorJitter(**options), 8 if name == "all" else 3)
        for name, options in RESIZED.items():
            add(f"resized_crop/{name}", T.RandomResizedCrop(**options))
        for name, options in RESIZE.items():
            g.add(f"resize/{name}/{dtype}", T.Resize(**options)(x))
        for name, options in ROTATE.items():
            add(f"rotate/{name}", T.RandomRotation(**scaled(options, dtype)))
        for name, options in AFFINE.items():
            add(f"affine/{name}", T.RandomAffine(**scaled(options, dtype)))
        for name, transform in (TONE | (BYTES if dtype == "u8" else {})).items():
            if name == "solarize" and dtype == "u8":
                continue
            add(f"tone/{name}", transform, 4)
        for name, options in BLUR.items():
            add(f"blur/{name}", T.GaussianBlur(**options), 2)
        g.add(f"grey/{dtype}", T.Grayscale()(x))
        add("perspective", T.RandomPerspective(0.6, 0.8, fill=scaled(dict(fill=40), dtype)["fill"]))
        add("apply", T.RandomApply([T.RandomInvert(0.5), T.RandomHorizontalFlip(0.5)], 0.6))
        if dtype == "u8":
            for policy in P:
                add(f"auto/{policy.value}", T.AutoAugment(policy), 60)
            add("auto/filled", T.AutoAugment(P.SVHN, interpolation=I.BILINEAR, fill=128), 30)
            add("rand/default", T.RandAugment(), 60)
            add("rand/bilinear", T.RandAugment(3, 20, interpolation=I.BILINEAR), 30)
            add("trivial/default", T.TrivialAugmentWide(), 90)
            # The magnitudes of translations go from 0 to 32: the sixteenth of 31 is a bit below 16, and cut to 15.
            g.add("trivial/sixteenth/in", x[:1].repeat(1, 2, 2))
            add("trivial/sixteenth", T.TrivialAugmentWide(), 6, 6552, x[:1].repeat(1, 2, 2))
            add("trivial/grey", lambda x: T.TrivialAugmentWide(11)(x[:1]), 40)
