"""The report of a run: a page that stands alone, tables, and a folder that it can be made of again."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perf.replay import __main__ as replay
from perf.replay.__main__ import main
from perf.replay.drive import Job
from perf.replay.page import page
from perf.replay.report import CONDITIONS, PAGE, RESULTS, SUMMARY, TRACE
from perf.replay.results import Result
from perf.replay.score import summarise
from perf.replay.sheets import share, short
from perf.replay.trace import ChatArrival, Trace
from tests.perf.test_replay_score import HEADER, result, some_results

EVIL = "<script>alert('&')</script>"
EMPTY = {"meta", "path", "use", "image", "rect", "br"}


class Reader(HTMLParser):
    """Collects what a page is made of, and that its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src", "srcset", "action"):
                self.references.append(value or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def made(results: list[Result]) -> str:
    return page(summarise(HEADER, results), results, {"server": "here", "commit": "abc"})


def test_page_is_whole_and_fetches_nothing() -> None:
    text = made(some_results())
    reader = read(text)
    assert text.startswith("<!doctype html>")
    assert all(reference.startswith("#") for reference in reader.references)
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_plots_take_the_colour_of_the_page_and_share_no_ids() -> None:
    text = made(some_results())
    reader = read(text)
    assert text.count("<svg") == 5
    assert text.count("currentColor") > 20
    assert "#010203" not in text
    assert len(reader.ids) == len(set(reader.ids))
    assert {reference.removeprefix("#") for reference in reader.references} <= set(reader.ids)


def test_page_escapes_whatever_a_result_says() -> None:
    evil = result(2, outcome=EVIL, error=EVIL, tenant=EVIL, size=None, first_s=None, gaps_ms=())
    header = HEADER.model_copy(update={"profile": EVIL})
    text = page(summarise(header, [result(), evil]), [result(), evil], {"server": EVIL})
    assert "<script" not in text
    assert read(text).text.count(EVIL) >= 5


@pytest.mark.parametrize("results", [[], [result(outcome="unavailable", error="gone", first_s=None, gaps_ms=())]])
def test_page_of_a_run_without_an_answer_says_so(results: list[Result]) -> None:
    assert "–" in read(made(results)).text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (3.14159, "3.14"), (31.4159, "31.4"), (314.159, "314"), (31415.9, "31,416")]
)
def test_numbers_are_told_in_about_three_digits(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (1.0, "100 %"), (0.9951, "99.5 %"), (0.5, "50 %")])
def test_shares_are_told_in_percent(value: float | None, text: str) -> None:
    assert share(value) == text


def write_run(folder: Path) -> None:
    requests = [
        ChatArrival(
            arrival_s=1.0, session=0, tenant="blue", cache_scope="blue", text_seed=1, text_tokens=4, max_tokens=3
        )
    ] * HEADER.requests
    Trace(header=HEADER, requests=requests).write(folder / TRACE)
    lines = [one.model_dump_json(exclude_defaults=True) for one in some_results()]
    (folder / RESULTS).write_text("\n".join(lines) + "\n")
    (folder / CONDITIONS).write_text(json.dumps({"server": "here"}))


def test_report_is_made_again_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    assert main(["report", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / SUMMARY).read_text())
    assert (printed["run"]["server"], printed["total"]["ok"], printed["lines"]) == ("here", 5, 8)
    assert "nearest rank" in printed["definitions"]
    read((tmp_path / PAGE).read_text(encoding="utf-8"))
    assert main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("By modality", "By size", "queue_full", "refused", "prefill"))


def test_a_folder_without_a_run_and_a_profile_that_is_none_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert main(["generate", str(tmp_path / "none.toml"), "--out", str(tmp_path / "trace.jsonl")]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("replay: ") for line in told)


def test_results_that_are_none_or_of_another_trace_are_told_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    whole = (tmp_path / RESULTS).read_text()
    for text, words in (("hello\n" + whole, "results.jsonl:1 is no result"), (whole * 2, "")):
        (tmp_path / RESULTS).write_text(text.replace('"line":1,', '"line":99,') if not words else text)
        assert main(["report", str(tmp_path)]) == 1
        assert (words or "no line 99") in capsys.readouterr().err


def test_a_line_that_was_being_written_when_the_run_was_killed_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    whole = (tmp_path / RESULTS).read_text()
    (tmp_path / RESULTS).write_text(whole[:-20])
    assert main(["report", str(tmp_path), "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    assert missing == 1 + HEADER.requests - len(whole.splitlines())
    assert main(["report", str(tmp_path)]) == 0
    assert f"{missing} lines of the trace have no result" in capsys.readouterr().out


def test_a_folder_without_what_was_sent_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    (tmp_path / CONDITIONS).unlink()
    assert main(["report", str(tmp_path)]) == 1
    assert CONDITIONS in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:9", "nonsense"])
def test_without_a_server_nothing_of_an_earlier_run_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    write_run(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert main(["run", str(tmp_path / TRACE), "--out", str(tmp_path), "--url", url]) == 1
    assert url in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_ctrl_c_reports_what_had_ended_and_takes_the_place_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path)
    ended = (tmp_path / RESULTS).read_text()

    def interrupted(job: Job) -> None:
        assert not (tmp_path / RESULTS).exists()
        job.results.write_text(ended)
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "drive", interrupted)
    monkeypatch.setattr(replay, "_server", lambda *_: nullcontext("127.0.0.1:1"))
    assert main(["run", str(tmp_path / TRACE), "--out", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err
    assert (tmp_path / PAGE).exists()


def test_a_tenant_gives_the_terminal_no_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    lines = (tmp_path / RESULTS).read_text().splitlines()
    renamed = [json.dumps(json.loads(lines[0]) | {"tenant": "\x1b[31mred"}), *lines[1:]]
    (tmp_path / RESULTS).write_text("\n".join(renamed) + "\n")
    assert main(["report", str(tmp_path)]) == 0
    assert "\x1b[31m" not in capsys.readouterr().out


def test_generate_writes_a_trace_of_the_seconds_and_seed_that_were_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    assert main(["generate", "perf/profiles/ci.toml", "--out", str(file), "--seconds", "3", "--seed", "9"]) == 0
    header = Trace.read(file).header
    assert (header.profile, header.seconds, header.seed) == ("ci", 3.0, 9)
