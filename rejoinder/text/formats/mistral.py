"""`mistral`: after `[TOOL_CALLS]` a list of JSON objects, or NAME`[ARGS]`{…} for each call."""

import re

from rejoinder.text.formats.format import CallSink, Reader, Schemas, Status, ToolFormat
from rejoinder.text.formats.json_calls import JsonCallReader, NamedJsonReader

_HEADER = re.compile(r"\s*(?P<name>[\w.\-]+)\s*(?:\[CALL_ID\]\s*[\w\-]*\s*)?(?:\[ARGS\])?\s*")


class _EitherShape:
    """A call that begins with `{` is an object with its name inside; else the name comes first."""

    def __init__(self, sink: CallSink) -> None:
        self.status: Status = "more"
        self._sink = sink
        self._reader: Reader | None = None

    def feed(self, text: str, position: int, *, final: bool) -> int:
        if self._reader is None:
            if position == len(text):
                return position
            if text[position] == "{":
                self._reader = JsonCallReader(self._sink, strict=False)
            else:
                self._reader = NamedJsonReader(self._sink, _HEADER, ("[TOOL_CALLS]",))
        position = self._reader.feed(text, position, final=final)
        self.status = self._reader.status
        return position


def _reader(sink: CallSink, schemas: Schemas) -> Reader:
    return _EitherShape(sink)


FORMAT = ToolFormat(
    name="mistral",
    aliases=("mistral_nemo", "magistral", "devstral"),
    reader=_reader,
    text={"[TOOL_CALLS]": "section"},
    separators=" \t\r\n,[]",
    starts=re.compile(r"[\w{]"),
    inner_markers=frozenset({"[ARGS]", "[CALL_ID]"}),
    template_marks=(("[TOOL_CALLS]",),),
)
