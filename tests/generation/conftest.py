from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from proteus.generation.engine import DenoiseEngine
from tests.generation.denoisers import export_unet, manifest_of
from tests.generation.painters import assert_empty, engine_limits


@pytest.fixture(scope="session")
def denoiser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_unet(tmp_path_factory.mktemp("denoiser"))


@pytest.fixture(scope="session")
def shared_engine(denoiser_folder: Path) -> Iterator[DenoiseEngine]:
    engine = DenoiseEngine(denoiser_folder, manifest_of(), engine_limits())
    yield engine
    engine.close()


@pytest.fixture
def engine(shared_engine: DenoiseEngine) -> Iterator[DenoiseEngine]:
    """Checked after each test: nothing may be left in it."""
    yield shared_engine
    assert_empty(shared_engine)
