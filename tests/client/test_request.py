from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

from proteus.client import InvalidInput
from proteus.client.request import Picture, build_request, question_messages


def document_of(request: Any) -> dict[str, Any]:
    raw = request.raw_input_contents[0]
    assert struct.unpack("<I", raw[:4])[0] == len(raw) - 4
    found = json.loads(raw[4:])
    assert isinstance(found, dict)
    return found


def test_text_only_request_has_the_document_and_nothing_else() -> None:
    request = build_request(question_messages("hi", []), [], {})
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs] == [
        ("request", "BYTES", [1])
    ]
    assert request.model_name == "chat"
    assert document_of(request) == {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}


def test_pictures_are_sent_one_after_the_other_with_their_lengths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"12345")
    pictures: list[Picture] = [tmp_path / "a.png", b"67", str(tmp_path / "a.png")]
    request = build_request(question_messages("hi", pictures), pictures, {})
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs[1:]] == [
        ("image_bytes", "UINT8", [12]),
        ("image_lengths", "INT64", [3]),
    ]
    assert request.raw_input_contents[1] == b"123456712345"
    assert struct.unpack("<3q", request.raw_input_contents[2]) == (5, 2, 5)


def test_pictures_come_before_the_question() -> None:
    content = question_messages("which?", [b"a", b"b"])[0]["content"]
    assert [part["type"] for part in content] == ["image", "image", "text"]


@pytest.mark.parametrize("lone", [b"bytes", Image.new("RGB", (2, 3))])
def test_a_lone_picture_counts_as_one(lone: bytes | Image.Image) -> None:
    request = build_request(question_messages("hi", lone), lone, {})
    assert list(request.inputs[2].shape) == [1]


def test_a_pillow_image_is_sent_as_png_with_the_same_pixels() -> None:
    image = Image.effect_noise((7, 5), 60).convert("RGB")
    request = build_request(question_messages("hi", [image]), [image], {})
    sent = Image.open(io.BytesIO(request.raw_input_contents[1]))
    assert sent.format == "PNG"
    assert sent.tobytes() == image.tobytes()


def test_only_options_that_were_given_are_sent() -> None:
    request = build_request([], [], {"max_tokens": 3, "seed": None, "stop": ("a", "b"), "timeout_s": 9.0})
    assert document_of(request) == {"messages": [], "max_tokens": 3, "seed": None, "stop": ["a", "b"]}


def test_a_lone_stop_string_is_not_taken_for_its_letters() -> None:
    assert document_of(build_request([], [], {"stop": "end"}))["stop"] == ["end"]


@pytest.mark.parametrize("bias", [{7: -100, 8: 0.5}, {"7": -100, "8": 0.5}])
def test_a_logit_bias_is_by_id_whether_number_or_text(bias: dict[int, float] | dict[str, float]) -> None:
    assert document_of(build_request([], [], {"logit_bias": bias}))["logit_bias"] == {"7": -100, "8": 0.5}


@pytest.mark.parametrize(("name", "value"), [("stop", None), ("stop", 5), ("logit_bias", None), ("logit_bias", [7])])
def test_an_option_of_another_kind_is_left_for_the_server_to_name(name: Literal["stop"], value: Any) -> None:
    assert document_of(build_request([], [], {name: value}))[name] == value


def test_text_keeps_every_character() -> None:
    text = 'ü 漢 🙂 \x00 " \\ </s> <image>'
    sent = document_of(build_request(question_messages(text, []), [], {}))
    assert sent["messages"][0]["content"][0]["text"] == text


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"'max_token'; there are max_tokens, min_tokens, n, temperature"):
        build_request([], [], {"max_token": 3})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (Path("nowhere/cat.png"), r"cannot read the picture nowhere/cat\.png: there is no such file"),
        ("a\0b", "this is no file name"),
        (7, "a picture is a path, bytes or a Pillow image, not int"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named_in_plain_words(picture: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        build_request([], [picture], {})


def test_a_folder_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="it is a folder"):
        build_request([], tmp_path, {})


def test_text_that_is_no_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidInput, match="not Unicode"):
        build_request(question_messages("caf\udce9", []), [], {})


@pytest.mark.parametrize("messages", [[{"role": b"user"}], [{"role": float("nan")}]])
def test_messages_must_be_json_values(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidInput, match="plain JSON values"):
        build_request(messages, [], {})
