"""Starts the command of an archive as a user would, on a system with nothing installed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

PROMPT = "It was a dark night"
# Emulated processors are slow.
PATIENCE = 600


def bare_debian(folder, arch, foreign):
    """A root folder of Debian 11, whose glibc is of 2020. Made once."""
    if not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--arch={arch}"]
        command += ["--foreign"] * foreign + ["bullseye", str(folder)]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"`{' '.join(command)}` failed")
        (folder / "made").touch()
    return folder


def runner(target, roots):
    """How a command of a target is started here: a folder to put it in, and words to put before it.
    None if something is missing, which is said. Without a folder for roots, this machine starts it."""
    arch = target.split("-")[0]
    if not roots:
        return Path(tempfile.gettempdir()), []
    if "windows" in target:
        if wine := shutil.which("wine64") or shutil.which("wine"):
            return Path(tempfile.gettempdir()), [wine]
        need = "wine64"
    elif "linux" in target and arch == os.uname().machine:
        if os.geteuid() == 0 and shutil.which("debootstrap"):
            root = bare_debian(roots / "amd64", "amd64", False)
            return root / "tmp", ["chroot", str(root)]
        need = "debootstrap, and the rights of root"
    elif "linux" in target:
        if shutil.which("debootstrap") and (qemu := shutil.which(f"qemu-{arch}")):
            root = bare_debian(roots / "arm64", "arm64", True)
            return root / "tmp", [qemu, "-L", str(root)]
        need = f"debootstrap and qemu-user"
    else:
        need = "the system itself"
    print(f"not started: {target} (needs {need})")
    return None


def check(what, holds, said):
    if not holds:
        sys.exit(f"{what}: {said.strip()[-2000:]}")


def start(words, env):
    """Starts a command of each kind. `words` start it without arguments."""

    def run(*args):
        begin = time.time()
        done = subprocess.run([*words, *args], env=env, text=True, errors="replace", timeout=PATIENCE,
                              stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        check(f"troika {args[0]}", done.returncode == 0, done.stdout + done.stderr)
        return done.stdout, time.time() - begin

    version, took = run("--version")
    check("--version", "commit: " in version, version)
    print(f"  --version: {took:.2f} s: {', '.join(version.splitlines())}")
    story, took = run("run", "-p", PROMPT, "-n", "16", "--seed", "1")
    check("run", len(story.strip()) > 8, story)
    print(f"  run: {took:.2f} s: {' '.join(story.split())}")
    print(f"  doctor: {run('doctor')[0].strip().splitlines()[-1]}")
    print(f"  serve: {chat(words, env)}")


def chat(words, env):
    """The answer of a server to a message."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16, "seed": 1}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*words, "serve", "--port", str(port)], env=env,
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # fmt: skip
        try:
            for _ in range(PATIENCE):
                try:
                    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                        return json.load(answer)["choices"][0]["message"]["content"].strip()
                except OSError as e:
                    last = e
                    check("troika serve", server.poll() is None, "ended")
                    time.sleep(1)
            sys.exit(f"troika serve: no answer: {last}")
        finally:
            server.terminate()
            server.wait()


def random_numbers(folder):
    """Makes the library of Windows 10 that Wine 8 lacks, from one that it has."""
    source = folder / "bcryptprimitives.c"
    source.write_text("""
        __declspec(dllimport) unsigned char SystemFunction036(void *, unsigned long);
        __declspec(dllexport) int ProcessPrng(void *to, unsigned long long bytes) {
            return SystemFunction036(to, bytes);
        }
    """)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared",
               "-o", source.with_suffix(".dll"), source, "-ladvapi32"]  # fmt: skip
    subprocess.run(command, check=True)


def from_archive(target, binary, roots):
    """Starts a target's command, where that can be done here. Its home cannot be written."""
    if not (found := runner(target, roots)):
        return
    folder, words = found
    print(f"{target}, started by `{' '.join(words) or 'this machine'}`:")
    copy = Path(tempfile.mkdtemp(dir=folder)) / binary.name
    shutil.copy(binary, copy)
    copy.parent.chmod(0o755)
    inside = f"/tmp/{copy.parent.name}/{copy.name}" if words[:1] == ["chroot"] else str(copy)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/none"}
    if copy.suffix == ".exe":
        env = {"PATH": "/usr/bin:/bin", "HOME": str(copy.parent), "WINEDEBUG": "-all"}
        random_numbers(copy.parent)
    try:
        start([*words, inside], env)
    finally:
        # Wine's server still writes there for a while.
        shutil.rmtree(copy.parent, ignore_errors=True)


def from_wheel(wheel):
    """Installs a wheel into an empty environment, and completes a text."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        begin = time.time()
        pip = [f"{folder}/bin/pip", "install", "-q", "--no-index", str(wheel)]
        run = [f"{folder}/bin/troika", "run", "-p", PROMPT, "-n", "16", "--seed", "1"]
        for command in [pip, run]:
            done = subprocess.run(command, text=True, capture_output=True, env={"HOME": "/none"})
            check(command[0], done.returncode == 0, done.stdout + done.stderr)
        print(f"{wheel.name}: installed and run in {time.time() - begin:.1f} s")
