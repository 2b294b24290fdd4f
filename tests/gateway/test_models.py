"""Models by name: who may have which, what is told of each, and files that cannot be served."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from proteus.deployment import Deployment, DeploymentError
from proteus.door.request import ChatRequest
from proteus.door.seats import Seats
from proteus.errors import ProteusError
from proteus.gateway.errors import NotAllowed, NotFound
from proteus.gateway.gateway import Gateway
from proteus.gateway.order import Tenant, Visit
from proteus.gateway.planning.auto_reader import AutoReader
from proteus.gateway.planning.models import Models
from proteus.gateway.planning.reader import Reading, visual_tokens_of_first
from proteus.language.prompt import Prompt
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import Prices
from tests.changed_deployment import ABSENT, changed
from tests.gateway.running import DEMO, in_front_of
from tests.gateway.test_cost import part, picture_of, text

EVERYBODY = Tenant(name="local", cache_scope="local")
ROOT = DEMO.parents[1]


def settings_of(deployment: Deployment) -> Settings:
    assert deployment.gateway is not None
    return deployment.gateway


def models_of(deployment: Deployment) -> Models:
    return Models(deployment, settings_of(deployment))


def light_file(folder: Path, **changes: str) -> Path:
    """The demo's file under another name and place."""
    lines = DEMO.read_text(encoding="utf-8").replace('"../', f'"{ROOT}/').replace('name = "demo"', 'name = "tiny"')
    for old, new in changes.items():
        lines = lines.replace(old, new)
    (folder / "light.toml").write_text(lines, encoding="utf-8")
    return folder / "light.toml"


def with_light(folder: Path, file: str = "light.toml", **rule: Any) -> Deployment:
    light = {"deployment": str(folder / file), "servers": [{"grpc": "127.0.0.1:8101"}]}
    return changed({"gateway.light": light, **{f"gateway.auto.{key}": value for key, value in rule.items()}})


@pytest.fixture(scope="module")
def lit(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The demo's, with itself as a light model of the name `tiny`."""
    folder = tmp_path_factory.mktemp("light")
    light_file(folder)
    return models_of(with_light(folder))


def planned(models: Models, model: str, *content: Any, tenant: Tenant = EVERYBODY) -> Reading:
    async def plan() -> Reading:
        reader = models.reader(model, tenant)
        visit = Visit(path="/v1/chat/completions", address="127.0.0.1", tenant=tenant)
        request = ChatRequest.parse(
            json.dumps({"messages": [{"role": "user", "content": list(content)}]}).encode(), reader.limits.text
        )
        with Seats(max_requests=1, max_bytes=1 << 30).take(0) as seat:
            return await reader.plan(visit, request, seat)

    return asyncio.run(plan())


def test_names_are_of_the_deployment(lit: Models) -> None:
    assert lit.names() == ("demo", "tiny", "auto", "demo-draw")
    assert lit.reader("demo", EVERYBODY).name == "demo"
    assert lit.artist("demo-draw", EVERYBODY).name == "demo-draw"
    assert isinstance(lit.reader("auto", EVERYBODY), AutoReader)


@pytest.mark.parametrize("name", ["other", "demo-draw", "Demo", "", "\u202edemo\n"])
def test_what_does_not_answer_is_not_found(lit: Models, name: str) -> None:
    with pytest.raises(NotFound) as refused:
        lit.reader(name, EVERYBODY)
    assert refused.value.param == "model"
    assert refused.value.limit == "your models: demo, tiny, auto"
    assert str(refused.value).isprintable()


def test_a_tenant_has_the_models_of_its_list_and_hears_of_no_others(lit: Models) -> None:
    tenant = Tenant(name="acme", cache_scope="acme", models=frozenset({"tiny", "demo-draw"}))
    assert [model.name for model in lit.of(tenant)] == ["tiny", "demo-draw"]
    for name in ("demo", "auto"):
        with pytest.raises(NotAllowed):
            lit.reader(name, tenant)
    with pytest.raises(NotFound) as refused:
        lit.reader("other", tenant)
    assert refused.value.limit == "your models: tiny"


def test_a_deployment_that_only_reads_draws_nothing() -> None:
    models = models_of(changed({"draw_checkpoint": ABSENT}))
    assert models.names() == ("demo", "auto")
    with pytest.raises(NotFound):
        models.artist("demo-draw", EVERYBODY)


def test_a_deployment_that_only_draws_answers_nothing() -> None:
    models = models_of(changed({"checkpoint": ABSENT}))
    assert models.names() == ("demo-draw",)
    with pytest.raises(NotFound):
        models.reader("auto", EVERYBODY)


def test_a_light_model_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"gateway\.light\.deployment: .*missing\.toml cannot be read"):
        models_of(with_light(tmp_path, "missing.toml"))
    light_file(tmp_path, **{f'"{ROOT}/checkpoints/demo"': '"nowhere"'})
    with pytest.raises(DeploymentError, match=r"gateway\.light\.deployment: .*nowhere"):
        models_of(with_light(tmp_path))
    light_file(tmp_path, **{'name = "tiny"': 'name = "demo-draw"'})
    with pytest.raises(DeploymentError, match="has the name demo-draw"):
        models_of(with_light(tmp_path))
    light_file(tmp_path, **{f'checkpoint = "{ROOT}/checkpoints/demo"': ""})
    with pytest.raises(DeploymentError, match=r"gateway\.light\.deployment: .*no checkpoint that reads"):
        models_of(with_light(tmp_path))


def test_auto_is_no_name_for_a_deployment() -> None:
    with pytest.raises(DeploymentError, match="the gateway's own name"):
        models_of(changed({"name": "auto"}))


@pytest.mark.parametrize(
    ("content", "model", "tiers", "because"),
    [
        ((text("Hello"),), "tiny", (), "no picture"),
        ((part(picture_of(120, 90)), text("What colour?")), "tiny", ("low",), "asks for a colour; 120x90 px"),
        ((part(picture_of(500, 400)), text("What colour?")), "demo", ("low",), "asks for a colour; 500x400 px"),
        ((part(picture_of(120, 90)), text("Read it.")), "demo", ("auto",), "asks to read; 120x90 px"),
        (
            (part(picture_of(99, 99)), part(picture_of(99, 99), detail="high"), text("Is it red?")),
            "tiny",
            ("low", "high"),
            "asks yes or no; 2 pictures of 19,602 px",
        ),
    ],
)
def test_auto_plans_by_its_rule(
    lit: Models, content: tuple[Any, ...], model: str, tiers: tuple[str, ...], because: str
) -> None:
    reading = planned(lit, "auto", *content)
    assert reading.auto is not None
    assert (reading.model, reading.light, reading.auto.model) == (model, model == "tiny", model)
    assert tuple(picture.tier for picture in reading.prepared.pictures) == tiers
    assert reading.auto.because == because
    assert reading.order(Visit(path="", address="", tenant=EVERYBODY)).light == (model == "tiny")


def test_auto_plans_as_the_model_that_it_takes_would(lit: Models) -> None:
    content = (part(picture_of(120, 90), detail="auto"), text("Read it."))
    auto, named = planned(lit, "auto", *content), planned(lit, "demo", *content)
    assert auto.prepared.resources == named.prepared.resources
    assert auto.price == named.price
    assert auto.auto is not None
    assert auto.auto.tier is None


def test_a_price_that_is_too_high_takes_the_light_model(tmp_path: Path) -> None:
    light_file(tmp_path)
    deployment = with_light(tmp_path, max_price=1e-9)
    dear = settings_of(deployment).prices.model_dump()
    light = settings_of(deployment).light
    assert light is not None
    cheap = light.model_copy(update={"prices": type(settings_of(deployment).prices)(**dear | {"per_picture": 0.0})})
    models = Models(deployment, settings_of(deployment).model_copy(update={"light": cheap}))
    reading = planned(models, "auto", part(picture_of(120, 90)), text("Read it."))
    assert (reading.model, reading.auto and reading.auto.tier) == ("tiny", "low")
    assert reading.auto is not None
    assert reading.auto.because.endswith("the first was dearer than [gateway.auto] max_price = 1e-09")


@pytest.mark.parametrize("most", [0.1, 0.3, 0.7])  # the binary number next to it is above, or below
def test_what_costs_max_price_to_the_last_digit_is_not_too_dear(most: float) -> None:
    prices = {name: 0.0 for name in Prices.model_fields if name != "currency"}
    settings = settings_of(changed({}))
    settings = settings.model_copy(
        update={
            "prices": Prices(currency="EUR", **prices | {"per_picture": most}),
            "auto": settings.auto.model_copy(update={"max_price": most}),
        }
    )
    reading = planned(Models(changed({}), settings), "auto", part(picture_of(120, 90)), text("Read it."))
    assert reading.price.amount == Decimal(str(most))
    assert reading.auto is not None
    assert reading.auto.because == "asks to read; 120x90 px"


def test_what_is_left_of_a_budget_takes_the_cheapest() -> None:
    deployment = changed({})
    models = Models(deployment, settings_of(deployment), lambda tenant, vector: False)
    reading = planned(models, "auto", part(picture_of(120, 90)), text("Read it."))
    assert reading.auto is not None
    assert reading.auto.because == "asks to read; 120x90 px; the first was more than is left of the budget"


def test_auto_is_told_by_the_gateway_what_is_left_of_a_budget() -> None:
    poor = Tenant(name="poor", cache_scope="poor", in_flight={"visual_tokens": 1})
    gateway = Gateway(in_front_of("127.0.0.1:1"))
    reading = planned(gateway.models, "auto", part(picture_of(120, 90)), text("Read it."), tenant=poor)
    assert reading.auto is not None
    assert reading.auto.because.endswith("the first was more than is left of the budget")


def test_a_text_over_the_light_models_own_limit_goes_to_the_full_one(tmp_path: Path) -> None:
    light_file(tmp_path, **{"max_text_bytes = 65_536": "max_text_bytes = 100"})
    models = models_of(with_light(tmp_path))
    assert [planned(models, "auto", text("Hello " * number)).model for number in (1, 30)] == ["tiny", "demo"]


def test_what_the_light_model_does_not_take_goes_to_the_full_one(tmp_path: Path) -> None:
    light_file(tmp_path, **{"context_tokens = 1024": "context_tokens = 64"})
    models = models_of(with_light(tmp_path))
    assert planned(models, "auto", text("Hello")).model == "tiny"
    assert planned(models, "auto", text("Hello " * 60)).model == "demo"
    with pytest.raises(ProteusError, match="prompt_too_long"):
        planned(models, "auto", text("Hello " * 3_000))


def test_a_picture_over_the_light_models_own_limit_goes_to_the_full_one(tmp_path: Path) -> None:
    light_file(tmp_path, **{"max_side_px = 10_000": "max_side_px = 100"})
    models = models_of(with_light(tmp_path))
    sizes_px = ((90, 90), (120, 90))
    asked = [planned(models, "auto", part(picture_of(*size_px)), text("What colour is it?")) for size_px in sizes_px]
    assert [reading.model for reading in asked] == ["tiny", "demo"]


def test_other_bytes_for_a_picture_are_planned_anew(lit: Models) -> None:
    first, other, blurred = picture_of(60, 40), picture_of(80, 40), picture_of(30, 30, "JPEG")

    async def again() -> tuple[Reading, Reading]:
        reader = lit.reader("auto", EVERYBODY)
        visit = Visit(path="", address="", tenant=EVERYBODY)
        content = [part(first), part(other, detail="high"), text("Which is red?")]
        request = ChatRequest.parse(
            json.dumps({"messages": [{"role": "user", "content": content}]}).encode(), reader.limits.text
        )
        with Seats(max_requests=1, max_bytes=1 << 30).take(0) as seat:
            reading = await reader.plan(visit, request, seat)
            return reading, await lit.again(reading, {1: blurred}, seat)

    before, after = asyncio.run(again())
    assert [picture.data for picture in after.prepared.pictures] == [first, blurred]
    assert [picture.tier for picture in after.prepared.pictures] == [p.tier for p in before.prepared.pictures]
    assert after.prepared.resources.media_bytes == len(first) + len(blurred)
    assert (after.model, after.auto) == (before.model, before.auto)


def test_cached_tokens_are_split_by_the_order_of_the_prompt() -> None:
    prompt = Prompt(input_ids=np.zeros(30, np.int32), visual_spans=((4, 6), (14, 10)), text_tokens=14, visual_tokens=16)
    counted = [visual_tokens_of_first(prompt, first) for first in (0, 4, 5, 10, 14, 16, 24, 30)]
    assert counted == [0, 0, 1, 6, 6, 8, 16, 16]


def test_cached_tokens_of_a_picture_cost_what_those_of_a_text_do(lit: Models) -> None:
    reading = planned(lit, "demo", part(picture_of(60, 40)), text("Which is red?"))
    prompt = reading.prepared.prompt
    ((start, length),) = prompt.visual_spans
    usage = {"text_tokens": prompt.text_tokens, "visual_tokens": length, "cached_tokens": start + length}
    told = reading.price_of({"usage": usage | {"output_tokens": 0}, "media": [{}]})
    texts = prompt.text_tokens - start
    assert told.amount == (texts * Decimal("0.0002") + (start + length) * Decimal("0.00005")) / 1000 + Decimal("0.0001")
    assert told.per_picture == length * Decimal("0.00005") / 1000 + Decimal("0.0001")


def test_the_list_is_openais_with_what_a_client_wants_to_know(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [(model["id"], model["kind"]) for model in listed["data"]] == [
        ("demo", "chat"),
        ("auto", "chat"),
        ("demo-draw", "draw"),
    ]
    for model in listed["data"]:
        assert (model["object"], model["owned_by"]) == ("model", "proteus")
        assert http.get(f"/v1/models/{model['id']}").json() == model
    demo = listed["data"][0]
    assert (demo["context_tokens"], demo["max_pictures"], demo["tiers"]) == (1024, 4, ["low", "auto", "high"])


@pytest.mark.parametrize("name", ["other", "Demo", "demo.", "%C3%A9", "%ff"])
def test_a_model_that_is_not_there_is_not_found(http: httpx.Client, name: str) -> None:
    answer = http.get(f"/v1/models/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_the_contract_is_what_is_enforced_and_what_it_costs(http: httpx.Client) -> None:
    contract, demo = http.get("/v1/contract").json(), changed({})
    assert contract["models"] == ["demo", "auto", "demo-draw"]
    assert contract["gateway"] == {"max_body_bytes": settings_of(demo).http.max_body_bytes}
    assert contract["prices"] == settings_of(demo).prices.model_dump()
    assert contract["image"] == demo.image.model_dump()
    assert contract["llm"] == {"context_tokens": 1024}
    assert demo.draw is not None
    assert contract["draw"]["max_steps"] == demo.draw.max_steps
    assert "threads" not in json.dumps(contract)
    assert "hosts" not in contract["gateway"]
