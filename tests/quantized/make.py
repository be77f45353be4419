#!/usr/bin/env python3
"""Makes small quantized checkpoints, one folder for each format, with the logits of the weights that
they stand for. The formats are written here from their definitions; MLX's folders are quantized by
MLX itself. Run it in this folder, after `pip install numpy ml_dtypes "mlx[cpu]"`.
"""

import json
import struct
from pathlib import Path

import ml_dtypes
import mlx.core as mx
import numpy as np

VOCAB, TOKENS, GREEDY = 64, 24, 16
NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "int64": "I64", "int32": "I32", "uint32": "U32", "int8": "I8", "uint8": "U8",
}
bf16, f8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def save(path, tensors):
    header, data = {}, b""
    for name, x in sorted(tensors.items()):
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {
            "dtype": NAMES[x.dtype.name], "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def nibbles(q, axis, bits=4):
    """Whole numbers in int32s along an axis, the lowest bits first."""
    q = np.moveaxis(q.astype(np.uint32), axis, -1)
    pack = 32 // bits
    q = q.reshape(*q.shape[:-1], -1, pack)
    words = sum(q[..., i] << np.uint32(bits * i) for i in range(pack))
    return np.moveaxis(words.astype(np.uint32), -1, axis).view(np.int32)


def grouped(w, group, bits, symmetric, order=None):
    """Codes, scales [n, groups] and zero points of a matrix; `order` gives the group of inputs."""
    n, k = w.shape
    order = np.arange(k) // group if order is None else order
    count = order.max() + 1
    top = 2**bits - 1
    scales, zeros = np.empty((n, count)), np.empty((n, count), np.int64)
    for g in range(count):
        part = w[:, order == g]
        low, high = part.min(1), part.max(1)
        if symmetric:
            scales[:, g] = 2 * np.abs(part).max(1) / top
            zeros[:, g] = (top + 1) // 2
        else:
            scales[:, g] = (high - low) / top
            zeros[:, g] = np.clip(np.round(-low / scales[:, g]), 1, top)
    scales = scales.astype(np.float16).astype(np.float64)
    codes = np.clip(np.round(w / scales[:, order]) + zeros[:, order], 0, top).astype(np.int64)
    return codes, scales, zeros, scales[:, order] * (codes - zeros[:, order])


class Gptq:
    def __init__(self, group=32, bits=4, symmetric=False, desc_act=False, dynamic=False):
        self.group, self.bits, self.symmetric = group, bits, symmetric
        self.desc_act, self.dynamic = desc_act, dynamic
        self.config = {
            "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric,
            "desc_act": desc_act,
        }
        if dynamic:
            self.config["dynamic"] = {
                "-:.*v_proj": {}, "+:.*gate_proj": {"bits": 8, "group_size": 64, "sym": True},
            }

    def __call__(self, w, base, random):
        group, bits, symmetric = self.group, self.bits, self.symmetric
        if self.dynamic and base.endswith("v_proj."):
            return {f"{base}weight": w.astype(np.float32)}, w
        if self.dynamic and base.endswith("gate_proj."):
            group, bits, symmetric = 64, 8, True
        k = w.shape[1]
        order = np.arange(k) // group
        if self.desc_act:
            order = random.permutation(order)
        q, scales, zeros, value = grouped(w, group, bits, symmetric, order)
        return {
            f"{base}qweight": nibbles(q.T, 0, bits),
            f"{base}qzeros": nibbles((zeros - 1).T & (2**bits - 1), 1, bits),
            f"{base}scales": scales.T.astype(np.float16),
            f"{base}g_idx": order.astype(np.int32),
        }, value


class AwqGemv:
    config = {
        "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemv",
    }

    def __call__(self, w, base, random):
        q, scales, zeros, value = grouped(w, 32, 4, False)
        groups = scales.shape[1]
        # Zero points are padded to whole int32s, and to four of them for groups of 32.
        width = -(-(-(-groups // 8)) // 4) * 4 * 8
        pad = ((0, 0), (0, width - groups))
        return {
            f"{base}qweight": nibbles(q, 1),
            f"{base}qzeros": nibbles(np.pad(zeros, pad), 1),
            f"{base}scales": np.pad(scales, pad).astype(np.float16),
        }, value


class PackQuantized:
    def __init__(self, bits, symmetric, activation_order=False):
        self.bits, self.symmetric, self.activation_order = bits, symmetric, activation_order
        weights = {
            "num_bits": bits, "type": "int", "strategy": "group", "group_size": 32,
            "symmetric": symmetric, "actorder": "group" if activation_order else None,
        }
        self.config = {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }

    def __call__(self, w, base, random):
        k = w.shape[1]
        order = np.arange(k) // 32
        if self.activation_order:
            order = random.permutation(order)
        q, scales, zeros, value = grouped(w, 32, self.bits, self.symmetric, order)
        tensors = {
            f"{base}weight_packed": nibbles(q, 1, self.bits),
            f"{base}weight_scale": scales.astype(np.float16),
            f"{base}weight_shape": np.array(w.shape, np.int64),
        }
        if not self.symmetric:
            tensors[f"{base}weight_zero_point"] = nibbles(zeros, 0, self.bits)
        if self.activation_order:
            tensors[f"{base}weight_g_idx"] = order.astype(np.int32)
        return tensors, value


class IntQuantized:
    config = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            "input_activations": {"num_bits": 8, "type": "int", "dynamic": True},
        }},
    }

    def __call__(self, w, base, random):
        scale = (np.abs(w).max(1, keepdims=True) / 127.5).astype(bf16)
        q = np.clip(np.round(w / scale.astype(np.float64)), -128, 127)
        return {f"{base}weight": q.astype(np.int8), f"{base}weight_scale": scale}, (
            q * scale.astype(np.float64)
        )


class Fp8:
    """Scales for blocks of 128 x 128, for outputs, or for the matrix."""

    def __init__(self, kind, config):
        self.kind, self.config = kind, config

    def __call__(self, w, base, random):
        n, k = w.shape
        rows, cols = {"block": (128, 128), "channel": (1, k), "tensor": (n, k)}[self.kind]
        row, col = np.arange(n) // rows, np.arange(k) // cols
        scale = np.empty((row.max() + 1, col.max() + 1))
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                scale[i, j] = np.abs(w[np.ix_(row == i, col == j)]).max() / 448
        scale = scale.astype(bf16 if self.kind == "channel" else np.float32)
        each = scale.astype(np.float64)[row][:, col]
        q = np.clip(w / each, -448, 448).astype(f8)
        tensors = {f"{base}weight": q}
        if self.kind == "tensor":
            tensors[f"{base}weight_scale"] = scale.reshape(())
            tensors[f"{base}input_scale"] = np.array(0.5, np.float32)
        else:
            name = "weight_scale_inv" if self.kind == "block" else "weight_scale"
            tensors[f"{base}{name}"] = scale
        return tensors, q.astype(np.float64) * each


class Mlx:
    embeddings = True

    def __init__(self, group, bits):
        self.group, self.bits = group, bits
        self.config = {"group_size": group, "bits": bits}

    def __call__(self, w, base, random):
        weight = mx.array(w.astype(np.float32)).astype(mx.float16)
        q, scales, biases = mx.quantize(weight, group_size=self.group, bits=self.bits)
        q, scales, biases = np.array(q), np.array(scales), np.array(biases)
        codes = (q[..., None] >> np.arange(0, 32, self.bits, dtype=np.uint32)) & (2**self.bits - 1)
        each = lambda x: np.repeat(x.astype(np.float64), self.group, 1)
        value = each(scales) * codes.reshape(w.shape) + each(biases)
        # What MLX itself makes of it, in half precision.
        told = mx.dequantize(
            mx.array(q), mx.array(scales), mx.array(biases), group_size=self.group, bits=self.bits
        )
        assert np.abs(np.array(told).astype(np.float64) - value).max() < 1e-3 * np.abs(value).max()
        return {f"{base}weight": q, f"{base}scales": scales, f"{base}biases": biases}, value


def logits(w, c, ids):
    """Llama in double precision."""
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    norm = lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * g
    angle = np.outer(np.arange(len(ids)), 10000.0 ** (-np.arange(0, dim, 2) / dim))
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def rope(x):
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    p = "model.layers.0."
    y = norm(x, w[p + "input_layernorm.weight"])
    q, k, v = (
        (y @ w[f"{p}self_attn.{n}_proj.weight"].T).reshape(len(ids), -1, dim) for n in "qkv"
    )
    q, k = rope(q), rope(k)
    k, v = (np.repeat(t, heads // kv, 1) for t in (k, v))
    s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
    s = np.where(np.tri(len(ids), dtype=bool), s, -np.inf)
    s = np.exp(s - s.max(-1, keepdims=True))
    y = np.einsum("hij,jhd->ihd", s / s.sum(-1, keepdims=True), v).reshape(len(ids), -1)
    x = x + y @ w[p + "self_attn.o_proj.weight"].T
    y = norm(x, w[p + "post_attention_layernorm.weight"])
    gate, up = y @ w[p + "mlp.gate_proj.weight"].T, y @ w[p + "mlp.up_proj.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def llama(name, make, hidden=64, inter=96, heads=2, head_dim=32):
    random = np.random.default_rng(sum(name.encode()))
    q, kv = heads * head_dim, head_dim
    config = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": 1,
        "head_dim": head_dim, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }
    shapes = {
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    shapes = {f"model.layers.0.{name}.": shape for name, shape in shapes.items()}
    plain = {"model.embed_tokens.": (VOCAB, hidden), "lm_head.": (VOCAB, hidden)}
    tensors, values = {}, {}
    for base, shape in (shapes | plain).items():
        w = random.normal(0, 1 if base == "model.embed_tokens." else 0.25, shape)
        if base in shapes or getattr(make, "embeddings", False):
            made, value = make(w, base, random)
        else:
            made = {f"{base}weight": w.astype(bf16)}
            value = made[f"{base}weight"].astype(np.float64)
        tensors |= made
        values[f"{base}weight"] = value
    for norm in ["model.norm", "model.layers.0.input_layernorm",
                 "model.layers.0.post_attention_layernorm"]:
        values[f"{norm}.weight"] = random.uniform(0.5, 1.5, hidden).astype(bf16).astype(np.float64)
        tensors[f"{norm}.weight"] = values[f"{norm}.weight"].astype(bf16)
    key = "quantization" if isinstance(make, Mlx) else "quantization_config"
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {key: make.config}, indent=1) + "\n")
    save(folder / "model.safetensors", tensors)
    ids = list(random.integers(0, VOCAB, TOKENS))
    want, more = logits(values, config, ids), []
    for _ in range(GREEDY):
        more.append(int(logits(values, config, ids + more)[-1].argmax()))
    save(folder / "golden.safetensors", {
        "input_ids": np.array(ids, np.int64), "greedy": np.array(more, np.int64),
        "logits": want.astype(np.float32),
    })


def gpt_oss():
    """MXFP4 experts, and the same model with these values in bfloat16, where they are exact."""
    random = np.random.default_rng(3)
    hidden, inter, experts, heads, dim = 64, 64, 4, 2, 32
    config = {
        "model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": inter,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": 1,
        "head_dim": dim, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "num_local_experts": experts, "num_experts_per_tok": 2,
        "rope_theta": 10000.0, "sliding_window": 8, "layer_types": ["sliding_attention"],
        "attention_bias": True, "tie_word_embeddings": False, "swiglu_limit": 7.0,
    }
    p = "model.layers.0."
    shared = {
        "model.embed_tokens.weight": (VOCAB, hidden), "lm_head.weight": (VOCAB, hidden),
        "model.norm.weight": (hidden,), f"{p}input_layernorm.weight": (hidden,),
        f"{p}post_attention_layernorm.weight": (hidden,), f"{p}self_attn.sinks": (heads,),
        f"{p}mlp.router.weight": (experts, hidden), f"{p}mlp.router.bias": (experts,),
        f"{p}mlp.experts.gate_up_proj_bias": (experts, 2 * inter),
        f"{p}mlp.experts.down_proj_bias": (experts, hidden),
    }
    for name, n, k in [("q", heads * dim, hidden), ("k", dim, hidden), ("v", dim, hidden),
                       ("o", hidden, heads * dim)]:
        shared[f"{p}self_attn.{name}_proj.weight"] = (n, k)
        shared[f"{p}self_attn.{name}_proj.bias"] = (n,)
    tensors = {name: random.normal(0, 0.3, shape).astype(bf16) for name, shape in shared.items()}
    packed, plain = dict(tensors), dict(tensors)
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = np.concatenate([levels, -levels])
    for name, n, k in [("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)]:
        codes = random.integers(0, 16, (experts, n, k // 32, 32))
        scales = random.integers(121, 126, (experts, n, k // 32)).astype(np.uint8)
        value = levels[codes] * 2.0 ** (scales.astype(np.float64)[..., None] - 127)
        base = f"{p}mlp.experts.{name}"
        packed[f"{base}_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
        packed[f"{base}_scales"] = scales
        plain[base] = np.swapaxes(value.reshape(experts, n, k), 1, 2).astype(bf16)
        assert (plain[base].astype(np.float64).swapaxes(1, 2).reshape(value.shape) == value).all()
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    for name, some, more in [("mxfp4", packed, {"quantization_config": quantized}),
                             ("mxfp4-floats", plain, {})]:
        folder = Path(name)
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | more, indent=1) + "\n")
        save(folder / "model.safetensors", some)


compressed_fp8 = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
    }},
}
llama("gptq-order", Gptq(desc_act=True))
llama("gptq-8-bits", Gptq(bits=8, symmetric=True))
llama("gptq-8-bits-zeros", Gptq(bits=8))
llama("gptq-dynamic", Gptq(dynamic=True), inter=128)
llama("awq-gemv", AwqGemv())
llama("compressed-4-bits", PackQuantized(4, True))
llama("compressed-4-bits-order", PackQuantized(4, False, activation_order=True))
llama("compressed-4-bits-zeros", PackQuantized(4, False))
llama("compressed-8-bits", IntQuantized())
llama("compressed-8-bits-groups", PackQuantized(8, True))
llama("compressed-fp8", Fp8("channel", compressed_fp8))
block = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
llama("fp8-blocks", Fp8("block", block | {"weight_block_size": [128, 128]}), inter=160)
llama("fp8-tensor", Fp8("tensor", {"quant_method": "fp8", "activation_scheme": "static"}))
llama("mlx-4-bits-32", Mlx(32, 4))
llama("mlx-4-bits-64", Mlx(64, 4), inter=128)
llama("mlx-4-bits-128", Mlx(128, 4), hidden=128, inter=128, heads=4)
llama("mlx-8-bits-64", Mlx(64, 8), inter=128)
gpt_oss()
