"""How a Core ML package uses operations otherwise than programs that coremltools converts: usage:
operations.py LIST PACKAGE

LIST is from_torch.txt, what from_torch.py printed: a line `OP: INPUT ...` for each operation, with
`elsewhere ` before those that the converted decoder has not. An input is `NAME?` if not every
operation binds it, and `NAME=TYPE[RANK]` if each binds a constant. One line is printed for each
difference. Inputs that carry data may have any type and rank.
"""

import os
import sys
from collections import Counter, defaultdict

os.environ["TQDM_DISABLE"] = "1"
import coremltools as ct
from coremltools import proto

ELSEWHERE = "elsewhere "


def type_of(value_type):
    of = value_type.tensorType
    return f"{proto.MIL_pb2.DataType.Name(of.dataType).lower()}[{of.rank}]"


def used(spec):
    """What a package's programs bind: for each operation and input, whether all bind it, and the
    types of constants, if it is always one."""
    counts, inputs = Counter(), defaultdict(lambda: defaultdict(list))
    for function in spec.mlProgram.functions.values():
        constants = {}
        for op in function.block_specializations[function.opset].operations:
            if op.type == "const" or op.type.startswith("constexpr_"):
                constants[op.outputs[0].name] = type_of(op.outputs[0].type)
            if op.type == "const":
                continue
            counts[op.type] += 1
            for name, argument in op.inputs.items():
                inputs[op.type][name].append({
                    constants.get(bound.name) if bound.name else type_of(bound.value.type)
                    for bound in argument.arguments
                })
    found = {}
    for kind in counts:
        types = {name: set.union(*all_types) for name, all_types in inputs[kind].items()}
        found[kind] = {
            name: (len(inputs[kind][name]) == counts[kind], None if None in of else of)
            for name, of in types.items()
        }
    return found


def lines(found):
    for kind, inputs in sorted(found.items()):
        words = []
        for name, (always, types) in sorted(inputs.items()):
            types = "=" + "|".join(sorted(types)) if types else ""
            words.append(name + ("" if always else "?") + types)
        yield f"{kind}: {' '.join(words)}"


def parse(text):
    """The operations of such lines, and those of the decoder."""
    found, of_decoder = {}, set()
    for line in text.splitlines():
        kind, _, words = line.removeprefix(ELSEWHERE).partition(": ")
        if not line.startswith(ELSEWHERE):
            of_decoder.add(kind)
        found[kind] = {}
        for word in words.split():
            name, _, types = word.partition("=")
            types = set(types.split("|")) if types else None
            found[kind][name.removesuffix("?")] = (not name.endswith("?"), types)
    return found, of_decoder


def differences(ours, theirs, of_decoder):
    for kind, inputs in sorted(ours.items()):
        if kind not in theirs:
            yield f"{kind}: is never converted"
            continue
        if kind not in of_decoder:
            yield f"{kind}: is not in the decoder"
        for name in sorted({*inputs, *theirs[kind]}):
            always, types = inputs.get(name, (False, None))
            always_there, types_there = theirs[kind].get(name, (False, None))
            if name not in theirs[kind]:
                yield f"{kind}: {name} is not bound there"
            elif always_there and not always:
                yield f"{kind}: {name} is always bound there"
            elif types_there and not (types and types <= types_there):
                here = "|".join(sorted(types)) if types else "no constant"
                yield f"{kind}: {name} is {here}, there {'|'.join(sorted(types_there))}"


if __name__ == "__main__":
    with open(sys.argv[1]) as text:
        theirs = parse(text.read())
    for line in differences(used(ct.utils.load_spec(sys.argv[2])), *theirs):
        print(line)
