"""The file of tenants: who they are, the digests of their keys, and what each may use. Knows no request."""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from proteus.cost.vector import NAMES
from proteus.deployment import DeploymentError
from proteus.gateway.order import Tenant
from proteus.limits import Count, Positive, Section

KEY = re.compile(rb"pk-[A-Za-z0-9_-]{43}")
KEY_BYTES = 32
MAX_FILE_BYTES = 16 << 20
MAX_WEIGHT = 1000
SHORT_DIGEST_CHARS = 8  # of a key that has no name
NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"
Name = Annotated[str, Field(pattern=NAME)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


def _is_resource(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"{name} is no resource; known are {', '.join(NAMES)}")
    return name


Resource = Annotated[str, AfterValidator(_is_resource)]


class KeyTable(Section):
    """One key of a tenant."""

    hash: Digest
    name: Name | None = None  # in logs; none: what its digest begins with
    expires: date | datetime | None = None  # no longer valid from then on, UTC where it says nothing else

    @property
    def until(self) -> datetime | None:
        match self.expires:
            case datetime() as moment:
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
            case date() as day:
                return datetime(day.year, day.month, day.day, tzinfo=UTC)
        return None

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.hash.removeprefix("sha256:"))

    @property
    def label(self) -> str:
        return self.name or self.hash.removeprefix("sha256:")[:SHORT_DIGEST_CHARS]


class TenantTable(Section):
    """One tenant."""

    keys: list[KeyTable] = Field(default_factory=list)
    models: list[str] | None = None
    cache_scope: Name | None = None
    shared_scope: Name | None = None
    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    in_flight: dict[Resource, Count] = Field(default_factory=dict)
    per_second: dict[Resource, Positive] = Field(default_factory=dict)
    burst_s: Positive = 10.0

    @field_validator("keys", mode="before")
    @classmethod
    def a_digest_alone_is_a_key(cls, keys: Any) -> Any:
        return [{"hash": key} if isinstance(key, str) else key for key in keys] if isinstance(keys, list) else keys

    @model_validator(mode="after")
    def one_scope(self) -> TenantTable:
        if self.cache_scope is not None and self.shared_scope is not None:
            raise ValueError("cache_scope and shared_scope are both given")
        return self


class TenantsTable(Section):
    """The whole file."""

    tenants: dict[Name, TenantTable] = Field(min_length=1)

    @model_validator(mode="after")
    def keys_are_of_one_tenant(self) -> TenantsTable:
        seen: dict[str, str] = {}
        for name, tenant in self.tenants.items():
            for key in tenant.keys:
                if key.hash in seen:
                    raise ValueError(f"key {key.label} is listed twice: of {seen[key.hash]} and of {name}")
                seen[key.hash] = name
        return self

    @model_validator(mode="after")
    def scopes_are_apart(self) -> TenantsTable:
        owners: dict[str, tuple[str, bool]] = {}
        for name, tenant in self.tenants.items():
            shared = tenant.shared_scope is not None
            scope = tenant.shared_scope or tenant.cache_scope or name
            other, other_shares = owners.setdefault(scope, (name, shared))
            if other != name and not (shared and other_shares):
                raise ValueError(
                    f"{other} and {name} have one cache scope, {scope}: each could tell what the other has shown; "
                    "tenants that trust each other both name it as shared_scope"
                )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    tenant: Tenant  # with this key's name
    until: datetime | None  # not valid from then on


Keys = Mapping[bytes, Key]  # by SHA-256


def read_tenants(path: Path) -> TenantsTable:
    """Raises DeploymentError naming file, key and fix."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DeploymentError(
            f"{path} cannot be read ({error.strerror})", fix="give the file of [gateway] tenants"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise DeploymentError(f"{path} has more than {MAX_FILE_BYTES:,} bytes", fix="give a file of tenants")
    try:
        return parse_tenants(content.decode(), path)
    except UnicodeDecodeError as error:
        raise DeploymentError(f"{path} is not UTF-8 (byte {error.start})", fix="correct the file") from error


def parse_tenants(content: str, path: Path) -> TenantsTable:
    """Raises DeploymentError naming `path`, key and fix."""
    try:
        tables = tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # numbers or brackets without end are no TOMLDecodeError
        raise DeploymentError(f"{path} is not TOML ({error})", fix="correct the file") from error
    try:
        return TenantsTable.model_validate(tables)
    except ValidationError as error:
        raise DeploymentError(
            f"{path}: {_explain(error)}", fix="correct it; deployments/tenants.example.toml shows every key"
        ) from error


def keys_of(table: TenantsTable) -> dict[bytes, Key]:
    return {
        key.digest: Key(tenant=_tenant(name, tenant, key.label), until=key.until)
        for name, tenant in table.tenants.items()
        for key in tenant.keys
    }


def new_key() -> str:
    """256 random bits."""
    return f"pk-{secrets.token_urlsafe(KEY_BYTES)}"


def digest_of(key: bytes) -> bytes:
    """Of a whole random key: there is nothing to guess, so a slow hash would protect nothing."""
    return hashlib.sha256(key).digest()


def _tenant(name: str, table: TenantTable, key: str) -> Tenant:
    return Tenant(
        name=name,
        key=key,
        cache_scope=table.shared_scope or table.cache_scope or name,
        models=None if table.models is None else frozenset(table.models),
        weight=table.weight,
        in_flight=table.in_flight,
        per_second=table.per_second,
        burst_s=table.burst_s,
    )


def _explain(error: ValidationError) -> str:
    """Every mistake by its key. What stands there is not repeated: it could be a key."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(part) for part in problem["loc"] if part != "[key]")
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown key {key!r}")
        else:
            lines.append(f"{key + ': ' if key else ''}{problem['msg'].removeprefix('Value error, ')}")
    return ", ".join(lines)
