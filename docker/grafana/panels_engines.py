"""Panels of the two engines: the language model and the denoiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from series import Panel, now, rate

ROWS: Mapping[str, Sequence[Panel]] = {
    "Language model": (
        Panel(
            "Answers in slots, and waiting for one",
            "short",
            [
                ("{{phase}}", now("proteus_llm_running", "phase")),
                ("waiting {{latency_class}}", now("proteus_llm_waiting", "latency_class")),
            ],
            "Waiting ones have been admitted.",
            stacked=True,
        ),
        Panel(
            "Tokens",
            "cps",
            [
                ("answers", rate("proteus_llm_output_tokens_total")),
                ("prompts, {{source}}", rate("proteus_llm_prefill_tokens_total", "source")),
                ("wasted in {{phase}}", rate("proteus_llm_wasted_tokens_total", "phase")),
            ],
            "A second: generated, read, and computed for nobody.",
        ),
        Panel(
            "What the loop does",
            "percentunit",
            [("{{work}}", rate("proteus_llm_work_seconds_total", "work"))],
            "Seconds of work a second and server; 100 % is a loop that never rests.",
            stacked=True,
        ),
        Panel(
            "Keys and values",
            "bytes",
            [("{{state}}", now("proteus_llm_kv_bytes", "state"))],
            "Allocated, reserved by answers that have a slot, used.",
        ),
        Panel(
            "Answers by end",
            "cps",
            [("{{outcome}}", rate("proteus_llm_ended_total", "outcome"))],
            "In the engine: stop, length, cancelled, or an error's code.",
            stacked=True,
        ),
        Panel(
            "Iterations",
            "cps",
            [("iterations", rate("proteus_llm_iterations_total"))],
            "Of the engine's loop a second: each gives every running answer one token.",
        ),
    ),
    "Denoiser": (
        Panel(
            "Rows in a call, of the room for them",
            "percentunit",
            [
                (
                    "pictures",
                    rate("proteus_draw_rows_total", also=',kind="real"') + f" / {rate('proteus_draw_row_room_total')}",
                ),
                (
                    "padding",
                    rate("proteus_draw_rows_total", also=',kind="padded"')
                    + f" / {rate('proteus_draw_row_room_total')}",
                ),
            ],
            "How full the step batch is.",
            stacked=True,
        ),
        Panel(
            "Pictures in calls, and waiting",
            "short",
            [
                ("live", now("proteus_draw_live")),
                ("waiting {{latency_class}}", now("proteus_draw_waiting", "latency_class")),
            ],
            "Live ones take turns; the others wait for a place among those of their size.",
            stacked=True,
        ),
        Panel(
            "Evaluations",
            "cps",
            [
                ("rows", rate("proteus_draw_evaluations_total")),
                ("calls", rate("proteus_draw_calls_total")),
                ("wasted, {{cancel}} the cancel", rate("proteus_draw_wasted_rows_total", "cancel")),
            ],
            "Rows and calls of the denoiser a second.",
        ),
        Panel(
            "Time in calls by size",
            "percentunit",
            [
                ("{{size}}", rate("proteus_draw_accelerator_seconds_total", "size")),
                ("previews", rate("proteus_draw_preview_seconds_total")),
            ],
            "Seconds a second and server.",
            stacked=True,
        ),
        Panel(
            "Pictures",
            "cps",
            [
                ("sent as {{format}}", rate("proteus_draw_images_total", "format")),
                ("ended: {{outcome}}", rate("proteus_draw_ended_total", "outcome")),
                ("drawn for nobody", rate("proteus_draw_unsent_images_total")),
            ],
            "Sent by the door, and ended in the denoiser.",
        ),
        Panel(
            "Previews",
            "cps",
            [
                ("{{outcome}}", rate("proteus_draw_door_previews_total", "outcome")),
                ("by {{by}}, s/s", rate("proteus_draw_door_preview_seconds_total", "by")),
            ],
            "Sent, dropped for a later one, failed; and the seconds that they cost.",
        ),
    ),
}
