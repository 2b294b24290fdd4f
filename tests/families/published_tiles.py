"""Config files of well-known checkpoints that cut pictures into tiles, as their makers publish them: what a plan reads,
without tokenizers.
"""

from __future__ import annotations

from typing import Any

HALVES = [0.5, 0.5, 0.5]
SIGLIP: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
}
SMOL_LM: dict[str, Any] = {
    "model_type": "llama",
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_theta": 130000,
    "vocab_size": 49280,
}
CROSS_LAYERS = [3, 8, 13, 18, 23, 28, 33, 38]
CANVASES = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]


def _pictures(kind: str, **settings: Any) -> dict[str, Any]:
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "image_mean": HALVES,
        "image_std": HALVES,
        "rescale_factor": 1 / 255,
        **settings,
    }


def _shuffled(
    model_type: str, text: dict[str, Any], vision: dict[str, Any], *, scale: int, tile_px: int, longest_px: int
) -> dict[str, dict[str, Any]]:
    """Files of an Idefics3 or SmolVLM checkpoint."""
    kind = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[model_type]
    return {
        "config.json": {
            "model_type": model_type,
            "image_token_id": 49190 if text is SMOL_LM else 128257,
            "scale_factor": scale,
            "text_config": text,
            "vision_config": {"model_type": f"{model_type}_vision", "image_size": tile_px, **vision},
        },
        "preprocessor_config.json": _pictures(
            f"{kind}ImageProcessor",
            do_image_splitting=True,
            do_pad=True,
            do_resize=True,
            max_image_size={"longest_edge": tile_px},
            resample=1,
            size={"longest_edge": longest_px},
        ),
        "processor_config.json": {
            "image_seq_len": (tile_px // vision["patch_size"] // scale) ** 2,
            "processor_class": f"{kind}Processor",
        },
    }


INTERNVL3: dict[str, dict[str, Any]] = {
    "config.json": {
        "model_type": "internvl",
        "downsample_ratio": 0.5,
        "image_seq_length": 256,
        "image_token_id": 151667,
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "text_config": {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "max_position_embeddings": 32768,
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "vocab_size": 151674,
        },
        "vision_config": {
            "model_type": "internvl_vision",
            "attention_bias": True,
            "hidden_size": 1024,
            "image_size": [448, 448],
            "intermediate_size": 4096,
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": [14, 14],
        },
    },
    "preprocessor_config.json": _pictures(
        "GotOcr2ImageProcessorFast",
        crop_to_patches=False,
        do_resize=True,
        max_patches=12,
        min_patches=1,
        resample=3,
        size={"height": 448, "width": 448},
    ),
    "processor_config.json": {"image_seq_length": 256, "processor_class": "InternVLProcessor"},
}
IDEFICS2: dict[str, dict[str, Any]] = {
    "config.json": {
        "model_type": "idefics2",
        "image_token_id": 32001,
        "perceiver_config": {
            "hidden_size": 4096,
            "num_key_value_heads": 4,
            "resampler_depth": 3,
            "resampler_head_dim": 96,
            "resampler_n_heads": 16,
            "resampler_n_latents": 64,
            "rms_norm_eps": 1e-05,
        },
        "text_config": {
            "model_type": "mistral",
            "max_position_embeddings": 32768,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-05,
            "vocab_size": 32003,
        },
        "vision_config": {"image_size": 980, **SIGLIP},
    },
    "preprocessor_config.json": _pictures(
        "Idefics2ImageProcessor",
        do_image_splitting=True,
        do_pad=True,
        do_resize=True,
        resample=2,
        size={"longest_edge": 980, "shortest_edge": 378},
    ),
    "processor_config.json": {"image_seq_len": 64, "processor_class": "Idefics2Processor"},
}
IDEFICS3 = _shuffled(
    "idefics3",
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "vocab_size": 128259,
    },
    SIGLIP,
    scale=2,
    tile_px=364,
    longest_px=1456,
)
SMOLVLM = _shuffled("idefics3", SMOL_LM, SIGLIP, scale=3, tile_px=384, longest_px=1536)
SMOLVLM2 = _shuffled("smolvlm", SMOL_LM, SIGLIP, scale=3, tile_px=384, longest_px=1536)
SMOLVLM2_500M = _shuffled(
    "smolvlm",
    {
        **SMOL_LM,
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_attention_heads": 15,
        "num_hidden_layers": 32,
        "num_key_value_heads": 5,
    },
    {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "patch_size": 16,
    },
    scale=4,
    tile_px=512,
    longest_px=2048,
)
LLAMA32_VISION: dict[str, dict[str, Any]] = {
    "config.json": {
        "model_type": "mllama",
        "image_token_index": 128256,
        "text_config": {
            "model_type": "mllama_text_model",
            "cross_attention_layers": CROSS_LAYERS,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 131072,
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "vocab_size": 128256,
        },
        "vision_config": {
            "model_type": "mllama_vision_model",
            "attention_heads": 16,
            "hidden_size": 1280,
            "image_size": 560,
            "intermediate_layers_indices": [3, 7, 15, 23, 30],
            "intermediate_size": 5120,
            "max_num_tiles": 4,
            "num_channels": 3,
            "num_global_layers": 8,
            "num_hidden_layers": 32,
            "patch_size": 14,
            "supported_aspect_ratios": CANVASES,
            "vision_output_dim": 7680,
        },
    },
    "preprocessor_config.json": _pictures(
        "MllamaImageProcessor",
        do_pad=True,
        do_resize=True,
        max_image_tiles=4,
        resample=2,
        size={"height": 560, "width": 560},
    ),
}
PHI4: dict[str, dict[str, Any]] = {
    "config.json": {
        "model_type": "phi4_multimodal",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 24,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 200064,
        "audio_config": {
            "model_type": "phi4_multimodal_audio",
            "audio_token_id": 200011,
            "depthwise_multiplier": 1,
            "depthwise_separable_out_channel": 1024,
            "ext_pw_out_channel": 1024,
            "feature_layer": -2,
            "hidden_size": 1024,
            "input_size": 80,
            "intermediate_size": 1536,
            "kernel_size": 3,
            "nemo_conv_channels": 1024,
            "num_attention_heads": 16,
            "num_blocks": 24,
            "time_reduction": 8,
        },
        "vision_config": {
            "model_type": "phi4_multimodal_vision",
            "crop_size": 448,
            "feature_layer": -2,
            "image_size": 448,
            "image_token_id": 200010,
            **SIGLIP,
        },
    },
    "preprocessor_config.json": {
        **_pictures("Phi4MultimodalImageProcessorFast", dynamic_hd=36),
        "feature_extractor_type": "Phi4MultimodalFeatureExtractor",
        "audio_compression_rate": 8,
        "audio_downsample_rate": 1,
        "audio_feat_stride": 1,
    },
    "processor_config.json": {"processor_class": "Phi4MultimodalProcessor"},
}
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "InternVL3-8B-hf": INTERNVL3,
    "idefics2-8b": IDEFICS2,
    "Idefics3-8B-Llama3": IDEFICS3,
    "SmolVLM-Instruct": SMOLVLM,
    "SmolVLM2-2.2B-Instruct": SMOLVLM2,
    "SmolVLM2-500M-Video-Instruct": SMOLVLM2_500M,
    "Llama-3.2-11B-Vision": LLAMA32_VISION,
    "Phi-4-multimodal-instruct": PHI4,
}
