"""The cards of docs/cards are what ``ckptkit doctor`` says now: CI makes one of them again, another for each commit."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from benchmarks.cards import CARDS, FOLDER, KILLS, make
from ckptkit.tools.doctor.card import VARYING

THIS = int(os.environ.get("CORPUS_SEED", time.localtime().tm_yday)) % len(CARDS)


def fields_of(path: Path) -> dict[str, object]:
    """The fields of a card, with its title."""
    text = path.read_text(encoding="utf-8")
    lines = re.search("```yaml\n(.*)\n```", text, re.DOTALL)[1].splitlines()
    return {"title": text.partition("\n")[0]} | {
        line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in lines
    }


def test_each_card_passes_and_compares_every_micro_step() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted(CARDS)
    for card in CARDS:
        fields = fields_of(FOLDER / f"{card}.md")
        script, mode = card.split("-")
        assert fields["title"] == f"# Resume card of {script}.py, {mode}: PASS"
        assert (fields["status"], fields["mode"], fields["sentinels_match"]) == ("verified", mode, True)
        assert (fields["differences"], fields["absolute_tolerance"], fields["relative_tolerance"]) == (0, 0, 0)
        assert f"-- python {script}.py runs/{script} {mode}" in fields["command"]
        in_cycle = [kill["in_cycle"].split("/")[0] != "0" for kill in fields["kills"]]
        assert (len(in_cycle), any(in_cycle)) == (KILLS, True)
        assert re.fullmatch("[0-9a-f]{40}", fields["commit"]), card
        assert re.search(r"(?<![\w.~:/])/\w", (FOLDER / f"{card}.md").read_text(encoding="utf-8")) is None


@pytest.mark.extended
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("card", [CARDS[THIS]])
def test_card_made_again_says_the_same(card: str, tmp_path: Path) -> None:
    made, stands = fields_of(make(card, tmp_path)), fields_of(FOLDER / f"{card}.md")
    assert made.keys() == stands.keys()
    assert {name: made[name] for name in made if name not in VARYING} == {
        name: stands[name] for name in stands if name not in VARYING
    }
