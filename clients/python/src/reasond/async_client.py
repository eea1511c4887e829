"""The asynchronous client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from reasond import requests
from reasond.async_calls import AsyncExecutionStream, AsyncLink, AsyncReasoningStream, AsyncToken
from reasond.async_repair_calls import AsyncRepairCalls
from reasond.async_turn_calls import AsyncTurnCalls
from reasond.connection import DEFAULT_TARGET, DEFAULT_TIMEOUT_S, Connection, arguments_from
from reasond.progress import Progress, ReconnectPolicy, policy_of
from reasond.v1 import agent_service_pb2 as agents_pb
from reasond.v1 import execution_service_pb2 as executions_pb
from reasond.v1 import reasoning_service_pb2 as reasoning_pb
from reasond.v1.execution_pb2 import Budget, Execution, ExecutionState, FinishReason, Reasoning, TraceView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from reasond.connection import TlsOptions


class AsyncClient(AsyncTurnCalls, AsyncRepairCalls):
    """Calls a reasond server from one event loop.

    Every method raises `ReasondError` (a subclass that says what kind) where the call fails, ValueError or
    TypeError where an argument cannot be sent, and lets `asyncio.CancelledError` pass after cancelling the call
    on the server too. `timeout_s` of a method replaces the client's default deadline; `math.inf` sets none.

    Args:
        target: `host:port`, `unix:/path`, or `dns:///host:port`, which spreads calls over all addresses.
        token: Sent with every call; a callable (plain or asynchronous) is asked before each call, and once more
            where the server says that the token has expired.
        tls: True for TLS with the root certificates of gRPC, or `TlsOptions`.
        timeout_s: Default deadline of each call, in seconds; for a stream, of the whole stream.
        options: Further channel arguments of gRPC; they override those of the client.
        allow_plaintext_token: Without TLS, a token for another machine is rejected unless this is True; for
            networks with encryption of their own.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        token: AsyncToken | None = None,
        tls: TlsOptions | bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        options: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        allow_plaintext_token: bool = False,
    ) -> None:
        connection = Connection(
            target=target,
            tls=tls,
            timeout_s=timeout_s,
            options=dict(options),
            has_token=bool(token),
            allow_plaintext_token=allow_plaintext_token,
        )
        self._link = AsyncLink(connection, token)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Make a client from REASOND_TARGET, _TOKEN, _TLS, _CA_FILE, _TIMEOUT_S, _ALLOW_PLAINTEXT_TOKEN.

        Args:
            environ: The variables; the environment of the process if None.

        Raises:
            ValueError: A variable is invalid.
            OSError: The file of REASOND_CA_FILE cannot be read.
        """
        return cls(**arguments_from(os.environ if environ is None else environ))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._link.connection.target!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the calls that still run and close the connection; closing twice does nothing."""
        await self._link.close()

    async def reason(
        self,
        query: str,
        *,
        material: str = "",
        strategy: str | None = None,
        config: requests.StrategyConfig | Mapping[str, Any] | None = None,
        agent: str = "",
        agent_capabilities: Iterable[str] = (),
        budget: Budget | None = None,
        system: str = "",
        history: Iterable[requests.HistoryEntry] = (),
        model: str | None = None,
        stop: Iterable[str] = (),
        answer_schema: Mapping[str, Any] | None = None,
        images: Iterable[requests.ImageEntry] = (),
        request_id: str | None = None,
        trace_view: TraceView.ValueType = TraceView.TRACE_VIEW_UNSPECIFIED,
        timeout_s: float | None = None,
    ) -> Reasoning:
        """Run `query` and return the result.

        Args:
            query: The question, 1-100,000 characters.
            material: The long text that the question is about, at most 2,000,000 bytes of UTF-8.
            strategy: Name of the strategy; None leaves the choice to the agent or the server.
            config: A configuration message, or a mapping with the fields of the message for `strategy`.
            agent: A registered agent whose strategies apply.
            agent_capabilities: Capabilities that narrow the choice.
            budget: Limits on the spending of the execution.
            system: Instructions of the application, part of every model call.
            history: The earlier messages of the conversation, oldest first: messages, or pairs of "user" or
                "assistant" and the text.
            model: Name of a backend that the operator offers; None takes the server's model.
            stop: Strings that end the answer.
            answer_schema: The JSON Schema that the answer must satisfy; the result has it as `answer_json`.
            images: The images that the question is about: messages, or pairs of a media type and the content.
            request_id: Idempotency key: the same id with the same request finds the same execution; random if None.
            trace_view: The level of detail of the steps in the result.
            timeout_s: Deadline of this call in seconds.
        """
        task = requests.reasoning_task(
            query,
            material=material,
            strategy=strategy,
            config=config,
            agent=agent,
            agent_capabilities=agent_capabilities,
            budget=budget,
            system=system,
            history=history,
            model=model,
            stop=stop,
            answer_schema=answer_schema,
            images=images,
        )
        request = requests.reason_request(task, request_id=request_id, trace_view=trace_view)
        return (await self._link.answer(self._link.reasoning.Reason, request, timeout_s)).reasoning

    def reason_iterations(
        self,
        query: str,
        *,
        material: str = "",
        strategy: str | None = None,
        config: requests.StrategyConfig | Mapping[str, Any] | None = None,
        agent: str = "",
        agent_capabilities: Iterable[str] = (),
        budget: Budget | None = None,
        system: str = "",
        history: Iterable[requests.HistoryEntry] = (),
        model: str | None = None,
        stop: Iterable[str] = (),
        answer_schema: Mapping[str, Any] | None = None,
        images: Iterable[requests.ImageEntry] = (),
        request_id: str | None = None,
        include_deltas: bool = False,
        keep_running: bool = False,
        reconnect: bool | ReconnectPolicy = False,
        timeout_s: float | None = None,
    ) -> AsyncReasoningStream:
        """Run `query` and stream every step; arguments with the same names as those of `reason` mean the same.

        Args:
            query: The question.
            material: See `reason`.
            strategy: See `reason`.
            config: See `reason`.
            agent: See `reason`.
            agent_capabilities: See `reason`.
            budget: See `reason`.
            system: See `reason`.
            history: See `reason`.
            model: See `reason`.
            stop: See `reason`.
            answer_schema: See `reason`.
            images: See `reason`.
            request_id: See `reason`.
            include_deltas: Also stream the text of the model as it is generated, between the steps.
            keep_running: Continue the execution if the stream ends early or breaks, so that `resume` can follow it.
            reconnect: Resume automatically if the connection breaks; needs `keep_running`. Steps are never
                repeated, deltas may be.
            timeout_s: Deadline of the whole stream in seconds.
        """
        if reconnect and not keep_running:
            raise ValueError("reconnect needs keep_running=True: an execution that ends with its stream is gone")
        task = requests.reasoning_task(
            query,
            material=material,
            strategy=strategy,
            config=config,
            agent=agent,
            agent_capabilities=agent_capabilities,
            budget=budget,
            system=system,
            history=history,
            model=model,
            stop=stop,
            answer_schema=answer_schema,
            images=images,
        )
        request = requests.start_request(
            task, request_id=request_id, include_deltas=include_deltas, keep_running=keep_running
        )
        return self._stream(request, reconnect=reconnect, timeout_s=timeout_s)

    def resume(
        self,
        execution_id: str,
        *,
        after_sequence: int = 0,
        include_deltas: bool = False,
        keep_running: bool = False,
        reconnect: bool | ReconnectPolicy = False,
        timeout_s: float | None = None,
    ) -> AsyncReasoningStream:
        """Stream the events of an execution after `after_sequence`; 0 replays it from the start."""
        request = requests.resume_request(
            execution_id, after_sequence=after_sequence, include_deltas=include_deltas, keep_running=keep_running
        )
        return self._stream(request, reconnect=reconnect, timeout_s=timeout_s)

    async def list_strategies(self, *, timeout_s: float | None = None) -> reasoning_pb.ListStrategiesResponse:
        """Return all enabled strategies, with the server's model and its warnings."""
        everything = reasoning_pb.ListStrategiesResponse()
        request = reasoning_pb.ListStrategiesRequest()
        while True:
            page = await self._link.answer(self._link.reasoning.ListStrategies, request, timeout_s)
            everything.strategies.extend(page.strategies)
            if not page.next_page_token:
                everything.model = page.model
                everything.warnings.extend(page.warnings)
                return everything
            request.page_token = page.next_page_token

    async def get_execution(
        self,
        execution_id: str,
        *,
        trace_view: TraceView.ValueType = TraceView.TRACE_VIEW_UNSPECIFIED,
        timeout_s: float | None = None,
    ) -> executions_pb.GetExecutionResponse:
        """Return an execution with its result, which is partial while it runs and after a failure."""
        request = executions_pb.GetExecutionRequest(execution_id=execution_id, trace_view=trace_view)
        return await self._link.answer(self._link.executions.GetExecution, request, timeout_s)

    def follow_execution(
        self,
        execution_id: str,
        *,
        after_sequence: int = 0,
        include_deltas: bool = False,
        reconnect: bool | ReconnectPolicy = False,
        timeout_s: float | None = None,
    ) -> AsyncExecutionStream:
        """Observe an execution of any kind: stream its events after `after_sequence`, from the start with 0.

        The stream neither keeps the execution running nor cancels it by ending; `resume` does both.

        Args:
            execution_id: The id of a task, a turn or a repair.
            after_sequence: The last sequence number that was seen.
            include_deltas: Also stream the text of the model as it is generated, between the events.
            reconnect: Follow again automatically if the connection breaks. Logged events are never repeated, deltas
                may be.
            timeout_s: Deadline of the whole stream in seconds.
        """
        request = executions_pb.FollowExecutionRequest(
            execution_id=execution_id, after_sequence=after_sequence, include_deltas=include_deltas
        )
        progress = Progress(
            start=request,
            policy=policy_of(reconnect),
            timeout_s=self._link.connection.deadline_s(timeout_s),
            has_token_provider=self._link.has_token_provider,
        )
        return AsyncExecutionStream(self._link.open_observation, progress)

    async def cancel_execution(self, execution_id: str, *, timeout_s: float | None = None) -> Execution:
        """Cancel a running execution and return it; its partial result is kept."""
        request = executions_pb.CancelExecutionRequest(execution_id=execution_id)
        return (await self._link.answer(self._link.executions.CancelExecution, request, timeout_s)).execution

    async def list_executions(
        self,
        *,
        strategy: str = "",
        finish_reason: FinishReason.ValueType = FinishReason.FINISH_REASON_UNSPECIFIED,
        state: ExecutionState.ValueType = ExecutionState.EXECUTION_STATE_UNSPECIFIED,
        create_time_after: datetime | None = None,
        create_time_before: datetime | None = None,
        text: str = "",
        page_size: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Execution]:
        """Iterate over the caller's executions, newest first; pages are fetched as needed.

        Args:
            strategy: Only those of this strategy.
            finish_reason: Only those that ended so.
            state: Only those that are in this state.
            create_time_after: Only those that began at this time or later; a time without a zone is local.
            create_time_before: Only those that began before this time.
            text: Only those with this text in their id, question, outcome, client or model, whatever its case.
            page_size: Most executions of one page; 0 leaves it to the server.
            timeout_s: Deadline of each call in seconds.
        """
        request = executions_pb.ListExecutionsRequest(
            strategy=strategy,
            finish_reason=finish_reason,
            state=state,
            create_time_after=requests.timestamp(create_time_after),
            create_time_before=requests.timestamp(create_time_before),
            text=text,
            page_size=page_size,
        )
        while True:
            page = await self._link.answer(self._link.executions.ListExecutions, request, timeout_s)
            for execution in page.executions:
                yield execution
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def list_model_calls(
        self, execution_id: str, *, page_size: int = 0, timeout_s: float | None = None
    ) -> AsyncIterator[executions_pb.ModelCall]:
        """Iterate over the model calls of an execution with their prompts and replies, oldest first.

        There are none unless the server keeps them (`[store] record_prompts`).
        """
        request = executions_pb.ListModelCallsRequest(execution_id=execution_id, page_size=page_size)
        while True:
            page = await self._link.answer(self._link.executions.ListModelCalls, request, timeout_s)
            for call in page.calls:
                yield call
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def delete_execution(self, execution_id: str, *, timeout_s: float | None = None) -> None:
        """Delete an execution and its content; a running one is cancelled first."""
        request = executions_pb.DeleteExecutionRequest(execution_id=execution_id)
        await self._link.answer(self._link.executions.DeleteExecution, request, timeout_s)

    async def get_agent_card(
        self, agent_id: str = "", *, timeout_s: float | None = None
    ) -> agents_pb.GetAgentCardResponse:
        """Return the card of a registered agent, or the server's own."""
        request = agents_pb.GetAgentCardRequest(agent_id=agent_id)
        return await self._link.answer(self._link.agents.GetAgentCard, request, timeout_s)

    async def list_agents(
        self, *, capabilities: Iterable[str] = (), page_size: int = 0, timeout_s: float | None = None
    ) -> AsyncIterator[agents_pb.Agent]:
        """Iterate over the agents that have all `capabilities`, by id; pages are fetched as needed."""
        request = agents_pb.ListAgentsRequest(capabilities=capabilities, page_size=page_size)
        while True:
            page = await self._link.answer(self._link.agents.ListAgents, request, timeout_s)
            for agent in page.agents:
                yield agent
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def register_agent(
        self,
        card: requests.Card,
        *,
        agent_id: str = "",
        ttl_s: float | None = None,
        etag: str = "",
        timeout_s: float | None = None,
    ) -> agents_pb.Agent:
        """Register an agent or replace its card.

        Args:
            card: An `AgentCard`, JSON text (stored byte for byte), or a mapping.
            agent_id: May be omitted if a small card has an `id`.
            ttl_s: Seconds until the entry expires unless it is registered again; None means never.
            etag: If set, the entry must exist with this etag.
            timeout_s: Deadline of this call in seconds.
        """
        request = requests.register_request(card, agent_id=agent_id, ttl_s=ttl_s, etag=etag)
        return (await self._link.answer(self._link.agents.RegisterAgent, request, timeout_s)).agent

    async def delete_agent(self, agent_id: str, *, etag: str = "", timeout_s: float | None = None) -> None:
        """Remove an agent from the directory; with `etag`, only if the entry still has that etag."""
        request = agents_pb.DeleteAgentRequest(agent_id=agent_id, etag=etag)
        await self._link.answer(self._link.agents.DeleteAgent, request, timeout_s)

    def _stream(
        self,
        request: reasoning_pb.ReasonIterationsRequest,
        *,
        reconnect: bool | ReconnectPolicy,
        timeout_s: float | None,
    ) -> AsyncReasoningStream:
        progress = Progress(
            start=request,
            policy=policy_of(reconnect),
            timeout_s=self._link.connection.deadline_s(timeout_s),
            has_token_provider=self._link.has_token_provider,
        )
        return AsyncReasoningStream(self._link.open_events, progress)
