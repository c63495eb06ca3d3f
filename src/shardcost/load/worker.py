"""One worker of a simulation: its queue, its batch, its KV cache, step by step.

At the end of every step the worker drops the sequences that ended, admits requests while there are
places, tokens and KV blocks for them, and begins the next step (`shardcost.scheduler` has the
rules). Steps that only decode and between which nothing can change are taken together: their times
grow evenly with the context. A request that arrives meanwhile cuts them at the end of a step.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import ceil, floor, log, sqrt
from typing import Final

from shardcost.load.engine import Engine
from shardcost.load.result import Moment
from shardcost.load.steps import StepTimes
from shardcost.records import NamedTuple
from shardcost.scheduler import Scheduler

WAITS: Final = ("KV room", "max_num_seqs", "tokens of a step", "decoding")
"""What a request that has arrived may wait for before it is admitted."""
GAP_BINS: Final = 1000
"""Of the histogram of times between tokens, to each factor of e: it stays small."""
_MOMENTS: Final = 8192
"""Moments that are kept at most; beyond, every second one goes."""


class Request:
    """A request on its way."""

    __slots__ = (
        "arrival_s", "came_s", "done", "finish_step", "first_s", "hit", "index", "join_step",
        "joined", "left", "made", "output", "prefilled", "prefixes", "prompt", "rank",
        "scheduled_s", "total",
    )  # fmt: skip

    def __init__(
        self, index: int, arrival_s: float, prompt: int, output: int, prefixes: Sequence[int]
    ) -> None:
        self.index, self.arrival_s, self.prompt, self.output = index, arrival_s, prompt, output
        self.prefixes = prefixes
        self.total = prompt  # tokens to prefill: the prompt, and after a preemption what was made
        self.done = 0  # of them, those in the cache
        self.hit = 0  # of them, those that were found in the prefix cache
        self.left = 0  # of them, those that a preemption left in the cache
        self.made = 0
        self.first_s: float | None = None
        self.prefilled = False  # by another worker
        self.came_s = arrival_s  # at the worker
        self.scheduled_s: float | None = None  # when the first step with its prompt began
        self.rank = 0
        self.joined = 0  # tokens in the cache when it began to decode, at …
        self.join_step = 0
        self.finish_step = 0


class PrefixCache:
    """Blocks of prompts that are kept as long as nothing else needs their room, last used first."""

    def __init__(self, block_tokens: int, shared_tokens: int) -> None:
        self.block_tokens, self.shared_tokens = block_tokens, shared_tokens
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.shared = False

    @property
    def tokens(self) -> int:
        """In the cache."""
        return len(self.blocks) * self.block_tokens + (self.shared_tokens if self.shared else 0)

    def hit(self, request: Request) -> int:
        """Return how many tokens of a prompt are found; its last token is always computed."""
        found = 0
        for block in request.prefixes:
            if block not in self.blocks:
                break
            self.blocks.move_to_end(block)
            found += self.block_tokens
        if self.shared:
            found = max(found, self.shared_tokens)
        return min(found, request.total - 1)

    def keep(self, request: Request) -> None:
        """Keep the blocks of a prompt that was computed."""
        self.shared = self.shared or self.shared_tokens > 0
        for block in request.prefixes:
            self.blocks[block] = None
            self.blocks.move_to_end(block)

    def shrink(self, tokens: int) -> None:
        """Drop what was not used for longest, until so many tokens are left."""
        while self.blocks and self.tokens > tokens:
            self.blocks.popitem(last=False)


class KVRoom:
    """How much a rank's KV cache holds, in blocks."""

    def __init__(self, engine: Engine, most_context: int) -> None:
        scheduler = engine.software.scheduler
        self.block = scheduler.block_tokens
        free, fixed, slope = engine.cache_bytes(most_context)
        self.blocks = max(floor(free / (slope * self.block)), 0)
        if scheduler.kv_tokens is not None:
            self.blocks = scheduler.kv_tokens // self.block
        self.state = fixed / (slope * self.block)
        """What a sequence holds however long it is (states of linear attention), in blocks."""

    def of(self, tokens: float) -> float:
        """Return the blocks of one sequence."""
        return self.state + ceil(tokens / self.block)


class Rank:
    """The sequences of one rank of attention's data parallelism."""

    __slots__ = (
        "blocks", "cache", "chunks", "committed", "context", "preempted", "prefilling", "residues",
        "running", "waiting",
    )  # fmt: skip

    def __init__(self, cache: PrefixCache, block_tokens: int) -> None:
        self.waiting: deque[Request] = deque()
        self.preempted: list[Request] = []  # whose blocks are not all taken by others yet
        self.prefilling: list[Request] = []
        self.running: dict[int, Request] = {}
        self.context = 0.0  # tokens of all that run
        # A sequence with y tokens before its last at step 0 has (y + step) // block + 1 blocks: the
        # sum of y // block, and how many sequences have each y % block.
        self.blocks = 0
        self.residues = [0] * block_tokens
        self.committed = 0.0  # blocks of all admitted with what is reserved for their outputs
        self.cache = cache
        self.chunks: list[tuple[Request, int]] = []

    def found(self, request: Request) -> int:
        """Return the tokens in the cache of a request that is admitted."""
        found = max(request.hit, request.left)
        if request.left:
            self.preempted.remove(request)
            request.left = 0
        return found

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.prefilling) + len(self.running)


class _During(NamedTuple):
    """What is in a worker while steps run between which nothing changes."""

    blocked: str = ""
    """What the requests that are not admitted wait for."""
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    kv_share: float = 0.0


class Worker:
    """An engine with its requests."""

    def __init__(
        self, number: int, engine: Engine, times: StepTimes, room: KVRoom,
        *, decodes: bool, prefix_block: int, shared_tokens: int,
    ) -> None:  # fmt: skip
        self.number, self.times, self.room = number, times, room
        self.scheduler: Scheduler = engine.software.scheduler
        self.decodes = decodes
        self.stages = int(engine.layout.pp)
        self.kept, self.queries = engine.kept_tokens, engine.query_tokens
        self.ranks = [
            Rank(PrefixCache(prefix_block, shared_tokens), room.block)
            for _ in range(engine.layout.dp)
        ]
        self.inbox: list[Request] = []
        self.ending: list[tuple[int, int, Request]] = []
        self.held_since: int | None = None
        self.step = 0  # those in which sequences decoded
        self.version = 0
        self.ends_s: float | None = None
        self.began_s = self.decoded_s = 0.0
        self.steps, self.first_step_s, self.last_step_s = 0, 0.0, 0.0
        self._decoding = False
        self.busy_s = self.peak = self.scheduled_s = 0.0
        self.preemptions = 0
        self.waits_s = dict.fromkeys(WAITS, 0.0)
        self.gaps: dict[int, float] = {}
        self.newcomers_s: list[float] = []  # since sequences last decoded
        self.moments: list[Moment] = []
        self._every = self._seen = 0
        self.during = _During()
        self.running_time = self.waiting_time = 0.0

    # --- requests come -------------------------------------------------------------------------
    @property
    def load(self) -> int:
        """Requests in the worker."""
        return len(self.inbox) + sum(rank.load for rank in self.ranks)

    def fits(self, request: Request) -> bool:
        """Return whether a request could ever run here."""
        return self.room.of(request.prompt + request.output) <= self.room.blocks

    def submit(self, request: Request, now: float) -> bool:
        """Take a request; return whether the step that runs ends sooner because of it."""
        request.came_s = now
        self.inbox.append(request)
        if self.ends_s is None or self.steps <= 1:
            return False
        if all(rank.waiting for rank in self.ranks) and self.held_since is None:
            return False  # those that came before cannot be admitted either
        return self._cut(now)

    def _cut(self, now: float) -> bool:
        """End the steps that run at the first look for requests from now on."""
        steps, first = self.steps, self.first_step_s
        growth = (self.last_step_s - first) / (steps - 1)
        passed = now - self.began_s
        half = growth / 2
        if half > 1e-15:
            done = (sqrt((first - half) ** 2 + 4 * half * passed) - (first - half)) / (2 * half)
        else:
            done = passed / first
        # The look comes before a step is scheduled, which the host does so many steps ahead.
        wanted = max(1, ceil(done - 1e-9)) + self.scheduler.steps_ahead
        wanted += -(self.step + wanted) % self.scheduler.receive_interval
        if wanted >= steps:
            return False
        self.steps = wanted
        self.last_step_s = first + growth * (wanted - 1)
        self.ends_s = self.began_s + wanted * (first + self.last_step_s) / 2
        return True

    # --- a step ends ---------------------------------------------------------------------------
    def finish(self, now: float) -> tuple[list[Request], list[Request]]:
        """End the steps that ran; return requests with their first token, and those that ended."""
        ran, self.ends_s = self.steps, None
        self._note(now)
        if self._decoding:
            self.step += ran
            for rank in self.ranks:
                rank.context += len(rank.running) * self.kept * ran
            self._count_gaps(ran, now)
        for rank in self.ranks:
            self._take(rank)
        ended = self._ended()
        firsts = [first for rank in self.ranks for first in self._end_chunks(rank, now)]
        return firsts, ended + self._ended()  # those whose only token was their first one, too

    def _ended(self) -> list[Request]:
        """Drop the sequences that have all their tokens."""
        ended = []
        while self.ending and self.ending[0][0] <= self.step:
            finish_step, _, request = heappop(self.ending)
            if not self._stale(request, finish_step):
                self._leave(request)
                ended.append(request)
        return ended

    def _end_chunks(self, rank: Rank, now: float) -> Iterator[Request]:
        """Let prompts that are done decode, or leave; yield those that have their first token."""
        chunks, rank.chunks = rank.chunks, []
        for request, chunk in chunks:
            request.done += chunk
            if request.done < request.total:
                continue
            rank.prefilling.remove(request)
            rank.cache.keep(request)
            if request.first_s is None:
                request.first_s = now
                yield request
            if self.decodes:
                self._join(rank, request)
                self.newcomers_s.append(now)
            else:
                self._release(rank, request)

    def _count_gaps(self, ran: int, now: float) -> None:
        """Count the time since the last token of every sequence that decoded."""
        first_s = self.began_s + self.first_step_s
        sequences = sum(len(rank.running) for rank in self.ranks)
        for joined_s in self.newcomers_s:
            self._gap(first_s - joined_s, 1)
        self._gap(first_s - self.decoded_s, sequences - len(self.newcomers_s))
        if ran > 1:
            self._gap((self.first_step_s + self.last_step_s) / 2, sequences * (ran - 1))
        self.newcomers_s.clear()
        self.decoded_s = now

    def _gap(self, seconds: float, count: float) -> None:
        if count <= 0:
            return
        key = round(GAP_BINS * log(max(seconds, 1e-9)))
        self.gaps[key] = self.gaps.get(key, 0.0) + count

    def _join(self, rank: Rank, request: Request) -> None:
        """Let a request decode from the next step on; its first token is made."""
        request.made = max(request.made, 1)
        request.joined, request.join_step = request.total, self.step
        left = request.output - request.made
        request.finish_step = self.step + ceil(left / self.kept - 1e-9)
        rank.running[request.index] = request
        rank.context += request.total
        self._hold(rank, request, 1)
        heappush(self.ending, (request.finish_step, request.index, request))

    def _tokens_of(self, request: Request) -> float:
        return request.joined + self.kept * (self.step - request.join_step)

    def _leave(self, request: Request) -> None:
        rank = self.ranks[request.rank]
        del rank.running[request.index]
        rank.context -= self._tokens_of(request)
        self._hold(rank, request, -1)
        if not rank.running:
            rank.context = 0.0
        self._release(rank, request)

    def _release(self, rank: Rank, request: Request) -> None:
        rank.committed -= self._commitment(request)

    def _commitment(self, request: Request) -> float:
        reserved = self.scheduler.reserved_output * (
            request.output - request.made if request.made > 1 else request.output
        )
        return self.room.of(request.total - request.hit + reserved)

    # --- KV room -------------------------------------------------------------------------------
    def _used(self, rank: Rank, ahead: int = 0) -> float:
        """Return the blocks in use, `ahead` steps of decoding from now.

        Where steps yield several tokens on average, a sequence may have begun its next block.
        """
        room, running = self.room, len(rank.running)
        used = sum(room.of(each.total - each.hit) for each in rank.prefilling)
        used += running * (1 + room.state)
        if self.kept != 1:
            return used + (rank.context + running * self.kept * ahead) / room.block
        step, block = self.step + ahead, room.block
        return (
            used
            + rank.blocks
            + sum(
                count * ((residue + step) // block)
                for residue, count in enumerate(rank.residues)
                if count
            )
        )

    def _hold(self, rank: Rank, request: Request, sign: int) -> None:
        """Count the blocks of a sequence that decodes, or no longer count them."""
        tokens = request.joined - request.hit - request.join_step - 1
        blocks, residue = divmod(tokens, self.room.block)
        rank.blocks += sign * blocks
        rank.residues[residue] += sign

    def _bound(self, rank: Rank) -> float:
        """Return at least the blocks in use, without a look at every sequence."""
        used = rank.context / self.room.block + len(rank.running) * (1 + self.room.state)
        return used + sum(self.room.of(each.total) for each in rank.prefilling)

    def _make_room(self, rank: Rank) -> None:
        """Preempt the latest sequences until all others can decode one more step."""
        while len(rank.running) > 1 and self._bound(rank) + len(rank.running) > self.room.blocks:
            if self._used(rank, 1) <= self.room.blocks:
                return
            victim = next(reversed(rank.running.values()))
            made = floor(self._tokens_of(victim)) - victim.joined
            self._leave(victim)
            victim.finish_step = -1
            victim.made += made
            victim.total = victim.prompt + victim.made - 1
            victim.done = victim.hit = 0
            if self.scheduler.prefix_caching:
                victim.left = victim.total - 1
                rank.preempted.append(victim)
            rank.waiting.appendleft(victim)
            self.preemptions += 1

    def _take(self, rank: Rank) -> None:
        """Let sequences take the blocks that preempted ones left, those left longest ago first."""
        if not rank.preempted:
            return
        free = max(floor(self.room.blocks - self._used(rank)), 0) * self.room.block
        for victim in reversed(rank.preempted):
            victim.left = min(victim.left, free)
            free -= victim.left
        rank.preempted = [each for each in rank.preempted if each.left > 0]

    # --- the next step -------------------------------------------------------------------------
    def begin(self, now: float) -> None:
        """Choose the next step, or several alike; `ends_s` says until when, None if idle."""
        # Where the host runs ahead, this step was scheduled when the last one began; between two
        # steps that only prefill, hosts wait for the tokens of the first.
        ahead = self.scheduler.steps_ahead and self.steps and self._decoding
        self.scheduled_s = now - self.last_step_s if ahead else now
        self.began_s = now
        self._receive()
        blocked = self._choose()
        chunked = any(rank.chunks for rank in self.ranks)
        running = max((len(rank.running) for rank in self.ranks), default=0)
        self.version += 1
        if not chunked and not running:
            self.ends_s, self.steps = None, 0
            if self.inbox:  # nothing runs: what came meanwhile is taken at once
                self.begin(now)
            return
        self._decoding = running > 0 and (not chunked or self.scheduler.policy == "mixed")
        fullest = max(self.ranks, key=lambda rank: rank.context)
        sequences = ceil(running / self.stages)
        context = fullest.context / self.stages
        if chunked:
            self.steps = 1
            decoding = (sequences, context) if self._decoding else (0, 0.0)
            mean = self._mean_tokens() if len(self.ranks) > 1 else None
            self.first_step_s = self.last_step_s = max(
                self.times.step_s(self._spread(rank), *decoding, mean)
                for rank in self.ranks
                if rank.chunks
            )
            self.ends_s = now + self.first_step_s
        else:
            self.steps = steps = self._jump()
            grown = context + sequences * self.kept * (steps - 1)
            self.first_step_s = self.times.decode_s(sequences, context)
            self.last_step_s = self.times.decode_s(sequences, grown)
            self.ends_s = now + steps * (self.first_step_s + self.last_step_s) / 2
        self._observe(blocked)

    def _mean_tokens(self) -> float:
        """Return the tokens of the step on an average rank and batch in flight."""
        tokens = sum(chunk for rank in self.ranks for _, chunk in rank.chunks)
        if self._decoding:
            tokens += self.queries * sum(len(rank.running) for rank in self.ranks)
        return tokens / (len(self.ranks) * self.stages)

    def _receive(self) -> None:
        if not self.inbox:
            return
        running = any(rank.running for rank in self.ranks)
        if running and self.step % self.scheduler.receive_interval:
            return
        late: list[Request] = []
        for request in self.inbox:
            if request.came_s > self.scheduled_s:
                late.append(request)
                continue
            number = min(range(len(self.ranks)), key=lambda place: self.ranks[place].load)
            request.rank = number
            self.ranks[number].waiting.append(request)
        self.inbox = late

    def _choose(self) -> str:
        """Fill the next step of every rank; return what the requests that still wait wait for."""
        policy, blocked = self.scheduler.policy, ""
        hold = self._balanced()
        for rank in self.ranks:
            if rank.running:
                self._make_room(rank)
            if hold:
                blocked = blocked or ("decoding" if rank.waiting else "")
                continue
            if policy == "decode-first" and rank.running:
                blocked = blocked or ("decoding" if rank.waiting else "")
                continue
            blocked = self._fill(rank) or blocked
        return blocked

    def _balanced(self) -> bool:
        """Return whether prompts wait until every rank has one."""
        most = self.scheduler.balance_steps
        if not most or len(self.ranks) == 1 or any(rank.prefilling for rank in self.ranks):
            return False
        with_prompts = sum(
            1 for rank in self.ranks if rank.waiting and not rank.waiting[0].prefilled
        )
        if with_prompts in {0, len(self.ranks)} or not any(rank.running for rank in self.ranks):
            self.held_since = None
            return False
        if self.held_since is None:
            self.held_since = self.step
        if self.step - self.held_since >= most:
            self.held_since = None
            return False
        return True

    def _fill(self, rank: Rank) -> str:
        """Give chunks of prompts to a rank's next step; return what stops the first that waits."""
        scheduler = self.scheduler
        left = scheduler.max_num_batched_tokens * self.stages
        if scheduler.policy == "mixed":
            left -= len(rank.running) * self.queries
        for request in rank.prefilling:
            left = self._chunk(rank, request, left)
            if left <= 0:
                break
        while rank.waiting:
            request = rank.waiting[0]
            if len(rank.running) + len(rank.prefilling) >= scheduler.max_num_seqs * self.stages:
                return "max_num_seqs"
            full = left <= 0 or (
                not scheduler.chunked_prefill
                and request.total > left
                and (bool(rank.chunks) or self._fits_beside_fewer(rank, request))
            )
            if full and not request.prefilled:
                return "tokens of a step"
            if not self._admits(rank, request):
                return "KV room"
            rank.waiting.popleft()
            if request.scheduled_s is None:
                request.scheduled_s = self.began_s
            rank.committed += self._commitment(request)
            request.done = rank.found(request)
            if request.prefilled and not request.made:
                request.done = request.total
                request.first_s = self.began_s
                self._join(rank, request)
            else:
                rank.prefilling.append(request)
                left = self._chunk(rank, request, left)
        return ""

    def _fits_beside_fewer(self, rank: Rank, request: Request) -> bool:
        """Return whether a whole prompt waits for sequences to end that leave it no room.

        Sequences that decode are counted first (TensorRT-LLM's micro batch scheduler); a prompt
        that no step has room for goes in all the same.
        """
        most = self.scheduler.max_num_batched_tokens * self.stages
        mixed = self.scheduler.policy == "mixed"
        return mixed and bool(rank.running) and request.total <= most

    def _admits(self, rank: Rank, request: Request) -> bool:
        """Return whether there are KV blocks for a request; alone on its rank it always runs."""
        scheduler, room = self.scheduler, self.room
        found = scheduler.prefix_caching and not request.prefilled
        request.hit = rank.cache.hit(request) if found else 0
        if not rank.running and not rank.prefilling:
            return True
        free = (1 - scheduler.watermark) * room.blocks
        if scheduler.reserved_output and rank.committed + self._commitment(request) > free:
            return False
        # With room for one more token of each, what is admitted is not preempted at once.
        needed = room.of(request.total + self.kept - request.hit)
        return self._bound(rank) + needed <= 0.5 * free or self._used(rank, 1) + needed <= free

    def _chunk(self, rank: Rank, request: Request, left: int) -> int:
        tokens = request.total - request.done
        if self.scheduler.chunked_prefill:
            tokens = min(tokens, left)
        if tokens > 0:
            rank.chunks.append((request, tokens))
        return left - tokens

    def _spread(self, rank: Rank) -> list[tuple[int, int]]:
        """Return the chunks of the fullest of the batches in flight, one for each stage."""
        chunks = [(tokens, request.done) for request, tokens in rank.chunks]
        if self.stages == 1:
            return chunks
        most = self.scheduler.max_num_batched_tokens
        batches: list[list[tuple[int, int]]] = [[] for _ in range(self.stages)]
        sizes = [0] * self.stages
        for tokens, before in chunks:
            part = min(tokens, most) if self.scheduler.chunked_prefill else tokens
            for start in range(0, tokens, part):
                place = sizes.index(min(sizes))
                size = min(part, tokens - start)
                batches[place].append((size, before + start))
                sizes[place] += size
        return batches[sizes.index(max(sizes))]

    def _jump(self) -> int:
        """Return for how many steps of decoding nothing changes."""
        while self.ending and self._stale(self.ending[0][2], self.ending[0][0]):
            heappop(self.ending)
        steps = self.ending[0][0] - self.step
        for rank in self.ranks:
            count = len(rank.running)
            if count:
                free = (self.room.blocks - self._bound(rank)) * self.room.block
                steps = min(steps, max(1, floor(free / (count * self.kept))))
        if self.inbox:
            every = self.scheduler.receive_interval
            steps = min(steps, every - self.step % every)
        if self.held_since is not None:
            steps = min(steps, self.held_since + self.scheduler.balance_steps - self.step)
        return max(1, steps)

    def _stale(self, request: Request, finish_step: int) -> bool:
        running = self.ranks[request.rank].running
        return request.index not in running or request.finish_step != finish_step

    def _observe(self, blocked: str) -> None:
        """Keep what is in the worker while the next steps run."""
        waiting = len(self.inbox) + sum(len(rank.waiting) for rank in self.ranks)
        running = sum(len(rank.running) for rank in self.ranks)
        blocks = max(self.room.blocks, 1)
        used = max(min(self._bound(rank), blocks) for rank in self.ranks) / blocks
        for rank in self.ranks:
            rank.cache.shrink(int((1 - used) * blocks * self.room.block))
        self.peak = max(self.peak, used)
        prompts = sum(tokens for rank in self.ranks for _, tokens in rank.chunks)
        self.during = _During(blocked, running, waiting, prompts, used)

    def _note(self, now: float) -> None:
        """Count what was in the worker while the steps ran that end now."""
        during, spent = self.during, now - self.began_s
        self.busy_s += spent
        if during.blocked and during.waiting:
            self.waits_s[during.blocked] += during.waiting * spent
        self.running_time += during.running * spent
        self.waiting_time += during.waiting * spent
        self._seen += 1
        if self._seen % (1 << self._every):
            return
        decoding = during.running if self._decoding else 0
        self.moments.append(
            Moment(
                self.began_s,
                now,
                self.number,
                self.steps,
                decoding,
                during.prompt_tokens,
                during.waiting,
                during.kv_share,
            )
        )
        if len(self.moments) > _MOMENTS:
            self.moments = self.moments[::2]
            self._every += 1
