from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from proteus import __version__
from proteus.cli import app
from proteus.client import Options
from proteus.client.demo import load_questions, run_demo
from tests.client.peer import CONTRACT, LOGPROBS, REFUSAL, REPORT, Peer

PICTURE = "client/pictures/chart.png"
DEMO = "deployments/demo.toml"
BLOCKS = "█▉▊▋▌▍▎▏▐▕"  # that bars are made of


def proteus(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_an_answer_streams_and_ends_with_its_bill(peer: Peer) -> None:
    result = proteus("ask", PICTURE, PICTURE, "what is this", "--url", peer.url)
    assert result.exit_code == 0
    text, bill = result.stdout.split("\n\n")
    assert text == "what is this "
    assert [" ".join(line.rstrip(f"{BLOCKS} ").split()) for line in bill.splitlines()] == [
        "tokens 9 text + 36 visual in, 3 out; cached: 8; finish: stop",
        "0.5 ms ingress",
        "12.0 ms prefill",
        "7.2 ms decode",
        "first token after 12.5 ms; between tokens 3.5 ms, at most 4.2; total 19.8 ms",
        "encoder cache: 1 of 2 hit, saved 34.5 ms; prefix cache: hit, saved 1.2 ms",
    ]
    assert list(peer.requests[0].inputs[2].shape) == [2]


def test_each_bar_of_a_bill_begins_where_the_one_before_it_ends(peer: Peer) -> None:
    lines = proteus("ask", "what is this", "--url", peer.url).stdout.splitlines()
    prefill, decode = (next(line for line in lines if stage in line) for stage in ("prefill", "decode"))
    bars = [line[line.rindex("l" if line is prefill else "e") + 1 :] for line in (prefill, decode)]
    assert [bar.count("█") for bar in bars] == [24, 15], "of 40, by their share"
    assert bars[0].rstrip() and bars[1].startswith(" " * 24)


def test_a_bill_of_a_server_that_tells_less_is_printed_too(peer: Peer) -> None:
    result = proteus("ask", "old server", "--url", peer.url)
    assert result.stdout == "one\n\ntokens  1 text + 0 visual in, 1 out; cached: 0; finish: length\n"


def test_json_is_one_document_and_nothing_else(peer: Peer) -> None:
    result = proteus("ask", "what is this", "--json", "--url", peer.url)
    bill = {name: told for name, told in REPORT.items() if name != "choices"}
    choices = [{"text": "what is this ", "finish_reason": "stop"}]
    assert json.loads(result.stdout) == {"text": "what is this ", **bill, "choices": choices}
    assert result.stderr == ""


def test_every_option_reaches_the_request_document(peer: Peer) -> None:
    words = (
        "--max-tokens 3 --min-tokens 0 --n 2 --temperature 0 --top-p 0.9 --top-k 4 --min-p 0.1 --seed 5 --stop a "
        "--stop b --frequency-penalty -1 --presence-penalty 1 --repetition-penalty 1.5 --logit-bias 17=-100 "
        "--logit-bias 9=0.5 --logprobs --top-logprobs 2 --request-id r --cache-scope mine --tenant t "
        "--deadline-ms 9000 --batch --timeout 30"
    )
    assert proteus("ask", "hi", *words.split(), "--url", peer.url).exit_code == 0
    del peer.documents[0]["messages"]
    assert peer.documents == [
        {
            "max_tokens": 3,
            "min_tokens": 0,
            "n": 2,
            "temperature": 0,
            "top_p": 0.9,
            "top_k": 4,
            "min_p": 0.1,
            "frequency_penalty": -1,
            "presence_penalty": 1,
            "repetition_penalty": 1.5,
            "logit_bias": {"17": -100, "9": 0.5},
            "logprobs": True,
            "top_logprobs": 2,
            "seed": 5,
            "stop": ["a", "b"],
            "request_id": "r",
            "cache_scope": "mine",
            "tenant": "t",
            "latency_class": "batch",
            "deadline_ms": 9000,
        }
    ]


def test_every_option_of_the_library_is_one_of_the_command() -> None:
    command = typer.main.get_group(app).commands["ask"]
    names = {parameter.name for parameter in command.params}
    assert Options.__annotations__.keys() - names == {"latency_class", "sent"}, "--batch, and the moment itself"


def test_several_answers_are_printed_one_after_the_other(peer: Peer) -> None:
    result = proteus("ask", "two answers", "--n", "2", "--url", peer.url)
    assert result.stdout.startswith("1. 0: one 0: more\n2. 1: one 1: more\n\ntokens  9 text")
    assert "finish: stop, length" in result.stdout


def test_logprobs_are_part_of_the_json_document(peer: Peer) -> None:
    result = proteus("ask", "two answers", "--n", "2", "--json", "--logprobs", "--url", peer.url)
    assert [choice["logprobs"] for choice in json.loads(result.stdout)["choices"]] == [LOGPROBS * 2] * 2


@pytest.mark.parametrize(
    ("request_id", "words", "asked", "stopped"),
    [
        ("mine", [], ["chat", "draw"], "2\n"),
        ("mine", ["--model", "chat"], ["chat"], "1\n"),
        ("mine", ["--model", "draw"], ["draw"], "1\n"),
        ("another's", [], ["chat", "draw"], "0\n"),
    ],
)
def test_a_stop_prints_how_many_it_stopped(
    request_id: str, words: list[str], asked: list[str], stopped: str, peer: Peer
) -> None:
    result = proteus("stop", request_id, "--tenant", "t", "--cache-scope", "s", *words, "--url", peer.url)
    assert (result.exit_code, result.stdout) == (0, stopped)
    assert [request.model_name for request in peer.requests] == asked
    assert peer.documents == [{"stop": {"request_id": request_id, "tenant": "t", "cache_scope": "s"}}] * len(asked)


@pytest.mark.parametrize("model", ["chat", "draw"])
def test_a_stop_at_a_server_of_one_model_asks_that_one(model: str, peer: Peer) -> None:
    peer.published = {model: peer.published[model]}
    assert proteus("stop", "mine", "--url", peer.url).stdout == "1\n"


@pytest.mark.parametrize("words", [[], ["--model", "draw"]])
def test_a_stop_at_a_model_that_is_not_there_is_one_line(words: list[str], peer: Peer) -> None:
    peer.published = {}
    result = proteus("stop", "mine", *words, "--url", peer.url)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "unknown model" in result.stderr


def test_options_that_were_not_given_are_the_servers_to_choose(peer: Peer) -> None:
    proteus("ask", "hi", "--url", peer.url)
    assert list(peer.documents[0]) == ["messages"]


@pytest.mark.parametrize("flag", ["--json", "--max-tokens=1"])
def test_a_refusal_is_one_line_on_standard_error(flag: str, peer: Peer) -> None:
    result = proteus("ask", "refuse", flag, "--url", peer.url)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{REFUSAL}\n")


def test_text_that_came_before_an_error_keeps_its_own_line(peer: Peer) -> None:
    result = proteus("ask", "break off", "--url", peer.url)
    assert (result.exit_code, result.stdout) == (1, "half\n")


def test_no_server_exits_with_one(closed_url: str) -> None:
    result = proteus("ask", "hi", "--url", closed_url)
    assert result.exit_code == 1
    assert result.stderr == f"no server at {closed_url}: start one with `proteus serve`\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ask"], "Missing argument"),
        (["ask", PICTURE], "the question comes last"),
        (["ask", "nowhere.png", "hi"], "there is no such file"),
        (["ask", "hi", "--max-token", "3"], "No such option"),
        (["ask", "hi", "--url", "http://x"], "is no server address"),
        (["ask", "hi", "--logit-bias", "17"], "write it as ID=BIAS"),
        (["stop"], "Missing argument"),
        (["serve", "--deployment", "nowhere.toml"], "does not exist"),
        (["contract", "--deployment", "nowhere.toml"], "does not exist"),
        (["contract", "--deployment", DEMO, "--url", "127.0.0.1:1"], "not both"),
        (["contract", "--url", "http://x"], "is no server address"),
        (["serve", "--http-port", "70000"], "less than or equal to 65535"),
    ],
)
def test_wrong_usage_exits_with_two(words: list[str], said: str) -> None:
    result = proteus(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_contract_of_a_file_is_its_numbers() -> None:
    document = json.loads(proteus("contract", "--json").stdout)
    table = tomllib.loads(Path(DEMO).read_text(encoding="utf-8"))
    assert document == {
        **{name: table[name] for name in ("image", "video", "audio", "tiers", "text", "admission")},
        "fetch": {"enabled": False, "hosts": []},
        "llm": {"context_tokens": table["llm"]["context_tokens"]},
        **({"draw": table["draw"]} if "draw_checkpoint" in table else {}),
    }
    assert document == json.loads(proteus("contract", "--deployment", DEMO, "--json").stdout)


@pytest.mark.parametrize(
    ("served", "tables"),
    [
        ({"checkpoint", "draw_checkpoint"}, {"image", "llm", "draw"}),
        ({"draw_checkpoint"}, {"draw"}),
        ({"checkpoint"}, {"image", "llm"}),
    ],
)
def test_the_contract_of_a_file_is_that_of_the_checkpoints_it_names(
    served: set[str], tables: set[str], tmp_path: Path
) -> None:
    file = tmp_path / "deployment.toml"
    text = re.sub(r"^(# )?(draw_)?checkpoint = .*$", "", Path(DEMO).read_text(encoding="utf-8"), flags=re.MULTILINE)
    file.write_text("".join(f'{key} = "x"\n' for key in sorted(served)) + text, encoding="utf-8")
    document = json.loads(proteus("contract", "--deployment", str(file), "--json").stdout)
    assert document.keys() & {"image", "llm", "draw"} == tables
    assert document.get("draw", tomllib.loads(text)["draw"]) == tomllib.loads(text)["draw"]


def test_the_contract_of_a_server_is_what_it_publishes(peer: Peer) -> None:
    result = proteus("contract", "--url", peer.url, "--json")
    assert (json.loads(result.stdout), result.stderr) == (CONTRACT, "")


def test_the_contract_is_printed_with_units_and_meaning(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = proteus("contract", "--url", peer.url).stdout.splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert "max_bytes 10,485,760 bytes one encoded picture" in words
    assert "max_seconds 60 s one video" in words
    assert "max_steps 100 denoise steps of one picture" in words
    assert "audio.max_loudness 11" in words, "a limit that this version does not know"
    assert not any(line.startswith("max_side_px") for line in words), "the server told none"
    assert next(line for line in words if line.startswith("[tiers.low]"))
    assert not any(line.startswith("[admission") for line in words)
    assert max(map(len, lines)) <= 100


def test_a_deployment_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    text = Path(DEMO).read_text(encoding="utf-8")
    file.write_text(text.replace("max_pictures = 4", "max_pictures = 0"), encoding="utf-8")
    result = proteus("contract", "--deployment", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"invalid_deployment: {file}: image.max_pictures = 0")


def test_the_version_is_printed() -> None:
    assert proteus("version").stdout == f"{__version__}\n"


def test_the_demo_asks_every_question_and_shows_the_expected_answer(peer: Peer, tmp_path: Path) -> None:
    printed = Console(file=io.StringIO(), width=100)
    folder = Path("client/pictures")
    run_demo(peer.url, folder, tmp_path / "drawing.png", printed)
    assert isinstance(printed.file, io.StringIO)
    text = printed.file.getvalue()
    questions = load_questions(folder)
    assert len({question.picture for question in questions}) == 3
    assert len(peer.requests) == len(questions) + 1
    for question in questions:
        assert question.question in text
        assert f"expected: {question.expected}" in text
    assert "usage, tokens" in text
    assert "stage times, ms" in text
    assert f"{tmp_path / 'drawing.png'}  64x64 png; seed 7, image 0, 20 steps" in text
    assert "cost    40 evaluations" in text
    with Image.open(tmp_path / "drawing.png") as drawn:
        assert drawn.size == (64, 64)


@pytest.mark.parametrize("model", ["chat", "draw"])
def test_the_demo_does_what_the_server_can(model: str, peer: Peer, tmp_path: Path) -> None:
    peer.published = {model: peer.published[model]}
    run_demo(peer.url, Path("client/pictures"), tmp_path / "drawing.png", Console(file=io.StringIO()))
    assert {request.model_name for request in peer.requests} == {model}
    assert (tmp_path / "drawing.png").exists() == (model == "draw")


def test_a_folder_without_questions_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no .*questions.json"):
        load_questions(tmp_path)


@pytest.mark.parametrize("module", ["proteus.client", "proteus.cli"])
def test_importing_it_loads_neither_a_model_runtime_nor_the_server(module: str) -> None:
    heavy = "{'torch', 'transformers', 'onnxruntime', 'tokenizers', 'pytriton', 'proteus.launcher', 'PIL'}"
    code = f"import sys, {module}; sys.exit(', '.join({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
