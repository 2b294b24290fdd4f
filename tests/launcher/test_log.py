from __future__ import annotations

from pathlib import Path

from proteus.launcher.log import bound, count_loaded, error_lines, read_from

LOG = r"""I1129 16:35:30.332507 5439 cache_manager.cc:174] "Creating TritonCache"
E1129 16:35:30.333890 5439 server.cc:241] "CudaDriverHelper has not been initialized."
I1129 16:35:31.696153 5439 model_lifecycle.cc:839] "successfully loaded 'add_one'"
I1129 16:35:31.796153 5439 model_lifecycle.cc:839] "successfully loaded 'add_two'"
E1129 16:35:31.945909 5439 backend_model.cc:692] "ERROR: Failed to create instance: ValueError: no file\n\nAt:\n  a.py(3)"
E1129 16:35:31.961339 5439 model_lifecycle.cc:642] "failed to load 'bad' version 1: Internal: ValueError: no file\n\nAt:\n  a.py(3): initialize\n  <frozen importlib._bootstrap>(241): _call\n"
E1129 16:35:31.961339 5439 model_lifecycle.cc:642] "failed to load 'bad' version 1: Internal: ValueError: no file\n"
+-------+---------+
| bad   | UNAVAILABLE: Internal |
error: creating server: Internal - failed to load all models
"""  # noqa: E501


def test_error_lines_are_the_reasons_only_and_each_once() -> None:
    assert error_lines(LOG) == [
        "failed to load 'bad' version 1: Internal: ValueError: no file",
        "  a.py(3): initialize",
        "error: creating server: Internal - failed to load all models",
    ]


def test_error_lines_are_bounded() -> None:
    text = "\n".join(f"E1129 16:35:31.9 5439 a.cc:1] reason {number}" for number in range(100))
    assert error_lines(text, max_lines=2) == ["reason 0", "reason 1"]


def test_loaded_models_are_counted_once() -> None:
    assert count_loaded(LOG + LOG) == 2


def test_log_is_read_from_an_offset_and_may_be_missing(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert read_from(log, 0) == ""
    log.write_text("before after")
    assert read_from(log, 7) == "after"


def test_a_log_that_is_full_is_begun_anew_and_the_one_before_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("ab") as writer:
        for text in (b"first", b"second", b"third"):
            writer.write(text)
            writer.flush()
            bound(log, max_bytes=5)
    assert (log.read_bytes(), Path(f"{log}.1").read_bytes()) == (b"third", b"firstsecond")


def test_a_log_that_is_not_there_grows_not(tmp_path: Path) -> None:
    bound(tmp_path / "missing.log")
    assert not list(tmp_path.iterdir())
