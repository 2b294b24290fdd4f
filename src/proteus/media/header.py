"""What is known of a medium before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.limits import AudioFormat, PictureFormat, VideoFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHeader:
    format: PictureFormat
    width_px: int  # as stored
    height_px: int
    orientation: int = 1  # EXIF 1..8; HEIC's and AVIF's own turn and mirror are told the same way
    mode: str = "RGB"  # as Pillow names it: 1 L LA P PA RGB RGBA CMYK I;16 …
    num_frames: int = 1

    @property
    def upright_px(self) -> tuple[int, int]:
        """(width, height) as one looks at it: orientations 5 to 8 swap the sides."""
        return (self.height_px, self.width_px) if self.orientation >= 5 else (self.width_px, self.height_px)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoHeader:
    format: VideoFormat
    width_px: int  # of the first picture track, as shown (turned)
    height_px: int
    num_frames: int  # that are presented: an edit list cuts
    duration_s: float
    codec: str  # four letters of the track, or Matroska's codec id

    @property
    def frames_per_s(self) -> float:
        """0.0 when the file tells no duration."""
        return self.num_frames / self.duration_s if self.duration_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioHeader:
    format: AudioFormat
    sample_rate_hz: int
    channels: int
    duration_s: float
    codec: str


MediaHeader = PictureHeader | VideoHeader | AudioHeader
