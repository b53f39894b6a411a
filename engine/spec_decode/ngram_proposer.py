"""`NgramProposer`: what stood behind the same words before, may follow them again (Saxena, "Prompt lookup decoding").

::

    context         the crank turns the gears and the crank ?
    longest match   the crank                   the crank
    drafts                    turns the gears             ─►  turns the gears
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.spec_decode.proposer import Proposals, SampledStep
from engine.speculation import NgramMatch


class NgramProposer:
    """Looks for the last tokens of a request among its earlier ones.

    Args:
        shortest: tokens of the shortest n-gram worth a proposal (prompt_lookup_min).
        longest: tokens of the longest that is looked for (prompt_lookup_max).
        match: which place wins among those that match the longest: the first, as in vLLM, or the last.
    """

    def __init__(self, shortest: int, longest: int, match: Literal["first", "last"] = "first") -> None:
        self.shortest, self.longest = shortest, longest
        self.match = match

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """See `Proposer`."""
        drafts: list[list[int]] = [[] for _ in step.inputs.serials]
        matches: list[NgramMatch | None] = [None] * len(drafts)
        for place in step.num_wanted.nonzero()[0].tolist():
            row = int(step.inputs.rows[place])
            # The ids of a prompt that came as embeddings mean nothing.
            first = int(step.batch.num_prompt_tokens[row]) if row in step.batch.prompt_embeds else 0
            context = step.batch.token_ids[row, first : step.batch.num_tokens[row]]
            found = self.find(context)
            if found is not None:
                behind = found.position + found.num_tokens
                drafts[place] = context[behind : behind + step.num_wanted[place]].tolist()
                matches[place] = NgramMatch(first + found.position, found.num_tokens)
        return Proposals(drafts, matches=matches)

    def find(self, context: NDArray[np.int32]) -> NgramMatch | None:
        """The longest n-gram at the end of `context` [num_tokens] that stands in it before, if any is long enough."""
        # Places where the n-gram could end; with each further token to the left, fewer of them are left.
        ends, length = np.flatnonzero(context[:-1] == context[-1]), 1
        while ends.size and length < self.longest:
            longer = ends[ends >= length]
            longer = longer[context[longer - length] == context[-1 - length]]
            if not longer.size:
                break
            ends, length = longer, length + 1
        if not ends.size or length < self.shortest:
            return None
        end = int(ends[0 if self.match == "first" else -1])
        return NgramMatch(end - length + 1, length)
