"""The tables of a deployment file for GPU hosts and for fleets of several servers. All of them may be left out.

`configs/gpu.pbtxt` and the engines of `make export … TARGET=tensorrt` are made from [gpu]; batch sizes, queues and
buckets are those of the stages themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from proteus.limits import Count, NotNegative, Section

StageRuntime = Literal["tensorrt", "onnxruntime", "torch"]
LlmRuntime = Literal["tensorrt_llm", "onnxruntime"]
Precision = Literal["fp32", "fp16", "bf16", "fp8"]
Hardware = Literal["cpu", "gpu"]  # which configuration of each model a server reads
Device = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
LOOPBACK = "127.0.0.1"  # where a server listens unless told otherwise
TRITONSERVER_VARIABLE = "TRITONSERVER_FOLDER"  # of the environment: an installed tritonserver
MAX_PORT = 65_535
ENCODE_RESOURCE = "encode"  # of Triton's rate limiter; an execution of a media stage holds one of its device's


# ONNX Runtime runs the exported file as it is; torch has no products in 8 bits.
PRECISIONS: Mapping[StageRuntime, tuple[Precision, ...]] = {
    "tensorrt": get_args(Precision),
    "onnxruntime": ("fp32",),
    "torch": ("fp32", "fp16", "bf16"),
}


class GpuGraph(Section):
    """A graph on a GPU host."""

    runtime: StageRuntime = Field(description="what runs its graph")
    precision: Precision = Field("fp32", description="of its matrix products, where they stay finite in it")

    @model_validator(mode="after")
    def runtime_has_the_precision(self) -> GpuGraph:
        offered = PRECISIONS[self.runtime]
        if self.precision not in offered:
            raise ValueError(
                f"precision = {self.precision} is none that runtime = {self.runtime} runs: {', '.join(offered)}"
            )
        return self


class GpuStage(GpuGraph):
    """One media stage on a GPU host."""

    instances: Count = Field(1, description="on each device")


class GpuDenoiser(GpuGraph):
    """The denoiser's loop on a GPU host: one process, on one device."""

    device: Device = Field(0, description="that it runs on")


class GpuLlm(Section):
    """The language model on a GPU host: one process; slots, context and queue are those of `[llm]`."""

    runtime: LlmRuntime = Field(description="the engine")
    dtype: Literal["auto", "bfloat16", "float16"] = Field("auto", description="of weights; auto: the checkpoint's own")
    kv_dtype: Literal["auto", "fp8", "int8"] = Field("auto", description="of keys and values; auto: that of weights")
    kv_memory_fraction: Fraction = Field(0.8, description="of the memory that weights leave free, for keys and values")
    tensor_parallel: Count = Field(1, description="devices that share the model, from `device` on")
    device: Device = Field(0, description="that it runs on, or the first of them")


class Gpu(Section):
    """A GPU host. Without this table there are no `configs/gpu.pbtxt`."""

    devices: list[Device] = Field(min_length=1, description="of the media stages; each has all their instances")
    pinned_memory_bytes: NotNegative = Field(description="of host memory, for copies to the devices")
    encodes_at_once: Count = Field(description="executions of media stages on one device, beside the language model")
    optimization_level: Annotated[int, Field(ge=0, le=5)] = Field(3, description="of TensorRT's builder")
    workspace_bytes: Count = Field(description="that TensorRT may use for one layer")
    sizes: list[Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$")]] = Field(
        default=[], description="of drawn pictures, with a profile of their own; none named: all that may be asked for"
    )
    vision_encoder: GpuStage = Field(description="Its features feed the connector.")
    connector: GpuStage = Field(description="Features to visual tokens.")
    text_encoder: GpuStage | None = Field(None, description="Where something is drawn.")
    denoiser: GpuDenoiser | None = Field(None, description="Where something is drawn: one process, on one device.")
    vae_decoder: GpuStage | None = Field(None, description="Where something is drawn.")
    llm: GpuLlm = Field(description="The language model: one process; slots, context and queue are those of `[llm]`.")

    @model_validator(mode="after")
    def devices_are_named_once(self) -> Gpu:
        if len(set(self.devices)) < len(self.devices):
            raise ValueError(f"devices = {self.devices} names one twice")
        return self

    def stages(self) -> dict[str, GpuStage]:
        """The media stages that the file names, by the name of their model."""
        named = {
            "vision_encoder": self.vision_encoder,
            "connector": self.connector,
            "text_encoder": self.text_encoder,
            "vae_decoder": self.vae_decoder,
        }
        return {name: stage for name, stage in named.items() if stage is not None}

    def resources(self) -> dict[str, int]:
        """Of Triton's rate limiter: so many on each of `devices`."""
        return {ENCODE_RESOURCE: self.encodes_at_once}


class EncoderPool(Section):
    """Pictures are encoded by other servers, `proteus serve --pool encoder`; without it, by this one."""

    url: str = Field(pattern=r"^[A-Za-z0-9._-]+:[0-9]{1,5}$", description="`host:port`, gRPC")
    timeout_ms: Count = Field(description="of one picture, where the request leaves more")
    max_at_once: Count = Field(description="pictures under way to them")

    @field_validator("url")
    @classmethod
    def port_is_one(cls, url: str) -> str:
        if not 1 <= int(url.rpartition(":")[2]) <= MAX_PORT:
            raise ValueError(f"{url} has no port from 1 to {MAX_PORT:,}")
        return url


class HostTables(Section):
    """The tables of a deployment file for hosts with GPUs and for fleets of several servers."""

    gpu: Gpu | None = Field(None, description="A GPU host: `configs/gpu.pbtxt`, and the engines of TensorRT.")
    encoder_pool: EncoderPool | None = Field(None, description="Pictures are encoded by other servers.")
