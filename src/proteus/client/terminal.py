"""A drawing while it is made: a bar and pictures in coloured half blocks, or plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from rich.color import Color
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.style import Style

from proteus.client.drawing import Drawing, Drawn, Preview

if TYPE_CHECKING:
    from PIL.Image import Image

UPPER_HALF = "▀"
MAX_ABREAST = 4  # pictures beside each other
REFRESHES_PER_S = 8
BAR_ROWS = 3  # kept free of pictures: the bar, and the prompt of the shell


class HalfBlocks:
    """A picture as text: a character is two pixels, one above the other. Made smaller where it does not fit."""

    def __init__(self, image: Image, *, max_columns: int, max_rows: int) -> None:
        from PIL.Image import Resampling

        scale = min(1.0, max_columns / image.width, 2 * max_rows / image.height)
        size = max(1, int(image.width * scale)), max(1, int(image.height * scale))
        self._image = image.convert("RGB").resize(size, Resampling.BOX)
        self._segments = list(self._lines())

    def rows(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Of each character, RGB above and below; nothing is below the last row of an odd height."""
        width, height = self._image.size
        rgb = self._image.tobytes()
        pixels = [rgb[at : at + 3] for at in range(0, len(rgb), 3)]
        lines = [pixels[row * width : (row + 1) * width] for row in range(height)]
        for row in range(0, height, 2):
            below = lines[row + 1] if row + 1 < height else [b""] * width
            yield list(zip(lines[row], below, strict=True))

    def _lines(self) -> Iterator[Segment]:
        """Neighbours of the same colours together: the terminal gets less, and rich has less to do."""
        for row in self.rows():
            for (above, below), run in groupby(row):
                yield Segment(UPPER_HALF * len(list(run)), _style(above, below))
            yield Segment.line()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._segments

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self._image.width, self._image.width)


@lru_cache(maxsize=4096)
def _style(above: bytes, below: bytes) -> Style:
    return Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below) if below else None)


class View:
    """What a person sees of a drawing that comes; this one prints a line for each preview, if they are to be shown."""

    def __init__(self, console: Console, *, show_previews: bool) -> None:
        self._console = console
        self._show_previews = show_previews

    @staticmethod
    def on(console: Console, *, pictures: int, show_previews: bool) -> View:
        """The one that suits the console."""
        if not shows_pictures(console):
            return View(console, show_previews=show_previews)
        return TerminalView(console, pictures=pictures, show_previews=show_previews)

    def follow(
        self, items: Iterator[Preview | Drawn | Drawing], save: Callable[[Drawn], Path]
    ) -> tuple[Drawing, dict[int, Path]]:
        """The drawing and, by index, the file of each picture, saved as soon as it is done."""
        paths: dict[int, Path] = {}
        with self:
            for item in items:
                if isinstance(item, Drawn):
                    paths[item.index] = save(item)
                if not isinstance(item, Drawing):
                    self.add(item)
        return cast(Drawing, item), paths  # the last item of a stream is its drawing

    def add(self, item: Preview | Drawn) -> None:
        """Show what came."""
        if self._show_previews and isinstance(item, Preview):
            self._console.print(f"picture {item.index}: step {item.step} of {item.steps}", highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class TerminalView(View):
    """In place: a bar over the steps of all pictures, and below it the pictures as they are by now."""

    def __init__(self, console: Console, *, pictures: int, show_previews: bool) -> None:
        super().__init__(console, show_previews=show_previews)
        self._pictures = max(1, pictures)
        self._steps_done: dict[int, int] = {}
        self._shown: dict[int, HalfBlocks] = {}
        self._progress = Progress(
            TextColumn("drawing"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"), TimeElapsedColumn()
        )
        self._bar = self._progress.add_task("", total=None)
        self._live = Live(get_renderable=self._rendered, console=console, refresh_per_second=REFRESHES_PER_S)

    def add(self, item: Preview | Drawn) -> None:
        steps = item.steps if isinstance(item, Preview) else item.settings["steps"]
        self._steps_done[item.index] = item.step if isinstance(item, Preview) else steps
        self._progress.update(self._bar, total=steps * self._pictures, completed=sum(self._steps_done.values()))
        if self._show_previews:
            self._shown[item.index] = self._half_blocks(item)

    def _half_blocks(self, item: Preview | Drawn) -> HalfBlocks:
        abreast = min(self._pictures, MAX_ABREAST)
        lines = -(-self._pictures // abreast)
        return HalfBlocks(
            item.image,
            max_columns=max(1, self._console.width // abreast - 1),
            max_rows=max(1, (self._console.height - BAR_ROWS) // lines),
        )

    def _rendered(self) -> Group:
        pictures = [self._shown[index] for index in sorted(self._shown)]
        return Group(self._progress, Columns(pictures, padding=(0, 1, 0, 0))) if pictures else Group(self._progress)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)


def shows_pictures(console: Console) -> bool:
    """Whether colours can be told apart on it and the cursor moved."""
    return console.is_terminal and not console.is_dumb_terminal and not console.no_color
