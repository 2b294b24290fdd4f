"""NVIDIA's security bulletins on what a server may run, as far as they were read: up to bulletin 5903, of October 2026.

Every row is of github.com/NVIDIA/product-security. docs/advisories.md tells how far to
trust it; `python -m proteus.cli.advisories_page` writes the page's tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

Component = Literal["triton", "tensorrt", "tensorrt-llm", "container-toolkit", "dali"]
Way = Literal[
    "port",
    "http",
    "stub",
    "memory",
    "load",
    "key",
    "dali",
    "unused",
    "engine",
    "weights",
    "workers",
    "doors",
    "host",
    "untold",
]
COMPONENTS: tuple[Component, ...] = get_args(Component)
READ_UNTIL, READ_IN = 5903, "October 2026"
SOURCE = "https://github.com/NVIDIA/product-security/blob/main/{year}/{bulletin}/{bulletin}.md"

INDEX_OF_2024 = "https://github.com/NVIDIA/product-security/blob/main/2024/CVE_index.csv"


class Advisory(NamedTuple):
    """One vulnerability. `fixed_in`: of Triton the container's release, of all others their own version."""

    cve: str
    bulletin: int
    score: float  # CVSS 3.1, as NVIDIA gives it
    component: Component
    fixed_in: str
    way: Way  # how an attacker comes to it, as far as the bulletin says
    what: str

    @property
    def source(self) -> str:
        """The bulletin's address; of 2024 there is an index alone."""
        if self.bulletin <= LAST_OF_2024:
            return INDEX_OF_2024
        return SOURCE.format(year=2026 if self.bulletin > LAST_OF_2025 else 2025, bulletin=self.bulletin)


LAST_OF_2024, LAST_OF_2025 = 5590, 5749  # of the bulletins below

# What of our design stands in the way. It buys time; the fixed version is the fix.
WAYS: Mapping[Way, str] = {
    "port": "ports on loopback, in containers in a private network: who reaches one can do it",
    "http": "as any port; nothing of ours needs the HTTP port but probes",
    "stub": "who reaches a port can do it; chat and draw limit a document only once it has come",
    "memory": "shared memory cannot be registered by clients; its files belong to the server's user, with random names",
    "load": "only the models that the launcher names are loaded; the API to load others takes a key that nobody has",
    "key": "who reaches a port can do it, and the key of the API that loads models may be what is passed by",
    "dali": "no model uses DALI, and nobody can load one that does",
    "unused": "not started, not installed",
    "engine": "graphs and engines are the operator's own, in a folder that is mounted read-only",
    "weights": "checkpoints are the operator's own, and of safetensors",
    "workers": "the server's user alone reaches its worker processes; pods have one user",
    "doors": "that server is not started: the engine runs in the process of llm, behind our own door",
    "untold": "the bulletin does not say how; who reaches a port may be able to",
    "host": "run our image and no stranger's; update the host",
}

# Release of the container by version of Triton, where a source tells both. In between, the older one is taken.
RELEASES: Mapping[str, str] = {
    "2.51": "24.10",  # docs.nvidia.com/deeplearning/triton-inference-server/release-notes/rel-24-10.html, and the wheel
    "2.53": "24.12",  # docs.twcloud.ai/en/docs/concepts-tutorials/twcc/ccs/concepts/images/triton-inference-server/
    "2.59": "25.06",  # sourceforge.net/projects/triton-inference-server.mirror/files/v2.59.0
    "2.68": "26.04",  # docs.nvidia.com/deeplearning/triton-inference-server/release-notes/index.html, in May 2026
    "2.69": "26.05",  # aiwiki.ai/wiki/nvidia_triton
    "2.71": "26.07",  # github.com/triton-inference-server/server/releases/tag/v2.71.0
}

TRITON = (
    Advisory("CVE-2024-53880", 5612, 4.9, "triton", "24.12", "load", "integer overflow: loading a very large model"),
    Advisory("CVE-2025-23310", 5687, 9.8, "triton", "25.07", "port", "stack overflow by crafted inputs"),
    Advisory("CVE-2025-23311", 5687, 9.8, "triton", "25.07", "http", "stack overflow by crafted HTTP requests"),
    Advisory("CVE-2025-23317", 5687, 9.1, "triton", "25.07", "http", "a reverse shell by a crafted HTTP request"),
    Advisory("CVE-2025-23318", 5687, 8.1, "triton", "25.07", "stub", "Python backend: write out of bounds"),
    Advisory(
        "CVE-2025-23319", 5687, 8.1, "triton", "25.07", "stub", "Python backend: write out of bounds by a request"
    ),
    Advisory("CVE-2025-23268", 5687, 8.0, "triton", "25.07", "dali", "DALI backend: code execution by loading a model"),
    Advisory(
        "CVE-2025-23320", 5687, 7.5, "triton", "25.07", "stub", "Python backend: disclosure by very large requests"
    ),
    Advisory("CVE-2025-23321", 5687, 7.5, "triton", "25.07", "port", "division by zero"),
    Advisory("CVE-2025-23322", 5687, 7.5, "triton", "25.06", "port", "double free: a stream cancelled before its turn"),
    Advisory("CVE-2025-23323", 5687, 7.5, "triton", "25.05", "port", "integer overflow by an invalid request"),
    Advisory("CVE-2025-23324", 5687, 7.5, "triton", "25.05", "port", "integer overflow by an invalid request"),
    Advisory("CVE-2025-23325", 5687, 7.5, "triton", "25.05", "port", "recursion without end"),
    Advisory("CVE-2025-23326", 5687, 7.5, "triton", "25.05", "port", "integer overflow by crafted input"),
    Advisory("CVE-2025-23327", 5687, 7.5, "triton", "25.05", "port", "integer overflow: data tampering"),
    Advisory("CVE-2025-23331", 5687, 7.5, "triton", "25.06", "port", "allocation of any size"),
    Advisory("CVE-2025-23333", 5687, 5.9, "triton", "25.07", "memory", "Python backend: read out of bounds"),
    Advisory("CVE-2025-23334", 5687, 5.9, "triton", "25.07", "stub", "Python backend: read out of bounds by a request"),
    Advisory("CVE-2025-23335", 5687, 4.4, "triton", "25.05", "load", "TensorRT backend: underflow by a model's config"),
    Advisory(
        "CVE-2025-23316", 5691, 9.8, "triton", "25.08", "load", "Python backend: code execution by a model's name"
    ),
    Advisory("CVE-2025-23328", 5691, 7.5, "triton", "25.08", "port", "write out of bounds by crafted input"),
    Advisory("CVE-2025-23329", 5691, 7.5, "triton", "25.08", "memory", "Python backend: its shared memory is reached"),
    Advisory("CVE-2025-23336", 5691, 4.4, "triton", "25.08", "load", "denial of service by a misconfigured model"),
    Advisory("CVE-2025-33202", 5723, 6.5, "triton", "25.09", "port", "stack overflow by very large payloads"),
    Advisory("CVE-2025-33211", 5734, 7.5, "triton", "25.10", "port", "a quantity that is not validated"),
    Advisory("CVE-2025-33201", 5734, 7.5, "triton", "25.10", "port", "very large payloads"),
    Advisory("CVE-2025-33238", 5790, 7.5, "triton", "26.01", "unused", "SageMaker's HTTP server: an exception"),
    Advisory("CVE-2025-33254", 5790, 7.5, "triton", "26.01", "port", "corruption of internal state"),
    Advisory("CVE-2026-24158", 5790, 7.5, "triton", "26.01", "http", "a large compressed payload"),
    Advisory("CVE-2026-24146", 5816, 7.5, "triton", "26.02", "port", "a crash by a large number of outputs"),
    Advisory("CVE-2026-24173", 5816, 7.5, "triton", "26.02", "port", "a crash by a malformed request"),
    Advisory("CVE-2026-24174", 5816, 7.5, "triton", "26.02", "port", "a crash by a malformed request"),
    Advisory("CVE-2026-24175", 5816, 7.5, "triton", "26.02", "port", "a crash by a malformed request header"),
    Advisory("CVE-2026-24147", 5816, 4.8, "triton", "26.02", "load", "disclosure by uploading a model configuration"),
    Advisory("CVE-2026-24207", 5828, 9.8, "triton", "26.03", "key", "authentication bypass, to code execution"),
    Advisory("CVE-2026-24213", 5828, 8.0, "triton", "26.03", "dali", "DALI backend: read out of bounds"),
    Advisory("CVE-2026-24214", 5828, 8.0, "triton", "26.03", "dali", "DALI backend: integer overflow"),
    Advisory("CVE-2026-24209", 5828, 7.5, "triton", "26.03", "port", "path traversal"),
    Advisory("CVE-2026-24210", 5828, 7.5, "triton", "26.03", "port", "integer overflow"),
    Advisory("CVE-2026-24206", 5828, 7.3, "triton", "26.03", "key", "authentication bypass"),
    Advisory("CVE-2026-24215", 5828, 5.7, "triton", "26.03", "dali", "DALI backend: resources without limit"),
    Advisory("CVE-2026-24208", 5828, 5.3, "triton", "26.03", "port", "path traversal"),
    Advisory("CVE-2026-24264", 5848, 7.5, "triton", "26.04", "port", "highly compressed data"),
    Advisory("CVE-2026-24266", 5848, 5.9, "triton", "26.04", "port", "use after free"),
    Advisory("CVE-2026-47476", 5853, 7.5, "triton", "26.05", "port", "resources without limit"),
    Advisory("CVE-2026-47477", 5853, 7.5, "triton", "26.05", "port", "stack overflow"),
    Advisory("CVE-2026-47478", 5853, 7.5, "triton", "26.05", "port", "use of an expired file descriptor"),
    Advisory("CVE-2026-47479", 5853, 7.5, "triton", "26.05", "port", "resources without limit"),
    Advisory("CVE-2026-47480", 5853, 7.5, "triton", "26.05", "port", "an exception that nobody catches"),
    Advisory("CVE-2026-47482", 5853, 7.5, "triton", "26.05", "port", "memory that is never freed"),
    Advisory("CVE-2026-47481", 5853, 6.5, "triton", "26.05", "key", "authentication bypass by another path"),
    Advisory("CVE-2026-47487", 5860, 4.4, "triton", "26.03", "unused", "MLflow plugin: files outside the repository"),
    Advisory("CVE-2026-47627", 5865, 9.8, "triton", "26.06", "port", "path traversal"),
    Advisory("CVE-2026-47629", 5865, 7.5, "triton", "26.06", "port", "input that is not validated"),
    Advisory("CVE-2026-47628", 5865, 7.5, "triton", "26.06", "port", "allocation without limit"),
    Advisory("CVE-2026-47606", 5865, 6.5, "triton", "26.06", "port", "absolute path traversal, to code execution"),
    Advisory("CVE-2026-47630", 5865, 5.5, "triton", "26.06", "untold", "absolute path traversal by a local user"),
    Advisory("CVE-2026-47625", 5875, 7.5, "triton", "26.04", "key", "missing authorisation"),
    Advisory("CVE-2026-16497", 5875, 7.5, "triton", "26.07", "port", "iteration without end"),
)

TENSORRT = (
    Advisory("CVE-2026-24188", 5836, 8.2, "tensorrt", "10.16.1", "engine", "write out of bounds"),
    Advisory("CVE-2026-24268", 5855, 7.8, "tensorrt", "11.0", "engine", "heap overflow, to code execution"),
    Advisory("CVE-2026-24238", 5855, 7.8, "tensorrt", "11.0", "engine", "an array index that is not validated"),
    Advisory("CVE-2026-24272", 5855, 7.8, "tensorrt", "11.0", "engine", "heap overflow, to code execution"),
    Advisory("CVE-2026-24227", 5855, 5.3, "tensorrt", "11.0", "engine", "untrusted data deserialised"),
    Advisory("CVE-2026-65122", 5891, 5.5, "tensorrt", "11.2", "engine", "read out of bounds"),
)

TENSORRT_LLM = (
    Advisory("CVE-2025-23254", 5648, 8.8, "tensorrt-llm", "0.18.2", "workers", "pickle between its processes"),
    Advisory("CVE-2025-33255", 5805, 7.5, "tensorrt-llm", "1.2", "workers", "MPI server: unsafe deserialisation"),
    Advisory("CVE-2026-24163", 5805, 7.5, "tensorrt-llm", "1.2", "workers", "RPC testing: unsafe deserialisation"),
    Advisory("CVE-2026-24205", 5805, 6.4, "tensorrt-llm", "1.2.1", "port", "race between concurrent requests"),
    Advisory("CVE-2026-24142", 5805, 6.3, "tensorrt-llm", "1.2", "workers", "unsafe serialised handle"),
    Advisory("CVE-2026-24160", 5805, 5.5, "tensorrt-llm", "1.2", "untold", "null pointer"),
    Advisory("CVE-2026-24233", 5840, 8.4, "tensorrt-llm", "1.3.0rc15", "weights", "unpickler of model weights"),
    Advisory("CVE-2026-47472", 5840, 7.8, "tensorrt-llm", "1.3.0rc17", "workers", "deserialisation between processes"),
    Advisory("CVE-2026-47471", 5840, 7.5, "tensorrt-llm", "1.3.0rc17", "untold", "heap overflow: tensors deserialised"),
    Advisory("CVE-2026-47473", 5840, 7.4, "tensorrt-llm", "1.3.0rc17", "untold", "write of anything anywhere"),
    Advisory("CVE-2026-24229", 5840, 7.3, "tensorrt-llm", "1.3.0rc17", "doors", "disaggregated orchestrator is open"),
    Advisory("CVE-2026-24234", 5840, 6.8, "tensorrt-llm", "1.3.0rc15", "doors", "its fetching of media: SSRF"),
    Advisory("CVE-2026-24220", 5840, 6.4, "tensorrt-llm", "1.3.0rc12", "doors", "visual generation server: ZeroMQ"),
    Advisory("CVE-2026-24259", 5840, 6.4, "tensorrt-llm", "1.3.0rc13", "untold", "missing authentication"),
    Advisory("CVE-2026-24226", 5840, 6.3, "tensorrt-llm", "1.3.0rc13", "untold", "control of generated code"),
    Advisory("CVE-2026-47470", 5840, 6.2, "tensorrt-llm", "1.3.0rc15", "doors", "its gRPC server: input validation"),
    Advisory(
        "CVE-2026-47475",
        5840,
        6.2,
        "tensorrt-llm",
        "1.3.0rc16",
        "port",
        "an assertion in the sampler, by a request to its OpenAI server",
    ),
    Advisory("CVE-2026-24271", 5840, 6.2, "tensorrt-llm", "1.3.0rc15", "doors", "its OpenAI server: GPU without limit"),
)

HOST = (
    Advisory("CVE-2024-0132", 5582, 9.0, "container-toolkit", "1.16.2", "host", "a race (CWE-367)"),
    Advisory("CVE-2024-0133", 5582, 4.1, "container-toolkit", "1.16.2", "host", "a race (CWE-367)"),
    Advisory("CVE-2024-0134", 5585, 4.1, "container-toolkit", "1.17", "host", "link following (CWE-61)"),
    Advisory(
        "CVE-2024-0135", 5599, 7.6, "container-toolkit", "1.17.1", "host", "a crafted image changes host binaries"
    ),
    Advisory("CVE-2024-0136", 5599, 7.6, "container-toolkit", "1.17.1", "host", "a crafted image reaches host devices"),
    Advisory(
        "CVE-2024-0137", 5599, 5.5, "container-toolkit", "1.17.1", "host", "a crafted image in the host's network"
    ),
    Advisory("CVE-2025-23359", 5616, 8.3, "container-toolkit", "1.17.4", "host", "a crafted image reads the host"),
    Advisory("CVE-2025-23266", 5659, 9.0, "container-toolkit", "1.17.8", "host", "code execution by a start hook"),
    Advisory("CVE-2025-23267", 5659, 8.5, "container-toolkit", "1.17.8", "host", "link following by a crafted image"),
    Advisory("CVE-2026-24260", 5850, 8.5, "container-toolkit", "1.19.1", "host", "a race, to code execution"),
    Advisory("CVE-2026-24156", 5811, 7.3, "dali", "2.0", "dali", "untrusted data deserialised"),
    Advisory("CVE-2026-24180", 5814, 7.3, "dali", "2.1", "dali", "heap overflow"),
    Advisory("CVE-2026-24181", 5814, 7.3, "dali", "2.1", "dali", "an index that is not validated"),
)

KNOWN: tuple[Advisory, ...] = (*TRITON, *TENSORRT, *TENSORRT_LLM, *HOST)
