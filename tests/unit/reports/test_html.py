"""HTML that is safe: text is escaped, nothing runs, nothing is loaded, secrets are hidden."""

import pytest

from paceline.runs.report.html import is_web, join, link, tag, text


def test_only_markup_is_not_escaped() -> None:
    assert tag("p", "a<b>&c", ["d", None, tag("b", "<")], class_="x") == '<p class="x">a&lt;b&gt;&amp;cd<b>&lt;</b></p>'
    assert tag("td", title="\"'<>&", data_value=0.5, hidden=True, id=None) == (
        '<td title="&quot;&#x27;&lt;&gt;&amp;" data-value="0.5" hidden></td>'
    )
    assert join(["<", text("<")]) == "&lt;&lt;"


@pytest.mark.parametrize(
    "attributes",
    [
        {"onclick": "x()"},
        {"style": "color:red"},
        {"href": "javascript:alert(1)"},
        {"href": " https://x"},
        {"href": "//host/x"},
        {"href": "data:text/html,x"},
        {"src": "https://x/y.png"},
        {"srcdoc": "x"},
        {"formaction": "https://x"},
    ],
)
def test_an_attribute_that_could_run_or_load_something_is_refused(attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(attributes))):
        tag("a", **attributes)


def test_only_addresses_of_the_web_are_links() -> None:
    assert link("http://host/#/x?a=1&b=2", "there").startswith('<a href="http://host/#/x?a=1&amp;b=2"')
    for url in ("javascript:alert(1)", "", "file:///etc", "https://", "http:x", "http://[", "\thttp://host"):
        assert not is_web(url)
        assert link(url, "<there>") == "&lt;there&gt;"


def test_what_no_file_may_hold_is_replaced_and_secrets_are_hidden() -> None:
    assert text("a\x00b\ud800c\n") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\n"
    assert tag("p", "token=0123456789", title="https://me:word@host/") == '<p title="https://***@host/">token=***</p>'
