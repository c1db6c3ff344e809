"""For tests of applications: a real server on a scripted model, in this process.

    with scripted_server([{"pieces": ["Hello", " there"]}]) as server:
        client = OpenAI(base_url=server.url + "/v1", api_key="none")

It must not know: pytest. (The fixture is in `rejoinder.testing_plugin`.)
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from rejoinder import config as configuration
from rejoinder.serving import background

__all__ = ["TestServer", "running_server", "scripted_server"]

MODEL = "m"


class TestServer(Struct, frozen=True):
    """A running server. `url` has no path: add `/v1`, or `/v1/openai` for DeepInfra's dialect."""

    __test__ = False

    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running_server(config: configuration.Config) -> Iterator[TestServer]:
    """A server of any configuration on a free loopback port; its database is in memory."""
    store = configuration.StoreConfig(url="sqlite://")
    if config.store == configuration.StoreConfig():
        config = configuration.with_store(config, store)
    with background(config) as url:
        yield TestServer(url)


@contextmanager
def scripted_server(
    script: Iterable[Mapping[str, object]], *, model: str = MODEL, toml: str = ""
) -> Iterator[TestServer]:
    """A server with one scripted model.

    `script`: the lines of the script (docs/scripted.md); `toml`: further lines of the model's
    table and further tables of the configuration.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in script), encoding="utf-8")
        head = f'[[models]]\nid = "{model}"\nbackend = "scripted"\nscript = "{path}"\n'
        with running_server(configuration.parse(head + toml)) as server:
            yield server
