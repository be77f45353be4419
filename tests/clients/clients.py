"""Tests of `troika serve` by the packages that people use: openai, anthropic, ollama, lm-eval.

    python clients.py URL [--troika FILE] [NAME...]

The server at URL must have the built-in model, no key, and nobody else who uses it. With FILE, the
command, it is also started with flags of its own. A NAME chooses tests that have it in their names.
Each test is a function `test_*` of a module beside this file.
"""

import argparse
import sys

from runner import run, tests
from support import Server

MODULES = [
    "edge",
    "fields",
    "tokens",
    "chat",
    "sampling",
    "structure",
    "calls",
    "completions",
    "llama_cpp",
    "responses",
    "embeddings",
    "messages",
    "ollama_chat",
    "ollama_models",
    "many",
    "soak",
    "metrics",
    "evaluation",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--troika", metavar="FILE")
    parser.add_argument("names", metavar="NAME", nargs="*")
    options = parser.parse_intermixed_args()
    modules = MODULES + (["own", "life", "templates", "thoughts"] if options.troika else [])
    return run(tests(options.names, modules), Server(options.url, options.troika))


if __name__ == "__main__":
    sys.exit(main())
