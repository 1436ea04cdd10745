"""What `foredraft.ray:build` is given, and the flags of `serve --ray`."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from foredraft.errors import ConfigError
from foredraft.ray.arguments import Replicas, read_arguments

ROOT = Path(__file__).parents[2]


def test_everything_is_optional_but_the_model() -> None:
    spec, settings, replicas = read_arguments({"model": "m"})
    assert (spec.args.model, spec.method, spec.generation_config) == ("m", "auto", "auto")
    assert settings.model_names == ("m",)
    assert replicas == Replicas()


def test_names_are_those_of_the_flags() -> None:
    described = read_arguments(
        {
            "model": "m",
            "served_model_name": ["a", "b"],
            "dtype": "float32",
            "max_num_seqs": 8,
            "max_queue": 3,
            "api_keys": "k",
            "override_generation_config": {"temperature": 0.5},
            "generation_config": "none",
            "speculative_config": None,
            "autoscale": "1:4",
            "num_gpus": 1,
        }
    )
    spec, settings, replicas = pickle.loads(pickle.dumps(described))
    assert (spec.args.dtype, spec.args.max_num_seqs, spec.speculation) == ("float32", 8, None)
    assert spec.generation_config == "none"
    assert (settings.model_names, settings.api_keys, settings.max_queue) == (("a", "b"), ("k",), 3)
    assert settings.generation_config == {"temperature": 0.5}
    assert (replicas.autoscale, replicas.num_gpus) == ((1, 4), 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "no model"),
        ({"model": 3}, "no model"),
        ({"model": "m", "modle": 3}, "'modle'"),
        ({"model": "m", "plan": 3}, "'plan'"),
        ({"model": "m", "replicas": 0}, "replicas is 0"),
        ({"model": "m", "autoscale": "4"}, "like 1:4"),
        ({"model": "m", "autoscale": "4:2"}, "4:2"),
        ({"model": "m", "speculative_config": {"method": "psychic"}}, "psychic"),
        ({"model": "m", "speculative_config": "ngram"}, "'ngram'"),
        ({"model": "m", "max_num_seqs": "many"}, "wrong type"),
        ({"model": "m", "max_queue": -1}, "max_queue is -1"),
    ],
)
def test_what_makes_no_sense_is_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_arguments(args)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--replicas", "2"], "need --ray"),
        (["--ray", "--replicas", "2", "--autoscale", "1:2"], "exclude each other"),
        (["--ray", "--ssl-keyfile", "k", "--ssl-certfile", "c"], "--ssl-keyfile"),
        (["--ray", "--port", "0"], "--port"),
    ],
)
def test_bad_flags(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str) -> None:
    from foredraft.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["serve", str(tiny_checkpoint), *flags])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1


def test_the_examples_are_understood() -> None:
    """The YAML in the guide and the KubeRay example have arguments that `build` takes."""
    service = yaml.safe_load((ROOT / "deploy/kuberay/rayservice.yaml").read_text())
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    guide = (ROOT / "docs/guides/ray.md").read_text()
    in_guide = yaml.safe_load(guide.split("```yaml\n")[1].split("```")[0])
    for application in (*config["applications"], *in_guide["applications"]):
        assert application["import_path"] == "foredraft.ray:build"
        assert read_arguments(application["args"]).spec.args.model
