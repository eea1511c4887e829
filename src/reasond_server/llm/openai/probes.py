"""Probes: a few short calls that show how a server behaves and what its profile should be. Never part of a request.

Each probe looks for positive evidence. Without evidence for or against, it draws no conclusion.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from reasond_server.dialects.reasoning_marks import LONE_CLOSE, MarkReader
from reasond_server.dialects.usage_forms import read_report
from reasond_server.dialects.window_errors import is_starved, read_too_long
from reasond_server.errors.access import AccessError, PermissionMissingError
from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelError, ModelFailedError
from reasond_server.llm.openai.probe_calls import ProbeClient, ProbeReply
from reasond_server.llm.profiles import LimitField, SchemaLevel, find_differences, find_profile, is_hosted, merge
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.profiles import ModelProfile

DEFAULT_LIMIT_S = 20.0
_MANY_STOPS = 16
_PLAIN = "Count from one to twenty in words."
# Servers add their own instructions and dates, but never ten thousand tokens to a call without tools.
_MOST_TEMPLATE = 10_000
_USUAL_STOPS = 4
_REFUSALS = range(400, 600)
_NOT_ALLOWED = (401, 403)
_MISSING = 404
_REMEDIES = {_MISSING: "Check base_url and model.", 429: "Wait, or look at the limits and the credit of your account."}
_OWNERS = {"llamacpp": "llamacpp", "vllm": "vllm", "sglang": "sglang", "ollama": "ollama"}
_LONG_WORDS = 40_000
_SMALL_WINDOW = 8_192
# Models of OpenAI that reason refuse limits that their reasoning takes up.
_ROOM_TO_REASON = 2_048
# OpenAI and others cache prompts of 1,024 tokens and more.
_CACHED_WORDS = 1_500
_ANSWER = {"word": "zebra"}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": ["zebra"]}},
    "required": ["word"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tells the time.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@value
class ProbeFinding:
    """The finding of one probe. `learned` are profile fields with the observed values."""

    subject: str
    holds: Literal["yes", "no", "unknown"]
    evidence: str
    learned: Mapping[str, object]


@value
class Report:
    """The findings about a backend.

    `base` is the profile to start from: the configured one, or the profile of the software that the server names if the
    configured one is `generic`. `profile` is `base` with everything learned. `warnings` are faults that no profile can
    correct.
    """

    findings: Sequence[ProbeFinding]
    base: ModelProfile
    profile: ModelProfile
    warnings: Sequence[str]

    @property
    def changes(self) -> dict[str, object]:
        """The fields that the operator should set in addition to the name of the base profile, as TOML values."""
        return find_differences(self.profile, self.base)


async def probe(options: BackendOptions, *, limit_s: float = DEFAULT_LIMIT_S) -> Report:
    """Examine the backend; every call is closed after `limit_s` seconds.

    Raises:
        SettingsError: the backend is configured for the Responses interface, which has no probes.
        ModelError: the server cannot be reached, or answers no plain call.
        PermissionMissingError: the server does not accept the key.
    """
    if options.protocol != "chat":
        raise SettingsError(
            f"The backend {options.name!r} uses the Responses interface, which is not probed",
            remedy='Set protocol = "chat" to examine what the server does with Chat Completions.',
        )
    async with ProbeClient(options=options, limit_s=limit_s) as client:
        return await _Examination(client=client, options=options).run()


class _Examination:
    """The probes in order; each may use the findings of earlier ones."""

    def __init__(self, *, client: ProbeClient, options: BackendOptions) -> None:
        self._client = client
        self._options = options
        self._profile = options.profile
        self._limit: str = options.profile.limit_field
        self._least = 0
        self._extra: dict[str, Any] = {}
        self._findings: list[ProbeFinding] = []
        self._warnings: list[str] = []
        self._reasoning: set[str] = set()
        self._has_marks = False
        self._owner = ""
        self._is_usage_believed = True

    async def run(self) -> Report:
        """Run all probes."""
        plain = await self._probe_plain()
        await self._probe_sampling()
        await self._probe_limits()
        await self._probe_stops(plain)
        await self._probe_schema()
        await self._probe_tools()
        await self._probe_systems()
        await self._probe_counting()
        await self._probe_window()
        await self._probe_cache()
        self._note_reasoning()
        learned: dict[str, object] = {}
        for finding in self._findings:
            learned |= finding.learned
        base = self._find_base()
        return Report(
            findings=tuple(self._findings), base=base, profile=merge(base, learned), warnings=tuple(self._warnings)
        )

    async def _call(self, text: str = _PLAIN, *, limit: int = 24, **fields: Any) -> ProbeReply:  # noqa: ANN401 - any JSON
        """Make a call with the parameters that are known to work; `fields` take precedence."""
        most = max(limit, self._least)
        body = {"messages": [{"role": "user", "content": text}], self._limit: most, **self._extra, **fields}
        reply = await self._client.chat(body)
        if most < _ROOM_TO_REASON and is_starved({"message": reply.error}):
            self._least = _ROOM_TO_REASON
            return await self._call(text, limit=limit, **fields)
        self._reasoning |= reply.reasoning
        reader = MarkReader()
        pieces = [*reader.feed(reply.text), *reader.flush()]
        self._has_marks |= any(piece.is_reasoning or LONE_CLOSE in piece.text for piece in pieces)
        return reply

    def _note(
        self,
        subject: str,
        holds: bool | None,  # noqa: FBT001 - None means unknown
        evidence: str,
        **learned: object,
    ) -> None:
        word: Literal["yes", "no", "unknown"] = "unknown"
        if holds is not None:
            word = "yes" if holds else "no"
        self._findings.append(ProbeFinding(subject=subject, holds=word, evidence=evidence, learned=learned))

    async def _probe_plain(self) -> ProbeReply:
        """Find a form of call that works, and whether its stream reports usage."""
        usage: dict[str, Any] = {"stream_options": {"include_usage": True}}
        first = reply = await self._call(**usage)
        if first.status in _REFUSALS and first.status not in {*_NOT_ALLOWED, _MISSING}:
            other = next(name for name in LimitField if name != self._limit)
            usual = self._limit
            for self._limit, options in ((other, usage), (usual, {}), (other, {})):
                reply = await self._call(**options)
                if reply.is_ok:
                    break
        if not reply.is_ok:
            raise self._build_error(first)
        has_usage = reply.usage is not None
        if has_usage:
            self._extra = usage
        if not has_usage and reply.is_cut:
            # Usage comes last, and the call was closed before: the server ignores the limit of tokens.
            self._note("usage in the stream", None, f"include_usage: {reply.outcome}, before any usage")
            return reply
        evidence = "include_usage: usage came" if has_usage else "include_usage: no usage came"
        self._note("usage in the stream", has_usage, evidence, stream_usage=has_usage)
        if has_usage:
            self._judge_usage(reply)
        return reply

    def _judge_usage(self, reply: ProbeReply) -> None:
        """Find whether the usage of a plain call is plausible, by its number of words and bytes."""
        read = read_report(reply.usage)
        counts = [0, 0] if read is None else [read.prompt, read.output]
        least = [len(_PLAIN.split()), len(reply.text.split())]
        most = _MOST_TEMPLATE + len(_PLAIN.encode())
        are_counts = all(one >= few // 2 for one, few in zip(counts, least, strict=True))
        self._is_usage_believed = are_counts and counts[0] <= most
        evidence = f"prompt {counts[0]} of {least[0]} words, output {counts[1]} of {least[1]} words"
        if read is not None:
            reasoned = [f"{read.reasoning} of it reasoning"] if read.reasoning else []
            evidence = "; ".join((evidence, *reasoned, *read.doubts))
        self._note("usage believable", self._is_usage_believed, evidence)
        if not self._is_usage_believed:
            self._warnings.append("The server's usage cannot be true; do not rely on budgets and costs with it.")

    def _build_error(self, reply: ProbeReply) -> ModelError | AccessError:
        """Return the error for a server that answers no plain call."""
        place = self._options.base_url
        if reply.status in _NOT_ALLOWED:
            return PermissionMissingError(
                f"{place} does not accept the key ({reply.outcome})", remedy="Check what api_key_env names."
            )
        remedy = _REMEDIES.get(reply.status, "Look into the server's log.")
        return ModelFailedError(f"{place} answers no plain call ({reply.outcome})", remedy=remedy)

    async def _probe_sampling(self) -> None:
        reply = await self._call(limit=1, temperature=0.5, seed=1)
        if reply.is_ok:
            # Temperature 0 from now on, so that two calls can be compared.
            self._extra = {**self._extra, "temperature": 0}
        holds = _is_taken(reply)
        learned = {} if holds is None else {"sampling": holds}
        self._note("temperature and seed accepted", holds, reply.outcome, **learned)

    async def _probe_limits(self) -> None:
        """Find the fields in which the server respects a limit of one token."""
        honoured: dict[str, bool | None] = {}
        for name in LimitField:
            reply = await self._client.chat(
                {
                    "messages": [{"role": "user", "content": _PLAIN}],
                    name: 1,
                    **self._extra,
                }
            )
            self._reasoning |= reply.reasoning
            honoured[name] = _is_limit_kept(reply)
            self._note(f"{name} = 1 kept", honoured[name], reply.outcome)
        kept = [name for name, holds in honoured.items() if holds]
        if kept:
            self._limit = self._limit if self._limit in kept else kept[0]
            last = self._findings[-1]
            self._findings[-1] = replace(last, learned={"limit_field": str(self._limit)})
        elif False in honoured.values():
            self._warnings.append("The server keeps no limit of tokens; reasond stops reading and closes instead.")

    async def _probe_stops(self, plain: ProbeReply) -> None:
        """Find whether stop strings work, how many, and whether the server reports which one matched."""
        usual = await self._call() if "temperature" in self._extra else plain
        words = re.findall(r"\w{3,}", usual.text)[1:]
        stop = next((word for word in words if usual.text.count(word) == 1), "")
        if not stop:
            self._note("stop strings kept", None, "the text was too short to stop in")
            return
        most, evidence = 0, ""
        for count in (1, _USUAL_STOPS, _MANY_STOPS):
            # The stop string under test is the last one, so that a truncated list is detected.
            reply = await self._call(stop=[*(f"@{number}@" for number in range(count - 1)), stop])
            is_kept = _is_stop_kept(reply, usual, stop)
            if is_kept is None and count == 1:
                self._note("stop strings kept", None, f"stop {stop!r}: the text was another one")
                return
            if not is_kept:
                evidence = evidence or f"stop {stop!r}: {reply.outcome}"
                break
            most, evidence = count, f"stop {stop!r} as the last of {count}: {reply.outcome}"
            fields = [name for name, value in reply.matched.items() if value == stop]
        self._note("stop strings kept", most > 0, evidence, max_stops=most)
        if most:
            shown = f"choices[].{fields[0]} = {stop!r}" if fields else "no field names it"
            self._note("matching stop told", bool(fields), shown, stop_match_fields=fields)

    async def _probe_schema(self) -> None:
        form = {"name": "answer", "strict": True, "schema": _SCHEMA}
        reply = await self._call("Say hello.", limit=64, response_format={"type": "json_schema", "json_schema": form})
        if reply.is_ok and _parse(reply.text) == _ANSWER:
            # A probe cannot find out whether the model sees the schema, so the profile's level is kept.
            known = self._profile.json_schema
            level = known if known is SchemaLevel.STRICT else SchemaLevel.GUIDED
            self._note("json_schema enforced", True, " ".join(reply.text.split()), json_schema=str(level))
            return
        if not reply.is_ok and reply.status not in _REFUSALS:
            self._note("json_schema enforced", None, reply.outcome)
            return
        self._note("json_schema enforced", False, "ignored" if reply.is_ok else reply.outcome)
        plain = await self._call("Say hello as a JSON object.", limit=64, response_format={"type": "json_object"})
        is_object = plain.is_ok and plain.text.lstrip().startswith("{")
        less = SchemaLevel.OBJECT if is_object else SchemaLevel.NONE
        self._note("json_object enforced", is_object, plain.outcome, json_schema=str(less))

    async def _probe_tools(self) -> None:
        free = await self._call("What time is it?", tools=[_TOOL])
        named = await self._call_forced({"type": "function", "function": {"name": "get_time"}})
        is_named = "get_time" in named.tools
        forced = named if is_named else await self._call_forced("required")
        is_called = "get_time" in forced.tools
        if is_called or "get_time" in free.tools:
            self._note("tools", True, "get_time was called", tools=True)
        elif free.is_ok:
            self._note("tools", None, "accepted, none was called")
        else:
            self._note("tools", False if free.status in _REFUSALS else None, free.outcome)
        if free.status in _REFUSALS:
            self._findings[-1] = replace(self._findings[-1], learned={"tools": False})
        # A reply that was still being written shows nothing: llama.cpp forces a call only by forbidding the end.
        is_ended = forced.is_ok and forced.finish == "stop" and not forced.is_cut
        is_told = is_called or is_ended or forced.status in _REFUSALS
        learned = {"forced_tool_choice": is_called} if is_told else {}
        evidence = "get_time was called" if is_called else forced.outcome
        self._note("forced tool choice", is_called if is_told else None, evidence, **learned)
        if is_called:
            evidence = "get_time was called" if is_named else f"{named.outcome}; by 'required' it was called"
            self._note("tool demanded by name", is_named, evidence, named_tool_choice=is_named)

    async def _call_forced(self, choice: str | dict[str, Any]) -> ProbeReply:
        return await self._call("Say hello.", limit=64, tools=[_TOOL], tool_choice=choice)

    async def _probe_systems(self) -> None:
        systems = [{"role": "system", "content": text} for text in ("Be brief.", "Be kind.")]
        reply = await self._call(limit=1, messages=[*systems, {"role": "user", "content": "Hello."}])
        holds = _is_taken(reply)
        learned = {} if holds is None else {"several_system_messages": holds}
        self._note("several system messages", holds, reply.outcome, **learned)

    async def _probe_counting(self) -> None:
        """Find where the server counts tokens: after applying the template (llama.cpp), or from messages (vLLM)."""
        messages = [{"role": "user", "content": "Hello."}]
        prompt = await self._client.post("/apply-template", {"messages": messages})
        if isinstance(prompt, dict) and isinstance(prompt.get("prompt"), str):
            counted = await self._client.post("/tokenize", {"content": prompt["prompt"], "add_special": True})
            if isinstance(counted, dict) and isinstance(counted.get("tokens"), list):
                evidence = f"/apply-template and /tokenize: {len(counted['tokens'])} tokens"
                self._note("tokens counted", True, evidence, count_path="/apply-template")
                return
        counted = await self._client.post("/tokenize", {"model": self._options.model, "messages": messages})
        if isinstance(counted, dict) and isinstance(counted.get("count"), int):
            self._note("tokens counted", True, f"/tokenize: {counted['count']} tokens", count_path="/tokenize")
            return
        learned = {} if is_hosted(self._options.base_url) else {"count_path": ""}
        self._note("tokens counted", False, "neither /apply-template nor /tokenize answers", **learned)

    async def _probe_window(self) -> None:
        """Find the context window: as the server reports it, else from its answer to a text that is too long."""
        listed = await self._client.get("/v1/models")
        entry = _find_entry(listed, self._options.model)
        self._owner = str(entry.get("owned_by", ""))
        props = await self._client.get("/props")
        settings = props.get("default_generation_settings") if isinstance(props, dict) else None
        # Ollama's list of what it has loaded; the owner of a model there is whoever published it.
        loaded = await self._client.get("/api/ps")
        self._owner = "ollama" if isinstance(loaded, dict) and "models" in loaded else self._owner
        sizes = (
            ("/props", settings.get("n_ctx") if isinstance(settings, dict) else None),
            ("/api/ps", _find_entry(loaded, self._options.model, among="models", by="name").get("context_length")),
            ("/v1/models max_model_len", entry.get("max_model_len")),
            ("/v1/models context_length", entry.get("context_length")),
        )
        for place, tokens in sizes:
            if isinstance(tokens, int) and tokens > 0:
                self._note("context window", True, f"{place}: {tokens} tokens", context_window=tokens)
                if place == "/api/ps" and tokens < _SMALL_WINDOW:
                    self._warnings.append(
                        f"Ollama reads {tokens} tokens and drops the rest of a prompt without a word: start it with a "
                        "larger OLLAMA_CONTEXT_LENGTH, and try again."
                    )
                return
        if is_hosted(self._options.base_url):
            self._note("context window", None, "not told; a text that is too long was not tried, as it costs money")
            return
        await self._probe_overflow()

    async def _probe_overflow(self) -> None:
        reply = await self._call("one " * _LONG_WORDS, limit=1)
        named = read_too_long({"message": reply.error})
        prompt = (reply.usage or {}).get("prompt_tokens")
        if reply.is_ok and not self._is_usage_believed:
            self._note("context window", None, "the usage that would tell is not to be believed")
        elif reply.status in _REFUSALS and named is not None and named.window:
            self._note("context window", True, reply.outcome, context_window=named.window)
        elif reply.is_ok and isinstance(prompt, int) and 0 < prompt < _LONG_WORDS * 3 // 4:
            self._warnings.append(f"The server silently cut a prompt of about {_LONG_WORDS} tokens down to {prompt}.")
            self._note("context window", True, f"a longer prompt was cut to {prompt} tokens", context_window=prompt)
        else:
            self._note("context window", None, reply.outcome)

    async def _probe_cache(self) -> None:
        """Find whether the server tells how much of a prompt that it has read before came from its cache."""
        if is_hosted(self._options.base_url):
            self._note("cached tokens told", None, "a long prompt was not sent twice, as it costs money")
            return
        for _ in range(2):
            reply = await self._call("one " * _CACHED_WORDS, limit=1)
        report = read_report(reply.usage)
        cached = 0 if report is None else report.cached
        evidence = f"{cached} tokens of a prompt that was sent twice" if reply.is_ok else reply.outcome
        self._note("cached tokens told", bool(cached) if report is not None else None, evidence)

    def _note_reasoning(self) -> None:
        if self._has_marks:
            self._note("reasoning told apart", False, "the text has its marks, by which it is read all the same")
            return
        if not self._reasoning:
            self._note("reasoning told apart", None, "no call showed any")
            return
        usual = [name for name in self._profile.reasoning_fields if name not in self._reasoning]
        fields = [*sorted(self._reasoning), *usual]
        is_known = bool(self._profile.reasoning_fields) and self._profile.reasoning_fields[0] in self._reasoning
        learned = {} if is_known else {"reasoning_fields": fields}
        self._note("reasoning told apart", True, f"in {', '.join(sorted(self._reasoning))}", **learned)

    def _find_base(self) -> ModelProfile:
        """Return the profile to start from: the chosen one; instead of `generic`, that of the server's owner."""
        name = _OWNERS.get(self._owner, "")
        is_open = self._profile.name == "generic" and name
        return find_profile(self._options.model, self._options.base_url, name) if is_open else self._profile


def _is_limit_kept(reply: ProbeReply) -> bool | None:
    """Return whether a limit of one token was respected; None if the model may have ended on its own."""
    if not reply.is_ok:
        return True if is_starved({"message": reply.error}) else _is_taken(reply)
    # The reported usage may be false, but no token is three words.
    if reply.tokens > 1 or len(reply.text.split()) > 2:  # noqa: PLR2004 - see above
        return False
    return True if reply.finish == "length" else None


def _is_stop_kept(reply: ProbeReply, usual: ProbeReply, stop: str) -> bool | None:
    """Return whether the text ended before `stop`; None if the text differs from the usual one."""
    if not reply.is_ok:
        return _is_taken(reply)
    if stop in reply.text:
        return False
    before = usual.text.partition(stop)[0]
    return True if reply.text.strip() == before.strip() and reply.finish == "stop" else None


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _find_entry(listed: object, model: str, *, among: str = "data", by: str = "id") -> dict[str, Any]:
    """Return the entry of `model` in a list of models, or the only entry; empty if there is none."""
    data = listed.get(among) if isinstance(listed, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    named = [entry for entry in entries if entry.get(by) in {model, f"{model}:latest"}]
    if named:
        return named[0]
    return entries[0] if len(entries) == 1 else {}


def _is_taken(reply: ProbeReply) -> bool | None:
    """Return whether a server accepted the call; None if neither success nor a refusal was received."""
    if reply.is_ok:
        return True
    return False if reply.status in _REFUSALS else None
