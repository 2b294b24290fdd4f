"""What is kept of pictures between requests: tables of the deployment file that state how much, and for how long."""

from __future__ import annotations

from pydantic import Field

from proteus.limits import Count, NotNegative, Positive, Section


class MediaCache(Section):
    """Results of a stage for one picture, kept for requests of the same cache scope."""

    max_bytes: NotNegative = Field(description="kept, of each process that keeps them; 0 turns the cache off")
    max_age_s: Positive = Field(description="kept since they were made, however often they are used")


class SharedStore(Section):
    """A Redis that several servers share. Without it, or when it is lost, each server has its own entries alone."""

    url: str = Field(pattern=r"^rediss?://", description="`redis://user@host:port/0`, or `rediss://` for TLS")
    password_env: str = Field("", description="name of the environment variable with its password; none: it has none")
    timeout_ms: Count = Field(description="of one question, a new connection included; a slower store is left alone")
    max_age_s: Positive = Field(description="kept since they were made")
    secret_env: str = Field(
        "", description="name of the environment variable with the secret that signs entries; none: they are not signed"
    )


class EncoderCache(MediaCache):
    """Visual tokens of pictures, kept by the door for requests of the same cache scope."""

    redis: SharedStore | None = Field(None, description="A Redis that several servers share.")


class CacheTables(Section):
    """The tables of a deployment file for caches of its own; that of prompts is in `Llm`."""

    processor_cache: MediaCache = Field(description="Pixels as the encoder reads them, by `image_preprocess`.")
    encoder_cache: EncoderCache = Field(description="Visual tokens, by the door.")
