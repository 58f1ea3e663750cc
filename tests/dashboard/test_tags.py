"""Blocks of the templates' own."""

from django.template import engines


def test_a_frame_scrolls_by_keyboard_has_a_name_and_escapes_what_it_is_given_once() -> None:
    template = engines["django"].from_string(
        "{% load gatehouse %}{% frame name %}<tr><td>{{ text }}</td></tr>{% endframe %}"
    )
    assert template.render({"name": 'a"b', "text": "1 < 2"}) == (
        '<div class="scroll-x" tabindex="0" role="region" aria-labelledby="a&quot;b">'
        '<table class="gh-grid"><tr><td>1 &lt; 2</td></tr></table></div>'
    )
