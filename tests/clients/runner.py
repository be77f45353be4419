"""Runs tests one after the other, and prints a line for each. Needs no package."""

import importlib
import time
import traceback


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


def run(found, *arguments):
    """Does the tests, each with the arguments. Returns the exit code."""
    passed = failed = 0
    for name, test in found:
        start = time.monotonic()
        try:
            test(*arguments)
        except Exception as error:  # Whatever it is: the other tests go on.
            failed += 1
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAILED {name} ({place(error)}) {why[:600]}", flush=True)
        else:
            passed += 1
            print(f"ok     {name} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0
