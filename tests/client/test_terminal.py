"""What a person sees of a drawing: a known picture in half blocks, the bar, plain lines where there is no terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from proteus.client import Client, Drawing, Drawn, Preview
from proteus.client.terminal import HalfBlocks, TerminalView, View, shows_pictures
from tests.client.peer import Peer

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
RED_ON_BLUE = "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m"
GREEN_ON_WHITE = "\x1b[38;2;0;255;0;48;2;255;255;255m▀\x1b[0m"
WHITE_ALONE, RED_ALONE = "\x1b[38;2;255;255;255m▀\x1b[0m", "\x1b[38;2;255;0;0m▀\x1b[0m"


def terminal(*, width: int = 80, height: int = 24, **options: bool) -> Console:
    file = io.StringIO()
    return Console(
        file=file,
        force_terminal=True,
        color_system="truecolor",
        width=width,
        height=height,
        legacy_windows=False,
        _environ={"TERM": "xterm"},
        **options,  # type: ignore[arg-type]
    )


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def small_picture() -> Image.Image:
    """Two wide and three high: red green, blue white, white red."""
    image = Image.new("RGB", (2, 3))
    for at, colour in enumerate((RED, GREEN, BLUE, WHITE, WHITE, RED)):
        image.putpixel((at % 2, at // 2), colour)
    return image


@pytest.fixture
def pictures(peer: Peer) -> Iterator[list[Preview | Drawn | Drawing]]:
    with Client(peer.url) as client:
        yield list(client.stream_draw("a circle", n=2, steps=4, preview_every=2, size="32x16"))


def test_a_known_picture_becomes_its_colours_two_pixels_a_character() -> None:
    console = terminal()
    console.print(HalfBlocks(small_picture(), max_columns=80, max_rows=24))
    assert printed(console) == f"{RED_ON_BLUE}{GREEN_ON_WHITE}\n{WHITE_ALONE}{RED_ALONE}\n"


@pytest.mark.parametrize(
    ("size", "max_columns", "max_rows", "columns", "rows"),
    [
        ((64, 64), 80, 40, 64, 32),  # as it is
        ((64, 64), 80, 21, 42, 21),  # as high as there is room
        ((64, 32), 20, 40, 20, 5),  # as wide as there is room
        ((512, 512), 80, 24, 48, 24),
        ((1000, 1), 10, 10, 10, 1),
        ((1, 1000), 10, 10, 1, 10),
    ],
)
def test_a_picture_is_made_smaller_to_fit_and_keeps_its_shape(
    size: tuple[int, int], max_columns: int, max_rows: int, columns: int, rows: int
) -> None:
    blocks = list(HalfBlocks(Image.new("RGB", size), max_columns=max_columns, max_rows=max_rows).rows())
    assert (len(blocks[0]), len(blocks)) == (columns, rows)


def test_a_smaller_picture_has_the_mean_colours() -> None:
    checks = Image.new("RGB", (4, 4))
    checks.paste(WHITE, (0, 0, 2, 4))
    ((left, right),) = HalfBlocks(checks, max_columns=2, max_rows=1).rows()
    assert (left, right) == ((bytes(WHITE),) * 2, (bytes(3),) * 2)


def test_a_terminal_shows_the_bar_and_both_pictures_beside_each_other(
    pictures: list[Preview | Drawn | Drawing],
) -> None:
    console = terminal()
    view = View.on(console, pictures=2, show_previews=True)
    assert isinstance(view, TerminalView)
    drawing, paths = view.follow(iter(pictures), lambda picture: Path(f"{picture.index}.png"))
    assert drawing is pictures[-1]
    assert paths == {0: Path("0.png"), 1: Path("1.png")}
    shown = Text.from_ansi(printed(console).split("drawing ")[-1]).plain.splitlines()
    assert "8/8 steps" in shown[0]
    assert [line.count("▀") for line in shown[1:9]] == [64] * 8, "32 columns of each"
    assert max(map(cell_len, shown)) <= 80


def test_without_previews_a_terminal_shows_the_bar_alone(pictures: list[Preview | Drawn | Drawing]) -> None:
    console = terminal()
    View.on(console, pictures=2, show_previews=False).follow(iter(pictures), lambda picture: Path("x"))
    assert "8/8" in printed(console)
    assert "▀" not in printed(console)


def test_many_pictures_fit_a_small_terminal() -> None:
    console = terminal(width=40, height=10)
    data = _png(Image.new("RGB", (64, 64)))
    view = View.on(console, pictures=8, show_previews=True)
    with view:
        for index in range(8):
            view.add(Preview(index=index, data=data, format="png", width_px=64, height_px=64, step=1, steps=2))
    shown = Text.from_ansi(printed(console).split("drawing ")[-1]).plain.splitlines()
    assert len([line for line in shown if "▀" in line]) <= 7
    assert max(map(cell_len, shown)) <= 40


@pytest.mark.parametrize(
    ("console", "shows"),
    [
        (terminal(), True),
        (terminal(no_color=True), False),
        (Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"}), False),
        (Console(file=io.StringIO()), False),
    ],
)
def test_pictures_are_shown_where_colours_can_be_told_apart(console: Console, shows: bool) -> None:
    assert shows_pictures(console) == shows


def test_without_a_terminal_previews_are_lines(pictures: list[Preview | Drawn | Drawing]) -> None:
    console = Console(file=io.StringIO())
    View.on(console, pictures=2, show_previews=True).follow(iter(pictures), lambda picture: Path("x"))
    assert printed(console) == "picture 0: step 2 of 4\npicture 1: step 2 of 4\n"


def test_without_a_terminal_and_previews_nothing_is_printed(pictures: list[Preview | Drawn | Drawing]) -> None:
    console = Console(file=io.StringIO())
    View.on(console, pictures=2, show_previews=False).follow(iter(pictures), lambda picture: Path("x"))
    assert printed(console) == ""


def _png(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, format="PNG")
    return encoded.getvalue()
