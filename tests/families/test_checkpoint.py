from __future__ import annotations

import json
from pathlib import Path

import pytest

from proteus.families.checkpoint import (
    MAX_CONFIG_BYTES,
    ConfigTable,
    UnsupportedCheckpoint,
    read_config,
    read_processor,
    read_processor_part,
    read_table,
)

TABLE = ConfigTable("config.json", {"whole": 3, "text": "x", "nothing": None, "part": {"deep": {"key": "value"}}})


def test_null_counts_as_absent() -> None:
    assert TABLE.get("nothing", 5) == TABLE.get("missing", 5) == 5
    assert "nothing" not in TABLE
    assert "whole" in TABLE


def test_an_error_names_file_path_value_and_limit() -> None:
    deep = TABLE.table("part").table("deep")
    with pytest.raises(UnsupportedCheckpoint) as caught:
        deep.positive("key")
    assert caught.value.what == "config.json: part.deep.key = 'value'"
    assert caught.value.limit == "a whole number above 0"


def test_a_long_value_is_cut_in_the_error() -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        ConfigTable("config.json", {"key": "x" * 10_000}).positive("key")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", [], None])
def test_positive_refuses_all_but_whole_numbers_above_0(value: object) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="whole number above 0"):
        ConfigTable("config.json", {"key": value}).positive("key")


@pytest.mark.parametrize("value", [True, "1", float("nan"), float("inf"), []])
def test_number_refuses_what_is_not_finite(value: object) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="a number"):
        ConfigTable("config.json", {"key": value}).number("key", 1.0)


def test_values_of_the_right_type_are_taken() -> None:
    table = ConfigTable("config.json", {"whole": 3, "real": 2.5, "yes": True, "choice": "b"})
    assert (table.positive("whole"), table.number("real", 0), table.number("whole", 0)) == (3, 2.5, 3.0)
    assert (table.flag("yes", False), table.flag("missing", False)) == (True, False)
    assert table.one_of("choice", ("a", "b")) == "b"


@pytest.mark.parametrize("value", [1, "true", []])
def test_flag_refuses_all_but_true_and_false(value: object) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="true or false"):
        ConfigTable("config.json", {"key": value}).flag("key", True)


def test_one_of_lists_the_known_values() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="known are a, b"):
        TABLE.one_of("text", ("a", "b"))


def test_a_table_must_be_an_object() -> None:
    assert TABLE.table("missing").values == {}
    with pytest.raises(UnsupportedCheckpoint, match="an object"):
        TABLE.table("text")


@pytest.mark.parametrize(
    "value", [7, [7, 7], {"height": 7, "width": 7}, {"height": 7, "width": 7, "shortest_edge": None}]
)
def test_sides_are_written_in_three_ways(value: object) -> None:
    assert ConfigTable("config.json", {"size": value}).sides_px("size") == (7, 7)


@pytest.mark.parametrize("value", [True, 0, [7], [7, 0], [7, "7"], {"height": 7}, {"shortest_edge": 7}, "7", None])
def test_other_sides_are_refused(value: object) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="height and width in px"):
        ConfigTable("config.json", {"size": value}).sides_px("size")


@pytest.mark.parametrize(
    ("text", "words"), [("", "is not JSON"), ("{", "is not JSON"), ("[]", "no JSON object"), ("\udcff", "is not JSON")]
)
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnsupportedCheckpoint, match=rf"config\.json .*{words}"):
        read_config(tmp_path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(UnsupportedCheckpoint, match="too large"):
        read_config(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json cannot be read \(No such file"):
        read_table(tmp_path / "config.json")


def test_the_shared_processor_file_wins_where_it_has_the_part(tmp_path: Path) -> None:
    part = ("image_processor", "preprocessor_config.json")
    with pytest.raises(UnsupportedCheckpoint, match=r"preprocessor_config\.json is missing"):
        read_processor_part(tmp_path, *part)
    assert read_processor(tmp_path).values == {}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 1}))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_token": "<image>"}))
    assert read_processor_part(tmp_path, *part).values == {"size": 1}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"size": 2}}))
    assert read_processor_part(tmp_path, *part).values == {"size": 2}
    assert read_processor(tmp_path).values == {"image_processor": {"size": 2}}


def test_a_number_above_what_makes_sense_is_refused_before_anyone_counts_to_it() -> None:
    table = ConfigTable("config.json", {"key": 10**9, "endless": 10**30})
    assert table.positive("key") == 10**9
    for key, most in (("key", {"most": 1024}), ("endless", {})):
        with pytest.raises(UnsupportedCheckpoint, match=r"at most [\d,]+;"):
            table.positive(key, **most)


@pytest.mark.parametrize("value", [7, "7", [1, "2"], [1.0], [-1], [True], [[1]], {"1": 2}])
def test_layer_numbers_are_a_list_of_whole_numbers(value: object) -> None:
    assert ConfigTable("config.json", {"key": [3, 1]}).layer_numbers("key", [5]) == (3, 1)
    assert ConfigTable("config.json", {}).layer_numbers("key", [5]) == (5,)
    with pytest.raises(UnsupportedCheckpoint, match="a list of layer numbers"):
        ConfigTable("config.json", {"key": value}).layer_numbers("key", [5])


def test_json_of_a_hundred_thousand_brackets_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UnsupportedCheckpoint, match="is not JSON"):
        read_config(tmp_path)
