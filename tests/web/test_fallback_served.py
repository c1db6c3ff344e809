"""A fallback, served: the client gets the answer, the operator sees what it took."""

import json
from pathlib import Path

from rejoinder.config import parse
from rejoinder.testing import running_server
from tests.service.servers import free_port
from tests.web import wire


def test_moves_and_breakers_are_metrics(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"pieces": ["Hello"]}) + "\n")
    config = parse(
        f"""
        [[models]]
        id = "gone"
        backend = "remote"
        base_url = "http://127.0.0.1:{free_port()}/v1"
        max_retries = 0
        [[models]]
        id = "spare"
        backend = "scripted"
        script = "{script}"
        [[fallbacks]]
        id = "m"
        models = ["gone", "spare"]
        """
    )
    with running_server(config) as server:
        for _ in range(7):
            answer = wire.chat(server.port)
            assert answer.json["choices"][0]["message"]["content"] == "Hello"
        metrics = wire.request(server.port, "GET", "/metrics").body.decode()
    moves = 'rejoinder_fallback_moves_total{code="ProviderFailed",model="m",provider="gone"} 5.0'
    assert moves in metrics, "after five failures in a row it is left alone"
    for provider, state in (("gone", "open"), ("spare", "closed")):
        labels = f'model="m",provider="{provider}",state="{state}"'
        assert f"rejoinder_provider_state{{{labels}}} 1.0" in metrics
