"""Guesses of the next tokens, to be verified in one step: a prediction (contract 4.5), or what
followed the same words before. Guessing is free, so each source is judged by what it would have
said; it is used as far as that pays. This module must not know: the model, scheduling, sampling.
"""

from collections.abc import Sequence as Tokens

__all__ = ["LookupDraft", "PredictionDraft", "StepCost", "draft_length"]

MAX_DRAFT_TOKENS = 48
LEARNING_RATE = 0.2
"""Of the hit rate: about the last five tokens count."""

FIRST_RATE_OF_PREDICTION = 0.6
FIRST_RATE_OF_LOOKUP = 0.4

NEAR_TOKENS = 64
"""How far behind a mismatch two equal tokens are enough to find the place again."""

LOOKUP_TOKENS = 3
"""Equal tokens that make a place in the text so far one to continue from."""


def draft_length(hit_rate: float, cost: "StepCost", num_decoding: int) -> int:
    """How many tokens to guess beside `num_decoding` sequences: as many as bring the most tokens a
    second. The k-th guess is right with hit_rate^k, and a step of n tokens takes `cost.of(n)`."""
    best, most = 0, num_decoding / cost.of(num_decoding)
    expected, chance = float(num_decoding), 1.0
    for k in range(1, MAX_DRAFT_TOKENS + 1):
        chance *= hit_rate
        expected += chance
        speed = expected / cost.of(num_decoding + k)
        if speed > most:
            best, most = k, speed
        elif k > best + 3:
            break
    return best


class StepCost:
    """How long a step of n tokens takes: a + b·n fitted to the steps of several tokens, and the
    mean of those of one, which have faster kernels; recent steps count most."""

    __slots__ = ("_base", "_n", "_nn", "_one", "_slope", "_t", "_tn", "_weight")

    DECAY = 0.98

    def __init__(self) -> None:
        self._weight = self._n = self._t = self._nn = self._tn = 0.0
        self._one = 0.0
        self._base: float | None = None
        self._slope = 0.0

    def record(self, num_tokens: int, seconds: float) -> None:
        decay, n = self.DECAY, float(num_tokens)
        if num_tokens == 1:
            self._one = self._one * decay + seconds * (1 - decay) if self._one else seconds
            return
        self._weight = self._weight * decay + 1
        self._n = self._n * decay + n
        self._t = self._t * decay + seconds
        self._nn = self._nn * decay + n * n
        self._tn = self._tn * decay + n * seconds
        self._fit()

    def _fit(self) -> None:
        weight = self._weight
        spread = weight * self._nn - self._n * self._n
        if weight < 5 or spread < weight * weight * 0.5:
            self._base = None  # steps of one size tell nothing
            return
        self._slope = max(0.0, (weight * self._tn - self._n * self._t) / spread)
        self._base = max(0.0, (self._t - self._slope * self._n) / weight)

    def of(self, num_tokens: int) -> float:
        """Seconds; of an unknown unit before steps of different sizes have been seen."""
        if self._base is None:
            return 1.0 + num_tokens  # a guess: a step costs as much as a token
        if num_tokens == 1 and self._one:
            return self._one
        return self._base + self._slope * num_tokens


class PredictionDraft:
    """The user's prediction as a source. `position`: the place whose token should come next, or
    None while the text and the prediction have parted."""

    __slots__ = (
        "_accepted",
        "_hits",
        "_last",
        "_pairs",
        "_replaced",
        "_since",
        "_tail",
        "_tried",
        "hit_rate",
        "position",
        "tokens",
    )

    def __init__(self, tokens: Tokens[int]) -> None:
        self.tokens = tuple(tokens)
        self.position: int | None = 0 if self.tokens else None
        self.hit_rate = FIRST_RATE_OF_PREDICTION
        self._last = 0
        self._since = 0  # tokens of the text behind the place where they parted
        self._hits = 0
        self._replaced = False  # where they parted last, one token stood for one
        self._tail: tuple[int, ...] = ()
        self._accepted: set[int] = set()
        self._tried: set[int] = set()
        self._pairs: dict[tuple[int, int], list[int]] | None = None

    @property
    def num_accepted(self) -> int:
        """Tokens of the prediction that are in the text, each once."""
        return len(self._accepted)

    @property
    def num_rejected(self) -> int:
        """Tokens that were tried and are not in the text; one that comes later counts as accepted
        then."""
        return len(self._tried)

    def propose(self, most: int) -> list[int]:
        if self.position is None or most <= 0:
            return []
        return list(self.tokens[self.position : self.position + most])

    def tried(self, count: int) -> None:
        """So many of what was proposed last were computed, to be compared with the text."""
        if self.position is not None:
            places = range(self.position, self.position + count)
            self._tried.update(set(places) - self._accepted)

    def feed(self, token: int) -> None:
        """The next token of the text."""
        self._tail = (*self._tail[-2:], token)
        position = self.position
        if position is None:
            self._since += 1
            self.position = self._find()
            self._replaced = self._since == 2 and self.position == self._last + 2
            self._hits = 0
            return
        if position >= len(self.tokens):
            self._last, self._since, self.position = position, 1, None
            return
        hit = self.tokens[position] == token
        self.hit_rate += LEARNING_RATE * (hit - self.hit_rate)
        if hit:
            self._hits += 1
            self._accepted.add(position)
            self._tried.discard(position)
            self.position = position + 1
        else:
            if self._hits or position == 0:
                self._last, self._since = position, 0
            self._since += 1  # a place that was wrong at once: the parting was before
            self._replaced = self._replaced and self._hits > 0
            self._hits = 0
            self.position = position + 1 if self._replaced else None

    def _find(self) -> int | None:
        """The place to go on from: as far on as the text if the last token is there (so many
        tokens were replaced by as many), behind the last two tokens if they come again soon,
        behind the last three anywhere."""
        level = self._last + self._since
        if (
            self._since > 1
            and level < len(self.tokens)
            and (self.tokens[level - 1] == self._tail[-1])
        ):
            return level
        if len(self._tail) < 2:
            return None
        if self._pairs is None:
            self._pairs = {}
            for i in range(2, len(self.tokens)):
                self._pairs.setdefault((self.tokens[i - 2], self.tokens[i - 1]), []).append(i)
        places = self._pairs.get((self._tail[-2], self._tail[-1]), ())
        ahead = [p for p in places if p >= self._last]
        if ahead and ahead[0] - self._last <= NEAR_TOKENS:
            return ahead[0]
        sure = [p for p in (*ahead, *places) if p >= 3 and self.tokens[p - 3 : p] == self._tail]
        return sure[0] if sure else None


class LookupDraft:
    """The sequence's own tokens as a source: what followed the last three the last time."""

    __slots__ = ("_index", "_tokens", "hit_rate", "position")

    def __init__(self, tokens: list[int]) -> None:
        self._tokens: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}
        self.position: int | None = None
        self.hit_rate = FIRST_RATE_OF_LOOKUP
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> int | None:
        """Adds a token; the place behind an earlier occurrence of the last three, if any."""
        tokens = self._tokens
        tokens.append(token)
        key = tuple(tokens[-LOOKUP_TOKENS:])
        earlier = self._index.get(key)
        if len(key) == LOOKUP_TOKENS:
            self._index[key] = len(tokens)
        return earlier

    def feed(self, token: int) -> None:
        position = self.position
        if position is not None:
            hit = self._tokens[position] == token
            self.hit_rate += LEARNING_RATE * (hit - self.hit_rate)
            found = self._append(token)
            self.position = position + 1 if hit else found
        else:
            self.position = self._append(token)

    def propose(self, most: int) -> list[int]:
        if self.position is None or most <= 0:
            return []
        return self._tokens[self.position : self.position + most]
