"""The rows of `CallSpelling`, by the name of the tool format."""

from rejoinder.text.call_spelling import CallSpelling

SPELLINGS: dict[str, CallSpelling] = {
    "json": CallSpelling(
        before='{"name": {name}, "arguments": ',
        after="}",
        many=False,
    ),
    "hermes": CallSpelling(
        before='<tool_call>\n{"name": {name}, "arguments": ',
        after="}\n</tool_call>",
        between="\n",
        trigger="<tool_call>",
    ),
}
