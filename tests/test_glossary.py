"""The glossary is true: every place it names exists, and nothing it calls *later* exists already."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<here>`[^`]+`|\*later\*) \| (?P<what>[^|]+) \|$")

#: Names by which the system is known elsewhere: a reader who looks one up here must find it.
KNOWN_NAMES = """
LLM SamplingParams EngineCore EngineCoreRequest EngineCoreOutputs RequestOutput Processor OutputProcessor InprocClient
Scheduler FCFS priority waiting running KVCacheManager free_block_queue UniProcExecutor Worker model_runner InputBatch
FullAttentionSpec gpu_memory_utilization enforce_eager Request WAITING step schedule prefill decode allocate_slots
req_to_blocks coordinator kv_cache_manager.free execute_model input_ids positions slot_mapping super-sequence
max_tokens max_model_length ignore_eos stop_token_ids long_prefill_token_threshold get_computed_blocks
hash_request_tokens BlockHash req_to_block_hashes find_longest_cache_hit cached_block_hash_to_block cache_blocks
enable_prefix_caching GuidedDecodingParams StructuredOutputManager _grammar_bitmask WAITING_FOR_FSM grammar_init
structured_output_request_ids skipped_waiting_requests xgr_torch_compile accept_tokens speculative_config
prompt_lookup_max prompt_lookup_min num_speculative_tokens NgramProposer rejection_sampler propose_draft_token_ids
spec_token_ids token_ids_cpu _calc_spec_decode_metadata EAGLE Medusa SharedStorageConnector KVTransferConfig
get_num_new_matched_tokens update_state_after_alloc build_connector_meta start_load_kv wait_for_save
MultiProcExecutor rpc_broadcast_mq WorkerProc worker_response_mq CoreEngineProcManager EngineCoreProc DPEngineCoreProc
process_input_sockets AsyncLLM MPClient AsyncMPClient DPAsyncMPClient DPLBAsyncMPClient launch_core_engines
DPCoordinator process_outputs_socket output_handler run_engine_stats_update_task SCALE_ELASTIC_EP START_DP_WAVE
OpenAIServingCompletion OpenAIServingChat get_core_engine_for_request TTFT ITL TPOT E2E throughput goodput roofline
""".split()


def rows() -> list[tuple[str, str]]:
    lines = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        if line.startswith("| ") and not line.startswith(("| name |", "| --- |")):
            match = ROW.match(line)
            assert match, f"not a row of the form | name | place | what | : {line}"
            found.append((match["name"].strip("`"), match["here"].strip("`")))
    return found


@cache
def symbols(path: Path) -> frozenset[str]:
    """Functions, classes, methods and attributes that a file defines, by dotted name."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
                else:
                    names.update(prefix + name for name in _set_on_self(node))
            for target in _targets(node):
                if isinstance(target, ast.Name):
                    names.add(prefix + target.id)

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return list(node.targets)
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _set_on_self(function: ast.FunctionDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


@pytest.mark.parametrize(("name", "here"), rows())
def test_every_place_exists(name: str, here: str) -> None:
    if here == "*later*":
        bare = name.split(".")[-1]
        defined = [path for path in code_files() for symbol in symbols(path) if symbol.split(".")[-1] == bare]
        assert not defined, f"{name} is called later, but {defined[0]} defines it"
        return
    file, _, symbol = here.partition(":")
    assert (ROOT / file).exists(), f"{name}: there is no {file}"
    assert not symbol or symbol in symbols(ROOT / file), f"{name}: {file} defines no {symbol}"


def test_every_known_name_is_listed_once() -> None:
    listed = [name for name, _ in rows()]
    assert not set(KNOWN_NAMES) - set(listed)
    assert len(listed) == len(set(listed))


def code_files() -> list[Path]:
    return [path for folder in ("engine", "kernels", "sim", "viz") for path in (ROOT / folder).rglob("*.py")]
