"""Tests of `troika serve` by the libraries that programs are made of, and of the page that says how
each program is connected.

    python programs.py TROIKA PROGRAMS [NAME...]

starts a server by the command TROIKA: the built-in model's weights, with a chat template that has
tools. PROGRAMS is where `.ci/programs` installed the libraries. A NAME chooses tests that have it in
their names. What counts is that every request is answered and every answer is read to its end.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from runner import run, tests

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs/programs.md"
# The address in the page's blocks.
SHOWN = "http://127.0.0.1:8080"
# A line that -v prints for a request.
LINE = re.compile(r"\b(GET|HEAD|POST|PUT|DELETE|OPTIONS) (/\S*) ([1-5]\d\d)\b")


def model_with_tools(folder):
    """A folder model that is told its tools: the built-in weights, Qwen3's template."""
    folder = Path(folder)
    for file in (ROOT / "models/tiny-moe").iterdir():
        if file.suffix == ".json" or file.suffix == ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    # The prompts of agents are long.
    config["max_position_embeddings"] = 32768
    (folder / "config.json").write_text(json.dumps(config))
    published = json.loads((ROOT / "crates/troika-model/tests/chat/expected.json").read_text())
    # A model that knows no end would think for ever.
    template = published["templates"]["Qwen-Qwen3-0.6B"].replace("think>", "aside>")
    (folder / "chat_template.jinja").write_text(template)
    return folder


class Watched:
    """A server, and the lines that it prints for its requests."""

    def __init__(self, troika, *arguments):
        command = [troika, "serve", *arguments, "--port", "0", "-v"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url, self.requests, self.lines = None, [], []
        while not self.url:
            line = self.process.stderr.readline()
            assert line, "the server ended before it listened"
            if found := re.search(r"http://[\d.]+:\d+", line):
                self.url = found[0]
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if found := LINE.search(line):
                self.requests.append((f"{found[1]} {found[2].split('?')[0]}", int(found[3])))

    def refused(self, expected=()):
        """Requests that were refused or failed, except for the expected ones."""
        return [r for r in self.requests if r[1] >= 400 and r not in expected]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def page():
    """The page's blocks by heading: the path that is named above each, its fence, and its text."""
    found, heading, path = {}, None, None
    for part in re.split(r"^(#+ .*|`\S+`:|```[\s\S]*?^```)$", PAGE.read_text(), flags=re.MULTILINE):
        if part.startswith("#"):
            heading = part.strip("# ")
        elif part.startswith("```"):
            fence, text = part.removesuffix("```").split("\n", 1)
            found.setdefault(heading, []).append((path, fence[3:], text))
            path = None
        elif part.startswith("`"):
            path = part.strip("`:")
    return found


def block_test(command, name, block):
    """A test that runs a block as a file, which must print something."""

    def test(url):
        # Packages of Node are looked for beside the file.
        with tempfile.TemporaryDirectory(dir=command[1]) as folder:
            file = Path(folder, name)
            file.write_text(block.replace(SHOWN, url))
            ran = subprocess.run(
                [command[0], file], capture_output=True, text=True, timeout=120, env=quiet()
            )
        assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr[-500:]

    return test


def follow(blocks, url, home, path, seconds):
    """Does what the page says in a home and a project of its own. Returns what was printed."""
    project = Path(home, "project")
    project.mkdir(parents=True, exist_ok=True)
    (project / "hello.py").write_text('print("hello")\n')
    said = ""
    for place, fence, text in blocks:
        text = text.replace(SHOWN, url)
        if place:
            file = project / place.replace("~", str(home))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif fence == "text":
            own = {"HOME": str(home), "PATH": f"{path}:{os.environ['PATH']}"}
            ran = subprocess.run(
                ["bash", "-euc", text],
                cwd=project,
                env=quiet() | own,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds,
            )
            said += ran.stdout
            assert ran.returncode == 0, f"{ran.returncode}: {said[-1000:]}"
    assert said.strip(), "nothing was printed"
    return said


def page_tests(programs):
    """Tests of the page's blocks that are run with each change."""
    for heading, blocks in page().items():
        for _, fence, text in blocks:
            if fence == "python":
                place = "llama-index" if heading == "LlamaIndex" else "libraries"
                command = (programs / place / "bin/python", None)
                yield f"page.{heading}", block_test(command, "block.py", text)
            if fence == "js":
                command = (shutil.which("node"), programs / "node")
                yield f"page.{heading}", block_test(command, "block.mjs", text)

    def llm(url):
        with tempfile.TemporaryDirectory() as home:
            follow(page()["llm"], url, home, programs / "libraries/bin", 120)

    yield "page.llm", llm


def quiet():
    """The environment, in which programs ask nobody but the server."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("OPENAI_", "ANTHROPIC_"))}
    return kept | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def script_test(*command):
    """A test that is a script of tests."""

    def test(_):
        ran = subprocess.run(command, text=True, capture_output=True, env=quiet(), cwd=HERE)
        print(ran.stdout, end="")
        assert ran.returncode == 0, ran.stdout[-300:] + ran.stderr[-500:]

    return test


def main():
    troika, programs, *names = sys.argv[1:]
    programs = Path(programs).resolve()
    with tempfile.TemporaryDirectory() as folder:
        server = Watched(troika, model_with_tools(folder))
        try:
            found = [
                *tests([], ["libraries"]),
                *page_tests(programs),
                (
                    "llama_index",
                    script_test(programs / "llama-index/bin/python", "index.py", server.url),
                ),
                ("node", script_test("node", "packages.mjs", server.url, programs / "node")),
            ]
            chosen = [(n, t) for n, t in found if not names or any(name in n for name in names)]

            def none_refused(_):
                assert server.requests, f"no line is one of a request: {server.lines[:3]}"
                assert not server.refused(), server.refused()

            return run([*chosen, ("no request was refused", none_refused)], server.url)
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
