"""`rejoinder chat`: a chat in the terminal with any chat-completions server.

Reasoning is dimmed, speed is shown after each answer. It must not know: how the server works.
"""

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from rich.console import Console

from rejoinder.dialects.sse import SseReader

HELP = """\
/help            this list
/system TEXT     set the system prompt and start over
/model NAME      use another model
/set NAME VALUE  a sampling parameter, e.g. /set temperature 0.2
/params          the parameters that are set
/retry           ask the last question again
/clear           forget the conversation
/multi           write several lines; a line with a single dot ends them
/exit            leave (also Ctrl-D)
"""


class ChatError(Exception):
    """The server answered with an error, or not at all."""


class Turn(Struct):
    """What one answer came to. Times in seconds."""

    content: str = ""
    first_seconds: float | None = None
    total_seconds: float = 0.0
    num_tokens: int = 0
    finish_reason: str | None = None


class ChatClient:
    """Asks one server for streamed answers."""

    def __init__(self, url: str, *, model: str, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.hostname is None:
            raise ChatError(f"'{url}' is not a URL")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        path = parts.path.rstrip("/")
        self._path = (path if path.endswith(("/v1", "/openai")) else path + "/v1") + "/"
        self.model = model
        self._api_key = api_key

    def models(self) -> list[str]:
        """The ids that the server lists. Raises ChatError."""
        with self._request("GET", "models", None) as response:
            tree = json.loads(response.read())
        return [row["id"] for row in tree.get("data", [])]

    def ask(self, messages: list[dict[str, str]], parameters: dict[str, Any]) -> Iterator[Any]:
        """The chunks of one answer as JSON objects. Raises ChatError."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **parameters,
        }
        with self._request("POST", "chat/completions", body) as response:
            reader = SseReader()
            while data := response.read1(65536):
                for payload in reader.feed(data):
                    if payload == "[DONE]":
                        return
                    chunk = json.loads(payload)
                    if "error" in chunk:
                        raise ChatError(chunk["error"].get("message", "unknown error"))
                    yield chunk
        raise ChatError("the stream ended without [DONE]")

    def _request(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=300)
        headers = {"Content-Type": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, data, headers)
            response = connection.getresponse()
        except OSError as error:
            raise ChatError(
                f"no server answers at {self._host}:{self._port} ({error}); "
                "start one with `rejoinder serve`, or give its URL"
            ) from None
        if response.status != 200:
            raise ChatError(_message_of(response))
        return response


def _message_of(response: http.client.HTTPResponse) -> str:
    raw = response.read(100_000)
    if response.status == 401:
        return "401: this server needs an API key: give --api-key, or set REJOINDER_API_KEY"
    try:
        error = json.loads(raw)["error"]
        return f"{response.status}: {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status}: {raw[:200].decode(errors='replace')}"


class TerminalChat:
    """The loop: read a line, ask, print as it comes."""

    def __init__(
        self,
        client: ChatClient,
        *,
        system: str | None,
        console: Console,
        parameters: Mapping[str, Any],
    ) -> None:
        self._client = client
        self._console = console
        self._messages: list[dict[str, str]] = []
        self._parameters: dict[str, Any] = dict(parameters)
        self._set_system(system)

    def _set_system(self, system: str | None) -> None:
        self._messages = [{"role": "system", "content": system}] if system else []

    def run(self) -> None:
        self._console.print(f"Talking to [bold]{self._client.model}[/]. /help lists commands.")
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print("\nCtrl-D or /exit leaves.")
                continue
            if line in ("/exit", "/quit"):
                return
            if line == "/multi":
                line = self._read_lines()
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._messages.append({"role": "user", "content": line})
                self._answer()

    def say(self, text: str) -> Turn:
        """One question without the loop. Raises ChatError."""
        self._messages.append({"role": "user", "content": text})
        return self._print_answer()

    def _answer(self) -> None:
        try:
            turn = self._print_answer()
        except ChatError as error:
            self._console.print(f"[red]{error}[/]", highlight=False)
            self._messages.pop()
            return
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped[/]")
            self._messages.pop()
            return
        self._messages.append({"role": "assistant", "content": turn.content})
        speed = turn.num_tokens / max(turn.total_seconds - (turn.first_seconds or 0), 1e-9)
        first = (turn.first_seconds or turn.total_seconds) * 1000
        self._console.print(
            f"[dim]{turn.num_tokens} tokens, {speed:.0f} tokens/s, first after {first:.0f} ms, "
            f"finish {turn.finish_reason}[/]",
            highlight=False,
        )

    def _print_answer(self) -> Turn:
        turn = Turn()
        started = time.perf_counter()
        for chunk in self._client.ask(self._messages, self._parameters):
            turn.num_tokens = (chunk.get("usage") or {}).get("completion_tokens", turn.num_tokens)
            for choice in chunk.get("choices", []):
                delta = choice["delta"]
                reasoning, text = delta.get("reasoning_content"), delta.get("content")
                if (reasoning or text) and turn.first_seconds is None:
                    turn.first_seconds = time.perf_counter() - started
                if reasoning:
                    self._console.print(reasoning, end="", style="dim", markup=False)
                if text:
                    turn.content += text
                    self._console.print(text, end="", markup=False, highlight=False)
                turn.finish_reason = choice.get("finish_reason") or turn.finish_reason
        turn.total_seconds = time.perf_counter() - started
        self._console.print()
        return turn

    def _read_lines(self) -> str:
        lines: list[str] = []
        while (line := input(". ")) != ".":
            lines.append(line)
        return "\n".join(lines)

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        match word:
            case "/help":
                self._console.print(HELP, markup=False, highlight=False)
            case "/system":
                self._set_system(rest)
            case "/clear":
                self._messages = [m for m in self._messages if m["role"] == "system"]
            case "/model" if rest:
                self._client.model = rest
            case "/params":
                self._console.print(self._parameters)
            case "/set" if " " in rest:
                name, _, value = rest.partition(" ")
                try:
                    self._parameters[name] = json.loads(value)
                except ValueError:
                    self._parameters[name] = value
            case "/retry":
                self._retry()
            case _:
                self._console.print(f"[red]unknown command {word}[/]; /help lists them")

    def _retry(self) -> None:
        while self._messages and self._messages[-1]["role"] == "assistant":
            self._messages.pop()
        if self._messages and self._messages[-1]["role"] == "user":
            self._answer()
