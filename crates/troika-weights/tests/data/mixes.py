"""Makes mixes.txt: the types that llama-quantize gives to the matrices of some shapes.

usage: mixes.py LLAMA_CPP
Compiles the functions that choose, from the source in that folder, with stand-ins for what they ask.
"""

import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
# Layers, width, inner width, query heads, key heads, experts, tied: as the test has them.
SHAPES = {
    "dense": (28, 1024, 3072, 16, 8, 0, 1),
    "large": (32, 4096, 14336, 32, 8, 0, 0),
    "narrow": (24, 896, 4864, 14, 2, 0, 1),
    "eight": (32, 4096, 14336, 32, 8, 8, 0),
    "many": (20, 2048, 1408, 16, 16, 64, 0),
}
FILES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
    "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21,
    "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ3_M": 27, "IQ2_M": 29, "IQ4_XS": 30,
    "IQ1_M": 31, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38, "Q2_0": 41,
}
HEAD = r"""
#include "ggml.h"
#include "llama.h"
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#define LLAMA_LOG_WARN(...)
static std::string format(const char * f, ...) { return f; }
enum llm_arch { LLM_ARCH_FALCON, LLM_ARCH_OTHER, LLM_ARCH_GLM5_NEXT, LLM_ARCH_BAILINGMOE3 };
enum { LLM_TYPE_70B = 70 };
struct sizes { int n_expert, gqa; int n_gqa() const { return gqa; } };
struct llama_model { llm_arch arch; sizes hparams; int type; };
struct quantize_state_impl {
    const llama_model & model;
    const llama_model_quantize_params * params;
    int n_attention_wv, n_ffn_down, n_ffn_gate, n_ffn_up;
    int i_attention_wv, i_ffn_down, i_ffn_gate, i_ffn_up, n_fallback;
    bool has_imatrix, has_tied_embeddings;
};
static const struct { const char * name; int block; } TYPES[] = {
    {"F32", 1}, {"F16", 1}, {"Q4_0", 32}, {"Q4_1", 32}, {}, {}, {"Q5_0", 32}, {"Q5_1", 32}, {"Q8_0", 32}, {},
    {"Q2_K", 256}, {"Q3_K", 256}, {"Q4_K", 256}, {"Q5_K", 256}, {"Q6_K", 256}, {}, {"IQ2_XXS", 256}, {"IQ2_XS", 256},
    {"IQ3_XXS", 256}, {"IQ1_S", 256}, {"IQ4_NL", 32}, {"IQ3_S", 256}, {"IQ2_S", 256}, {"IQ4_XS", 256}, {}, {}, {},
    {}, {}, {"IQ1_M", 256}, {"BF16", 1}, {}, {}, {}, {"TQ1_0", 256}, {"TQ2_0", 256}, {}, {}, {}, {"MXFP4", 32},
    {"NVFP4", 64}, {"Q1_0", 128}, {"Q2_0", 64}};
extern "C" int64_t ggml_blck_size(enum ggml_type t) { return TYPES[t].block; }
extern "C" const char * ggml_type_name(enum ggml_type t) { return TYPES[t].name; }
extern "C" const char * ggml_get_name(const struct ggml_tensor * t) { return t->name; }
"""
MAIN = r"""
int main(int, char ** v) {
    int n = atoi(v[3]);
    llama_model m{LLM_ARCH_OTHER, {atoi(v[4]), atoi(v[5])}, 0};
    llama_model_quantize_params p{};
    p.output_tensor_type = p.token_embedding_type = GGML_TYPE_COUNT;
    quantize_state_impl q{m, &p, n, n, n, n, 0, 0, 0, 0, 0, v[2][0] == '1', v[6][0] == '1'};
    llama_ftype file = (llama_ftype) atoi(v[1]);
    char name[99];
    long cols, experts;
    while (scanf("%98s %ld %ld", name, &cols, &experts) == 3) {
        ggml_tensor t{};
        strcpy(t.name, name);
        t.ne[0] = cols, t.ne[1] = 8, t.ne[2] = experts;
        ggml_type type = llama_ftype_get_default_type(file);
        type = llama_tensor_get_type_impl(q, type, &t, file, tensor_get_category(name));
        puts(ggml_type_name(tensor_type_fallback(q, &t, type)));
    }
}
"""


def function(text, start):
    """From `start` to the brace that closes its first one."""
    at = text.index(start)
    end, depth = text.index("{", at), 0
    while depth > 0 or text[end] == "{" or text[end - 1] != "}":
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[at:end] + "\n"


def main():
    text = (ROOT / "src/llama-quant.cpp").read_text()
    names = [
        "static bool tensor_name_match_token_embd", "static bool tensor_name_match_output_weight",
        "static tensor_category tensor_get_category", "static bool category_is_attn_v",
        "static ggml_type tensor_type_fallback", "static ggml_type llama_tensor_get_type_impl",
        "ggml_type llama_ftype_get_default_type",
    ]
    code = HEAD + function(text, "enum class tensor_category") + ";\n"
    code += "".join(function(text, name) for name in names) + MAIN
    with tempfile.TemporaryDirectory() as folder, open(Path(__file__).parent / "mixes.txt", "w") as out:
        source, program = Path(folder) / "mix.cpp", Path(folder) / "mix"
        source.write_text(code)
        includes = [f"-I{ROOT / 'ggml/include'}", f"-I{ROOT / 'include'}"]
        subprocess.run(["g++", "-w", *includes, source, "-o", program], check=True)
        for shape, (layers, width, inner, heads, kv, experts, tied) in SHAPES.items():
            roles = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
            tensors = [("token_embd", width, 1)] + [("output", width, 1)] * (1 - tied)
            for layer in range(layers):
                for role in roles:
                    many = experts if role.startswith("ffn") else 1
                    name = f"blk.{layer}.{role}" + "_exps" * (many > 1)
                    tensors.append((name, inner if role == "ffn_down" else width, max(many, 1)))
            lines = "".join(f"{name}.weight {cols} {many}\n" for name, cols, many in tensors)
            for file, number in FILES.items():
                importance = file.startswith(("IQ1", "IQ2")) or file in ("IQ3_XXS", "Q2_K_S")
                call = [number, int(importance), layers, experts, heads // kv, tied]
                types = subprocess.run([program, *map(str, call)], input=lines, capture_output=True, text=True, check=True)
                found = list(zip((name.split(".")[-1].removesuffix("_exps") for name, _, _ in tensors), types.stdout.split()))
                fields = []
                for role in ["token_embd", "output", *roles]:
                    runs = itertools.groupby(t for name, t in found if name == role)
                    fields.append(role + "=" + ",".join(f"{t}*{len(list(all))}" for t, all in runs))
                out.write(f"{shape} {file} {' '.join(f for f in fields if f[-1] != '=')}\n")


main()
