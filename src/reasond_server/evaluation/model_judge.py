"""The judge of answers that no rule can compare: a model that sees the right one."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import reasond
from reasond_server.evaluation.graders import Grade

if TYPE_CHECKING:
    from reasond import AsyncClient
    from reasond_server.evaluation.items import Item

_SCHEMA: Final = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "is_same": {"type": "boolean"}},
    "required": ["reason", "is_same"],
    "additionalProperties": False,
}


@dataclass(eq=False, kw_only=True)
class ModelJudge:
    """Asks a model whether an answer says the same as the right one, once for equal answers.

    Args:
        model: the name of the judge's backend; empty for the server's own model.

    Attributes:
        tokens: what all judgements of this process took.
    """

    client: AsyncClient
    model: str = ""
    timeout_s: float = 600.0
    tokens: int = field(default=0, init=False)

    async def __call__(self, item: Item, answer: str) -> Grade:
        """Return the verdict; see the port."""
        parts = {"question": item.asked, "right_answer": item.right, "answer_to_judge": answer}
        material = json.dumps(parts, ensure_ascii=False, indent=1)
        digest = hashlib.sha256(f"{self.model}\n{material}".encode()).hexdigest()[:40]
        try:
            result = await self.client.reason(
                "Does answer_to_judge give the same final answer to the question as right_answer? Wording, form and "
                "length do not count; what is asked for must be the same.",
                material=material,
                strategy="chain_of_thought",
                config={"temperature": 0.0},
                model=self.model or None,
                answer_schema=_SCHEMA,
                request_id=f"eval-judge-{digest}",
                timeout_s=self.timeout_s,
            )
        except (reasond.ModelError, reasond.DeadlineExceededError) as error:
            return Grade(is_right=False, note=f"not judged: {error.message}")
        self.tokens += result.metrics.total_tokens
        if not result.answer_json:
            return Grade(is_right=False, note="not judged: the judge's answer could not be read")
        found = json.loads(result.answer_json)
        return Grade(is_right=found["is_same"], note=f"judge: {found['reason']}")
