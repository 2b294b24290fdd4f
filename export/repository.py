"""Checkpoint folder -> model repository that Triton serves, and the deployment file that names both.

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
    """Where the parts of a deployment lie, relative to `root`."""

    root: Path
    deployment: Path
    checkpoint: Path
    repository: Path
    written: tuple[Path, ...]  # the parts that an export replaces


DEMO = Layout(
    root=OURS,
    deployment=Path("deployments/demo.toml"),
    checkpoint=Path("checkpoints/demo"),
    repository=Path("model_repository"),
    written=(Path("model_repository"),),
)


def out_layout(root: Path) -> Layout:
    """A deployment folder of its own."""
    deployment, checkpoint, repository = Path("deployment.toml"), Path("checkpoint"), Path("model_repository")
    return Layout(
        root=root,
        deployment=deployment,
        checkpoint=checkpoint,
        repository=repository,
        written=(checkpoint, repository, deployment),
    )


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
    layout = out_layout(out) if out is not None else DEMO
    if out is None and folder.resolve() != (DEMO.root / DEMO.checkpoint).resolve():
        raise DeploymentError(
            f"{DEMO.deployment} serves {DEMO.checkpoint}, not {folder}", fix="give a folder for the export: --out"
        )
    with _staging(layout) as staged:
        _prepare(staged, layout, checkpoint)
        progress("loading the weights")
        model = load_model(checkpoint)
        repository = staged.root / staged.repository
        comparisons = tuple(_export_graphs(model, repository, progress, inline_limit_bytes))
        progress("writing the model repository")
        manifest = _manifest(checkpoint, model, comparisons)
        path = repository / MANIFEST
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        configs.write(Deployment.load(staged.root / staged.deployment), template=DEMO.root / DEMO.repository)
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
def _staging(layout: Layout) -> Iterator[Layout]:
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
    if source.exists():
        shutil.copyfile(source, target)
    else:
        target.write_text(_deployment_text(layout, checkpoint), encoding="utf-8")
    deployment = Deployment.load(target)
    places = (deployment.checkpoint_path, deployment.repository_path)
    if places != ((staged.root / staged.checkpoint).resolve(), (staged.root / staged.repository).resolve()):
        raise DeploymentError(
            f"{source} serves checkpoint = {deployment.checkpoint!r}, repository = {deployment.repository!r}",
            limit=f"an export here writes {layout.checkpoint} and {layout.repository}",
            fix="correct the file, or export to another folder",
        )
    if deployment.llm.context_tokens > checkpoint.context_tokens:
        raise DeploymentError(
            f"{source}: llm.context_tokens = {deployment.llm.context_tokens}",
            limit=f"the checkpoint's max_position_embeddings = {checkpoint.context_tokens}",
            fix="lower llm.context_tokens",
        )


def _deployment_text(layout: Layout, checkpoint: Checkpoint) -> str:
    """The demo's deployment file, comments included, with other paths, a context that the checkpoint has, and tiers
    that take a picture of its family.
    """
    path = DEMO.root / DEMO.deployment
    context_tokens = min(Deployment.load(path).llm.context_tokens, checkpoint.context_tokens)
    name = re.sub(r"[^a-z0-9_-]+", "-", layout.root.resolve().name.lower()).strip("-_") or "exported"
    text = path.read_text(encoding="utf-8")
    text = text.replace("# The demo deployment: every number once", "# Every number once")
    text = text.replace(str(DEMO.deployment), str(layout.deployment))
    for key, value in (
        ("name", f'"{name}"'),
        ("checkpoint", f'"{layout.checkpoint}"'),
        ("repository", f'"{layout.repository}"'),
        ("context_tokens", str(context_tokens)),
    ):
        text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text, count=1)
    return re.sub(r"(?m)^max_visual_tokens = \S+", f"max_visual_tokens = {checkpoint.family.visual_tokens}", text)


def _install(staged: Layout, layout: Layout) -> None:
    """Move every staged file to its place, the manifest last; graphs and weights of an earlier export are removed."""
    entries = [entry for part in staged.written for entry in _walk(staged.root / part)]
    for entry in sorted(entries, key=lambda entry: (entry.name == MANIFEST.name, entry)):
        place = layout.root / entry.relative_to(staged.root)
        if entry.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            entry.replace(place)
    named = {layout.root / entry.relative_to(staged.root) for entry in entries}
    for pattern in _FILES:
        for earlier in (layout.root / layout.repository).rglob(pattern):
            if earlier not in named:
                earlier.unlink()


def _walk(part: Path) -> list[Path]:
    return [part, *part.rglob("*")] if part.is_dir() else [part]
