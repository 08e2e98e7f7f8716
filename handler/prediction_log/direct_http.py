"""HTTP for aiobotocore that follows no redirect.

aiohttp follows them by default: a proxy's 307 would send the records to any host that it names.
botocore's own client follows none. S3's answers to a wrong region still work: botocore then takes
the host from its own table of regions and signs anew.
"""

from __future__ import annotations

from typing import Any

from aiobotocore.httpsession import AIOHTTPSession


class DirectSession(AIOHTTPSession):
    """aiobotocore has no option for it (3.10), so what makes its connections is overridden."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Direct(await super()._get_session(proxy_url))


class _Direct:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> Any:
        return await self._session.request(method, allow_redirects=False, **options)
