"""Makes text-to-image checkpoints with random weights, in diffusers' layout, without any download.

Each loads with its own pipeline class. The same arguments give the same weights. Nothing in them is one of the
exporter's defaults by chance: widths, heads, factors, shifts and token counts are all different.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PNDMScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from diffusers.utils import logging as diffusers_logging
from tokenizers import pre_tokenizers
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)
from transformers.utils import logging as transformers_logging

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
WORDS = (
    "a",
    "red",
    "green",
    "blue",
    "circle",
    "square",
    "at",
    "the",
    "top",
    "left",
    "on",
    "white",
    "background",
    "and",
)
VP_SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}

for library in (
    diffusers_logging,
    transformers_logging,
):  # loud about parts that are None
    library.set_verbosity_error()
    library.disable_progress_bar()


def sd15(
    folder: Path,
    *,
    prediction: Literal["epsilon", "v_prediction", "sample"] = "epsilon",
    latent_channels: int = 4,
    vae_levels: int = 3,
    tokens: int = 20,
    demo_like: bool = False,
    seed: int = 0,
) -> Path:
    """As Stable Diffusion 1.5 and 2: a UNet, one CLIP. `vae_levels` 4 is f = 8; `demo_like` has the demo's UNet."""
    tokenizer = clip_tokenizer(tokens)
    width = 128 if demo_like else 24
    channels: tuple[int, ...] = (96, 160) if demo_like else (16, 32)
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=latent_channels,
        out_channels=latent_channels,
        down_block_types=("CrossAttnDownBlock2D",) * 2 if demo_like else ("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D",) * 2 if demo_like else ("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=channels,
        layers_per_block=1,
        cross_attention_dim=width,
        attention_head_dim=4 if demo_like else 2,  # in diffusers, the number of heads
        norm_num_groups=16 if demo_like else 8,
        use_linear_projection=demo_like,
    )
    scheduler = (PNDMScheduler if prediction == "epsilon" else DDIMScheduler)(
        **VP_SCHEDULE,
        prediction_type=prediction,
        steps_offset=1,
        set_alpha_to_one=False,
        **({"skip_prk_steps": True} if prediction == "epsilon" else {"clip_sample": False}),
    )
    text = CLIPTextModel(clip_config(tokenizer, width, layers=2))
    vae = tiny_vae(latent_channels, vae_levels, scaling_factor=0.18215)
    for index, part in enumerate((text, unet, vae)):
        randomise(part, seed + index)
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return save(pipeline, folder)


def sd3(folder: Path, *, with_t5: bool = True, seed: int = 0) -> Path:
    """As Stable Diffusion 3: a diffusion transformer, two CLIPs with projection, perhaps a T5; flow matching.

    Without T5 it loads with `from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)`, as the real one does.
    """
    first, second = clip_tokenizer(18), clip_tokenizer(18)
    joint = 56  # wider than both CLIPs together, as in the real one
    texts: list[Any] = [
        CLIPTextModelWithProjection(clip_config(first, 16, layers=3, projection=12)),
        CLIPTextModelWithProjection(clip_config(second, 24, layers=2, projection=20, activation="gelu")),
    ]
    t5 = T5EncoderModel(t5_config(joint)) if with_t5 else None
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=joint,
        caption_projection_dim=32,
        pooled_projection_dim=32,  # 12 + 20
        pos_embed_max_size=24,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    vae = tiny_vae(16, 3, scaling_factor=1.5305, shift_factor=0.0609)
    for index, part in enumerate((*texts, *([t5] if t5 else []), transformer, vae)):
        randomise(part, seed + index)
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=texts[0],
        tokenizer=first,
        text_encoder_2=texts[1],
        tokenizer_2=second,
        text_encoder_3=t5,
        tokenizer_3=t5_tokenizer(30) if with_t5 else None,
    )
    return save(pipeline, folder)


def flux(folder: Path, *, guidance_embeds: bool = True, seed: int = 0) -> Path:
    """As Flux: a diffusion transformer over packed latents, a pooled CLIP and a T5; flow matching, shifted by size.

    `guidance_embeds` as in FLUX.1-dev; without, as in schnell.
    """
    tokenizer = clip_tokenizer(18)
    text, t5 = CLIPTextModel(clip_config(tokenizer, 24, layers=2)), T5EncoderModel(t5_config(40))
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=40,
        pooled_projection_dim=24,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 6, 6),
    )
    vae = tiny_vae(16, 3, scaling_factor=0.3611, shift_factor=0.1159)
    for index, part in enumerate((text, t5, transformer, vae)):
        randomise(part, seed + index)
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=guidance_embeds, shift=3.0 if guidance_embeds else 1.0
        ),
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        text_encoder_2=t5,
        tokenizer_2=t5_tokenizer(28),
        transformer=transformer,
    )
    return save(pipeline, folder)


def clip_tokenizer(tokens: int) -> CLIPTokenizer:
    """CLIP's kind: bytes, bytes that end a word, and each of WORDS as one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names, merges = [*alphabet, *(f"{byte}</w>" for byte in alphabet)], []
    for word in WORDS:
        parts = [*word[:-1], f"{word[-1]}</w>"]
        while len(parts) > 1:
            if (pair := (parts[0], parts[1])) not in merges:
                merges.append(pair)
            parts[:2] = ["".join(pair)]
            names.append(parts[0])
    vocab = {name: index for index, name in enumerate(dict.fromkeys([*names, BEGIN, END]))}
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=tokens)


def t5_tokenizer(tokens: int) -> T5Tokenizer:
    """T5's kind: pieces with scores."""
    letters = "abcdefghijklmnopqrstuvwxyz,.0123456789"
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in WORDS if len(word) > 1] + [(letter, -6.0) for letter in letters]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=tokens)


def clip_config(
    tokenizer: CLIPTokenizer, width: int, *, layers: int, projection: int | None = None, activation: str = "quick_gelu"
) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=projection or width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=tokenizer.model_max_length,
        hidden_act=activation,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def t5_config(width: int) -> T5Config:
    return T5Config(
        vocab_size=128,
        d_model=width,
        d_kv=8,
        d_ff=2 * width,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        is_encoder_decoder=False,
        use_cache=False,
    )


def tiny_vae(
    latent_channels: int, levels: int, *, scaling_factor: float, shift_factor: float | None = None
) -> AutoencoderKL:
    """`levels` of 2 halvings less one: 3 is f = 4, 4 is f = 8. 16 channels go without the two quantising layers."""
    modern = latent_channels == 16
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=(8, 16, 16, 24)[:levels],
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=4,
        sample_size=32,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=not modern,
        use_post_quant_conv=not modern,
    )


def randomise(model: nn.Module, seed: int) -> None:
    """Unit gain everywhere and no zeros, so that a part that is left out shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_((1.0 if "norm" in name and name.endswith("weight") else 0.0) + 0.1 * noise)
            elif "embed" in name and "time" not in name and "context" not in name and "proj" not in name:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise / math.sqrt(math.prod(parameter.shape[1:])))
    model.eval()


def save(pipeline: Any, folder: Path) -> Path:
    pipeline.save_pretrained(folder)
    return folder


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "sd15": sd15,
    "sd21": functools.partial(sd15, prediction="v_prediction", latent_channels=8, tokens=48, demo_like=True),
    "sd3": sd3,
    "flux": flux,
}
