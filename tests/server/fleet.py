"""Deployments of the demo that only read, each with a repository of its own whose files are links to the demo's."""

from __future__ import annotations

import re
from pathlib import Path

from proteus import configs
from proteus.deployment import Deployment
from proteus.launcher.ports import choose

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"


def linked(folder: Path, *, encoder_cache: str = "", **tables: str) -> Deployment:
    """With `tables` by name and `encoder_cache` beneath that of the demo, as TOML; its configurations are written."""
    demo = Deployment.load(DEMO)
    text = re.sub(r"^draw_checkpoint = .*\n", "", DEMO.read_text(), flags=re.MULTILINE)
    text = re.sub(r'^checkpoint = "[^"]*"', f'checkpoint = "{demo.checkpoint_path}"', text, flags=re.MULTILINE)
    text = re.sub(r'^repository = "[^"]*"', 'repository = "model_repository"', text, flags=re.MULTILINE)
    text = text.replace("\n[cache] ", f"\n{encoder_cache}\n[cache] ")
    folder.mkdir(parents=True)
    file = folder / "deployment.toml"
    file.write_text(text + "".join(f"\n[{name}]\n{lines}\n" for name, lines in tables.items()))
    deployment = Deployment.load(file)
    for source in demo.repository_path.glob("*/1/*"):
        if source.is_file():
            target = deployment.repository_path / source.relative_to(demo.repository_path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    configs.write(deployment)
    return deployment


def free_ports() -> dict[str, int]:
    """As `Server` takes them: for a server that comes back where it was."""
    ports = choose(http=None, grpc=None, metrics=None)
    return {f"{name}_port": port for name, port in ports.items()}
