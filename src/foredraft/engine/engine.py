"""The engine: one step at a time, for all requests at once.

`step` is speculative decoding in full: schedule, draft, one pass of the target, pick, verify, commit. Everything that
callers see is derived from the tokens a step committed (requests.py). One thread owns an engine; between steps,
requests may be added or aborted.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Sequence as Collection

import torch
from torch import Tensor

from foredraft.drafters.base import Drafter, Features
from foredraft.engine.controller import Controller, FixedController, Load
from foredraft.engine.drafting import Drafting
from foredraft.engine.forced_drafts import with_forced
from foredraft.engine.logprobs import emitted_logprobs
from foredraft.engine.outputs import Delta, Logprob
from foredraft.engine.requests import Choice, Request, check_request
from foredraft.engine.scheduler import Scheduler
from foredraft.engine.structured import CompiledForm, Grammars
from foredraft.errors import RequestError
from foredraft.sampling import pick, rows_of
from foredraft.target.target import Target, TargetOutput
from foredraft.target.threads import torch_threads
from foredraft.tree import TokenTree
from foredraft.types import Batch, SamplingParams, Sequence, StepReport
from foredraft.verify import Verdict, verify

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Decodes requests with one target and at most one drafter (None: plainly).

    num_speculative_tokens  most draft nodes per sequence and step
    controller              decides how many of them are worth it (None: all)
    kv_room                 cached tokens that memory allows over all sequences (None: as many as the slots can hold)
    method                  the drafter's name in reports
    seed                    makes the seeds of requests without one reproducible
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        *,
        num_speculative_tokens: int = 0,
        controller: Controller | None = None,
        max_batched_tokens: int = 512,
        kv_room: int | None = None,
        seed: int | None = None,
        method: str = "off",
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.num_speculative_tokens = num_speculative_tokens if drafter else 0
        self.controller = controller or FixedController()
        self.method = method
        all_slots = target.cache.slots * (target.max_model_len + self.num_speculative_tokens)
        self.kv_room = all_slots if kv_room is None else min(kv_room, all_slots)
        self.max_length = min(target.max_model_len, self.kv_room)
        self.scheduler = Scheduler(
            target.cache,
            max_batched_tokens=max_batched_tokens,
            kv_room=self.kv_room,
            draft_room=self.num_speculative_tokens,
            on_admit=self._admitted,
            on_leave=self._left,
        )
        self.drafting = Drafting(drafter, target.vocab_size, self._drafter_failed) if drafter else None
        self.report = StepReport("off", 0, 0, 0, 0)
        self.grammars = Grammars(target)
        self._requests: dict[str, Request] = {}
        self._choices: dict[int, Choice] = {}
        self._ids = itertools.count()
        self._seeds = random.Random(seed)
        self._begin_seconds = 0.0
        self._in_step: list[str] = []
        """The requests of a step that has begun and not returned."""
        if drafter is not None:
            drafter.bind(target)

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def add(
        self,
        prompt: Collection[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        text: str | None = None,
        prediction: Collection[int] = (),
        form: CompiledForm | None = None,
    ) -> Request:
        """Queue a request. Raises RequestError or CapacityError if it can't be served; nothing else is affected.

        form  what `grammars` made of `params.structured`; compiled here if it is left out
        """
        tokens = list(prompt)
        check_request(tokens, params, self.target, self.kv_room)
        if request_id in self._requests:
            raise RequestError(
                f"A request with the id {request_id!r} is being decoded already; give another id or none."
            )
        constraints = [self.grammars.open(params, len(tokens), form) for _ in range(params.n)]
        request = Request(request_id or f"request-{next(self._ids)}", text, tokens, params)
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        for choice in range(params.n):
            sequence = Sequence(
                next(self._ids),
                params,
                list(tokens),
                len(tokens),
                seed,
                choice,
                request.id,
                tuple(prediction),
                constraint=constraints[choice],
            )
            request.add_choice(sequence, self.target, self._draft_limit(params))
            self._choices[sequence.id] = request.choices[-1]
            self.scheduler.add(sequence)
        self._requests[request.id] = request
        return request

    def abort(self, request_id: str) -> list[Delta]:
        """Stop a request wherever it is; unknown and finished ones are ignored."""
        request = self._requests.pop(request_id, None)
        open_choices = [choice for choice in request.choices if not choice.output.finished] if request else []
        for choice in open_choices:
            self._close(choice.sequence)
            self.controller.forget(choice.sequence)
        return [choice.abort() for choice in open_choices]

    def drop_running(self) -> list[str]:
        """After `step` raised: throw out every request it may have touched, and what the cache holds of them.

        Returns their ids, also those of requests that ended in that step, since nobody got their last tokens. Requests
        of which no choice was running stay, and decoding can go on with them.
        """
        dropped = list(self.scheduler.running)
        for sequence in dropped:
            slot = sequence.slot
            try:
                self.scheduler.remove(sequence)
            except Exception:  # the drafter's own `end` failed, too; the slot is free all the same
                logger.exception("The drafter failed to let go of a sequence")
            if slot is not None:
                self.target.cache.forget(slot)
        ids = list(dict.fromkeys([*(sequence.request_id for sequence in dropped), *self._in_step]))
        self._in_step = []
        for request_id in ids:
            request = self._requests.pop(request_id, None)
            dropped += [choice.sequence for choice in request.choices] if request else []
        for sequence in dropped:
            self.scheduler.remove(sequence)  # those that were waiting
            self._forget(sequence)
            self.controller.forget(sequence)
        return ids

    @torch.inference_mode()
    def step(self) -> list[Delta]:
        """One pass of the target, and what it added to each sequence that emitted tokens.

        A request that can't go on although the others can has a `failure` afterwards, and is over.
        """
        with torch_threads(1 if self.target.decoder.own_threads else None):
            return self._step()

    def checked_step(self) -> list[Delta]:
        """`step`, for callers that need every answer: raises the `failure` of a request that can't go on."""
        requests = list(self._requests.values())
        deltas = self.step()
        for request in requests:
            if request.failure is not None:
                raise request.failure
        return deltas

    def _step(self) -> list[Delta]:
        began = time.perf_counter()
        self._begin_seconds = 0.0
        self._in_step = []
        batch = self.scheduler.schedule()
        if not batch.chunks:
            return []
        self._in_step = [chunk.sequence.request_id for chunk in batch.chunks]
        sequences = batch.decoding

        drafting = time.perf_counter()
        tree = self._propose(batch, sequences)
        verifying = time.perf_counter()
        output = self.target.forward(batch, tree, self._taps)
        verified = time.perf_counter()

        rows = rows_of(sequences, tree, self.target.eos_token_ids)
        picks = _by_sequence(pick(output.logits, rows).cpu(), tree)  # the one point where the host waits for the device
        verdict = verify(tree, picks)
        logprobs = emitted_logprobs(output.logits, rows, verdict, self.target.tokenizer)
        features = self._commit(batch, tree, picks, verdict, output)
        deltas = self._advance(sequences, tree, verdict, logprobs)

        finished = [choice.sequence for choice in self._choices.values() if choice.output.finished]
        try:
            committing = time.perf_counter()
            self._settle(sequences, verdict, features, finished)
            ended = time.perf_counter()

            self.report = _report(self.method, sequences, tree, verdict, output)
            self.report.draft_seconds = self._begin_seconds + verifying - drafting + ended - committing
            self.report.verify_seconds = verified - verifying
            self.report.host_seconds = ended - began - self.report.draft_seconds - self.report.verify_seconds
            self.controller.observe(self.report, tree)
        finally:  # not sooner, as `observe` still writes about them
            for sequence in finished:
                self.controller.forget(sequence)
        self._in_step = []
        return deltas

    def tolerate_drafter(self) -> None:
        """From now on a drafter that raises costs sequences their drafts and no request its answer, which is what a
        service needs. Elsewhere its errors should be seen.
        """
        if self.drafting is not None:
            self.drafting.tolerant = True

    def check_integrity(self) -> None:
        """Raise AssertionError unless the cache holds exactly the running sequences' tokens."""
        running = self.scheduler.running
        self.target.cache.check_integrity(
            {sequence.slot: sequence.tokens[: sequence.cached] for sequence in running if sequence.slot is not None}
        )

    @property
    def _taps(self) -> tuple[int, ...]:
        return self.drafter.wants.layers if self.drafter else ()

    def _draft_limit(self, params: SamplingParams) -> int:
        if not params.speculative:
            return 0
        wanted = params.num_speculative_tokens
        return self.num_speculative_tokens if wanted is None else min(wanted, self.num_speculative_tokens)

    def _limit(self, sequence: Sequence) -> int:
        """Most draft nodes for a sequence: none beyond what it may still emit, or beyond the last position."""
        room = self.max_length - len(sequence.tokens)
        remaining = room if sequence.remaining is None else min(room, sequence.remaining)
        return max(0, min(self._draft_limit(sequence.params), remaining - 1))

    def _propose(self, batch: Batch, sequences: list[Sequence]) -> TokenTree:
        if self.drafting is None or not sequences:
            return TokenTree.empty(len(sequences))
        load = Load(
            prompt_rows=sum(chunk.count for chunk in batch.chunks) - len(sequences),
            cached=sum(chunk.sequence.cached for chunk in batch.chunks),
        )
        limits = [self._limit(sequence) for sequence in sequences]
        asked = [
            limit if self.drafting.serves(sequence) else 0 for sequence, limit in zip(sequences, limits, strict=True)
        ]
        budget = self.controller.budgets(sequences, asked, load)
        tree = self.drafting.propose(sequences, budget)
        return self.controller.select(sequences, with_forced(tree, sequences, limits), load)

    def _commit(
        self, batch: Batch, tree: TokenTree, picks: Tensor, verdict: Verdict, output: TargetOutput
    ) -> Features | None:
        starts = tuple(chunk.sequence.cached for chunk in batch.chunks)
        kept = self.target.commit(batch, verdict, output.flat)
        if self.drafter is None:
            return None
        wants = self.drafter.wants
        candidates = hidden = None
        if wants.candidates:
            best = output.logits.topk(wants.candidates, dim=-1).indices
            candidates = _by_sequence(best.cpu(), tree)
        if output.hidden.taps is not None:
            taps = output.hidden.taps
            hidden = taps if len(kept) == len(taps) else taps[torch.tensor(kept)]
        sequences = tuple(chunk.sequence for chunk in batch.chunks)
        counts = tuple(sequence.cached - start for sequence, start in zip(sequences, starts, strict=True))
        return Features(tree, picks, candidates, hidden, sequences, starts, counts)

    def _advance(
        self,
        sequences: list[Sequence],
        tree: TokenTree,
        verdict: Verdict,
        logprobs: list[list[dict[int, Logprob]] | None],
    ) -> list[Delta]:
        deltas = []
        drafts = tree.sizes
        for sequence, drafted, tokens, length, values in zip(
            sequences, drafts, verdict.tokens.tolist(), verdict.lengths.tolist(), logprobs, strict=True
        ):
            choice = self._choices[sequence.id]
            if choice.output.finished:
                continue  # an earlier choice failed, and the request with it
            try:
                delta = choice.extend(tokens[:length], length - 1, self.target.eos_token_ids, self.max_length, values)
            except Exception as error:  # whatever it is, it concerns this request only
                self._requests[sequence.request_id].fail(error)
                continue
            choice.output.speculative_decoding.observe(drafted, sum(delta.drafted), len(delta.token_ids))
            deltas.append(delta)
        return deltas

    def _settle(
        self, sequences: list[Sequence], verdict: Verdict, features: Features | None, finished: list[Sequence]
    ) -> None:
        """Tell the drafter what the step committed, and let what is finished leave, whatever the drafter does."""
        try:
            if self.drafting is not None and features is not None:
                self.drafting.commit(sequences, verdict, features)
        finally:
            for sequence in finished:
                self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self._forget(sequence)
        request = self._requests.get(sequence.request_id)
        if request is not None and all(choice.output.finished for choice in request.choices):
            del self._requests[sequence.request_id]

    def _forget(self, sequence: Sequence) -> None:
        self._choices.pop(sequence.id, None)
        if self.drafting is not None:
            self.drafting.forget(sequence)

    def _admitted(self, sequence: Sequence) -> None:
        if self.drafting is not None:
            began = time.perf_counter()
            self.drafting.begin(sequence)
            self._begin_seconds += time.perf_counter() - began

    def _left(self, sequence: Sequence) -> None:
        if self.drafting is not None:
            self.drafting.end(sequence)

    def _drafter_failed(self, sequence: Sequence) -> None:
        self._choices[sequence.id].output.speculative_decoding.drafter_failed = True


def _by_sequence(values: Tensor, tree: TokenTree) -> Tensor:
    """[R, ...] values of all rows, one sequence after the other -> [B, N + 1, ...], -1 where a row has no node."""
    if len(values) == tree.batch * (tree.width + 1):
        return values.view(tree.batch, tree.width + 1, *values.shape[1:])
    padded = values.new_full((tree.batch, tree.width + 1, *values.shape[1:]), -1)
    padded[torch.arange(tree.width + 1) <= torch.tensor(tree.sizes).unsqueeze(1)] = values
    return padded


def _report(
    method: str, sequences: list[Sequence], tree: TokenTree, verdict: Verdict, output: TargetOutput
) -> StepReport:
    accepted = [length - 1 for length in verdict.lengths.tolist()]
    drafted = tree.sizes
    return StepReport(
        method=method,
        batch=len(accepted),
        rows=output.flat.rows,
        prompt_rows=output.flat.rows - len(accepted) - sum(drafted),
        cached_tokens=output.flat.cached_tokens,
        sequence_ids=[sequence.id for sequence in sequences],
        drafted=drafted,
        accepted=accepted,
        accepted_per_depth=[sum(count > depth for count in accepted) for depth in range(max(accepted, default=0))],
    )
