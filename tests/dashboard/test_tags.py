"""Blocks of the templates' own."""

import re

from django.template import engines

from dashboard.templatetags.requests import latency_flame


def test_a_frame_scrolls_by_keyboard_has_a_name_and_escapes_what_it_is_given_once() -> None:
    template = engines["django"].from_string(
        "{% load gatehouse %}{% frame name %}<tr><td>{{ text }}</td></tr>{% endframe %}"
    )
    assert template.render({"name": 'a"b', "text": "1 < 2"}) == (
        '<div class="scroll-x" tabindex="0" role="region" aria-labelledby="a&quot;b">'
        '<table class="gh-grid"><tr><td>1 &lt; 2</td></tr></table></div>'
    )


def test_a_box_of_the_latency_flame_that_is_too_narrow_for_its_words_says_them_to_the_pointer_alone() -> None:
    drawn = latency_flame([("queue", 4.0), ("prefill", 300.0), ("decode", 700.0)], 1004.0)
    boxes = dict(re.findall(r"<title>(\w[\w ]*): [^<]*</title>.*?<text[^>]*>([^<]*)</text>", drawn))
    assert boxes["Queue"] == ""
    assert boxes["Prefill"] == "Prefill 300 ms"
    assert boxes["Decode"] == "Decode 700 ms"
