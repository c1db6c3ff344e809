"""A model's sequence memory as plain integers: which cell holds which token of which sequence."""

from collections.abc import Sequence as Tokens


class FakeMemory:
    """Cells are shared as in the model; each remembers the token that was computed into it."""

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self.sequences: dict[int, dict[int, int]] = {}
        self.tokens: dict[int, int] = {}
        self._cells = 0

    @property
    def num_used(self) -> int:
        return len({cell for cells in self.sequences.values() for cell in cells.values()})

    def compute(self, sequence_id: int, start: int, tokens: Tokens[int]) -> None:
        """What a decode does: new cells, right behind those that are there."""
        cells = self.sequences.setdefault(sequence_id, {})
        assert sorted(cells) == list(range(start)), "positions with a hole, or computed twice"
        for position, token in enumerate(tokens, start):
            self._cells += 1
            cells[position] = self._cells
            self.tokens[self._cells] = token
        assert self.num_used <= self.num_cells, "more cells than there are"

    def content(self, sequence_id: int) -> list[int]:
        cells = self.sequences.get(sequence_id, {})
        return [self.tokens[cells[position]] for position in sorted(cells)]

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        cells = self.sequences.get(source, {})
        wanted = {p: cell for p, cell in cells.items() if start <= p < end}
        assert len(wanted) == end - start, "copied cells that are not there"
        has = self.sequences.setdefault(target, {})
        assert not has.keys() & wanted.keys(), "copied onto positions that are taken"
        has.update(wanted)

    def remove(self, sequence_id: int, start: int, end: int) -> None:
        cells = self.sequences.get(sequence_id, {})
        for position in [p for p in cells if p >= start and (end < 0 or p < end)]:
            del cells[position]

    def save(self, sequence_id: int) -> bytes:
        cells = self.sequences[sequence_id]
        state = [(p, self.tokens[cell]) for p, cell in sorted(cells.items())]
        return repr(state).encode()

    def restore(self, sequence_id: int, state: bytes) -> bool:
        assert not self.sequences.get(sequence_id), "restored over something"
        if b"spoilt" in state:
            return False
        for position, token in eval(state):
            self._cells += 1
            self.sequences.setdefault(sequence_id, {})[position] = self._cells
            self.tokens[self._cells] = token
        assert self.num_used <= self.num_cells, "restored into cells that are not there"
        return True


class UncutMemory(FakeMemory):
    """A recurrent model's memory: one state, of which no part can be taken or shared."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        raise AssertionError("a state was shared in part")

    def remove(self, sequence_id: int, start: int, end: int) -> None:
        assert start == 0 and end < 0, "a state was cut"
        super().remove(sequence_id, start, end)
