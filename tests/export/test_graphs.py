"""The exported files of two random checkpoints of different sizes: their ports, their answers, their bytes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, LlavaForConditionalGeneration

from export.checkpoint import load_model, read_checkpoint
from export.onnx_graph import export_graph, graphs
from export.parity import CHECKS, Prompt, SlotSession, check_connector, open_session

pytestmark = pytest.mark.oracle

FILES = ("vision_encoder/1/model.onnx", "connector/1/model.onnx", "llm/1/decoder.onnx")
NEW_TOKENS = 20


def ports(path: Path) -> dict[str, tuple[str, list[str | int]]]:
    session = open_session(path)
    return {port.name: (port.type, port.shape) for port in [*session.get_inputs(), *session.get_outputs()]}


def test_names_types_and_dims_are_those_of_the_contract(exported: tuple[Path, Path], manifest: dict[str, Any]) -> None:
    checkpoint, out = exported
    repository = out / "model_repository"
    size, tokens, width = manifest["image_size"], manifest["visual_tokens"], manifest["hidden_size"]
    features = read_checkpoint(checkpoint).family.feature_width
    f32, i64, i32 = "tensor(float)", "tensor(int64)", "tensor(int32)"
    assert ports(repository / FILES[0]) == {
        "pixel_values": (f32, ["batch", 3, size, size]),
        "image_features": (f32, ["batch", tokens, features]),
        "encoder_ns": (i64, ["batch", 2]),
    }
    assert ports(repository / FILES[1]) == {
        "image_features": (f32, ["batch", tokens, features]),
        "visual_tokens": (f32, ["batch", tokens, width]),
        "connector_ns": (i64, ["batch", 2]),
    }
    slot = ["batch", manifest["num_kv_heads"], "context", manifest["head_dim"]]
    past = {
        f"{time}_{kind}_{layer}": (f32, slot)
        for layer in range(manifest["num_layers"])
        for kind in ("key", "value")
        for time in ("past", "present")
    }
    assert ports(repository / FILES[2]) == {
        "input_ids": (i64, ["batch", "sequence"]),
        "visual_rows": (f32, ["rows", width]),
        "visual_places": (i64, ["rows", 2]),
        "seqlens_k": (i32, ["batch"]),
        "total_len": (i32, []),
        "logits": (f32, ["batch", manifest["vocab_size"]]),
        **past,
    }


@pytest.mark.parametrize(("file", "clock"), [(FILES[0], "encoder_ns"), (FILES[1], "connector_ns")])
def test_a_graph_has_room_for_a_clock_and_says_by_itself_that_it_has_none(
    tiny_export: Path, file: str, clock: str
) -> None:
    session = open_session(tiny_export / "model_repository" / file)
    (given,) = session.get_inputs()
    for batch in (1, 3):
        (times,) = session.run([clock], {given.name: np.ones((batch, *given.shape[1:]), np.float32)})
        assert (times.dtype, times.tolist()) == (np.int64, [[0, 0]] * batch)


def test_layers_after_the_selected_one_are_not_in_the_file(tiny_export: Path) -> None:
    names = [value.name for value in onnx.load(tiny_export / "model_repository" / FILES[0]).graph.initializer]
    assert any("encoder.layers.0." in name for name in names)
    assert not any("encoder.layers.1." in name or "post_layernorm" in name for name in names)


def test_a_layer_of_the_decoder_is_few_operators(exported: tuple[Path, Path], manifest: dict[str, Any]) -> None:
    operators = Counter(node.op_type for node in onnx.load(exported[1] / "model_repository" / FILES[2]).graph.node)
    layers = manifest["num_layers"]
    assert operators["MatMul"] == 5 * layers  # q, k and v together
    assert operators["SkipSimplifiedLayerNormalization"] == 2 * layers
    assert operators["SimplifiedLayerNormalization"] == 1
    assert operators["GroupQueryAttention"] == layers
    assert not {"Transpose", "Reshape", "Split", "Cos", "Sin"} & set(operators)


def test_a_table_that_is_also_the_head_is_in_the_file_once(other_export: Path) -> None:
    manifest = json.loads((other_export / "model_repository/llm/1/export.json").read_text())
    table = [manifest["vocab_size"], manifest["hidden_size"]]
    tensors = onnx.load(other_export / "model_repository" / FILES[2]).graph.initializer
    assert [sorted(tensor.dims, reverse=True) for tensor in tensors].count(table) == 1


def test_files_do_not_tell_where_they_were_made(exported: tuple[Path, Path]) -> None:
    for file in FILES:
        content = (exported[1] / "model_repository" / file).read_bytes()
        for word in (b"site-packages", b".py", str(Path.cwd()).encode()):
            assert word not in content, (file, word)


def test_the_same_checkpoint_gives_the_same_bytes(tiny_checkpoint: Path, tiny_export: Path, tmp_path: Path) -> None:
    graph = next(graph for graph in graphs(load_model(read_checkpoint(tiny_checkpoint))) if graph.name == "connector")
    again = export_graph(graph, tmp_path)
    assert again.read_bytes() == (tiny_export / "model_repository" / graph.path).read_bytes()


def test_weights_over_the_limit_lie_beside_the_graph(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = load_model(read_checkpoint(tiny_checkpoint))
    graph = next(graph for graph in graphs(model) if graph.name == "connector")
    path = export_graph(graph, tmp_path, inline_limit_bytes=1_000)
    weight_bytes = model.model.multi_modal_projector.linear_1.weight.nbytes
    assert path.with_name("model.onnx.data").stat().st_size >= weight_bytes
    assert path.stat().st_size < 3_000
    assert list(check_connector(path, model))


def test_decoder_fills_the_buffers_it_was_given(tiny_checkpoint: Path, tiny_export: Path) -> None:
    model = load_model(read_checkpoint(tiny_checkpoint))
    session = SlotSession(tiny_export / "model_repository" / FILES[2], model, slots=3, context=20)
    before = session.copy()
    session.run(spliced([[5, 6, 7, 8, 9, 10, 11]], np.zeros((0, model.config.text_config.hidden_size))), [0], slot=1)
    assert session.changed_outside(before, {1: range(7)}) == 0
    for name, buffer in session.past.items():
        assert (buffer[1, :, :7] != before[name][1, :, :7]).all(), name


def spliced(ids: list[list[int]], rows: np.ndarray, placeholder: int = -1) -> Prompt:
    return Prompt(
        ids=np.array(ids, np.int64),
        rows=rows.astype(np.float32),
        places=np.argwhere(np.array(ids) == placeholder),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    ids: list[int]
    pixel_values: torch.Tensor | None


def prompts(checkpoint: Path, seed: int) -> list[Asked]:
    """One picture, no picture, two pictures apart, and pictures of other sizes."""
    processor = AutoProcessor.from_pretrained(checkpoint)
    rng = np.random.default_rng(seed)

    def picture(height: int, width: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))

    image = {"type": "image"}
    cases = [
        ([image, {"type": "text", "text": "What colour is the circle?"}], [picture(70, 60)]),
        ([image, {"type": "text", "text": "Is there a star?"}], [picture(33, 90)]),
        ([{"type": "text", "text": "How many?"}], []),
        ([image, {"type": "text", "text": "or"}, image, {"type": "text", "text": "?"}], [picture(20, 20)] * 2),
        ([{"type": "text", "text": "First"}, image, image], [picture(64, 48), picture(50, 80)]),
    ]
    found = []
    for content, pictures in cases:
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = processor(images=pictures or None, text=text, return_tensors="pt", add_special_tokens=False)
        found.append(Asked(inputs["input_ids"][0].tolist(), inputs.get("pixel_values")))
    return found


def answer_of_transformers(model: LlavaForConditionalGeneration, prompt: Asked) -> list[int]:
    ids = torch.tensor([prompt.ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if prompt.pixel_values is not None:
        inputs["pixel_values"] = prompt.pixel_values
    output = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
    return output[0, len(prompt.ids) :].tolist()


def answers_of_files(
    out: Path, model: LlavaForConditionalGeneration, asked: list[Asked], eos: list[int]
) -> list[list[int]]:
    """All prompts decode together, each in a slot of its own."""
    repository = out / "model_repository"
    vision, connector = (open_session(repository / file) for file in FILES[:2])
    session = SlotSession(repository / FILES[2], model, slots=len(asked), context=128)
    width, placeholder = model.config.text_config.hidden_size, model.config.image_token_id
    answers = []
    for slot, prompt in enumerate(asked):
        rows = np.zeros((0, width), np.float32)
        if prompt.pixel_values is not None:
            (features,) = vision.run(["image_features"], {"pixel_values": prompt.pixel_values.numpy()})
            rows = connector.run(["visual_tokens"], {"image_features": features})[0].reshape(-1, width)
        logits = session.run(spliced([prompt.ids], rows, placeholder), [0], slot=slot)
        answers.append([int(logits[0].argmax())])
    for _ in range(NEW_TOKENS - 1):
        last = spliced([[answer[-1]] for answer in answers], np.zeros((0, width)))
        at = [len(prompt.ids) + len(answer) - 1 for prompt, answer in zip(asked, answers, strict=True)]
        for answer, logits in zip(answers, session.run(last, at), strict=True):
            answer.append(int(logits.argmax()))
    return [cut(answer, eos) for answer in answers]


def cut(answer: list[int], eos: list[int]) -> list[int]:
    ends = [index for index, token in enumerate(answer) if token in eos]
    return answer[: ends[0] + 1] if ends else answer


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_answers_equal_transformers_token_for_token(
    exported: tuple[Path, Path], manifest: dict[str, Any], seed: int
) -> None:
    checkpoint, out = exported
    model = LlavaForConditionalGeneration.from_pretrained(checkpoint).eval()
    asked = prompts(checkpoint, seed)
    want = [answer_of_transformers(model, prompt) for prompt in asked]
    assert answers_of_files(out, model, asked, manifest["eos_token_ids"]) == want
    assert len({tuple(answer) for answer in want}) > 2  # pictures and texts matter, so equality says something


@pytest.mark.parametrize("name", list(CHECKS))
def test_planted_mismatch_is_found(name: str, tiny_checkpoint: Path, tiny_export: Path, tmp_path: Path) -> None:
    from export.parity import ParityError
    from tests.export.plant import spoil

    model = load_model(read_checkpoint(tiny_checkpoint))
    path = next(tiny_export / "model_repository" / file for file in FILES if name in file or name in Path(file).stem)
    assert list(CHECKS[name](path, model))
    with pytest.raises(ParityError, match=f"export_mismatch: {name}, .*differs from torch by .*; limit: 0.0001"):
        list(CHECKS[name](spoil(path, tmp_path / path.name), model))
