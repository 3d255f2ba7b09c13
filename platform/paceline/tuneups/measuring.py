"""The course of a tune-up.

look at the model  ->  the baseline trained with each seed  ->  each technique against the baseline
  ->  those that gain, together  ->  each other one beside them, each of them taken away
  ->  the quality of what is left, without what spoils it  ->  what there was no time for until now
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from paceline.cluster.listener import Stages
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.bench import Bench
from paceline.tuneups.beside import NO_TIME
from paceline.tuneups.checking import FEWEST_SEEDS, Checking
from paceline.tuneups.choosing import best_of_families, merged, speedups, together
from paceline.tuneups.clock import Clock
from paceline.tuneups.combining import Combining
from paceline.tuneups.concluding import result_of
from paceline.tuneups.facts import Facts
from paceline.tuneups.jobs import Job, part_of
from paceline.tuneups.judging import Standing
from paceline.tuneups.outcome import BaselineFailed, Findings, Note, Quality, TechniqueResult
from paceline.tuneups.peaks import BASELINE, PROCESS_SECONDS, Peaks
from paceline.tuneups.qualities import Trainings
from paceline.tuneups.ring import Contest, Ring
from paceline.tuneups.splits import Splits
from paceline.tuneups.statistics.judge import Noise
from paceline.tuneups.techniques import Technique, techniques_for, with_fixes

AA = "A/A"
"""Name of the contest of the baseline against itself."""
QUALITY_SHARE = 0.45
"""Of the budget, what trainings for the quality may take at the most."""
TOGETHER = "all/together"
"""Name of the contest of all that is recommended. As with `AA`, no technique of the user's can have it."""
MEMORY_SECONDS = 5 * PROCESS_SECONDS
"""Kept back for the last duel, for the memory of the baseline and of what is recommended, and to predict that of the
others; of a short budget at most `MEMORY_SHARE`."""
MEMORY_SHARE = 0.15
BY_CHANCE = "what each has shown may have been chance; give tuneup.budget_seconds more to know"
MORE_TIME = "nothing is known, for want of time (tuneup.budget_seconds)"
PREDICTED = "memory with a ~ is predicted: there was no time to measure it"
END_SECONDS = 5.0
"""Kept back for the report."""


class Watcher(Stages, Protocol):
    """Gets the progress of a tune-up."""

    def goes_on(self, tuneup_id: str, spent_seconds: float) -> None:
        """An earlier launch of it has been interrupted, and has spent so much of the budget."""

    def techniques(self, techniques: Sequence[Technique]) -> None:
        """What will be tried, and what not."""

    def contest(self, contest: Contest) -> None:
        """A duel has been fought out."""


class Measuring:
    """One tune-up on a bench that is open."""

    def __init__(
        self, config: ExperimentConfig, bench: Bench, clock: Clock, watcher: Watcher, notes: Sequence[str] = ()
    ) -> None:
        """Args:
        notes: what the findings are to say beside what is measured.
        """
        self._config, self._bench, self._clock, self._watcher = config, bench, clock, watcher
        self._trainings = Trainings(bench, clock, config)
        self._noise = Noise()
        self._ring = Ring(bench, clock, config.seed, watcher.contest)
        self._contests: dict[str, Contest] = {}
        self._qualities: dict[str, Quality] = {}
        self._notes = list(notes)
        self._techniques: list[Technique] = []
        self._splits = Splits(bench, clock)
        self._peaks = Peaks(bench, clock, config)
        self._memory_seconds = min(MEMORY_SECONDS, MEMORY_SHARE * clock.budget_seconds)

    def run(self) -> Findings:
        """Measure, choose, and check.

        Raises:
            BaselineFailed: the baseline itself cannot be trained.
            RunFailed: the workers are gone.
        """
        facts = self._look()
        self._diagnose()
        self._techniques = self._peaks.without_too_large(
            with_fixes(techniques_for(self._config, facts), self._splits.fixes, self._config)
        )
        if self._peaks.problem:
            self._note(
                "memory-not-predicted", f"the memory of the techniques could not be predicted: {self._peaks.problem}"
            )
        self._watcher.techniques(self._techniques)
        tried = [technique for technique in self._techniques if not technique.why_not]
        self._train_baseline(facts)
        self._measure_alone(tried)
        chosen = self._combine(tried, facts)
        fastest = chosen
        chosen, quality = self._check_quality(fastest)
        chosen = self._use_what_is_left(
            tried, chosen, {technique.name for technique in fastest if technique not in chosen}
        )
        self._measure_together(chosen)
        self._split_recommended(chosen)
        self._measure_memory(tried, chosen)
        return self._findings(chosen, quality)

    def _note(self, code: str, text: str) -> None:
        self._notes.append(Note(text, code))

    def _look(self) -> Facts:
        self._watcher.stage("looking at the model")
        answer = self._bench.do(Job("look", (part_of(self._config),), {}, self._clock.longest))
        if answer.problem:
            raise BaselineFailed(f"the baseline cannot be built: {answer.problem}", "build")
        return Facts(**answer.values)

    def _diagnose(self) -> None:
        """Where the baseline's time goes; what would mend it is tried like any other technique."""
        self._watcher.stage("splitting the time of a step")
        self._splits.split_baseline(self._config)
        self._ring.seconds_per_sample = self._splits.seconds_per_sample
        if self._splits.problem:
            self._note("step-not-split", f"the time of a step could not be split: {self._splits.problem}")

    def _train_baseline(self, facts: Facts) -> None:
        """Before all else, so that it is known how much time the quality of the others will take."""
        expected = self._training_seconds(facts)
        if FEWEST_SEEDS * expected > QUALITY_SHARE * self._clock.left:
            self._note(
                "training-too-long",
                f"training the baseline takes too long here, some {expected:,.0f} s: quality is not known",
            )
            return
        self._watcher.stage("training the baseline")
        if not self._trainings.train(self._config, expected):
            if self._trainings.problem:
                raise BaselineFailed(f"the baseline cannot be trained: {self._trainings.problem}", "train")
            self._note(
                "no-time-to-train", "there was no time to train the baseline with every seed: quality is not known"
            )
            return
        if not self._trainings.is_finite(self._config):
            reason = f"{self._trainings.metric} of the baseline is no finite number: quality is not known"
            self._note("metric-not-finite", reason)
            return
        self._reserve_trainings(1)

    def _reserve_trainings(self, configs: int) -> None:
        """Keep time back for so many configs to be trained with each seed, and for what comes after."""
        needed = configs * (self._trainings.seconds(self._config) or 0.0) * len(self._trainings.seeds)
        left = self._clock.left + self._clock.reserved
        self._clock.reserved = min(needed, QUALITY_SHARE * left) + self._memory_seconds + END_SECONDS

    def _training_seconds(self, facts: Facts) -> float:
        """What a training of the baseline is expected to take, by the time of its steps; 0 where that is not known."""
        plan = derive(self._config, Sizes(facts.train_samples, facts.validation_samples))
        return self._splits.seconds_per_sample * plan.batch.global_batch_size * (plan.total_steps or 0)

    def _contest(self, name: str, baseline: ExperimentConfig, technique: ExperimentConfig) -> Contest:
        return Contest(name, baseline, technique, Standing(self._noise))

    def _measure_alone(self, techniques: Sequence[Technique]) -> None:
        self._watcher.stage("measuring the noise, and each technique alone")
        self._ring.fit_windows(len(techniques) + 1)
        noise = self._contest(AA, self._config, self._config)
        self._ring.meet(noise)
        if noise.problem:
            raise BaselineFailed(f"the baseline cannot be measured: {noise.problem}", "measure")
        self._contests[AA] = noise
        self._noise = Noise.of([(pair.baseline, pair.technique) for pair in noise.standing.pairs])
        for technique in techniques:
            self._contests[technique.name] = self._contest(technique.name, self._config, technique.config(self._config))
        self._ring.run([self._contests[technique.name] for technique in techniques], share=0.5)

    def _combine(self, tried: Sequence[Technique], facts: Facts) -> list[Technique]:
        self._watcher.stage("measuring what gains together")
        gained = best_of_families(speedups(self._contests, tried))
        if (risky := sum(technique.computes == "differently" for technique in gained)) > 1:
            self._reserve_trainings(risky + 1)  # if they spoil the model together, each is to be tried by itself
        self._combining = Combining(self._config, facts, self._ring, self._noise, self._techniques, self._contests)
        chosen = self._combining.run(tried, gained)
        self._techniques = self._combining.techniques
        return chosen

    def _check_quality(self, chosen: list[Technique]) -> tuple[list[Technique], Quality]:
        self._clock.reserved = self._memory_seconds + END_SECONDS
        self._watcher.stage("training the recommended config")
        checking = Checking(self._config, self._trainings, self._techniques, self._contests)
        chosen, quality = checking.run(chosen)
        self._qualities = checking.qualities
        self._notes += checking.notes
        return chosen, quality

    def _use_what_is_left(
        self, tried: Sequence[Technique], chosen: list[Technique], spoiling: set[str]
    ) -> list[Technique]:
        """Measure what there was no time for: the trainings took less than was kept back, since what is recommended
        trains faster. What computes the same may still join it."""
        self._watcher.stage("measuring what there was no time for")
        self._clock.reserved += self._ring.longest  # for all together
        self._ring.run(
            [self._contests[technique.name] for technique in tried if not self._contests[technique.name].duels],
            share=0.5,
        )
        chosen = self._combining.extended(chosen, tried, spoiling)
        self._techniques = self._combining.techniques
        return chosen

    def _measure_together(self, chosen: Sequence[Technique]) -> None:
        """All that is recommended against the baseline."""
        contest = self._contest(TOGETHER, self._config, together(self._config, chosen)[0])
        self._contests[TOGETHER] = contest
        self._clock.reserved = self._memory_seconds / 2 + END_SECONDS
        if chosen:
            self._ring.run([contest])
        if contest.standing.pairs and contest.standing.final != "gain":
            self._note(
                "no-gain-together", f"all together show no gain, {contest.standing.interval.text()}: {BY_CHANCE}"
            )

    def _split_recommended(self, chosen: Sequence[Technique]) -> None:
        """Where the time of a step goes now, as long as it takes none from the memory of what is recommended, nor from
        predicting the others'."""
        self._clock.reserved = END_SECONDS + 3 * self._peaks.process_seconds
        if chosen:
            self._splits.split_recommended(together(self._config, chosen)[0])

    def _measure_memory(self, techniques: Sequence[Technique], chosen: Sequence[Technique]) -> None:
        """In fresh processes, what is recommended first; then each technique, as long as there is time. All of them are
        predicted together before, which takes little more than to measure one."""
        self._clock.reserved = END_SECONDS
        self._watcher.stage("measuring the memory")
        self._peaks.measure(BASELINE, self._config)
        if chosen:
            self._peaks.measure(TOGETHER, together(self._config, chosen)[0])
        met = [technique for technique in techniques if self._contests[technique.name].standing.pairs]
        met.sort(key=lambda each: (each not in chosen, not each.saves_memory))
        if not self._peaks.predicted:
            self._peaks.predict({technique.name: technique for technique in met}, share=0.5)
        for technique in met:
            self._peaks.measure(technique.name, technique.config(self._config))

    def _findings(self, chosen: Sequence[Technique], quality: Quality) -> Findings:
        noise = self._contests[AA].standing.interval
        contest = self._contests[TOGETHER]
        has_pairs = bool(contest.standing.pairs)
        results = tuple(self._result(technique, chosen) for technique in self._techniques)
        untried = [each.name for each in results if each.reason == NO_TIME]
        if untried:
            self._note("no-time", f"{MORE_TIME}, of {len(untried)} techniques: {', '.join(untried)}")
        if any(each.is_memory_predicted for each in results):
            self._note("memory-predicted", PREDICTED)
        return Findings(
            techniques=results,
            noise=(noise.low, noise.high),
            recommended=merged(chosen),
            speedup=contest.standing.interval.estimate if has_pairs else None,
            speedup_interval=(contest.standing.interval.low, contest.standing.interval.high) if has_pairs else None,
            quality=quality,
            peak_memory_ratio=self._peaks.ratio(TOGETHER),
            split=self._splits.baseline,
            recommended_split=self._splits.recommended,
            bottleneck=self._splits.bottleneck,
            beside=tuple(self._combining.beside),
            notes=tuple(self._notes),
        )

    def _result(self, technique: Technique, chosen: Sequence[Technique]) -> TechniqueResult:
        quality = self._qualities.get(
            technique.name, Quality("same" if technique.computes == "same" else "not measured")
        )
        result = result_of(
            technique, self._contests.get(technique.name), quality, self._contests[AA].warnings, self._peaks
        )
        return replace(result, is_recommended=any(each.name == technique.name for each in chosen))
