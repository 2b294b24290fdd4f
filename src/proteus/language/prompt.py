"""Messages to the ids that the language model reads, each picture's placeholder expanded to its visual tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from proteus.errors import InvalidRequest
from proteus.families.llava import UnsupportedCheckpoint
from proteus.language.messages import Message, PicturePart, TextPart, check_messages, pictures, texts
from proteus.language.template import ChatTemplate, read_json
from proteus.language.tokenizer import DisarmedTokenizer, choose_barrier, load_tokenizer

PROBE_TEXT = "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    input_ids: npt.NDArray[np.int32]  # (T,), placeholders expanded
    visual_spans: tuple[tuple[int, int], ...]  # (start, length) in input_ids of each picture part, in order
    text_tokens: int  # every token that is not visual
    visual_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokenRule:
    """What transformers' processor puts around a prompt whose template did not write the first token itself."""

    bos_token: str | None
    around: tuple[tuple[int, ...], tuple[int, ...]] | None  # ids before and after; None: the tokenizer's own rule


class PromptRenderer:
    """Renders and encodes; safe to share between threads."""

    def __init__(
        self, template: ChatTemplate, tokenizer: DisarmedTokenizer, image_token_id: int, rule: SpecialTokenRule
    ) -> None:
        self._template, self._tokenizer = template, tokenizer
        self._image_token_id, self._rule = image_token_id, rule
        self._check_template()

    @classmethod
    def from_checkpoint(cls, folder: Path) -> PromptRenderer:
        """Reads template, tokenizer and config; raises UnsupportedCheckpoint for a template that drops pictures."""
        template, tokenizer = ChatTemplate.from_checkpoint(folder), load_tokenizer(folder)
        config = read_json(folder / "config.json")
        image_token_id: int | None = config.get("image_token_id", config.get("image_token_index"))
        image_token = tokenizer.id_to_token(image_token_id) if isinstance(image_token_id, int) else None
        added = tokenizer.get_added_tokens_decoder().values()
        if image_token_id is None or image_token is None or image_token not in {token.content for token in added}:
            raise UnsupportedCheckpoint(
                f"{folder / 'config.json'}: image_token_id = {image_token_id!r} is no special token of the tokenizer",
                fix="use the tokenizer that belongs to the checkpoint",
            )
        control = {token.content for token in added if token.special or token.content in template.source}
        control |= {name for name in template.tokens.values() if tokenizer.token_to_id(name) is not None}
        control = {name for name in control if name.strip()} | {image_token}
        rule = _special_token_rule(folder, template.tokens, tokenizer)
        return cls(template, DisarmedTokenizer(tokenizer, control), image_token_id, rule)

    def render(self, messages: Sequence[Message], visual_tokens_per_picture: Sequence[int]) -> Prompt:
        """The prompt of a conversation, the marker of the answer's beginning included.

        `visual_tokens_per_picture[i]` is the number of visual tokens of the parts `PicturePart(i)`. Raises
        InvalidRequest: empty conversation or prompt, unknown role, a template that refuses, placeholders that are not
        one per picture part.
        """
        check_messages(messages)
        lengths = _lengths(pictures(messages), visual_tokens_per_picture)
        encoded = self._encode(messages)
        if not encoded:
            raise InvalidRequest("the chat template makes an empty prompt of this conversation", fix="send more text")
        if (num_placeholders := encoded.count(self._image_token_id)) != len(lengths):
            raise InvalidRequest(
                f"the chat template wrote {num_placeholders} placeholders for {len(lengths)} pictures",
                limit="one placeholder for each picture",
                fix="put the pictures into messages of the user",
            )
        ids = np.array(encoded, dtype=np.int32)
        if not lengths:
            return Prompt(input_ids=ids, visual_spans=(), text_tokens=len(ids), visual_tokens=0)
        is_placeholder = ids == self._image_token_id
        repeats = np.ones(len(ids), dtype=np.int64)
        repeats[is_placeholder] = lengths
        starts = (np.cumsum(repeats) - repeats)[is_placeholder]
        return Prompt(
            input_ids=np.repeat(ids, repeats),
            visual_spans=tuple(zip(starts.tolist(), lengths, strict=True)),
            text_tokens=len(ids) - len(lengths),
            visual_tokens=sum(lengths),
        )

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        """Ids with one placeholder for each picture."""
        barrier = choose_barrier((self._template.source, *self._tokenizer.control, *texts(messages)))
        try:
            rendered = self._template.render([self._as_template_data(message, barrier) for message in messages])
        except InvalidRequest as error:
            raise InvalidRequest(error.what.replace(barrier, ""), limit=error.limit, fix=error.fix) from error
        armed = self._tokenizer.arm(rendered, barrier)
        bos_token, around = self._rule.bos_token, self._rule.around
        if bos_token is not None and rendered.startswith(bos_token):
            return self._tokenizer.encode(armed, add_special_tokens=False)
        if around is None:
            return self._tokenizer.encode(armed, add_special_tokens=True)
        return [*around[0], *self._tokenizer.encode(armed, add_special_tokens=False), *around[1]]

    def _as_template_data(self, message: Message, barrier: str) -> dict[str, object]:
        content = [
            {"type": "text", "text": self._tokenizer.protect(part.text, barrier)}
            if isinstance(part, TextPart)
            else {"type": "image"}
            for part in message.parts
        ]
        return {"role": message.role, "content": content}

    def _check_template(self) -> None:
        """Render one text and two pictures: a template that cannot is refused before anyone asks."""
        parts = (PicturePart(0), TextPart(PROBE_TEXT), PicturePart(1))
        data = [{"role": "user", "content": [{"type": "text", "text": PROBE_TEXT}]}]
        try:
            self.render([Message("user", parts)], [1, 1])
            rendered = self._template.render(data)
        except InvalidRequest as error:
            raise UnsupportedCheckpoint(
                f"the chat template cannot take pictures ({error.what})",
                fix="use a template that writes the image token for each part of type image",
            ) from error
        if PROBE_TEXT not in rendered or "'type'" in rendered:
            raise UnsupportedCheckpoint(
                "the chat template cannot take a message's content as a list of parts",
                fix="use a template that writes the text of each part of type text",
            )


def _lengths(parts: Sequence[PicturePart], visual_tokens_per_picture: Sequence[int]) -> list[int]:
    num_pictures = len(visual_tokens_per_picture)
    if {part.index for part in parts} != set(range(num_pictures)):
        raise InvalidRequest(
            f"{len(parts)} picture parts for {num_pictures} pictures",
            limit="each picture is used",
            fix="send as many pictures as there are picture parts",
        )
    lengths = [int(visual_tokens_per_picture[part.index]) for part in parts]
    if min(lengths, default=1) < 1:
        raise InvalidRequest("a picture has no visual tokens", limit="1 or more", fix="send another picture")
    return lengths


def _special_token_rule(folder: Path, tokens: Mapping[str, str], tokenizer: Tokenizer) -> SpecialTokenRule:
    config, bos_token = read_json(folder / "tokenizer_config.json"), tokens.get("bos_token")
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return SpecialTokenRule(bos_token=bos_token, around=None)

    def ids(name: str) -> tuple[int, ...]:
        number = tokenizer.token_to_id(tokens[name]) if config.get(f"add_{name}") and name in tokens else None
        return () if number is None else (number,)

    return SpecialTokenRule(bos_token=bos_token, around=(ids("bos_token"), ids("eos_token")))
