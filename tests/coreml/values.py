"""Computes what a Core ML package gives by coremltools' own code: usage: values.py PACKAGE RUNS

RUNS has a folder `NUMBER-FUNCTION` for each run, in their order, all of one sequence whose states
begin as zeros. There, `NAME.in` has the bytes of an input, and `NAME.out` those of an output which
something else computed. For each output one line says how far that is off, and the largest value:
`RUN NAME: FAR of MOST`. The last lines say how many operations coremltools computed (where it folds
constants, or makes numbers of compressed weights), and how many formulas of this file did.
"""

import os
import sys
from collections import Counter
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
import coremltools as ct
import numpy as np
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import types


def silu(op):
    x = op.x.val.astype(np.float32)
    return x / (1 + np.exp(-x))


def conv(op):
    """Of one by one, which is a product of channels."""
    weight, x = op.weight.val.astype(np.float32), op.x.val.astype(np.float32)
    plain = [*weight.shape[2:], *op.strides.val, *op.dilations.val, op.groups.val]
    if set(plain) != {1} or op.pad_type.val not in ("valid", "same"):
        raise ValueError(f"{op.name}: the formula is for convolutions of one by one")
    result = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], x)
    return result if op.bias is None else result + op.bias.val[:, None, None]


# What coremltools does not fold.
FORMULAS = {"conv": conv, "silu": silu}


def set_value(var, value):
    """A variable has a value, of its declared type."""
    of = types.nptype_from_builtin(var.dtype)
    value = np.asarray(value).astype(of)
    if types.is_tensor(var.sym_type):
        declared = var.sym_type.get_shape()
        fits = [d == v for d, v in zip(declared, value.shape) if not types.symbolic.is_symbolic(d)]
        if len(declared) != len(value.shape) or not all(fits):
            raise ValueError(f"{var.name}: {value.shape} is not {declared}")
        var._sym_type = types.tensor(var.dtype, value.shape)
    else:
        value = value.reshape(())[()]
    var._sym_val = var.sym_type()
    var._sym_val.val = value


def compute(op, states, counts):
    kind = op.op_type
    if kind == "read_state":
        result = states[op.input.name].copy()
    elif kind == "coreml_update_state":
        result = states[op.state.name] = op.value.val.copy()
    elif kind in FORMULAS:
        counts["formulas"][kind] += 1
        result = FORMULAS[kind](op)
    else:
        counts["coremltools"][kind] += 1
        folds = not kind.startswith("constexpr_")
        result = op.value_inference() if folds else op.materialized_val_inference()
        if result is None:
            raise ValueError(f"{op.name}: coremltools gives no value of {kind}")
    for var, value in zip(op.outputs, result if isinstance(result, tuple) else [result]):
        set_value(var, value)


def read(package):
    data = Path(package) / "Data/com.apple.CoreML"
    spec = ct.utils.load_spec(package)
    version, weights = spec.specificationVersion, str(data / "weights")
    return load(spec, specification_version=version, file_weights_dir=weights)


def main(package, runs):
    program, states = read(package), {}
    counts = {"coremltools": Counter(), "formulas": Counter()}
    folders = sorted(Path(runs).iterdir(), key=lambda folder: int(folder.name.split("-")[0]))
    for run in folders:
        function = program.functions[run.name.split("-", 1)[1]]
        for name, var in function.inputs.items():
            if types.is_state(var.sym_type):
                held = var.sym_type.wrapped_type()
                of = types.nptype_from_builtin(held.get_primitive())
                states.setdefault(name, np.zeros(held.get_shape(), of))
            else:
                of = types.nptype_from_builtin(var.dtype)
                set_value(var, np.fromfile(run / f"{name}.in", of).reshape(var.shape))
        for op in function.operations:
            if op.op_type != "const":
                compute(op, states, counts)
            elif isinstance(op.outputs[0].val, np.bool_):
                # As `keepdims` numpy takes no other.
                op.outputs[0]._sym_val.val = bool(op.outputs[0].val)
        for var in function.outputs:
            value = var.val.astype(np.float32)
            other = np.fromfile(run / f"{var.name}.out", var.val.dtype).reshape(value.shape)
            far = np.abs(value - other.astype(np.float32)).max()
            print(f"{run.name} {var.name}: {far} of {np.abs(value).max()}")
    for by, ops in counts.items():
        print(f"by {by}: " + " ".join(f"{op}={n}" for op, n in sorted(ops.items())))


main(*sys.argv[1:])
