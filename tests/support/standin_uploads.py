"""What the stand-in hub does when somebody uploads: make a dataset, take large files (LFS) and commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from typing import Any

from tests.support.standin_repository import Content, Repository


class Refused(Exception):  # noqa: N818 - an answer, not a failure
    """An error status and the hub's words for it."""

    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **more}


class Uploads:
    """Large files by their hash, and the rules of writing: one token may, no other."""

    def __init__(self, url: str, repositories: dict[str, Repository], token: str | None) -> None:
        self._url = url
        self._repositories = repositories
        self._token = token
        self._lock = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.commits: list[str] = []  # their messages

    def check(self, token: str | None) -> None:
        if token is None:
            raise Refused(401, "Invalid username or password.")
        if token != self._token:
            raise Refused(403, "You don't have the rights to do that.")

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        repo_id = f"{body['organization']}/{body['name']}"
        url = f"{self._url}/datasets/{repo_id}"
        if repo_id in self._repositories:
            raise Refused(409, "You already created this dataset repo", url=url)
        access = "private" if body.get("visibility") == "private" else "public"
        repository = Repository(repo_id, {}, access=access, token=self._token)  # type: ignore[arg-type]
        repository.commits[repository.head] = {}
        self._repositories[repo_id] = repository
        return {"url": url, "name": repo_id, "id": repo_id}

    def preupload(self, repository: Repository, body: dict[str, Any]) -> dict[str, Any]:
        files = repository.commits[repository.head]
        answers = []
        for wanted in body["files"]:
            path = wanted["path"]
            large = repository.is_large(path)
            known = files.get(path)
            answers.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": None if known is None else known.sha256 if large else known.git_hash,
                }
            )
        return {"files": answers}

    def batch(self, body: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for wanted in body["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.objects:
                answer["actions"] = {
                    "upload": {"href": f"{self._url}/lfs-objects/{wanted['oid']}", "header": {}},
                    "verify": {"href": f"{self._url}/api/lfs-verify", "header": {}},
                }
            objects.append(answer)
        return {"transfer": "basic", "objects": objects}

    def put(self, oid: str, body: bytes) -> dict[str, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the content is not what its hash says")
        self.objects[oid] = body
        return {}

    def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        if len(self.objects.get(body["oid"], b"")) != body["size"]:
            raise Refused(404, "no such object")
        return {}

    def commit(self, repository: Repository, body: bytes) -> dict[str, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        files: dict[str, Content] = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            else:
                raise Refused(400, f"the stand-in hub knows no {line['key']}")
        with self._lock:
            for path, content in files.items():
                repository.replace_file(path, content)
            self.commits.append(message)
        url = f"{self._url}/datasets/{repository.repo_id}/commit/{repository.head}"
        return {"success": True, "commitOid": repository.head, "commitUrl": url}
