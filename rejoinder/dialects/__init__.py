"""Wire ⇄ core: what a dialect is. Pure, synchronous, no I/O, no clock.

A dialect turns request bytes into a `DecodedRequest` and events into bytes. It must not know:
engines, backends, HTTP, asyncio.
"""

from rejoinder.dialects.deepinfra import DeepInfra
from rejoinder.dialects.dialect import ChunkEncoder, Dialect, RequestPolicy
from rejoinder.dialects.openai import OpenAI

__all__ = ["DEEPINFRA", "DIALECTS", "OPENAI", "ChunkEncoder", "Dialect", "RequestPolicy"]

OPENAI: Dialect = OpenAI()
DEEPINFRA: Dialect = DeepInfra()

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (OPENAI, DEEPINFRA)}
"""By the names that the configuration uses (`server.dialect`)."""
