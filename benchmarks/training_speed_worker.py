"""One program's part of the speed benchmark: builds a model, trains it, prints its times as JSON.

A file of its own, and careful about imports, because each program runs in a process of its own and SBX
in an environment of its own, without sppo.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def split(env: Any) -> Any:
    """CartPole's positions and velocities as a dictionary of two vectors."""
    from gymnasium import spaces
    from gymnasium.wrappers import TransformObservation

    low, high = env.observation_space.low, env.observation_space.high
    parts = {"positions": slice(0, None, 2), "velocities": slice(1, None, 2)}
    space = spaces.Dict({name: spaces.Box(low[part], high[part]) for name, part in parts.items()})
    return TransformObservation(env, lambda obs: {name: obs[part] for name, part in parts.items()}, space)


def build(options: argparse.Namespace) -> Any:
    """The model: same networks, same numbers, normalised environments."""
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

    steps = options.batch // options.n_envs
    wrapper = split if options.policy == "MultiInputPolicy" else None
    settings: dict[str, Any] = {
        "n_steps": steps,
        "batch_size": options.minibatch,
        "n_epochs": options.epochs,
        "seed": options.seed,
    }
    if options.program == "sppo":
        from sppo import SPPO, make_vec_env

        env = make_vec_env(
            options.env, options.n_envs, options.seed, wrapper_class=wrapper, backend=options.backend
        )
        kind: Any = SPPO
        settings.update(device="cpu", engine=options.engine)
    else:
        from stable_baselines3.common.env_util import make_vec_env as upstream_make

        processes = SubprocVecEnv if options.backend == "subproc" else None
        env = upstream_make(
            options.env, options.n_envs, options.seed, wrapper_class=wrapper, vec_env_cls=processes
        )
        if options.program == "sb3":
            from stable_baselines3 import PPO

            kind = PPO
            settings.update(device="cpu")
        else:
            from sbx import PPO as SbxPPO

            kind = SbxPPO
    if options.width != 64:
        settings["policy_kwargs"] = {"net_arch": [options.width, options.width]}
    if options.env != "CartPole-v1" or wrapper is not None:
        env = VecNormalize(env)
    return kind(options.policy, env, **settings)


def time_iterations(model: Any, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each collection and each update, after the warm-up."""
    times: dict[str, list[float]] = {"collect": [], "update": []}

    def wait() -> None:
        if options.program == "sbx":
            import jax

            jax.block_until_ready([model.policy.actor_state.params, model.policy.vf_state.params])

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            wait()
            times[name].append(time.perf_counter() - start)
            return result

        return call

    model.collect_rollouts = timed("collect", model.collect_rollouts)
    model.train = timed("update", model.train)
    model.learn(options.batch * (options.warmup + options.iterations))
    return {name: values[options.warmup :] for name, values in times.items()}


def main() -> None:
    """Read the options, do the work, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=["sppo", "sb3", "sbx"], required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--policy", default="MlpPolicy", help="MultiInputPolicy: on CartPole-v1 only")
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--engine", default="fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--learn", type=int, default=0, help="just train this many steps, once")
    options = parser.parse_args()
    model = build(options)
    if options.learn:
        model.learn(options.learn)
        print(json.dumps({"timesteps": model.num_timesteps}))
    else:
        print(json.dumps(time_iterations(model, options)))
    model.get_env().close()


if __name__ == "__main__":
    main()
