"""/metrics as Prometheus reads it, and /troika's own endpoints."""

import json

from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_parser

from support import MODEL, equal

WANTED = {
    "the time to the first token": ("time_to_first_token", "ttft"),
    "the time of an output token": ("time_per_output_token", "tpot"),
    "the queue": ("queue",),
    "pages": ("pages",),
    "prefixes that were cached": ("prefix",),
    "the time devices were busy": ("busy",),
    "tokens": ("tokens",),
    "requests": ("requests",),
}


def read(server):
    status, headers, data = server.http("GET", "/metrics")
    equal(status, 200, "status")
    # Either of the two forms that Prometheus reads.
    kind = headers["Content-Type"].split(";")[0]
    assert kind in ("text/plain", "application/openmetrics-text"), kind
    used = open_parser if kind == "application/openmetrics-text" else parser
    return list(used.text_string_to_metric_families(data.decode()))


def test_all_are_there(server):
    families = read(server)
    names = [f.name for f in families]
    for what, words in WANTED.items():
        assert any(word in name for name in names for word in words), f"no {what} in {names}"
    equal(len(names), len(set(names)), "the number of names")
    for family in families:
        assert family.type != "unknown" and family.documentation, f"{family.name} is not explained"


def test_histograms(server):
    server.chat()
    found = [f for f in read(server) if f.type == "histogram"]
    assert len(found) >= 2, found
    for family in found:
        series = {}
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "le"}
            one = series.setdefault(str(sorted(labels.items())), {"buckets": []})
            if sample.name.endswith("_bucket"):
                one["buckets"].append((float(sample.labels["le"]), sample.value))
            one[sample.name.rsplit("_", 1)[-1]] = sample.value
        for one in series.values():
            counts = [count for _, count in sorted(one["buckets"])]
            equal(counts, sorted(counts), f"the order of buckets of {family.name}")
            equal(counts[-1], one["count"], f"the last bucket of {family.name}")
            assert one["sum"] >= 0, one


def total(server, *words):
    """The sum of counters whose names have all these words."""
    return sum(
        sample.value
        for family in read(server)
        for sample in family.samples
        if family.type == "counter" and all(word in sample.name for word in words)
        and not sample.name.endswith("_created")
    )  # fmt: skip


def test_they_count(server):
    before = total(server, "tokens"), total(server, "requests")
    used = server.chat(max_tokens=20).usage.completion_tokens
    after = total(server, "tokens"), total(server, "requests")
    assert after[0] - before[0] >= used and after[1] > before[1], (before, after)


def test_status(server):
    status = server.status()
    for name in ("version", "uptime_s", "clients", "queued", "running", "memory_bytes",
                 "memory_budget_bytes", "watts", "default_model", "models"):  # fmt: skip
        assert name in status, f"no {name} in {status}"
    equal(status["default_model"], MODEL, "default_model")
    model = server.model_status()
    for name in ("state", "why", "devices", "context", "weight_bytes", "sequences", "pages_used",
                 "pages", "prefill_tok_s", "decode_tok_s", "expert_hits", "template",
                 "busy"):  # fmt: skip
        assert name in model, f"no {name} in {model}"
    # Rates are of a short while, which may lie between a prompt and its answer.
    prefill, decode = 0, 0
    for _ in range(100):
        server.chat()
        model = server.model_status()
        prefill = max(prefill, model["prefill_tok_s"])
        decode = max(decode, model["decode_tok_s"])
        if prefill > 0 and decode > 0:
            break
    assert prefill > 0 and decode > 0, model
    equal(model["state"], "open", "the state")
    assert model["context"] >= 1024, model
    assert model["pages"] >= model["pages_used"] and model["weight_bytes"] > 1_000_000, model


def test_events(server):
    """Every quarter of a second, what the devices did."""
    connection = server.connect(10)
    try:
        connection.request("GET", "/troika/events")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream"), answer.headers
        server.chat(max_tokens=40)
        seen, times = [], []
        while len(times) < 4:
            line = answer.readline().decode().strip()
            if line.startswith("event:"):
                equal(line, "event: spans", "the event")
            if line.startswith("data:"):
                data = json.loads(line.removeprefix("data:"))
                times.append(data["now"])
                seen += data["spans"]
                equal(data["status"]["default_model"], MODEL, "default_model")
    finally:
        connection.close()
    equal(times, sorted(times), "the times")
    assert 0.4 < times[-1] - times[0] < 3, times
    assert seen, "no spans of a request"
    for span in seen:
        assert span["lane"] and span["name"] and 0 <= span["start"] <= span["end"], span


def test_plan(server):
    status, _, plan = server.http("GET", f"/troika/plan?model={MODEL}")
    equal(status, 200, "status")
    equal(plan["model"], MODEL, "model")
    assert plan["rules"] and plan["text"] and isinstance(plan["refusals"], list), plan
    for rule in plan["rules"]:
        assert rule["phase"] in ("prefill", "decode") and rule["device"] and rule["why"], rule
    equal(server.http("GET", "/troika/plan?model=gpt-9")[0], 200, "the status for any name")
