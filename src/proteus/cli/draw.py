"""`proteus draw`: a prompt to picture files, with a progress bar and previews where there is a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import typer
from rich.console import Console

from proteus.cli.plainly import told_plainly
from proteus.client import Client, DrawOptions
from proteus.client.channel import DEFAULT_URL
from proteus.client.draw_bill import drawing_json, drawing_lines, picture_line
from proteus.client.draw_files import DrawnFiles, FormatName
from proteus.client.printable import printable
from proteus.client.terminal import View, shows_pictures

BAR_STEPS = 20  # the bar moves so many times for a picture, or at every step where there are fewer


def draw(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", show_default=False)],
    negative_prompt: Annotated[str | None, typer.Option("--negative", help="What to lead away from.")] = None,
    size: Annotated[str | None, typer.Option(metavar="WxH", help="In px.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoise steps.")] = None,
    guidance: Annotated[float | None, typer.Option(help="1 is none, and costs half.")] = None,
    sampler: Annotated[str | None, typer.Option(help="euler, ddim, heun or dpmpp_2m.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the same again; without one the server takes any.")] = None,
    first_index: Annotated[int | None, typer.Option(help="Of the first picture; k draws picture k alone.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="So many pictures.")] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE|FOLDER", help="By default drawing.png, or a free name like it.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that --out names.")] = False,
    format: Annotated[FormatName | None, typer.Option(help="By default as --out ends, or png.")] = None,
    quality: Annotated[int | None, typer.Option(help="1 to 100, of jpeg and webp.")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Show the pictures while they are drawn.")] = False,
    preview_every: Annotated[
        int | None, typer.Option(help="Steps between two previews; by default as the bar needs them.")
    ] = None,
    preview_by: Annotated[
        Literal["linear", "decoder"] | None, typer.Option(help="A fast guess, or the decoder.", show_default=False)
    ] = None,
    request_id: Annotated[str | None, typer.Option(help="A name by which `proteus stop` stops it.")] = None,
    cache_scope: Annotated[str | None, typer.Option(help="Share encoded prompts only within it.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose share of the server it is.")] = None,
    deadline_ms: Annotated[int | None, typer.Option(help="To be started; later is refused.")] = None,
    batch: Annotated[bool, typer.Option("--batch", help="The pictures can wait.")] = False,
    timeout_s: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds for all pictures.")] = None,
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC port.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Draw what PROMPT says, write the pictures to files and print their seeds, settings, cost and times.

    No file is replaced without --overwrite. Ctrl-C stops the drawing at the server; pictures that are done are kept.
    """
    console = Console(highlight=False)
    with told_plainly(), Client(url) as client:
        files = DrawnFiles.plan(out, format, pictures=n or 1, overwrite=overwrite)
        options = _options(locals() | {"format": files.format})
        if as_json:
            quiet = View(console, show_previews=False)
            drawing, paths = quiet.follow(client.stream_draw(prompt, **options), files.save)
            typer.echo(drawing_json(drawing, paths))
            return
        if preview or shows_pictures(console):
            options.setdefault("preview_every", max(1, (steps or 0) // BAR_STEPS))
        view = View.on(console, pictures=n or 1, show_previews=preview or preview_every is not None)
        drawing, paths = view.follow(client.stream_draw(prompt, **options), files.save)
    for picture in drawing.pictures:
        typer.echo(printable(picture_line(paths[picture.index], picture)))
    typer.echo(printable(drawing_lines(drawing)))


def _options(given: Mapping[str, Any]) -> DrawOptions:
    """What was given of it; the rest is the server's to choose."""
    chosen = {name: value for name in DrawOptions.__annotations__ if (value := given.get(name)) is not None}
    if given["batch"]:
        chosen["latency_class"] = "batch"
    return cast(DrawOptions, chosen)
