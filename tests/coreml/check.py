"""Reads Core ML packages as coremltools does: usage: check.py PACKAGE...

For each, one line: `PACKAGE: ok FUNCTION: OP=COUNT ...;...`, or `PACKAGE: refused: WHY`. Every op is
built again, so that coremltools infers its types and shapes, and they must be the declared ones.
"""

import os
import sys
from collections import Counter
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
import coremltools as ct
from coremltools.converters.mil.frontend.milproto.load import load


def read(package):
    data = Path(package) / "Data/com.apple.CoreML"
    spec = ct.utils.load_spec(package)
    program = load(
        spec,
        specification_version=spec.specificationVersion,
        file_weights_dir=str(data / "weights"),
    )
    counts = []
    for name, function in program.functions.items():
        ops = Counter(op.op_type for op in function.operations)
        ops.pop("const", None)
        counts.append(name + ": " + " ".join(f"{op}={n}" for op, n in sorted(ops.items())))
    return "; ".join(counts)


for package in sys.argv[1:]:
    try:
        print(f"{package}: ok {read(package)}")
    except Exception as error:
        print(f"{package}: refused: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
