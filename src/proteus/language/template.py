"""A checkpoint's chat template, rendered in a sandbox as transformers renders it, with bounded output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proteus.errors import InvalidRequest
from proteus.families.llava import UnsupportedCheckpoint

MAX_RENDERED_CHARS = 2_000_000
MAX_REASON_CHARS = 200


class TemplateRefusal(jinja2.TemplateError):
    """The template called raise_exception: it refuses the conversation, and says why."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` only marks a region for training: its body is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """`tokens` are the template's variables bos_token, eos_token, …"""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self.tokens = source, dict(tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UnsupportedCheckpoint(
                f"the chat template does not compile: {error.message}", fix="correct chat_template.jinja"
            ) from error
        # Each rendering copies them; Jinja's own ChainMap takes longer to copy than all the rest of a short prompt.
        self._template.globals = dict(self._template.globals)

    @classmethod
    def from_checkpoint(cls, folder: Path) -> ChatTemplate:
        """Reads chat_template.jinja, or the older files that hold it; raises UnsupportedCheckpoint."""
        return cls(_source(folder), special_tokens(folder))

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """The prompt up to where the answer begins; raises InvalidRequest when the template refuses the messages."""
        pieces, num_chars = [], 0
        try:
            for piece in self._template.generate(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self.tokens
            ):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise InvalidRequest(
                        "the rendered prompt is too long",
                        limit=f"{MAX_RENDERED_CHARS:,} characters",
                        fix="send a shorter conversation",
                    )
        except InvalidRequest:
            raise
        except TemplateRefusal as error:
            reason = (error.message or "")[:MAX_REASON_CHARS]
            raise InvalidRequest(
                f"the checkpoint's chat template refuses this conversation: {reason}", fix="change the messages"
            ) from error
        except Exception as error:  # a template can raise anything
            raise InvalidRequest(
                "the checkpoint's chat template cannot render this conversation",
                fix="change roles or order of messages",
            ) from error
        return "".join(pieces)


def special_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token, … and a model's own named tokens, as tokenizer_config.json names them."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, value in read_json(folder / file).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                named[key] = content
    return named


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file; {} when there is no such file. Raises UnsupportedCheckpoint for anything else."""
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedCheckpoint(f"{path} cannot be read as JSON", fix="download the file again") from error
    if not isinstance(document, dict):
        raise UnsupportedCheckpoint(f"{path} holds no JSON object", fix="download the file again")
    return document


def _source(folder: Path) -> str:
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    for file in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(folder / file).get("chat_template")
        if isinstance(found, list):
            found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
        if isinstance(found, str):
            return found
    raise UnsupportedCheckpoint(f"{own} is missing", fix="add the checkpoint's chat template")


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
