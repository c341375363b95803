"""GraphQL operations of the stand-in for artifacts and workspaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from standin.records import StoredArtifact

if TYPE_CHECKING:
    from standin.server import StandIn

Json = dict[str, Any]


def artifact_type(standin: StandIn, v: Json) -> Json:
    wanted = v["name"].split(":")[0]
    found = next((a for a in standin.artifacts.values() if a.name == wanted), None)
    return {"project": {"artifact": None if found is None else {"artifactType": {"name": found.type}}}}


def create_artifact(standin: StandIn, v: Json) -> Json:
    sent = v["input"]
    same = [
        a for a in standin.artifacts.values() if (a.name, a.digest) == (sent["artifactCollectionName"], sent["digest"])
    ]
    if same:
        return {"createArtifact": {"artifact": _artifact(same[0])}}
    id_ = f"artifact{len(standin.artifacts)}"
    made = StoredArtifact(
        id_, sent["artifactCollectionName"], sent["artifactTypeName"], sent["digest"], sent["runName"]
    )
    standin.artifacts[id_] = made
    return {"createArtifact": {"artifact": _artifact(made)}}


def _artifact(artifact: StoredArtifact) -> Json:
    state = "COMMITTED" if artifact.committed else "PENDING"
    return {"id": artifact.id, "state": state, "artifactSequence": {"latestArtifact": None}}


def create_manifest(standin: StandIn, v: Json) -> Json:
    file = {"id": "f", "uploadUrl": f"{standin.url}/manifest/{v['artifactID']}", "uploadHeaders": []}
    return {"createArtifactManifest": {"artifactManifest": {"id": v["artifactID"], "file": file}}}


def update_manifest(standin: StandIn, v: Json) -> Json:
    file = {"id": "f", "uploadUrl": f"{standin.url}/manifest/{v['artifactManifestID']}", "uploadHeaders": []}
    return {"updateArtifactManifest": {"artifactManifest": {"id": v["artifactManifestID"], "file": file}}}


def create_files(standin: StandIn, v: Json) -> Json:
    edges = [{"node": _upload(standin, sent)} for sent in v["input"]["artifactFiles"]]
    return {"createArtifactFiles": {"files": {"edges": edges}}}


def _upload(standin: StandIn, sent: Json) -> Json:
    path = f"artifact-file/{sent['artifactID']}/{sent['name']}"
    return {
        "storagePath": path,
        "uploadUrl": f"{standin.url}/{path}",
        "uploadHeaders": [],
        "uploadMultipartUrls": None,
        "artifact": {"id": sent["artifactID"]},
    }


def commit(standin: StandIn, v: Json) -> Json:
    artifact = standin.artifacts[v["artifactID"]]
    artifact.committed = True
    return {"commitArtifact": {"artifact": {"id": artifact.id, "digest": artifact.digest}}}


def upsert_view(standin: StandIn, v: Json) -> Json:
    inserted = v["name"] not in standin.views
    standin.views[v["name"]] = v
    return {"upsertView": {"view": {"id": f"view-{v['name']}", "name": v["name"]}, "inserted": inserted}}


ARTIFACT_OPERATIONS: dict[str, Callable[[StandIn, Json], Json]] = {
    "ArtifactType": artifact_type,
    "CreateArtifact": create_artifact,
    "CreateArtifactManifest": create_manifest,
    "CreateArtifactFiles": create_files,
    "UpdateArtifactManifest": update_manifest,
    "CommitArtifact": commit,
    "UpsertView2": upsert_view,
}
