"""The default moderator: words and phrases by category. Deterministic, instant, and coarse.

It finds what is written, not what is meant: no context, no irony, few languages. Use `remote` or
`guard` where a wrong score costs something. This module must not know: requests, answers.
"""

import asyncio
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rejoinder.config import ConfigError
from rejoinder.service.moderation import CATEGORIES, result
from rejoinder.types import ModerationResult, ModerationResults

__all__ = ["LexiconModerator"]

MODEL = "rejoinder-lexicon-1"

STRONG = 0.9
WEAK = 0.4
CONFIGURED = 0.99
"""What one phrase scores. Phrases add up as independent chances: two weak ones are flagged."""

_LONG_TEXT = 20_000
"""Characters from which a text is scored beside the event loop."""

_INVISIBLE = dict.fromkeys(
    [
        *(0x00AD, 0x034F, 0x061C, 0xFE0E, 0xFE0F, 0xFEFF),
        *range(0x200B, 0x2010),
        *range(0x202A, 0x202F),
        *range(0x2060, 0x2065),
    ]
)
"""Characters that show nothing and would hide a word from a comparison."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
"""Scripts that write words without spaces between them."""

_STRONG: dict[str, tuple[str, ...]] = {
    "harassment": (
        "you are worthless",
        "you're worthless",
        "nobody likes you",
        "everyone hates you",
        "go kill yourself",
        "kill yourself",
        "you should die",
        "stupid bitch",
        "piece of shit",
        "fuck you",
        "shut the fuck up",
    ),
    "harassment/threatening": (
        "i will kill you",
        "i'll kill you",
        "i am going to kill you",
        "i'm going to kill you",
        "gonna kill you",
        "i will hurt you",
        "i'll hurt you",
        "i will find you and",
        "i know where you live",
        "you will pay for this",
        "watch your back",
    ),
    "hate": (
        "subhuman",
        "subhumans",
        "untermensch",
        "inferior race",
        "master race",
        "white power",
        "race traitor",
        "race traitors",
        "go back to your country",
        "heil hitler",
    ),
    "hate/threatening": (
        "gas the jews",
        "kill all jews",
        "kill all muslims",
        "kill all christians",
        "kill all immigrants",
        "kill all gays",
        "ethnic cleansing now",
        "exterminate them all",
        "day of the rope",
    ),
    "illicit": (
        "buy stolen credit cards",
        "how to launder money",
        "how to pick a lock to rob",
        "how to shoplift",
        "how to make meth",
        "cook meth",
        "synthesize methamphetamine",
        "fake passport for sale",
        "write ransomware",
        "how to hack into someone",
        "steal someone's identity",
    ),
    "illicit/violent": (
        "how to make a bomb",
        "how to build a bomb",
        "build a pipe bomb",
        "make a pipe bomb",
        "make explosives at home",
        "hire a hitman",
        "how to poison someone",
        "how to get away with murder",
        "3d print a gun",
        "make nerve gas",
        "make a molotov cocktail",
    ),
    "self-harm": (
        "suicide",
        "self harm",
        "self-harm",
        "cutting myself",
        "cut my wrists",
        "slit my wrists",
    ),
    "self-harm/intent": (
        "i want to kill myself",
        "want to kill myself",
        "going to kill myself",
        "i want to die",
        "i want to end my life",
        "end my own life",
        "i will kill myself",
        "i am going to hurt myself",
        "i'm going to hurt myself",
    ),
    "self-harm/instructions": (
        "how to kill myself",
        "how to commit suicide",
        "painless way to die",
        "best way to kill myself",
        "how to tie a noose",
        "lethal dose of",
        "how to cut myself",
        "how to starve myself",
    ),
    "sexual": (
        "porn",
        "porno",
        "pornography",
        "blowjob",
        "blow job",
        "handjob",
        "cumshot",
        "masturbate",
        "masturbating",
        "erotica",
        "hardcore sex",
        "explicit sex",
        "have sex with me",
        "send nudes",
    ),
    "sexual/minors": (
        "child porn",
        "child pornography",
        "kiddie porn",
        "csam",
        "sex with a child",
        "sex with children",
        "sex with a minor",
        "underage sex",
        "underage nudes",
        "sexualized child",
    ),
    "violence": (
        "stab him",
        "stab her",
        "stabbed to death",
        "beat him to death",
        "beat her to death",
        "beaten to death",
        "shoot them all",
        "mass shooting",
        "school shooting",
        "i will kill",
        "i want to kill",
        "torture him",
        "torture her",
    ),
    "violence/graphic": (
        "disembowel",
        "disemboweled",
        "disembowelled",
        "decapitated",
        "dismembered",
        "blood and guts",
        "entrails",
        "gouged out his eyes",
        "gouged out her eyes",
        "severed head",
        "mutilated corpse",
    ),
}

_WEAK: dict[str, tuple[str, ...]] = {
    "harassment": ("idiot", "moron", "loser", "bitch", "bastard", "asshole", "scum", "pathetic"),
    "hate": ("vermin", "mongrels", "infidels", "savages"),
    "illicit": ("heroin", "meth", "cocaine", "counterfeit", "ransomware", "phishing", "launder"),
    "illicit/violent": ("pipe bomb", "explosives", "detonator", "nerve agent", "ricin"),
    "self-harm": ("overdose", "anorexia", "bulimia", "noose"),
    "sexual": ("nude", "nudes", "naked", "orgasm", "horny", "nsfw", "xxx"),
    "violence": ("kill", "murder", "massacre", "slaughter", "stab", "shoot", "bomb", "torture"),
    "violence/graphic": ("gore", "gory", "corpse", "mutilated", "bloodbath"),
}


class _Phrase(NamedTuple):
    text: str
    category: str
    score: float


class LexiconModerator:
    """Scores by the built-in phrases and those of the configuration (`moderation.lexicon`).

    Case, width, accents and invisible characters make no difference; a phrase matches whole words
    only, in whatever punctuation, and anywhere in scripts that write no spaces. What counts for a
    sub-category counts for its category.
    """

    def __init__(self, added: Mapping[str, Iterable[str]] | None = None) -> None:
        """Raises ConfigError for a category that does not exist or a phrase without letters."""
        self._phrases: dict[str, dict[tuple[str, ...], list[_Phrase]]] = {}
        self._unspaced: dict[str, list[_Phrase]] = {}
        for table, score in ((_STRONG, STRONG), (_WEAK, WEAK), (added or {}, CONFIGURED)):
            for category, phrases in table.items():
                if category not in CATEGORIES:
                    known = ", ".join(CATEGORIES)
                    raise ConfigError(
                        f"unknown key 'moderation.lexicon.{category}'; known: {known}"
                    )
                for phrase in phrases:
                    self._add(category, phrase, score)

    async def moderate(self, texts: Sequence[str]) -> ModerationResults:
        results = []
        for text in texts:
            long = len(text) > _LONG_TEXT
            results.append(await asyncio.to_thread(self.score, text) if long else self.score(text))
        return ModerationResults(MODEL, tuple(results))

    async def close(self) -> None:
        return

    def score(self, text: str) -> ModerationResult:
        chances = dict.fromkeys(CATEGORIES, 1.0)
        for hit in self._hits(fold(text)):
            for category in {hit.category, hit.category.partition("/")[0]}:
                chances[category] *= 1 - hit.score
        return result({name: round(1 - chance, 6) for name, chance in chances.items()})

    def _add(self, category: str, phrase: str, score: float) -> None:
        folded = fold(phrase)
        words = tuple(_WORD.findall(folded))
        if not words:
            raise ConfigError(f"moderation.lexicon.{category}: '{phrase}' has no word in it")
        entry = _Phrase(" ".join(words), category, score)
        if _UNSPACED.search(folded):
            self._unspaced.setdefault("".join(words), []).append(entry)
        else:
            self._phrases.setdefault(words[0], {}).setdefault(words, []).append(entry)

    def _hits(self, folded: str) -> set[_Phrase]:
        """Each phrase that occurs, once, however often it does."""
        hits: set[_Phrase] = set()
        words = _WORD.findall(folded)
        for place, word in enumerate(words):
            for phrase, entries in self._phrases.get(word, {}).items():
                if tuple(words[place : place + len(phrase)]) == phrase:
                    hits.update(entries)
        joined = "".join(words) if self._unspaced else ""
        for text, entries in self._unspaced.items():
            if text in joined:
                hits.update(entries)
        return hits


def fold(text: str) -> str:
    """One form for all that look alike: no case, width, accents or invisible characters."""
    plain = unicodedata.normalize("NFKD", text.translate(_INVISIBLE))
    bare = "".join(char for char in plain if not unicodedata.combining(char))
    return unicodedata.normalize("NFKC", bare).casefold()
