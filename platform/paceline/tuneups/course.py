"""The course of a tune-up.

inspect the model  ->  the baseline trained with each seed  ->  each technique screened against the baseline
  ->  those that look faster, together  ->  each other one beside them, each of them taken away
  ->  the quality of the rest, without techniques that lower it  ->  techniques that there was no time for before
  ->  the candidates together, and each technique that looks different, confirmed over builds
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.batch_scaling.earlier_study import EarlierStudy
from paceline.batch_scaling.texts import critical_text
from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.reports.text import counted
from paceline.tuneups.combination_search import Combining
from paceline.tuneups.combinations import KNEE, best_of_families, merged, speedups, together
from paceline.tuneups.confirmation import AA, TOGETHER, Confirmation, seconds_of_build, shown_name
from paceline.tuneups.execution import DeviceMemory
from paceline.tuneups.facts import LOOK, TuneupFacts
from paceline.tuneups.outcome import BaselineFailed, Findings, Note, Quality, TechniqueResult
from paceline.tuneups.peaks import BASELINE, PROCESS_SECONDS, Peaks
from paceline.tuneups.quality_gate import QualityGate
from paceline.tuneups.recommendation import Recommendation
from paceline.tuneups.screening import ScreenedPair, Screening
from paceline.tuneups.splits import Splits
from paceline.tuneups.statistics.sequential_test import LEAST_EFFECT, LOOKS, Comparison
from paceline.tuneups.technique_results import ends_of, result_of
from paceline.tuneups.techniques import (
    LOADERS_ENOUGH,
    Technique,
    loader_processes,
    techniques_for,
    untried_fixes,
    with_fixes,
    within_reach,
)
from paceline.tuneups.texts import speed_text
from paceline.tuneups.time_notes import time_notes
from paceline.tuneups.trainings import Trainings
from paceline.tuneups.watcher import Watcher

BASELINE_SHARE = 0.5
"""Largest share of the time not reserved for the confirmation that training the baseline may take."""
QUALITY_SHARE = 0.8
"""Largest share of the time left after that which is reserved for further trainings."""
CONFIRMATION_SHARE = 0.45
"""Share of the budget that is reserved for builds in fresh processes."""
MEMORY_SECONDS = 5 * PROCESS_SECONDS
"""Seconds reserved to measure and to predict memory; at most the share `MEMORY_SHARE` of the budget."""
MEMORY_SHARE = 0.15
NO_TIME_TO_CONFIRM = (
    "what looked faster in the screening is not recommended: there was no time to confirm it (tuneup.budget_seconds)"
)
NO_GAIN_CONFIRMED = "no gain was confirmed, and nothing is recommended"
PREDICTED = "memory with a ~ is predicted: there was no time to measure it"
FIRST_LOADERS = 2
"""More loader processes are screened only while half as many were worth it."""
END_SECONDS, END_SHARE = 5.0, 0.03
"""Time reserved for the report, MLflow and the end of Ray: a minimum in seconds, and a share of the budget."""
SCREENING_SHARE = 1 - CONFIRMATION_SHARE - MEMORY_SHARE - END_SHARE
"""Share of a longer budget that the screening gets, without trainings."""


class TuneupCourse:
    """One tune-up on a bench that is open."""

    def __init__(
        self,
        config: ExperimentConfig,
        bench: Bench,
        clock: Clock,
        watcher: Watcher,
        notes: Sequence[str] = (),
        scale_study: EarlierStudy | None = None,
        shares_machines: bool = False,
    ) -> None:
        """Args:
        notes: notes to add to the findings.
        scale_study: a scale study of the config.
        shares_machines: others may use the cores that the workers have not reserved.
        """
        self._scale_study, self._shares_machines = scale_study, shares_machines
        self._config, self._bench, self._clock, self._watcher = config, bench, clock, watcher
        self._trainings = Trainings(bench, clock, config)
        efficiency = scale_study.efficiency_of if scale_study is not None else lambda config: 1.0
        self._screening = Screening(bench, clock, config.seed, DeviceMemory(), watcher.screened, efficiency)
        self._screened: dict[str, ScreenedPair] = {}
        self._notes = list(notes)
        self._techniques: list[Technique] = []
        self._splits = Splits(bench, clock)
        self._peaks = Peaks(bench, clock, config)
        self._memory_seconds = min(MEMORY_SECONDS, MEMORY_SHARE * clock.budget_seconds)
        self._end_seconds = max(END_SECONDS, END_SHARE * clock.budget_seconds)
        self._kept_back = CONFIRMATION_SHARE * clock.budget_seconds + self._memory_seconds + self._end_seconds
        """Seconds reserved for the stages after the trainings."""

    def run(self) -> Findings:
        """Measure, choose, and check.

        Raises:
            BaselineFailed: the baseline itself cannot be built, trained or measured.
            RunFailed: the workers are gone.
        """
        facts = replace(self._examine(), scale_study=self._scale_study, shares_machines=self._shares_machines)
        if self._scale_study is not None:
            critical, named = critical_text(self._scale_study.findings.critical), self._scale_study.study_id
            told = f"speeds are those to the same result, as scale study {named} measured it: critical batch {critical}"
            self._note("scale-study", told)
        self._diagnose()
        techniques = with_fixes(techniques_for(self._config, facts), self._splits.fixes, self._config)
        if left := untried_fixes(techniques, self._splits.fixes, self._config):
            told = "; ".join(f"{name} ({reason})" for name, reason in left.items())
            self._note("untried-fixes", f"fixes of the bottleneck that are not tried by themselves: {told}")
        self._techniques = self._peaks.without_too_large(
            within_reach(techniques, self._scale_study),
            self._screening.memory,
            facts.device_memory_bytes,
        )
        self._note_unpredicted()
        self._watcher.techniques(self._techniques)
        tried = [technique for technique in self._techniques if not technique.why_not]
        self._train_baseline(facts)
        tried = self._measure_alone(tried)
        chosen = self._combine(tried, facts)
        fastest = chosen
        self._clock.reserved = self._kept_back
        chosen, quality = self._check_quality(fastest)
        chosen = self._use_remaining_time(
            tried, chosen, {technique.name for technique in fastest if technique not in chosen}
        )
        found = self._confirm(chosen, quality)
        self._split_recommended(found.chosen)
        self._measure_memory(tried, found.chosen)
        return self._findings(found)

    def _note_unpredicted(self) -> None:
        if self._peaks.problem:
            reason = f"the memory of the techniques could not be predicted: {self._peaks.problem}"
            self._note("memory-not-predicted", reason)

    def _note(self, code: str, text: str) -> None:
        self._notes.append(Note(text, code))

    def _examine(self) -> TuneupFacts:
        self._watcher.stage("looking at the model")
        answer = self._bench.do(Job(LOOK, (part_of(self._config),), {}, self._clock.longest, checks_again=True))
        if answer.problem:
            raise BaselineFailed(f"the baseline cannot be built: {answer.problem}", "build")
        return TuneupFacts(**answer.values)

    def _diagnose(self) -> None:
        """Split the time of the baseline's steps. The fixes for its bottleneck are tried like any other technique."""
        self._watcher.stage("splitting the time of a step")
        self._splits.split_baseline(self._config)
        self._screening.seconds_per_sample = self._splits.seconds_per_sample
        if self._splits.problem:
            self._note("step-not-split", f"the time of a step could not be split: {self._splits.problem}")

    def _train_baseline(self, facts: TuneupFacts) -> None:
        """Train the baseline first, so that the time that the quality of the others will take is known."""
        expected = self._training_seconds(facts)
        self._clock.reserved = self._kept_back
        needed, allowed = len(self._trainings.seeds) * expected, BASELINE_SHARE * self._clock.left
        if expected and needed > allowed:
            text = (
                f"quality is not known: training the baseline with {counted(len(self._trainings.seeds), 'seed')} takes "
                f"some {needed:,.0f} s, and at most {max(0.0, allowed):,.0f} s are left for it; raise "
                "tuneup.budget_seconds, or lower trainer.epochs or tuneup.seeds"
            )
            self._note("training-too-long", text)
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
            reason = f"{self._trainings.metric} of the baseline is not finite: quality is not known"
            self._note("metric-not-finite", reason)
            return
        self._reserve_trainings(1)

    def _reserve_trainings(self, configs: int) -> None:
        """Reserve time to train this number of configs with each seed, and for the later stages."""
        needed = configs * (self._trainings.seconds(self._config) or 0.0) * len(self._trainings.seeds)
        left = self._clock.left + self._clock.reserved
        self._clock.reserved = min(needed, QUALITY_SHARE * max(0.0, left - self._kept_back)) + self._kept_back

    def _training_seconds(self, facts: TuneupFacts) -> float:
        """Return the expected seconds of a training of the baseline, by its steps; 0 where that is not known."""
        plan = derive(self._config, Sizes(facts.train_samples, facts.validation_samples))
        samples = plan.total_samples if plan.stages else plan.batch.global_batch_size * (plan.total_steps or 0)
        return self._splits.seconds_per_sample * (samples or 0)

    def _measure_alone(self, techniques: Sequence[Technique]) -> list[Technique]:
        """Screen each technique against the baseline, and return the techniques that were screened."""
        self._watcher.stage("screening each technique")
        self._clock.reserved = max(self._clock.reserved, self._kept_back)
        self._screening.fit_windows(len(techniques) + 1)
        equal = ScreenedPair(AA, self._config, self._config)
        self._screening.measure(equal)
        if equal.problem:
            raise BaselineFailed(f"the baseline cannot be measured: {equal.problem}", "measure")
        self._screened[AA] = equal
        self._warn_of_short_budget(len(techniques))
        searched = [each for each in techniques if (loader_processes(each) or 0) > FIRST_LOADERS]
        listed = [technique for technique in techniques if technique not in searched]
        for technique in listed:
            self._screened[technique.name] = self._pair_of(technique)
        self._screening.run([self._screened[technique.name] for technique in listed], share=0.5)
        return [*listed, *self._search_loaders(techniques)]

    def _warn_of_short_budget(self, num_techniques: int) -> None:
        """Say at once, not only in the report, that the budget is too short to screen all and to confirm one."""
        if not num_techniques:
            return
        each = self._screening.longest
        # the time reserved for trainings is free in the end where nothing that needs one looks faster
        left = self._clock.left + self._clock.reserved - self._kept_back
        confirming = LOOKS[0] * seconds_of_build(1, self._screening)
        kept_for_builds = self._kept_back - self._memory_seconds - self._end_seconds
        lacking_seconds = max(
            (num_techniques * each - left) / SCREENING_SHARE, (confirming - kept_for_builds) / CONFIRMATION_SHARE
        )
        if lacking_seconds > 0:
            enough_for = max(0, min(num_techniques, int(left / each)))
            text = (
                f"the time for the screening is enough for {enough_for} of {counted(num_techniques, 'technique')}: "
                f"raise tuneup.budget_seconds by at least {lacking_seconds:,.0f} s, or name fewer in tuneup.only"
            )
            self._watcher.event("warning", {"code": "short-budget", "message": text})

    def _pair_of(self, technique: Technique) -> ScreenedPair:
        return ScreenedPair(technique.name, self._config, technique.config(self._config))

    def _search_loaders(self, techniques: Sequence[Technique]) -> list[Technique]:
        """Double the number of loader processes while training becomes faster. Return the measured techniques."""
        found: list[Technique] = []
        speeds = {self._config.data.num_workers: 1.0}
        numbered = {number: each for each in techniques if (number := loader_processes(each)) is not None}
        for number, technique in sorted(numbered.items()):
            pair = self._screened.get(technique.name)
            if pair is None and not self._is_worth_doubling(number, speeds):
                left_out = replace(technique, why_not=LOADERS_ENOUGH)
                self._techniques = [left_out if each is technique else each for each in self._techniques]
                continue
            if pair is None:
                pair = self._screened[technique.name] = self._pair_of(technique)
                self._screening.run([pair])
                found.append(technique)
            if pair.pairs:
                speeds[number] = pair.interval.estimate
        return found

    @staticmethod
    def _is_worth_doubling(number: int, speeds: Mapping[int, float]) -> bool:
        """Return True if the last doubling below this number of loader processes was faster, or none is known."""
        known = [speeds[each] for each in sorted(speeds) if each < number]
        return len(known) < 2 or known[-1] * KNEE >= known[-2]

    def _screen_the_rest(self, techniques: Sequence[Technique]) -> None:
        """Screen further if nothing looks faster yet, and reserve only the time to confirm one technique."""
        builds = LOOKS[1] * seconds_of_build(1, self._screening)
        self._kept_back = min(self._kept_back, builds + self._memory_seconds + self._end_seconds)
        self._reserve_trainings(1)
        self._screening.run([self._screened[technique.name] for technique in techniques], share=0.5)

    def _combine(self, tried: Sequence[Technique], facts: TuneupFacts) -> list[Technique]:
        self._watcher.stage("screening what looks faster together")
        if not speedups(self._screened, tried):
            self._screen_the_rest(tried)
        gained = best_of_families(speedups(self._screened, tried))
        if (risky := sum(technique.computes == "differently" for technique in gained)) > 1:
            self._reserve_trainings(risky + 1)  # if they make the model worse together, each is tried alone
        self._combining = Combining(self._config, facts, self._screening, self._techniques, self._screened)
        chosen = self._combining.run(tried, gained)
        self._techniques = self._combining.techniques
        self._gate = QualityGate(self._config, self._trainings, self._techniques, self._screened)
        return chosen

    def _check_quality(self, chosen: list[Technique]) -> tuple[list[Technique], Quality]:
        self._watcher.stage("training the recommended config")
        return self._gate.admit(chosen)

    def _use_remaining_time(
        self, tried: Sequence[Technique], chosen: list[Technique], spoiling: set[str]
    ) -> list[Technique]:
        """Measure the techniques that there was no time for. The trainings took less than the reserved time, since the
        recommended config trains faster. Techniques that keep the numerics may still be added to it."""
        self._watcher.stage("measuring what there was no time for")
        waiting = [pair for technique in tried if not (pair := self._screened[technique.name]).benchmarks]
        self._screening.run(waiting, share=0.5)
        if not any(self._screened[technique.name].benchmarks for technique in tried):
            self._clock.reserved = self._end_seconds  # there is nothing to confirm
            self._screening.run(waiting, share=0.5)
        chosen = self._combining.extended(chosen, tried, spoiling)
        self._techniques = self._combining.techniques
        return chosen

    def _confirm(self, chosen: list[Technique], quality: Quality) -> Recommendation:
        self._watcher.stage("confirming in fresh processes")
        self._clock.reserved = self._memory_seconds / 2 + self._end_seconds
        self._confirmation = Confirmation(
            self._bench, self._clock, self._config, self._screening, self._watcher.confirmed
        )
        found = Recommendation(self._config, self._confirmation, self._screened, self._gate)
        found.confirm(chosen, quality, self._techniques)
        if chosen and not found.chosen and TOGETHER not in self._confirmation.problems:
            self._note_unconfirmed(found.together)
        for problem in dict.fromkeys(self._confirmation.problems.values()):
            names = [shown_name(name) for name, each in self._confirmation.problems.items() if each == problem]
            self._note("build-failed", f"{', '.join(names)} could not be measured in fresh processes: {problem}")
        return found

    def _note_unconfirmed(self, together: Comparison | None) -> None:
        looked_good = together is not None and together.interval.estimate >= 1 + LEAST_EFFECT
        if together is None or (not together.looks and looked_good):
            self._note("no-time-to-confirm", NO_TIME_TO_CONFIRM)
        else:
            speed = speed_text(together.interval.estimate, ends_of(together.interval))
            seen = f"all together are {speed} over {counted(together.builds, 'build')}"
            self._note("not-confirmed", f"{seen}: {NO_GAIN_CONFIRMED}")

    def _split_recommended(self, chosen: Sequence[Technique]) -> None:
        """Split the step time of the recommended config, if that leaves time to measure its memory and to predict
        that of the others."""
        self._clock.reserved = self._end_seconds + 3 * self._peaks.process_seconds
        if chosen:
            self._splits.split_recommended(together(self._config, chosen)[0])

    def _measure_memory(self, techniques: Sequence[Technique], chosen: Sequence[Technique]) -> None:
        """Predict the memory of all techniques in one process, which takes little longer than measuring one. Then
        measure in fresh processes: the baseline, the recommended config, and each technique while there is time."""
        self._clock.reserved = self._end_seconds
        self._watcher.stage("measuring the memory")
        met = [technique for technique in techniques if self._screened[technique.name].pairs]
        met.sort(key=lambda each: (each not in chosen, not each.saves_memory))
        if met and not self._peaks.predicted:
            self._peaks.predict({technique.name: technique for technique in met}, share=0.5)
            self._note_unpredicted()
        if not met or not self._peaks.has_time_for(2):
            return  # the baseline's memory alone tells nothing
        self._peaks.measure(BASELINE, self._config)
        if chosen:
            self._peaks.measure(TOGETHER, together(self._config, chosen)[0])
        for technique in met:
            self._peaks.measure(technique.name, technique.config(self._config))

    def _findings(self, found: Recommendation) -> Findings:
        self._notes += self._gate.notes
        results = tuple(self._result(technique, found) for technique in self._techniques)
        too_slow = [name for name, pair in self._screened.items() if pair.is_too_slow]
        self._notes += time_notes(results, too_slow, self._screening.longest, self._confirmation.seconds_of)
        if any(each.is_memory_predicted for each in results):
            self._note("memory-predicted", PREDICTED)
        confirmed = found.together if found.chosen else None
        return Findings(
            techniques=results,
            noise=self._confirmation.noise,
            recommended=merged(found.chosen),
            speedup=confirmed.interval.estimate if confirmed is not None else None,
            speedup_interval=ends_of(confirmed.interval) if confirmed is not None else None,
            builds=confirmed.builds if confirmed is not None else 0,
            quality=found.quality,
            peak_memory_ratio=self._peaks.ratio(TOGETHER),
            split=self._splits.baseline,
            recommended_split=self._splits.recommended,
            bottleneck=self._splits.bottleneck,
            beside=tuple(self._combining.beside),
            notes=tuple(self._notes),
        )

    def _result(self, technique: Technique, found: Recommendation) -> TechniqueResult:
        usual = Quality("same" if technique.computes == "same" else "not measured")
        result = result_of(
            technique,
            self._screened.get(technique.name),
            found.techniques.get(technique.name),
            self._gate.qualities.get(technique.name, usual),
            self._screened[AA].warnings,
            self._peaks,
            self._confirmation.problems.get(technique.name, ""),
        )
        share = found.shares.get(technique.name)
        return replace(
            result,
            in_turn=result.in_turn or technique.name in self._confirmation.in_turn,
            is_recommended=any(each.name == technique.name for each in found.chosen),
            share=share.interval.estimate if share is not None else None,
            share_interval=ends_of(share.interval) if share is not None else None,
        )
