"""Coding agents and Open WebUI at `troika serve`, connected as docs/programs.md says: one task each.

    python coding_agents.py TROIKA PROGRAMS [--model FILE] [--seconds N] [NAME...]

PROGRAMS is where `.ci/programs DIR agents` installed them. Without a FILE the model is the built-in
one with a template of tools, which writes nonsense. What counts is that every request is answered
and every answer read to its end: whether the task was done is printed. Each program has a home of
its own, and reaches no network: all but loopback goes to a proxy that is not there.
"""

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from programs import Watched, follow, model_with_tools, page, quiet
from runner import run

# What is refused and why that is right, by program.
EXPECTED = {}
# Programs, and where they lie.
AGENTS = {
    "opencode": "node-agents/node_modules/.bin",
    "Codex": "node-agents/node_modules/.bin",
    "pi": "node-agents/node_modules/.bin",
    "aider": "aider/bin",
}
ALONE = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "PI_OFFLINE": "1",
    "AIDER_ANALYTICS_DISABLE": "1",
    "AIDER_CHECK_UPDATE": "false",
    "AIDER_SHOW_MODEL_WARNINGS": "false",
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ANONYMIZED_TELEMETRY": "false",
}


def answered(server, name, before):
    """Checks the requests since then, and prints them."""
    since = server.requests[before:]
    counts = {request: since.count(request) for request in dict.fromkeys(since)}
    told = ", ".join(f"{n} x {path} {code}" for (path, code), n in counts.items())
    print(f"       {name}: {told or 'no request'}", flush=True)
    assert any(code == 200 and path.startswith("POST") for path, code in counts), told
    bad = [r for r in counts if r[1] >= 400 and r not in EXPECTED.get(name, ())]
    assert not bad, bad


def agent_test(name, programs, seconds):
    def test(server):
        before = len(server.requests)
        with tempfile.TemporaryDirectory() as home:
            project = Path(home, "project")
            project.mkdir()
            subprocess.run(["git", "init", "-q", project], check=True)
            try:
                said = follow(page()[name], server.url, home, programs / AGENTS[name], seconds)
                hello = (project / "hello.py").read_text()
                done = "hello" in said if name != "aider" else "goodbye" in hello
                print(f"       {name}: the task is {'done' if done else 'not done'}", flush=True)
            finally:
                answered(server, name, before)

    return test


def webui_test(programs, seconds):
    """A chat in Chromium."""
    from playwright.sync_api import sync_playwright

    def test(server):
        before = len(server.requests)
        with tempfile.TemporaryDirectory() as home, socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
            free.close()
            [(_, _, text)] = page()["Open WebUI"]
            text = text.replace("http://127.0.0.1:8080", server.url).replace("3000", str(port))
            own = {
                "HOME": home,
                "DATA_DIR": home,
                "WEBUI_AUTH": "false",
                "RAG_EMBEDDING_ENGINE": "ollama",
                "PATH": f"{programs}/open-webui/bin:{os.environ['PATH']}",
            }
            log = open(f"{home}/log", "w+")
            process = subprocess.Popen(
                ["bash", "-euc", f"export {text}".replace(" open-webui", "\nexec open-webui")],
                env=quiet() | own,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=home,
            )
            try:
                url = f"http://127.0.0.1:{port}"
                wait_for(f"{url}/health", process, 240, log)
                with sync_playwright() as playwright:
                    names = ("chromium", "chromium-browser", "google-chrome")
                    file = next(filter(None, map(shutil.which, names)))
                    browser = playwright.chromium.launch(
                        executable_path=file, args=["--no-sandbox"]
                    )
                    chat(browser.new_page(), url, seconds)
                    browser.close()
                # Titles and tags are asked for after the answer.
                time.sleep(5)
            finally:
                process.terminate()
                process.wait()
                log.close()
                answered(server, "Open WebUI", before)

    return test


def wait_for(url, process, seconds, log):
    end = time.monotonic() + seconds
    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            raise AssertionError(f"it ended: {log.read()[-800:]}")
        with contextlib.suppress(OSError):
            if plain.open(url, timeout=5).status == 200:
                return
        time.sleep(0.5)
    raise AssertionError(f"{url} does not answer")


def chat(tab, url, seconds):
    """Says something, and waits until the answer has ended."""
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(url)
    # What is new in this version is told sooner or later.
    told = tab.get_by_role("button", name=re.compile("Okay", re.I))
    tab.add_locator_handler(told, lambda button: button.click())
    tab.locator("#chat-input").click()
    tab.keyboard.type("Good morning.")
    answer = tab.locator(".chat-assistant").last
    end = time.monotonic() + seconds
    # Before the page knows a model, it takes no message.
    while not answer.is_visible() and time.monotonic() < end:
        tab.keyboard.press("Enter")
        with contextlib.suppress(Exception):
            answer.wait_for(timeout=10_000)
    # The button that copies an answer is there once it has ended.
    tab.locator(".copy-response-button").last.wait_for(state="attached", timeout=seconds * 1000)
    assert answer.inner_text().strip(), "an empty answer"
    assert not errors, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("troika", metavar="TROIKA")
    parser.add_argument("programs", metavar="PROGRAMS", type=Path)
    parser.add_argument("--model", metavar="FILE")
    parser.add_argument("--seconds", metavar="N", type=int, default=900)
    parser.add_argument("names", metavar="NAME", nargs="*")
    options = parser.parse_intermixed_args()
    programs = options.programs.resolve()
    os.environ.update(ALONE)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or model_with_tools(folder)
        server = Watched(options.troika, model, "--max-tokens", "400")
        found = [(name, agent_test(name, programs, options.seconds)) for name in AGENTS]
        found.append(("Open WebUI", webui_test(programs, options.seconds)))
        chosen = [(n, t) for n, t in found if not options.names or n in options.names]
        try:
            return run(chosen, server)
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
