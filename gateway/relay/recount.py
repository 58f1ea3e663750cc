"""Counts a prompt with the tokenizer of an engine that serves the model, where its bytes are too coarse a bound.

Asked only near the end of a budget, in a task that waits for the limiter anyhow; few at a time, and not for long: it
must not become a way to make engines work for requests that are refused.
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from gateway.policies.breaker import AttemptOutcome
from gateway.relay.attempt import Attempt
from gateway.relay.deadlines import Deadlines
from gateway.relay.failure import AttemptFailed
from gateway.relay.picker import Balancer
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body
from gateway.relay.upstream import UpstreamClient
from gateway.relay.upstream_errors import UpstreamError

DEADLINE_SECONDS: Final = 2.0
MOST_AT_ONCE: Final = 8

_NOT_ASKED: Final = frozenset(
    {"max_tokens", "max_completion_tokens", "n_predict", "n", "best_of", "stream", "stream_options", "stop", "logprobs"}
) | {"top_logprobs", "temperature", "top_p", "seed", "user", "metadata", "logit_bias", "echo", "store"}
"""What makes no token of a prompt. Whatever else there is may be of use to a template."""

_COUNTED: Final = frozenset({Api.CHAT, Api.COMPLETIONS})


class _Answer(msgspec.Struct):
    count: int


_answers = msgspec.json.Decoder(_Answer)


class EngineCounter:
    """See gateway.relay.reserve.TokenCounter. `now`: monotonic seconds."""

    def __init__(
        self, balancer: Balancer, client: UpstreamClient, deadlines: Deadlines, *, now: Callable[[], float]
    ) -> None:
        self._balancer = balancer
        self._client = client
        self._deadlines = deadlines
        self._now = now
        self._under_way = 0

    async def count(
        self, request: SlimRequest, work: Work, model_id: UUID, tenant_id: UUID | None = None
    ) -> int | None:
        """Tokens of the prompt; None where no engine can say, or none says in time."""
        if work.api not in _COUNTED or self._under_way >= MOST_AT_ONCE or not self._one_prompt(work):
            return None
        picker = self._balancer.picker(model_id, Api.TOKENIZE, tenant_id)
        endpoint = picker.pick(frozenset())
        if endpoint is None:
            return None
        body = _question(work)
        asked = Work(Api.TOKENIZE, ENGINE_PATHS[Api.TOKENIZE], body, parse_body(Api.TOKENIZE, body))
        ends_at = self._now() + DEADLINE_SECONDS
        attempt = Attempt(request, asked, endpoint, self._client, self._deadlines, now=self._now, ends_at=ends_at)
        self._under_way += 1
        picker.started(endpoint)
        whole = False
        try:
            await attempt.open(None)
            if attempt.stream is not None:
                return None
            answer = await attempt.read_whole()
            whole = True
            return max(0, _answers.decode(answer.body).count)
        except (UpstreamError, AttemptFailed, msgspec.DecodeError):
            return None  # the bytes' bound stands
        finally:
            self._under_way -= 1
            if whole:
                attempt.release()
            else:
                attempt.close()
            picker.finished(endpoint, AttemptOutcome.OK if whole else AttemptOutcome.NEUTRAL)

    def _one_prompt(self, work: Work) -> bool:
        """Engines count one prompt at a time, and a text alone."""
        span = work.parsed.spans.get("prompt")
        return work.api is Api.CHAT or (span is not None and work.body.startswith(b'"', span[2]))


def _question(work: Work) -> bytes:
    """Of a body those members that make its prompt."""
    spans, body = work.parsed.spans, work.body
    other = "prompt" if work.api is Api.CHAT else "messages"
    parts = [body[span[0] : span[3]] for name, span in spans.items() if name not in _NOT_ASKED and name != other]
    return b"{" + b",".join(parts) + b"}"
