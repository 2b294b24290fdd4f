"""The text of docs/contract.md: `python -m proteus.contract_page` prints it."""

from __future__ import annotations

from collections.abc import Mapping

from proteus.contract import CHAT, MODELS, REQUEST_DOCUMENT, ModelSpec, TensorSpec
from proteus.contract_draw import DRAW, DRAW_MODELS, DRAW_REQUEST_DOCUMENT

DOCUMENTS: Mapping[ModelSpec, str] = {CHAT: REQUEST_DOCUMENT, DRAW: DRAW_REQUEST_DOCUMENT}


def markdown() -> str:
    """The text of docs/contract.md."""
    parts = [
        "# Contract of each Triton model",
        "Generated from `src/proteus/contract.py` and `contract_draw.py` (`python -m proteus.contract_page > "
        "docs/contract.md`); a test compares.",
        "S side of the encoder's picture in px · N visual tokens of a picture · C width of the encoder's features · "
        "D width of the language model · L, L2, L3 ids of each tokenizer · T text tokens · E width of a text state · "
        "P width of the pooled text · Z latent channels · -1 free. Batched models have one more dim in front. "
        "Every error reads `code: what; limit: …; fix: …`.",
    ]
    for model in (*MODELS, *DRAW_MODELS):
        parts += [f"## `{model.name}`", model.job, _table("input", model.inputs), _table("output", model.outputs)]
        parts.append("Errors:\n\n" + "\n".join(f"- {error}" for error in model.errors))
        if model in DOCUMENTS:
            parts += [f"### The request document of `{model.name}`", DOCUMENTS[model].rstrip()]
    return "\n\n".join(parts) + "\n"


def _table(title: str, tensors: tuple[TensorSpec, ...]) -> str:
    rows = [f"| {title} | type | dims | meaning |", "|---|---|---|---|"]
    for tensor in tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        name = f"`{tensor.name}`" + (" (optional)" if tensor.optional else "")
        rows.append(f"| {name} | {tensor.dtype} | [{dims}] | {tensor.meaning} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201
