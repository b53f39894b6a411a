"""One plausible event of every type, as the documentation shows it: two requests that begin alike, in a small pool."""

from __future__ import annotations

from engine.automaton import Automaton, Edge
from engine.config import (
    CacheConfig,
    EngineConfig,
    KVCacheConfig,
    KVCacheGroup,
    ModelConfig,
    ModelFacts,
    SchedulerConfig,
    TraceConfig,
)
from engine.sampling_params import SamplingParams
from engine.speculation import LikelyTokens, NgramMatch
from engine.trace import events as ev

_NONE, _FIRST, _SECOND = "37ac", "9f02", "c41d"  # hashes are 32 bytes; two are enough to see the chain

HEADER = ev.Header(
    schema_version=ev.SCHEMA_VERSION,
    engine_version="2026.11.0",
    level="forward",
    config=EngineConfig(
        model=ModelConfig(model="orrery-tiny"),
        cache=CacheConfig(block_size=16, num_gpu_blocks_override=64),
        scheduler=SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=8),
        trace=TraceConfig(level="forward"),
    ),
    model=ModelFacts(
        name="orrery-tiny",
        architecture="LlamaForCausalLM",
        num_layers=4,
        hidden_size=192,
        num_attention_heads=6,
        num_kv_heads=2,
        head_size=32,
        vocab_size=2048,
        max_model_len=1024,
        dtype="float32",
        eos_token_ids=(2,),
        num_parameters=1_375_000,
        intermediate_size=512,
    ),
    kv_cache=KVCacheConfig(
        num_gpu_blocks=64,
        block_size=16,
        groups=(KVCacheGroup(num_layers=4, block_bytes=32_768),),
        none_hash=_NONE,
    ),
    tokenizer="orrery-tiny sha256:5e1f",
    device="cpu",
    environment={"python": "3.11.2", "torch": "2.13.0"},
)

_EVENTS: tuple[ev.Event, ...] = (
    ev.RequestAdded(
        request=1,
        request_id="cmpl-7f",
        prompt_token_ids=(1, 390, 1530, 399),
        sampling_params=SamplingParams(temperature=0.7, seed=42, max_tokens=32),
        eos_token_ids=(2,),
        priority=0,
        cache_salt=None,
    ),
    ev.RequestAborted(requests=[1], cause="client"),
    ev.RequestStatusChanged(request=1, old="waiting", new="running", why="admitted"),
    ev.RequestFinished(
        request=1,
        status="finished_stopped",
        finish_reason="stop",
        stop_reason=None,
        num_prompt_tokens=71,
        num_output_tokens=12,
        num_cached_tokens=48,
        num_preemptions=0,
    ),
    ev.TokenPieces(token_ids=[390, 1530], pieces=[b" the", b" sea"]),
    ev.OutputText(request=1, delta=" sea", stop=None, finished=False),
    ev.GrammarRequested(request=2, grammar_kind="regex", text="[0-9]+%"),
    ev.GrammarReady(
        request=2,
        automaton=Automaton(
            num_states=3,
            accepting=(2,),
            edges=(Edge(0, 1, ((48, 57),)), Edge(1, 1, ((48, 57),)), Edge(1, 2, ((37, 37),))),
        ),
    ),
    ev.GrammarFailed(request=2, why="unbalanced bracket at position 3"),
    ev.GrammarBitmaskFilled(
        requests=[2],
        num_allowed=[[10]],
        digests=[["8a1f00c2d35e7b64"]],
        words={"8a1f00c2d35e7b64": bytes.fromhex("0000ff03")},
    ),
    ev.GrammarAdvanced(request=2, before=0, after=[1], terminated=False),
    ev.ScheduleCalled(),
    ev.StepStarted(running=[0], waiting=[1, 2], num_waiting=2, token_budget=48, free_blocks=58),
    ev.ScheduleRequest(
        request=1,
        admission="new",
        phase="prefill",
        num_wanted_tokens=71,
        num_scheduled_tokens=47,
        num_computed_tokens=0,
        num_cached_tokens=0,
        truncated_by="token_budget",
        budget_left=0,
    ),
    ev.ScheduleSkipped(request=2, reason="token_budget", needed=0, available=0, behind=0),
    ev.SchedulePreempted(
        victim=2, for_request=0, needed=1, available=0, num_computed_tokens=30, was_scheduled=False
    ),
    ev.StepScheduled(
        requests=[0, 1],
        num_scheduled_tokens=[1, 47],
        total_num_scheduled_tokens=48,
        budget_left=0,
        free_blocks=55,
        released=[],
    ),
    ev.StepOutput(requests=[0, 1], sampled_token_ids=[[1530], []]),
    ev.ExecutorFailed(why="out of memory"),
    ev.UpdateRequest(
        request=0, appended=[1530], num_cut=0, num_rejected=0, num_computed_tokens=65, dropped=None
    ),
    ev.StepExecuted(
        mode="eager", num_tokens=48, num_padded_tokens=48, prepare_ns=410_000, forward_ns=5_800_000, sample_ns=730_000
    ),
    ev.SpecPaused(reason="rejected", requests=[1], num_running=3, until_steps=[15]),
    ev.SpecProposed(request=0, method="ngram", draft_token_ids=[390, 1530], match=NgramMatch(12, 3)),
    ev.SpecProbs(
        request=0,
        target_probs=[0.75, 0.125],
        draft_probs=[1.0, 1.0],
        uniforms=[0.5, 0.25],
        likely=[
            LikelyTokens(
                token_ids=[390, 7], target_probs=[0.75, 0.25], draft_probs=[1.0, 0.0], recovered_probs=[0.0, 1.0]
            ),
            LikelyTokens(
                token_ids=[7, 1530], target_probs=[0.875, 0.125], draft_probs=[0.0, 1.0], recovered_probs=[1.0, 0.0]
            ),
        ],
    ),
    ev.SpecVerdict(request=0, draft_token_ids=[390, 1530], num_accepted=1, token_id=7, token_kind="recovered"),
    ev.KVLookup(request=1, hashes=[_FIRST, _SECOND], num_queried_tokens=71, num_hit_tokens=32, block_ids=[[1, 2]]),
    ev.KVAllocated(request=1, group=0, block_ids=[9, 10], evicted_block_ids=[10], evicted_hashes=[_SECOND]),
    ev.KVTouched(request=1, group=0, block_ids=[1, 2], ref_counts=[2, 1]),
    ev.KVCached(request=1, group=0, first_block=0, block_ids=[9, 10], hashes=[_FIRST, _SECOND], parent=_NONE),
    ev.KVUncached(block_ids=[9], hashes=[_FIRST], why="the forward pass failed"),
    ev.KVFreed(request=1, group=0, block_ids=[10, 9, 2, 1], ref_counts=[0, 0, 0, 1], why="end of sequence"),
    ev.CacheResetAsked(),
    ev.ConfigChanged(scheduler=SchedulerConfig(max_num_batched_tokens=32)),
    ev.CacheReset(done=False, blocks_in_use=5),
    ev.KVTransferMatched(request=1, num_tokens=32, load_async=True),
    ev.KVTransferFinished(request=0, sending=True),
    ev.KVTransferDone(finished_receiving=[1], finished_sending=[0]),
    ev.KVHeld(request=0, sending=True, receiving=False),
    ev.DeviceInitialized(
        device="cuda:0",
        device_name="NVIDIA H100 80GB HBM3",
        total_bytes=85_024_112_640,
        available_bytes=84_426_817_536,
        duration_ns=210_000_000,
    ),
    ev.ModelLoaded(
        num_parameters=1_375_000, weight_bytes=2_750_000, attention_backend="triton", duration_ns=38_000_000
    ),
    ev.MemoryProfiled(num_tokens=48, activation_bytes=1_310_720, graph_bytes=12_582_912, duration_ns=95_000_000),
    ev.KVCacheAllocated(
        num_gpu_blocks=64, num_bytes=2_097_152, budget_bytes=76_000_000_000, duration_ns=1_200_000
    ),
    ev.GraphCaptured(sizes=[1, 2, 4, 8], num_bytes=11_534_336, duration_ns=640_000_000),
    ev.ForwardInputs(
        requests=[0, 1],
        input_ids=[1530, 1, 390],
        positions=[64, 0, 1],
        slot_mapping=[80, 144, 145],
        query_start_loc=[0, 1, 3],
        seq_lens=[65, 2],
        block_tables=[[1, 2, 3, 4, 5], [9]],
        logits_indices=[0, 2],
    ),
    ev.ForwardLogits(
        requests=[0],
        top_token_ids=[[1530, 390]],
        top_logits=[[9.25, 7.5]],
        top_probs=[[0.82, 0.14]],
        sampled_token_ids=[1530],
    ),
)  # fmt: skip


def example_events() -> dict[str, ev.Event]:
    """By type: an event as it stands in a file, numbered and timed."""
    for seq, event in enumerate(_EVENTS, start=1):
        event.seq, event.ts, event.step = seq, 250_000 * seq, 7
    return {ev.tag_of(event): event for event in _EVENTS}
