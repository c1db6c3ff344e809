"""The page's rules against the checker's: the same broken answers, the same verdicts."""

import base64
import json
import random
from typing import Any

import pytest

from rejoinder.check.exchange import DialectName, Exchange
from tests.browser.conftest import OpenPage
from tests.check.evidence import Seen, ideal_evidence
from tests.check.goldens import GOLDENS
from tests.check.good import good_exchange

DIALECTS = {"O": "openai", "D": "deepinfra"}

JUDGE = """async (exchanges) => {
  const { Run } = await import('/playground/run.js');
  const { complete } = await import('/playground/client.js');
  const { RULES } = await import('/playground/rules.js');
  const judged = [];
  for (const { dialect, request, status, headers, body, at } of exchanges) {
    Date.now = () => at * 1000;
    const bytes = Uint8Array.from(atob(body), (char) => char.charCodeAt(0));
    window.fetch = async () => new Response(bytes, { status, headers });
    const run = new Run({ request, dialect, path: 'x' });
    await complete(run, '', new AbortController().signal);
    judged.push(run.findings.map((one) => one.rule));
  }
  return [RULES.map((rule) => rule.id), judged];
}"""

OF_SEVERAL = {"R87", "R209"}
"""Ids are unique among answers, too: one answer cannot show that."""


def as_sent(exchange: Exchange) -> dict[str, Any]:
    assert exchange.response is not None
    headers = [(k, v) for k, v in exchange.response.headers if k.lower() != "transfer-encoding"]
    return {
        "dialect": DIALECTS[exchange.dialect],
        "request": json.loads(exchange.request.body or b"{}"),
        "status": exchange.response.status,
        "headers": headers,
        "at": exchange.at,
        "body": base64.b64encode(exchange.response.body).decode(),
    }


def is_answer(exchange: Exchange) -> bool:
    return (
        exchange.response is not None
        and exchange.response.status == 200
        and exchange.response.ending == "whole"
        and "completions" in exchange.request.url
        and isinstance(request_of(exchange), dict)
    )


def request_of(exchange: Exchange) -> Any:
    try:
        return json.loads(exchange.request.body)
    except ValueError:
        return None


def test_what_the_checker_sees_the_page_sees(open_page: OpenPage) -> None:
    """Broken answers: a rule that the page knows is reported, and no other but its companions."""
    ideal: dict[DialectName, Seen] = {"O": ideal_evidence("O"), "D": ideal_evidence("D")}
    exchanges, expected = [], []
    for golden in GOLDENS:
        seen = dict(ideal[golden.dialect])
        golden.breaks(seen)
        changed = [x for name, x in seen.items() if x is not ideal[golden.dialect].get(name)]
        answers = [x for x in changed if is_answer(x)]
        if len(answers) == 1:
            exchanges.append(as_sent(answers[0]))
            expected.append((golden.rule, {golden.rule, *golden.also}))
    known, judged = open_page().evaluate(JUDGE, exchanges)
    missed = {
        rule
        for (rule, _), found in zip(expected, judged, strict=True)
        if rule in known and rule not in found
    }
    false = [
        (rule, sorted(set(found) - may))
        for (rule, may), found in zip(expected, judged, strict=True)
        if set(found) - may
    ]
    tried = {rule for rule, _ in expected} & set(known)
    assert tried == set(known)
    assert missed == OF_SEVERAL
    assert not false


@pytest.mark.parametrize("dialect", ["O", "D"])
def test_no_false_alarm(open_page: OpenPage, dialect: DialectName) -> None:
    rng = random.Random(5)
    exchanges = [x for x in (good_exchange(rng, dialect) for _ in range(150)) if is_answer(x)]
    assert len(exchanges) > 100
    sent = [as_sent(x) for x in exchanges]
    for one in sent:
        one["headers"].append(("x-request-id", "req_1"))
    _, judged = open_page().evaluate(JUDGE, sent)
    assert [found for found in judged if found] == []
