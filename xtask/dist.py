"""Makes the files of a release in target/dist: for each target an archive of the command and a Python
wheel that holds it, each with its SHA-256.

`cargo xtask dist --help` runs it with the packages that it needs: maturin and ziglang. A commit gives
the same bytes wherever it is built: folders of the machine are mapped to names, and every file has
the commit's time. Zig links, so that no old system is needed for an old glibc. A static musl would
not do: it could not load Vulkan, ONNX Runtime or OpenVINO.
"""

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

sys.dont_write_bytecode = True
import starts  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "target/dist"
WORK = OUT / "work"
# The oldest glibc that Rust's standard library runs on.
GLIBC = "manylinux_2_17"
# What Zig links on Linux. Apple's frameworks are not among it: a Mac makes its own files.
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-pc-windows-gnu"]
# What is not to be used is made in less time.
QUICK = {"OPT_LEVEL": "0", "DEBUG": "false", "STRIP": "true", "INCREMENTAL": "false"}
COMPLETIONS = {
    "bash": "troika.bash",
    "zsh": "_troika",
    "fish": "troika.fish",
    "powershell": "troika.ps1",
    "elvish": "troika.elv",
}
# Collects licences, which takes minutes. So git keeps what it wrote.
ABOUT = "cargo-about@0.9.3"
LICENCES = ROOT / "LICENSE-THIRD-PARTY"


def text(*command):
    """What a command prints."""
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(f"`{' '.join(map(str, command))}` failed")
    return done.stdout.strip()


def release():
    """The version and the commit, which a changed file marks, and the commit's time. Sources without
    their history have neither."""
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    version = manifest["workspace"]["package"]["version"]
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text().splitlines():
        sys.exit(f"CHANGELOG.md has no section `## {version}`: write what changed for users")
    if not (ROOT / ".git").exists():
        # The first time that a zip file can tell.
        return version, "unknown", 315_532_800
    commit = text("git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty")
    return version, commit, int(text("git", "log", "-1", "--format=%ct"))


def collect_licences():
    """Writes the licences of all crates that the command holds on a target."""
    about = OUT / "tools/bin/cargo-about"
    if not about.exists():
        text("cargo", "install", "-q", "--locked", "--debug", "--root", OUT / "tools",
             "--features", "cli", ABOUT)  # fmt: skip
    text(about, "generate", "--offline", "--fail", "-c", ROOT / "xtask/licences.toml",
         "-m", ROOT / "crates/troika-cli/Cargo.toml", "-o", LICENCES,
         ROOT / "xtask/licences.hbs")  # fmt: skip


def check_licences(target):
    """Checks that the licences are those of the crates of today."""
    tree = text("cargo", "tree", "--locked", "-p", "troika-cli", "-e", "normal", "--target", target,
                "--prefix", "none", "--format", "{p}")  # fmt: skip
    # A crate of this project has its folder behind its name and version.
    crates = {line.split(" ")[0] + " " + line.split(" ")[1][1:] for line in tree.splitlines()
              if f"({ROOT}" not in line}  # fmt: skip
    listed = {line.strip() for line in LICENCES.read_text().splitlines()}
    if missing := sorted(crates - listed):
        sys.exit(f"{LICENCES.name} lacks {', '.join(missing)}: run `cargo xtask dist --licences`")


def build(target, host, commit, seconds, quick):
    """Builds the command and its wheel."""
    folders = {
        os.environ.get("CARGO_HOME", Path.home() / ".cargo"): "/cargo",
        text("rustc", "--print", "sysroot"): "/rust",
        ROOT: "/troika",
    }
    flags = [f"--remap-path-prefix={folder}={name}" for folder, name in folders.items()]
    maps = [f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items()]
    env = os.environ | {
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags),
        "CARGO_TARGET_DIR": str(ROOT / "target"),
        "CFLAGS": " ".join(maps),
        # Where Maturin looks for Zig.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": str(seconds),
        "TROIKA_COMMIT": commit,
    }
    if quick:
        env |= {f"CARGO_PROFILE_DEV_{key}": value for key, value in QUICK.items()}
    command = [sys.executable, "-m", "maturin", "build", "--locked", "--target", target,
               "--out", WORK / "wheels"]  # fmt: skip
    if not quick:
        command.append("--release")
    if "linux" in target or target != host:
        command.append("--zig")
    command += ["--compatibility", GLIBC if "linux" in target else "off"]
    command += ["--compression-level", "9"]
    shutil.rmtree(WORK / "wheels", ignore_errors=True)
    if subprocess.run(command, cwd=ROOT, env=env).returncode:
        sys.exit(f"the build for {target} failed")
    (wheel,) = (WORK / "wheels").iterdir()
    binary = "troika.exe" if "windows" in target else "troika"
    return ROOT / "target" / target / ("debug" if quick else "release") / binary, wheel


def pages(binary):
    """Writes what a shell and `man` read, as the command of this machine prints it."""
    for folder in ["completions", "man"]:
        shutil.rmtree(WORK / folder, ignore_errors=True)
        (WORK / folder).mkdir()
    for shell, name in COMPLETIONS.items():
        (WORK / "completions" / name).write_text(text(binary, "completions", shell) + "\n")
    text(binary, "man", WORK / "man")


def archive(binary, name, seconds):
    """Packs the command with its papers: a zip file for Windows, else a tar file."""
    papers = [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("LICENSE-*")]
    papers += [ROOT / "Containerfile"] * ("linux" in name)
    files = {path.name: path for path in [binary, *papers]}
    for folder in ["completions", "man"]:
        files |= {f"{folder}/{path.name}": path for path in (WORK / folder).iterdir()}
    files = {f"{name}/{inner}": path.read_bytes() for inner, path in sorted(files.items())}
    if binary.suffix == ".exe":
        packed = OUT / f"{name}.zip"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
            for inner, content in files.items():
                out.writestr(zipfile.ZipInfo(inner, time.gmtime(seconds)[:6]), content,
                             zipfile.ZIP_DEFLATED)  # fmt: skip
        return packed
    packed = OUT / f"{name}.tar.gz"
    with (packed.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=seconds) as zipped,
          tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as out):  # fmt: skip
        for inner, content in files.items():
            info = tarfile.TarInfo(inner)
            info.size, info.mtime = len(content), seconds
            info.mode = 0o755 if inner == f"{name}/{binary.name}" else 0o644
            out.addfile(info, io.BytesIO(content))
    return packed


def main():
    parser = argparse.ArgumentParser(prog="cargo xtask dist", description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="for all targets, instead of this machine's")
    parser.add_argument("--quick", action="store_true",
                        help="without optimizing, to check that the files can be made and start here")  # fmt: skip
    parser.add_argument("--twice", action="store_true",
                        help="make the same in a clone in another folder, and compare the bytes")  # fmt: skip
    parser.add_argument("--licences", action="store_true", help=f"write {LICENCES.name} anew, and stop")
    parser.add_argument("--no-start", action="store_true", help="do not start what was made")
    args = parser.parse_args()
    if args.licences:
        return collect_licences()
    version, commit, seconds = release()
    host = next(line[6:] for line in text("rustc", "-vV").splitlines() if line.startswith("host: "))
    targets = [host, *(t for t in TARGETS if args.all and t != host)]
    for target in targets:
        check_licences(target)
    OUT.mkdir(parents=True, exist_ok=True)
    digests = []
    for target in targets:
        binary, wheel = build(target, host, commit, seconds, args.quick)
        if target == host:
            pages(binary)
        made = [archive(binary, f"troika-{version}-{target}", seconds), OUT / wheel.name]
        wheel.replace(made[1])
        for path in made:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
            print(f"{path.stat().st_size / 1e6:.1f} MB  {digest[:16]}  {path.name}")
            digests.append(path.with_name(path.name + ".sha256"))
        if not args.no_start and (target == host or not args.quick):
            starts.from_archive(target, binary, None if args.quick else WORK)
    if not args.no_start:
        starts.from_wheel(next(OUT.glob(f"*{host.split('-')[0]}*.whl")))
    if args.twice:
        compare(digests)


def compare(digests):
    """Makes the files again in a clone, and compares their digests."""
    with tempfile.TemporaryDirectory() as folder:
        text("git", "clone", "-q", ROOT, f"{folder}/clone")
        again = [arg for arg in sys.argv[1:] if arg != "--twice"] + ["--no-start"]
        text(sys.executable, f"{folder}/clone/xtask/dist.py", *again)
        for digest in digests:
            if digest.read_text() != Path(folder, "clone/target/dist", digest.name).read_text():
                sys.exit(f"{digest.stem} has other bytes when it is made again")
    print(f"the same bytes twice: {len(digests)} files")


main()
