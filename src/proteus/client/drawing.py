"""What a draw returns: previews while it is denoised, each picture as it is done, then the whole with its bill."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proteus.client.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A picture as a file's bytes."""

    index: int  # of the pictures of its request
    data: bytes = field(repr=False)
    format: str  # "png", "jpeg" or "webp"
    width_px: int
    height_px: int

    @property
    def image(self) -> Image:
        """The pixels, as Pillow opens them; each time anew."""
        from PIL import Image

        with Image.open(io.BytesIO(self.data)) as opened:
            opened.load()
            return opened

    def save(self, path: Path | str, *, overwrite: bool = True) -> Path:
        """Write the bytes as they are, whatever the path ends with; raises `InvalidInput` where that cannot be."""
        path = Path(path)
        try:
            with path.open("wb" if overwrite else "xb") as file:
                file.write(self.data)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "this is no file name"
            raise InvalidInput(f"cannot write the picture {path}: {reason}") from None
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Encoded):
    """What a picture that is not done looks like it becomes."""

    step: int  # steps done
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(Encoded):
    """A picture that is done. The same settings draw the same pixels again, whatever else the server does."""

    seed: int
    image_index: int  # with the seed, names the noise: `first_index` of a request for this picture alone
    settings: Mapping[str, Any]  # all that draws it again; also inside the file


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawUsage:
    """What all pictures of the request cost together."""

    images: int
    text_tokens: int  # prompt and negative prompt
    evaluations: int  # rows that the denoiser computed
    branches: int  # of guidance: 2, or 1 without
    latent_tokens: int  # of one picture
    token_passes: int  # latent tokens x evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureCost:
    """Of one picture."""

    index: int
    evaluations: int
    accelerator_ms: float  # its share, by rows, of the calls it was in
    queue_ms: float  # until its first row was computed
    denoise_ms: float  # from there to the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All that a request drew, in the order of `index`; fewer than asked for where it was stopped."""

    pictures: tuple[Drawn, ...]
    finish_reason: str  # "done" or "cancelled"
    usage: DrawUsage
    stages_ms: Mapping[str, float]  # in the order of the stages; of several pictures, of the one that ended last
    first_preview_ms: float | None  # from the request to the first preview sent
    costs: tuple[PictureCost, ...]
