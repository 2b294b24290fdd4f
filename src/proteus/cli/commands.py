"""Every command but `draw`, and the program that holds them all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console, Group
from rich.table import Table

from proteus import __version__
from proteus.cli.advisories import advisories
from proteus.cli.caches import caches
from proteus.cli.contract import contract_table, file_contract
from proteus.cli.draw import draw
from proteus.cli.engines import engines
from proteus.cli.gateway import gateway
from proteus.cli.health import health
from proteus.cli.keys import keys
from proteus.cli.plainly import told_plainly
from proteus.cli.serve import DEMO_DEPLOYMENT, DeploymentFile, serve
from proteus.cli.size import size
from proteus.cli.usage import usage
from proteus.client import Answer, Client, Options, ServerError
from proteus.client.bill import bill, bill_json
from proteus.client.channel import DEFAULT_URL
from proteus.client.demo import run_demo
from proteus.client.printable import printable
from proteus.client.wire import MODELS, Model
from proteus.limits import SamplerName, TierName

app = typer.Typer(
    help="Ask about pictures, and have them drawn, through NVIDIA Triton.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)

CONTRACT_TIMEOUT_S = STOP_TIMEOUT_S = 10.0


def main() -> None:
    """Entry point of the command `proteus`."""
    app()


app.command()(serve)


@app.command()
def ask(
    words: Annotated[list[str], typer.Argument(metavar="PICTURE... QUESTION", show_default=False)],
    max_tokens: Annotated[int | None, typer.Option(help="The longest answer.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="The shortest answer.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="So many answers.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 keeps every token.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0 is off.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="-2 to 2; 0 is off.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="-2 to 2; 0 is off.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 is off.")] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="-100 to 100 for a token id; may be repeated.")
    ] = None,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="With --json: how likely each token was.")] = False,
    top_logprobs: Annotated[int | None, typer.Option(help="With --logprobs: so many others beside it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    request_id: Annotated[str | None, typer.Option(help="A name by which `proteus stop` stops it.")] = None,
    cache_scope: Annotated[str | None, typer.Option(help="Share pictures and prompts only within it.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose share of the server it is.")] = None,
    deadline_ms: Annotated[int | None, typer.Option(help="To be started; later is refused.")] = None,
    detail: Annotated[TierName | None, typer.Option(help="Quality tier of the pictures.", show_default=False)] = None,
    batch: Annotated[bool, typer.Option("--batch", help="The answer can wait.")] = False,
    timeout_s: Annotated[float | None, typer.Option("--timeout", min=0, help="Seconds for the whole answer.")] = None,
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC port.")] = DEFAULT_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Ask a QUESTION about pictures, or about none, and print the answer as it comes."""
    options = _options(locals())
    *pictures, question = words
    if os.path.isfile(question):
        raise typer.BadParameter(f"{question} is a file: the question comes last")
    with told_plainly(), Client(url) as client:
        if as_json:
            typer.echo(bill_json(client.ask(question, pictures, **options)))
        elif n is not None and n > 1:
            _print_choices(client.ask(question, pictures, **options))
        else:
            _print_stream(client, question, pictures, options)


app.command()(draw)
app.command()(caches)
app.command()(health)
app.command()(gateway)
app.command()(advisories)
app.command()(size)
app.add_typer(engines, name="engines")
app.add_typer(keys, name="keys")
app.command()(usage)


@app.command()
def stop(
    request_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    cache_scope: Annotated[str, typer.Option(help="That of the request.", show_default=False)] = "",
    tenant: Annotated[str, typer.Option(help="That of the request.", show_default=False)] = "",
    model: Annotated[Model | None, typer.Option(help="Only there; by default at both.", show_default=False)] = None,
    url: Annotated[str, typer.Option(help="host:port of the server's gRPC port.")] = DEFAULT_URL,
) -> None:
    """Stop what was asked or drawn with --request-id, and print how many were stopped: 0, 1, or 2 of one name."""
    stopped: list[int] = []
    missing: list[ServerError] = []
    with told_plainly(), Client(url) as client:
        for name in MODELS if model is None else (model,):
            try:
                stopped.append(
                    client.stop(
                        request_id, model=name, cache_scope=cache_scope, tenant=tenant, timeout_s=STOP_TIMEOUT_S
                    )
                )
            except ServerError as error:
                if not error.is_unknown_model:
                    raise
                missing.append(error)
        if not stopped:
            raise missing[0]
    typer.echo(sum(stopped))


@app.command()
def contract(
    deployment: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Read this file; by default that of the demo."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask the server at this host:port of its gRPC port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Print what is accepted, how much of it, what is made smaller and what is refused."""
    if deployment is not None and url is not None:
        raise typer.BadParameter("give --deployment or --url, not both")

    with told_plainly():
        if url is None:
            limits = file_contract(deployment or DEMO_DEPLOYMENT)
        else:
            with Client(url) as client:
                limits = client.contract(timeout_s=CONTRACT_TIMEOUT_S)
        if as_json:
            typer.echo(json.dumps(limits, ensure_ascii=False, indent=2))
        else:
            Console(highlight=False).print(contract_table(limits))


@app.command()
def cost(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", show_default=False)] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Count by a checkpoint folder alone.")
    ] = None,
    deployment: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Without --checkpoint: its checkpoint and contract.")
    ] = DEMO_DEPLOYMENT,
    image_size: Annotated[list[str] | None, typer.Option(metavar="WxH", help="A picture without a file.")] = None,
    video_size: Annotated[list[str] | None, typer.Option(metavar="WxHxFRAMES", help="A sampled clip.")] = None,
    audio_seconds: Annotated[list[float] | None, typer.Option(min=0, max=1e6, help="Audio without a file.")] = None,
    text: Annotated[str | None, typer.Option(help="The question, or the prompt.", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(min=0, help="The longest answer.")] = 0,
    detail: Annotated[TierName, typer.Option(help="Tier of the pictures.")] = "auto",
    kv_bytes: Annotated[
        int | None, typer.Option(min=1, max=4, help="Bytes of one cached value; the engine's, or 2 with --checkpoint.")
    ] = None,
    frames_per_s: Annotated[float | None, typer.Option(min=0.001, help="Video frames taken in a second.")] = None,
    max_frames: Annotated[int | None, typer.Option(min=1, help="Video frames taken at most.")] = None,
    resample: Annotated[
        int | None, typer.Option(min=1, help="As Flamingo: so many rows a medium, seen by cross-attention.")
    ] = None,
    cross_every: Annotated[int, typer.Option(min=1, help="With --resample: layers for one that looks at them.")] = 4,
    prune_after: Annotated[
        int | None, typer.Option(min=1, help="As FastV: layers that see every visual token.")
    ] = None,
    prune_drop: Annotated[float, typer.Option(min=0, max=1, help="With --prune-after: share that is dropped.")] = 0.5,
    draw: Annotated[str | None, typer.Option(metavar="WxH", help="Pictures to draw instead.")] = None,
    steps: Annotated[int | None, typer.Option(help="With --draw: denoise steps.")] = None,
    guidance: Annotated[float | None, typer.Option(help="With --draw: 1 is none, and costs half.")] = None,
    sampler: Annotated[SamplerName | None, typer.Option(help="With --draw.", show_default=False)] = None,
    n: Annotated[int, typer.Option("--n", help="With --draw: so many pictures.")] = 1,
    negative_prompt: Annotated[str, typer.Option("--negative", help="With --draw and --text.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """What a request would cost, from file headers alone: tokens, encoder work, KV memory; or what a drawing would."""
    if draw is not None:
        _cost_of_drawing(locals())
    else:
        _cost_of_reading(locals())


@app.command()
def buckets(
    deployment: DeploymentFile = DEMO_DEPLOYMENT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List the encoder shapes that pictures within a deployment's contract need."""
    from proteus.estimate import deployment_buckets

    with told_plainly():
        shapes = [asdict(bucket) | {"label": bucket.label} for bucket in deployment_buckets(deployment)]
    typer.echo(json.dumps(shapes, indent=2) if as_json else "\n".join(shape["label"] for shape in shapes))


@app.command()
def demo(
    deployment: DeploymentFile = DEMO_DEPLOYMENT,
    pictures: Annotated[Path, typer.Option(help="Folder with questions.json and its pictures.")] = Path(
        "client/pictures"
    ),
) -> None:
    """Start a server, ask about three pictures, draw one, print usage and stage times, stop the server."""
    from proteus.launcher import Server

    with told_plainly(), Server(deployment, log=Path("var/demo.log"), show_progress=True) as server:
        run_demo(server.ports.grpc_url, pictures, Path("var/demo-drawing.png"), Console(highlight=False))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _cost_of_reading(given: Mapping[str, Any]) -> None:
    from proteus.cost.fusion import FlamingoContract, PruneAfter
    from proteus.cost.report import estimate_document, estimate_lines, estimate_table
    from proteus.estimate import Wanted, estimate_request

    resample, prune_after = given["resample"], given["prune_after"]
    wanted = Wanted(
        files=given["files"] or (),
        image_sizes=given["image_size"] or (),
        video_sizes=given["video_size"] or (),
        audio_seconds=given["audio_seconds"] or (),
        text=given["text"],
        max_tokens=given["max_tokens"],
        tier=given["detail"],
        kv_value_bytes=given["kv_bytes"],
        frames_per_s=given["frames_per_s"],
        max_frames=given["max_frames"],
        fusion=FlamingoContract(resampled_rows=resample, cross_every=given["cross_every"]) if resample else None,
        pruning=PruneAfter(layer=prune_after, drop=given["prune_drop"]) if prune_after else None,
    )
    with told_plainly():
        estimate = estimate_request(wanted, checkpoint=given["checkpoint"], deployment=given["deployment"])
    if not given["as_json"]:
        typer.echo(estimate_lines(estimate))
    _print(estimate_document(estimate) if given["as_json"] else estimate_table(estimate))


def _cost_of_drawing(given: Mapping[str, Any]) -> None:
    from proteus.cost.report import draw_document, draw_table
    from proteus.estimate_draw import WantedDrawing, estimate_draw

    wanted = WantedDrawing(
        size=given["draw"],
        steps=given["steps"],
        guidance=given["guidance"],
        sampler=given["sampler"],
        images=given["n"],
        prompt=given["text"],
        negative_prompt=given["negative_prompt"],
    )
    with told_plainly():
        estimate = estimate_draw(wanted, checkpoint=given["checkpoint"], deployment=given["deployment"])
    _print(draw_document(estimate) if given["as_json"] else draw_table(estimate))


def _print(content: Table | Group | Mapping[str, Any]) -> None:
    if isinstance(content, Table | Group):
        Console(highlight=False).print(content)
    else:
        typer.echo(json.dumps(content, indent=2))


def _options(given: Mapping[str, Any]) -> Options:
    """What was given of it; the rest is the server's to choose."""
    chosen = {
        name: value
        for name in Options.__annotations__
        if not ((value := given.get(name)) is None or value is False or value == [])
    }
    if "logit_bias" in chosen:
        chosen["logit_bias"] = _biases(chosen["logit_bias"])
    if given["batch"]:
        chosen["latency_class"] = "batch"
    return cast(Options, chosen)


def _biases(words: list[str]) -> dict[str, float]:
    """ID=BIAS … as the request document has them."""
    biases = {}
    for word in words:
        token_id, _, bias = word.partition("=")
        try:
            biases[token_id] = float(bias)
        except ValueError:
            raise typer.BadParameter(f"--logit-bias {word}: write it as ID=BIAS, such as 17=-100") from None
    return biases


def _print_choices(answer: Answer) -> None:
    for number, choice in enumerate(answer.choices, start=1):
        typer.echo(f"{number}. {printable(choice.text)}")
    typer.echo()
    _print(bill(answer))


def _print_stream(client: Client, question: str, pictures: list[str], options: Options) -> None:
    column = 0
    try:
        for item in client.stream(question, pictures, **options):
            if isinstance(item, Answer):
                typer.echo("\n")
                _print(bill(item))
                column = 0
            else:
                typer.echo(printable(item.text), nl=False)
                column += len(item.text)
    finally:
        if column:
            typer.echo()
