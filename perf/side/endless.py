"""The demo without its end tokens, for ours and for transformers: so everybody's answers have the same length.

Links to what is unchanged; written anew at every start, as exports and checkpoints change.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from perf.peers.environments import HOME, ROOT
from proteus import configs
from proteus.deployment import Deployment

DEMO = ROOT / "deployments" / "demo.toml"
SLOTS = 16  # as many as the most clients; the peers have as many
GENERATION, CONFIG, EXPORT = "generation_config.json", "config.json", "export.json"


def checkpoint(source: Path, out: Path = HOME / "models" / "endless") -> Path:
    """For transformers, which reads end tokens from two files."""
    _link_all(source, out, but=(GENERATION, CONFIG))
    generation, config = (json.loads((source / name).read_text()) for name in (GENERATION, CONFIG))
    generation.pop("eos_token_id", None)
    config["text_config"]["eos_token_id"] = None
    (out / GENERATION).write_text(json.dumps(generation))
    (out / CONFIG).write_text(json.dumps(config))
    return out


def deployment(out: Path = HOME / "models" / "endless-deployment") -> Deployment:
    """Ours: the demo's file but for its paths, its slots and what draws; its export but for the end tokens."""
    demo = Deployment.load(DEMO)
    shutil.rmtree(out, ignore_errors=True)
    repository = out / "repository"
    for model in demo.models:
        _link_all(demo.repository_path / model / "1", repository / model / "1", but=(EXPORT, "model.py"))
        exported = demo.repository_path / model / "1" / EXPORT
        if exported.exists():
            (repository / model / "1" / EXPORT).write_text(
                json.dumps({**json.loads(exported.read_text()), "eos_token_ids": []})
            )
    file = out / DEMO.name
    file.write_text(_edited(DEMO.read_text(), demo.checkpoint_path))
    made = Deployment.load(file)
    configs.write(made, template=demo.repository_path)
    return made


def end_token(made: Deployment) -> int:
    """The one that would have ended an answer."""
    told: int = json.loads((made.checkpoint_path / GENERATION).read_text())["eos_token_id"]
    return told


def _edited(text: str, checkpoint_path: Path) -> str:
    """The file's lines; one that is not found is an error here and not a comparison of something else."""
    lines = {
        r"^checkpoint = .*$": f'checkpoint = "{checkpoint_path}"',
        r"^draw_checkpoint = .*\n": "",
        r"^repository = .*$": 'repository = "repository"',
        r"^slots = .*$": f"slots = {SLOTS}",
    }
    for pattern, line in lines.items():
        text, count = re.subn(pattern, line, text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"{DEMO}: {count} lines are like {pattern}, wanted 1")
    return text


def _link_all(source: Path, out: Path, but: tuple[str, ...]) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and file.name not in but:
            (out / file.name).symlink_to(file.resolve())
