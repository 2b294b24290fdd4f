"""LLaVA checkpoint -> model repository that Triton serves, and the deployment file that names both.

Everything is made in a folder beside the target and moved there when every graph has passed its comparisons, so a
failed export leaves what was there before.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import LlavaForConditionalGeneration

from export.checkpoint import Checkpoint, eos_token_ids, load_model, read_checkpoint
from export.onnx_graph import INLINE_LIMIT_BYTES, OPSET, export_graph, graphs
from export.parity import CHECKS, TOLERANCE, Comparison, check_together
from proteus import configs
from proteus.deployment import Deployment, DeploymentError
from proteus.manifest import FORMAT, MANIFEST

OURS = Path(__file__).resolve().parents[1]
_FILES = ("*.onnx", "*.onnx.data")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parts of a deployment lie, relative to `root`. It may hold another checkpoint's models besides."""

    root: Path
    deployment: Path
    key: str  # of the checkpoint in the deployment file
    checkpoint: Path
    repository: Path
    models: tuple[str, ...]  # with graphs of this checkpoint
    manifest: Path  # relative to the repository
    written: tuple[Path, ...]  # the parts that an export replaces


MODELS = ("vision_encoder", "connector", "llm")
DEMO = Layout(
    root=OURS,
    deployment=Path("deployments/demo.toml"),
    key="checkpoint",
    checkpoint=Path("checkpoints/demo"),
    repository=Path("model_repository"),
    models=MODELS,
    manifest=MANIFEST,
    written=(Path("model_repository"),),
)


def out_layout(demo: Layout, root: Path) -> Layout:
    """A deployment folder of its own, for a checkpoint of the same kind as the demo's."""
    deployment, checkpoint = Path("deployment.toml"), Path(demo.key)
    return replace(
        demo,
        root=root,
        deployment=deployment,
        checkpoint=checkpoint,
        written=(checkpoint, demo.repository, deployment),
    )


def choose_layout(demo: Layout, folder: Path, out: Path | None) -> Layout:
    """Raises DeploymentError where another checkpoint than the demo's would go into the demo."""
    if out is not None:
        return out_layout(demo, out)
    if folder.resolve() != (demo.root / demo.checkpoint).resolve():
        raise DeploymentError(
            f"{demo.deployment} serves {demo.checkpoint}, not {folder}", fix="give a folder for the export: --out"
        )
    return demo


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one export did."""

    deployment: Path
    comparisons: tuple[Comparison, ...]
    file_bytes: dict[str, int]  # by path relative to the repository
    manifest: dict[str, Any]


def export_checkpoint(
    folder: Path,
    out: Path | None = None,
    *,
    progress: Progress = lambda _: None,
    inline_limit_bytes: int = INLINE_LIMIT_BYTES,
) -> Report:
    """Export `folder` to the deployment folder `out`, or into the demo's repository when `out` is None.

    Raises UnsupportedCheckpoint, ParityError or DeploymentError, and then changes nothing.
    """
    progress("checking the checkpoint")
    checkpoint = read_checkpoint(folder)
    layout = choose_layout(DEMO, folder, out)
    with staging(layout) as staged:
        _prepare(staged, layout, checkpoint)
        progress("loading the weights")
        model = load_model(checkpoint)
        repository = staged.root / staged.repository
        comparisons = tuple(_export_graphs(model, repository, progress, inline_limit_bytes))
        progress("writing the model repository")
        return finish(staged, layout, _manifest(checkpoint, model, comparisons), comparisons)


def finish(staged: Layout, layout: Layout, manifest: dict[str, Any], comparisons: tuple[Comparison, ...]) -> Report:
    """Write the manifest and the configs of this checkpoint's models, and move everything to its place."""
    repository = staged.root / staged.repository
    path = repository / staged.manifest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    deployment = Deployment.load(staged.root / staged.deployment)
    other = {"checkpoint", "draw_checkpoint"} - {staged.key}
    configs.write(
        deployment.model_copy(update=dict.fromkeys(other)),  # its export is not in the staging folder
        template=DEMO.root / DEMO.repository,
    )
    file_bytes = {
        str(file.relative_to(repository)): file.stat().st_size
        for pattern in _FILES
        for file in sorted(repository.rglob(pattern))
    }
    _install(staged, layout)
    return Report(
        deployment=layout.root / layout.deployment,
        comparisons=comparisons,
        file_bytes=file_bytes,
        manifest=manifest,
    )


def _export_graphs(
    model: LlavaForConditionalGeneration, repository: Path, progress: Progress, inline_limit_bytes: int
) -> Iterator[Comparison]:
    """Each graph is compared before the next is traced."""
    for graph in graphs(model):
        progress(f"tracing {graph.name}")
        path = export_graph(graph, repository, inline_limit_bytes=inline_limit_bytes)
        progress(f"comparing {graph.name} with torch")
        yield from CHECKS[graph.name](path, model)
    progress("comparing all together with torch")
    yield from check_together(repository, model)


def _manifest(
    checkpoint: Checkpoint, model: LlavaForConditionalGeneration, comparisons: tuple[Comparison, ...]
) -> dict[str, Any]:
    text = model.config.text_config
    parity: dict[str, float] = {}
    for comparison in comparisons:
        parity[comparison.graph] = max(parity.get(comparison.graph, 0.0), comparison.max_abs_diff)
    return {
        "format": FORMAT,
        "revision": checkpoint.revision(),
        "image_size": checkpoint.family.image_size_px,
        "visual_tokens": checkpoint.family.visual_tokens,
        "hidden_size": text.hidden_size,
        "vocab_size": text.vocab_size,
        "num_layers": text.num_hidden_layers,
        "num_kv_heads": text.num_key_value_heads,
        "head_dim": model.model.language_model.layers[0].self_attn.head_dim,
        "context_tokens": checkpoint.context_tokens,
        "image_token_id": checkpoint.family.image_token_id,
        "eos_token_ids": eos_token_ids(model),
        "opset": OPSET,
        "versions": {name: version(name) for name in ("torch", "transformers", "onnx", "onnxruntime")},
        "tolerance": TOLERANCE,
        "parity": parity,
    }


@contextmanager
def staging(layout: Layout) -> Iterator[Layout]:
    """The same layout in a folder beside the target, on the same disk; gone at the end."""
    inside = layout.root.exists()
    parent = layout.root if inside else layout.root.resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=parent) as folder:
        yield replace(layout, root=Path(folder))


def _prepare(staged: Layout, layout: Layout, checkpoint: Checkpoint) -> None:
    """Put the checkpoint's texts and the deployment file in their places, so that a bad one stops before the work."""
    (staged.root / staged.checkpoint).mkdir(parents=True)
    for path in checkpoint.text_files():
        shutil.copyfile(path, staged.root / staged.checkpoint / path.name)
    target, source = staged.root / staged.deployment, layout.root / layout.deployment
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        target.write_text(_deployment_text(layout, checkpoint), encoding="utf-8")
    elif Deployment.load(source).reads:
        shutil.copyfile(source, target)
    else:
        text = named(source.read_text(encoding="utf-8"), layout)
        target.write_text(_fitted(text, checkpoint), encoding="utf-8")
    deployment = Deployment.load(target)
    check_places(staged, source, deployment, deployment.checkpoint, deployment.checkpoint_path)
    if deployment.llm.context_tokens > checkpoint.context_tokens:
        raise DeploymentError(
            f"{source}: llm.context_tokens = {deployment.llm.context_tokens}",
            limit=f"the checkpoint's max_position_embeddings = {checkpoint.context_tokens}",
            fix="lower llm.context_tokens",
        )


def check_places(
    staged: Layout, source: Path, deployment: Deployment, named_checkpoint: str | None, checkpoint_path: Path
) -> None:
    """The deployment file looks where the export writes; raises DeploymentError."""
    places = (checkpoint_path, deployment.repository_path)
    if places != ((staged.root / staged.checkpoint).resolve(), (staged.root / staged.repository).resolve()):
        raise DeploymentError(
            f"{source} serves {staged.key} = {named_checkpoint!r}, repository = {deployment.repository!r}",
            limit=f"an export here writes {staged.checkpoint} and {staged.repository}",
            fix="correct the file, or export to another folder",
        )


def _deployment_text(layout: Layout, checkpoint: Checkpoint) -> str:
    """The demo's deployment file with other paths, for this checkpoint alone."""
    return _fitted(fresh_text(layout), checkpoint)


def _fitted(text: str, checkpoint: Checkpoint) -> str:
    """A context that the checkpoint has, and tiers that take a picture of its family."""
    wanted = int(re.search(r"(?m)^context_tokens = (\d+)", text)[1])  # type: ignore[index]
    text = set_key(text, "context_tokens", str(min(wanted, checkpoint.context_tokens)))
    return re.sub(r"(?m)^max_visual_tokens = \S+", f"max_visual_tokens = {checkpoint.family.visual_tokens}", text)


def fresh_text(layout: Layout) -> str:
    """The demo's deployment file, comments included, with other paths and the layout's checkpoint alone."""
    text = (DEMO.root / DEMO.deployment).read_text(encoding="utf-8")
    text = text.replace("# The demo deployment: every number once", "# Every number once")
    text = text.replace(str(DEMO.deployment), str(layout.deployment))
    text = text.replace('path = "../var/', 'path = "var/')  # what the gateway writes stays in the folder
    name = re.sub(r"[^a-z0-9_-]+", "-", layout.root.resolve().name.lower()).strip("-_") or "exported"
    text = re.sub(r"(?m)^(# )?(draw_)?checkpoint = .*\n", "", text)
    text = set_key(set_key(text, "name", f'"{name}"'), "repository", f'"{layout.repository}"')
    return named(text, layout)


def named(text: str, layout: Layout) -> str:
    """The text of a deployment file with the layout's checkpoint besides what it serves already."""
    return text.replace("\nrepository = ", f'\n{layout.key} = "{layout.checkpoint}"\nrepository = ', 1)


def set_key(text: str, key: str, value: str) -> str:
    """The text of a deployment file with another value under the first key of this name; a comment behind it stays."""
    return re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text, count=1)


def _install(staged: Layout, layout: Layout) -> None:
    """Move every staged file to its place, the manifest last; graphs of an earlier export of this kind are removed."""
    entries = [entry for part in staged.written for entry in _walk(staged.root / part)]
    for entry in sorted(entries, key=lambda entry: (entry.name == layout.manifest.name, entry)):
        place = layout.root / entry.relative_to(staged.root)
        if entry.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            entry.replace(place)
    placed = {layout.root / entry.relative_to(staged.root) for entry in entries}
    folders = [layout.root / layout.repository / model for model in layout.models]
    for earlier in (path for folder in folders for pattern in _FILES for path in folder.rglob(pattern)):
        if earlier not in placed:
            earlier.unlink()


def _walk(part: Path) -> list[Path]:
    return [part, *part.rglob("*")] if part.is_dir() else [part]
