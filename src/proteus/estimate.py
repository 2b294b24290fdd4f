"""`proteus cost`: files or bare sizes to an estimate, for a checkpoint folder or a whole deployment; without Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from proteus.cost.buckets import Bucket
from proteus.cost.fusion import FlamingoContract, PruneAfter
from proteus.cost.planner import MediaCost, Planner, picture_buckets
from proteus.cost.report import Estimate, Line
from proteus.deployment import Deployment
from proteus.errors import InvalidRequest, ProteusError
from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.llava import LlavaFamily
from proteus.families.table import load_family
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer
from proteus.limits import TierName
from proteus.media.accept import accept_audio, accept_picture, accept_video, check_count
from proteus.media.header import AudioHeader, MediaHeader, PictureHeader, VideoHeader
from proteus.media.probe import probe

SIZE = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?")
NO_FILE = "no file"  # format of a medium that is only a size
DEFAULT_FRAMES_PER_S, DEFAULT_MAX_FRAMES = 2.0, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request to estimate, as the command line says it."""

    files: Sequence[Path] = ()
    image_sizes: Sequence[str] = ()  # "WxH"
    video_sizes: Sequence[str] = ()  # "WxHxFRAMES", frames already sampled
    audio_seconds: Sequence[float] = ()
    text: str | None = None
    max_tokens: int = 0
    tier: TierName = "auto"
    kv_value_bytes: int | None = None  # None: of our own engine with a deployment, else 2 (fp16, bf16)
    frames_per_s: float | None = None  # None: the deployment's, or DEFAULT_FRAMES_PER_S
    max_frames: int | None = None
    fusion: FlamingoContract | None = None
    pruning: PruneAfter | None = None


class Estimator:
    """Plans the media and text of one request. With a deployment its contract holds: tiers, limits, sampling."""

    def __init__(self, checkpoint: Path, wanted: Wanted, deployment: Deployment | None = None) -> None:
        self._checkpoint, self._wanted, self._deployment = checkpoint, wanted, deployment
        self._planner = Planner(
            family=load_family(checkpoint),
            tiers=deployment.tiers if deployment is not None else None,
            kv_value_bytes=wanted.kv_value_bytes or (2 if deployment is None else KV_VALUE_BYTES),
            fusion=wanted.fusion,
            pruning=wanted.pruning,
        )

    def estimate(self) -> Estimate:
        """Raises InvalidRequest, InvalidMedia, MediaTooLarge or UnsupportedCheckpoint, naming the medium."""
        lines = list(self._lines())
        if not lines and self._wanted.text is None:
            raise InvalidRequest("nothing to estimate", fix="give files, --image-size WxH, --text or --draw WxH")
        text_tokens, scope = self._count_text(lines)
        return Estimate(
            family=self._planner.family.name,
            lines=lines,
            text=self._planner.text(text_tokens, self._wanted.max_tokens),
            text_scope=scope,
        )

    def _lines(self) -> Iterator[Line]:
        wanted = self._wanted
        media = list(_read_all(wanted.files))
        media += [(text, _picture(text), 0) for text in wanted.image_sizes]
        self._count([header for _, header, _ in media])
        num_pictures = sum(isinstance(header, PictureHeader) for _, header, _ in media)
        for name, header, num_bytes in media:
            with _naming(name):
                self._accept(header, num_bytes)
                yield self._line(name, header, num_bytes, num_pictures)
        for text in wanted.video_sizes:
            yield self._sampled_video(text)
        for seconds in wanted.audio_seconds:
            header = AudioHeader(
                format="wav",
                sample_rate_hz=self._planner.family.sample_rate_hz,
                channels=1,
                duration_s=seconds,
                codec=NO_FILE,
            )
            yield Line(name=f"{seconds:g} s", kind=NO_FILE, size="audio", cost=self._planner.audio(header, 0))

    def _line(self, name: str, header: MediaHeader, num_bytes: int, num_pictures: int) -> Line:
        kind = header.format if num_bytes else NO_FILE
        if isinstance(header, PictureHeader):
            width_px, height_px = header.upright_px
            cost = self._planner.picture(header, num_bytes, tier=self._wanted.tier, images_in_request=num_pictures)
            return Line(name=name, kind=kind, size=f"{width_px}x{height_px} px", cost=cost)
        if isinstance(header, AudioHeader):
            size = f"{header.duration_s:.2f} s at {header.sample_rate_hz} Hz"
            return Line(name=name, kind=kind, size=size, cost=self._planner.audio(header, num_bytes))
        cost = self._video(header, num_bytes)
        size = f"{header.width_px}x{header.height_px} px, {len(cost.frames)} of {header.num_frames} frames"
        return Line(name=name, kind=kind, size=size, cost=cost)

    def _video(self, header: VideoHeader, num_bytes: int) -> MediaCost:
        video = self._deployment.video if self._deployment is not None else None
        default_rate = video.sample_frames_per_s if video is not None else DEFAULT_FRAMES_PER_S
        default_frames = video.max_frames if video is not None else DEFAULT_MAX_FRAMES
        return self._planner.video(
            header,
            num_bytes,
            frames_per_s=self._wanted.frames_per_s or default_rate,
            max_frames=self._wanted.max_frames or default_frames,
        )

    def _sampled_video(self, text: str) -> Line:
        sides = parse_size(text)
        if len(sides) != 3:
            raise InvalidRequest(
                f"video size {text[:40]!r}", limit="WIDTHxHEIGHTxFRAMES", fix="write it like 640x480x16"
            )
        width_px, height_px, num_frames = sides
        header = VideoHeader(
            format="mp4", width_px=width_px, height_px=height_px, num_frames=num_frames, duration_s=0.0, codec=NO_FILE
        )
        cost = self._planner.video(header, 0, frames_per_s=DEFAULT_FRAMES_PER_S, max_frames=num_frames)
        return Line(name=text, kind=NO_FILE, size=f"{width_px}x{height_px} px, {num_frames} frames", cost=cost)

    def _count(self, headers: Sequence[MediaHeader]) -> None:
        if self._deployment is None:
            return
        for kind, limits in (
            (PictureHeader, self._deployment.image),
            (VideoHeader, self._deployment.video),
            (AudioHeader, self._deployment.audio),
        ):
            check_count(sum(isinstance(header, kind) for header in headers), limits)

    def _accept(self, header: MediaHeader, num_bytes: int) -> None:
        if self._deployment is None:
            return
        known_bytes = max(num_bytes, 1)  # of a bare size there are none to count
        if isinstance(header, PictureHeader):
            accept_picture(header, known_bytes, self._deployment.image)
        elif isinstance(header, VideoHeader):
            accept_video(header, known_bytes, self._deployment.video)
        else:
            accept_audio(header, known_bytes, self._deployment.audio)

    def _count_text(self, lines: Sequence[Line]) -> tuple[int, str]:
        """Tokens of the text and what they hold: all that the server adds, where its renderer reads the checkpoint."""
        text = self._wanted.text
        if text is None:
            return 0, "no text was given"
        if isinstance(self._planner.family, LlavaFamily):
            pictures = range(len(lines))
            message = Message("user", (*(PicturePart(index) for index in pictures), TextPart(text)))
            counts = [line.cost.plan.visual_tokens for line in lines]
            prompt = PromptRenderer.from_checkpoint(self._checkpoint).render([message], counts)
            return prompt.text_tokens, "the text in the checkpoint's chat template, the answer's beginning included"
        file = self._checkpoint / "tokenizer.json"
        if not file.exists():
            raise UnsupportedCheckpoint(f"{file} is missing", fix="add the tokenizer's file or leave out --text")
        tokenizer = Tokenizer.from_file(str(file))
        return len(tokenizer.encode(text, add_special_tokens=False).ids), "the text alone, without a chat template"


def estimate_request(wanted: Wanted, *, checkpoint: Path | None, deployment: Path) -> Estimate:
    """With a checkpoint folder its family alone decides; without, the deployment's checkpoint and contract do.

    Raises ProteusError as `Estimator.estimate` does, or DeploymentError.
    """
    if checkpoint is not None:
        return Estimator(checkpoint, wanted).estimate()
    loaded = Deployment.load(deployment)
    return Estimator(loaded.checkpoint_path, wanted, loaded).estimate()


def deployment_buckets(deployment: Path) -> tuple[Bucket, ...]:
    """The encoder shapes that pictures within the deployment's contract need."""
    loaded = Deployment.load(deployment)
    return picture_buckets(Planner(family=load_family(loaded.checkpoint_path), tiers=loaded.tiers), loaded.image)


def parse_size(text: str) -> tuple[int, ...]:
    """ "640x480" or, for video, "640x480x32"; raises InvalidRequest."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"size {text[:40]!r}", limit="WIDTHxHEIGHT in px", fix="write it like 640x480")
    return tuple(int(number) for number in match.groups() if number is not None)


def parse_picture_size(text: str) -> tuple[int, int]:
    """ "640x480"; raises InvalidRequest."""
    sides = parse_size(text)
    if len(sides) != 2:
        raise InvalidRequest(f"picture size {text[:40]!r}", limit="WIDTHxHEIGHT", fix="write it like 640x480")
    return sides[0], sides[1]


def _picture(text: str) -> PictureHeader:
    width_px, height_px = parse_picture_size(text)
    return PictureHeader(format="png", width_px=width_px, height_px=height_px)


def _read_all(paths: Sequence[Path]) -> Iterator[tuple[str, MediaHeader, int]]:
    for path in paths:
        try:
            if path.is_char_device():
                raise InvalidRequest(f"{path} is a device", fix="give the path of a file")
            data = path.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read ({error.strerror})", fix="give the path of a file") from error
        with _naming(str(path)):
            yield str(path), probe(data), len(data)


@contextmanager
def _naming(medium: str) -> Iterator[None]:
    """Say which medium an error is about."""
    try:
        yield
    except ProteusError as error:
        raise error.about(medium) from error
