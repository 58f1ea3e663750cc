"""What Prometheus is told."""

import os
import subprocess
import sys
from pathlib import Path

from core.telemetry.metrics import record_fault, record_refusal, record_settled, render_metrics

_ROOT = Path(__file__).resolve().parents[2]


def _value(text: str, sample: str) -> float:
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample + " ")), 0.0)


def test_what_was_counted_is_told() -> None:
    sample = 'gatehouse_requests_total{api="chat",door="relay",model="counted",outcome="success"}'
    for _ in range(2):
        record_settled(
            "relay", "chat", "counted", "success", seconds=0.2, first_token_seconds=0.1, input_tokens=3, output_tokens=4
        )
    record_settled(
        "relay", "chat", "counted", "failed", seconds=0.2, first_token_seconds=None, input_tokens=None, output_tokens=0
    )
    record_refusal("relay", "rate_limit_exceeded")
    record_fault("counted", "refused")
    text = render_metrics().decode()
    assert _value(text, sample) == 2
    assert _value(text, 'gatehouse_tokens_total{direction="output",model="counted"}') == 8
    assert _value(text, 'gen_ai_server_time_to_first_token_seconds_count{api="chat",model="counted"}') == 2
    assert _value(text, 'gen_ai_server_request_duration_seconds_count{api="chat",model="counted"}') == 3
    assert _value(text, 'gatehouse_refusals_total{code="rate_limit_exceeded",door="relay"}') >= 1
    assert _value(text, 'gatehouse_faults_total{model="counted",stage="refused"}') == 1
    assert 'gatehouse_faults_total{model="counted",stage="forwarded"} 0.0' in text  # known before the first one


def test_processes_that_share_a_folder_add_up(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    count = "from core.telemetry.metrics import record_refusal, render_metrics; record_refusal('relay', 'x');"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", count], env=environ, check=True, cwd=_ROOT)
    told = subprocess.run(
        [sys.executable, "-c", count + "print(render_metrics().decode())"],
        env=environ, check=True, cwd=_ROOT, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert _value(told, 'gatehouse_refusals_total{code="x",door="relay"}') == 3
