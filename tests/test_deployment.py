from __future__ import annotations

from pathlib import Path

import pytest

from proteus.deployment import Deployment, DeploymentError

DEMO = Path(__file__).parent.parent / "deployments" / "demo.toml"


def write(folder: Path, old: str = "", new: str = "") -> Path:
    text = DEMO.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"the demo has no {old!r}")
    path = folder / "deployment.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_demo_loads_and_resolves_its_paths_from_the_file() -> None:
    deployment = Deployment.load(DEMO)
    assert deployment.checkpoint_path == DEMO.parent.parent / "checkpoints" / "demo"
    assert deployment.repository_path == DEMO.parent.parent / "model_repository"
    assert deployment.path == DEMO


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_pictures = 4", "max_pictures = 4\nmax_picture = 4", ["unknown key 'image.max_picture'", "fix:"]),
        ("cores = 2 ", "cores = 2\nspeed = 9 ", ["unknown key 'speed'"]),
        ("slots = 8", "", ["missing key 'llm.slots'", "demo.toml"]),
        ("slots = 8", "slots = 0", ["llm.slots = 0", "greater than 0"]),
        ("slots = 8", 'slots = "8"', ["llm.slots = '8'", "integer"]),
        ('"png", ', '"tiff", ', ["image.formats.0 = 'tiff'"]),
        ("min_side_px = 8", "min_side_px = 20_000", ["min_side_px = 20000", "max_side_px = 10000"]),
        ("instances = 2", "instances = 3", ["image_preprocess uses 3 threads", "cores = 2"]),
        ("max_queue = 64\nthreads = 1", "max_queue = 64\nthreads = 4", ["llm uses 4 threads"]),
        ('name = "demo"', 'name = "Demo!"', ["name = 'Demo!'"]),
        ('name = "demo"', "name = ", ["is not TOML"]),
    ],
)
def test_wrong_file_is_refused_with_file_key_value_and_fix(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    path = write(tmp_path, old, new)
    with pytest.raises(DeploymentError) as caught:
        Deployment.load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"nowhere\.toml cannot be read"):
        Deployment.load(tmp_path / "nowhere.toml")


def test_values_cannot_be_changed_after_loading() -> None:
    deployment = Deployment.load(DEMO)
    with pytest.raises(ValueError, match="frozen"):
        deployment.llm.slots = 9  # type: ignore[misc]
