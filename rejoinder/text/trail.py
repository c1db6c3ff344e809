"""Which tokens a piece of text is made of (R163, R164, A11), and how many were thoughts.

This module must not know: formats, stop strings, events.
"""

from collections import deque

from rejoinder.types import TokenLogprob


class TokenTrail:
    """The tokens whose text has not been disposed of yet, by their places in the text.

    A place is a number of characters. A token that ends inside a character reaches to its end.
    """

    __slots__ = ("_tokens", "num_thought")

    def __init__(self) -> None:
        self._tokens: deque[tuple[int, int, TokenLogprob | None]] = deque()
        self.num_thought = 0

    def add(self, start: int, end: int, entry: TokenLogprob | None) -> None:
        self._tokens.append((start, end, entry))

    def boundary(self, limit: int) -> int:
        """The last place up to `limit` at which a token ends; 0 if none does."""
        place = 0
        for _, end, _ in self._tokens:
            if end > limit:
                break
            place = end
        return place

    def take(self, limit: int) -> tuple[TokenLogprob, ...]:
        """The entries of the tokens that begin before `limit`, in order; each comes once."""
        tokens, taken = self._tokens, []
        while tokens and tokens[0][0] < limit:
            entry = tokens.popleft()[2]
            if entry is not None:
                taken.append(entry)
        return tuple(taken)

    def drop(self, limit: int) -> None:
        """Forgets the tokens that end by `limit`: they are not part of what is shown."""
        tokens = self._tokens
        while tokens and tokens[0][1] <= limit:
            tokens.popleft()

    def drop_thought(self, limit: int) -> None:
        """The same for a thought, whose tokens are counted."""
        tokens = self._tokens
        while tokens and tokens[0][1] <= limit:
            tokens.popleft()
            self.num_thought += 1
