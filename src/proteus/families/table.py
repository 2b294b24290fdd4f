"""Every family we can plan for, by the `model_type` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_config
from proteus.families.family import Family
from proteus.families.gemma3 import Gemma3
from proteus.families.idefics2 import Idefics2
from proteus.families.idefics3 import Idefics3
from proteus.families.internvl import InternVl
from proteus.families.llava import LlavaFamily
from proteus.families.llava_next import LlavaNext
from proteus.families.llava_next_video import LlavaNextVideo
from proteus.families.llava_onevision import LlavaOnevision
from proteus.families.mistral3 import Mistral3
from proteus.families.mllama import Mllama
from proteus.families.paligemma import PaliGemma
from proteus.families.phi4_multimodal import Phi4Multimodal
from proteus.families.pixtral import Pixtral
from proteus.families.qwen2_5_vl import Qwen25Vl
from proteus.families.qwen2_audio import Qwen2Audio
from proteus.families.qwen2_vl import Qwen2Vl
from proteus.families.qwen3_vl import Qwen3Vl
from proteus.families.whisper import Whisper

KNOWN: tuple[type[Family], ...] = (
    Gemma3,
    Idefics2,
    Idefics3,
    InternVl,
    LlavaFamily,
    LlavaNext,
    LlavaNextVideo,
    LlavaOnevision,
    Mistral3,
    Mllama,
    PaliGemma,
    Phi4Multimodal,
    Pixtral,
    Qwen2Audio,
    Qwen2Vl,
    Qwen3Vl,
    Qwen25Vl,
    Whisper,
)
FAMILIES: Mapping[str, type[Family]] = {model_type: family for family in KNOWN for model_type in family.model_types}


def load_family(folder: Path) -> Family:
    """The family of a checkpoint folder; raises UnsupportedCheckpoint naming the known ones."""
    config = read_config(folder)
    for kind in kinds(config):
        if kind in FAMILIES:
            return FAMILIES[kind].from_checkpoint(folder, config)
    raise UnsupportedCheckpoint(
        f"{folder / 'config.json'}: model_type = {str(config.get('model_type'))[:80]!r}",
        limit=f"known are {', '.join(sorted(FAMILIES))}",
        fix="add a family: docs/families.md tells how",
    )


def kinds(config: ConfigTable) -> tuple[str, str]:
    """Names a family may answer to, the narrower first: "llava/pixtral" is Pixtral, any other "llava" is LLaVA-1.5."""
    model_type = str(config.get("model_type"))
    return f"{model_type}/{config.table('vision_config').get('model_type')}", model_type
