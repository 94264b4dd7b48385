"""``python -m sppo train``: a study of one run, with Stable-Baselines3's parameters as flags."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest

from sppo.study.train_command import main, read_flags
from tests.study.runner_processes import finish, start, wait_until
from tests.study.trained_runs import assert_same_run

SMALL = shlex.split(
    "--n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 2 --steps 1280 --evaluations 2 --eval-episodes 1"
)


def test_interrupted_it_goes_on_exactly(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--env", "CartPole-v1", "--seed", "3", *SMALL]
    process = start("train", *arguments, "--out", tmp_path / "a", "--checkpoint-every", 1)
    wait_until(lambda: any((tmp_path / "a").glob("checkpoints/*.checkpoint")))
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    if code == 130:  # the training may just have ended by itself
        assert "run the same command again to go on" in output
        assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
        assert "going on at step" in capsys.readouterr().out
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 0
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 0
    assert "completed" in capsys.readouterr().out


def test_the_flags_are_the_configuration(tmp_path: Path) -> None:
    flags = shlex.split(
        "--no-use-softmax --clip-range 0.3 --learning-rate 1e-3 --gamma 0.9 --target-kl 0.1 "
        "--max-grad-norm none --net-arch 16 --activation-fn relu --no-normalize-rewards "
        "--normalize-clip-obs 5"
    )
    assert main(["--env", "CartPole-v1", *SMALL, *flags, "--out", str(tmp_path)]) == 0
    config = json.loads((tmp_path / "config.json").read_text())["config"]
    assert config["algorithm"] == "ppo"
    assert config["parameters"]["clip_range"] == 0.3
    assert config["parameters"]["learning_rate"] == 0.001
    assert config["parameters"]["max_grad_norm"] is None
    assert config["parameters"]["policy_kwargs"]["net_arch"] == [16]
    assert config["normalize"] == {
        "observations": True,
        "rewards": False,
        "clip_obs": 5.0,
        "clip_reward": 10.0,
    }
    from stable_baselines3 import PPO

    model = PPO.load(tmp_path / "model.zip")
    assert model.gamma == 0.9
    assert model.target_kl == 0.1
    assert model.clip_range(1.0) == 0.3
    assert [
        module.out_features
        for module in model.policy.mlp_extractor.policy_net
        if hasattr(module, "out_features")
    ] == [16]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clip-range", "0"], "--clip-range: 0.0 is too small"),
        (["--clip-range", "none"], "write clip_range=0.2, eta=1.0 or"),
        (["--eta", "lin_1"], "let its schedule end above zero"),
        (["--clip-mode", "symmetric"], "an option of PPO"),
        (["--surrogate", "spp"], "unknown surrogate (did you mean sppo?)"),
        (["--surrogate", "no_module:X"], "No module named 'no_module'"),
        (["--learning-rate", "lin_x"], "--learning-rate: 'lin_x'"),
        (["--n-epochs", "1.5"], "--n-epochs: '1.5' is not a whole number"),
        (["--batch-size", "33"], "does not divide"),
        (["--steps", "10"], "less than one batch"),
        (["--env", "Nope-v0"], "--env: 'Nope-v0' is no environment"),
    ],
)
def test_impossible_flags_are_named(flags: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    code: object
    try:
        code = main(["--env", "CartPole-v1", *SMALL, *flags])
    except SystemExit as end:  # how argparse refuses
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("--seed", "x", "'x' is not a whole number"),
        ("--seed", "-1", "-1 is too small: must be at least 0"),
        ("--seed", "1.5", "'1.5' is not a whole number"),
        ("--seed", "1e10", "10000000000 is too large"),
        ("--steps", "many", "'many' is not a whole number"),
        ("--n-envs", "0", "0 is too small: must be at least 1"),
        ("--net-arch", "0", "0 is too small: must be at least 1"),
    ],
)
def test_numbers_that_are_none_are_named(
    flag: str, text: str, message: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--env", "CartPole-v1", flag, text])
    assert end.value.code == 2
    assert f"argument {flag}: {message}" in capsys.readouterr().err


def test_large_numbers_may_be_written_short() -> None:
    _, config = read_flags(["--env", "CartPole-v1", *SMALL, "--steps", "1.28e3"])
    assert config.total_timesteps == 1280


def test_another_configuration_in_the_same_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Whether the run there has completed or not."""
    out = ["--out", str(tmp_path)]
    assert main(["--env", "CartPole-v1", *SMALL, *out]) == 0
    for _ in range(2):
        assert main(["--env", "CartPole-v1", *SMALL, "--clip-range", "0.5", *out]) == 1
        assert "parameters.clip_range: 0.2 and 0.5" in capsys.readouterr().err
        (tmp_path / "result.json").unlink(missing_ok=True)


def test_observations_that_cannot_be_normalised(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["--env", "FrozenLake-v1", *SMALL, "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert "--no-normalize-observations" in capsys.readouterr().err
    assert main([*arguments[:-1], str(tmp_path / "b"), "--no-normalize-observations"]) == 0
