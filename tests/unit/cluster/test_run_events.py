"""The events of a coordinator: bounded, each shown once, and all of them shown again after a restart."""

from threading import Thread

from paceline.cluster.run_events import START, EventLog


def numbers(events: list[tuple[str, dict[str, int]]]) -> list[int]:
    return [details["n"] for kind, details in events if kind == "event"]


def test_each_event_is_shown_once_to_each_watcher() -> None:
    log = EventLog()
    cursor, seen = START, []
    for n in range(5):
        log.add("event", {"n": n})
        if n % 2:
            events, cursor = log.since(cursor)
            seen.append(numbers(events))
    assert seen == [[0, 1], [2, 3]]
    assert numbers(log.since(cursor)[0]) == [4]
    assert numbers(log.since()[0]) == [0, 1, 2, 3, 4]


def test_oldest_events_are_dropped_and_counted() -> None:
    log = EventLog(most=3)
    log.add("event", {"n": 0})
    _, cursor = log.since()
    for n in range(1, 10):
        log.add("event", {"n": n})
    (kind, details), *events = log.since(cursor)[0]
    assert (kind, details["code"], details["events"]) == ("warning", "events-dropped", 6)
    assert numbers(events) == [7, 8, 9]
    assert len(log.since(log.since()[1])[0]) == 0


def test_events_of_several_threads_are_all_kept() -> None:
    log = EventLog()
    threads = [Thread(target=lambda: [log.add("event", {"n": 1}) for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(numbers(log.since()[0])) == 400
