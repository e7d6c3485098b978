"""`serve run suffice.serve.ray:build model=...`: the server on a Ray cluster.

Two deployments. A front is the application of `suffice serve` as Ray's ingress; it keeps what a
request has given so far. An engine is a replica with one engine. When an engine's node dies, the
front goes on in another one with the same stream. Fronts live on the head node, with the proxy that
clients speak to: a front adds no place where a request can be lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import click
from ray import serve
from ray.serve import Application
from ray.serve._private.constants import SERVE_SESSION_ID
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from suffice.errors import InputError
from suffice.pull import resolve
from suffice.serve.app import build as application
from suffice.serve.http.guard import key_of
from suffice.serve.http.models import Models
from suffice.serve.http.text import Text
from suffice.serve.processes.ray_cluster import joined, session
from suffice.serve.processes.ray_engine import EngineReplica
from suffice.serve.ray_arguments import Cluster, read
from suffice.serve.settings import Settings, sampling_defaults
from suffice.text.tokenizer import load_tokenizer

SESSION_HEADERS = (SERVE_SESSION_ID.lower().encode(), b"x-user-id")  # the first that is given
HEAD = {"node:__internal_head__": 0.001}  # Ray's own resource of the head node
AHEAD = 2  # requests at an engine for each place; the others wait where any engine can take them
ROUTER = "suffice.serve.processes.ray_router:SessionRouter"
HEALTH_SECONDS = 5.0
MOST_STARTS = 3  # of an engine, before the deployment has failed


class Refused(click.ClickException, InputError):  # noqa: N818 (what the argument is)
    """A bad argument: `serve run` shows the line, and ends with exit code 2."""

    exit_code = 2


class Adapted:
    """The application as Ray has it: notes sessions, and leaves the request's id to Ray.

    The session is that of the request's header, within its API key.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                own = [each for each in headers if each[0].lower() != b"x-request-id"]
                message = {**message, "headers": own}
            await send(message)

        token = session.set(session_of(scope) if scope["type"] == "http" else "")
        try:
            await self._app(scope, receive, sending)
        finally:
            session.reset(token)


def session_of(scope: Scope) -> str:
    """Return a request's session; empty if it has none."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    found = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), b"")
    return (found + b"/" + key_of(scope["headers"])).decode("latin-1") if found else ""


class Engine(EngineReplica):
    """An engine under the name that Ray has given its replica."""

    async def __init__(  # type: ignore[misc] # as Ray allows it
        self, settings: Settings, threads: int
    ) -> None:
        """See `EngineReplica`."""
        name = serve.get_replica_context().replica_tag
        await super().__init__(settings, threads, name)


class FrontReplica:
    """A front, whose engine is the cluster's."""

    async def __init__(  # type: ignore[misc] # as Ray allows it
        self, settings: Settings, generation: str, engines: Any
    ) -> None:
        """Load the tokenizer, and wait until an engine is ready.

        Raises:
            InputError: The model has no tokenizer that can be used.
        """
        model = resolve(settings.model)
        sampling = sampling_defaults(generation, model)
        settings = dataclasses.replace(settings, default_sampling=sampling)
        tokenizer = load_tokenizer(settings.options.get("tokenizer") or model)
        text = Text(tokenizer, *settings.forms)
        self._models = Models([settings], text, joined(engines))
        await self._models.start()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Return the application."""
        return Adapted(application(self._models))


def build(args: Mapping[str, Any]) -> Application:
    """Return the application of a model, as arguments describe it (docs/ray.md lists them).

    Raises:
        Refused: An unknown argument, or a value out of range.
    """
    try:
        settings, cluster = read(args)
    except InputError as error:
        raise Refused(str(error)) from None
    return deployed(settings, cluster)


def deployed(settings: Settings, cluster: Cluster) -> Application:
    """Return the application of settings: those of a server with one engine."""
    engines = serve.deployment(
        Engine,
        name="engine",
        max_ongoing_requests=AHEAD * settings.max_num_seqs,
        ray_actor_options={"num_cpus": cluster.threads},
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=settings.heartbeat_seconds,
        graceful_shutdown_timeout_s=settings.shutdown_seconds,
        max_constructor_retry_count=MOST_STARTS,
        request_router_config={"request_router_class": ROUTER},
        **_count(settings, cluster),
    ).bind(settings, cluster.threads)
    # What the front allows is for all engines together.
    places = settings.max_num_seqs * cluster.most
    own = dataclasses.replace(settings, max_num_seqs=places)
    where = HEAD if cluster.front_nodes == "head" else {}
    return serve.deployment(
        serve.ingress()(FrontReplica),
        name="front",
        num_replicas=cluster.fronts,
        max_ongoing_requests=places + settings.max_queue + 64,  # the front refuses, not Ray
        ray_actor_options={"num_cpus": 0, "resources": where},
        graceful_shutdown_timeout_s=settings.shutdown_seconds,
        max_constructor_retry_count=MOST_STARTS,
    ).bind(own, cluster.generation_config, engines)


def _count(settings: Settings, cluster: Cluster) -> dict[str, Any]:
    """Return how many engines there are; a range follows the requests that run or wait."""
    if cluster.max_instances is None:
        return {"num_replicas": cluster.instances}
    return {
        "autoscaling_config": {
            "min_replicas": cluster.min_instances,
            "initial_replicas": cluster.instances,
            "max_replicas": cluster.max_instances,
            "target_ongoing_requests": max(1.0, 0.7 * settings.max_num_seqs),
        }
    }
