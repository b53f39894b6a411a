"""Which rows of a step's logits verify which draft.

::

    requests with     2 drafts      none   3 drafts
    logits rows       0   1   2     3      4   5   6   7
    stands before     d0  d1  +     +      d2  d3  d4  +        +: behind the last draft
    request           0   0   0     1      2   2   2   2
    num_before        0   1   2     0      0   1   2   3
    first_rows        0             3      4                8
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.worker.input_batch import InputBatch
from engine.worker.step_inputs import StepInputs


class SpecDecodeMetadata(NamedTuple):
    """The drafts of a step; its requests are those that are sampled."""

    request: NDArray[np.int64]
    """[logits rows]: whose."""
    num_before: NDArray[np.int64]
    """[logits rows]: drafts of the request that stand before the row's place."""
    first_rows: NDArray[np.int64]
    """[requests + 1]: request r owns the rows first_rows[r] : first_rows[r + 1]."""
    draft_token_ids: NDArray[np.int64]
    """[drafts], request after request."""
    start_loc: NDArray[np.int64]
    """[requests + 1]: request r owns the drafts start_loc[r] : start_loc[r + 1]."""
    num_drafts: NDArray[np.int64]
    """[requests]."""


def calc_spec_decode_metadata(batch: InputBatch, inputs: StepInputs) -> SpecDecodeMetadata:
    """Lay out the logits of a step with drafts, which stand in the batch behind their requests' tokens."""
    num_drafts, rows = inputs.num_drafts, inputs.rows[inputs.sampled]
    requests = np.arange(len(num_drafts))
    start_loc = np.concatenate(([0], num_drafts.cumsum()))
    first_rows = start_loc + np.arange(len(start_loc))
    of_draft = requests.repeat(num_drafts)
    place = np.arange(start_loc[-1]) - start_loc[of_draft]
    of_row = requests.repeat(num_drafts + 1)
    return SpecDecodeMetadata(
        request=of_row,
        num_before=np.arange(first_rows[-1]) - first_rows[of_row],
        first_rows=first_rows,
        draft_token_ids=batch.token_ids[rows[of_draft], batch.num_tokens[rows[of_draft]] + place].astype(np.int64),
        start_loc=start_loc,
        num_drafts=num_drafts,
    )
