"""Which replica a prompt should go to: a prefix index over hashed blocks, weighed with load.

Pure: no clock, no I/O; randomness is an argument. It must not know: engines, health, HTTP.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from random import Random

from msgspec import Struct

BLOCK_TOKENS = 64
"""Tokens of the first blocks of a prompt. It need not be the engine's own block size."""

TIERS = ((1, 1, 8), (4, 32, 32), (8, 64, 128), (32, 256, 16_384))
"""(length, stride, end of the tier), the first and last in first-tier blocks: later blocks are
longer and hashed by every 32nd, 64th, then 256th token, so that a decision on a long prompt stays
cheap: each token looked at is a miss of the processor's cache. Prompts that differ only in tokens
between are taken for equal, which costs a miss of the engine's."""

MAX_BLOCKS = 16_384
"""Blocks remembered of each replica; the least recently used are forgotten first."""

MIN_BLOCKS = 32
SHRINK = 0.95
"""How far a replica's remembered blocks shrink when it had less than was expected of it."""

SLACK_TOKENS = 256
"""How much less is no surprise: engines round down to blocks of their own, up to 128 tokens, and
compute the last one again."""

TOKENS_PER_SEQUENCE = 256
"""How many tokens of prefill one more running sequence is worth when replicas are compared."""

MAX_EXTRA_SEQUENCES = 4
"""How much busier than the least busy replica a cache key's home may be."""


class Match(Struct, frozen=True):
    """What the index knows of one prompt: its first block hashes, and how many of its tokens each
    replica is expected to have cached.

    `hashes` may be shorter than the prompt: hashing stops where no replica has the prefix.
    """

    hashes: tuple[int, ...]
    tokens: dict[str, int]


class Candidate(Struct, frozen=True):
    """A replica that may take a sequence. `weight`: in (0, 1], less while it warms up."""

    name: str
    sequences: int
    weight: float = 1.0

    @property
    def load(self) -> float:
        return (self.sequences + 1) / self.weight - 1


class PrefixIndex:
    """The prefixes that each replica is believed to have in its cache.

    A block's hash covers its salt and every token up to its end, so equal hashes are equal
    prefixes, and nothing is shared across salts.
    """

    def __init__(self, *, block_tokens: int = BLOCK_TOKENS, max_blocks: int = MAX_BLOCKS) -> None:
        self._spans = tuple(_spans(block_tokens))
        self._max_blocks = max_blocks
        self._bits: dict[str, int] = {}
        self._everybody = 0
        self._owners: dict[int, int] = {}
        self._recent: dict[str, OrderedDict[int, None]] = {}
        self._limits: dict[str, int] = {}

    def __len__(self) -> int:
        """Distinct blocks, over all replicas."""
        return len(self._owners)

    def add(self, replica: str) -> None:
        """A replica with an empty cache."""
        if replica in self._bits:
            self.clear(replica)
            return
        bit = (self._everybody + 1) & ~self._everybody
        self._bits[replica] = bit
        self._everybody |= bit
        self._recent[replica] = OrderedDict()
        self._limits[replica] = self._max_blocks

    def remove(self, replica: str) -> None:
        self.clear(replica)
        self._everybody ^= self._bits.pop(replica)
        del self._recent[replica], self._limits[replica]

    def clear(self, replica: str) -> None:
        """The replica has lost its cache."""
        for block in self._recent[replica]:
            self._disown(block, self._bits[replica])
        self._recent[replica].clear()

    def match(self, salt: str, token_ids: tuple[int, ...]) -> Match:
        """How many leading tokens of the prompt each replica is expected to have."""
        owners_of = self._owners.get
        length = len(token_ids)
        holders = self._everybody
        hashes: list[int] = []
        tokens_of_bit: dict[int, int] = {}
        block = hash(salt)
        reached = 0
        for start, end, stride in self._spans:
            if end > length:
                break
            block = hash((block, token_ids[start:end:stride]))
            hashes.append(block)
            still = owners_of(block, 0) & holders
            lost = holders & ~still
            while lost:
                bit = lost & -lost
                tokens_of_bit[bit] = start
                lost ^= bit
            holders = still
            if not still:
                break
            reached = end
        tokens = {name: tokens_of_bit.get(bit, reached) for name, bit in self._bits.items()}
        return Match(tuple(hashes), tokens)

    def record(self, replica: str, salt: str, token_ids: tuple[int, ...], known: Match) -> None:
        """The replica will have this prompt in its cache. `known`: what `match` said of a prefix
        of these tokens, whose hashes need not be made again."""
        if replica not in self._bits:
            return
        bit = self._bits[replica]
        recent = self._recent[replica]
        hashes = self._extend(known.hashes, salt, token_ids)
        # From the end to the start: a prefix is always more recent than what it leads to.
        for block in reversed(hashes):
            if block in recent:
                recent.move_to_end(block)
            else:
                recent[block] = None
                self._owners[block] = self._owners.get(block, 0) | bit
        self._forget_oldest(replica)

    def correct(self, replica: str, known: Match, *, cached_tokens: int) -> None:
        """What the replica really had of a prompt of which `known` was expected.

        Less: it forgets sooner than was believed, so fewer blocks of it are remembered from now
        on. As much: it may be believed to hold more again.
        """
        if replica not in self._bits:
            return
        expected = known.tokens.get(replica, 0)
        recent, limit = self._recent[replica], self._limits[replica]
        if expected - cached_tokens > SLACK_TOKENS:
            limit = int(min(limit, len(recent)) * SHRINK)
        elif expected:
            limit += len(known.hashes)
        self._limits[replica] = min(self._max_blocks, max(MIN_BLOCKS, limit))
        self._forget_oldest(replica)

    def check_integrity(self) -> None:
        """Raises AssertionError where the two views of the index disagree."""
        for name, bit in self._bits.items():
            owned = {block for block, owners in self._owners.items() if owners & bit}
            assert owned == set(self._recent[name]), name
            assert len(owned) <= self._limits[name] <= self._max_blocks, name
        assert all(self._owners.values()), "a block without an owner"

    def _extend(
        self, hashes: tuple[int, ...], salt: str, token_ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        block = hashes[-1] if hashes else hash(salt)
        more = []
        for start, end, stride in self._spans[len(hashes) :]:
            if end > len(token_ids):
                break
            block = hash((block, token_ids[start:end:stride]))
            more.append(block)
        return (*hashes, *more)

    def _forget_oldest(self, replica: str) -> None:
        recent, bit = self._recent[replica], self._bits[replica]
        while len(recent) > self._limits[replica]:
            block, _ = recent.popitem(last=False)
            self._disown(block, bit)

    def _disown(self, block: int, bit: int) -> None:
        owners = self._owners[block] & ~bit
        if owners:
            self._owners[block] = owners
        else:
            del self._owners[block]


def choose(
    candidates: Sequence[Candidate],
    match: Match,
    *,
    cache_key: str,
    random: Random,
) -> Candidate:
    """The candidate with the least work left for this prompt: tokens to prefill, and what runs.

    Where no candidate has a prefix of it: the one that the prompt's cache key always goes to
    (A22), as long as it is not much busier than the rest; without a key the less loaded of two
    picked at random.
    """
    loads = {c.name: c.load for c in candidates}
    known = match.tokens
    if not any(known.get(name) for name in loads):
        if cache_key:
            home = max(candidates, key=lambda c: _rendezvous(cache_key, c.name))
            if loads[home.name] - min(loads.values()) <= MAX_EXTRA_SEQUENCES:
                return home
        two = random.sample(candidates, min(2, len(candidates)))
        return min(two, key=lambda c: loads[c.name])

    def work(candidate: Candidate) -> tuple[float, float]:
        load = loads[candidate.name]
        return load * TOKENS_PER_SEQUENCE - known.get(candidate.name, 0), load

    return min(candidates, key=work)


def _rendezvous(key: str, replica: str) -> bytes:
    """The same in every process, unlike `hash`: several gateways agree on a key's home. And no
    checksum: those are linear, and would give one replica no key at all."""
    return blake2b(f"{key}\0{replica}".encode(), digest_size=8).digest()


def _spans(block_tokens: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, stride) of every block."""
    start = 0
    for length, stride, end_of_tier in TIERS:
        while start < end_of_tier * block_tokens:
            end = start + length * block_tokens
            yield start, end, stride
            start = end
