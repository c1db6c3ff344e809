"""The tool deltas of one choice as providers send them → calls opened and filled one by one.

Calls are numbered 0, 1, 2 … as they appear; each opens with its id and whole name; a call that
comes while another is still being filled waits for it (R133–R138). This module must not know:
chunks, content, what the tools do.
"""

import re
from collections.abc import Callable, Collection
from typing import Literal

import msgspec

from rejoinder.events import Event, ToolCallDelta, ToolCallStart
from rejoinder.types import JsonObject

__all__ = ["CallAssembler"]

_STRUCTURE = re.compile(r'[{}\[\]"\\]')


class _Call:
    """One call. `fragments[sent:]` are still to be given out; `number` once it has opened."""

    __slots__ = (
        "_depth",
        "_escaped",
        "_in_string",
        "_scanned",
        "closed",
        "dropped",
        "ended",
        "fragments",
        "kind",
        "name",
        "num_chars",
        "number",
        "placeholder",
        "provider_id",
        "sent",
    )

    def __init__(self) -> None:
        self.provider_id = ""
        self.name = ""
        self.kind: Literal["function", "custom"] = "function"
        self.fragments: list[str] = []
        self.num_chars = 0
        self.sent = 0
        self.number: int | None = None
        self.dropped = False
        self.closed = False
        self.placeholder = False
        self.ended = False
        self._scanned = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def has_ended(self) -> bool:
        """Whether the arguments are one whole JSON object; each fragment is read once."""
        if self.placeholder and not self.fragments:
            return True
        while self._scanned < len(self.fragments) and not self.ended:
            self._scan(self.fragments[self._scanned])
            self._scanned += 1
        return self.ended

    def _scan(self, fragment: str) -> None:
        start = 0
        if self._escaped and fragment:
            self._escaped = False
            start = 1
        for match in _STRUCTURE.finditer(fragment, start):
            at = match.start()
            if at < start:
                continue
            match match.group():
                case "\\" if self._in_string:
                    start = at + 2
                    self._escaped = start > len(fragment)
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[" if not self._in_string:
                    self._depth += 1
                case "}" | "]" if not self._in_string:
                    self._depth -= 1
                    self.ended |= self._depth <= 0
                case _:
                    pass


class CallAssembler:
    """Tool deltas of one choice in, events out; made per choice.

    `new_id` makes ids for calls without one; `used_ids` is shared by all choices of an answer
    (R138); `tool_names`, where known, tell a split name from a whole one; calls after the first
    `max_calls` are dropped (R143). `deviate(kind, detail)` is told of every repair.
    """

    __slots__ = (
        "_by_id",
        "_by_index",
        "_calls",
        "_deviate",
        "_front",
        "_index",
        "_max_calls",
        "_new_id",
        "_num_started",
        "_tool_names",
        "_used_ids",
    )

    def __init__(
        self,
        index: int,
        *,
        new_id: Callable[[], str],
        used_ids: set[str],
        deviate: Callable[[str, str], None],
        tool_names: Collection[str] = (),
        max_calls: int | None = None,
    ) -> None:
        self._index = index
        self._new_id = new_id
        self._used_ids = used_ids
        self._deviate = deviate
        self._tool_names = tool_names
        self._max_calls = max_calls
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._front = 0
        self._num_started = 0

    def feed(self, entry: JsonObject, out: list[Event]) -> None:
        """One element of a delta's `tool_calls`."""
        body = _body(entry)
        index = self._whole_index(entry)
        call_id = self._word(entry, "id")
        name = self._word(body, "name")
        fragment = self._arguments(body)
        call = self._resolve(index, call_id, name, fragment)
        if entry.get("type") == "custom" or "custom" in entry:
            call.kind = "custom"
        if call_id and not call.provider_id:
            call.provider_id = call_id
            self._by_id.setdefault(call_id, call)
        if name:
            self._take_name(call, name)
        if fragment and not call.dropped:
            self._take_fragment(call, fragment)
        self._advance(out)

    def flush(self, out: list[Event], *, cut: bool) -> tuple[int, bool]:
        """The choice has ended: gives out what waits. How many calls there are, and whether one
        had to be dropped. `cut`: the answer was cut short, arguments may be incomplete."""
        malformed = False
        while self._front < len(self._calls):
            call = self._calls[self._front]
            if call.name:
                self._give(call, out)
                if not cut or call.has_ended():
                    self._complete(call, out)
            else:
                self._deviate("call_name_missing", f"call {self._front}")
                malformed = True
            self._front += 1
        return self._num_started, malformed

    # ------------------------------------------------------------ which call

    def _resolve(self, index: int | None, call_id: str, name: str, fragment: str) -> _Call:
        known = self._by_id.get(call_id) if call_id else None
        here = self._by_index.get(index) if index is not None else None
        if known is not None:
            return self._known(known, here, index, name, fragment)
        if call_id:
            return self._with_new_id(here, index, name)
        if here is not None:
            return self._at_index(here, index, name, fragment)
        last = self._calls[-1] if self._calls else None
        if index is not None or last is None:
            return self._open(index)
        self._deviate("call_index_missing", "fragment")
        if not name or (name == last.name and not last.has_ended()):
            return last
        if last.number is None and not last.fragments:
            return last  # the rest of a name
        return self._open(None)

    def _known(
        self, known: _Call, here: _Call | None, index: int | None, name: str, fragment: str
    ) -> _Call:
        another_index = index is not None and here is None
        another_whole = here is None and fragment[:1] == "{" and not _same(known, fragment)
        if name and (another_index or (another_whole and known.has_ended())):
            self._deviate("call_id_duplicate", name)
            return self._open(index)
        self._deviate("call_id_repeated", name)
        return known

    def _with_new_id(self, here: _Call | None, index: int | None, name: str) -> _Call:
        if here is not None:
            if not here.provider_id and not (name and here.has_ended()):
                return here
            if name or here.has_ended():
                self._deviate("call_index_reused", str(index))
                return self._open(index)
            self._deviate("call_id_repeated", "another id")
            return here
        last = self._calls[-1] if self._calls else None
        if index is None and not name and last is not None and not last.has_ended():
            return last
        return self._open(index)

    def _at_index(self, here: _Call, index: int | None, name: str, fragment: str) -> _Call:
        if not name or here.dropped:
            return here
        opened = bool(here.fragments) or here.number is not None
        another = bool(here.name) and name != here.name and opened
        again = here.has_ended() and bool(fragment) and not _same(here, fragment)
        if another or again:
            self._deviate("call_index_reused", str(index))
            return self._open(index)
        return here

    def _open(self, index: int | None) -> _Call:
        call = _Call()
        number = len(self._calls)
        if self._max_calls is not None and number >= self._max_calls:
            self._deviate("extra_call", str(number))
            call.dropped = True
        else:
            self._calls.append(call)
        if index is None:
            self._deviate("call_index_missing", "opening")
        elif index != number and index not in self._by_index and not call.dropped:
            self._deviate("call_index_gap", f"{index} for {number}")
        self._by_index[number if index is None else index] = call
        return call

    # ------------------------------------------------------------ what it says

    def _take_name(self, call: _Call, name: str) -> None:
        if not call.name:
            call.name = name
        elif name == call.name or call.number is not None or call.dropped:
            self._deviate("call_name_repeated", call.name)
        else:
            self._deviate("call_name_split", call.name)
            call.name = name if name.startswith(call.name) else call.name + name

    def _take_fragment(self, call: _Call, fragment: str) -> None:
        function = call.kind == "function"
        if function and not call.fragments:
            if fragment == "{}" and not call.placeholder:
                call.placeholder = True  # all there is, or the opening of a call with arguments
                return
            if call.placeholder and not fragment.lstrip().startswith("{"):
                self._append(call, "{}")
        if function and _same(call, fragment):
            self._deviate("arguments_repeated", call.name)
            return
        if call is not self._calls[-1]:
            self._deviate("calls_interleaved", call.name)
            if call.closed:
                return  # nothing belongs after the end of an object
        self._append(call, fragment)

    @staticmethod
    def _append(call: _Call, fragment: str) -> None:
        call.fragments.append(fragment)
        call.num_chars += len(fragment)

    def _arguments(self, body: JsonObject) -> str:
        value = body.get("arguments", body.get("input"))
        if value is None or isinstance(value, str):
            return value or ""
        self._deviate("arguments_object", type(value).__name__)
        return msgspec.json.encode(value).decode() if value != {} else ""

    def _word(self, holder: JsonObject, key: str) -> str:
        value = holder.get(key)
        if isinstance(value, str):
            return value
        if value is None:
            if key in holder:
                self._deviate("call_null", key)
            return ""
        return str(value) if isinstance(value, int) else ""

    def _whole_index(self, entry: JsonObject) -> int | None:
        value = entry.get("index")
        if isinstance(value, float | str):
            try:
                value = int(value)
            except (ValueError, OverflowError):
                return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        return None

    # ------------------------------------------------------------ giving out

    def _advance(self, out: list[Event]) -> None:
        calls = self._calls
        while self._front < len(calls):
            call = calls[self._front]
            if self._is_named(call):
                self._give(call, out)
            if self._front + 1 == len(calls):
                return
            if call.number is None or not call.has_ended():
                return
            self._complete(call, out)
            call.closed = True
            self._front += 1

    def _is_named(self, call: _Call) -> bool:
        """Whether the name is whole: a known tool's, or not the beginning of one."""
        name = call.name
        if not name or call.number is not None or call.fragments or name in self._tool_names:
            return bool(name)
        return not any(known.startswith(name) for known in self._tool_names)

    def _give(self, call: _Call, out: list[Event]) -> None:
        if call.number is None:
            call.number = self._num_started
            self._num_started += 1
            out.append(
                ToolCallStart(self._index, call.number, self._shown_id(call), call.name, call.kind)
            )
        for fragment in call.fragments[call.sent :]:
            out.append(ToolCallDelta(self._index, call.number, fragment))
        call.sent = len(call.fragments)

    def _complete(self, call: _Call, out: list[Event]) -> None:
        """A function call without arguments has an empty object of them."""
        if call.fragments or call.kind == "custom" or call.number is None:
            return
        if not call.placeholder:
            self._deviate("arguments_missing", call.name)
        out.append(ToolCallDelta(self._index, call.number, "{}"))

    def _shown_id(self, call: _Call) -> str:
        shown = call.provider_id
        if not shown:
            self._deviate("call_id_missing", call.name)
        elif shown in self._used_ids:
            self._deviate("call_id_duplicate", call.name)
        while not shown or shown in self._used_ids:
            shown = self._new_id()
        self._used_ids.add(shown)
        return shown


def _body(entry: JsonObject) -> JsonObject:
    for key in ("function", "custom"):
        body = entry.get(key)
        if isinstance(body, dict):
            return body
    return entry if "name" in entry or "arguments" in entry else {}


def _same(call: _Call, fragment: str) -> bool:
    """Whether a fragment is the whole arguments once more."""
    return (
        len(fragment) == call.num_chars
        and len(fragment) > 1
        and fragment[0] == "{"
        and fragment[-1] == "}"
        and fragment == "".join(call.fragments)
    )
