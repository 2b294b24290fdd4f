"""Every field of OpenAI's chat requests, and what becomes of it here; ours stand beside them.

docs/gateway.md tells it to people, chat_schema.py to the OpenAPI document.
"""

from __future__ import annotations

from proteus.gateway.openai.fields import Fields

OURS = frozenset({"top_k", "min_p", "min_tokens", "repetition_penalty", "deadline_ms"})
CHAT = Fields(
    served=OURS
    | {
        "messages",
        "model",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "n",
        "presence_penalty",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_logprobs",
        "top_p",
        "user",
    },
    neutral={"metadata": {}, "modalities": ["text"], "response_format": {"type": "text"}, "store": False},
    refused=frozenset(
        {
            "audio",
            "function_call",
            "functions",
            "moderation",
            "parallel_tool_calls",
            "prediction",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "reasoning_effort",
            "tool_choice",
            "tools",
            "verbosity",
            "web_search_options",
        }
    ),
)
STREAM_OPTIONS = Fields(served=frozenset({"include_usage"}), neutral={"include_obfuscation": False})
MESSAGE = Fields(
    served=frozenset({"role", "content"}),
    neutral={"annotations": []},  # as the SDK gives an answer back
    refused=frozenset({"audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"}),
)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}  # ours by OpenAI's
REFUSED_ROLES = frozenset({"function", "tool"})

PARTS = {
    "text": Fields(served=frozenset({"type", "text"}), refused=frozenset({"prompt_cache_breakpoint"})),
    "image_url": Fields(served=frozenset({"type", "image_url"}), refused=frozenset({"prompt_cache_breakpoint"})),
}
IMAGE_URL = Fields(served=frozenset({"url", "detail"}))
REFUSED_PARTS = frozenset(
    {"file", "input_audio", "input_file", "input_image", "input_text", "input_video", "refusal", "video", "video_url"}
)
REFUSED_DETAILS = frozenset({"original"})

LATENCY_CLASSES = {"auto": "interactive", "default": "interactive", "flex": "batch"}  # by service tier
REFUSED_TIERS = frozenset({"fast", "priority", "scale"})
MAX_USER_CHARS = 128
