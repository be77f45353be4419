"""What needs a server with flags of its own: keys, a full queue, and its end."""

import contextlib
import json
import math
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import anthropic
import ollama
import openai

from support import MODEL, NIGHT, Server, equal, eventually, raises

LONG = {"ignore_eos": True}
TINY = pathlib.Path(__file__).parents[2] / "models/tiny-moe"


@contextlib.contextmanager
def serve(server, *flags):
    """A server of the same command with these flags, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [server.troika, "serve", "--port", str(port), *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    other = Server(f"http://127.0.0.1:{port}")

    def is_well():
        assert process.poll() is None, f"it ended: {process.stderr.read()}"
        with contextlib.suppress(ConnectionError):
            return other.http("GET", "/health")[0] == 200

    try:
        eventually(is_well, 20, "the server is well")
        yield other, process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_keys(server):
    with serve(server, "--api-key", "sesame-one", "--api-key", "sesame-two") as (other, _):
        for key in ("sesame-one", "sesame-two"):
            client = openai.OpenAI(base_url=f"{other.url}/v1", api_key=key, max_retries=0)
            options = {"model": MODEL, "messages": NIGHT, "max_tokens": 2}
            assert client.chat.completions.create(**options).usage.completion_tokens
            client = anthropic.Anthropic(base_url=other.url, api_key=key, max_retries=0)
            assert client.messages.create(**options).content
            client = ollama.Client(host=other.url, headers={"Authorization": f"Bearer {key}"})
            assert client.chat(model=MODEL, messages=NIGHT, options={"num_predict": 2}).done
        # These send the key "none", or nothing at all.
        with raises(openai.AuthenticationError, "key"):
            other.chat()
        with raises(openai.AuthenticationError, "key"):
            other.openai.models.list()
        with raises(anthropic.AuthenticationError, "authentication_error"):
            other.anthropic.messages.create(model=MODEL, messages=NIGHT, max_tokens=1)
        with raises(ollama.ResponseError, "key"):
            other.ollama.list()
        for path in (
            "/troika/status",
            "/troika/plan",
            "/v1/models",
            "/api/tags",
            "/tokenizer_info",
        ):
            equal(other.http("GET", path)[0], 401, f"the status of {path} without a key")
        equal(other.http("GET", "/health")[0], 200, "the status of /health")
        for bad in ("Bearer", "Bearer ", "Basic sesame-one", "Bearer sesame-oneX", "sesame-one"):
            status = other.http("GET", "/v1/models", None, {"Authorization": bad})[0]
            equal(status, 401, f"the status with {bad!r}")


def test_other_addresses_need_a_key(server):
    command = [server.troika, "serve", "--host", "0.0.0.0", "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode != 0 and "key" in ended.stderr, ended


def test_full(server):
    """One is answered, one waits, the third is told when to come back."""
    with serve(server, "--parallel", "1", "--queue", "1") as (other, _):
        first = other.chat(max_tokens=1900, stream=True, extra_body=LONG)
        next(first)
        waits = []
        second = threading.Thread(target=lambda: waits.append(other.chat(max_tokens=2)))
        second.start()
        eventually(lambda: other.status()["queued"] == 1, 5, "the second waits")
        try:
            other.chat(max_tokens=2)
        except openai.RateLimitError as error:
            assert int(error.response.headers["Retry-After"]) >= 1, error.response.headers
            assert len(str(error)) > 40, error
        else:
            raise AssertionError("the third is answered")
        with raises(anthropic.RateLimitError, "rate_limit_error"):
            other.anthropic.messages.create(model=MODEL, messages=NIGHT, max_tokens=1)
        first.close()
        second.join(20)
        assert waits and waits[0].usage.completion_tokens, "the second got no answer"
        assert other.chat(max_tokens=2).choices, "no answer when there is room again"


def test_end(server):
    """A server that is asked to end lets an answer end, takes no new ones, and is gone."""
    with serve(server, "--grace", "20") as (other, process):
        want = other.chat(max_tokens=400, extra_body=LONG).choices[0].message.content
        stream = other.chat(max_tokens=400, stream=True, extra_body=LONG)
        chunks = [next(stream)]
        process.send_signal(signal.SIGTERM)
        chunks += list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        equal(text, want, "the text that was on its way")
        equal(process.wait(20), 0, "the exit status")


def test_end_without_grace(server):
    """Longer answers are broken off, and their clients see that."""
    with serve(server, "--grace", "0") as (other, process):
        stream = other.chat(max_tokens=1900, n=8, temperature=1, stream=True, extra_body=LONG)
        next(stream)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        ends = 0
        try:
            for chunk in stream:
                ends += sum(bool(choice.finish_reason) for choice in chunk.choices)
        except openai.APIError as error:
            assert str(error), "an error without words"
        except (
            Exception
        ) as error:  # The connection broke off: the package hands on its client's error.
            assert "incomplete" in str(error) or "closed" in str(error), error
        else:
            assert ends < 8, "all eight answers have ended"
            raise AssertionError(
                f"a stream that was broken off ended well, {ends} of 8 choices whole"
            )
        process.wait(10)
        assert time.monotonic() - start < 10, "it took too long to end"


def test_too_much_at_once_is_bounded(server):
    """The limit on tokens holds whatever is asked for."""
    with serve(server, "--max-tokens", "5") as (other, _):
        for ask in (openai.omit, 5, 1000):
            try:
                answer = other.chat(max_tokens=ask, extra_body=LONG)
            except openai.BadRequestError as error:
                assert "5" in str(error), error
            else:
                assert answer.usage.completion_tokens <= 5, answer.usage


def test_body_limit(server):
    """A body just above the limit is refused, one below is read."""
    with serve(server, "--max-body", "1") as (other, _):
        for size, want in ((900_000, 400), (1_200_000, 413)):
            body = {"model": MODEL, "prompt": "a" * size, "max_tokens": 1}
            status, _, data = other.http("POST", "/v1/completions", body)
            equal(status, want, f"the status of {size} bytes ({str(data)[:200]})")


def raw(server, ids):
    body = {"input": ids, "embd_normalize": -1}
    return server.post("/v1/embeddings", body)["data"][0]["embedding"]


def with_modules(to, mode, *more):
    """The tiny model as sentence-transformers keeps one."""
    shutil.copytree(TINY, to)
    kinds = ["Transformer", "Pooling", *more]
    modules = [
        {"path": "" if i == 0 else f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (to / "modules.json").write_text(json.dumps(modules))
    (to / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{m}": m == mode for m in ("cls_token", "mean_tokens", "lasttoken")}
    (to / "1_Pooling/config.json").write_text(json.dumps(modes))
    return to


def with_pooling_type(to, kind):
    """The tiny GGUF file with a key more, and another one that keeps the alignment."""
    data = (TINY / "tiny-moe-Q8_0.gguf").read_bytes()
    at = data.index(b"general.architecture") + len("general.architecture") + 4
    arch = data[at + 8 : at + 8 + struct.unpack_from("<Q", data, at)[0]]

    def key(name, kind, value):
        return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value

    new = key(arch + b".pooling_type", 4, struct.pack("<I", kind))
    new += key(b"troika.filler", 8, struct.pack("<Q", (n := (-len(new) - 33) % 32)) + b"x" * n)
    count = struct.unpack_from("<Q", data, 16)[0]
    assert len(new) % 32 == 0
    to.write_bytes(data[:16] + struct.pack("<Q", count + 2) + new + data[24:])
    return to


def test_pooling(server):
    """A token's state depends on what is before it alone: so the last states of all beginnings are
    the states whose mean, first and last are the three poolings."""
    ids = server.tokens("The king rode out.")
    assert len(ids) > 4, ids
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        with serve(server, str(with_modules(folder / "last", "lasttoken"))) as (last, _):
            states = [raw(last, ids[: i + 1]) for i in range(len(ids))]
            plain = last.post("/v1/embeddings", {"input": ids})["data"][0]["embedding"]
            assert math.dist(plain, states[-1]) < 1e-5, "it is made of length one without Normalize"
        mean = [sum(column) / len(ids) for column in zip(*states, strict=True)]

        def near(got, want, what):
            size = math.dist(want, [0] * len(want))
            assert math.dist(got, want) < 1e-2 * size, f"{what} is off by {math.dist(got, want)}"

        assert math.dist(mean, states[-1]) > 0.2, "all poolings are one"
        with serve(server, str(TINY)) as (other, _):
            near(raw(other, ids), mean, "the mean where nothing is said")
            near(raw(other, ids[:1]), states[0], "the state of the first token")
        normalized = with_modules(folder / "mean", "mean_tokens", "Normalize")
        with serve(server, str(normalized)) as (other, _):
            near(raw(other, ids), mean, "the mean of modules")
            got = other.post("/v1/embeddings", {"input": ids})["data"][0]["embedding"]
            assert abs(math.dist(got, [0] * len(got)) - 1) < 1e-3, "Normalize is passed over"
        with serve(server, str(folder / "last"), "--pooling", "cls") as (other, _):
            near(raw(other, ids), states[0], "the first token's by the flag")
        with serve(server, str(with_pooling_type(folder / "last.gguf", 3))) as (other, _):
            # The file has eight bits: its states are near.
            got, size = raw(other, ids), math.dist(states[-1], [0] * len(mean))
            assert math.dist(got, states[-1]) < min(0.2 * size, math.dist(got, mean)), "GGUF's last"
        with serve(server, str(with_pooling_type(folder / "rank.gguf", 4))) as (other, _):
            status, _, body = other.http("POST", "/v1/embeddings", {"input": ids})
            assert status == 400 and "pooling_type is 4" in str(body), body
        dense = with_modules(folder / "dense", "mean_tokens", "Dense")
        with serve(server, str(dense)) as (other, _):
            status, _, body = other.http("POST", "/v1/embeddings", {"input": ids})
            assert status == 400 and "Dense" in str(body), body
