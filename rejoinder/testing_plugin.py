"""The pytest fixture of `rejoinder.testing`; registered by the package's entry point."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from rejoinder.testing import MODEL, TestServer, scripted_server

ScriptedFactory = Callable[..., TestServer]


@pytest.fixture
def rejoinder_scripted() -> Iterator[ScriptedFactory]:
    """A factory of servers on scripted models: `rejoinder_scripted(script, model=…, toml=…)`.

    The servers stop at the end of the test. `script`: the lines of docs/scripted.md.
    """
    with ExitStack() as stack:

        def start(
            script: Iterable[Mapping[str, object]], *, model: str = MODEL, toml: str = ""
        ) -> TestServer:
            return stack.enter_context(scripted_server(script, model=model, toml=toml))

        yield start
