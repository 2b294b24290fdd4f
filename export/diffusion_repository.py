"""Text-to-image checkpoint -> the models of a repository that draw, and the deployment file that names them.

They stand beside the models of a vision-language checkpoint where the deployment has one: nothing of it is touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from export.diffusion_checkpoint import DrawCheckpoint, Parts, load_parts, read_draw_checkpoint
from export.diffusion_graphs import DrawShape, draw_graphs
from export.diffusion_parity import CHECKS, check_together, check_tokenizers
from export.diffusion_preview import preview_map
from export.onnx_graph import INLINE_LIMIT_BYTES, OPSET, export_graph
from export.parity import TOLERANCE, Comparison
from export.repository import (
    DEMO,
    Layout,
    Progress,
    Report,
    check_places,
    choose_layout,
    finish,
    fresh_text,
    named,
    set_key,
    staging,
)
from proteus.configs import check_sizes
from proteus.deployment import Deployment, DeploymentError
from proteus.manifest import DRAW_FORMAT, DRAW_MANIFEST
from proteus.profiles import MAX_PROFILES

DRAW_DEMO = replace(
    DEMO,
    key="draw_checkpoint",
    checkpoint=Path("checkpoints/draw"),
    models=("text_encoder", "denoiser", "vae_decoder"),
    manifest=DRAW_MANIFEST,
)
_TABLES = "\n# Pictures out."  # where the tables of what draws begin in the demo's file
# Pictures whose decoder does not build for the demo's batches within the demo's workspace; `make check-tensorrt`
# builds it with these.
_LARGE_PX, _LARGE_DECODES, _LARGE_WORKSPACE_BYTES = 256, 4, 17_179_869_184
_DEFAULT_SIDE = 128  # latents, of a transformer that does not tell what it was trained on


def export_draw_checkpoint(
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
    checkpoint = read_draw_checkpoint(folder)
    layout = choose_layout(DRAW_DEMO, folder, out)
    with staging(layout) as staged:
        progress("loading the weights")
        parts = load_parts(checkpoint)
        shape = DrawShape.of(parts)
        _prepare(staged, layout, parts, shape)
        repository = staged.root / staged.repository
        comparisons = tuple(_export_graphs(parts, shape, repository, progress, inline_limit_bytes))
        progress("fitting the map of previews")
        manifest = _manifest(parts, shape, comparisons)
        progress("writing the model repository")
        return finish(staged, layout, manifest, comparisons)


def _export_graphs(
    parts: Parts, shape: DrawShape, repository: Path, progress: Progress, inline_limit_bytes: int
) -> Iterator[Comparison]:
    """Each graph is compared before the next is traced."""
    for graph in draw_graphs(parts, shape):
        progress(f"tracing {graph.name}")
        path = export_graph(graph, repository, inline_limit_bytes=inline_limit_bytes)
        progress(f"comparing {graph.name} with diffusers")
        yield from CHECKS[graph.name](path, parts, shape)
    progress("comparing all together with diffusers")
    yield from check_together(repository, parts, shape)


def _manifest(parts: Parts, shape: DrawShape, comparisons: tuple[Comparison, ...]) -> dict[str, Any]:
    checkpoint = parts.checkpoint
    parity: dict[str, float] = {}
    for comparison in comparisons:
        parity[comparison.graph] = max(parity.get(comparison.graph, 0.0), comparison.max_abs_diff)
    texts = zip(checkpoint.texts, shape.input_tokens, parts.tokenizers, strict=True)
    return {
        "format": DRAW_FORMAT,
        "revision": checkpoint.revision(),
        "family": checkpoint.kind.family,
        "text_inputs": [
            {"tensor": text.tensor, "folder": text.tokenizer, "tokens": tokens, "pad_id": tokenizer.pad_token_id}
            for text, tokens, tokenizer in texts
        ],
        "text_tokens": shape.text_tokens,
        "text_width": shape.text_width,
        "pooled_width": shape.pooled_width,
        "latent_channels": shape.latent_channels,
        "vae_factor": shape.vae_factor,
        "size_multiple": shape.size_multiple,
        "max_side": shape.max_side,
        "prediction": checkpoint.prediction,
        "scheduler": dict(checkpoint.scheduler),
        "embedded_guidance": shape.embedded_guidance,
        "preview": preview_map(parts, shape),
        "left_out": list(checkpoint.left_out),
        "opset": OPSET,
        "versions": {name: version(name) for name in ("torch", "diffusers", "transformers", "onnx", "onnxruntime")},
        "tolerance": TOLERANCE,
        "parity": parity,
    }


def _prepare(staged: Layout, layout: Layout, parts: Parts, shape: DrawShape) -> None:
    """Put the checkpoint's texts and the deployment file in their places, so that a bad one stops before the work."""
    _copy_texts(staged.root / staged.checkpoint, parts)
    demo = layout is DRAW_DEMO
    # Serving the demo reads the checkpoint's own folder; elsewhere it reads the copy.
    check_tokenizers(parts, shape, parts.checkpoint.folder if demo else staged.root / staged.checkpoint)
    target, source = staged.root / staged.deployment, layout.root / layout.deployment
    if demo and not Deployment.load(source).draws:
        raise DeploymentError(f"{source} has no draw_checkpoint", fix=f'set draw_checkpoint = "../{layout.checkpoint}"')
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        target.write_text(_fitted(fresh_text(layout), parts, shape), encoding="utf-8")
    elif Deployment.load(source).draws:
        shutil.copyfile(source, target)
    else:
        text = source.read_text(encoding="utf-8")
        if Deployment.load(source).draw is None:
            text += _TABLES + _demo_text().partition(_TABLES)[2]
        target.write_text(_fitted(named(text, layout), parts, shape), encoding="utf-8")
    deployment = Deployment.load(target)
    drawing = deployment.drawing
    check_places(staged, source, deployment, deployment.draw_checkpoint, drawing.checkpoint_path)
    check_sizes(
        source,
        drawing.limits,
        vae_factor=shape.vae_factor,
        size_multiple=shape.size_multiple,
        max_side=shape.max_side,
    )


def _copy_texts(folder: Path, parts: Parts) -> None:
    """Configs and tokenizers, each as the one file that serving reads, whatever files the checkpoint has it in."""
    checkpoint: DrawCheckpoint = parts.checkpoint
    for path in checkpoint.text_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkpoint.folder / path, folder / path)
    for text, tokenizer in zip(checkpoint.texts, parts.tokenizers, strict=True):
        tokenizer.backend_tokenizer.save(str(folder / text.tokenizer / "tokenizer.json"))


def _demo_text() -> str:
    return (DEMO.root / DEMO.deployment).read_text(encoding="utf-8")


def _fitted(text: str, parts: Parts, shape: DrawShape) -> str:
    """The text of a deployment file with sizes around the one that the checkpoint was trained on."""
    multiple_px = shape.vae_factor * shape.size_multiple
    trained = getattr(parts.denoiser.config, "sample_size", None)
    trained = trained if isinstance(trained, int) else _DEFAULT_SIDE
    most = shape.max_side or 2 * trained

    def rounded(side: float) -> int:
        return max(multiple_px, int(min(side, most) * shape.vae_factor) // multiple_px * multiple_px)

    min_px, default_px, max_px = rounded(trained / 2), rounded(trained), rounded(1.5 * trained)
    values = {
        "min_side_px": min_px,
        "max_side_px": max_px,
        "max_pixels": f"{max_px * max_px:_}",
        "side_multiple_px": multiple_px,
        "default_size": f'"{default_px}x{default_px}"',
    }
    if parts.checkpoint.kind.family == "flux" and not shape.embedded_guidance:
        values["default_guidance"] = 1.0  # made for few steps without any
    if len(range(min_px, max_px + 1, multiple_px)) ** 2 > MAX_PROFILES:
        text = set_key(text, "sizes", f'["{default_px}x{default_px}"]')  # the others share one profile
    head, mark, tables = text.partition("\n[draw]\n")
    for key, value in values.items():
        tables = set_key(tables, key, str(value))
    if default_px >= _LARGE_PX:
        head = set_key(head, "workspace_bytes", f"{_LARGE_WORKSPACE_BYTES:_}")
        before, stage, after = tables.partition("\n[stages.vae_decoder]")
        tables = before + stage + set_key(after, "max_batch", str(_LARGE_DECODES))
    return head + mark + tables
