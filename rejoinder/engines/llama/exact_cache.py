"""The prefix cache of models whose memory cannot be cut: recurrent and hybrid ones.

Such a memory is one state after so many tokens. It is reused only whole, from host memory, by a
prompt that goes on exactly where it ended. Same terms as `prefix_cache.PrefixCache`, which it
replaces; this module must not know the model, a clock, requests or tiers.
"""

from collections import OrderedDict
from collections.abc import Sequence as Tokens

from rejoinder.engines.llama.prefix_cache import Hold, PrefixCache, SequenceMemory

__all__ = ["ExactCache"]


class ExactCache(PrefixCache):
    """States by salt and tokens, the least recently used dropped beyond `snapshot_bytes`.

    Only `publish` at a hold's exact length saves one. Pins have no effect: what is kept is kept
    by its use.
    """

    cuttable = False

    def __init__(self, memory: SequenceMemory, *, num_cells: int, snapshot_bytes: int = 0) -> None:
        super().__init__(memory, num_cells=num_cells, memory_ids=range(0), snapshot_bytes=0)
        self._budget = snapshot_bytes
        self._states: OrderedDict[tuple[str, tuple[int, ...]], bytes] = OrderedDict()

    def peek(self, salt: str, tokens: Tokens[int], limit: int) -> int:
        best = 0
        for known, prefix in self._states:
            size = len(prefix)
            if best < size <= limit and known == salt and prefix == tuple(tokens[:size]):
                best = size
        return best

    def acquire(
        self, sequence_id: int, salt: str, tokens: Tokens[int], limit: int, now: float
    ) -> Hold:
        hold = super().acquire(sequence_id, salt, (), 0, now)
        found = self.peek(salt, tokens, limit)
        key = (salt, tuple(tokens[:found]))
        if found and self.reserve(found, now):
            if self._memory.restore(sequence_id, self._states[key]):
                self._states.move_to_end(key)
                self.advance(hold, found)
                self.num_restored += 1
            else:
                self._drop(key)
        return hold

    def publish(self, hold: Hold, tokens: Tokens[int], upto: int, now: float, *, keep: bool) -> int:
        if not keep or upto != hold.length or not upto:
            return 0
        key = (hold.salt, tuple(tokens[:upto]))
        if key in self._states:
            self._states.move_to_end(key)
            return 0
        state = self._memory.save(hold.sequence_id)
        if not state or len(state) > self._budget:
            return 0
        self._states[key] = state
        self.num_snapshot_bytes += len(state)
        while self.num_snapshot_bytes > self._budget:
            self._drop(next(iter(self._states)))
            self.num_evicted += 1
        return upto

    def pin(self, hold: Hold, length: int, until: float, now: float) -> None:
        pass

    def _drop(self, key: tuple[str, tuple[int, ...]]) -> None:
        self.num_snapshot_bytes -= len(self._states.pop(key))

    def check_integrity(self) -> None:
        held = self.num_snapshot_bytes
        assert held == sum(map(len, self._states.values())) <= max(self._budget, 0)
        self.num_snapshot_bytes = 0
        try:
            super().check_integrity()
        finally:
            self.num_snapshot_bytes = held
