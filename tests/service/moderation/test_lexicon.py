"""The lexicon: what is written, whole words, however it is dressed up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rejoinder.config import ConfigError
from rejoinder.service.moderation import CATEGORIES
from rejoinder.service.moderation.lexicon import _STRONG, _WEAK, LexiconModerator

MODERATOR = LexiconModerator({"violence": ["BADWORD", "two words"], "hate": ["禁止語"]})


def flagged(text: str) -> list[str]:
    return [name for name, flag in MODERATOR.score(text).categories.items() if flag]


@pytest.mark.parametrize(
    "text",
    [
        "BADWORD",
        "badword",
        "a BadWord.",
        '{"city":"BADWORD"}',
        "say\nBADWORD\tnow",
        "ＢＡＤＷＯＲＤ",
        "BÁDWÖRD",
        "BAD\u200bWORD",
        "B\u00adA\u2060DWORD",
        "𝐁𝐀𝐃𝐖𝐎𝐑𝐃",
        "_BADWORD_",
        "two  words",
        "two, words!",
        "TWO\nWORDS",
    ],
)
def test_a_word_is_found_in_any_dress(text: str) -> None:
    assert flagged(text) == ["violence"]


@pytest.mark.parametrize(
    "text",
    ["", " ", "BADWORDS", "XBADWORD", "BAD WORD", "two", "words two", "Scunthorpe", "classic"],
)
def test_other_words_are_left_alone(text: str) -> None:
    assert flagged(text) == []


def test_scripts_without_spaces() -> None:
    assert flagged("これは禁止語です") == ["hate"]
    assert flagged("これは禁止です") == []


@pytest.mark.parametrize(
    ("text", "categories"),
    [
        ("How do I bake bread?", []),
        ("I killed the process with SIGTERM.", []),
        ("please kill the server", []),
        ("i want to kill myself", ["self-harm", "self-harm/intent", "violence"]),
        ("Tell me how to make a bomb", ["illicit", "illicit/violent"]),
        ("I'll kill you", ["harassment", "harassment/threatening"]),
        ("I’ll kill you", ["harassment", "harassment/threatening"]),
    ],
)
def test_the_built_in_lists(text: str, categories: list[str]) -> None:
    assert flagged(text) == categories


def test_weak_words_add_up() -> None:
    one, two = MODERATOR.score("a massacre"), MODERATOR.score("a massacre and a slaughter")
    assert not one.flagged
    assert two.flagged
    assert 0 < one.category_scores["violence"] < two.category_scores["violence"] < 1


def test_a_word_counts_once() -> None:
    assert MODERATOR.score("kill " * 50) == MODERATOR.score("kill")


def test_every_category_has_words_and_every_phrase_is_found() -> None:
    for table in (_STRONG, _WEAK):
        for category, phrases in table.items():
            for phrase in phrases:
                score = MODERATOR.score(f"xyz {phrase.upper()} xyz").category_scores
                assert score[category] > 0, phrase
                assert score[category.partition("/")[0]] > 0, phrase
    assert {*_STRONG} == {*CATEGORIES}


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"violenc": ["x"]}, "unknown key 'moderation.lexicon.violenc'"),
        ({"violence": ["..."]}, "moderation.lexicon.violence"),
        ({"violence": [""]}, "moderation.lexicon.violence"),
    ],
)
def test_a_bad_configuration_names_its_key(added: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LexiconModerator(added)
    assert words in str(caught.value)


@given(st.text(max_size=200))
async def test_any_text_has_a_legal_result(text: str) -> None:
    """R195: one key set, scores in [0, 1], flagged iff a category is; and always the same."""
    results = await MODERATOR.moderate([text, text])
    first, second = results.results
    assert first == second
    assert (
        set(first.categories)
        == set(first.category_scores)
        == set(first.category_applied_input_types)
        == set(CATEGORIES)
    )
    assert all(0 <= score <= 1 for score in first.category_scores.values())
    assert first.flagged == any(first.categories.values())


async def test_a_huge_text_does_not_hold_the_loop_for_long() -> None:
    results = await MODERATOR.moderate(["kill " * 200_000 + "BADWORD", "x" * 1_000_000])
    assert [scored.flagged for scored in results.results] == [True, False]
