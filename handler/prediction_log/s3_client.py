"""An aiobotocore client for S3 that follows no redirects.

`sinks.py` imports this module only when it needs a client, because aiobotocore takes half a second.

aiohttp follows redirects by default: with a proxy's 307 the records would go to any host that the
proxy names. botocore's own client follows none. S3's answers about a wrong region still work,
because botocore then takes the host from its own table of regions and signs the request again.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session

from offpath.handler.prediction_log.log_settings import S3Options


class DirectSession(AIOHTTPSession):
    """A session whose requests follow no redirects.

    aiobotocore (3.10) has no option for this, so the method that makes connections is overridden.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        return _Direct(await super()._get_session(proxy_url))


class _Direct:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> Any:
        return await self._session.request(method, allow_redirects=False, **options)


class ClientFactory:
    """Creates clients, and parses S3's service description only for the first.

    That parsing takes 100 of the 107 ms of CPU that a client costs, under the GIL.
    """

    def __init__(self, options: S3Options, config: dict[str, Any]) -> None:
        self._options = options
        self._config = AioConfig(http_session_cls=DirectSession, **config)
        self._loader = get_session().get_component("data_loader")

    def create(self) -> AbstractAsyncContextManager[Any]:
        """Creates a client; a new session looks for credentials again."""
        session = get_session()
        session.register_component("data_loader", self._loader)
        client: AbstractAsyncContextManager[Any] = session.create_client(
            "s3",
            region_name=self._options.region,
            endpoint_url=self._options.endpoint_url,
            config=self._config,
        )
        return client
