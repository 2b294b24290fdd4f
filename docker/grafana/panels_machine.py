"""Panels of caches, pools, Triton's models and the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from series import HERE_ONLY, Panel, hit_rate, now, rate

MEAN_WAIT = f"{rate('nv_inference_queue_duration_us', 'model')} / {rate('nv_inference_request_success', 'model')} / 1e6"
MEAN_RUN = (
    f"{rate('nv_inference_compute_infer_duration_us', 'model')} / {rate('nv_inference_request_success', 'model')} / 1e6"
)

ROWS: Mapping[str, Sequence[Panel]] = {
    "Caches and pictures": (
        Panel(
            "Hit rate",
            "percentunit",
            [
                ("pixels", hit_rate("processor")),
                ("visual tokens", hit_rate("encoder")),
                ("prompts", hit_rate("prefix")),
                (
                    "text states",
                    f"{rate('nv_cache_num_hits_per_model')} / "
                    f"({rate('nv_cache_num_hits_per_model')} + {rate('nv_cache_num_misses_per_model')})",
                ),
            ],
            "Of what was looked for.",
        ),
        Panel(
            "Held",
            "bytes",
            [
                ("pixels, {{state}}", now("proteus_processor_cache_bytes", "state")),
                ("visual tokens, {{state}}", now("proteus_encoder_cache_bytes", "state")),
                ("prompts, {{state}}", now("proteus_prefix_cache_bytes", "state")),
            ],
            "Of what each may hold.",
        ),
        Panel(
            "Seconds saved a second",
            "percentunit",
            [
                ("pixels", rate("proteus_processor_cache_saved_seconds_total")),
                ("visual tokens", rate("proteus_encoder_cache_saved_seconds_total")),
                ("prompts", f"sum(deriv(proteus_prefix_cache_saved_seconds{{{HERE_ONLY}}}[5m]))"),
            ],
            "What computing the hits had taken.",
        ),
        Panel(
            "Given up",
            "cps",
            [
                ("pixels, {{reason}}", rate("proteus_processor_cache_evicted_total", "reason")),
                ("visual tokens, {{reason}}", rate("proteus_encoder_cache_evicted_total", "reason")),
                ("prompts, {{reason}}", rate("proteus_prefix_cache_evicted_total", "reason")),
                ("pixels, collision", rate("proteus_processor_cache_collisions_total")),
                ("visual tokens, collision", rate("proteus_encoder_cache_collisions_total")),
            ],
            "For want of room, for their age; keys that meet are no hit.",
        ),
        Panel(
            "Shared store",
            "cps",
            [("{{outcome}}", rate("proteus_encoder_cache_redis_total", "outcome"))],
            "Questions to Redis by what came of them.",
            stacked=True,
        ),
        Panel(
            "Visual tokens by source",
            "cps",
            [
                ("{{source}}", rate("proteus_visual_tokens_total", "source")),
                ("pictures made smaller", rate("proteus_downscaled_total")),
            ],
            "Encoded, cached, or shared with a request that was encoding the same picture.",
            stacked=True,
        ),
        Panel(
            "Pixels decoded",
            "cps",
            [("pixels", rate("proteus_decoded_pixels_total"))],
            "A second, at their own size.",
        ),
        Panel(
            "Padding in encoder shapes",
            "percentunit",
            [
                (
                    "waste",
                    f"1 - {rate('proteus_patches_used_total')} / {rate('proteus_patches_allocated_total')}",
                )
            ],
            "Patches that were computed and are no picture's.",
        ),
    ),
    "Encoder pool": (
        Panel(
            "Pictures sent to encoder servers",
            "short",
            [("{{state}}", now("proteus_encoder_pool_pictures", "state"))],
            "Under way, the most that may be, and waiting.",
        ),
        Panel(
            "Encoder servers",
            "short",
            [("{{state}}", now("proteus_encoder_pool_servers", "state"))],
            "Behind the name, and connected.",
        ),
        Panel(
            "How it ended",
            "cps",
            [
                ("{{outcome}}", rate("proteus_encoder_pool_requests_total", "outcome")),
                ("sent again", rate("proteus_encoder_pool_retries_total")),
                ("seconds under way, s/s", rate("proteus_encoder_pool_seconds_total")),
            ],
            "Pictures by outcome.",
        ),
    ),
    "Models": (
        Panel(
            "Executions",
            "cps",
            [("{{model}}", rate("nv_inference_exec_count", "model"))],
            "Of Triton's models.",
        ),
        Panel(
            "Mean batch",
            "short",
            [("{{model}}", f"{rate('nv_inference_count', 'model')} / {rate('nv_inference_exec_count', 'model')}")],
            "Inferences in one execution.",
        ),
        Panel(
            "Failures",
            "cps",
            [("{{model}}: {{reason}}", rate("nv_inference_request_failure", "model, reason"))],
            "By model and Triton's reason.",
        ),
        Panel("Mean wait in Triton's queue", "s", [("{{model}}", MEAN_WAIT)], "Of one request."),
        Panel(
            "Mean time in the backend",
            "s",
            [("{{model}}", MEAN_RUN)],
            "Of one request: each of a batch has the time of the whole; hits of the response cache have none.",
        ),
        Panel(
            "Pending",
            "short",
            [("{{model}}", now("nv_inference_pending_request_count", "model"))],
            "Requests that wait for a batch.",
        ),
    ),
    "Machine": (
        Panel(
            "Memory by model",
            "bytes",
            [("{{model}}", now("proteus_stub_memory_bytes", "model"))],
            "Proportional set sizes: they add up.",
            stacked=True,
        ),
        Panel(
            "GPU utilisation",
            "percentunit",
            [("{{instance}} {{gpu_uuid}}", f"nv_gpu_utilization{{{HERE_ONLY}}}")],
            "By device; empty without one.",
        ),
        Panel(
            "GPU memory",
            "bytes",
            [
                ("used {{instance}} {{gpu_uuid}}", f"nv_gpu_memory_used_bytes{{{HERE_ONLY}}}"),
                ("there {{instance}} {{gpu_uuid}}", f"nv_gpu_memory_total_bytes{{{HERE_ONLY}}}"),
            ],
            "By device.",
        ),
        Panel(
            "GPU power",
            "watt",
            [
                ("drawn {{instance}} {{gpu_uuid}}", f"nv_gpu_power_usage{{{HERE_ONLY}}}"),
                ("limit {{instance}} {{gpu_uuid}}", f"nv_gpu_power_limit{{{HERE_ONLY}}}"),
            ],
            "By device.",
        ),
        Panel(
            "Times that came into no histogram",
            "cps",
            [
                ("questions", rate("proteus_unobserved_total")),
                ("drawings", rate("proteus_draw_unobserved_total")),
            ],
            "More than the heart tells at a time: the panels above then show too few.",
        ),
    ),
}
