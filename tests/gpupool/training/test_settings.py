"""The process's settings as trainers need them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from core.env import SettingsError
from gpupool.training.settings import training_settings


def given(settings: Settings, **more: Any) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, **more)


def test_a_command_is_split_as_a_shell_would_and_run_by_none(settings: Settings) -> None:
    given(settings, trainer_command="train 'a b' $HOME; rm -rf /")
    assert training_settings().command == ("train", "a b", "$HOME;", "rm", "-rf", "/")
    given(settings, trainer_command="")
    assert training_settings().command == ()


def test_a_command_whose_quotes_do_not_match_is_told(settings: Settings) -> None:
    given(settings, trainer_command="train 'a")
    with pytest.raises(SettingsError, match="GATEHOUSE_TRAINER_COMMAND"):
        training_settings()


def test_no_secret_of_ours_is_passed_on_by_name(settings: Settings) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "DATABASE_URL", "VALKEY_STATE_URL", "GATEHOUSE_ENGINE_KEY_A", "GATEHOUSE_VAR_DIR")
    given(settings, trainer_environment=names)
    assert training_settings().passed == ("CUDA_VISIBLE_DEVICES",)


def test_everything_lies_under_one_folder(settings: Settings) -> None:
    given(settings, var_dir=Path("/data"), training_dir=None)
    assert training_settings().folders.root == Path("/data/training")
    given(settings, training_dir=Path("/shared/training"))
    assert training_settings().folders.root == Path("/shared/training")
