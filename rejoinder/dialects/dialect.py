"""What a dialect is: request bytes → a DecodedRequest, events and completions → bytes.

This module must not know: any particular dialect.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

from rejoinder.errors import ChatError
from rejoinder.events import Event
from rejoinder.types import AnswerOptions, Completion, DecodedRequest, Usage

DialectName = Literal["openai", "deepinfra"]


class RequestPolicy(Struct, frozen=True):
    """What the configuration says about requests and answers (`server.extra_parameters`,
    `server.openai_reasoning`)."""

    extra_parameters: Literal["reject", "accept"] = "reject"
    openai_reasoning: Literal["hidden", "reasoning_content"] = "hidden"


class ChunkEncoder(Protocol):
    """Events of one answer → SSE frames; one object a stream."""

    def feed(self, event: Event, usage: Usage | None = None) -> bytes:
        """The frames of one event, complete with their blank lines; b"" when it shows nothing.

        `usage`: the counts so far, given only when the request wants them on every chunk.
        The frame that ends the stream (`sse.DONE`) is not among them: it also follows errors.
        """
        ...


class Dialect(Protocol):
    """One published spelling of the chat completions API."""

    name: DialectName
    impossible: Literal["refuse", "adapt"]
    """What to do with a wish that the served model cannot grant (a tier, a longer answer): an
    error in O, the next best in D."""

    def decode_request(self, body: bytes, policy: RequestPolicy) -> DecodedRequest:
        """Raises a ChatError that names the parameter."""
        ...

    def chunk_encoder(
        self, options: AnswerOptions, policy: RequestPolicy, padding: Callable[[], str]
    ) -> ChunkEncoder:
        """`padding` makes the random `obfuscation` text (A6); used only when asked for."""
        ...

    def encode_completion(
        self, completion: Completion, options: AnswerOptions, policy: RequestPolicy
    ) -> bytes: ...

    def encode_error(self, error: ChatError) -> tuple[int, bytes]:
        """HTTP status and JSON body; the body is also the payload of an error frame."""
        ...
