"""One HTML file from a report's parts; a policy within it forbids all but its own style and script."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from paceline.runs.report.html import Child, Markup, tag
from paceline.runs.report.parts import Report, Section, pill


@cache
def _packaged(name: str) -> str:
    return (files("paceline.runs.report") / name).read_text("utf-8")


def page(report: Report) -> str:
    """The whole file."""
    style, script = _packaged("style.css"), _packaged("script.js")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{report.name} · {report.kind} {report.id}"),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        _clip(),
        _header(report),
        _navigation(report),
        _main(report),
        tag("script", Markup(script)),
        data_kind=report.kind,
        data_id=report.id,
        data_status=report.status,
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def _clip() -> Markup:
    """What keeps the lines of all charts within their axes."""
    from paceline.runs.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH

    inner = tag("rect", x=LEFT, y=TOP - 4, width=WIDTH - LEFT - RIGHT, height=HEIGHT - TOP - BOTTOM + 5)
    return tag("svg", tag("clipPath", inner, id="inner"), width=0, height=0, class_="hidden", aria_hidden="true")


def _header(report: Report) -> Markup:
    crumb = tag("p", tag("span", report.kind, class_="kind"), " ", tag("code", report.id), class_="crumb")
    title = tag("h1", report.name, " ", pill(report.status))
    return tag("header", tag("div", crumb, title, tag("p", report.subtitle, class_="quiet"), class_="inner"))


def _navigation(report: Report) -> Markup:
    entries = [tag("a", section.title, href=f"#{section.key}") for section in report.sections]
    return tag("nav", tag("div", entries, class_="inner"), aria_label="sections")


def _main(report: Report) -> Markup:
    warnings = [tag("p", words, class_="warning", role="alert") for words in report.warnings]
    tiles = [_tile(*each) for each in report.tiles]
    answer = tag("div", report.answer, class_="answer")
    return tag(
        "main", warnings, answer, tag("div", tiles, class_="tiles"), [_section(each) for each in report.sections]
    )


def _tile(label: str, figure: Child, words: str) -> Markup:
    return tag(
        "div",
        tag("span", label, class_="label"),
        tag("b", figure),
        tag("span", words, class_="quiet") if words else None,
        class_="tile",
    )


def _section(section: Section) -> Markup:
    note = tag("p", section.note, class_="quiet") if section.note else None
    return tag("section", tag("h2", section.title), note, section.content, id=section.key)
