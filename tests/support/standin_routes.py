"""What the stand-in hub answers: the API, files and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.standin_cdn import CDN_HOST, cdn_path
from tests.support.standin_faults import Kind, OtherLinkedETag, WrongRedirect
from tests.support.standin_http import Answer, Handler, RefusedError
from tests.support.standin_repository import Repository

MOST_PAGE_ENTRIES = 1000  # of a listing, by huggingface_hub's documentation
EXPANDED_PAGE_ENTRIES = 50


class HubHandler(Handler):
    """Routes a request of the hub's own host."""

    def find_kind(self) -> Kind:
        return "api" if self.path.startswith("/api/") else "resolve"

    def answer(self) -> Answer:
        url = urlsplit(self.path)
        match [unquote(part) for part in url.path.split("/")[1:]]:
            case ["api", "agent-harnesses"]:
                return Answer.of_json({"standardEnvVars": [], "harnesses": {}})
            case ["api", "whoami-v2"] if self.token:
                return Answer.of_json({"type": "user", "name": "stand-in", "orgs": []})
            case ["api", "datasets", owner, name, *call]:
                repository = self._find_repository(f"{owner}/{name}")
                return self._answer_api(repository, call, parse_qs(url.query))
            case ["datasets", owner, name, "resolve", revision, *path] | [
                owner,  # of a model
                name,
                "resolve",
                revision,
                *path,
            ]:
                repository = self._find_repository(f"{owner}/{name}")
                return self._answer_file(repository, revision, "/".join(path))
        raise RefusedError(404, "", f"the stand-in hub has no {url.path}")

    def _find_repository(self, repo_id: str) -> Repository:
        """Check access. The 401 of a private repository carries RepoNotFound, because huggingface_hub understands a
        bare 401 only when it comes from an https address."""
        repository = self.server.hub.repositories.get(repo_id)
        if repository is None:
            raise RefusedError(404, "RepoNotFound", "Repository not found")
        if repository.access == "public" or (self.token and self.token == repository.token):
            return repository
        if repository.access == "gated":
            raise RefusedError(403 if self.token else 401, "GatedRepo", f"{repo_id} is gated")
        if self.token:
            raise RefusedError(401, "", "Invalid credentials in Authorization header")
        raise RefusedError(401, "RepoNotFound", "Invalid username or password.")

    @staticmethod
    def _find_commit(repository: Repository, revision: str) -> str:
        commit = repository.head if revision == "main" else revision
        if commit not in repository.commits:
            raise RefusedError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _answer_api(self, repository: Repository, call: list[str], query: Mapping[str, list[str]]) -> Answer:
        commit = self._find_commit(repository, call[1] if len(call) > 1 else "main")
        files = repository.commits[commit]
        match call:
            case [] | ["revision", _]:
                flags = {key: repository.access == key for key in ("private", "gated")}
                siblings = [{"rfilename": path} for path in files]
                info = {"id": repository.repo_id, "sha": commit, "siblings": siblings, **flags}
                return Answer.of_json(info)
            case ["tree", _, *folder]:
                recursive, expand = (query.get(flag, ["false"])[0].lower() for flag in ("recursive", "expand"))
                folder_path = "/".join(folder)
                names = repository.list_tree(commit, folder_path, recursive=recursive == "true")
                if not names:
                    raise RefusedError(404, "EntryNotFound", f"{folder_path} does not exist")
                first = int(query.get("cursor", ["0"])[0])
                most = EXPANDED_PAGE_ENTRIES if expand == "true" else MOST_PAGE_ENTRIES
                last = first + min(most, self.server.hub.tree_page_entries)
                page_url = f"{self.server.hub.url}{urlsplit(self.path).path}"
                link = f'<{page_url}?recursive={recursive}&expand={expand}&cursor={last}>; rel="next"'
                headers = {"Link": link} if last < len(names) else {}
                page = [repository.describe(commit, name) for name in names[first:last]]
                return Answer.of_json(page, headers=headers)
            case ["paths-info", _]:
                paths = [path for path in parse_qs(self.body.decode()).get("paths", []) if path in files]
                return Answer.of_json([files[path].describe() for path in paths])
            case ["refs"]:
                branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
                return Answer.of_json({"branches": [branch], "tags": [], "converts": []})
        raise RefusedError(404, "", f"the stand-in hub has no {self.path}")

    def _answer_file(self, repository: Repository, revision: str, path: str) -> Answer:
        commit = self._find_commit(repository, revision)
        file = repository.commits[commit].get(path)
        if file is None:
            raise RefusedError(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if file.is_large:
            linked = self.fault.etag if isinstance(self.fault, OtherLinkedETag) else file.etag
            headers |= {"X-Linked-ETag": f'"{linked}"', "X-Linked-Size": str(file.size)}
        if not (file.is_large and self.server.hub.cdn):
            return Answer.of_file(file, self.range, {**headers, "ETag": f'"{file.etag}"'})
        location = self._find_location(cdn_path(repository.repo_id, commit, path))
        if location:
            headers["Location"] = location
        body = f"Found. Redirecting to {location}".encode()
        return Answer.of_bytes(302, body, {**headers, "Content-Type": "text/plain; charset=utf-8"})

    def _find_location(self, path: str) -> str:
        """Return where a large file is fetched, or where the fault leads."""
        hub = self.server.hub
        match self.fault:
            case WrongRedirect("dead"):
                return f"http://{CDN_HOST}:{hub.dead_port}{hub.signer.sign(path)}"
            case WrongRedirect("foreign"):
                return f"{hub.foreign_url}{hub.signer.sign(path)}"
            case WrongRedirect("home"):
                return f"{hub.url}{self.path}"
            case WrongRedirect("nowhere"):
                return ""
        return f"{hub.cdn_url}{hub.signer.sign(path)}"
