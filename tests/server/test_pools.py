"""Servers of one pool of a fleet: each has its own models and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from proteus.client import Client, ServerError
from proteus.contract import IMAGE_TOKENS, VISUAL_TOKENS
from proteus.deployment import Deployment, Pool
from proteus.launcher import Server
from tests.changed_deployment import changed
from tests.preprocess.pictures import encode, noise
from tests.server.test_stages import image_tokens

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
POOL = {"url": "127.0.0.1:1", "timeout_ms": 1000, "max_at_once": 1}
LISTENING_EVERYWHERE = "0.0.0.0"


def test_the_encoder_pool_answers_with_visual_tokens_and_has_no_doors() -> None:
    with (
        Server(DEMO, pool="encoder", host=LISTENING_EVERYWHERE) as server,
        tritonclient.grpc.InferenceServerClient(server.ports.grpc_url) as client,
    ):
        answer = image_tokens(client, encode(noise(40, 30), "PNG"), bytes(32))
        assert set(answer) == {output.name for output in IMAGE_TOKENS.outputs}
        assert answer[VISUAL_TOKENS.name].std() > 0
        for model in ("chat", "llm", "draw"):
            with pytest.raises(InferenceServerException, match="unknown model"):
                client.get_model_config(model)
        assert "listening on 0.0.0.0: only for a private network" in server.log.read_text()


def test_the_draw_pool_draws_and_answers_no_questions() -> None:
    with Server(DEMO, pool="draw") as server, Client(server.ports.grpc_url) as client:
        (picture,) = client.draw("a red circle", steps=2, seed=1).pictures
        assert picture.image.format == "PNG"
        with pytest.raises(ServerError) as caught:
            client.ask("Which shapes?")
        assert caught.value.is_unknown_model


@pytest.mark.parametrize(
    ("pool", "deployment"), [("language", changed({"encoder_pool": POOL})), ("language", Deployment.load(DEMO))]
)
def test_the_language_pool_has_encoders_only_where_no_other_pool_has_them(pool: Pool, deployment: Deployment) -> None:
    assert set(deployment.models_of(pool)) >= {"chat", "llm"}
    assert ("vision_encoder" in deployment.models_of(pool)) == (deployment.encoder_pool is None)
