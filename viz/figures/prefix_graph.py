"""The prefix cache: `cached_block_hash_to_block` as the tree of prefixes it is, and who looked what up in it.

Nested elements, which the style sheet lays out as a tree from left to right, or as a list with steps where there is
no room for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim.state import State
from sim.timeline import StepView, Timeline
from viz.cut import UNPLANNED, is_planned
from viz.figures.block import CSS, colour_class, detail, tip, tokens_text
from viz.figures.html import Html, el, join
from viz.figures.parts import Selection, count, empty, label, panel
from viz.figures.prefix_lookup import Lookup, brief, lookup_line, lookups
from viz.figures.prefix_tree import Content, PrefixTree, prefix_tree
from viz.theme import request_class

#: A longer row of equal blocks is folded: its first and its last are drawn, those between are counted.
_MOST_IN_A_ROW = 3
#: Forks in one line of descent; whatever parts further on is counted.
_DEEPEST = 24
_MOST_HOLDERS, _MOST_NAMED, _MOST_LOOKUPS = 3, 8, 6
#: Serials below this have names so short that several find room on a card.
_SHORT_NAMES = 100

_WHAT = (
    "A full block is named by a hash of its tokens and of everything before them. A request that begins with the same"
    " tokens computes the same hashes, finds the blocks under them, and shares these instead of computing them again:"
    " a prefix hit."
)
_CUT_OFF = "The block before was evicted: no lookup gets here until somebody computes that one again."
_OFF = "Prefix caching is off in this run (enable_prefix_caching is false): no block has a hash, and nobody shares one."


def prefix_graph(timeline: Timeline, view: StepView, selection: Selection) -> Html:
    """Draw what can be found when the step's plan is complete, what it found, and what it evicted."""
    if not view.header.config.cache.enable_prefix_caching:
        return panel("prefix", "Prefix cache", _WHAT, empty(_OFF))
    return panel(
        "prefix",
        "Prefix cache",
        _WHAT,
        *_asked(timeline, view, selection),
        *_cached(view, selection),
        detail(view.planned, selection),
    )


# --- who asked --------------------------------------------------------------------------------------------------


def _asked(timeline: Timeline, view: StepView, selection: Selection) -> Iterator[Html]:
    asked = lookups(view)
    if not asked and not is_planned(view):
        yield empty(UNPLANNED)
        return
    if not asked:
        words = "Nobody looks a prefix up in this step: a request does so on its admission. "
        yield el("p", "nobody", words, _hits_at(timeline, view.step))
        return
    yield label("looked up in this step: one square per full block, filled if it was found")
    for lookup in asked[:_MOST_LOOKUPS]:
        yield lookup_line(lookup, view.header.kv_cache.block_size, selection)
    if len(asked) > _MOST_LOOKUPS:
        hits = sum(lookup.num_hits > 0 for lookup in asked[_MOST_LOOKUPS:])
        others = count(len(asked) - _MOST_LOOKUPS, "other")
        yield el("p", "elided", f"… and those of {others}, of which {hits} found something")


def _hits_at(timeline: Timeline, step: int) -> Html:
    """The nearest steps with a hit, as ways to go there."""
    hits = [facts.step for facts in timeline.series if facts.hit_tokens]
    if not hits:
        return Html("No request of this run finds anything: none begins like an earlier one.")
    before = max((hit for hit in hits if hit < step), default=None)
    behind = min((hit for hit in hits if hit > step), default=None)
    ways = [
        el("button", "leads-to", words, data_act=f"step:{hit}", data_hit_at=hit)
        for hit, words in ((before, f"← a hit in step {before}"), (behind, f"a hit in step {behind} →"))
        if hit is not None
    ]
    return join(ways, " ")


# --- what is cached ---------------------------------------------------------------------------------------------


def _cached(view: StepView, selection: Selection) -> Iterator[Html]:
    state, tree = view.planned, prefix_tree(view, selection)
    cached = len(state.pool.cached_block_hash_to_block)
    words = f": {count(cached, 'content')} that can be found, each behind the one before it"
    yield label(join([el("code", "", "cached_block_hash_to_block"), words]))
    if not tree.contents:
        yield empty("Empty: no block is full yet. A block gets its hash when tokens fill it to the end.")
        return
    yield _legend(tree)
    yield el("div", "scroll", _Drawing(view, selection, tree).forest(), data_cached=cached)
    if tree.num_left_out:
        more = f"… {count(tree.num_left_out, 'more content')} not drawn: select a request or a block to see its chain"
        yield el("p", "more", more, data_left_out=tree.num_left_out)


def _legend(tree: PrefixTree) -> Html:
    gone = sum(content.gone for content in tree.contents.values())
    entries = [
        ("used", "held by requests", "in use: the colours and names are those of the requests that read it"),
        ("cached", "free, still found", "nobody holds it; the number says how many blocks are handed out before it"),
        ("found", f"{len(tree.hits)} found in this step", "a lookup walked over it"),
        ("new", f"{len(tree.new)} new in this step", "its block gets full in this step, and can be found from now on"),
        ("gone", f"{gone} evicted in this step", "its block was handed out to somebody else, so its content is lost"),
    ]
    return el(
        "ul",
        "legend",
        *(el("li", "", el("i", f"swatch {css}"), text, data_tip=words) for css, text, words in entries),
        data_found=len(tree.hits),
        data_new=len(tree.new),
        data_gone=gone,
    )


class _Drawing:
    """One tree, drawn."""

    def __init__(self, view: StepView, selection: Selection, tree: PrefixTree) -> None:
        self._state: State = view.planned
        self._before: State = view.before
        self._selection = selection
        self._tree = tree
        self._none_hash = view.header.kv_cache.none_hash
        self._stops = self._stops_by_hash(view)
        free = {block_id for content in tree.contents.values() for block_id in content.block_ids}
        queue = self._state.pool.free_block_queue
        self._places = {block_id: place for place, block_id in enumerate(queue) if block_id in free}

    def forest(self) -> Html:
        """The tree under the none hash, and what is cut off from it."""
        start = el("span", "root", "start", data_tip="where every text begins")
        rooted = el("div", "branch", start, self._children(self._none_hash, 0))
        missing = el("span", "root cut", "the block before is gone", data_tip=_CUT_OFF)
        cut_off = [el("div", "branch", missing, self._children(gone, 0)) for gone in self._tree.cut_off]
        return el("div", "prefixes", rooted, *cut_off)

    def _stops_by_hash(self, view: StepView) -> dict[str, list[Lookup]]:
        """Where each lookup stopped: behind the last content it found, or at the very start."""
        ends = {request: block_hash for block_hash, requests in self._tree.hits.items() for request in requests}
        stops: dict[str, list[Lookup]] = {}
        for lookup in lookups(view)[:_MOST_LOOKUPS]:
            stops.setdefault(ends.get(lookup.request, self._none_hash), []).append(lookup)
        return stops

    def _children(self, block_hash: str, depth: int) -> Html | None:
        """Everything behind a content, each on a twig; those that a lookup walked along are lit."""
        children, hits = self._tree.children.get(block_hash, []), self._tree.hits
        last_found = max((place for place, child in enumerate(children) if child in hits), default=-1)
        twigs = [
            _twig(self._branch(child, depth), found=child in hits, passed=place < last_found)
            for place, child in enumerate(children)
        ]
        twigs += [_twig(_stop(lookup)) for lookup in self._stops.get(block_hash, [])]
        hidden = self._tree.left_out[block_hash]
        if hidden:
            twigs.append(_twig(el("span", "fold", f"… {hidden:,} more", data_more=hidden)))
        return el("div", "behind found" if last_found >= 0 else "behind", *twigs) if twigs else None

    def _branch(self, block_hash: str, depth: int) -> Html:
        if depth >= _DEEPEST:
            return el("span", "fold", "… and what follows", data_deeper=block_hash)
        run = self._run(block_hash)
        if len(run) <= _MOST_IN_A_ROW:
            cards = [self._card(content) for content in run]
        else:
            cards = [self._card(run[0]), self._fold(run[1:-1]), self._card(run[-1])]
        return el("div", "branch", el("div", "run", *cards), self._children(run[-1].hash, depth + 1))

    def _run(self, block_hash: str) -> list[Content]:
        """A content and those behind it that look alike, up to where the texts part or a lookup stops."""
        tree = self._tree
        content = tree.contents[block_hash]
        run, look = [content], self._look(content)
        while content.hash not in self._stops and not tree.left_out[content.hash]:
            behind = tree.children.get(content.hash, [])
            if len(behind) != 1 or self._look(tree.contents[behind[0]]) != look:
                break
            content = tree.contents[behind[0]]
            run.append(content)
        return run

    def _look(self, content: Content) -> tuple[object, ...]:
        """What tells contents apart; those of one look may be folded."""
        pool = self._state.pool
        selected = self._selection.block in content.block_ids
        holders = None if content.gone else tuple(pool.owners[block_id] for block_id in content.block_ids)
        found = tuple(self._tree.hits.get(content.hash, ()))
        return (holders, found, content.hash in self._tree.new, content.gone, content.hash if selected else None)

    def _fold(self, contents: list[Content]) -> Html:
        block = self._state.pool.block(contents[0].block_ids[0])
        return el(
            "button",
            " ".join(["fold", *self._marks(contents[0])]),
            f"… {count(len(contents), 'block')} …",
            data_act=f"block:{block.block_id}",
            data_folded=len(contents),
            data_tip="blocks in a row that are alike; click to see the first of them",
        )

    def _card(self, content: Content) -> Html:
        """One content: its text, its blocks, who holds it or how soon it is handed out."""
        block = self._state.pool.block(content.block_ids[0])
        css = ["hashed", "gone" if content.gone else CSS[block.kind], *self._marks(content)]
        if not content.gone:
            css += filter(None, [colour_class(block)])
        if self._selection.block in content.block_ids:
            css.append("selected")
        numbers = " ".join(str(block_id) for block_id in content.block_ids)
        return el(
            "button",
            " ".join(css),
            el("q", "", self._text(content)),
            el("span", "of", el("b", "", numbers), self._holders(content)),
            data_act=f"block:{block.block_id}",
            data_block=block.block_id,
            data_prefix=content.hash,
            data_marks="gone" if content.gone else " ".join(self._marks(content)) or None,
            data_refs=0 if content.gone else block.ref_count,
            data_tip=self._tip(content),
        )

    def _marks(self, content: Content) -> list[str]:
        """CSS classes for what the step did with a content."""
        if content.gone:
            return []
        found, new = content.hash in self._tree.hits, content.hash in self._tree.new
        return [mark for mark, is_so in (("found", found), ("new", new)) if is_so]

    def _text(self, content: Content) -> str:
        """Its tokens as words: of what is gone, the block holds something else by now."""
        return tokens_text(content.block_ids[0], self._before if content.gone else self._state)

    def _holders(self, content: Content) -> Html:
        if content.gone:
            return el("em", "", "evicted")
        owners = list(dict.fromkeys(o for b in content.block_ids for o in self._state.pool.owners[b]))
        if not owners:
            before = min(self._places.get(block_id, 0) for block_id in content.block_ids)
            return el("em", "", "evicted next" if before == 0 else f"free, {before:,} before it", data_before=before)
        shown = owners[: _MOST_HOLDERS if max(owners) < _SHORT_NAMES else 1]
        names = [el("i", f"holder {request_class(owner)}", f"r{owner}") for owner in shown]
        if len(owners) > len(shown):
            names.append(el("em", "", f"+{len(owners) - len(shown):,}"))
        return el("span", "holders", *names)

    def _tip(self, content: Content) -> str:
        if content.gone:
            return f"block {content.block_ids[0]} was handed out anew: its hash {content.hash[:10]}… is found no more"
        block = self._state.pool.block(content.block_ids[0])
        found_by = self._tree.hits.get(content.hash, [])[:_MOST_NAMED]
        more = [f"found by {', '.join(f'r{request}' for request in found_by)}"] if found_by else []
        if len(content.block_ids) > 1:
            more.append(f"{len(content.block_ids)} blocks hold the same: they were computed side by side")
        return tip(block, self._state, *more)


def _twig(what: Html, *, found: bool = False, passed: bool = False) -> Html:
    """What hangs on a branch; passed: the lit way to a later twig leads along it."""
    css = ["twig", *(["found"] if found else []), *(["passed"] if passed else [])]
    return el("div", " ".join(css), what)


def _stop(lookup: Lookup) -> Html:
    """Where a request got no further."""
    holder = el("i", f"holder {request_class(lookup.request)}", f"r{lookup.request}")
    return el("span", "stop", holder, f" stops: {brief(lookup)}", data_stops=lookup.request)
