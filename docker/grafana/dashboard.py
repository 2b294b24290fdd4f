"""Writes dashboard.json beside it and prints its panels as a table for docs/docker.md: `python dashboard.py`.

One row of the dashboard is a group of panels, three beside each other; one panel is a title, a unit and its series.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import panels_door
import panels_engines
import panels_gateway
import panels_machine
from series import Panel

HERE = Path(__file__).parent
COLUMNS, WIDTH, HEIGHT = 3, 8, 8
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
ROWS = {**panels_gateway.ROWS, **panels_door.ROWS, **panels_engines.ROWS, **panels_machine.ROWS}
MODALITY = ("proteus_stage_seconds_count", "")


def dashboard() -> dict[str, Any]:
    """The document that Grafana reads."""
    return {
        "uid": "proteus",
        "title": "Proteus",
        "description": "Gateway, tenants, stages, admission, engines, caches, machines. docs/docker.md lists all.",
        "tags": ["proteus", "triton"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_variable("instance", "up", 'job="proteus"'), _variable("modality", *MODALITY)]},
        "annotations": {"list": []},
        "links": [],
        "panels": list(_panels()),
    }


def _variable(label: str, series: str, matchers: str) -> dict[str, Any]:
    query = f"label_values({series}{{{matchers}}}, {label})"
    return {
        "name": label,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        place = {"h": 1, "w": COLUMNS * WIDTH, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        number, top = number + 1, top + 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, COLUMNS)
            place = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + line * HEIGHT}
            yield _panel(panel, number, place)
            number += 1
        top += -(-len(panels) // COLUMNS) * HEIGHT


def _panel(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    drawn = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": drawn}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.series)
        ],
    }


def table() -> str:
    """Markdown: every panel, what it shows, its unit, and the series it asks for."""
    lines = ["| row | panel | shows | unit | of |", "|---|---|---|---|---|"]
    for row, panels in ROWS.items():
        for panel in panels:
            names = dict.fromkeys(
                name for _, expression in panel.series for name in re.findall(r"\b(?:proteus|nv|up)\w*", expression)
            )
            series = ", ".join(f"`{name}`" for name in names if name != "proteus")
            lines.append(f"| {row} | {panel.title} | {panel.about} | {panel.unit} | {series} |")
    return "\n".join(lines)


def text() -> str:
    """Of dashboard.json."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "dashboard.json").write_text(text(), encoding="utf-8")
    print(table())  # noqa: T201 - the point of it
