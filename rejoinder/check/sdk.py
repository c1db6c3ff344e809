"""How the official SDKs fold a stream: the merge rule that chunks must obey (R225).

Objects merge key by key, strings join, numbers add up, lists merge by the `index` of their
items; `index` and `type` are replaced. Must not know: what the keys mean.
"""

from rejoinder.check.exchange import Chunk, as_list, as_object, is_int
from rejoinder.types import Json, JsonObject


class CannotMerge(Exception):
    """The SDK would raise here."""


def merge(whole: JsonObject, delta: JsonObject) -> JsonObject:
    for key, piece in delta.items():
        whole[key] = _merged(key, whole.get(key), piece)
    return whole


def _merged(key: str, before: Json, piece: Json) -> Json:
    if before is None or key in ("index", "type"):
        return piece
    match before, piece:
        case str(), str():
            return before + piece
        case dict(), dict():
            return merge(before, piece)
        case list(), list():
            return _merged_list(key, before, piece)
        case (bool(), _) | (_, bool()):
            return piece
        case (int() | float(), int() | float()):
            return before + piece
        case _:
            return before if piece is None else piece


def _merged_list(key: str, before: list[Json], pieces: list[Json]) -> list[Json]:
    if all(isinstance(one, str | int | float) for one in before):
        return before + pieces
    for piece in pieces:
        if not isinstance(piece, dict):
            raise CannotMerge(f"{key} holds something that is no object")
        index = piece.get("index")
        if not isinstance(index, int) or not is_int(index):
            raise CannotMerge(f"an item of {key} has no integer index")
        if 0 <= index < len(before):
            before[index] = merge(as_object(before[index]), piece)
        else:
            before.insert(index, piece)
    return before


def fold(chunks: list[Chunk]) -> dict[int, JsonObject]:
    """The message of each choice as an SDK would hand it out. Raises CannotMerge."""
    messages: dict[int, JsonObject] = {}
    for chunk in chunks:
        if chunk.json.get("object") not in ("chat.completion.chunk", None):
            continue
        for choice in chunk.choices:
            if choice.index is None:
                raise CannotMerge("a choice has no integer index")
            copy = _copy(choice.delta)
            messages[choice.index] = merge(messages.get(choice.index, {}), as_object(copy))
    return messages


def _copy(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _copy(child) for key, child in value.items()}
    return [_copy(child) for child in as_list(value)] if isinstance(value, list) else value
