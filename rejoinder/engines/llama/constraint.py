"""Constrained decoding: grammars compiled once, one small state per sequence, masks for its steps.

Wraps llguidance. Must not know: the model library, requests, dialects, what a grammar is for.
Compiling is bounded in time and memory and happens on threads of its own, never on the event loop.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from rejoinder.errors import EngineFailed, InvalidRequest, Overloaded
from rejoinder.types import Grammar, Tokenizer

Mask: TypeAlias = NDArray[np.int32]
"""One bit a token id, the lowest bit of the first word being token 0; `mask_words` long."""

STACK_BYTES = 256 * 2**20
"""Address space, of which only what is used becomes memory."""

COMPILE_SECONDS = 10.0
STEP_SECONDS = 1.0
STEP_SECONDS_A_TOKEN = 0.005
"""What one sequence may spend on its grammar, at once and for every token (usual: 0.00002)."""
MAX_GRAMMAR_CHARACTERS = 4_000_000
CACHED_GRAMMARS = 64
CACHED_CHARACTERS = 8_000_000

_ENDED = frozenset({"NoExtension", "EndOfSentence"})
_JSON_SPELLING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


def _limits() -> LLParserLimits:
    """What one grammar may cost: about a second to compile, 15 ms a step, 100 MB of states."""
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class _Vocabulary:
    """What llguidance asks of a tokenizer. `__call__` never raises: it is called from its core."""

    is_tokenizer_wrapper = True
    bos_token_id: int | None = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_token_ids: Collection[int],
        end_token_ids: Collection[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = list(tokens)
        self.special_token_ids = sorted(special_token_ids)
        self.eos_token_id = min(end_token_ids)
        self._encode = encode
        self.greedy: Callable[[str], list[int]] | None = None

    def __call__(self, text: str) -> list[int]:
        with contextlib.suppress(Exception):
            ids = self._encode(text)
            if b"".join(self.tokens[i] for i in ids) == text.encode():
                return ids
        return self.greedy(text) if self.greedy is not None else []


class Constraint:
    """The state of one sequence under a grammar. Not for two threads at once.

    A step: `forced()` tokens first, if any; else sample under `mask()`; `advance` each; stop when
    `ended`. Once the grammar's limits are hit no token is allowed and every method but `mask`
    raises InvalidRequest: the sequence is lost, others in the batch are not.
    """

    __slots__ = ("_matcher", "_num_tokens", "_param", "_seconds", "mask_words")

    def __init__(self, matcher: LLMatcher, mask_words: int, param: str | None = None) -> None:
        self._matcher = matcher
        self._param = param
        self.mask_words = mask_words
        self._num_tokens = 0
        self._seconds = 0.0

    @property
    def ended(self) -> bool:
        """The text is complete and nothing may follow: no end token needs to be sampled."""
        return self._matcher.is_stopped() and self._stopped_well()

    @property
    def may_end(self) -> bool:
        """The text so far is complete, though more might follow."""
        return self._matcher.is_accepting()

    def mask(self, out: Mask | None = None) -> Mask:
        """The tokens that may come next, into `out` (contiguous, `mask_words` long) if given.

        End tokens are among them where the text may end; after the end they are all there is. Does
        not raise InvalidRequest: no token is allowed then, and the caller's batch goes on.
        """
        row = np.empty(self.mask_words, np.int32) if out is None else out
        if row.dtype != np.int32 or not row.flags.c_contiguous or row.size != self.mask_words:
            raise ValueError(f"a mask is {self.mask_words} contiguous int32")
        try:
            with self._paid():
                self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        except InvalidRequest:
            row.fill(0)
        return row

    def forced(self) -> list[int]:
        """Tokens that have no alternative, in their usual tokenization; the state stays."""
        if self._matcher.is_stopped():
            return []
        with self._paid():
            return self._matcher.compute_ff_tokens()

    def advance(self, *token_ids: int) -> None:
        """The sequence grew by these tokens. Raises EngineFailed for one that was not allowed."""
        with self._paid():
            if not self._matcher.consume_tokens(list(token_ids)):
                self._check()
                raise EngineFailed("A token came that the grammar does not allow.")
        self._num_tokens += len(token_ids)

    def accepts(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next (for drafts)."""
        return self._matcher.validate_tokens(list(token_ids))

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens; at most as many as this object was advanced by."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError("cannot roll back further than the first token")
        if num_tokens and not self._matcher.rollback(num_tokens):
            self._check()
        self._num_tokens -= num_tokens

    def clone(self) -> "Constraint":
        """An independent copy at the same place."""
        copy = Constraint(self._matcher.deep_copy(), self.mask_words, self._param)
        copy._num_tokens = self._num_tokens
        copy._seconds = self._seconds
        return copy

    @contextlib.contextmanager
    def _paid(self) -> Iterator[None]:
        """Work within this sequence's time, which no other sequence has while it lasts."""
        started = time.thread_time()
        yield
        self._seconds += time.thread_time() - started
        self._check()
        if self._seconds > STEP_SECONDS + STEP_SECONDS_A_TOKEN * self._num_tokens:
            raise InvalidRequest(
                "The grammar takes too long for each token of the answer.", param=self._param
            )

    def _stopped_well(self) -> bool:
        if self._matcher.is_error() or self._matcher.stop_reason() not in _ENDED:
            raise InvalidRequest(
                "The grammar is too complex to generate an answer under it.", param=self._param
            )
        return True

    def _check(self) -> None:
        if self._matcher.is_error():
            self._stopped_well()


class ConstraintCompiler:
    """Turns grammars into constraints for one vocabulary. Safe to use from any thread.

    Equal grammars are compiled once, also when they come at the same time, and kept; so are
    failures, so that a hostile grammar costs its time once.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        special_token_ids: Collection[int],
        end_token_ids: Collection[int],
        encode: Callable[[str], list[int]],
        compile_seconds: float = COMPILE_SECONDS,
    ) -> None:
        """`tokens`: the bytes of each id, for a special token its name; `encode`: text without
        markup → ids, the way the model's own tokenizer does it."""
        vocabulary = _Vocabulary(tokens, special_token_ids, end_token_ids, encode)
        self._tokenizer = LLTokenizer(vocabulary, eos_token=sorted(end_token_ids))  # type: ignore[arg-type]
        vocabulary.greedy = self._tokenizer.greedy_tokenize
        self.mask_words = (len(tokens) + 31) // 32
        self._compile_seconds = compile_seconds
        self._threads = _deep_threads(2)
        self._cache = _Cache()

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocabulary_size: int) -> "ConstraintCompiler":
        """The compiler for a model's tokenizer, which has ids from 0 to `vocabulary_size`."""
        names = {token_id: name for name, token_id in tokenizer.control_tokens.items()}
        return cls(
            [
                names[i].encode() if i in names else tokenizer.token_bytes(i)
                for i in range(vocabulary_size)
            ],
            special_token_ids=names.keys(),
            end_token_ids=tokenizer.end_token_ids,
            encode=lambda text: tokenizer.encode(text, special=False),
        )

    def constraint(self, grammar: Grammar) -> Constraint:
        """A fresh constraint; waits for the compilation. Raises InvalidRequest (400)."""
        job = self._job(grammar)
        concurrent.futures.wait([job], self._compile_seconds)
        return self._result(job, grammar)

    async def prepare(self, grammar: Grammar) -> Constraint:
        """The same for the event loop, which it never blocks."""
        job = self._job(grammar)
        await asyncio.wait([asyncio.wrap_future(job)], timeout=self._compile_seconds)
        return self._result(job, grammar)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _job(self, grammar: Grammar) -> "_Job":
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            raise InvalidRequest("The grammar is too large.", param=grammar.param)
        return self._cache.get(
            (grammar.kind, grammar.text), lambda: self._threads.submit(self._compile, grammar)
        )

    def _result(self, job: "_Job", grammar: Grammar) -> Constraint:
        if not job.done():
            if not job.running():
                raise Overloaded("Too many grammars are being compiled.", retry_after=1)
            raise InvalidRequest(
                f"The grammar takes longer than {self._compile_seconds:g} s to compile.",
                param=grammar.param,
            )
        found = job.result()
        problem = found if isinstance(found, str) else found.get_error()
        if not isinstance(found, LLMatcher) or problem:
            message = f"This cannot be enforced: {_reason(problem)}"
            raise InvalidRequest(message, param=grammar.param)
        return Constraint(found.deep_copy(), self.mask_words, grammar.param)

    def _compile(self, grammar: Grammar) -> "LLMatcher | str":
        """The matcher, which may hold an error of its own, or what is wrong with the text."""
        text = grammar.text
        if grammar.kind == "json_schema":
            try:
                text = LLMatcher.grammar_from_json_schema(text, overrides=_JSON_SPELLING)  # type: ignore[arg-type]
            except ValueError as error:
                return str(error)
        elif grammar.kind == "regex":
            text = LLMatcher.grammar_from_regex(text)
        return LLMatcher(self._tokenizer, text, log_level=0, limits=_limits())


def _deep_threads(number: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads whose stack outlasts the compiler's recursion: where it ends, the process does."""
    threads = concurrent.futures.ThreadPoolExecutor(number, "grammar")
    all_there = threading.Barrier(number)
    before = threading.stack_size(STACK_BYTES)
    try:
        jobs = [threads.submit(all_there.wait) for _ in range(number)]
    finally:
        threading.stack_size(before)
    concurrent.futures.wait(jobs)
    return threads


_Job: TypeAlias = "concurrent.futures.Future[LLMatcher | str]"


class _Cache:
    """Compilations by their grammar, the least recently used dropped first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: OrderedDict[tuple[str, str], _Job] = OrderedDict()
        self._characters = 0

    def get(self, key: tuple[str, str], start: Callable[[], _Job]) -> _Job:
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job.cancelled():
                job = self._jobs[key] = start()
                self._characters += len(key[1])
            self._jobs.move_to_end(key)
            for old in list(self._surplus()):
                del self._jobs[old]
                self._characters -= len(old[1])
            return job

    def _surplus(self) -> Iterator[tuple[str, str]]:
        characters = self._characters
        for count, key in enumerate(list(self._jobs)[:-1]):
            if len(self._jobs) - count <= CACHED_GRAMMARS and characters <= CACHED_CHARACTERS:
                return
            characters -= len(key[1])
            yield key


def _reason(error: str) -> str:
    """The part of a compiler's report that is about the grammar and not about our spelling."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")
    for prefix in ("error:", "failed to compile JSON schema:"):
        cause = cause.rpartition(prefix)[2].strip() if prefix in cause else cause
    return cause[:300]
