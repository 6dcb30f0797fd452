"""Writes images.golden: small PNG and JPEG files, and what Pillow reads from them; and image_values.golden:
<name>/values (C, H, W) of those with a palette, its indices, u8, and of those of 16 bits, i64.

    apt-get install python3-torch python3-pil libjpeg-turbo-progs
    /usr/bin/python3 make_images.py

Of every picture: <name>/file, its bytes; <name>/L (1, H, W), <name>/RGB (3, H, W), as Pillow's convert;
<name>/A (1, H, W) where some pixel is not opaque. Where Pillow clips 16 bits or compares a transparent
color with what it has already changed, the expectation is computed here: 16 bits become 8 by dropping
the lower ones, colors are compared before.
"""

import io
import pathlib
import struct
import subprocess
import sys
import zlib

import numpy as np

try:
    from PIL import Image
except ImportError:
    print("Pillow is not installed: images.golden stays as it is")
    sys.exit(0)

from golden import Golden

random = np.random.RandomState(7)
written = {}  # PNG file: samples (H, W, C), depth, kind
GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGB_ALPHA: 4}
# First column, first row, step between columns, step between rows of each pass of Adam7.
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(samples, depth):
    """Rows of (H, W, C) samples as they lie in a file, without filters."""
    height = samples.shape[0]
    rows = samples.reshape(height, -1)
    if depth == 16:
        data = rows.astype(">u2").view(np.uint8).reshape(height, -1)
    elif depth == 8:
        data = rows.astype(np.uint8)
    else:
        bits = (rows[..., None] >> np.arange(depth - 1, -1, -1)) & 1
        data = np.packbits(bits.reshape(height, -1).astype(np.uint8), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in data)


def png(samples, depth, kind, chunks=(), interlaced=False):
    height, width = samples.shape[:2]
    passes = ADAM7 if interlaced else [(0, 0, 1, 1)]
    parts = [samples[y::rows, x::columns] for x, y, columns, rows in passes]
    data = zlib.compress(b"".join(packed(p, depth) for p in parts if p.size), 9)
    file = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, int(interlaced)))
        + b"".join(chunk(*c) for c in chunks)
        + chunk(b"IDAT", data[: len(data) // 2])
        + chunk(b"IDAT", data[len(data) // 2 :])
        + chunk(b"IEND", b"")
    )
    written[file] = samples, depth, kind
    return file


def samples(height, width, depth, kind):
    return random.randint(0, 1 << depth, (height, width, CHANNELS[kind]))


def palette(count):
    return b"PLTE", random.randint(0, 256, 3 * count).astype(np.uint8).tobytes()


def planes(array):
    return np.ascontiguousarray(array.transpose(2, 0, 1)).astype(np.uint8)


def add_values(name, data):
    """What was written. Pillow reads the same, but 8 bits of 16 that are several channels."""
    s, depth, kind = written.get(data, (None, 8, GRAY))
    if kind != PALETTE and depth != 16:
        return
    if CHANNELS[kind] == 1:
        with Image.open(io.BytesIO(data)) as image:
            assert (np.asarray(image) == s[..., 0]).all(), name
    array = np.ascontiguousarray(s.transpose(2, 0, 1))
    values.add(f"{name}/values", array.astype(np.uint8 if kind == PALETTE else np.int64))


def add(golden, name, data, alpha=None, gray=None):
    """`alpha` and `gray` (H, W) stand in for Pillow's."""
    with Image.open(io.BytesIO(data)) as image:
        rgb = np.asarray(image.convert("RGB"))
        luma = np.asarray(image.convert("L"))
        seen = np.asarray(image.convert("RGBA"))[..., 3]
    if gray is not None:
        luma, rgb = gray, np.repeat(gray[..., None], 3, axis=2)
    if alpha is None:
        alpha = seen
    golden.add(f"{name}/file", np.frombuffer(data, np.uint8).copy())
    golden.add(f"{name}/L", planes(luma[..., None]))
    golden.add(f"{name}/RGB", planes(rgb))
    if (alpha != 255).any():
        golden.add(f"{name}/A", planes(alpha[..., None]))
    add_values(name, data)


def add_png(golden):
    for interlaced in (False, True):
        suffix = "_interlaced" if interlaced else ""
        for depth in (1, 2, 4, 8, 16):
            s = samples(9, 13, depth, GRAY)
            high = (s[..., 0] >> 8).astype(np.uint8) if depth == 16 else None
            add(golden, f"gray{depth}{suffix}", png(s, depth, GRAY, interlaced=interlaced), gray=high)
        for depth in (1, 2, 4, 8):
            s = samples(9, 13, depth, PALETTE)
            chunks = [palette(1 << depth)]
            add(golden, f"palette{depth}{suffix}", png(s, depth, PALETTE, chunks, interlaced))
        for depth in (8, 16):
            for kind, name in ((RGB, "rgb"), (GRAY_ALPHA, "gray_alpha"), (RGB_ALPHA, "rgb_alpha")):
                s = samples(9, 13, depth, kind)
                add(golden, f"{name}{depth}{suffix}", png(s, depth, kind, interlaced=interlaced))
    for size in ((1, 1), (2, 3), (5, 1)):
        s = samples(*size, 8, RGB)
        add(golden, f"rgb8_interlaced_{size[0]}_{size[1]}", png(s, 8, RGB, interlaced=True))


def add_transparent(golden):
    s = samples(9, 13, 4, PALETTE)
    alphas = random.randint(0, 256, 11).astype(np.uint8).tobytes()
    add(golden, "palette4_transparent", png(s, 4, PALETTE, [palette(16), (b"tRNS", alphas)]))
    for depth in (1, 4, 8, 16):
        s = samples(9, 13, depth, GRAY)
        if depth == 16:
            s[::2, ::2] = 0x1234
            s[1::2, ::2] = 0x1235  # the same in 8 bits
        color = int(s[0, 0, 0])
        alpha = np.where(s[..., 0] == color, 0, 255)
        high = (s[..., 0] >> 8).astype(np.uint8) if depth == 16 else None
        data = png(s, depth, GRAY, [(b"tRNS", struct.pack(">H", color))])
        add(golden, f"gray{depth}_transparent", data, alpha, high)
    for depth in (8, 16):
        s = samples(9, 13, depth, RGB)
        s[::2] = s[0, 0]
        s[2, 3, 1] ^= 1
        alpha = np.where((s == s[0, 0]).all(axis=2), 0, 255)
        data = png(s, depth, RGB, [(b"tRNS", struct.pack(">3H", *(int(v) for v in s[0, 0])))])
        add(golden, f"rgb{depth}_transparent", data, alpha)


def add_gamma(golden):
    """What says how to show a picture changes nothing."""
    gamma = [(b"gAMA", struct.pack(">I", 100000)), (b"sBIT", b"\5\5\5"), (b"tEXt", b"Title\0gamma")]
    add(golden, "rgb8_gamma", png(samples(9, 13, 8, RGB), 8, RGB, gamma))
    s = samples(9, 13, 16, GRAY)
    high = (s[..., 0] >> 8).astype(np.uint8)
    add(golden, "gray16_gamma", png(s, 16, GRAY, [(b"gAMA", struct.pack(">I", 45455))]), gray=high)
    s = samples(9, 13, 8, RGB_ALPHA)
    background = [(b"gAMA", struct.pack(">I", 220000)), (b"bKGD", struct.pack(">3H", 255, 0, 99))]
    add(golden, "rgb_alpha8_background", png(s, 8, RGB_ALPHA, background))


def scene(height, width):
    """Smooth with some noise and an edge."""
    y, x = np.mgrid[:height, :width]
    channels = [5 * x + 2 * y, 255 - 4 * x + y, 3 * y + 60 * (x > width // 2)]
    noise = random.randint(0, 12, (height, width, 3))
    return (np.stack(channels, axis=2) + noise).clip(0, 255).astype(np.uint8)


def saved(array, form, mode=None, **options):
    out = io.BytesIO()
    Image.fromarray(array, mode).save(out, form, **options)
    return out.getvalue()


def cjpeg(array, *options):
    ppm = b"P6 %d %d 255\n" % (array.shape[1], array.shape[0]) + array.tobytes()
    return subprocess.run(["cjpeg", *options], input=ppm, stdout=subprocess.PIPE, check=True).stdout


def add_jpeg(golden):
    add(golden, "filters_png", saved(scene(21, 35), "PNG"))
    add(golden, "gray_jpeg", saved(scene(21, 35)[..., 0], "JPEG", quality=85))
    for name, options in {
        "jpeg_444": {"subsampling": 0},
        "jpeg_422": {"subsampling": 1},
        "jpeg_420": {"subsampling": 2},
        "jpeg_progressive": {"progressive": True, "subsampling": 2},
        "jpeg_exif": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"},
    }.items():
        add(golden, name, saved(scene(21, 35), "JPEG", quality=85, **options))
    inks = np.concatenate([scene(21, 35), scene(21, 35)[..., :1] // 2], axis=2)
    cmyk = saved(inks, "JPEG", "CMYK", quality=90)
    add(golden, "jpeg_cmyk", cmyk)
    at = cmyk.index(b"Adobe") + 11  # which transform was applied
    assert cmyk[at] == 0
    add(golden, "jpeg_ycck", cmyk[:at] + b"\2" + cmyk[at + 1 :])
    add(golden, "jpeg_cmyk_plain", cmyk[: at - 15] + cmyk[at + 1 :])
    add(golden, "jpeg_rgb", cjpeg(scene(21, 35), "-rgb"))
    add(golden, "jpeg_31", cjpeg(scene(21, 35), "-sample", "3x1"))
    add(golden, "jpeg_restart", cjpeg(scene(21, 35), "-restart", "1"))
    add(golden, "jpeg_arithmetic", cjpeg(scene(21, 35), "-arithmetic"))


with Golden("images.golden") as golden, Golden("image_values.golden") as values:
    add_png(golden)
    add_transparent(golden)
    add_gamma(golden)
    add_jpeg(golden)
assert pathlib.Path(golden.path).stat().st_size < 100000
