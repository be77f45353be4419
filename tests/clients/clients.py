"""Tests of `troika serve` by the packages that people use: openai, anthropic, ollama, lm-eval.

    python clients.py URL [--troika FILE] [NAME...]

The server at URL must have the built-in model, no key, and nobody else who uses it. With FILE, the
command, it is also started with flags of its own. A NAME chooses tests that have it in their names.
Each test is a function `test_*` of a module beside this file.
"""

import argparse
import importlib
import sys
import time
import traceback

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


def tests(names, modules):
    """Name and function of every test that was asked for, in the order of the files."""
    for module in modules:
        for name, test in vars(importlib.import_module(module)).items():
            whole = f"{module}.{name.removeprefix('test_')}"
            if name.startswith("test_") and (not names or any(n in whole for n in names)):
                yield whole, test


def place(error):
    """Where the tests, rather than the package they use, were when it failed."""
    here = [
        f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename
    ]
    return f"{here[-1].filename.rsplit('/', 1)[-1]}:{here[-1].lineno}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", metavar="URL")
    parser.add_argument("--troika", metavar="FILE")
    parser.add_argument("names", metavar="NAME", nargs="*")
    options = parser.parse_intermixed_args()
    server, passed, failed = Server(options.url, options.troika), 0, 0
    modules = MODULES + (["own", "life", "templates", "thoughts"] if options.troika else [])
    for name, test in tests(options.names, modules):
        start = time.monotonic()
        try:
            test(server)
        except Exception as error:  # Whatever it is: the other tests go on.
            failed += 1
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAILED {name} ({place(error)}) {why[:600]}", flush=True)
        else:
            passed += 1
            print(f"ok     {name} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
