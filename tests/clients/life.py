"""What needs a server of its own: other sites' pages, thoughts, the log, broken models, the end."""

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from own import LONG, serve
from support import MODEL, NIGHT, equal, eventually

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": NIGHT, "max_tokens": 2}
TINY = pathlib.Path(__file__).parents[2] / "models/tiny-moe"
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n{# </think> #}"
)


def copy(folder, name, template=None):
    shutil.copytree(TINY, pathlib.Path(folder) / name)
    if template:
        (pathlib.Path(folder) / name / "chat_template.jinja").write_text(template)
    return str(pathlib.Path(folder) / name)


def lines(process, seconds=1.0):
    """What a server says until it is silent."""
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)
    reader.start()
    time.sleep(seconds)
    return said


def test_pages_of_allowed_sites(server):
    site, asked = "https://chat.example", "authorization,content-type,x-stainless-os"
    flags = ["--api-key", "k", "--allowed-origin", f"{site},http://localhost:*"]
    with serve(server, *flags) as (other, _):
        for origin, good in (
            (site, True),
            ("http://localhost:3000", True),
            ("http://localhost.evil.example", False),
            ("https://chat.example.evil", False),
            ("null", False),
        ):
            preflight = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": asked,
                "Access-Control-Request-Private-Network": "true",
            }
            for path in (CHAT, "/v1/models", "/api/chat", "/v1/messages"):
                status, headers, _ = other.http("OPTIONS", path, None, preflight)
                equal(status, 204 if good else 403, f"the status for {origin}")
                allowed = headers["Access-Control-Allow-Origin"]
                equal(allowed, origin if good else None, "the origin that may read")
            if good:
                equal(headers["Access-Control-Allow-Headers"], asked, "headers")
                assert "POST" in headers["Access-Control-Allow-Methods"], headers
                equal(headers["Access-Control-Allow-Private-Network"], "true", "private network")
                assert headers["Access-Control-Max-Age"] and "Origin" in headers["Vary"], headers
            key = {"Origin": origin, "Authorization": "Bearer k"}
            for body, want in (
                (BODY, 200),
                ({**BODY, "stream": True, "made_up": 1}, 200),
                ({**BODY, "messages": 5}, 400),
            ):
                status, headers, _ = other.http("POST", CHAT, body, key)
                equal(status, want if good else 403, f"the status for {origin}")
                allowed = headers["Access-Control-Allow-Origin"]
                equal(allowed, origin if good else None, "the origin that may read")
                exposed = headers["Access-Control-Expose-Headers"] or ""
                equal("x-troika-ignored" in exposed.lower(), good, "the headers that may be read")
        status, headers, _ = other.http("POST", CHAT, BODY, {"Origin": site})
        equal((status, headers["Access-Control-Allow-Origin"]), (401, site), "without a key")
    with serve(server, "--allowed-origin", "*") as (other, _):
        for origin in ("https://any.example", "null"):
            headers = other.http("POST", CHAT, BODY, {"Origin": origin})[1]
            equal(headers["Access-Control-Allow-Origin"], origin, "the origin that may read")


def test_pages_that_only_load_an_address(server):
    """A picture or a frame of another site names no origin."""
    with tempfile.TemporaryDirectory() as folder:
        with serve(server, copy(folder, "a"), copy(folder, "b")) as (other, _):
            for site, want in (("cross-site", 403), ("same-site", 403)):
                sent = {"Sec-Fetch-Site": site}
                equal(other.http("GET", "/troika/plan?model=b", None, sent)[0], want, site)
                equal(other.http("GET", "/", None, sent)[0], 200, "the status of the page")
            states = {m["name"]: m["state"] for m in other.status()["models"]}
            equal(states["b"], "closed", "the state of b")
            for site in ("same-origin", "none"):
                sent = {"Sec-Fetch-Site": site}
                equal(other.http("GET", "/troika/plan", None, sent)[0], 200, site)


def test_thoughts_are_counted_and_have_parts(server):
    with tempfile.TemporaryDirectory() as folder:
        with serve(server, copy(folder, "thinks", THINKS)) as (other, _):
            answer = other.chat(max_tokens=20, extra_body=LONG)
            assert answer.choices[0].message.reasoning_content, answer
            equal(answer.usage.completion_tokens_details.reasoning_tokens, 20, "tokens of thoughts")
            events = list(
                other.openai.responses.create(
                    model=MODEL, input="It was", max_output_tokens=20, stream=True, extra_body=LONG
                )
            )
            kinds = [e.type.removeprefix("response.") for e in events]
            kinds = [k for i, k in enumerate(kinds) if k != "reasoning_text.delta" or kinds[i - 1] != k]
            want = ["created", "in_progress", "output_item.added", "content_part.added",
                    "reasoning_text.delta", "reasoning_text.done", "content_part.done",
                    "output_item.done", "incomplete"]  # fmt: skip
            equal(kinds, want, "the events")
            equal([e.sequence_number for e in events], list(range(len(events))), "their numbers")
            response = events[-1].response
            equal(response.usage.output_tokens_details.reasoning_tokens, 20, "tokens of thoughts")
            equal(response.output[0].status, "incomplete", "the status of the thought")


def test_log_tells_of_each_request(server):
    secret = "xyzzy hunter2"
    with tempfile.TemporaryDirectory() as folder:
        refuses = "{{ raise_exception('no ' + messages[0].content) }}"
        with serve(server, "-v", copy(folder, "refuses", refuses)) as (other, process):
            messages = [{"role": "user", "content": secret}]
            for body in (
                {"messages": messages},
                {"messages": secret},
                {"messages": [secret]},
                {"messages": [{"role": secret, "content": "a"}]},
                {"messages": [{"role": "user", "content": [{"type": secret}]}]},
                {"messages": messages, "stop": {secret: 1}},
                {"messages": messages, "tool_choice": secret},
                {"messages": messages, "min_tokens": 3},
                {"messages": messages, "response_format": {"type": secret}},
                {"messages": messages, "model": secret},
            ):
                equal(other.http("POST", CHAT, body)[0], 400, f"the status of {body}")
            body = {"prompt": "It was", "max_tokens": 30, "stream": True, "made_up": 1, **LONG}
            equal(other.http("POST", "/v1/completions", body)[0], 200, "the status of a stream")
            connection = other.connect()
            body = {"prompt": "It was", "max_tokens": 1900, "stream": True, **LONG}
            connection.request("POST", "/v1/completions", json.dumps(body))
            connection.getresponse().read(300)
            connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()
            eventually(lambda: other.status()["running"] == 0, 5, "the answer is given up")
            other.http("POST", "/v1/embeddings", {"input": "It was"})
            said = lines(process)
        text = "".join(said)
        assert "xyzzy" not in text and "hunter2" not in text, text
        asked = [line for line in said if f"POST {CHAT}" in line]
        equal(len(asked), 10, "the lines of refusals")
        for line in asked:
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ POST /v1/chat/completions 400 ", line), line
        for words in ("min_tokens cannot be honoured", "the chat template refused", "messages"):
            assert words in text, (words, text)
        whole, gone = [line for line in said if "POST /v1/completions" in line]
        for words in (" 200 ", "model refuses", "prompt ", "first token", "tokens 30", "/s)",
                      ", length", "ignored: made_up"):  # fmt: skip
            assert words in whole, (words, whole)
        assert "client gone" in gone and "client gone" not in whole, (gone, whole)
        embedded = next(line for line in said if "/v1/embeddings" in line)
        assert re.search("200 .*prompt [1-9]", embedded), embedded


def test_a_broken_model_stands_in_nobodys_way(server):
    with tempfile.TemporaryDirectory() as folder:
        broken, folder = pathlib.Path(folder) / "a.gguf", pathlib.Path(folder)
        broken.write_text("no model")
        copy(folder, "b")
        # The model of the folder is given by its path, too.
        with serve(server, "--models-dir", str(folder), "-m", str(folder / "b")) as (other, _):
            equal([m["name"] for m in other.status()["models"]], ["b", "a"], "the models")
        with serve(server, "--models-dir", str(folder)) as (other, process):
            equal(other.status()["default_model"], "b", "the default")
            status, _, data = other.http("POST", CHAT, {"messages": NIGHT, "max_tokens": 2})
            equal((status, data.get("model")), (200, "b"), str(data))
            status, _, data = other.http("POST", CHAT, {**BODY, "model": "a"})
            equal(status, 503, str(data))
            equal(other.http("GET", "/health")[0], 200, "health")
            said = "".join(lines(process))
            assert "the model a cannot be opened" in said, said
        command = [server.troika, "serve", "--port", "0", str(broken)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
        equal(ended.returncode, 1, "the exit status")
        assert "the model a cannot be opened" in ended.stderr, ended.stderr


def test_models_wait_for_room(server):
    """While all models are in use, another one waits; those who come later wait behind it."""
    with tempfile.TemporaryDirectory() as folder:
        with serve(server, copy(folder, "a"), copy(folder, "b"), "--memory", "26") as (other, process):
            statuses = []

            def ask(name):
                for _ in range(4):
                    body = {**BODY, "model": name, "max_tokens": 200, **LONG}
                    status, _, data = other.http("POST", CHAT, body)
                    statuses.append((status, data.get("model", data)))

            asking = [threading.Thread(target=ask, args=(name,)) for name in "aaabbb"]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join(120)
            equal(sorted(statuses), [(200, "a")] * 12 + [(200, "b")] * 12, "the answers")
            assert "closed" in "".join(lines(process)), "both models fit"
        with serve(server, str(TINY), "--memory", "1") as (_, process):
            said = "".join(lines(process))
            assert "more than --memory 1" in said, said


def test_answers_that_are_cut_off_end_with_an_error(server):
    for number, want in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        with serve(server, "--grace", "0.2") as (other, process):
            read = []

            def ask(path, body, other=other, read=read):
                read.append((path, other.http("POST", path, body)[2]))

            bodies = [
                (CHAT, {**BODY, "max_tokens": 1900, "n": 8, "stream": True, **LONG}),
                ("/v1/messages", {**BODY, "max_tokens": 1900, "stream": True}),
                ("/v1/completions", {"prompt": ["a"] * 400, "echo": True, "logprobs": 1}),
            ]
            asking = [threading.Thread(target=ask, args=of) for of in bodies]
            for thread in asking:
                thread.start()
            eventually(lambda other=other: other.status()["running"] > 8, 10, "all are answered")
            process.send_signal(number)
            for thread in asking:
                thread.join(10)
            equal(process.wait(10), want, f"the exit status after {number.name}")
            said = "".join(lines(process))
            assert "answers that were cut off" in said, said
            told = dict(read)
            assert b'data: {"error":' in told[CHAT] and b"[DONE]" not in told[CHAT], told[CHAT][-300:]
            assert "server is being" in str(told["/v1/completions"]), told["/v1/completions"]
