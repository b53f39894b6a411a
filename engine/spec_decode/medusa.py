"""`MedusaProposer`: several heads guess the tokens after the next one out of the model's last state, all at once.

No head sees what another has guessed, and none has KV: a step's drafts cost one small product more.

Source: Medusa (Cai et al. 2024), its first choices as a chain.
"""

from __future__ import annotations

import numpy as np

from engine.models.medusa_head import MedusaHead
from engine.spec_decode.drafts import Drafts, DraftVocabulary
from engine.spec_decode.proposer import Proposals, SampledStep
from engine.worker.copies import to_device


class MedusaProposer:
    """Asks Medusa's heads.

    Args:
        head: the heads.
        vocab_size: of the model.
        confidence_threshold: what a head says is not drafted where the one before it is less sure of its draft.
    """

    def __init__(self, head: MedusaHead, vocab_size: int, confidence_threshold: float = 0.0) -> None:
        self.head = head
        self.confidence_threshold = confidence_threshold
        self.vocabulary = DraftVocabulary(vocab_size, head.target_ids)

    def propose_draft_token_ids(self, step: SampledStep) -> Proposals:
        """See `Proposer`."""
        drafts = Drafts(step, self.vocabulary, self.confidence_threshold)
        places = np.flatnonzero(step.num_wanted)
        if not places.size:
            return drafts.proposals()
        logits = self.head.compute_logits(step.hidden[to_device(_last_tokens(step)[places], step.hidden.device)])
        alive = np.arange(len(places))
        for number in range(int(step.num_wanted.max())):
            alive = alive[step.num_wanted[places[alive]] > number]
            if not alive.size:
                break
            may_go_on = drafts.draw(places[alive], number, logits[number, to_device(alive, logits.device)])
            alive = alive[may_go_on]
        return drafts.proposals()


def _last_tokens(step: SampledStep) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[requests]: where in the super-sequence the token stands that a request's newest was sampled behind."""
    inputs = step.inputs
    starts = inputs.query_start_loc.numpy()[:-1]
    first = inputs.positions.numpy()[starts]
    places: np.ndarray[tuple[int], np.dtype[np.int64]] = starts + step.batch.num_tokens[inputs.rows] - 2 - first
    return places
