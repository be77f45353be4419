"""A server under clients that send what is wrong, stall, and come and go; and one that is killed.

    python soak.py TROIKA [--minutes N] [--malformed N] [--kills N] [--seed N]

starts servers of its own by the command TROIKA (`cargo xtask soak` does that). The tests, which
`clients.py` runs, are short forms of it.
"""

import argparse
import concurrent.futures
import contextlib
import copy
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import openai

from edge import CHAT
from many import LONG, PROMPTS, is_idle
from own import serve
from support import MODEL, equal, eventually

JSON = {"Content-Type": "application/json"}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "It was a dark night"},
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x", "y"]}},
    "required": ["a"],
}
STOP = ["e"]
ASKED = {"model": MODEL, "messages": MESSAGES, "max_tokens": 1, "stop": STOP}
PLAIN = {"model": MODEL, "prompt": "The king", "max_tokens": 1, "stop": STOP}
# Valid requests. None of them makes more than a token, and one that lost this limit stops soon.
VALID = [
    (CHAT, {**ASKED, "temperature": 0.5, "seed": 1, "top_p": 0.9, "n": 1,
            "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1}, "stream": False}),
    (CHAT, {**ASKED, "tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}),
    (CHAT, {**ASKED, "response_format": {
        "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}),
    ("/v1/completions", {**PLAIN, "prompt": [5, 6, 7], "echo": True, "logprobs": 1}),
    ("/v1/completions", {**PLAIN, "prompt": ["The king", "A"]}),
    ("/v1/responses", {"model": MODEL, "input": MESSAGES, "max_output_tokens": 1}),
    ("/v1/embeddings", {"model": MODEL, "input": ["The king"], "encoding_format": "float"}),
    ("/v1/messages", {"model": MODEL, "messages": MESSAGES[1:], "max_tokens": 1,
                      "system": "Be brief.", "stop_sequences": STOP}),
    ("/api/chat", {"model": MODEL, "messages": MESSAGES, "stream": False, "keep_alive": "5m",
                   "options": {"num_predict": 1, "temperature": 0.5, "stop": STOP}}),
    ("/api/generate", {"model": MODEL, "prompt": "The king", "raw": True, "stream": False,
                       "options": {"num_predict": 1, "top_k": 5, "stop": STOP}}),
    ("/api/show", {"model": MODEL}),
    ("/tokenize", {"content": "The king", "add_special": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/apply-template", {"messages": MESSAGES}),
]  # fmt: skip
# Numbers that no reader should take for granted, and text that is none or stands for another.
NUMBERS = """1e999 -1e999 1e-400 -0 18446744073709551616 -9223372036854775809 4294967296 2147483648
    -1 0.0000001 NaN Infinity 00 1e 0x10 99999999999999999999999999""".split()
TEXTS = [r'"\ud800"', r'"\u0000"', '"<|endoftext|>"', r'"<|im_end|>\n<|im_start|>system"', '""',
         r'"\q"', '"\u202e"', '"$ref"', '"a', '"{{ 7 * 7 }}"', '"../../etc/passwd"']  # fmt: skip


def spliced(rng, body, value, raw=False):
    """The body with another value somewhere inside; a raw one is text, JSON or not."""
    whole = inside = [copy.deepcopy(body)]
    while True:
        at = rng.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        # Deep ones are as good as those above them.
        if not inside[at] or not isinstance(inside[at], (dict, list)) or rng.randrange(4) == 0:
            break
        inside = inside[at]
    inside[at] = "\x01here" if raw else value
    text = json.dumps(whole[0])
    return text.replace(json.dumps("\x01here"), value) if raw else text


def mutant(rng, body):
    """A body that is wrong most of the time."""
    text = json.dumps(body)
    data, at, name = bytearray(text, "ascii"), rng.randrange(len(text)), rng.choice(list(body))
    kind = rng.randrange(8)
    if kind == 0:
        for _ in range(rng.randint(1, 8)):
            any_of = [rng.randrange(256), rng.choice(b'{}[]",:0\\ \0\n'), data[at] ^ 1 << at % 8]
            data[at] = rng.choice(any_of)
            at = rng.randrange(len(data))
        return bytes(data)
    if kind == 1:
        text = rng.choice([text[:at], text[at:], text + text[at:]])
    elif kind == 2:
        depth = rng.choice([100, 130, 1000, 5000])
        start, end = rng.choice([("[", "]"), ('{"a":', "}"), ('{"items":', "}")])
        text = spliced(rng, body, start * depth + "1" + rng.choice([end * depth, ""]), raw=True)
    elif kind in (3, 4):
        text = spliced(rng, body, rng.choice(NUMBERS if kind == 3 else TEXTS), raw=True)
    elif kind == 5:
        others = {key: value for key, value in body.items() if key != name}
        twice = f'{{"{name}":{rng.choice(NUMBERS)},{text[1:]}'
        renamed = json.dumps({**others, name.upper() + "\0": body[name]})
        text = rng.choice([json.dumps(others), renamed, twice])
    else:
        for _ in range(rng.randint(1, 3)):
            long = "é\0雪" * rng.randrange(2000)
            values = [None, True, rng.getrandbits(63), -0.5, [], {}, ["a", None, {"a": []}], long]
            text = spliced(rng, body, rng.choice(values))
            body = json.loads(text)
            if not isinstance(body, (dict, list)):
                break
    return text.encode()


def not_http(rng, path, body, port):
    """Bytes that are no request, or one whose length is not what it says."""
    length = len(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\n"
    lengths = [
        f"Content-Length: {length + 9}\r\n\r\n",
        f"Content-Length: -{length}\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\n",
        f"X: {'a' * 300_000}\r\n\r\n",
        "A: b\r\n" * 400 + "\r\n",
    ]
    heads = [
        f"POST {path}\r\n\r\n",
        f"POST {path} HTTP/7.3\r\nHost: localhost\r\n\r\n",
        f"PO ST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /%zz%00/..%2f{path} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "\x16\x03\x01\x02\0\x01" * 40,
        *(head + rest for rest in lengths),
    ]
    return rng.choice(heads).encode() + body


def resident(pid):
    """The memory that a process has in RAM, in MiB; 0 of no process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines() if pid else ["VmRSS: 0"]
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def is_well(server):
    status, _, body = server.http("GET", "/health")
    equal(status, 200, f"the status of /health ({body})")


def all_of(count, work):
    """Runs `work` so many times at once."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def malformed(server, requests, seed, pid=None, mib=32):
    """Wrong requests, by four clients for at most half an hour: no crash, no leak, no status that
    blames the server."""
    statuses, slowest, warm, start = Counter(), (0, b""), resident(pid), time.monotonic()

    def client(number):
        nonlocal slowest, warm
        rng, connection = random.Random(seed << 16 | number), server.connect(60)
        for sent in range(requests // 4):
            if time.monotonic() - start > 1800:
                break
            path, valid = rng.choice(VALID)
            body = mutant(rng, valid)
            if sent == requests // 40:
                warm = resident(pid)
            # Few, since each costs a connection. It may be closed before all is sent.
            if rng.randrange(50) == 0:
                with socket.create_connection((server.host, server.port), timeout=5) as stream:
                    with contextlib.suppress(ConnectionError):
                        stream.sendall(not_http(rng, path, body, server.port))
                continue
            before = time.monotonic()
            try:
                connection.request("POST", path, body, JSON)
                answer = connection.getresponse()
                status, data = answer.status, answer.read()
                assert status < 500, f"{status} {data[:300]!r}"
                if status >= 400:
                    json.loads(data)
            except (AssertionError, OSError, ValueError, http.client.HTTPException) as error:
                raise AssertionError(f"{error!r} to {path} {body[:300]!r}") from error
            statuses[status] += 1
            slowest = max(slowest, (time.monotonic() - before, body[:300]))
        connection.close()

    all_of(4, client)
    is_well(server)
    eventually(lambda: is_idle(server), 60, "nothing runs after all wrong requests")
    rate = sum(statuses.values()) / (time.monotonic() - start)
    end = resident(pid)
    assert end - warm < mib, f"memory grew from {warm:.0f} to {end:.0f} MiB"
    return (
        f"seed {seed}, {rate:.0f}/s: {dict(statuses)}; the slowest after {slowest[0]:.1f} s was "
        f"{slowest[1][:100]!r}; {warm:.0f} MiB after a tenth, {end:.0f} at the end"
    )


def body_of(number, **options):
    """A request with a known prompt, whose greedy text must always be the same."""
    messages = [{"role": "user", "content": PROMPTS[number]}]
    tokens = {"max_tokens": 8 + 8 * (number % 5), "temperature": 0}
    return {"model": MODEL, "messages": messages, **tokens, **LONG, **options}


def streamed(server, number, pause=lambda pieces: None, **options):
    """The text of a known prompt; `pause` gets the number of pieces so far."""
    body = body_of(number, stream=True, stream_options={"include_usage": True}, **options)
    text, tokens = "", None
    messages = body.pop("messages")
    with server.openai.chat.completions.create(
        model=body.pop("model"), messages=messages, stream=body.pop("stream"), extra_body=body
    ) as stream:
        for pieces, chunk in enumerate(stream):
            text += "".join(c.delta.content or "" for c in chunk.choices)
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
            pause(pieces)
    equal(tokens, body["max_tokens"], "the number of tokens")
    return text


class Left(Exception):
    """A client has enough."""


def reads(server, number, rng):
    return streamed(server, number)


def stalls(server, number, rng):
    at, pause = rng.randint(1, 6), rng.uniform(0.1, 2)
    return streamed(server, number, lambda pieces: time.sleep(pause if pieces == at else 0))


def leaves_stream(server, number, rng):
    at = rng.randint(1, 6)

    def leave(pieces):
        if pieces == at:
            raise Left

    with contextlib.suppress(Left):
        streamed(server, number, leave)


def leaves_queue(server, number, rng):
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", CHAT, json.dumps(body_of(number, stream=True)), JSON)
        time.sleep(rng.uniform(0, 0.02))


def request_of(server, number):
    body = json.dumps(body_of(number)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {server.host}:{server.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def leaves_request(server, number, rng):
    data = request_of(server, number)
    with socket.create_connection((server.host, server.port)) as stream:
        stream.sendall(data[: rng.randrange(len(data))])
        time.sleep(rng.uniform(0, 0.2))


def sends_slowly(server, number, rng):
    data = request_of(server, number)
    with socket.create_connection((server.host, server.port), timeout=60) as stream:
        for at in range(0, len(data), 100):
            stream.sendall(data[at : at + 100])
            time.sleep(0.01)
        answer = http.client.HTTPResponse(stream)
        answer.begin()
        text = answer.read()
        equal(answer.status, 200, f"the status ({text[:300]!r})")
        return json.loads(text)["choices"][0]["message"]["content"]


def waits(server, number, rng):
    return server.post(CHAT, body_of(number))["choices"][0]["message"]["content"]


CONDUCTS = [reads, reads, stalls, leaves_stream, leaves_stream, leaves_queue, leaves_request,
            sends_slowly, waits]  # fmt: skip


def churn(server, seconds, clients, seed, pid=None, mib=32):
    """Clients that come and go, stall and break off: at the end, nothing may be left of them."""
    end, texts, done = time.monotonic() + seconds, {}, Counter()

    def client(number):
        rng = random.Random(seed << 16 | number)
        while time.monotonic() < end:
            conduct, prompt = rng.choice(CONDUCTS), rng.randrange(len(PROMPTS))
            text = conduct(server, prompt, rng)
            if text is not None:
                equal(text, texts.setdefault(prompt, text), f"the text after {PROMPTS[prompt]!r}")
            done[conduct.__name__] += 1
            time.sleep(rng.uniform(0, 0.03))

    def middle():
        nonlocal half
        half = resident(pid)

    half, timer = resident(pid), threading.Timer(seconds / 2, middle)
    timer.start()
    all_of(clients, client)
    timer.join()
    settled = eventually(lambda: is_idle(server), 5, "nothing runs after the last client")
    # Pages are back where requests find them: one that fills most of the context, next to others.
    long = "the night was dark and " * (server.context() // 10)
    all_of(4, lambda i: server.complete(f"{i} {long}", max_tokens=16))
    is_well(server)
    last = resident(pid)
    assert last - half < mib, f"memory grew from {half:.0f} to {last:.0f} MiB"
    return (
        f"seed {seed}: {dict(done)}; nothing runs {settled:.1f} s after them; {half:.0f} MiB in "
        f"the middle, {last:.0f} at the end"
    )


def unread(server, streams, pid=None, mib=200):
    """Streams that wait, or that nobody reads: they are taken, and cost little memory."""
    streamed(server, 0)
    before, found = resident(pid), Counter()
    with contextlib.ExitStack() as stack:
        opened = []
        for number in range(streams):
            body = body_of(number % len(PROMPTS), max_tokens=900, stream=True)
            connection = stack.enter_context(contextlib.closing(server.connect(60)))
            connection.request("POST", CHAT, json.dumps(body), JSON)
            opened.append(connection.sock)
        time.sleep(min(5, streams / 100))
        is_well(server)
        during = resident(pid)
        for stream in opened:
            stream.setblocking(False)
            try:
                found[stream.recv(12).decode()] += 1
            except BlockingIOError:
                found["waits"] += 1
    settled = eventually(lambda: is_idle(server), 10, "nothing runs after its clients went")
    assert set(found) <= {"HTTP/1.1 200", "waits"}, found
    assert during - before < mib, f"memory grew from {before:.0f} to {during:.0f} MiB"
    return (
        f"{dict(found)}; {before:.0f} MiB before, {during:.0f} with them; nothing runs "
        f"{settled:.1f} s after they went"
    )


def killed(command, kills):
    """A server that is killed while it streams: its client sees that the stream broke off, and the
    next start writes the same text."""
    want = None
    for _ in range(kills + 1):
        with serve(command) as (server, process):
            text = streamed(server, 0)
            want = want or text
            equal(text, want, "the text after a kill")
            try:
                streamed(server, 0, lambda n: process.kill() if n == 5 else None, max_tokens=900)
            except openai.APIError:
                continue
            raise AssertionError("a stream ends well though its server was killed")
    return f"{kills} kills in the middle of a stream, the text always the same"


def test_malformed(server):
    malformed(server, 400, 1)


def test_churn(server):
    churn(server, 3, 12, 1)


def test_unread(server):
    unread(server, 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("troika", metavar="TROIKA")
    parser.add_argument("--minutes", type=float, default=10, help="of clients that come and go")
    parser.add_argument("--malformed", type=int, default=1_000_000, help="wrong requests")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    command, seed = SimpleNamespace(troika=options.troika), options.seed
    print("kills:", killed(command, options.kills), flush=True)
    # Some wrong requests are valid after all, and lost the length of the answer.
    with serve(command, "--max-tokens", "4") as (server, process):
        print("malformed:", malformed(server, options.malformed, seed, process.pid), flush=True)
    with serve(command) as (server, process):
        print("unread:", unread(server, 1000, process.pid), flush=True)
        seconds = 60 * options.minutes
        print("churn:", churn(server, seconds, 24, seed, process.pid), flush=True)


if __name__ == "__main__":
    main()
