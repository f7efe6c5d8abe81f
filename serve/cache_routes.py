"""Routes of the caches: stats, clear, peek, prewarm, and the settings"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastapi import APIRouter, Request

from cache.clear import clear_memory
from cache.prewarm import prewarm
from engine.prompt import Prompt
from serve.asked import Asked, headers_of
from serve.body import read_json
from serve.errors import ApiError, bad_request
from serve.openapi import ANY_OBJECT, body_of
from serve.peek import peek
from serve.service import Service
from serve.settings import Stale
from serve.settings_apply import Unwritten
from serve.stats import stats
from serve.wire_chat import ChatBody
from serve.wish import Wish

Tier = Literal["ram", "disk", "spill", "all"]
CLEAR_WAIT_S = 10.0
"""For so long a change waits for the turns under way, and others for it."""


def routes(service: Service) -> APIRouter:
    """The routes, over one service."""
    router = APIRouter(tags=["cache"])
    house = service.house

    @router.get("/v1/cache/stats")
    async def cache_stats() -> dict[str, Any]:
        """Every cache's counters, the memory plan, today's writes, the last turns and events."""
        parts = service.parts()
        return await service.between(lambda: stats(parts))

    @router.post("/v1/cache/clear")
    async def cache_clear(tier: Tier = "ram") -> dict[str, Any]:
        """Forget what a tier holds: `ram`, `disk` (heads of prompts), `spill` (conversations on the
        drive), or `all`."""

        def work() -> dict[str, Any]:
            cleared = []
            if tier in ("ram", "all"):
                for box in house.slots:
                    clear_memory(box.stack, box.engine)
                cleared.append("ram")
            if tier in ("disk", "all") and house.disk is not None:
                house.jobs.drain()
                house.disk.clear()
                cleared.append("disk")
            if tier in ("spill", "all") and house.spill is not None:
                house.spill.clear()
                cleared.append("spill")
            house.report()
            return {"cleared": cleared}

        return await service.alone(work, CLEAR_WAIT_S, patient=True)

    @router.post("/v1/cache/peek", openapi_extra=body_of(ChatBody))
    async def cache_peek(request: Request) -> dict[str, Any]:
        """Where a chat request's rows are, and what reading it would cost. Takes its body, and the
        headers that name its conversation. 409 while requests are served."""
        asked, wish, prompt = await _prompt(service, request)

        def work() -> dict[str, Any]:
            house.box.stack.leave()
            return peek(house, prompt, service.summaries.instead(asked, wish, prompt))

        return await service.alone(work)

    @router.post("/v1/cache/prewarm", openapi_extra=body_of(ChatBody))
    async def cache_prewarm(request: Request) -> dict[str, Any]:
        """Bring a conversation back from the drive, as its next request would. Takes a chat
        request's body. 409 while requests are served."""
        _, _, prompt = await _prompt(service, request)
        return await service.alone(lambda: _prewarmed(service, prompt))

    _settings(router, service)
    return router


def _prewarmed(service: Service, prompt: Prompt) -> dict[str, Any]:
    """Bring a prompt's conversation back; on the engine's thread."""
    house, desk = service.house, service.desk
    begun_s = house.clock.mono_s()
    rested_s = begun_s - desk.last_end_s
    done = prewarm(house.box.stack, house.engine, prompt.ask, rested_s, desk.wanted)
    house.report()
    if done.why:
        return {"prewarmed": False, "why": done.why}
    ms = round(1e3 * (house.clock.mono_s() - begun_s), 3)
    return {
        "prewarmed": True,
        "restore": {"tokens": done.line.tokens, "kind": done.line.kind, "ms": ms},
    }


def _settings(router: APIRouter, service: Service) -> None:
    """The settings document."""
    house = service.house

    @router.get("/v1/settings")
    async def get_settings() -> dict[str, Any]:
        """The settings in force."""
        return house.settings.as_json()

    @router.put("/v1/settings", openapi_extra=ANY_OBJECT)
    async def put_settings(request: Request) -> dict[str, Any]:
        """Change some of them, from the next request on. A `revision` other than the one in force
        is refused with 409."""
        patch = read_json(await request.body())
        if not isinstance(patch, Mapping):
            raise bad_request("An object of sections is wanted.")
        try:
            changed = await service.alone(lambda: house.change(patch), CLEAR_WAIT_S, patient=True)
        except Stale as error:
            raise ApiError(409, str(error), type="conflict_error", code="stale") from None
        except ValueError as error:
            raise bad_request(str(error), param=str(error).partition(":")[0]) from None
        except Unwritten as error:
            raise ApiError(507, str(error), type="server_error", code="unwritten") from None
        return changed.as_json()


async def _prompt(service: Service, request: Request) -> tuple[Asked, Wish, Prompt]:
    """A chat request's prompt, without a word of it being remembered."""
    sent, body, wish = await service.chat(await request.body())
    asked = await service.ask(headers_of(request), sent, body, wish, peeks=True)
    return asked, wish, service.asking.prompt(asked, service.room(asked, wish))
