"""The dashboard as a W&B workspace: built offline, saved by an explicit command."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from headwatch.dashboard import Chart, Section, Text, layers_in
from headwatch.sinks.scalars import X_KEY

__all__ = ["MissingExtraError", "build_workspace", "find_layers", "save_workspace", "specification", "split_address"]

NAME = "headwatch"
COLUMNS = ("median_drift", "share_beyond_null", "heads_rank_one", "overhead", "heads")
_LOOK_AT = 50  # newest runs of the project


class MissingExtraError(ImportError):
    """The dashboard's extra is not installed."""


def split_address(address: str) -> tuple[str, str]:
    """Entity and project.

    >>> split_address("me/my-project")
    ('me', 'my-project')

    Raises:
        ValueError: another form.
    """
    parts = address.strip("/").split("/")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"{address!r}: expected ENTITY/PROJECT, as in the address of the project's page on W&B.")
    return parts[0], parts[1]


def build_workspace(entity: str, project: str, sections: Sequence[Section], name: str = NAME) -> Any:
    """A ``wandb_workspaces`` Workspace; nothing is sent.

    Raises:
        MissingExtraError: wandb-workspaces is not installed.
    """
    ws, wr = _packages()
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[_section(ws, wr, section) for section in sections],
        settings=ws.WorkspaceSettings(x_axis=X_KEY, max_runs=10),
        runset_settings=ws.RunsetSettings(pinned_columns=[f"summary:headwatch/{column}" for column in COLUMNS]),
        auto_generate_panels=False,
    )


def _packages() -> tuple[ModuleType, ModuleType]:
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError as error:
        raise MissingExtraError(
            "the dashboard needs wandb-workspaces, which is an extra: pip install 'headwatch[dashboard]'. "
            "`--dry-run` prints what it would hold without it."
        ) from error
    return ws, wr


def _section(ws: ModuleType, wr: ModuleType, section: Section) -> Any:
    panels = list(_panels(wr, section))
    rows = min(4, -(-len(panels) // section.columns))
    layout = ws.SectionLayoutSettings(columns=section.columns, rows=rows)
    return ws.Section(name=section.name, panels=panels, is_open=section.open, layout_settings=layout)


def _panels(wr: ModuleType, section: Section) -> Iterable[Any]:
    for panel in section.panels:
        yield wr.MarkdownPanel(markdown=panel.markdown) if isinstance(panel, Text) else _chart(wr, panel)


def _chart(wr: ModuleType, chart: Chart) -> Any:
    if chart.kind == "pictures":
        return wr.MediaBrowser(title=chart.title, media_keys=list(chart.keys), mode="gallery", gallery_axis="step")
    if chart.pattern:
        return wr.LinePlot(title=chart.title, x=X_KEY, metric_regex=chart.pattern)
    return wr.LinePlot(title=chart.title, x=X_KEY, y=list(chart.keys))


def specification(workspace: Any) -> str:
    """The workspace as the JSON that W&B is sent."""
    text: str = workspace._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    return text


def save_workspace(workspace: Any) -> str:
    """Save to W&B; returns the address of the page."""
    return str(workspace.save().url)


def find_layers(entity: str, project: str) -> int:
    """Layers of the newest runs of a project that headwatch watched.

    Raises:
        ValueError: the project has none, or cannot be read.
    """
    import wandb

    try:
        runs = wandb.Api().runs(f"{entity}/{project}", order="-created_at", per_page=_LOOK_AT, lazy=False)
        layers = [layers_in(run.summary.keys()) for run in itertools.islice(runs, _LOOK_AT)]
    except (wandb.Error, ValueError, OSError) as error:
        raise ValueError(
            f"W&B did not show the runs of {entity}/{project} ({str(error)[:200]}). "
            "Check the address and `wandb login`, or give --layers N."
        ) from error
    if not max(layers, default=0):
        raise ValueError(
            f"no run of {entity}/{project} has headwatch's keys yet: train one with a WandbLogger and QKProfileMonitor "
            "first, or give --layers N."
        )
    return max(layers)
