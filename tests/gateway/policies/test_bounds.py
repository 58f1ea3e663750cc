"""Bounds of tokens: never negative, never below what a request of that size can use."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.bounds import MEDIA_TOKENS, Context, Size, bound_tokens, recounted

sizes = st.builds(
    Size,
    text_bytes=st.integers(0, 10**7),
    prompts=st.integers(1, 2048),
    messages=st.integers(0, 1000),
    tools_bytes=st.integers(0, 10**5),
    media=st.integers(0, 10),
    answers=st.integers(0, 128),
    max_tokens=st.none() | st.integers(0, 2**31 - 1),
    counted=st.none(),
)
contexts = st.builds(
    lambda shortest, more: Context(shortest, None if shortest is None else shortest + more),
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**5),
)


def bound(size: Size, context: Context = Context(), allowance: int = 256, default_max: int = 4096) -> tuple[int, ...]:  # noqa: B008  # it cannot be changed
    found = bound_tokens(size, context=context, allowance=allowance, default_max=default_max)
    return found.input_tokens, found.output_tokens, -1 if found.most_tokens is None else found.most_tokens


@given(sizes, contexts, st.integers(0, 1000), st.integers(1, 10_000))
def test_a_bound_covers_the_prompt_and_every_answer_to_its_end(
    size: Size, context: Context, allowance: int, default_max: int
) -> None:
    found = bound_tokens(size, context=context, allowance=allowance, default_max=default_max)
    longest = context.longest
    if longest is None:
        assert found.input_tokens >= size.text_bytes + allowance
    else:
        assert found.input_tokens == size.prompts * longest or found.input_tokens >= size.text_bytes + allowance
    if not size.answers:
        assert (found.output_tokens, found.most_tokens) == (0, None)
        return
    assert found.most_tokens is not None
    assert found.output_tokens == size.prompts * size.answers * max(1, found.most_tokens)
    if size.max_tokens is not None and (longest is None or size.max_tokens <= longest):
        assert found.most_tokens == size.max_tokens  # what the client says is kept
    if longest is not None:
        assert 0 <= found.most_tokens <= max(longest, default_max)


@given(sizes, contexts, st.integers(0, 10**6))
def test_a_counted_prompt_is_bound_by_its_count(size: Size, context: Context, tokens: int) -> None:
    found = bound_tokens(recounted(size, tokens), context=context, allowance=256, default_max=4096)
    most = tokens + 16
    assert found.input_tokens == (most if context.longest is None else min(most, size.prompts * context.longest))


def test_what_bytes_say_nothing_about_is_bound_by_the_context() -> None:
    picture = Size(300, messages=1, media=1, answers=1, max_tokens=10)
    assert bound(picture, Context(2000, 4000))[0] == 4000
    assert bound(picture)[0] == 300 + 256 + 16 + MEDIA_TOKENS


def test_an_answer_without_an_end_is_given_what_the_context_leaves() -> None:
    asked = Size(400, messages=1, answers=2)
    assert bound(asked) == (672, 8192, 4096)
    assert bound(asked, Context(2048, 2048)) == (672, 2 * (2048 - 133 - 272), 2048 - 133 - 272)
    assert bound(asked._replace(max_tokens=10**6), Context(2048, 2048))[2] == 2048 - 133 - 272
    assert bound(Size(10**6, answers=1), Context(2048, 2048))[2] == 256  # engines refuse the prompt, not the gateway


def test_no_token_at_all_is_one() -> None:
    assert bound(Size(10, answers=1, max_tokens=0), allowance=0) == (10, 1, 0)
