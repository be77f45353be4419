"""Makes blocks.bin (random blocks of each type and their values) and src/grids.bin.

usage: blocks.py LIBGGML
Needs the Python package gguf, and a shared library with ggml's `dequantize_row_*` functions:
  gcc -shared -fPIC -Iinclude -Isrc src/ggml-quants.c -o LIBGGML -Wl,--unresolved-symbols=ignore-all -lm
in the folder `ggml` of llama.cpp's source. Both must agree; types that gguf lacks come from the library.
"""

import ctypes
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

HERE = Path(__file__).parent
# Elements and bytes of a block, and where it has f16 numbers.
TYPES = {
    "Q8_0": (32, 34, [0]), "Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]), "Q5_0": (32, 22, [0]),
    "Q5_1": (32, 24, [0, 2]), "Q2_K": (256, 84, [80, 82]), "Q3_K": (256, 110, [108]),
    "Q4_K": (256, 144, [0, 2]), "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208]),
    "IQ2_XXS": (256, 66, [0]), "IQ2_XS": (256, 74, [0]), "IQ2_S": (256, 82, [0]),
    "IQ3_XXS": (256, 98, [0]), "IQ3_S": (256, 110, [0]), "IQ1_S": (256, 50, [0]), "IQ1_M": (256, 56, []),
    "IQ4_NL": (32, 18, [0]), "IQ4_XS": (256, 136, [0]), "TQ1_0": (256, 54, [52]), "TQ2_0": (256, 66, [64]),
    "Q1_0": (128, 18, [0]), "Q2_0": (64, 18, [0]), "MXFP4": (32, 17, []), "NVFP4": (64, 36, []),
}
# Small, negative, zero, minus zero, subnormal, the largest, and numbers that are not finite.
SCALES = [0x2C1F, 0x9E04, 0x0000, 0x8000, 0x0001, 0x7BFF, 0x7C00, 0x7E00]


def blocks(random, name):
    elements, size, halves = TYPES[name]
    raw = random.integers(0, 256, (len(SCALES), size), dtype=np.uint8)
    for i, scale in enumerate(SCALES):
        for n, at in enumerate(halves):
            raw[i, at : at + 2] = list(struct.pack("<H", SCALES[(i + n) % len(SCALES)]))
        if name == "MXFP4":
            raw[i, 0] = [0, 1, 2, 100, 127, 128, 254, 255][i]
        if name == "NVFP4":
            raw[i, :4] = [[0, 1, 7, 8], [0x7F, 0x80, 0xFF, 0x7E], [0x38, 0x39, 0x40, 0x0F]][min(i, 2)]
        if name == "IQ1_M":
            for part in range(4):
                at = 49 + 2 * part
                raw[i, at] = raw[i, at] & 15 | (scale >> (4 * part) & 15) << 4
    return raw


def values(library, name, raw):
    elements = TYPES[name][0] * len(raw)
    of_library = np.zeros(elements, dtype=np.float32)
    plain = name.lower().replace("_k", "_K")
    call = getattr(library, f"dequantize_row_{plain}")
    call(raw.ctypes.data_as(ctypes.c_void_p), of_library.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(elements))
    kind = getattr(GGMLQuantizationType, name, None)
    if kind in GGML_QUANT_SIZES and kind in quants._type_traits:
        of_gguf = quants.dequantize(raw.reshape(-1), kind).astype(np.float32)
        same = (of_gguf.view(np.uint32) == of_library.view(np.uint32)) | np.isnan(of_gguf) & np.isnan(of_library)
        if not same.all():
            print(f"{name}: gguf and the library differ in {(~same).sum()} values; the library's are kept")
    else:
        print(f"{name}: gguf lacks it, the values are the library's")
    return of_library


def main():
    library = ctypes.CDLL(sys.argv[1], mode=1)
    random = np.random.default_rng(2)
    records = []
    for name, kind in [("F32", np.float32), ("F16", np.float16), ("BF16", None)]:
        raw = random.integers(0, 65536, 64, dtype=np.uint16)
        if kind is None:
            out = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            out = raw.view(kind).astype(np.float32)
        records.append((name, raw.tobytes(), out))
    for name in TYPES:
        raw = blocks(random, name)
        with np.errstate(all="ignore"):
            records.append((name, raw.tobytes(), values(library, name, raw)))
    with open(HERE / "blocks.bin", "wb") as file:
        for name, raw, out in records:
            file.write(name.encode().ljust(8, b"\0") + struct.pack("<II", len(raw), len(out)) + raw + out.tobytes())
    grids = [quants.IQ2_XXS, quants.IQ2_XS, quants.IQ2_S, quants.IQ3_XXS, quants.IQ3_S, quants.IQ1_S]
    with open(HERE / "../../src/grids.bin", "wb") as file:
        for one in grids:
            one.init_grid()
            file.write(one.grid.astype(np.int8).tobytes())


main()
