"""One GGUF model in llama.cpp: tokens, memory and logits, as integers and numpy views.

This module must not know: scheduling, sampling, accounts. Only the engine's thread may call what
changes the context; the tokenizer is free.
"""

import ctypes
import hashlib
import logging
import os
from collections.abc import Sequence as Tokens
from pathlib import Path

import llama_cpp as llama
import numpy as np
import numpy.typing as npt

from rejoinder.engines.llama.weights import (
    fast_bf16,
    find_weights,
    hash_weights,
    unpack_weights,
    unpacked_copy,
)
from rejoinder.errors import InvalidParameter, InvalidRequest

__all__ = ["BatchFailed", "LlamaModel", "LlamaTokenizer"]

log = logging.getLogger(__name__)

MAX_SEQUENCE_IDS = 256
"""The library's own bound (LLAMA_MAX_SEQ)."""

MAX_UNPACKED_BYTES = 1 << 30
"""Of a model as BF16. Reading the weights of a larger one takes longer than its arithmetic."""

SAMPLER_VERSION = 1
"""Part of the fingerprint: raise it when equal logits and seeds would give other tokens."""

_FLASH_ATTENTION = 1
_TYPE_K, _TYPE_V = 30, 1
"""BF16 and F16. With unequal types attention has one code path for every batch size, and a
sequence's logits do not depend on how it is batched, chunked, cached or drafted: with F16 twice
they differ by up to 0.5. See docs/decisions/0010-one-kv-cache-for-all-sequences.md."""
_TOKEN_ATTR_UNKNOWN = 1 << 0
_TOKEN_ATTR_CONTROL = 1 << 3
_POLL_LEVEL = 1
"""Idle threads of the pool spin about 2 ms between two steps: our own work in between is shorter,
and a machine that others use is not kept busy by an idle engine."""


_ABORTED = 2
"""What llama_decode answers when its abort callback said so."""


class BatchFailed(Exception):
    """llama_decode refused a batch; `code` is its answer."""

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode answered {code}")
        self.code = code


class Interrupted(Exception):
    """The batch was broken off by `LlamaModel.interrupt`."""


# ---------------------------------------------------------------- logging

_LEVELS = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _data: object) -> None:
    """What llama.cpp prints goes to our debug log: its warnings are about normal operation."""
    if log.isEnabledFor(logging.DEBUG):
        name = _LEVELS.get(level, logging.DEBUG)
        log.debug("llama.cpp %s: %s", logging.getLevelName(name), text.decode("utf-8", "replace"))


# ---------------------------------------------------------------- tokenizer


class LlamaTokenizer:
    """The model's own tokenizer; implements `rejoinder.types.Tokenizer`. Safe in any thread."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._size = int(llama.llama_vocab_n_tokens(vocab))
        self._bytes: list[bytes | None] = [None] * self._size
        self._control: dict[str, int] = {}
        end: set[int] = set()
        for token in range(self._size):
            attributes = llama.llama_vocab_get_attr(vocab, token)
            if attributes & (_TOKEN_ATTR_CONTROL | _TOKEN_ATTR_UNKNOWN):
                self._bytes[token] = b""
            if attributes & _TOKEN_ATTR_CONTROL:
                text = llama.llama_vocab_get_text(vocab, token) or b""
                self._control[text.decode("utf-8", "replace")] = token
            if llama.llama_vocab_is_eog(vocab, token):
                end.add(token)
                self._bytes[token] = b""
        self._end = frozenset(end)

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def end_token_ids(self) -> frozenset[int]:
        return self._end

    @property
    def control_tokens(self) -> dict[str, int]:
        return dict(self._control)

    @property
    def bos_text(self) -> str:
        """The text of the token that begins a prompt, as templates write it; or empty."""
        return self._text_of(llama.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        return self._text_of(llama.llama_vocab_eos(self._vocab))

    def _text_of(self, token: int) -> str:
        if not 0 <= token < self._size:
            return ""
        return (llama.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def encode(self, text: str, *, special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        if not raw:
            return []
        room = len(raw) + 8
        while True:
            buffer = (llama.llama_token * room)()
            count = llama.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, special)
            if count >= 0:
                return list(buffer[:count])
            room = -count

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._size:
            raise InvalidParameter(
                f"The token id {token_id} is outside of the model's vocabulary.", param="tokens"
            )
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._read_bytes(token_id)
        return known

    def _read_bytes(self, token_id: int) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            count = llama.llama_token_to_piece(self._vocab, token_id, buffer, room, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            room = -count


# ---------------------------------------------------------------- threads


class _PoolParams(ctypes.Structure):
    """ggml_threadpool_params, which the Python binding leaves out."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * 512),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


class _ThreadPool:
    """One pool for the life of a context: without it ggml starts threads for every step.

    A build of the library that lacks the entry points works without, only slower. They are looked
    up through the library that is loaded: opening its parts by file name loads second copies,
    whose threads would compute with tables that nobody has filled.
    """

    def __init__(self, context: int, num_threads: int) -> None:
        self._pool: int | None = None
        library = llama.llama_cpp._lib
        try:
            init, new = library.ggml_threadpool_params_init, library.ggml_threadpool_new
            attach, self._free = library.llama_attach_threadpool, library.ggml_threadpool_free
        except AttributeError:
            return
        params = _PoolParams()
        init(ctypes.byref(params), ctypes.c_int(num_threads))
        if params.n_threads != num_threads:
            return  # another layout of the struct: leave the library to itself
        params.poll = _POLL_LEVEL
        new.restype = ctypes.c_void_p
        self._pool = new(ctypes.byref(params))
        pool = ctypes.c_void_p(self._pool)
        attach(ctypes.c_void_p(context), pool, pool)

    def close(self) -> None:
        if self._pool is not None:
            self._free(ctypes.c_void_p(self._pool))
            self._pool = None


class _Interrupt:
    """Breaks off the decode that runs, from another thread.

    The library asks a callback between two operations of its graph, hundreds of times a decode. A
    Python function would want the interpreter's lock each time, so it gets C's `strlen` and a
    string: an empty one says go on, one of a character says stop.
    """

    def __init__(self, context: int) -> None:
        self._flag = ctypes.create_string_buffer(2)
        try:
            ask = ctypes.cast(ctypes.CDLL(None).strlen, llama.ggml_abort_callback)
        except (AttributeError, TypeError):
            return  # no such library here: a decode always runs to its end
        llama.llama_set_abort_callback(context, ask, ctypes.cast(self._flag, ctypes.c_void_p))

    def set(self) -> None:
        self._flag[0] = b"1"

    def clear(self) -> None:
        self._flag[0] = b"\0"


# ---------------------------------------------------------------- the model


def _load_file(file: Path) -> int:
    """A handle, or 0 when the file does not load."""
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    return llama.llama_model_load_from_file(os.fsencode(file), params) or 0


def _worth_unpacking(model: int) -> bool:
    """Quantized, and small: then arithmetic takes longer than reading the weights."""
    stored = int(llama.llama_model_size(model))
    unpacked = 2 * int(llama.llama_model_n_params(model))
    return stored < 0.9 * unpacked and unpacked <= MAX_UNPACKED_BYTES


class LlamaModel:
    """Weights and one context with a unified cache of `num_cells` cells.

    `num_sequences` run at once; more sequence ids, as many as the library has, can hold prefixes
    if the model's memory can be cut (each costs a whole state otherwise).
    `batch_size`: the most tokens of one `decode`. `unpack`: quantized weights of a small model
    may be computed with as BF16.
    """

    def __init__(
        self,
        path: str,
        *,
        num_cells: int,
        num_sequences: int,
        num_threads: int,
        batch_size: int = 512,
        unpack: bool = True,
    ) -> None:
        file = find_weights(path)
        llama.llama_log_set(_forward_log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        try:
            digest = hash_weights(file)
        except OSError as error:
            raise InvalidRequest(
                f"'{file.name}' cannot be read: {error.strerror}.", param="path"
            ) from None
        self._model = self._load(file, digest, unpack=unpack)
        self._vocab = llama.llama_model_get_vocab(self._model)
        self.tokenizer = LlamaTokenizer(self._vocab)
        self.num_cells = num_cells
        self.num_sequence_ids = MAX_SEQUENCE_IDS if self.trimmable else num_sequences
        self.batch_size = min(batch_size, num_cells)
        self.num_threads = num_threads
        self.trained_context_length = int(llama.llama_model_n_ctx_train(self._model))
        self._context = self._new_context()
        self._memory = llama.llama_get_memory(self._context)
        self._threads = _ThreadPool(self._context, num_threads)
        self._interrupt = _Interrupt(self._context)
        self._make_batch()
        template = llama.llama_model_chat_template(self._model, None)
        self.chat_template: str | None = template.decode("utf-8") if template else None
        self.fingerprint = self._fingerprint(digest)

    def _load(self, file: Path, digest: bytes, *, unpack: bool) -> int:
        """The file, or its unpacked copy, which is made if the model is worth one."""
        self.unpacked = unpack and fast_bf16()
        copy = unpacked_copy(file, digest) if self.unpacked else None
        if copy is not None and copy.is_file() and (model := _load_file(copy)):
            return model
        model = _load_file(file)
        if not model:
            raise InvalidRequest(f"'{file.name}' is not a GGUF model that loads.", param="path")
        if copy is not None and _worth_unpacking(model) and unpack_weights(file, copy):
            if unpacked := _load_file(copy):
                llama.llama_model_free(model)
                return unpacked
            log.warning("the weights of %s are used as stored: their copy does not load", file.name)
        self.unpacked = False
        return model

    def _new_context(self) -> int:
        params = llama.llama_context_default_params()
        # The library makes room for an output of each sequence id, and aborts the process when a
        # batch, or the context, is smaller.
        params.n_ctx = max(self.num_cells, self.num_sequence_ids)
        params.n_batch = params.n_ubatch = max(self.batch_size, self.num_sequence_ids)
        params.n_seq_max = self.num_sequence_ids
        params.n_threads = params.n_threads_batch = self.num_threads
        params.flash_attn_type = _FLASH_ATTENTION
        params.type_k, params.type_v = _TYPE_K, _TYPE_V
        params.kv_unified = True
        params.swa_full = True
        params.no_perf = True
        context = llama.llama_init_from_model(self._model, params)
        if not context:
            raise InvalidRequest(
                f"There is no memory for a context of {self.num_cells} tokens.",
                param="context_length",
            )
        return int(context)

    def _make_batch(self) -> None:
        """Views of the batch's arrays, so that a batch is filled without a call per token."""
        size = self.batch_size
        self._batch = llama.llama_batch_init(size, 0, 1)
        as_array = np.ctypeslib.as_array
        self._batch_tokens = as_array(self._batch.token, (size,))
        self._batch_positions = as_array(self._batch.pos, (size,))
        self._batch_outputs = as_array(self._batch.logits, (size,))
        as_array(self._batch.n_seq_id, (size,))[:] = 1
        # The library allocates one id per token, each with its own pointer; one table of our own
        # with the pointers set into it can be filled in one go.
        self._batch_sequences = np.zeros(size, dtype=np.int32)
        slots = ctypes.cast(self._batch.seq_id, ctypes.POINTER(ctypes.c_uint64))
        self._pointers = as_array(slots, (size,))
        self._own_pointers = self._pointers.copy()
        base = self._batch_sequences.ctypes.data
        self._pointers[:] = base + 4 * np.arange(size, dtype=np.uint64)

    def _fingerprint(self, weights: bytes) -> str:
        digest = hashlib.blake2b(digest_size=5)
        digest.update(weights)
        digest.update(b"unpacked" if self.unpacked else b"")
        digest.update((self.chat_template or "").encode())
        digest.update(f"sampler {SAMPLER_VERSION}".encode())
        digest.update(llama.llama_print_system_info())
        digest.update(f"{llama.__version__} flash {_FLASH_ATTENTION} {_TYPE_K} {_TYPE_V}".encode())
        return "fp_" + digest.hexdigest()

    def close(self) -> None:
        """Frees everything; nothing may be called afterwards."""
        if self._context:
            self._pointers[:] = self._own_pointers
            llama.llama_batch_free(self._batch)
            llama.llama_free(self._context)
            self._threads.close()
            llama.llama_model_free(self._model)
            self._context = 0

    # -------------------------------------------------------- what the model is

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def trimmable(self) -> bool:
        """Whether a sequence's memory can be cut at any position: not of recurrent models."""
        return not (
            llama.llama_model_is_recurrent(self._model) or llama.llama_model_is_hybrid(self._model)
        )

    @property
    def idle_cells(self) -> int:
        """How many used cells a step may have to look past. A comparison of each, for every layer
        and head, costs a token up to a fifth of its arithmetic then: in small models that is
        soon reached (docs/decisions/0010-one-kv-cache-for-all-sequences.md)."""
        layers = int(llama.llama_model_n_layer(self._model))
        heads = int(llama.llama_model_n_head(self._model))
        return int(llama.llama_model_n_params(self._model)) // (250 * max(1, layers * heads))

    def metadata(self) -> dict[str, str]:
        """The GGUF's metadata without its arrays."""
        found: dict[str, str] = {}
        buffer = ctypes.create_string_buffer(1 << 16)
        for i in range(llama.llama_model_meta_count(self._model)):
            llama.llama_model_meta_key_by_index(self._model, i, buffer, len(buffer))
            key = buffer.value.decode("utf-8", "replace")
            llama.llama_model_meta_val_str_by_index(self._model, i, buffer, len(buffer))
            found[key] = buffer.value.decode("utf-8", "replace")
        return found

    # -------------------------------------------------------- one step

    def use_threads(self, num_threads: int) -> None:
        llama.llama_set_n_threads(self._context, num_threads, num_threads)

    def decode(
        self,
        tokens: Tokens[int],
        positions: Tokens[int],
        sequence_ids: Tokens[int],
        outputs: Tokens[bool],
    ) -> npt.NDArray[np.float32]:
        """Computes one batch. Gives the logits of the tokens marked in `outputs`, in order, one
        row each: a view that is valid, and may be written to, until the next decode.

        Raises BatchFailed or Interrupted; the memory then has nothing of this batch.
        """
        count = len(tokens)
        self._batch_tokens[:count] = tokens
        self._batch_positions[:count] = positions
        self._batch_sequences[:count] = sequence_ids
        self._batch_outputs[:count] = outputs
        self._batch.n_tokens = count
        code = llama.llama_decode(self._context, self._batch)
        self._interrupt.clear()
        if code == _ABORTED:
            raise Interrupted
        if code != 0:
            raise BatchFailed(code)
        num_rows = int(np.count_nonzero(self._batch_outputs[:count]))
        if not num_rows:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        logits = llama.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (num_rows, self.vocab_size))

    def interrupt(self) -> None:
        """Breaks off the decode that runs, or the next one; called from any thread."""
        self._interrupt.set()

    # -------------------------------------------------------- sequence memory

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """`target` shares the cells of `source` at positions [start, end)."""
        llama.llama_memory_seq_cp(self._memory, source, target, start, end)

    def remove(self, sequence_id: int, start: int, end: int) -> None:
        """Takes positions [start, end) from a sequence; end −1: to its end."""
        llama.llama_memory_seq_rm(self._memory, sequence_id, start, end)

    def save(self, sequence_id: int) -> bytes:
        """The memory of a sequence as bytes; empty if it has none."""
        size = llama.llama_state_seq_get_size(self._context, sequence_id)
        buffer = (ctypes.c_uint8 * size)()
        written = llama.llama_state_seq_get_data(self._context, buffer, size, sequence_id)
        return bytes(memoryview(buffer)[:written])

    def restore(self, sequence_id: int, state: bytes) -> bool:
        """Puts saved memory into an empty sequence; False when it does not fit."""
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        read = llama.llama_state_seq_set_data(self._context, buffer, len(state), sequence_id)
        return int(read) == len(state)

    def length(self, sequence_id: int) -> int:
        """One past the last position of a sequence; 0 when it is empty."""
        return int(llama.llama_memory_seq_pos_max(self._memory, sequence_id)) + 1
