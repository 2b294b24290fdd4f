"""The images, as far as they can be held right without an engine: their steps that are ours, run here; lint; rules."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
import tritonclient.grpc
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from proteus import __version__
from proteus.cli.health import DEFAULT_HEALTH_URL
from proteus.deployment import Deployment
from proteus.launcher.health import DEFAULT_PORT
from proteus.launcher.installation import PYTHON_BACKEND_FILES, STUB
from tests.docker.scripts import BIN, DOCKER, ROOT, load_script

DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PARENTS = {"cpu": "", "cpu-redis": "cpu", "triton": "", "gpu": "triton"}
LOCK = ROOT / "requirements.lock"
PINNED = re.compile(r"[\w./-]+:(?!latest)[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?")


@pytest.fixture(scope="module")
def missing() -> ModuleType:
    return load_script("missing")


@pytest.fixture(scope="module")
def check_image() -> ModuleType:
    return load_script("check_image")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as the stage `wheel` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "build"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--wheel-dir", folder / "dist", source], check=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


def stages() -> dict[str, str]:
    """Target -> its instructions."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[2::3], parts[3::3], strict=True))


def arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(\S*)$", DOCKERFILE, re.MULTILINE))


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([BIN / "hadolint", DOCKER / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_is_named_with_its_version_and_may_be_pinned_by_digest() -> None:
    bases = re.findall(r"^FROM (\S+) AS", DOCKERFILE, re.MULTILINE)
    named = {base.strip("${}") for base in bases if base.startswith("$")}
    assert named == {name for name in arguments() if name.endswith("_IMAGE")}
    assert set(bases) - {f"${{{name}}}" for name in named} <= set(stages()), "from no image that is not an argument"
    assert all(PINNED.fullmatch(arguments()[name]) for name in named)


def test_both_images_of_nvidia_are_of_one_release() -> None:
    releases = {
        re.sub(r"\D*(\d+\.\d+)-.*", r"\1", arguments()[name].split(":")[1])
        for name in ("TRITON_IMAGE", "TRITON_MEDIA_IMAGE")
    }
    assert len(releases) == 1


def test_the_label_tells_the_version_of_the_package() -> None:
    assert set(re.findall(r"^ARG VERSION=(\S+)$", DOCKERFILE, re.MULTILINE)) == {__version__}


@pytest.mark.parametrize("target", PARENTS)
def test_an_image_runs_as_nobody_and_knows_its_health(target: str) -> None:
    stage = stages().get(PARENTS[target], "") + stages()[target]
    assert re.findall(r"^USER (\S+)$", stage, re.MULTILINE)[-1] == "10001:10001"
    (health,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", stage, re.MULTILINE)
    assert json.loads(health) == ["proteus", "health"]
    (command,) = re.findall(r"^CMD (\[.*\])$", stage, re.MULTILINE)
    words = json.loads(command)
    port = words[words.index("--health-port") + 1]
    assert (port, str(DEFAULT_PORT)) == (DEFAULT_HEALTH_URL.rpartition(":")[2],) * 2
    assert "STOPSIGNAL SIGTERM" in stage
    assert 'ENTRYPOINT ["proteus-container"]' in stage


def test_what_images_start_are_options_that_serve_has() -> None:
    command = [sys.executable, "-m", "proteus.cli", "serve", "--help"]
    wide = {**os.environ, "COLUMNS": "200"}
    shown = subprocess.run(command, capture_output=True, text=True, env=wide).stdout
    commands = [json.loads(words) for words in re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)]
    assert len(commands) == 2
    assert all(word in shown for words in commands for word in words if word.startswith("--"))


def test_nothing_is_fetched_but_by_pip_and_nothing_secret_is_named() -> None:
    assert not re.search(r"curl|wget|apt|ADD |--mount=type=secret|PASSWORD|TOKEN|SECRET", DOCKERFILE)
    installs = re.findall(r"-m pip install(.*?)(?:&&|\n[A-Z])", DOCKERFILE, re.DOTALL)
    assert len(installs) == 3
    assert all("--no-deps" in words and "-r " in words for words in installs), "at the versions of a file, no others"


def test_the_build_context_has_what_is_copied_and_little_else() -> None:
    lines = [
        line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    assert lines[0] == "*", "everything stays out but what is named"
    taken = {line[1:] for line in lines if line.startswith("!")}
    sources = set(re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", DOCKERFILE, re.MULTILINE))
    mounted = set(re.findall(r"type=bind,source=([\w./-]+)", DOCKERFILE))
    named = {word for words in sources for word in words.split()} | mounted
    assert named == taken
    assert all((ROOT / name).exists() for name in taken)


def test_the_wheel_has_all_that_a_server_is_started_from(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    source = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src").rglob("*.py")}
    assert source <= set(names)
    page = ROOT / "src" / "proteus" / "gateway" / "page"
    assert {f"proteus/gateway/page/{file.name}" for file in page.iterdir() if file.is_file()} <= set(names)
    assert any(re.fullmatch(r"proteus/launcher/backends/\w+/model\.py", name) for name in names)
    (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "proteus = proteus.cli:main" in zipfile.ZipFile(wheel).read(scripts).decode()
    assert wheel.name.startswith(f"proteus-{__version__}-py3-none-any")


def test_the_installed_wheel_runs_without_the_source(wheel: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", tmp_path, wheel], check=True)
    program = "import proteus.cli, proteus.launcher.health as health; print(health.__file__); proteus.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "proteus" / "launcher" / "health.py"), __version__]


def requirements() -> list[Requirement]:
    """Of the package, without extras."""
    return [
        Requirement(line) for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ]


def closure(missing: ModuleType) -> Iterator[str]:
    """Every package that serving needs, but for what an image of NVIDIA brings itself."""
    todo, seen = requirements(), set()
    while todo:
        wanted = todo.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in seen or key[0] in missing.NEVER:
            continue
        seen.add(key)
        yield key[0]
        for requirement in map(Requirement, metadata.requires(key[0]) or []):
            extras = {"", *wanted.extras}
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(requirement)


def test_an_empty_image_gets_exactly_what_serving_needs(missing: ModuleType, wheel: Path) -> None:
    lines, wrong = missing.missing(missing.requirements_of(wheel), missing.locked(LOCK), here=lambda name: None)
    assert not wrong
    assert {line.split("==")[0] for line in lines} == set(closure(missing))
    assert missing.ONLY_FOR_THOSE | missing.NEVER | set(closure(missing)) == set(missing.locked(LOCK))


@pytest.mark.parametrize(
    ("here", "replace", "pillow", "wrong"),
    [
        ({"pillow": "13.1.0"}, "", False, []),
        ({"pillow": "11.0.0"}, "", False, ["pillow 11.0.0 is in the image, what serves needs pillow>=12"]),
        ({"pillow": "11.0.0"}, "pillow", True, []),
        ({}, "", True, []),
        ({"numpy": "2.3.0", "protobuf": "7.1"}, "", True, []),
        (
            {"protobuf": "6.31.1"},
            "",
            True,
            ["protobuf 6.31.1 is in the image, what serves needs protobuf<8,>=6.33.5"],
        ),
        ({"onnxruntime-gpu": "1.32.0"}, "", True, []),
    ],
    ids=["new enough", "too old", "replaced", "missing", "not ours to judge", "messages", "another runtime"],
)
def test_what_an_image_has_is_left_alone_or_complained_about(
    missing: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    here: dict[str, str],
    replace: str,
    pillow: bool,
    wrong: list[str],
) -> None:
    def version(name: str) -> str:
        if name not in here:
            raise metadata.PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(missing.metadata, "version", version)
    lines, complaints = missing.missing(requirements(), missing.locked(LOCK), replace=frozenset({replace} - {""}))
    assert complaints == wrong
    assert any(line.startswith("pillow==") for line in lines) == pillow
    assert not any(line.split("==")[0] in here for line in lines if not replace)
    assert any(line.startswith("onnxruntime==") for line in lines) == ("onnxruntime-gpu" not in here)


def test_protobuf_is_as_new_as_the_messages_of_tritonclient(missing: ModuleType) -> None:
    """An image with an older one was imitated: nothing but `import` said no, and the build had been content."""
    (protobuf,) = missing.ALSO
    text = Path(tritonclient.grpc.model_config_pb2.__file__).read_text()
    call = re.search(r"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),\s*(\d+),", text)
    assert call is not None
    generated = ".".join(call.groups())
    assert protobuf.specifier.contains(generated)
    assert f">={generated}" in str(protobuf.specifier)
    assert protobuf.specifier.contains(missing.locked(LOCK)["protobuf"])


def test_the_step_that_asks_what_is_missing_runs_as_a_program(wheel: Path) -> None:
    command = [sys.executable, DOCKER / "missing.py", "--replace", "", wheel, LOCK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "", "nothing is missing here"


def test_the_check_of_an_image_passes_here(check_image: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """With the embedded tritonserver and this Python: the same program that is run in an image."""
    assert check_image.main([]) == 0
    assert f"proteus {__version__}" in capsys.readouterr().out


def test_a_library_that_is_nowhere_is_named_and_the_drivers_are_not(check_image: ModuleType, tmp_path: Path) -> None:
    """Of every backend `ldd` says that libtritonserver.so is nowhere: see pull 264 of onnxruntime_backend."""
    for backend in ("tensorrt", "tensorrtllm"):
        (tmp_path / backend).mkdir()
        (tmp_path / backend / f"libtriton_{backend}.so").touch()
    linked = (
        "\tlinux-vdso.so.1 (0x1)\n\tlibtritonserver.so => not found\n\tlibnvinfer.so.11 => not found\n"
        "\tlibcuda.so.1 => not found\n\tlibc.so.6 => /c (0x2)"
    )
    assert list(check_image.missing_libraries(tmp_path, lambda library: linked)) == [
        "backend tensorrt needs libnvinfer.so.11, which this image has not"
    ]


@pytest.mark.parametrize(
    ("embedded", "wrong"),
    [(f"{sys.version_info.major}.{sys.version_info.minor}", ""), ("3.99", "embeds Python 3.99")],
)
def test_a_tritonserver_of_another_python_ends_the_build(
    check_image: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], embedded: str, wrong: str
) -> None:
    backend = tmp_path / "backends" / "python"
    for file in (tmp_path / "bin" / "tritonserver", *(backend / name for name in PYTHON_BACKEND_FILES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (backend / STUB).write_bytes(f"libpython{embedded}.so.1.0".encode())
    assert check_image.main(["--at-rest", str(tmp_path)]) == (1 if wrong else 0)
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("script", ["entrypoint", "secrets.sh"])
def test_scripts_are_shell_that_parses(script: str) -> None:
    assert os.access(DOCKER / script, os.X_OK)
    subprocess.run(["sh", "-n", DOCKER / script], check=True)


@pytest.fixture
def container(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """Surroundings in which `proteus` says what it was given."""
    fake = tmp_path / "bin" / "proteus"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\necho "$PROTEUS_CACHE_SECRET|$*"\nif [ "$1" = serve ]; then echo loaded >> "$3"; sleep 0.5; fi\n'
    )
    fake.chmod(0o755)
    (tmp_path / "secret").write_text("of files\n")
    return {"PATH": f"{fake.parent}:{os.environ['PATH']}", "PROTEUS_LOG": str(tmp_path / "log")}, tmp_path


@pytest.mark.parametrize(
    ("words", "told", "logged"),
    [
        (["serve", "--pool", "draw"], "serve --log {folder}/log --pool draw", "loaded\n"),
        (["health", "--json"], "health --json", ""),
        ([], "", ""),
    ],
)
def test_the_entry_reads_secrets_from_files_and_shows_the_log(
    container: tuple[dict[str, str], Path], words: list[str], told: str, logged: str
) -> None:
    environment, folder = container
    environment = {**environment, "PROTEUS_CACHE_SECRET_FILE": str(folder / "secret")}
    process = subprocess.Popen(
        [DOCKER / "entrypoint", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == f"of files|{told.format(folder=folder)}\n"
    process.wait(timeout=10)
    assert process.returncode == 0
    if logged:
        assert process.stderr.readline() == logged
        os.killpg(process.pid, 9)  # `tail` ends with its container
    process.communicate()


def test_a_secret_that_cannot_be_read_stops_the_start(container: tuple[dict[str, str], Path]) -> None:
    environment, folder = container
    environment = {**environment, "PROTEUS_CACHE_SECRET_FILE": str(folder / "none")}
    done = subprocess.run([DOCKER / "entrypoint", "version"], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stdout == ""


def test_the_deployment_of_the_image_for_compose_is_one(tmp_path: Path) -> None:
    file = tmp_path / "demo.toml"
    file.write_text((ROOT / "deployments" / "demo.toml").read_text() + (DOCKER / "redis.toml").read_text())
    redis = Deployment.load(file).encoder_cache.redis
    assert redis is not None
    assert (redis.url, redis.password_env, redis.secret_env) == (
        "redis://redis:6379/0",
        "PROTEUS_REDIS_PASSWORD",
        "PROTEUS_CACHE_SECRET",
    )
