"""What the tests share: a server's address, a client of each package, and plain HTTP."""

import contextlib
import http.client
import json
import time
import urllib.parse

import anthropic
import ollama
import openai

MODEL = "built-in"
NIGHT = [{"role": "user", "content": "It was a dark night, and the old man said"}]


class Server:
    """A running server, and how to reach it."""

    def __init__(self, url, troika=None):
        # The command, where tests may start it.
        self.troika = troika
        self.url = url.rstrip("/")
        parts = urllib.parse.urlsplit(self.url)
        self.host, self.port = parts.hostname, parts.port or 80
        # No retries: what fails once is a failure.
        self.openai = openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60
        )
        self.anthropic = anthropic.Anthropic(
            base_url=self.url, api_key="none", max_retries=0, timeout=60
        )
        self.ollama = ollama.Client(host=self.url, timeout=60)

    def connect(self, timeout=30):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def http(self, method, path, body=None, headers=None):
        """Status, headers and body, which is parsed if it says that it is JSON."""
        connection = self.connect()
        try:
            sent = dict(headers or {})
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if body is not None:
                sent.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            data = answer.read()
            if data and (answer.headers.get("Content-Type") or "").startswith("application/json"):
                data = json.loads(data)
            return answer.status, answer.headers, data
        finally:
            connection.close()

    def post(self, path, body):
        """The JSON of an answer that must be 200."""
        status, _, data = self.http("POST", path, body)
        assert status == 200, f"{path}: {status} {data}"
        return data

    def status(self):
        """What /troika/status says."""
        status, _, data = self.http("GET", "/troika/status")
        assert status == 200, f"/troika/status: {status} {data}"
        return data

    def model_status(self):
        return next(m for m in self.status()["models"] if m["name"] == MODEL)

    def context(self):
        """The most tokens of a prompt and its answer."""
        return self.model_status()["context"]

    def too_long(self):
        """A prompt beyond that."""
        return "the night was dark and " * (self.context() // 4)

    def tokens(self, text):
        return self.post("/tokenize", {"content": text})["tokens"]

    def chat(self, messages=None, **options):
        """A chat completion by the openai package: greedy, if nothing else is said."""
        options.setdefault("temperature", 0)
        options.setdefault("max_tokens", 24)
        return self.openai.chat.completions.create(
            model=MODEL, messages=NIGHT if messages is None else messages, **options
        )

    def complete(self, prompt="It was a dark night", **options):
        """A completion by the openai package: greedy, if nothing else is said."""
        options.setdefault("temperature", 0)
        options.setdefault("max_tokens", 24)
        return self.openai.completions.create(model=MODEL, prompt=prompt, **options)


@contextlib.contextmanager
def raises(kind, *words, code=None, param=None):
    """The block must raise `kind`, with all the words in its message, in any case."""
    try:
        yield
    except kind as error:
        said = str(error).lower()
        for word in words:
            assert word.lower() in said, f"no {word!r} in: {error}"
        assert len(said) > 20, f"an error without words: {error}"
        for name, want in (("code", code), ("param", param)):
            got = getattr(error, name, None)
            assert want is None or got == want, f"{name} is {got!r}, not {want!r}: {error}"
        return
    raise AssertionError(f"no {kind.__name__}" + (f" about {words[0]}" if words else ""))


def equal(got, want, what="it"):
    assert got == want, f"{what} is {got!r}, not {want!r}"


def eventually(check, seconds, what):
    """Waits until `check` is true, and says how long that took."""
    start = time.monotonic()
    while not check():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - start


def word_within(text):
    """A word from the middle of a text that does not occur before."""
    words = [w for w in text.split() if len(w) > 2 and w.isalpha()]
    for word in words[len(words) // 3 :]:
        at = text.find(word)
        if at > 0:
            return word, text[:at]
    raise AssertionError(f"no word to stop at in {text!r}")
