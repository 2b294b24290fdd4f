"""A server's text goes to the terminal without its control characters."""

from __future__ import annotations

import pytest

from proteus.cli.contract import contract_table
from proteus.cli.plainly import told_plainly
from proteus.client.errors import ServerError
from proteus.client.printable import printable

TITLE = "\x1b]0;mine\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a red circle", "a red circle"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (TITLE, "�]0;mine�"),
        ("\x9b2J", "�2J"),  # one byte, both begin a sequence
        ("done\rundone\x08\x7f\x00", "done�undone���"),
        ("👩\u200d🎨 déjà\u00a0vu", "👩\u200d🎨 déjà\u00a0vu"),
    ],
)
def test_only_control_characters_are_taken_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_error_of_a_server_gives_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, told_plainly():
        raise ServerError("invalid_request", f"prompt {TITLE}")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "invalid_request: prompt �]0;mine�\n"


def test_a_contract_of_a_server_gives_no_orders() -> None:
    table = contract_table({"new": {TITLE: TITLE}})
    assert [cell for column in table.columns for cell in column.cells if TITLE in str(cell)] == []
