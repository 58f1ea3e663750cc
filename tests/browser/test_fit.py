"""“Will it fit?” in Chromium: asked by keyboard, answered with parts and reasons, readable in both themes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpupool.models import Device
from tests.browser.conftest import Web
from tests.browser.test_accessible import violations
from tests.browser.walk import log_in
from tests.dashboard.people import person
from tests.gpupool.gguf_headers import LLAMA_3_70B, Q4_0, write_model
from tests.gpupool.pool import GIB, a_device, a_version, an_online_node

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
Shoot = Callable[["Page", str], None]


@pytest.fixture(autouse=True)
def _pool(web: Web, tmp_path: Path) -> None:
    person("rita", platform_role="read_only")
    an_online_node(*(a_device(f"gpu-{number}", memory_bytes=48 * GIB) for number in range(3)))
    Device.objects.filter(stable_id="gpu-2").update(health="failed")
    a_version("llama-70b", memory_bytes=0, artefact=f"file://{write_model(tmp_path / 'm.gguf', LLAMA_3_70B, Q4_0)}")


@pytest.mark.parametrize(
    ("theme", "language", "width", "answer", "reason"),
    [
        ("light", "en", 1600, "It would go to node-1/gpu-0.", "It has failed"),
        ("dark", "zh-hans", 390, "它会放置到 node-1/gpu-0。", "它已故障"),
    ],
)
def test_a_question_is_asked_and_answered(
    open_page: OpenPage, shoot: Shoot, theme: str, language: str, width: int, answer: str, reason: str
) -> None:
    page = open_page(theme=theme, language=language, width=width)
    log_in(page, "rita", then="/console/fit/")
    shoot(page, f"fit-form-{theme}")
    assert violations(page) == []
    page.locator("#id_context_tokens").fill("8192")
    page.keyboard.press("Enter")
    page.locator("#verdict").wait_for()
    assert "context_tokens=8192" in page.url
    page.get_by_text(answer).wait_for()
    page.get_by_text(reason).wait_for()
    shoot(page, f"fit-answer-{theme}")
    assert violations(page) == []
    page.locator("#id_devices").fill("2")
    page.keyboard.press("Enter")
    page.locator('#verdict:has-text("node-1/gpu-1")').wait_for()
    shoot(page, f"fit-two-devices-{theme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
