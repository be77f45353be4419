"""Plain HTTP: who may ask, what is too much, and what is not HTTP at all."""

import contextlib
import http.client
import json
import socket
import time

from support import MODEL, NIGHT, equal

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": NIGHT, "max_tokens": 2}


def test_health(server):
    equal(server.http("GET", "/health")[0], 200, "the status of GET")
    status, _, data = server.http("HEAD", "/health")
    equal((status, data), (200, b""), "the answer to HEAD")


def test_other_host(server):
    """A page that has its own name point at this address must not reach it."""
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "169.254.1.1",
        "127.0.0.1.evil.example",
        "",
    ):
        for method, path, body in (
            ("GET", "/v1/models", None),
            ("POST", CHAT, BODY),
            ("GET", "/", None),
        ):
            status, _, data = server.http(method, path, body, {"Host": host})
            assert status in (403, 400) if not host else status == 403, (
                f"{host!r} {path}: {status} {data}"
            )
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", "localhost"):
        equal(
            server.http("GET", "/v1/models", None, {"Host": host})[0], 200, f"the status for {host}"
        )


def test_other_origin(server):
    for origin in ("http://evil.example", "https://127.0.0.1.evil.example", "null", "file://",
                   f"http://localhost:{server.port + 1}"):  # fmt: skip
        for method, path, body in (("POST", CHAT, BODY), ("GET", "/troika/status", None)):
            status, _, data = server.http(method, path, body, {"Origin": origin})
            equal(status, 403, f"the status for {origin} at {path} ({data})")
    own = {"Origin": f"http://{server.host}:{server.port}"}
    equal(server.http("POST", CHAT, BODY, own)[0], 200, "the status for the own origin")


def test_no_cors(server):
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for method, headers in (("GET", {}), ("OPTIONS", asked), ("GET", asked)):
        status, answer, _ = server.http(method, "/v1/models", None, headers)
        allowed = [name for name in answer if name.lower().startswith("access-control")]
        equal(allowed, [], f"the CORS headers of {method}: {status}")


def test_error_is_json(server):
    for method, path, body, want in [
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/nothing", None, 404),
        ("GET", "/v1/../../etc/passwd", None, 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", None, 404),
        ("POST", "/api/nothing", {}, 404),
        ("GET", CHAT, None, 405),
        ("DELETE", CHAT, None, 405),
        ("PUT", "/v1/models", {}, 405),
        ("POST", CHAT, "{", 400),
        ("POST", CHAT, "", 400),
        ("POST", CHAT, "[]", 400),
        ("POST", CHAT, "null", 400),
        ("POST", CHAT, "5", 400),
        ("POST", CHAT, b"\xff\xfe", 400),
        ("POST", CHAT, '{"model": "built-in", "messages": [1e999]}', 400),
        ("POST", CHAT, "[" * 100_000, 400),
        ("POST", CHAT, '{"a":' * 100_000, 400),
        ("POST", "/v1/messages", "{", 400),
        ("POST", "/v1/responses", "{", 400),
        ("POST", "/api/chat", "{", 400),
        ("POST", "/tokenize", "{", 400),
    ]:
        status, headers, data = server.http(method, path, body)
        what = f"{method} {path} {str(body)[:30]!r}: {status} {str(data)[:200]}"
        equal(status, want, f"the status of {what}")
        assert isinstance(data, dict) and data.get("error"), f"no JSON with an error: {what}"
        words = data["error"] if isinstance(data["error"], str) else data["error"]["message"]
        assert len(words) > 15, f"no words: {what}"
        if want == 405:
            assert headers["Allow"], f"no header Allow: {what}"


def test_json_says_where(server):
    body = '{"model": "built-in",\n "messages": [,]}'
    _, _, data = server.http("POST", CHAT, body)
    assert "line 2" in data["error"]["message"], data


def test_body_without_type(server):
    """Curl without -H sends a form's type. Either it is read as JSON, or refused in words."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    status, _, data = server.http("POST", CHAT, json.dumps(BODY), headers)
    assert status in (200, 415) and (status == 200 or data["error"]["message"]), f"{status} {data}"


def test_body_is_too_big(server):
    """The length alone is enough to refuse it."""
    connection = server.connect()
    try:
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(1 << 33))
        connection.endheaders()
        connection.send(b'{"model": "')
        answer = connection.getresponse()
        data = answer.read()
        equal(answer.status, 413, f"the status ({data[:100]!r})")
        assert json.loads(data)["error"]["message"], data
    finally:
        connection.close()


def test_a_body_that_is_too_big_may_be_sent_whole(server):
    """A client that sends first and reads then sees why it was refused."""
    body = {"messages": [{"role": "user", "content": "a" * (40 << 20)}]}
    status, _, data = server.http("POST", CHAT, body)
    assert status == 413 and "--max-body" in data["error"]["message"], (status, data)


def test_body_without_length_is_too_big(server):
    """Of a body in chunks, not more than the limit is read."""
    sent, connection = 0, server.connect()
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    try:
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        with contextlib.suppress(ConnectionError):
            while sent < 1 << 28:
                connection.send(chunk)
                sent += 65536
        assert sent < 1 << 28, "256 MB were read"
        # The answer may be lost, since the server closes while more is on its way.
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            equal(connection.getresponse().status, 413, "status")
    finally:
        connection.close()
    equal(server.http("GET", "/health")[0], 200, "the status of /health")


def raw(server, data, wait=5):
    """Sends bytes; what comes back until the server closes or nothing more comes."""
    with socket.create_connection((server.host, server.port), timeout=wait) as stream:
        stream.sendall(data)
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := stream.recv(65536):
                got += piece
                if len(got) > 1 << 16 or got.endswith(b"}"):
                    break
        return got


def test_a_refusal_leaves_the_connection_open(server):
    """Also where the body arrives after the headers: the next request of the client is answered."""
    for start in ("POST /api/copy", "PUT /v1/models", "DELETE /api/chat"):
        with socket.create_connection((server.host, server.port), timeout=5) as stream:
            head = f"{start} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
            stream.sendall(head.encode())
            time.sleep(0.1)
            stream.sendall(b"{}")
            refused = stream.recv(65536)
            assert refused.startswith(b"HTTP/1.1 40"), refused
            stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            health = stream.recv(65536)
            assert health.startswith(b"HTTP/1.1 200"), (start, health)


def test_not_http(server):
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n{}",
    ):
        with contextlib.suppress(ConnectionError):
            got = raw(server, data)
            first = got.split(b"\r\n")[0]
            assert not got or b" 4" in first or b" 505 " in first, f"{data[:40]!r}: {first!r}"
    equal(server.http("GET", "/health")[0], 200, "the status of /health")


def test_no_host(server):
    """HTTP/1.1 without the header Host names no server."""
    got = raw(server, b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert got.split(b" ")[1] in (b"400", b"403"), got[:200]


def test_browser_is_kept_from_guessing(server):
    """Answers say what they are, and the page may not be put into another."""
    _, headers, _ = server.http("GET", "/")
    equal(headers["X-Content-Type-Options"], "nosniff", "X-Content-Type-Options")
    policy = headers["Content-Security-Policy"] or ""
    assert "frame-ancestors 'none'" in policy or headers["X-Frame-Options"] == "DENY", policy
