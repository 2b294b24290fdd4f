"""`proteus engines`: the builds of TensorRT that a repository keeps, and which of them is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from proteus.cli.plainly import told_plainly

if TYPE_CHECKING:
    from proteus.deployment import Deployment
    from proteus.engines import Build, Engine

DEMO_DEPLOYMENT = Path("deployments/demo.toml")
DeploymentFile = Annotated[
    Path, typer.Option(exists=True, dir_okay=False, help="The deployment file of the repository.", show_default=True)
]

engines = typer.Typer(
    help="List the TensorRT engines of a repository, and choose which are served.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@engines.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    deployment: DeploymentFile = DEMO_DEPLOYMENT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """List every build: what made it, for which GPU, whether it is served and still belongs to the exported graph."""
    if context.invoked_subcommand is not None:
        return
    from proteus.deployment import Deployment
    from proteus.engines import damaged

    with told_plainly():
        given = Deployment.load(deployment)
        rows = list(_rows(given))
    for told in damaged(given.repository_path):
        typer.echo(told, err=True)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        Console(highlight=False).print(_table(rows))
    else:
        typer.echo("no engines are kept; make export CHECKPOINT=folder TARGET=tensorrt builds them on a GPU host")


@engines.command()
def use(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As listed, or what it begins with.", show_default=False)],
    model: Annotated[str | None, typer.Option(help="Of this model only; by default of all that have it.")] = None,
    deployment: DeploymentFile = DEMO_DEPLOYMENT,
) -> None:
    """Serve the builds NAME from the next start on, after their files were compared with their digests: all or none."""
    from proteus import engines as kept
    from proteus.deployment import Deployment, DeploymentError

    with told_plainly():
        given = Deployment.load(deployment)
        repository = given.repository_path
        stages = tuple(stage for stage in kept.STAGES if model in (None, stage))
        if not stages:
            raise DeploymentError(f"no engines are made of {model}", limit=f"known are {', '.join(kept.STAGES)}")
        builds = kept.named(repository, name, stages)
        for engine in kept.install(repository, [build.folder for build in builds]):
            typer.echo(f"{engine.stage} is served by {engine.name} from the next start on")
        for build in builds:
            for told in _misfits(given, build):
                typer.echo(f"{build.engine.stage}: {build.name} {told}", err=True)


def _misfits(deployment: Deployment, build: Build) -> Iterator[str]:
    """What keeps a build from being served as the deployment file is now."""
    from proteus.engines import wanted_precision

    stage, precision = build.engine.stage, build.engine.precision
    if build.stale:
        yield "was built from another ONNX file than is there"
    if wanted_precision(deployment, stage) != precision:
        yield (
            f'computes in {precision}: set gpu.{stage}.precision = "{precision}" in {deployment.path}, and run '
            "python -m proteus.configs on it"
        )
    if not _has_profiles(deployment, build.engine):
        yield f"was built for other sizes or batches than {deployment.path} has"


def _has_profiles(deployment: Deployment, engine: Engine) -> bool:
    """Those that the deployment file asks for, where it has the stage at all."""
    from proteus.engines import exported_stages
    from proteus.profiles import profiles_of, written

    here = engine.stage in exported_stages(deployment)
    return here and engine.profiles == written(profiles_of(deployment, engine.stage))


def _rows(deployment: Deployment) -> Iterator[dict[str, Any]]:
    from proteus.engines import STAGES, builds_of

    for stage in STAGES:
        for build in builds_of(deployment.repository_path, stage):
            engine = build.engine
            yield {
                "model": stage,
                "name": build.name,
                "tensorrt": engine.tensorrt_version,
                "sm": engine.sm,
                "precision": engine.precision,
                "bytes": engine.plan_bytes,
                "built_at": engine.built_at,
                "served": build.installed,
                "graph": "other" if build.stale else "same",
                "profiles": "same" if _has_profiles(deployment, engine) else "other",
            }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for column in ("name", "MB", "built", "served", "fits"):
        table.add_column(column, justify="right" if column == "MB" else "left", overflow="fold")
    for row in rows:
        others = [f"{row[what]} {what}" for what in ("graph", "profiles") if row[what] != "same"]
        table.add_row(
            row["model"],
            row["name"],
            f"{row['bytes'] / 1e6:.1f}",
            row["built_at"][:10],
            "yes" if row["served"] else "",
            ", ".join(others) or "yes",
        )
    return table
