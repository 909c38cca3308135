"""Study files: every key, every default, and what a person is told who gets one wrong."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from tuner.documents.study_file import DEFAULT_STORAGE, load_study
from tuner.errors import InputError
from tuner.shipped import shipped_file, shipped_names
from tuner.values.configuration import Scalar
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec
from tuner.values.workload import Workload

SPACE = "env:\n  NCCL_ALGO:\n    choices: [null, Ring]\n"
MINIMAL = """\
name: mine
hosts: [{name: gpu1}]
engine: {}
budget: {launches: 20}
stages: [{name: baseline, space: small.yaml}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a user's own: a space and an objective beside the study file."""
    (tmp_path / "small.yaml").write_text(SPACE)
    (tmp_path / "latency.yaml").write_text("metric: ttft_p50_s\n")
    return tmp_path


def problems_of(text: str, folder: Path) -> tuple[str, ...]:
    """What `load_study` says, with the file's path cut off."""
    source = folder / "mine.yaml"
    with pytest.raises(InputError) as caught:
        load_study(text, source)
    assert all(problem.startswith(str(source)) for problem in caught.value.problems)
    return tuple(problem.removeprefix(f"{source}:") for problem in caught.value.problems)


@pytest.mark.parametrize("name", shipped_names("studies"))
def test_every_shipped_study_loads(name: str) -> None:
    path = shipped_file("studies", name)
    spec, storage = load_study(path.read_text(encoding="utf-8"), path)
    assert f"{spec.name}.yaml" == name
    assert storage == DEFAULT_STORAGE
    assert [stage.name for stage in spec.stages] == ["baseline"]
    assert spec.stages[0].space_name == "nccl.yaml"
    if name not in ("simulated.yaml", "kimi-k2.5.yaml"):
        return  # imitate another machine, with another launch
    assert spec.engine.launch.args == (
        ("model-path", "moonshotai/Kimi-K2.5"),
        ("tp-size", 8),
        ("num-continuous-decode-steps", 4),
        ("disable-custom-all-reduce", True),
        ("mem-fraction-static", 0.88),
        ("trust-remote-code", True),
    )


def test_four_studies_are_shipped() -> None:
    assert set(shipped_names("studies")) == {
        "simulated.yaml",
        "simulated-h200x2.yaml",
        "simulated-flat.yaml",
        "kimi-k2.5.yaml",
    }


def test_the_embedded_default() -> None:
    path = shipped_file("studies", "simulated")
    spec, _ = load_study(path.read_text(encoding="utf-8"), path)
    assert spec.hosts == (HostSpec(HostAddress("sim"), simulated="pcie8-failed-search"),)
    assert spec.budget == Budget(launches=18)
    assert spec.workload == Workload(concurrency=1, output_tokens=40, windows=3, warm_up_windows=1)
    assert (spec.engine.start_deadline_s, spec.engine.no_progress_s) == (60, 20)
    assert (spec.engine.stop_grace_s, spec.engine.lease_s) == (10, 15)
    assert spec.stages[0].confirmation_launches == 6


def test_defaults_are_those_of_the_values(folder: Path) -> None:
    spec, storage = load_study(MINIMAL, folder / "mine.yaml")
    assert spec.hosts == (HostSpec(HostAddress("gpu1")),)
    assert spec.engine == EngineSpec("sglang", LaunchBase(("python3", "-m", "sglang.launch_server")))
    assert spec.workload == Workload()
    assert spec.budget == Budget(20)
    objective = shipped_file("objectives", "throughput").read_text(encoding="utf-8")
    assert spec.stages == (StageSpec("baseline", SPACE, "small.yaml", objective, "throughput.yaml"),)
    assert storage == "sqlite:///studies/tuner.db"


def test_every_key(folder: Path) -> None:
    text = """\
    name: every-key.1
    hosts:
      - {name: gpu1, hostname: 10.0.0.1, port: 2222, user: me, key_file: ~/.ssh/id, jump: me@bastion:22,
         known_hosts_file: known hosts, python: /opt/py/bin/python3.11, server_port: 30000}
      - {name: gpu2, server_port: auto}
      - {name: sim, simulated: flat}
    engine:
      name: sglang
      command: [/opt/my sglang/bin/python, -m, sglang.launch_server]
      args: {model-path: a b, tp-size: 8, mem-fraction-static: 0.88, trust-remote-code: true, quantization: null,
             api-key: $API_KEY}
      env: {NCCL_DEBUG: INFO, NCCL_NVLS_ENABLE: 0, HF_TOKEN: $HF_TOKEN, EMPTY: "", ODD: "a'b $c; rm"}
      start_deadline_s: 300
      no_progress_s: 90.5
      stop_grace_s: 30
      lease_s: 20
      allow: [NCCL_TUNER_PLUGIN, port]
      forbid: [NCCL_NVLS_ENABLE=1, "NCCL_ALGO=*NVLS*", --enable-symm-mem, LD_PRELOAD]
    workload: {endpoint: chat, concurrency: 8, prompt_words: 100, output_tokens: 128, windows: 5, warm_up_windows: 2,
               seed: 7, request_timeout_s: 30}
    budget: {launches: 60, hours: 12, lost_launches: 3}
    stages:
      - {name: baseline, space: small.yaml, objective: latency.yaml, confirmation_launches: 8, seed: 1}
      - {name: again, space: small.yaml, confirmation_launches: 0}
    storage: postgresql://me:$PGPASSWORD@db/tuner
    """
    spec, storage = load_study(textwrap.dedent(text), folder / "mine.yaml")
    assert spec.name == "every-key.1"
    address = HostAddress(
        "gpu1", "10.0.0.1", 2222, "me", "~/.ssh/id", "me@bastion:22", "known hosts", "/opt/py/bin/python3.11"
    )
    assert spec.hosts == (
        HostSpec(address, port=30000),
        HostSpec(HostAddress("gpu2")),
        HostSpec(HostAddress("sim"), simulated="flat"),
    )
    args: tuple[tuple[str, Scalar], ...] = (
        ("model-path", "a b"),
        ("tp-size", 8),
        ("mem-fraction-static", 0.88),
        ("trust-remote-code", True),
        ("api-key", "$API_KEY"),
    )
    env = (
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("HF_TOKEN", "$HF_TOKEN"),
        ("EMPTY", ""),
        ("ODD", "a'b $c; rm"),
    )
    launch = LaunchBase(
        command=("/opt/my sglang/bin/python", "-m", "sglang.launch_server"),
        args=args,
        env=env,
        allow=("NCCL_TUNER_PLUGIN", "port"),
        forbid=("NCCL_NVLS_ENABLE=1", "NCCL_ALGO=*NVLS*", "--enable-symm-mem", "LD_PRELOAD"),
    )
    assert spec.engine == EngineSpec("sglang", launch, 300, 90.5, 30, 20)
    assert spec.workload == Workload("chat", 8, 100, 128, 5, 2, 7, 30)
    assert spec.budget == Budget(60, 12, 3)
    assert [(s.name, s.objective_name, s.confirmation_launches, s.seed) for s in spec.stages] == [
        ("baseline", "latency.yaml", 8, 1),
        ("again", "throughput.yaml", 0, 0),
    ]
    assert storage == "postgresql://me:$PGPASSWORD@db/tuner"


def test_a_command_is_split_as_a_shell_would(folder: Path) -> None:
    text = MINIMAL.replace("engine: {}", "engine: {command: \"numactl -N 0 '/opt/my env/python' -m x\"}")
    spec, _ = load_study(text, folder / "mine.yaml")
    assert spec.engine.launch.command == ("numactl", "-N", "0", "/opt/my env/python", "-m", "x")


def test_options_replace_the_files_of_the_first_stage_only(folder: Path) -> None:
    (folder / "other.yaml").write_text(SPACE.replace("Ring", "Tree"))
    text = MINIMAL.replace(
        "stages: [{name: baseline, space: small.yaml}]",
        "stages: [{name: a, space: missing.yaml}, {name: b, space: small.yaml}]",
    )
    spec, _ = load_study(
        text, folder / "mine.yaml", space=str(folder / "other.yaml"), objective=str(folder / "latency.yaml")
    )
    assert [(s.space_name, s.objective_name) for s in spec.stages] == [
        ("other.yaml", "latency.yaml"),
        ("small.yaml", "throughput.yaml"),
    ]
    assert "Tree" in spec.stages[0].space


def test_a_space_beside_the_study_file_comes_before_a_shipped_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(folder / "small.yaml", folder / "nccl.yaml")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "nccl.yaml").write_text("not: this\n")
    monkeypatch.chdir(elsewhere)
    spec, _ = load_study(MINIMAL.replace("small", "nccl"), folder / "mine.yaml")
    assert spec.stages[0].space == SPACE


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        # names and keys
        ("name: mine", "nmae: mine", "1: nmae: found an unknown key"),
        ("name: mine", "nmae: mine", "did you mean 'name'?"),
        ("name: mine", "name: Mine", "1: name: found 'Mine', expected a name"),
        ("name: mine", "name: 'a; rm -rf /'", "1: name: found 'a; rm -rf /', expected a name"),
        ("name: mine", "name: $(id)", "1: name: found '$(id)'"),
        ("name: mine", "name: ../up", "1: name: found '../up'"),
        ("name: mine", "name: " + "a" * 65, "1: name: found 'aaa"),
        ("name: mine", "name: 7", "1: name: found 7, expected a text"),
        ("name: mine\n", "", "found no key 'name'"),
        # hosts
        ("[{name: gpu1}]", "[]", "2: hosts: found a list"),
        ("[{name: gpu1}]", "gpu1", "2: hosts: found 'gpu1', expected a list"),
        ("[{name: gpu1}]", "[{name: a}, {name: a}]", "2: hosts[1].name: found 'a' a second time"),
        ("gpu1}", "'`id`'}", "2: hosts[0].name: found '`id`'"),
        ("gpu1}", "gpu1, hostname: -oProxyCommand=id}", "hosts[0].hostname: found '-oProxyCommand=id'"),
        ("gpu1}", "gpu1, hostname: 'a b'}", "hosts[0].hostname: found 'a b'"),
        ("gpu1}", "gpu1, port: 0}", "hosts[0].port: found 0, expected greater than or equal to 1"),
        ("gpu1}", "gpu1, port: 65536}", "hosts[0].port: found 65536"),
        ("gpu1}", "gpu1, port: '22'}", "hosts[0].port: found '22', expected a whole number"),
        ("gpu1}", "gpu1, user: 'me;id'}", "hosts[0].user: found 'me;id'"),
        ("gpu1}", "gpu1, jump: 'me@b -p 1'}", "hosts[0].jump: found 'me@b -p 1'"),
        ("gpu1}", "gpu1, python: 'python3 -c x'}", "hosts[0].python: found 'python3 -c x', expected a program"),
        ("gpu1}", "gpu1, server_port: automatic}", "hosts[0].server_port: found 'automatic'"),
        ("gpu1}", "gpu1, simulated: flat, hostname: h}", "hosts[0].hostname: found beside simulated: flat"),
        ("gpu1}", "gpu1, key-file: k}", "did you mean 'key_file'?"),
        # engine
        ("engine: {}", "engine: {comand: x}", "3: engine.comand: found an unknown key"),
        ("engine: {}", 'engine: {command: "a \'b"}', 'engine.command: found "a \'b" (No closing quotation)'),
        ("engine: {}", "engine: {command: ''}", "engine.command: found no word"),
        ("engine: {}", "engine: {command: []}", "engine.command: found no word"),
        ("engine: {}", "engine: {command: cd x && y}", "engine.command: found '&&', expected plain words"),
        ("engine: {}", "engine: {command: $PYTHON -m x}", "engine.command: found '$PYTHON', expected plain words"),
        ("engine: {}", "engine: {command: x --api-key abc}", "engine.command: found a secret (--api-key)"),
        ("engine: {}", "engine: {command: env HF_TOKEN=abc x}", "engine.command: found a secret (HF_TOKEN)"),
        ("engine: {}", "engine: {args: {--tp-size: 8}}", "without leading dashes; write 'tp-size'"),
        ("engine: {}", "engine: {args: {'tp size;': 8}}", "engine.args.tp size;: found 'tp size;'"),
        ("engine: {}", "engine: {args: {a: [1]}}", "engine.args.a: found a list"),
        ("engine: {}", "engine: {args: {a: false}}", "engine.args.a: found false, expected a value, true"),
        ("engine: {}", "engine: {args: {a: $A/b}}", "engine.args.a: found '$A/b', expected $NAME alone"),
        ("engine: {}", "engine: {args: {api-key: abc}}", "engine.args.api-key: found a value in the file"),
        ("engine: {}", "engine: {args: {api-key: abc}}", "write $API_KEY, and export API_KEY"),
        ("engine: {}", "engine: {env: {HF_TOKEN: abc}}", "engine.env.HF_TOKEN: found a value in the file"),
        ("engine: {}", "engine: {env: {PASSWORD: 12345678}}", "engine.env.PASSWORD: found a value in the file"),
        ("engine: {}", "engine: {env: {A-B: 1}}", "engine.env.A-B: found 'A-B'"),
        ("engine: {}", "engine: {env: {'A;id': 1}}", "engine.env.A;id: found 'A;id'"),
        ("engine: {}", "engine: {env: {A: true}}", "engine.env.A: found true, expected a text or a number"),
        ("engine: {}", "engine: {env: {A: null}}", "engine.env.A: found null, expected a text or a number"),
        ("engine: {}", "engine: {allow: ['a b']}", "engine.allow[0]: found 'a b'"),
        ("engine: {}", "engine: {forbid: ['-x']}", "engine.forbid[0]: found '-x'"),
        ("engine: {}", "engine: {lease_s: 1}", "engine.lease_s: found 1, expected greater than or equal to 5"),
        ("engine: {}", "engine: {start_deadline_s: 0}", "engine.start_deadline_s: found 0"),
        ("engine: {}", "engine: {no_progress_s: 1e9}", "engine.no_progress_s: found 1000000000.0"),
        ("engine: {}", "engine: {stop_grace_s: soon}", "engine.stop_grace_s: found 'soon', expected a number"),
        # workload and budget
        ("engine: {}", "engine: {}\nworkload: {concurrency: 0}", "4: workload.concurrency: found 0"),
        ("engine: {}", "engine: {}\nworkload: {output_tokens: 2.5}", "workload.output_tokens: found 2.5"),
        ("engine: {}", "engine: {}\nworkload: {endpoint: chatt}", "did you mean 'chat'?"),
        ("engine: {}", "engine: {}\nworkload: {seed: -1}", "workload.seed: found -1"),
        ("launches: 20", "launches: 0", "4: budget.launches: found 0"),
        ("launches: 20", "launches: true", "budget.launches: found true, expected a whole number"),
        ("launches: 20", "launches: 20, hours: 0", "budget.hours: found 0"),
        ("launches: 20", "hours: 2", "found no key 'launches'"),
        ("launches: 20", "launches: 6", "budget.launches: found 6, of which the stages keep 6"),
        # stages
        ("small.yaml}", "small.yaml, confirmation_launches: 5}", "stages[0].confirmation_launches: found 5"),
        ("small.yaml}", "small.yaml, confirmation_launches: 2}", "stages[0].confirmation_launches: found 2"),
        ("small.yaml}", "small.yaml}, {name: baseline, space: small.yaml}", "stages[1].name: found 'baseline'"),
        ("small.yaml", "smal.yaml", "5: stages[0].space: search space 'smal.yaml': found no such file"),
        ("small.yaml", "../../../etc/passwd.yaml", "stages[0].space: search space '../../../etc/passwd.yaml'"),
        ("small.yaml}", "small.yaml, objective: througput}", "did you mean 'throughput.yaml'?"),
        # storage
        ("stages:", "storage: mysql://x/y\nstages:", "5: storage: found 'mysql://x/y', expected sqlite:///FILE"),
        ("stages:", "storage: mysql://u:hunter2@x/y\nstages:", "found 'mysql://u:***@x/y'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(folder: Path, old: str, new: str, says: str) -> None:
    assert old in MINIMAL
    problems = problems_of(MINIMAL.replace(old, new, 1), folder)
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(
    "secret", ["args: {api-key: hunter2}", "env: {HF_TOKEN: hunter2}", "command: x --token=hunter2"]
)
def test_a_secret_is_not_repeated_in_the_message_that_refuses_it(folder: Path, secret: str) -> None:
    assert not any("hunter2" in p for p in problems_of(MINIMAL.replace("engine: {}", f"engine: {{{secret}}}"), folder))


def test_all_problems_are_told_at_once(folder: Path) -> None:
    text = MINIMAL.replace("engine: {}", "engine: {args: {--a: 1, b: false}, env: {C D: 1}, lease_s: 30}")
    assert len(problems_of(text.replace("launches: 20", "launches: 3"), folder)) == 4


def test_a_broken_objective_is_told_in_its_own_words(folder: Path) -> None:
    (folder / "latency.yaml").write_text("metric: ttft_p5_s\n")
    text = MINIMAL.replace("small.yaml}", "small.yaml, objective: latency.yaml}")
    with pytest.raises(InputError) as caught:
        load_study(text, folder / "mine.yaml")
    assert str(caught.value).startswith(f"{folder / 'latency.yaml'}:1: metric: found the unknown metric 'ttft_p5_s'")


def test_a_space_that_is_no_file_of_text_is_refused(folder: Path) -> None:
    (folder / "small.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_study(MINIMAL, folder / "mine.yaml")
    (folder / "small.yaml").write_text("#" * 300_000)
    with pytest.raises(InputError, match="256 KiB"):
        load_study(MINIMAL, folder / "mine.yaml")


BOMB = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*{'a' if i == 0 else f'b{i - 1}'}, *a]\n" for i in range(40))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found an empty file"),
        ("# nothing\n", "found an empty file"),
        ("---\n", "found an empty file"),
        ("- a\n- b\n", "found a list, expected a mapping"),
        ("just words", "found 'just words', expected a mapping"),
        ("name: [", "found a fault"),
        (MINIMAL + "name: other\n", "found the key 'name' a second time"),
        (MINIMAL + "---\n" + MINIMAL, "found a second document"),
        (MINIMAL + "x: !!python/object/apply:os.system [id]\n", "found the tag"),
        (BOMB, "found the alias or anchor"),
        ("a: " + "[" * 10_000, "more than 16 levels"),
        ("a: " + "x" * 300_000, "found more than 262144 bytes"),
        ("name: \x07bell", "found"),
    ],
    ids=[
        "empty",
        "comment",
        "dashes",
        "list",
        "text",
        "open",
        "twice",
        "two",
        "tag",
        "bomb",
        "deep",
        "huge",
        "control",
    ],
)
def test_what_is_no_study_file_is_refused_quickly(folder: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_study(text, folder / "mine.yaml")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 5000
