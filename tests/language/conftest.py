from __future__ import annotations

from pathlib import Path

import pytest

from tests.language.checkpoints import TOKENIZERS, build_checkpoint


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint folder without weights for each kind of tokenizer."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: build_checkpoint(root / kind, kind) for kind in TOKENIZERS}
