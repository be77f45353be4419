"""Makes this checkpoint and its reference: `python3 make.py`, with numpy.

A decaying sum as mixer is two lines: `s = decay * s + in(n)` for each position, `x += out(s)`. Every third layer attends.
"""
import json
import struct
from pathlib import Path

import numpy as np

C = {
    "model_type": "test_recurrent", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "full_attention_interval": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "state_size": 80, "decay": 0.75, "hidden_act": "silu",
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "eos_token_id": 256,
}
H, D, HEADS, KV, STATE = 64, 16, 4, 2, 80
rng = np.random.default_rng(59)


def weights():
    def matrix(n, k):
        return (rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)

    def vector(n):
        return (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)

    w = {"model.embed_tokens.weight": matrix(257, H), "model.norm.weight": vector(H)}
    for i in range(C["num_hidden_layers"]):
        p = f"model.layers.{i}."
        w |= {p + "input_layernorm.weight": vector(H), p + "post_attention_layernorm.weight": vector(H)}
        if attends(i):
            w |= {p + f"self_attn.{n}_proj.weight": matrix(r, H) for n, r in [("q", HEADS * D), ("k", KV * D), ("v", KV * D)]}
            w[p + "self_attn.o_proj.weight"] = matrix(H, HEADS * D)
        else:
            w |= {p + "mixer.in_proj.weight": matrix(STATE, H), p + "mixer.out_proj.weight": matrix(H, STATE)}
        w |= {p + f"mlp.{n}_proj.weight": matrix(96, H) for n in ["gate", "up"]}
        w[p + "mlp.down_proj.weight"] = matrix(H, 96)
    return w


def attends(i):
    return (i + 1) % C["full_attention_interval"] == 0


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def rope(x):
    t, half = np.arange(x.shape[0])[:, None, None], D // 2
    angle = t / 10000.0 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(n, get):
    t = len(n)
    q, k = [rope((n @ get(f"self_attn.{m}_proj").T).reshape(t, -1, D)) for m in "qk"]
    v = (n @ get("self_attn.v_proj").T).reshape(t, -1, D)
    k, v = [np.repeat(m, HEADS // KV, 1) for m in (k, v)]
    s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(D) + np.triu(np.full((t, t), -np.inf), 1)
    p = np.exp(s - s.max(-1, keepdims=True))
    o = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(t, -1)
    return o @ get("self_attn.o_proj").T


def decaying_sum(n, get):
    s, sums = np.zeros(STATE), []
    for v in n @ get("mixer.in_proj").T:
        s = C["decay"] * s + v
        sums.append(s)
    return np.array(sums) @ get("mixer.out_proj").T


def logits(w, ids):
    x = w["model.embed_tokens.weight"][ids]
    for i in range(C["num_hidden_layers"]):
        def get(name):
            return w[f"model.layers.{i}.{name}.weight"]

        x = x + (attention if attends(i) else decaying_sum)(norm(x, get("input_layernorm")), get)
        n = norm(x, get("post_attention_layernorm"))
        g = n @ get("mlp.gate_proj").T
        x = x + (g / (1 + np.exp(-g)) * (n @ get("mlp.up_proj").T)) @ get("mlp.down_proj").T
    return norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T


def save(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        dtype = {"float32": "F32", "int64": "I64"}[str(t.dtype)]
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(t.tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def tokenizer():
    """Bytes as tokens, named as byte-level tokenizers name them, and an end."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    names = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {names[b]: b for b in range(256)} | {"<end>": 256}, "merges": []},
    }


here = Path(__file__).parent
w = weights()
exact = {name: t.astype(np.float64) for name, t in w.items()}
ids = rng.integers(3, 257, 43)
all_ids = list(ids)
for _ in range(16):
    all_ids.append(int(logits(exact, np.array(all_ids))[-1].argmax()))
save(here / "model.safetensors", w)
save(here / "golden.safetensors", {
    "input_ids": ids.astype(np.int64), "logits": logits(exact, ids).astype(np.float32),
    "greedy": np.array(all_ids[43:], np.int64),
})
(here / "config.json").write_text(json.dumps(C, indent=2) + "\n")
(here / "tokenizer.json").write_text(json.dumps(tokenizer(), indent=1) + "\n")
