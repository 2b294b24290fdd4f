from __future__ import annotations

import re
from pathlib import Path

import pytest

from proteus.deployment import Deployment, DeploymentError
from proteus.limits import DrawTables, LimitTables
from proteus.limits_gpu import HostTables
from proteus.limits_page import described

DEMO = Path(__file__).parent.parent / "deployments" / "demo.toml"


def write(folder: Path, old: str = "", new: str = "") -> Path:
    text = DEMO.read_text(encoding="utf-8")
    if old not in text:
        raise ValueError(f"the demo has no {old!r}")
    path = folder / "deployment.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_demo_loads_and_resolves_its_paths_from_the_file() -> None:
    deployment = Deployment.load(DEMO)
    assert deployment.checkpoint_path == DEMO.parent.parent / "checkpoints" / "demo"
    assert deployment.repository_path == DEMO.parent.parent / "model_repository"
    assert deployment.path == DEMO


POOL = '[encoder_pool]\nurl = "encoder:8001"\ntimeout_ms = 9\nmax_at_once = 8\n\n[cache]'
REDIS = '[encoder_cache.redis]\nurl = "redis://127.0.0.1:6379"\nmax_age_s = 60.0\n'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_pictures = 4", "max_pictures = 4\nmax_picture = 4", ["unknown key 'image.max_picture'", "fix:"]),
        ("cores = 2 ", "cores = 2\nspeed = 9 ", ["unknown key 'speed'"]),
        ("slots = 8", "", ["missing key 'llm.slots'", "demo.toml"]),
        ("slots = 8", "slots = 0", ["llm.slots = 0", "greater than 0"]),
        ("slots = 8", 'slots = "8"', ["llm.slots = '8'", "integer"]),
        ('"png", ', '"pdf", ', ["image.formats.0 = 'pdf'", "'png', 'jpeg'"]),
        ("min_side_px = 8", "min_side_px = 20_000", ["min_side_px = 20000", "max_side_px = 10000"]),
        ("instances = 2 ", "instances = 3 ", ["image_preprocess uses 3 threads", "cores = 2"]),
        ("max_queue = 64\nthreads = 1", "max_queue = 64\nthreads = 4", ["llm uses 4 threads"]),
        ('name = "demo"', 'name = "Demo!"', ["name = 'Demo!'"]),
        ('name = "demo"', "name = ", ["is not TOML"]),
        ("max_aspect_ratio = 20.0", "max_aspect_ratio = 0.5", ["image.max_aspect_ratio = 0.5", "equal to 1"]),
        ("max_aspect_ratio = 20.0", "max_aspect_ratio = inf", ["image.max_aspect_ratio = inf", "finite"]),
        ('animation = "first_frame"', 'animation = "all"', ["image.animation = 'all'", "'first_frame' or 'refuse'"]),
        ('background = "#ffffff"', 'background = "white"', ["image.background = 'white'", "pattern"]),
        ("formats = [] ", 'formats = ["mkv"] ', ["video.formats.0 = 'mkv'", "'mp4'"]),
        ("max_seconds = 60.0", "max_seconds = 0.0", ["video.max_seconds = 0.0", "greater than 0"]),
        ("max_frames = 32", "max_frames = 1.5", ["video.max_frames = 1.5", "integer"]),
        ("sample_frames_per_s = 2.0", 'sample_frames_per_s = "2"', ["video.sample_frames_per_s = '2'", "number"]),
        ("max_clips = 1", "", ["missing key 'audio.max_clips'"]),
        (
            "min_sample_rate_hz = 8_000",
            "min_sample_rate_hz = 96_000",
            ["audio: min_sample_rate_hz = 96000 is over max_sample_rate_hz = 48000"],
        ),
        ("[tiers.low]", "[tiers.medium]", ["unknown key 'tiers.medium'", "missing key 'tiers.low'"]),
        ('over = "downscale"', 'over = "crop"', ["tiers.low.over = 'crop'", "'downscale' or 'refuse'"]),
        ("max_visual_tokens = 64", "max_visual_tokens = 0", ["tiers.low.max_visual_tokens = 0", "greater than 0"]),
        ("hosts = []", 'hosts = ["https://example.com"]', ["fetch.hosts.0 = 'https://example.com'", "pattern"]),
        ("hosts = []", 'hosts = ["203.0.113.7"]', ["fetch.hosts", "203.0.113.7 is an address"]),
        ('schemes = ["https"]', 'schemes = ["ftp"]', ["fetch.schemes.0 = 'ftp'", "'https' or 'http'"]),
        ("ports = [443]", "ports = [65536]", ["fetch.ports.0 = 65536", "65535"]),
        ("private_networks = []", 'private_networks = ["10.0.0.1/8"]', ["fetch.private_networks", "10.0.0.1/8"]),
        ("requests = 64", "requests = 73", ["admission.capacity.requests = 73", "llm.slots + llm.max_queue = 72"]),
        ("requests = 64", "", ["admission.capacity.requests = None"]),
        ("max_choices = 8", "max_choices = 65", ["text.max_choices = 65", "admission.capacity.requests = 64"]),
        ("max_redirects = 3", "max_redirects = -1", ["fetch.max_redirects = -1", "equal to 0"]),
        ("workers = 1 ", "workers = true ", ["decode.workers = True", "integer"]),
        ("max_wait_ms = 30_000", "max_wait_ms = 0", ["admission.max_wait_ms = 0", "greater than 0"]),
        ("requests = 64", "requests = -64", ["admission.capacity.requests = -64", "greater than 0"]),
        ("text = { max_queue = 256, weight = 8 }", "", ["missing key 'admission.queues.text'"]),
        ('policy = "auto"', 'policy = "lifo"', ["llm.schedule.policy = 'lifo'", "'fifo'"]),
        ("iteration_tokens = 72", "iteration_tokens = 8", ["iteration_tokens = 8 leaves no prefill", "slots = 8"]),
        (
            "text_slots = 3",
            "text_slots = 8",
            ["text_slots = 8 leaves media none of slots = 8", "policy = auto; ratio, priority and fifo"],
        ),
        ("max_media_slots = 5", "max_media_slots = 9", ["max_media_slots = 9 is over slots = 8"]),
        ("block_tokens = 16", "block_tokens = 0", ["llm.prefix_cache.block_tokens = 0", "greater than 0"]),
        ("block_tokens = 16", "block_tokens = 1_024", ["block_tokens = 1024 is more than", "context_tokens = 1024"]),
        (
            "max_age_s = 600.0\n\n[adm",
            "max_age_s = 0.0\n\n[adm",
            ["llm.prefix_cache.max_age_s = 0.0", "greater than 0"],
        ),
        ("max_age_s = 600.0", "max_age_s = 0.0", ["processor_cache.max_age_s = 0.0", "greater than 0"]),
        ("max_age_s = 3600.0", "max_age_s = inf", ["encoder_cache.max_age_s = inf", "finite"]),
        ("max_bytes = 67_108_864", "max_bytes = -1", ["encoder_cache.max_bytes = -1", "greater than or equal to 0"]),
        ("[cache]", REDIS + "timeout_ms = 0\n[cache]", ["encoder_cache.redis.timeout_ms = 0", "greater than 0"]),
        ("[cache]", REDIS.replace("redis:", "http:") + "timeout_ms = 9\n[cache]", ["redis.url", "rediss?"]),
        ("weight = 8", "weight = 0", ["admission.queues.text.weight = 0", "greater than 0"]),
        ("\n[denoiser]", "\n[denoise]", ["unknown key 'denoise'"]),
        ("max_rows = 16", "max_rows = 1", ["denoiser.max_rows = 1", "equal to 2"]),
        ('default_size = "64x64"', 'default_size = "64"', ["draw.default_size = '64'", "pattern"]),
        ('default_size = "64x64"', 'default_size = "80x64"', ["80x64 is no multiple of side_multiple_px = 32"]),
        ('default_size = "64x64"', 'default_size = "32x64"', ["default_size = 32x64 is under min_side_px = 64"]),
        ('default_size = "64x64"', 'default_size = "64x128"', ["default_size = 128 is over max_side_px = 96"]),
        ("max_pixels = 9_216", "max_pixels = 4_095", ["default_size = 4096 is over max_pixels = 4095"]),
        ("min_side_px = 64", "min_side_px = 128", ["min_side_px = 128 is over max_side_px = 96"]),
        ("default_steps = 20", "default_steps = 101", ["default_steps = 101 is over max_steps = 100"]),
        ("max_steps = 100", "max_steps = 1_001", ["draw.max_steps = 1001", "1000"]),
        ("default_guidance = 2.0", "default_guidance = 21.0", ["default_guidance = 21.0 is over max_guidance = 20.0"]),
        ("max_guidance = 20.0", "max_guidance = nan", ["draw.max_guidance = nan", "finite"]),
        ('default_sampler = "euler"', 'default_sampler = "plms"', ["draw.default_sampler = 'plms'", "'dpmpp_2m'"]),
        ('formats = ["png", "jpeg", "webp"]', 'formats = ["gif"]', ["draw.formats.0 = 'gif'", "'webp'"]),
        ("images = 128", "images = 145", ["images = 145", "denoiser.live_images + denoiser.max_queue = 144"]),
        ("\nimages = 128", "", ["draw.admission.capacity.images = None must be given"]),
        ("max_images = 8", "max_images = 129", ["draw.max_images = 129", "capacity.images = 128"]),
        ("devices = [0]", "devices = []", ["gpu.devices = []", "at least 1"]),
        ("devices = [0]", "devices = [1, 1]", ["gpu: devices = [1, 1] names one twice"]),
        ("devices = [0]", "devices = [-1]", ["gpu.devices.0 = -1", "equal to 0"]),
        ('precision = "fp16"', 'precision = "int4"', ["gpu.vision_encoder.precision = 'int4'", "'fp8'"]),
        ('runtime = "tensorrt"', 'runtime = "tflite"', ["gpu.vision_encoder.runtime = 'tflite'", "'torch'"]),
        ('runtime = "tensorrt_llm"', 'runtime = "vllm"', ["gpu.llm.runtime = 'vllm'", "'tensorrt_llm'"]),
        (
            'runtime = "tensorrt"',
            'runtime = "onnxruntime"',
            ["gpu.vision_encoder: precision = fp16 is none that runtime = onnxruntime runs: fp32"],
        ),
        (
            'runtime = "tensorrt"\nprecision = "fp16"\ndevice',
            'runtime = "torch"\nprecision = "fp8"\ndevice',
            ["gpu.denoiser: precision = fp8 is none that runtime = torch runs: fp32, fp16, bf16"],
        ),
        ("kv_memory_fraction = 0.8", "kv_memory_fraction = 1.0", ["gpu.llm.kv_memory_fraction = 1.0", "less than 1"]),
        ("optimization_level = 3", "optimization_level = 6", ["gpu.optimization_level = 6", "equal to 5"]),
        ("sizes = []", 'sizes = ["64"]', ["gpu.sizes.0 = '64'", "pattern"]),
        ("[gpu.denoiser]", "[gpu.denoise]", ["unknown key 'gpu.denoise'"]),
        ("[cache]", POOL.replace("encoder:8001", "http://encoder"), ["encoder_pool.url = 'http://encoder'", "pattern"]),
        ("[cache]", POOL.replace("8001", "65536"), ["encoder_pool.url: encoder:65536 has no port from 1 to 65,535"]),
        ("[cache]", POOL.replace("max_at_once = 8", "max_at_once = 0"), ["encoder_pool.max_at_once = 0"]),
    ],
)
def test_wrong_file_is_refused_with_file_key_value_and_fix(
    tmp_path: Path, old: str, new: str, words: list[str]
) -> None:
    path = write(tmp_path, old, new)
    with pytest.raises(DeploymentError) as caught:
        Deployment.load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


TABLES = [
    "image",
    "video",
    "audio",
    "tiers",
    "tiers.low",
    "tiers.auto",
    "tiers.high",
    "fetch",
    "decode",
    "text",
    "llm",
    "llm.schedule",
    "llm.prefix_cache",
    "gpu",
    "gpu.vision_encoder",
    "gpu.connector",
    "gpu.text_encoder",
    "gpu.denoiser",
    "gpu.vae_decoder",
    "gpu.llm",
    "admission",
    "admission.capacity",
    "admission.request",
    "admission.queues",
    "draw",
    "draw.admission",
    "draw.admission.capacity",
    "draw.admission.request",
    "draw.admission.queues",
    "text_encoder",
    "denoiser",
]


@pytest.mark.parametrize("table", TABLES)
def test_unknown_key_of_any_table_is_refused(tmp_path: Path, table: str) -> None:
    """A limit that is misspelt would otherwise be no limit."""
    text = DEMO.read_text(encoding="utf-8")
    text = text if f"\n[{table}]" in text else f"{text}\n[{table}]\n"
    path = tmp_path / "deployment.toml"
    path.write_text(text.replace(f"\n[{table}]", f"\n[{table}]\nmax_pixel = 1\n#", 1), encoding="utf-8")
    with pytest.raises(DeploymentError) as caught:
        Deployment.load(path)
    assert f"{path}: unknown key '{table}.max_pixel'; fix: remove the key" in str(caught.value)


def test_every_table_that_states_limits_is_tried() -> None:
    tables = [*described(LimitTables), *described(DrawTables), *described(HostTables)]
    assert {table.name for table in tables} - set(TABLES) == {
        "encoder_pool",
        *(f"admission.queues.{name}" for name in ("text", "media", "batch")),
        *(f"draw.admission.queues.{name}" for name in ("media", "batch")),
    }


@pytest.mark.parametrize("name", ["text", "media", "batch"])
def test_unknown_key_of_a_queue_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, f"\n{name} = {{ ", f"\n{name} = {{ limit = 1, ")
    with pytest.raises(DeploymentError, match=f"unknown key 'admission.queues.{name}.limit'"):
        Deployment.load(path)


def test_resource_that_is_left_out_is_not_limited(tmp_path: Path) -> None:
    path = write(tmp_path, "visual_tokens = 16_384\n")
    admission = Deployment.load(path).admission
    assert dict(admission.capacity.named()).keys() == {"requests", "media_bytes", "decoded_pixels"}
    assert dict(admission.request.named()) == {"decoded_pixels": 100_000_000}


def test_background_is_three_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, 'background = "#ffffff"', 'background = "#0a80FF"')
    assert Deployment.load(path).image.background_rgb == (10, 128, 255)


def test_fetching_is_on_once_a_host_is_allowed(tmp_path: Path) -> None:
    assert not Deployment.load(DEMO).fetch.enabled
    assert Deployment.load(write(tmp_path, "hosts = []", 'hosts = ["*.example.com"]')).fetch.enabled


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"nowhere\.toml cannot be read"):
        Deployment.load(tmp_path / "nowhere.toml")


def test_values_cannot_be_changed_after_loading() -> None:
    deployment = Deployment.load(DEMO)
    with pytest.raises(ValueError, match="frozen"):
        deployment.llm.slots = 9  # type: ignore[misc]


def drawn(text: str) -> str:
    return re.sub(r"(?m)^(# )?draw_checkpoint = ", "draw_checkpoint = ", text)


def undrawn(text: str) -> str:
    return re.sub(r"(?m)^draw_checkpoint = .*\n", "", text)


def loaded(folder: Path, text: str) -> Deployment:
    (folder / "deployment.toml").write_text(text, encoding="utf-8")
    return Deployment.load(folder / "deployment.toml")


def test_deployment_that_draws_tells_all_that_drawing_needs(tmp_path: Path) -> None:
    deployment = loaded(tmp_path, drawn(DEMO.read_text(encoding="utf-8")))
    drawing = deployment.drawing
    assert deployment.draws
    assert drawing.checkpoint_path == tmp_path.parent / "checkpoints" / "draw"
    assert (drawing.limits.default_px, drawing.denoiser.max_rows, drawing.text_encoder.max_batch) == ((64, 64), 16, 8)


def test_deployment_may_only_draw_or_only_read(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8")
    only_draws = loaded(tmp_path, re.sub(r"(?m)^checkpoint = .*\n", "", drawn(text)))
    assert (only_draws.reads, only_draws.draws) == (False, True)
    assert only_draws.models == ("draw", "text_encoder", "denoiser", "vae_decoder")
    with pytest.raises(DeploymentError, match="has no checkpoint that reads pictures; fix: set checkpoint"):
        _ = only_draws.checkpoint_path
    before, _, _ = text.partition("# Pictures out.")
    only_reads = loaded(tmp_path, undrawn(before))
    assert (only_reads.reads, only_reads.draws) == (True, False)
    assert not {"draw", "text_encoder", "denoiser", "vae_decoder"} & set(only_reads.models)
    with pytest.raises(DeploymentError, match="has no checkpoint that draws; fix: set draw_checkpoint"):
        _ = only_reads.drawing
    with pytest.raises(DeploymentError, match="missing table draw, text_encoder, denoiser, stages.text_encoder"):
        loaded(tmp_path, drawn(before))
    with pytest.raises(DeploymentError, match="neither checkpoint nor draw_checkpoint"):
        loaded(tmp_path, re.sub(r"(?m)^checkpoint = .*\n", "", undrawn(text)))


def test_tables_of_what_draws_are_all_there_or_none(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8").replace("[text_encoder]\nresponse_cache = true\n", "")
    with pytest.raises(DeploymentError, match="missing table text_encoder, which whoever draws needs"):
        loaded(tmp_path, text)


READING = ("chat", "image_tokens", "image_preprocess", "vision_encoder", "connector", "llm")
DRAWING = ("draw", "text_encoder", "denoiser", "vae_decoder")


def test_pools_have_the_models_of_their_work(tmp_path: Path) -> None:
    text = drawn(DEMO.read_text(encoding="utf-8"))
    alone = loaded(tmp_path, text)
    assert alone.models == alone.models_of("all") == READING + DRAWING
    assert set(alone.models_of("encoder")) == set(READING) - {"chat", "llm"}
    assert alone.models_of("draw") == DRAWING
    assert set(alone.models_of("language")) == set(READING)  # nobody else encodes its pictures
    asking = loaded(tmp_path, text.replace("[cache]", POOL, 1))
    assert asking.models_of("language") == ("chat", "llm")
    assert asking.models_of("all") == ("chat", "llm", *DRAWING)
    assert set(asking.models_of("encoder")) == set(READING) - {"chat", "llm"}


def test_pool_without_models_is_refused(tmp_path: Path) -> None:
    only_reads = loaded(tmp_path, undrawn(DEMO.read_text(encoding="utf-8")))
    with pytest.raises(DeploymentError, match="has no models for the pool 'draw'; fix: set draw_checkpoint"):
        only_reads.models_of("draw")


def test_gpu_host_that_draws_has_a_table_for_each_stage_that_draws(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8")
    start, end = text.index("[gpu.vae_decoder]"), text.index("[gpu.llm]")
    without = text[:start] + text[end:]
    with pytest.raises(DeploymentError, match=r"missing table gpu\.vae_decoder, which a GPU host that draws needs"):
        loaded(tmp_path, drawn(without))
    assert loaded(tmp_path, undrawn(without)).gpu is not None


def test_gpu_table_may_be_left_out(tmp_path: Path) -> None:
    text = DEMO.read_text(encoding="utf-8")
    start, end = text.index("[gpu]"), text.index("# Fleets of several servers")
    assert loaded(tmp_path, text[:start] + text[end:]).gpu is None
