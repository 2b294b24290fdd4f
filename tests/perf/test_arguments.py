"""A measurement of nothing is refused before it begins."""

from __future__ import annotations

import argparse

import pytest

from perf.arguments import at_least


def test_numbers_from_the_least_on_are_taken() -> None:
    assert at_least(1)("1") == 1
    assert at_least(1.0)("2.5") == 2.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "x", "1e3"])
def test_what_is_below_or_no_number_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=at_least(1))
    with pytest.raises(SystemExit):
        parser.parse_args(["--rounds", text])
    assert "--rounds: " in capsys.readouterr().err
    if text == "nan":
        with pytest.raises(argparse.ArgumentTypeError, match="nan is below"):
            at_least(1.0)(text)


def test_what_has_no_end_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no end"):
        at_least(1.0)("inf")
