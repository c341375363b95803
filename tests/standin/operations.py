"""GraphQL operations of the stand-in: runs, files, alerts; ``artifact_operations`` has artifacts and workspaces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from standin.artifact_operations import ARTIFACT_OPERATIONS
from standin.download_operations import DOWNLOAD_OPERATIONS
from standin.records import StoredRun

if TYPE_CHECKING:
    from standin.server import StandIn

Json = dict[str, Any]


def viewer(standin: StandIn, v: Json) -> Json:
    entity = {"id": "e", "name": standin.entity}
    teams = {"edges": []}
    return {
        "viewer": {
            "id": "u",
            "entity": standin.entity,
            "username": standin.entity,
            "flags": "{}",
            "teams": teams,
            **entity,
        }
    }


def upsert_bucket(standin: StandIn, v: Json) -> Json:
    inserted = v["name"] not in standin.runs
    run = standin.runs.setdefault(v["name"], StoredRun(v["entity"] or standin.entity, v["project"], v["name"]))
    run.config |= json.loads(v.get("config") or "{}")
    return {"upsertBucket": {"bucket": _bucket(run), "inserted": inserted}}


def _bucket(run: StoredRun) -> Json:
    project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": run.entity}}
    return {
        "id": run.name,
        "name": run.name,
        "displayName": run.name,
        "description": "",
        "config": json.dumps(run.config),
        "sweepName": None,
        "project": project,
        "historyLineCount": len(run.lines["wandb-history.jsonl"]),
    }


def resume_status(standin: StandIn, v: Json) -> Json:
    run = standin.runs.get(v["name"])
    if run is None:
        return {
            "model": {"id": "p", "name": v["project"], "entity": {"id": "e", "name": standin.entity}, "bucket": None}
        }
    counts = {name: len(lines) for name, lines in run.lines.items()}
    history = run.lines["wandb-history.jsonl"]
    tail = [history[max(history)]] if history else []
    bucket = {
        **_bucket(run),
        "summaryMetrics": json.dumps(run.summary),
        "historyLineCount": counts.get("wandb-history.jsonl", 0),
        "logLineCount": counts.get("output.log", 0),
        "eventsLineCount": counts.get("wandb-events.jsonl", 0),
        "historyTail": json.dumps(tail),
        "eventsTail": "[]",
        "tags": [],
        "wandbConfig": json.dumps({"t": 1}),
    }
    return {"model": {"id": "p", "name": run.project, "entity": {"id": "e", "name": run.entity}, "bucket": bucket}}


def create_run_files(standin: StandIn, v: Json) -> Json:
    files = [{"name": name, "uploadUrl": f"{standin.url}/run-file/{v['run']}/{name}"} for name in v["files"]]
    return {"createRunFiles": {"runID": v["run"], "uploadHeaders": [], "files": files}}


def alert(standin: StandIn, v: Json) -> Json:
    standin.runs[v["runName"]].alerts.append({"title": v["title"], "text": v["text"], "level": v["severity"]})
    return {"notifyScriptableRunAlert": {"success": True}}


def runs(standin: StandIn, v: Json) -> Json:
    nodes = [_run_node(run) for run in standin.runs.values() if run.project == v["project"]]
    if not nodes:
        return {"project": None}
    edges = [{"node": node, "cursor": node["name"]} for node in nodes]
    page = {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
    return {"project": {"internalId": "p", "runCount": len(nodes), "readOnly": False, "runs": page}}


def _run_node(run: StoredRun) -> Json:
    blank = dict.fromkeys(("sweepName", "group", "jobType", "commit", "description", "notes", "heartbeatAt"))
    return {
        **blank,
        **_bucket(run),
        "projectId": "1",
        "tags": [],
        "state": "finished",
        "readOnly": False,
        "createdAt": "2026-01-01T00:00:00Z",
        "user": {"name": run.entity, "username": run.entity},
        "summaryMetrics": json.dumps(run.summary),
        "systemMetrics": "{}",
        "historyKeys": None,
    }


def nothing(standin: StandIn, v: Json) -> Json:
    return {}


OPERATIONS: dict[str, Callable[[StandIn, Json], Json]] = {
    "Viewer": viewer,
    "UpsertBucket": upsert_bucket,
    "RunResumeStatus": resume_status,
    "CreateRunFiles": create_run_files,
    "Runs": runs,
    "NotifyScriptableRunAlert": alert,
    "ServerFeaturesQuery": nothing,
    "OrganizationCoreWeaveOrganizationID": nothing,
    "RunStoppedStatus": nothing,
    **ARTIFACT_OPERATIONS,
    **DOWNLOAD_OPERATIONS,
}
