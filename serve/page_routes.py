"""The status page: its files, by name, under a policy that lets them use nothing but this server"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from serve.errors import not_found

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
METHODS = ["GET", "HEAD"]
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def routes() -> APIRouter:
    """The routes; every file is read once, now."""
    router = APIRouter(include_in_schema=False)
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}
    tags = {name: f'"{sha256(content).hexdigest()[:16]}"' for name, content in files.items()}

    def answer(name: str, request: Request) -> Response:
        if name not in files:
            raise not_found(f"There is no /page/{name}.", "not_found")
        headers = {**HEADERS, "ETag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(files[name], media_type=TYPES[Path(name).suffix], headers=headers)

    @router.api_route("/", methods=METHODS)
    async def index(request: Request) -> Response:
        """The page."""
        return answer(INDEX, request)

    @router.api_route("/page/{name}", methods=METHODS)
    async def file(name: str, request: Request) -> Response:
        """One of its files."""
        return answer(name, request)

    return router
