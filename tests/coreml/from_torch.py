"""Converts a small decoder from PyTorch by coremltools and prints the operations of its program:
usage: from_torch.py >from_torch.txt

The decoder has the structure of tests/golden/llama-3.2: embeddings, norms of squares, rotary
positions, grouped queries, key and value caches that are states, a gated MLP, and a head. The lines
are those that operations.py reads. No test needs torch: they read from_torch.txt, which is of torch
2.7.0 and coremltools 9.0.
"""

import os

os.environ["TQDM_DISABLE"] = "1"
import coremltools as ct
import numpy as np
import torch
from coremltools.optimize import coreml
from torch import nn
from torch.nn import functional as F

from operations import ELSEWHERE, lines, used

LAYERS, HIDDEN, HEADS, GROUPS, DIM, MLP, VOCABULARY, POSITIONS = 2, 96, 8, 4, 32, 192, 320, 64


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(HIDDEN))

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.weight


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda rows, columns: nn.Linear(columns, rows, bias=False)
        self.q, self.o = linear(HEADS * DIM, HIDDEN), linear(HIDDEN, HEADS * DIM)
        self.k, self.v = linear(GROUPS * DIM, HIDDEN), linear(GROUPS * DIM, HIDDEN)
        self.gate, self.up = linear(MLP, HIDDEN), linear(MLP, HIDDEN)
        self.down = linear(HIDDEN, MLP)
        self.before, self.after = Norm(), Norm()


def rotated(x, cos, sin):
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Decoder(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.embeddings = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        turns = torch.arange(DIM // 2) / (DIM // 2)
        angles = torch.arange(POSITIONS)[:, None] * 10_000.0**-turns
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for name in ["key_cache", "value_cache"]:
            self.register_buffer(name, torch.zeros(LAYERS, GROUPS, POSITIONS, DIM))

    def attention(self, i, x, at, end, mask):
        layer, rows = self.layers[i], self.rows
        cos, sin = self.cos[at:end], self.sin[at:end]
        split = lambda x, heads: x.reshape(rows, heads, DIM).transpose(0, 1)
        q = rotated(split(layer.q(x), HEADS), cos, sin)
        self.key_cache[i, :, at:end] = rotated(split(layer.k(x), GROUPS), cos, sin)
        self.value_cache[i, :, at:end] = split(layer.v(x), GROUPS)
        keys, values = self.key_cache[i], self.value_cache[i]
        q = q.reshape(GROUPS, HEADS // GROUPS * rows, DIM) * DIM**-0.5
        scores = (q @ keys.transpose(1, 2)).reshape(HEADS, rows, POSITIONS) + mask
        scores = scores.softmax(-1).reshape(GROUPS, HEADS // GROUPS * rows, POSITIONS)
        mixed = (scores @ values).reshape(HEADS, rows, DIM).transpose(0, 1)
        return layer.o(mixed.reshape(rows, HEADS * DIM))

    def forward(self, input_ids, position, mask, last_row):
        x = self.embeddings(input_ids)[0]
        at = position[0]
        end = at + self.rows
        for i, layer in enumerate(self.layers):
            x = x + self.attention(i, layer.before(x), at, end, mask)
            of = layer.after(x)
            x = x + layer.down(F.silu(layer.gate(of)) * layer.up(of))
        return self.head(self.norm(torch.index_select(x, 0, last_row)))


class Others(nn.Module):
    """Operations that packages have and the decoder has not."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.channels = nn.Conv2d(HIDDEN, HIDDEN, 1, bias=False)

    def forward(self, x):
        x = self.second(self.first(x))
        x = self.channels(x.t()[None, :, None, :])[0, :, 0].t()
        x = x / torch.maximum(x.abs().amax(-1, keepdim=True), torch.ones(1))
        x = F.gelu(x) + F.gelu(x, approximate="tanh") + F.relu(x) + F.softplus(x).sqrt()
        return torch.pow(x, 2) + torch.exp(x) + torch.tanh(x).clamp(-0.5, 0.5) + torch.sigmoid(x)


def converted(module, inputs, output, states=()):
    """The program of a module whose inputs are of these shapes and types."""
    torch_types = {np.int32: torch.int32, np.float16: torch.float32}
    zeros = [torch.zeros(shape, dtype=torch_types[of]) for shape, of in inputs.values()]
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), zeros)
    cache = ct.TensorType(shape=(LAYERS, GROUPS, POSITIONS, DIM), dtype=np.float16)
    return ct.convert(
        traced,
        inputs=[ct.TensorType(name, shape, dtype=of) for name, (shape, of) in inputs.items()],
        outputs=[ct.TensorType(output, dtype=np.float16)],
        states=[ct.StateType(cache, name=name) for name in states],
        minimum_deployment_target=ct.target.iOS18,
        convert_to="mlprogram",
        skip_model_load=True,
    )


def decoder():
    rows = 8
    inputs = {
        "input_ids": ((1, rows), np.int32),
        "position": ((1,), np.int32),
        "mask": ((rows, POSITIONS), np.float16),
        "last_row": ((1,), np.int32),
    }
    return converted(Decoder(rows), inputs, "logits", ["key_cache", "value_cache"])


def others():
    """With weights of four and eight bits."""
    package = converted(Others(), {"x": ((8, HIDDEN), np.float16)}, "y")
    form = {"mode": "linear_symmetric", "weight_threshold": 0}
    bits4 = coreml.OpLinearQuantizerConfig(dtype="int4", granularity="per_block", **form)
    bits8 = coreml.OpLinearQuantizerConfig(dtype="int8", granularity="per_channel", **form)
    named = {"first_weight_to_fp16": bits4, "second_weight_to_fp16": bits8}
    config = coreml.OptimizationConfig(op_name_configs=named)
    return coreml.linear_quantize_weights(package, config)


if __name__ == "__main__":
    first, second = used(decoder().get_spec()), used(others().get_spec())
    for line in lines(first):
        print(line)
    for line in lines({kind: inputs for kind, inputs in second.items() if kind not in first}):
        print(ELSEWHERE + line)
