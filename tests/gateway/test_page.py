"""The page as the gateway serves it; tests/gateway_page tries it in a browser."""

from __future__ import annotations

import gzip
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from proteus.gateway.page import FOLDER, KINDS

FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
TEXTS = [name for name in FILES if not name.endswith(".png")]
SVG = "http://www.w3.org/2000/svg"  # a name, nothing is fetched from there
MAX_SENT_BYTES = 61_440  # of all files, as a browser gets them


class Document(HTMLParser):
    """Its tags with their attributes, and what stands between script and style tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


@pytest.fixture(scope="module")
def document() -> Document:
    return Document((FOLDER / "index.html").read_text(encoding="utf-8"))


def text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_the_page_is_at_the_root(http: httpx.Client) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.text == text("index.html")


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_as_what_it_is(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/page/{name}")
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == KINDS[Path(name).suffix]
    assert answer.headers["content-encoding"] == "gzip"


def test_who_takes_no_gzip_gets_none(http: httpx.Client) -> None:
    answer = http.get("/", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert answer.text == text("index.html")


def test_a_file_that_is_known_is_not_sent_again(http: httpx.Client) -> None:
    tag = http.get("/page/main.js").headers["etag"]
    again = http.get("/page/main.js", headers={"if-none-match": f'"another", {tag}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)


def test_head_tells_without_a_body(http: httpx.Client) -> None:
    answer = http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("name", ["page.py", "..%2Fpage.py", "%2e%2e%2fapp.py", "", ".", "style.css%00", "STYLE.CSS"])
def test_nothing_else_can_be_asked_for(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/page/{name}")
    assert answer.status_code in (400, 404)
    assert "def " not in answer.text


def test_the_browser_is_told_to_take_nothing_from_elsewhere(http: httpx.Client) -> None:
    policy = dict(rule.strip().split(" ", 1) for rule in http.get("/").headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob: data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_names_another_origin(name: str) -> None:
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.", text(name).replace(SVG, ""), re.IGNORECASE)


def test_no_script_or_style_is_in_the_document(document: Document) -> None:
    assert document.inline == []
    names = {name for _, attributes in document.tags for name in attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_reads_text_as_markup_or_code(name: str) -> None:
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\b|Function\("
    assert not re.search(banned, text(name))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_id_that_a_script_asks_for_is_there(document: Document, name: str) -> None:
    asked = set(re.findall(r"""(?:\bby|getElementById)\("([^"]+)"\)""", text(name)))
    assert asked <= set(document.values("id"))


def test_ids_are_unique_and_what_names_them_is_right(document: Document) -> None:
    ids = document.values("id")
    assert len(ids) == len(set(ids))
    assert set(document.values("for") + document.values("aria-controls") + document.values("aria-labelledby")) <= set(
        ids
    )


def test_every_field_has_a_label(document: Document) -> None:
    html = text("index.html")
    labelled = set(document.values("for")) | set(
        re.findall(r"<label[^>]*>[^<]*(?:<span[^>]*>[^<]*</span>)?\s*<\w+ id=\"([^\"]+)\"", html)
    )
    fields = {
        attributes["id"]
        for tag, attributes in document.tags
        if tag in ("input", "select", "textarea") and attributes.get("type") != "hidden" and "hidden" not in attributes
    }
    assert fields <= labelled


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_module_that_is_imported_is_there(name: str) -> None:
    assert {found.removeprefix("./") for found in re.findall(r'from "([^"]+)"', text(name))} <= set(FILES)


def test_everything_the_document_loads_is_there(document: Document) -> None:
    loaded = (
        document.values("src") + document.values("href") + [f"page/{one}" for one in document.values("data-example")]
    )
    assert {one.removeprefix("page/") for one in loaded} <= set(FILES)


def test_examples_are_the_pictures_of_the_client() -> None:
    pictures = Path(__file__).parents[2] / "client" / "pictures"
    for example in FOLDER.glob("*.png"):
        assert example.read_bytes() == (pictures / example.name).read_bytes()


def test_the_whole_page_is_small() -> None:
    assert sum(len(gzip.compress((FOLDER / name).read_bytes())) for name in FILES) < MAX_SENT_BYTES


def test_a_page_without_its_files_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus.gateway.page.FOLDER", tmp_path / "page")
    from proteus.gateway.page import Page

    with pytest.raises(FileNotFoundError):
        Page()
    shutil.copytree(FOLDER, tmp_path / "page")
    Page()
