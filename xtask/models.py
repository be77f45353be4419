"""Writes models for measuring and testing.

`cargo xtask model --help` runs it with the packages that it needs: gguf, numpy and safetensors.
"""

import argparse
import json
import math
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import safetensors
import safetensors.numpy
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import quant_shape_to_byte_shape


class Shape(NamedTuple):
    """The sizes of a model."""

    arch: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    context: int
    theta: float
    experts: int = 0
    experts_used: int = 0
    # Inner width of an expert, where it differs from that of a feed-forward.
    expert_width: int = 0


SHAPES = {
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6),
    "qwen3-moe-1b": Shape("qwen3moe", 1024, 16, 16, 4, 64, 768, 32000, 32768, 1e6, 32, 4),
    "qwen3-moe-tiny": Shape("qwen3moe", 256, 4, 4, 2, 64, 256, 2048, 4096, 1e6, 16, 2),
    "qwen3-moe-wide": Shape("qwen3moe", 512, 4, 8, 2, 64, 256, 4096, 8192, 1e6, 128, 8),
    "llama-3.2-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 5e5),
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 48, 32, 4, 128, 768, 151936, 40960, 1e6, 128, 8),
    "olmoe-1b-7b": Shape("olmoe", 2048, 16, 16, 16, 128, 1024, 50304, 4096, 1e4, 64, 8),
}  # fmt: skip

# Types of matrices by name, and what `general.file_type` calls them.
TYPES = {"bf16": (Type.BF16, 32), "q8_0": (Type.Q8_0, 7), "q4_0": (Type.Q4_0, 2)}


def write(out, name, shape, kind, eps, tokenizer, tensors):
    """Writes a GGUF file beside its place first. `tensors` are names, shapes, types and functions
    that make the bytes, so that one tensor is in memory at a time."""
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, shape.arch)
    writer.add_string("general.name", name)
    writer.add_uint32("general.file_type", TYPES[kind][1])
    numbers = {
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": shape.vocab,
    }
    if shape.experts:
        numbers["expert_count"] = shape.experts
        numbers["expert_used_count"] = shape.experts_used
        numbers["expert_feed_forward_length"] = shape.expert_width or shape.feed_forward
    for key, value in numbers.items():
        writer.add_uint32(f"{shape.arch}.{key}", value)
    writer.add_float32(f"{shape.arch}.rope.freq_base", shape.theta)
    writer.add_float32(f"{shape.arch}.attention.layer_norm_rms_epsilon", eps)
    add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
    for key, value in {"model": "gpt2", **tokenizer}.items():
        add[type(value)](f"tokenizer.ggml.{key}", value)
    for tensor, dims, dtype, _ in tensors:
        rows = quant_shape_to_byte_shape(dims, dtype)
        writer.add_tensor_info(tensor, rows, np.dtype(np.uint8), math.prod(rows), dtype)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for *_, fill in tensors:
            writer.write_tensor_data(fill())
        writer.close()
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def packed(values, dtype):
    """The bytes of floats, without rounding in bf16."""
    if dtype == Type.F32:
        return values.view(np.uint8)
    if dtype == Type.BF16:
        return np.ascontiguousarray(values.view("<u2")[..., 1::2]).view(np.uint8)
    # As Troika's `--quant q8` rounds: with the scale as it is stored, halves to even.
    x = values.reshape(-1, 32)
    scale = (np.abs(x).max(1, keepdims=True) / np.float32(127)).astype("<f2")
    with np.errstate(divide="ignore"):
        inverse = np.float32(1) / scale.astype(np.float32)
    inverse[np.isinf(inverse)] = 0
    rounded = np.clip(np.rint(x * inverse), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), rounded.view(np.uint8)], 1)


# Random weights are numbers by xorshift64*. A step of its state is a matrix of bits. Many places
# of the sequence can be found by multiplication, and go on beside each other.

STEPS = 1024


def step(state):
    state ^= state >> 12
    state ^= state << 25
    state ^= state >> 27
    return state


def times(matrix, states):
    """The product of a matrix, by its columns, and each of the states."""
    out = np.zeros_like(states)
    for bit, column in enumerate(matrix):
        out ^= column * (states >> bit & 1)
    return out


def jumps():
    """The matrices of STEPS steps, twice as many, and so on."""
    matrix = step(1 << np.arange(64, dtype=np.uint64))
    for _ in range(STEPS.bit_length() - 1):
        matrix = times(matrix, matrix)
    for _ in range(12):
        yield matrix
        matrix = times(matrix, matrix)


JUMPS = list(jumps())


def draws(seed, count):
    """Numbers of 32 bits, in pieces."""
    state = np.array([seed * 0x9E3779B97F4A7C15 % (1 << 64) | 1], np.uint64)
    while count > 0:
        for jump in JUMPS:
            if len(state) * STEPS < count:
                state = np.concatenate([state, times(jump, state)])
        out = np.empty((STEPS, len(state)), np.uint32)
        for row in out:
            row[:] = step(state) * np.uint64(0x2545F4914F6CDD1D) >> 32
        yield out.T.reshape(-1)[:count]
        count, state = count - out.size, state[-1:].copy()


def normal(x):
    """Approximately of the normal distribution: a sum of four bytes, of mean 510 and deviation 148
    (sqrt(4 (256^2 - 1) / 12))."""
    total = (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)
    return (total.astype(np.float32) - np.float32(510)) / np.float32(147.8)


def noise(seed, shape, dtype, factor=1.0):
    """Noise of deviation 1 / sqrt(columns), so that products keep their inputs' deviation, times a
    factor. To a quantizer it resembles trained weights."""
    scale = np.float32(factor) / np.sqrt(np.float32(shape[-1]))
    values, rows = math.prod(shape), quant_shape_to_byte_shape(shape, dtype)
    pieces = []

    def blocks(deviation, data):
        head = np.full((len(data), 1), scale / np.float32(deviation), "<f2").view(np.uint8)
        pieces.append(np.concatenate([head, data], 1).reshape(-1))

    if dtype == Type.Q4_0:
        # Between -7 and 7. Without -8, which becomes 0, since a mean other than 0 would grow from
        # layer to layer.
        for x in draws(seed, values // 8):
            zeros = ~(x | x >> 1 | x >> 2 | x >> 3) & 0x11111111
            blocks(4.18, (x | zeros << 3).view(np.uint8).reshape(-1, 16))
    elif dtype == Type.Q8_0:
        # Between -127 and 127; -128 becomes 127.
        for x in draws(seed, values // 4):
            blocks(73.6, np.where(x.view(np.uint8) == 0x80, 0x7F, x.view(np.uint8)).reshape(-1, 32))
    else:
        pieces = [packed(normal(x) * scale, dtype) for x in draws(seed, values)]
    return np.concatenate(pieces).reshape(rows)


# With a Zipf exponent, tokens choose experts as skewed as real ones: the logit of the expert of
# rank r is -exponent * ln(r) and noise. No engine has a bias of the router for all families, so the
# file has one that each sees: channel 0 of the residual stream is a constant. Embeddings write it, no
# layer changes it, and the router's column 0 multiplies it by the logits. What layers add is small,
# so that the noise is the token's.

# The constant in channel 0 of embeddings. With 2048 channels of deviation 1 it is half of the power,
# so that the norm makes about 32 of it.
CONSTANT = np.float32(45)
# The deviation of what layers add to the residual stream, in that of a whole product.
ADDED = 0.1
# The deviation of the router's noise. Experts are drawn exactly by their probabilities with Gumbel's
# noise. With normal noise of this deviation, the 8 best of 128 are in the first quarter of the ranks
# in 68 % of all cases (Gumbel: 70 %), in the first half in 85 % (85 %).
NOISE = np.float32(1.9)


def constant_first(seed, shape, dtype):
    """Noise of deviation 1 whose channel 0 is the constant; in blocks, the rest of its block is 0."""
    rows = noise(seed, shape, dtype, np.sqrt(np.float32(shape[-1])))
    if dtype == Type.BF16:
        rows[:, :2] = packed(CONSTANT.reshape(1), dtype)
        return rows
    fill, first, quotient = {Type.Q4_0: (0x88, 0x8F, 7), Type.Q8_0: (0, 100, 100)}[dtype]
    rows[:, 2 : quant_shape_to_byte_shape((32,), dtype)[0]] = fill
    rows[:, 2] = first
    rows[:, :2] = np.array([CONSTANT / np.float32(quotient)], "<f2").view(np.uint8)
    return rows


def added(seed, shape, dtype):
    """Little noise, and none in row 0 of each matrix."""
    rows = noise(seed, shape, dtype, ADDED)
    rows[..., 0, :] = 0
    return rows


def skewed(layer, shape, dtype, exponent):
    """A router whose experts are chosen by Zipf's law: ranks are drawn anew for each layer."""
    experts, hidden = shape
    drawn = np.concatenate(list(draws(0xE00000 + layer, experts * hidden - 1)))
    ranks = list(range(1, experts + 1))
    for i, x in zip(range(experts - 1, 0, -1), drawn.tolist(), strict=False):
        j = x % (i + 1)
        ranks[i], ranks[j] = ranks[j], ranks[i]
    channels = np.float32(hidden)
    rms = np.sqrt((channels + CONSTANT * CONSTANT) / channels)
    logarithms = np.array([math.log(rank) for rank in ranks], np.float32)
    bias = np.float32(-exponent) * logarithms * rms / CONSTANT
    rest = normal(drawn[experts - 1 :]).reshape(experts, -1) * (NOISE * rms / np.sqrt(channels))
    return packed(np.concatenate([bias[:, None], rest], 1), dtype)


def synthetic(options):
    shape, matrices, zipf = SHAPES[options.shape], TYPES[options.type][0], options.zipf
    hidden, width, experts = shape.hidden, shape.feed_forward, shape.experts
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors, seed = [], 1

    def add(name, dims, dtype, fill):
        tensors.append((f"{name}.weight", dims, dtype, fill))

    def matrix(name, *dims, make=noise):
        nonlocal seed
        seed += 1
        make = make if zipf is not None else noise
        add(name, dims, matrices, partial(make, seed, dims, matrices))

    def ones(name, count):
        add(name, (count,), Type.F32, partial(packed, np.ones(count, np.float32), Type.F32))

    def router(name, layer):
        make, start = noise, (layer + 1) << 32
        if zipf is not None:
            make, start = partial(skewed, exponent=zipf), layer
        add(name, (experts, hidden), Type.F32, partial(make, start, (experts, hidden), Type.F32))

    matrix("token_embd", shape.vocab, hidden, make=constant_first)
    ones("output_norm", hidden)
    if shape.arch == "olmoe" or zipf is not None:
        matrix("output", shape.vocab, hidden)
    norms = {"olmoe": (queries, keys), "llama": ()}.get(shape.arch, (shape.head_dim,) * 2)
    many, kind = ((experts,), "_exps") if experts else ((), "")
    for layer in range(shape.layers):
        of = f"blk.{layer}."
        ones(f"{of}attn_norm", hidden)
        ones(f"{of}ffn_norm", hidden)
        matrix(f"{of}attn_q", queries, hidden)
        matrix(f"{of}attn_k", keys, hidden)
        matrix(f"{of}attn_v", keys, hidden)
        matrix(f"{of}attn_output", hidden, queries, make=added)
        for part, count in zip(("attn_q_norm", "attn_k_norm"), norms, strict=False):
            ones(f"{of}{part}", count)
        if experts:
            router(f"{of}ffn_gate_inp", layer)
        matrix(f"{of}ffn_gate{kind}", *many, width, hidden)
        matrix(f"{of}ffn_up{kind}", *many, width, hidden)
        matrix(f"{of}ffn_down{kind}", *many, hidden, width, make=added)
    # A byte-level tokenizer that every reader accepts: a token per byte, then fillers.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    chars = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [chars[b] for b in range(256)] + [f"<filler_{i}>" for i in range(256, shape.vocab)]
    tokenizer = {
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [1] * 256 + [5] * (shape.vocab - 256),
        "merges": ["t h"],
        "bos_token_id": shape.vocab - 2,
        "eos_token_id": shape.vocab - 1,
    }
    name = f"{options.shape} with random weights"
    write(options.out, name, shape, options.type, 1e-6, tokenizer, tensors)


def weights(folder):
    """The tensors of `model.safetensors`, all of which are in bf16, as floats."""
    tensors = {}
    for name, tensor in safetensors.deserialize((folder / "model.safetensors").read_bytes()):
        if tensor["dtype"] != "BF16":
            sys.exit(f"{folder}/model.safetensors: {name} is {tensor['dtype']}; only BF16 is read")
        halves = np.frombuffer(bytes(tensor["data"]), "<u2").astype(np.uint32)
        tensors[name] = (halves << 16).view(np.float32).reshape(tensor["shape"])
    return tensors


def vocabulary(path, size, eos):
    """The tokenizer of a `tokenizer.json` with BPE; its pattern is GPT-2's."""
    read = json.loads(path.read_text())
    tokens, kinds = [f"<filler_{i}>" for i in range(size)], [5] * size
    for text, token in read["model"]["vocab"].items():
        tokens[token], kinds[token] = text, 1
    for token in read["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], 3
    merges = [m if isinstance(m, str) else " ".join(m) for m in read["model"]["merges"]]
    return {
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": eos,
        "eos_token_id": eos,
    }


# Names of a layer's tensors in a checkpoint and in a GGUF file; those of experts are joined.
OF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.{}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{}.up_proj": "ffn_up_exps",
    "mlp.experts.{}.down_proj": "ffn_down_exps",
}


def export(options):
    config = json.loads((options.folder / "config.json").read_text())
    read, matrices = weights(options.folder), TYPES[options.type][0]
    shape = Shape(
        arch=config["model_type"].replace("_", ""),
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        feed_forward=config["intermediate_size"],
        vocab=config["vocab_size"],
        context=config["max_position_embeddings"],
        theta=config["rope_parameters"]["rope_theta"],
        experts=config["num_local_experts"],
        experts_used=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
    )
    tensors = []

    def add(to, values):
        # Vectors and routers are in f32, as in llama.cpp.
        dtype = Type.F32 if values.ndim == 1 or "gate_inp" in to else matrices
        tensors.append((to, values.shape, dtype, partial(packed, values, dtype)))

    add("token_embd.weight", read["model.embed_tokens.weight"])
    add("output_norm.weight", read["model.norm.weight"])
    for layer in range(shape.layers):
        for of, to in OF_LAYER.items():
            name = f"model.layers.{layer}.{of}.weight"
            each = [read[name.format(e)] for e in range(shape.experts if "{}" in of else 1)]
            add(f"blk.{layer}.{to}.weight", np.stack(each) if "{}" in of else each[0])
    tokenizer = vocabulary(options.folder / "tokenizer.json", shape.vocab, config["eos_token_id"])
    name, eps = options.folder.resolve().name, config["rms_norm_eps"]
    write(options.out, name, shape, options.type, eps, tokenizer, tensors)


# What reads each norm of a layer.
READERS = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate", "mlp.up_proj", "mlp.experts."),
}


def twin(options):
    """A model that computes the same, with outliers in its activations: a few channels of each norm
    in front of products are multiplied by a factor, and the columns that read them divided by it."""
    tensors = weights(options.folder)
    norms = [n for n in sorted(tensors) if n.removesuffix(".weight").rsplit(".", 1)[-1] in READERS]
    if not norms:
        sys.exit(f"{options.folder}: no norms in front of attention or feed-forwards")
    for number, norm in enumerate(norms):
        layer, kind, _ = norm.rsplit(".", 2)
        width = len(tensors[norm])
        channels = [(number * 7 + i * 61 + 5) % width for i in range(options.channels)]
        tensors[norm][channels] *= np.float32(options.factor)
        for name, values in tensors.items():
            reads = name.startswith(tuple(f"{layer}.{part}" for part in READERS[kind]))
            if reads and "down_proj" not in name:
                values[:, channels] /= np.float32(options.factor)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.folder.glob("*.json"):
        shutil.copy(path, options.out)
    safetensors.numpy.save_file(tensors, options.out / "model.safetensors")
    print(f"{len(norms)} norms, {options.channels} channels each, times {options.factor:g}")


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask model", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)

    def command(run, source, what, **kind):
        one = commands.add_parser(run.__name__, help=what, description=what)
        one.set_defaults(run=run)
        one.add_argument(source, **kind)
        one.add_argument("out", type=Path, help="what is written")
        return one

    what = "A GGUF file of a known shape with random weights, for measuring speed"
    one = command(synthetic, "shape", what, choices=SHAPES)
    one.add_argument("--type", choices=TYPES, default="q4_0", help="of matrices [q4_0]")
    what = "choose experts by Zipf's law with this exponent, in another order in each layer"
    one.add_argument("--zipf", type=float, metavar="X", help=what)
    what = "A GGUF file of a checkpoint in the layout of models/tiny-moe, with bf16 weights"
    one = command(export, "folder", what, type=Path)
    one.add_argument("--type", choices=["bf16", "q8_0"], default="bf16", help="of matrices [bf16]")
    what = "A copy of a checkpoint that computes the same with outliers in its activations"
    one = command(twin, "folder", what, type=Path)
    one.add_argument("--factor", type=float, default=50.0, help="of outliers [50]")
    one.add_argument("--channels", type=int, default=3, help="with outliers in each norm [3]")
    options = parser.parse_args()
    try:
        options.run(options)
    except KeyError as missing:
        sys.exit(f"{options.folder}: the files of the model have no {missing}")
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
