"""The gateway's tables of the deployment file: clients, pools of servers, prices, what is checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from proteus.limits import Count, NotNegative, Section
from proteus.limits_gpu import MAX_PORT

PoolName = Literal["text", "picture", "draw"]
RoutedPool = PoolName | Literal["light"]  # and the servers of the light model
THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
MODERATION_URL = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:]{2,45}\])(:(?P<port>[0-9]{1,5}))?(/[!-~]*)?"
)
ADDRESS = r"^[A-Za-z0-9._-]+:[0-9]{1,5}$"
NoLess = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ServerAddress(Section):
    """One server, or a name behind which there are several: every address of the name is a server of its own."""

    grpc: str = Field(pattern=ADDRESS, description="`host:port` of its gRPC port")
    health: str | None = Field(
        None, pattern=ADDRESS, description="`host:port` of `proteus serve --health-port`; none: Triton is asked"
    )

    @field_validator("grpc", "health")
    @classmethod
    def port_is_one(cls, address: str | None) -> str | None:
        if address is not None and not 1 <= int(address.rpartition(":")[2]) <= MAX_PORT:
            raise ValueError(f"{address} has no port from 1 to {MAX_PORT:,}")
        return address


Servers = Annotated[list[ServerAddress], Field(min_length=1)]


class GatewayPools(Section):
    """Which servers answer what; one server may be in all of them."""

    text: Servers = Field(description="requests without pictures")
    picture: Servers = Field(description="requests with pictures")
    draw: Servers = Field(description="requests to draw")

    @model_validator(mode="after")
    def one_server_has_one_health(self) -> GatewayPools:
        health_of: dict[str, str] = {}
        for server in (one for _, servers in self.named() for one in servers if one.health is not None):
            if health_of.setdefault(server.grpc, str(server.health)) != server.health:
                raise ValueError(f"{server.grpc} has two addresses for its health; give one in all pools")
        return self

    def named(self) -> tuple[tuple[PoolName, list[ServerAddress]], ...]:
        return ("text", self.text), ("picture", self.picture), ("draw", self.draw)


class GatewayHttp(Section):
    """What a client may do to a connection. All of it is refused or cut off beyond."""

    hosts: list[str] = Field(description="names in the Host header; `*` is any")
    proxies: list[str] = Field(
        default_factory=list, description="networks of reverse proxies; what their X-Forwarded-For says is believed"
    )
    max_connections: Count = Field(description="open at once; one more is refused")
    max_connections_per_address: Count = Field(description="of one network address that is no proxy's")
    max_header_bytes: Count = Field(description="request line and headers")
    header_timeout_ms: Count = Field(description="until the headers are whole")
    max_body_bytes: Count = Field(description="of one request, counted while it is read")
    body_idle_timeout_ms: Count = Field(description="between two pieces of a body")
    body_timeout_ms: Count = Field(description="for the whole body")
    send_timeout_ms: Count = Field(description="that a client does not read what it is sent")
    keep_alive_ms: Count = Field(description="between two requests of a connection")
    max_json_depth: Count = Field(description="brackets within each other")
    max_bad_keys_per_minute: Count = Field(
        description="of one network address; after that, none of its keys is looked at"
    )

    @field_validator("proxies")
    @classmethod
    def proxies_are_networks(cls, networks: list[str]) -> list[str]:
        for network in networks:
            ip_network(network)
        return networks


class GatewayQueue(Section):
    """Requests that wait at the gateway, where the servers of their pool have no room. docs/tenants.md tells of it."""

    max_open_requests: Count = Field(
        description="read and not yet ended, waiting ones too; a tenant gets as many as it leaves free"
    )
    max_open_bytes: Count = Field(description="of their bodies and pictures, in the same way")
    max_waiting: Count = Field(
        description="of one latency class for the same servers; of the tenant with most of them, the newest is refused"
    )
    max_wait_ms: Count = Field(description="for room; a request's own deadline may be shorter")


class GatewayRouting(Section):
    """How servers are watched and chosen."""

    health_interval_ms: Count = Field(description="between two questions to a server")
    health_timeout_ms: Count = Field(description="of one question")
    suspect_ms: Count = Field(
        description="that a server which broke a connection or answered `unavailable` comes after all others"
    )
    max_retries: NotNegative = Field(
        description="on other servers, of a request of whose answer nothing was sent; one, where servers died with it"
    )
    answer_timeout_ms: Count = Field(description="for a whole answer, waiting included")
    drain_ms: Count = Field(description="for open requests, when the gateway is told to stop")


class Prices(Section):
    """What is charged, in one currency. A request's price is reported and metered, nothing is collected."""

    currency: str = Field(pattern=r"^[A-Z]{3}$", description="ISO 4217")
    per_thousand_text_tokens: NoLess = Field(description="of the prompt, not cached")
    per_thousand_visual_tokens: NoLess = Field(description="of the prompt, not cached")
    per_thousand_cached_tokens: NoLess = Field(description="of the prompt, from the prefix cache")
    per_thousand_output_tokens: NoLess = Field(description="of all answers")
    per_picture: NoLess = Field(description="read, whatever its size")
    per_drawn_picture: NoLess = Field(description="drawn, whatever its size")
    per_million_token_passes: NoLess = Field(description="latent tokens x evaluations of the denoiser")


class LightModel(Section):
    """A smaller model beside this deployment's own, for `model: "auto"`."""

    deployment: str = Field(description="its deployment file; its name is the model's")
    servers: Servers = Field(description="that serve it")
    prices: Prices | None = Field(None, description="of its answers, in the same currency; none: those of this file")


class AutoRule(Section):
    """Which model and tier `model: "auto"` takes. docs/gateway.md states the rule."""

    light_max_pixels: Count = Field(description="of all pictures of a question that the light model may have")
    low_max_pixels: Count = Field(description="of a picture whose kind of question is answered as well in tier `low`")
    max_price: NoLess = Field(description="of a question: above it, tier and model go down; 0 is no limit")


class Metering(Section):
    """One line of JSON for each request: its resource vector and stage times, never its content."""

    path: str = Field(description="of the file, relative to the deployment file")
    max_bytes: Count = Field(description="of one file, then it gets its time as name and a new one is begun")
    max_files: Count = Field(description="with the one that is being written; the oldest is removed")


class Moderation(Section):
    """A check before encoding and after generation. docs/moderation.md is its contract."""

    entry_point: str = Field("", description="name in the group `proteus.moderation`; none: `url`")
    url: str = Field("", description="an HTTP endpoint, on this machine or one of `hosts`; none: `entry_point`")
    hosts: list[str] = Field([], description="other machines that `url` may name: they see prompts and pictures")
    before: bool = Field(description="prompts and pictures, before anything is encoded")
    after: bool = Field(description="answers and drawn pictures, before they are sent")
    timeout_ms: Count = Field(description="of one check")
    on_failure: Literal["refuse", "allow"] = Field(description="of the check itself: fail-closed or fail-open")
    max_at_once: Count = Field(description="checks under way")

    @model_validator(mode="after")
    def one_of_both(self) -> Moderation:
        if bool(self.entry_point) == bool(self.url):
            raise ValueError("give entry_point or url, one of both")
        return self

    @field_validator("url")
    @classmethod
    def url_is_one(cls, url: str) -> str:
        match = MODERATION_URL.fullmatch(url)
        if url and match is None:
            raise ValueError("it is no http or https URL of host, port and path")
        if match is not None and match["port"] and not 1 <= int(match["port"]) <= MAX_PORT:
            raise ValueError(f"it has no port from 1 to {MAX_PORT:,}")
        return url

    @model_validator(mode="after")
    def host_is_allowed(self) -> Moderation:
        match = MODERATION_URL.fullmatch(self.url)
        if match and match["host"] not in (*THIS_MACHINE, *self.hosts):
            raise ValueError(f"url names {match['host']}: add it to hosts = {self.hosts}, or run the check here")
        return self


class Gateway(Section):
    """The OpenAI-compatible door for everyone, `proteus gateway`."""

    tenants: str | None = Field(
        None, description="file of tenants and their keys, relative to this one; none: no keys, loopback only"
    )
    http: GatewayHttp = Field(description="What a client may do to a connection.")
    queue: GatewayQueue = Field(description="Requests that wait at the gateway.")
    pools: GatewayPools = Field(description="Which servers answer what.")
    routing: GatewayRouting = Field(description="How servers are watched and chosen.")
    auto: AutoRule = Field(description='What `model: "auto"` takes.')
    light: LightModel | None = Field(None, description="A smaller model beside it.")
    prices: Prices = Field(description="What is charged.")
    metering: Metering | None = Field(None, description="A line for each request; none: nothing is written.")
    moderation: Moderation | None = Field(None, description="A check before and after; none: nothing is checked.")

    @model_validator(mode="after")
    def one_currency(self) -> Gateway:
        light = self.light.prices if self.light is not None else None
        if light is not None and light.currency != self.prices.currency:
            raise ValueError(f"light.prices.currency = {light.currency} is not that of prices: {self.prices.currency}")
        return self

    def servers(self) -> Iterator[ServerAddress]:
        """Each once, those of the light model included."""
        seen = set()
        light = [] if self.light is None else self.light.servers
        for server in (*(one for _, servers in self.pools.named() for one in servers), *light):
            if server.grpc not in seen:
                seen.add(server.grpc)
                yield server


class GatewayTables(Section):
    """The tables of a deployment file for the gateway."""

    gateway: Gateway | None = Field(None, description="The OpenAI-compatible door for everyone.")
