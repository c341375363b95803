"""GraphQL operations of the stand-in for reading artifacts back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from standin.records import StoredArtifact

if TYPE_CHECKING:
    from standin.server import StandIn

Json = dict[str, Any]
_TIME = "2026-01-01T00:00:00Z"


def membership(standin: StandIn, v: Json) -> Json:
    """An artifact by ``name:alias``; None when nobody committed it."""
    wanted = v["name"].split(":")[0]
    found = [a for a in standin.artifacts.values() if a.name == wanted and a.committed]
    return {"project": {"artifactCollectionMembership": _member(v, found[-1]) if found else None}}


def _member(v: Json, artifact: StoredArtifact) -> Json:
    project = {"id": "p", "internalId": "1", "name": v["project"], "entity": {"name": v["entity"]}}
    collection = {"__typename": "ArtifactSequence", "name": artifact.name, "project": project}
    return {
        "__typename": "ArtifactCollectionMembership",
        "id": "m",
        "versionIndex": 0,
        "createdAt": _TIME,
        "aliases": [{"__typename": "ArtifactAlias", "id": "alias", "alias": "latest"}],
        "artifactCollection": collection,
        "artifact": _artifact(artifact, collection),
    }


def _artifact(artifact: StoredArtifact, collection: Json) -> Json:
    blank = dict.fromkeys(("description", "metadata", "historyStep", "commitHash"))
    return {
        **blank,
        "__typename": "Artifact",
        "id": artifact.id,
        "artifactSequence": collection,
        "versionIndex": 0,
        "artifactType": {"name": artifact.type},
        "ttlIsInherited": True,
        "ttlDurationSeconds": -2,
        "tags": [],
        "state": "COMMITTED",
        "size": 1,
        "digest": artifact.digest,
        "fileCount": len(artifact.entries),
        "createdAt": _TIME,
        "updatedAt": _TIME,
        "aliases": [],
    }


def manifest(standin: StandIn, v: Json) -> Json:
    return {"artifact": {"currentManifest": {"file": {"directUrl": f"{standin.url}/manifest/{v['id']}"}}}}


def file_urls(standin: StandIn, v: Json) -> Json:
    artifact = [a for a in standin.artifacts.values() if a.name == v["collection"]][-1]
    edges = [
        {"node": {"__typename": "File", "name": path, "directUrl": f"{standin.url}/artifact-file/{artifact.id}/{path}"}}
        for path in artifact.entries
    ]
    page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
    files = {"pageInfo": page, "edges": edges}
    collection = {"__typename": "ArtifactSequence", "artifactMembership": {"files": files}}
    return {"project": {"artifactCollection": collection}}


DOWNLOAD_OPERATIONS: dict[str, Callable[[StandIn, Json], Json]] = {
    "ArtifactMembershipByName": membership,
    "FetchArtifactManifest": manifest,
    "GetArtifactMembershipFileUrls": file_urls,
}
