"""Which cells of the KV cache hold which prefix: a radix tree over token ids for each cache salt.

Nodes own cells through a sequence id of their own; running sequences hold nodes and private cells.
Pure bookkeeping over integers: this module must not know the model, a clock, requests or tiers.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from typing import Protocol

__all__ = ["Hold", "PrefixCache", "SequenceMemory", "common_prefix"]

MIN_SNAPSHOT_TOKENS = 16
"""A prefix shorter than this is computed again sooner than it is worth a place in host memory."""


class SequenceMemory(Protocol):
    """What the cache needs of a model's memory; positions are [start, end), end −1: to the end."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """`target` shares the cells of `source`; nothing is computed."""
        ...

    def remove(self, sequence_id: int, start: int, end: int) -> None: ...

    def save(self, sequence_id: int) -> bytes: ...

    def restore(self, sequence_id: int, state: bytes) -> bool:
        """Into an empty sequence; False when it cannot be done, the sequence is then empty."""
        ...


def common_prefix(a: Tokens[int], b: Tokens[int], start: int, end: int) -> int:
    """How far a[start:end] and b[start:end] are equal: a position in [start, end]."""
    end = min(end, len(a), len(b))
    if a[start:end] == b[start:end]:
        return max(start, end)
    low, high = start, end  # a and b are equal up to low, and differ before high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class _Node:
    """The tokens [start, end) of every prompt that passes here, and their cells.

    Resident: `memory_id` is the sequence id that owns the cells. Otherwise `state` has them in
    host memory. `refs`: holds that pass through. `keep`: outlives its holds.
    """

    __slots__ = (
        "children",
        "keep",
        "last_used",
        "memory_id",
        "parent",
        "pinned_until",
        "refs",
        "start",
        "state",
        "tokens",
    )

    def __init__(self, parent: "_Node | None", start: int, tokens: tuple[int, ...]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.children: dict[int, _Node] = {}
        self.memory_id: int | None = None
        self.state: bytes | None = None
        self.refs = 0
        self.keep = True
        self.last_used = 0
        self.pinned_until = 0.0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def resident(self) -> bool:
        return self.memory_id is not None

    def above(self) -> "Iterator[_Node]":
        """This node and its ancestors, without the root."""
        node: _Node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Hold:
    """The memory of one running sequence: positions [0, shared) belong to the tree, [shared,
    length) to this sequence alone. `node`: the deepest node that it passes through."""

    __slots__ = ("length", "node", "salt", "sequence_id", "shared")

    def __init__(self, sequence_id: int, salt: str, node: _Node) -> None:
        self.sequence_id = sequence_id
        self.salt = salt
        self.node = node
        self.shared = 0
        self.length = 0


class PrefixCache:
    """`num_cells` cells, the sequence ids `memory_ids` for nodes, `snapshot_bytes` of host memory.

    At most half of the cells can be pinned; what is pinned beyond gives way, the oldest first.
    `idle_cells`: of prefixes that nobody uses so many cells stay, since every step looks past the
    used cells of others. The rest is evicted to host memory; without any, all stay.
    """

    cuttable = True
    """Whether a prefix may be reused in part."""

    def __init__(
        self,
        memory: SequenceMemory,
        *,
        num_cells: int,
        memory_ids: range,
        snapshot_bytes: int = 0,
        idle_cells: int | None = None,
    ) -> None:
        self._memory = memory
        self.num_cells = num_cells
        self._idle_cells = num_cells
        if idle_cells is not None and snapshot_bytes > 0:
            self._idle_cells = idle_cells
        self._free_ids = list(reversed(memory_ids))
        self._num_ids = len(memory_ids)
        self._snapshot_budget = snapshot_bytes
        self._roots: dict[str, _Node] = {}
        self._nodes: set[_Node] = set()
        self._holds: set[Hold] = set()
        self._num_tree = 0
        self._num_private = 0
        self._uses = 0
        self.num_snapshot_bytes = 0
        self.num_evicted = 0
        self.num_restored = 0

    # -------------------------------------------------------- what a sequence does

    @property
    def num_free(self) -> int:
        return self.num_cells - self._num_tree - self._num_private

    @property
    def num_used(self) -> int:
        return self._num_tree + self._num_private

    def peek(self, salt: str, tokens: Tokens[int], limit: int) -> int:
        """How many tokens, `limit` at most, `acquire` would find; changes nothing."""
        node = self._roots.get(salt)
        position = 0
        while node is not None and position < limit:
            child = node.children.get(tokens[position])
            if child is None:
                break
            found = self._match(child, tokens, position, limit)
            position += found
            node = child if found == len(child.tokens) else None
        return position

    @staticmethod
    def _match(node: _Node, tokens: Tokens[int], position: int, limit: int) -> int:
        end = min(limit, len(tokens), position + len(node.tokens))
        piece = tuple(tokens[position:end])
        return common_prefix(node.tokens, piece, 0, len(piece))

    def acquire(
        self, sequence_id: int, salt: str, tokens: Tokens[int], limit: int, now: float
    ) -> Hold:
        """A hold on the longest known prefix of `tokens`, not longer than `limit`.

        Prefixes that are only in host memory come back into cells if there is room.
        """
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = _Node(None, 0, ())
        hold = Hold(sequence_id, salt, root)
        self._holds.add(hold)
        root.refs += 1
        self._uses += 1
        while hold.shared < limit:
            child = hold.node.children.get(tokens[hold.shared])
            if child is None:
                break
            found = self._match(child, tokens, hold.shared, limit)
            if not child.resident and not self._restore(child, now):
                break
            part = self._split(child, child.start + found, now)
            if part is None:
                break
            assert part.memory_id is not None
            self._memory.copy(part.memory_id, sequence_id, part.start, part.end)
            self._enter(hold, part)
            hold.shared = part.end
            if part is not child:
                break
        hold.length = hold.shared
        return hold

    def advance(self, hold: Hold, num_tokens: int) -> None:
        """The sequence takes cells for so many more tokens; `reserve` comes first."""
        hold.length += num_tokens
        self._num_private += num_tokens
        assert self.num_free >= 0, "more cells taken than there are"

    def truncate(self, hold: Hold, length: int) -> None:
        """Gives back the private cells from `length` on."""
        assert hold.shared <= length <= hold.length
        if length < hold.length:
            self._memory.remove(hold.sequence_id, length, -1)
            self._num_private -= hold.length - length
            hold.length = length

    def publish(self, hold: Hold, tokens: Tokens[int], upto: int, now: float, *, keep: bool) -> int:
        """Puts the private cells before `upto` into the tree, for others to share.

        `keep`: they outlive the sequence. Returns how many tokens are newly kept. Without a free
        sequence id for a node the rest stays private.
        """
        written = 0
        self._narrow(hold, now)
        while hold.shared < upto:
            node = hold.node
            if hold.shared < node.end:
                # What another sequence put here meanwhile is shared instead of kept twice.
                found = self._match_from(node, tokens, hold.shared, upto)
                self._share(hold, node, hold.shared + found)
                if not self._narrow(hold, now):
                    break
                continue
            child = node.children.get(tokens[hold.shared])
            if child is not None:
                if not child.resident and not self._adopt(hold, child, tokens, upto, now):
                    continue
                self._enter(hold, child)
                continue
            added = self._grow(hold, tuple(tokens[hold.shared : upto]), now, keep=keep)
            if not added:
                break
            written += added if keep else 0
        self._narrow(hold, now)
        if keep:
            for node in hold.node.above():
                if not node.keep and node.end <= upto:
                    node.keep = True
                    written += len(node.tokens)
        return written

    def pin(self, hold: Hold, length: int, until: float, now: float) -> None:
        """Keeps the first `length` tokens, which are shared, as far as the bound allows."""
        for node in hold.node.above():
            if node.start < length <= node.end:
                part = self._split(node, length, now)
                if part is not None:
                    part.pinned_until = max(part.pinned_until, until)
                break
        pinned = [n for n in self._nodes if n.pinned_until > now]
        pinned.sort(key=lambda n: n.last_used)
        while pinned and self._num_pinned(now) > self.num_cells // 2:
            pinned.pop(0).pinned_until = 0.0

    def release(self, hold: Hold, now: float) -> None:
        """The end of a hold: its private cells are free, what is not kept is forgotten."""
        self._holds.remove(hold)
        self._memory.remove(hold.sequence_id, 0, -1)
        self._num_private -= hold.length - hold.shared
        self._uses += 1
        node: _Node | None = hold.node
        while node is not None:
            parent = node.parent
            node.refs -= 1
            node.last_used = self._uses
            if not node.refs and not node.keep and not node.children:
                self._forget(node)
            elif parent is None and not node.refs and not node.children:
                self._drop_root(node)
            node = parent
        # The tree is no smaller than what of it is idle, and its size is at hand.
        while self._num_tree > self._idle_cells < self.num_reclaimable(now):
            victim = self._victim(now)
            if victim is None:
                break
            self._evict(victim)

    def reserve(self, num_tokens: int, now: float, *, pinned: bool = False) -> bool:
        """Whether there are so many free cells, after evicting idle prefixes as needed.

        `pinned`: pinned ones too, when nothing else is left.
        """
        while self.num_free < num_tokens:
            victim = self._victim(now) or (self._victim(float("inf")) if pinned else None)
            if victim is None:
                return False
            self._evict(victim)
        return True

    def num_reclaimable(self, now: float, *, pinned: bool = False) -> int:
        """Cells that `reserve` could free."""
        cells = 0
        for node in self._nodes:
            if node.resident and not node.refs and (pinned or not self._is_pinned(node, now)):
                cells += len(node.tokens)
        return cells

    # -------------------------------------------------------- the tree

    def _enter(self, hold: Hold, child: _Node) -> None:
        child.refs += 1
        child.last_used = self._uses
        hold.node = child

    def _narrow(self, hold: Hold, now: float) -> bool:
        """Lets a hold pass through no more of its last node than it shares: what it does not use
        must not be kept by it."""
        node = hold.node
        while node.parent is not None and node.start >= hold.shared:
            node.refs -= 1  # it was split above
            hold.node = node = node.parent
        if node.parent is None or hold.shared >= node.end:
            return True
        upper = self._split(node, hold.shared, now)
        if upper is None:
            return False
        node.refs -= 1
        hold.node = upper
        return True

    @staticmethod
    def _match_from(node: _Node, tokens: Tokens[int], position: int, limit: int) -> int:
        offset = position - node.start
        end = min(limit, node.end)
        piece = tuple(tokens[position:end])
        return common_prefix(node.tokens[offset:], piece, 0, len(piece))

    def _share(self, hold: Hold, node: _Node, end: int) -> None:
        """Swaps the private cells before `end` for the node's."""
        if end > hold.shared:
            assert node.memory_id is not None
            self._memory.remove(hold.sequence_id, hold.shared, end)
            self._memory.copy(node.memory_id, hold.sequence_id, hold.shared, end)
            self._num_private -= end - hold.shared
            hold.shared = end

    def _grow(self, hold: Hold, tokens: tuple[int, ...], now: float, *, keep: bool) -> int:
        """Gives private cells to the end of the tree: to the last node if it is this hold's own,
        else to a new one."""
        node = hold.node
        own = (
            node.parent is not None
            and node.refs == 1
            and not node.children
            and node.keep == keep
            and not self._is_pinned(node, now)
        )
        if own:
            self._drop_state(node)
            node.tokens += tokens
        else:
            memory_id = self._take_id(now)
            if memory_id is None:
                return 0
            node = _Node(hold.node, hold.shared, tokens)
            node.memory_id = memory_id
            node.keep = keep
            hold.node.children[tokens[0]] = node
            self._nodes.add(node)
            self._enter(hold, node)
        assert node.memory_id is not None
        end = hold.shared + len(tokens)
        self._memory.copy(hold.sequence_id, node.memory_id, hold.shared, end)
        self._num_private -= len(tokens)
        self._num_tree += len(tokens)
        hold.shared = end
        return len(tokens)

    def _split(self, node: _Node, at: int, now: float) -> _Node | None:
        """Cuts a node in two and returns the part that ends at `at`: the upper half, while the
        lower keeps its identity. None without a sequence id for it."""
        assert node.parent is not None and node.start < at <= node.end
        if at == node.end:
            return node
        node.refs += 1  # not to be evicted for the id that its half needs
        memory_id = self._take_id(now)
        node.refs -= 1
        if memory_id is None:
            return None
        assert node.memory_id is not None
        self._drop_state(node)
        upper = _Node(node.parent, node.start, node.tokens[: at - node.start])
        upper.memory_id = memory_id
        upper.refs, upper.keep = node.refs, node.keep
        upper.last_used = node.last_used
        self._memory.copy(node.memory_id, memory_id, node.start, at)
        self._memory.remove(node.memory_id, node.start, at)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[at - node.start :]
        node.start, node.parent = at, upper
        upper.children[node.tokens[0]] = node
        self._nodes.add(upper)
        return upper

    def _adopt(self, hold: Hold, child: _Node, tokens: Tokens[int], upto: int, now: float) -> bool:
        """Makes a node that is only in host memory resident with the hold's cells; one that
        these tokens leave half way is given up. False: look again, it is gone."""
        found = self._match(child, tokens, hold.shared, upto)
        child.refs += 1
        memory_id = self._take_id(now) if found == len(child.tokens) else None
        child.refs -= 1
        if memory_id is None:
            self._forget_below(child)
            return False
        child.memory_id = memory_id
        self._memory.copy(hold.sequence_id, memory_id, child.start, child.end)
        # The cells are the tree's now, and the hold's private ones until it shares them.
        self._num_tree += len(child.tokens)
        self._num_private -= len(child.tokens)
        hold.shared = child.end
        return True

    # -------------------------------------------------------- eviction, host memory

    def _take_id(self, now: float) -> int | None:
        if not self._free_ids:
            victim = self._victim(now)
            if victim is None:
                return None
            self._evict(victim)
        return self._free_ids.pop()

    def _is_pinned(self, node: _Node, now: float) -> bool:
        if node.pinned_until > now:
            return True
        return any(self._is_pinned(child, now) for child in node.children.values())

    def _num_pinned(self, now: float) -> int:
        return sum(len(n.tokens) for n in self._nodes if self._is_pinned(n, now))

    def _victim(self, now: float) -> _Node | None:
        """The resident node longest unused that nobody holds and nothing resident hangs from."""
        best: _Node | None = None
        for node in self._nodes:
            if (
                node.memory_id is not None
                and not node.refs
                and (best is None or node.last_used < best.last_used)
                and not any(child.resident for child in node.children.values())
                and not self._is_pinned(node, now)
            ):
                best = node
        return best

    def _evict(self, node: _Node) -> None:
        """Frees a node's cells; its state goes to host memory if there is room for it."""
        assert node.memory_id is not None and not node.refs
        self.num_evicted += 1
        worth = node.keep and len(node.tokens) >= MIN_SNAPSHOT_TOKENS and self._snapshot_budget > 0
        if worth and node.state is None:
            state = self._memory.save(node.memory_id)
            if state and len(state) <= self._snapshot_budget:
                node.state = state
                self.num_snapshot_bytes += len(state)
        self._free_cells(node)
        if node.state is None:
            self._forget_below(node)
        self._bound_snapshots()

    def _free_cells(self, node: _Node) -> None:
        assert node.memory_id is not None
        self._memory.remove(node.memory_id, 0, -1)
        self._free_ids.append(node.memory_id)
        node.memory_id = None
        self._num_tree -= len(node.tokens)

    def _restore(self, node: _Node, now: float) -> bool:
        """Brings a node back from host memory into cells."""
        node.refs += 1
        fits = self.reserve(len(node.tokens), now)
        memory_id = self._take_id(now) if fits else None
        node.refs -= 1
        if memory_id is None or node.state is None:
            return False
        if not self._memory.restore(memory_id, node.state):
            self._free_ids.append(memory_id)
            self._forget_below(node)
            return False
        node.memory_id = memory_id
        self._num_tree += len(node.tokens)
        self.num_restored += 1
        return True

    def _bound_snapshots(self) -> None:
        while self.num_snapshot_bytes > self._snapshot_budget:
            spare = [n for n in self._nodes if n.state and not n.refs]
            resident = [n for n in spare if n.resident]
            if resident:
                self._drop_state(min(resident, key=lambda n: n.last_used))
                continue
            leaves = [n for n in spare if not n.children]
            if not leaves:
                break
            self._forget(min(leaves, key=lambda n: n.last_used))

    def _drop_state(self, node: _Node) -> None:
        if node.state is not None:
            self.num_snapshot_bytes -= len(node.state)
            node.state = None

    def _forget(self, node: _Node) -> None:
        """Takes a node without children out of the tree."""
        assert not node.children and not node.refs
        if node.parent is None:
            return
        if node.resident:
            self._free_cells(node)
        self._drop_state(node)
        self._nodes.discard(node)
        parent = node.parent
        del parent.children[node.tokens[0]]
        if parent.parent is None and not parent.children and not parent.refs:
            self._drop_root(parent)

    def _forget_below(self, node: _Node) -> None:
        for child in list(node.children.values()):
            self._forget_below(child)
        self._forget(node)

    def _drop_root(self, root: _Node) -> None:
        for salt, other in self._roots.items():
            if other is root:
                del self._roots[salt]
                return

    # -------------------------------------------------------- integrity

    def check_integrity(self) -> None:
        """Raises AssertionError if the books do not balance. Slow; for tests and idle moments."""
        seen: set[_Node] = set()
        ids = list(self._free_ids)
        refs: dict[_Node, int] = {}
        for hold in self._holds:
            assert 0 <= hold.shared <= hold.length
            assert hold.shared <= hold.node.end
            for node in hold.node.above():
                refs[node] = refs.get(node, 0) + 1
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for first, child in node.children.items():
                assert child.parent is node and child.tokens and child.tokens[0] == first
                assert child.start == node.end
                assert child.resident or child.state is not None
                assert not child.resident or node.resident or node.parent is None
                assert child.refs == refs.get(child, 0), "references do not add up"
                assert not child.refs or child.resident
                assert child.keep or child.refs or child.children, "forgotten but still there"
                if child.memory_id is not None:
                    ids.append(child.memory_id)
                seen.add(child)
                stack.append(child)
        assert seen == self._nodes
        assert len(ids) == len(set(ids)) == self._num_ids, "sequence ids lost or taken twice"
        assert self._num_tree == sum(len(n.tokens) for n in seen if n.resident)
        assert self._num_private == sum(h.length - h.shared for h in self._holds)
        assert 0 <= self.num_used <= self.num_cells
        assert self.num_snapshot_bytes == sum(len(n.state) for n in seen if n.state)
        assert self.num_snapshot_bytes <= max(self._snapshot_budget, 0)
