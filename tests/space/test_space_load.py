"""Loading a space: every feature of the file, and every kind of mistake in one."""

# ruff: noqa: E501  a mistake and its message belong on one line

from __future__ import annotations

import pytest

from tuner.errors import InputError
from tuner.space.distribution import Categorical, Choice, FloatRange, IntRange
from tuner.space.guard import Guard
from tuner.space.load import MAX_PROBLEMS, load_space
from tuner.space.parameter import Kind

GOOD = """
why: an example
env:
  NCCL_ALGO:
    choices:
      - null
      - Ring
      - {value: "allreduce:tree", requires: {nccl: ">=2.24"}, why: Tree is refused}
    why: ring or tree
  NCCL_MIN_NCHANNELS: {int: {low: 1, high: 32, log: true}}
  NCCL_MAX_NCHANNELS:
    int: {low: 2, high: 32, step: 2}
    default: 4
    when: NCCL_ALGO != null and num_continuous_decode_steps != 8
    requires: {engine: ">=0.5.9,<0.6", gpus: ">=2"}
args:
  num-continuous-decode-steps: {choices: [null, 4, 8]}
  mem-fraction-static: {float: {low: 0.5, high: 0.9, step: 0.1}, default: 0.8}
  schedule-conservativeness: {float: {low: 0.1, high: 10, log: true}}
  enable-mixed-chunk: {choices: [null, true]}
rules:
  - {rule: NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS, why: min wins}
  - rule: mem_fraction_static < 0.9 or num_continuous_decode_steps == null
try_first:
  - name: everything default
  - {name: ring, set: {NCCL_ALGO: Ring, NCCL_MAX_NCHANNELS: 8, num-continuous-decode-steps: null}, why: the usual}
"""


def test_a_whole_file() -> None:
    space = load_space(GOOD, "good.yaml")
    by_name = {p.name: p for p in space.parameters}
    assert space.why == "an example"
    assert space.env_names == ("NCCL_ALGO", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS")
    assert space.arg_names == (
        "enable-mixed-chunk",
        "mem-fraction-static",
        "num-continuous-decode-steps",
        "schedule-conservativeness",
    )
    assert by_name["NCCL_ALGO"].distribution == Categorical(
        (Choice(None), Choice("Ring"), Choice("allreduce:tree", Guard(nccl=">=2.24"), "Tree is refused"))
    )
    assert by_name["NCCL_ALGO"].why == "ring or tree"
    assert by_name["NCCL_MIN_NCHANNELS"].distribution == IntRange(1, 32, log=True)
    assert by_name["NCCL_MIN_NCHANNELS"].may_be_unset
    most = by_name["NCCL_MAX_NCHANNELS"]
    assert (most.kind, most.distribution, most.default) == (Kind.ENV, IntRange(2, 32, step=2), 4)
    assert not most.may_be_unset
    assert most.guard == Guard.of(engine="<0.6, >=0.5.9", gpus=">=2")
    assert most.when is not None
    assert most.when.names == {"NCCL_ALGO", "num_continuous_decode_steps"}
    assert by_name["mem-fraction-static"].distribution == FloatRange(0.5, 0.9, 0.1)
    assert by_name["mem-fraction-static"].kind is Kind.ARGS
    assert [str(rule) for rule in space.rules] == [
        "NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS (min wins)",
        "mem_fraction_static < 0.9 or num_continuous_decode_steps == null",
    ]
    assert [entry.name for entry in space.try_first] == ["everything default", "ring"]


def test_parameters_come_after_those_their_condition_names() -> None:
    names = [p.name for p in load_space(GOOD, "good.yaml").parameters]
    assert names.index("NCCL_MAX_NCHANNELS") > names.index("num-continuous-decode-steps")
    assert names[:2] == ["NCCL_ALGO", "NCCL_MIN_NCHANNELS"]


def test_a_thousand_paths_between_conditions_are_ordered_at_once() -> None:
    lines = ["env:", "  P0: {choices: [null, a]}", "  P1: {choices: [null, a]}"]
    lines += [f"  P{i}: {{choices: [null, a], when: P{i - 1} == null or P{i - 2} == null}}" for i in range(2, 100)]
    space = load_space("\n".join([lines[0], *reversed(lines[1:])]), "x.yaml")
    assert [p.name for p in space.parameters] == [f"P{i}" for i in range(100)]


def parameter(text: str, kind: str = "env", name: str = "X") -> str:
    return f"{kind}:\n  {name}: {text}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("why: nothing\n", "x.yaml:1: found 0 parameters under env and args, expected 1 to 200"),
        ("env: {" + ", ".join(f"A{i}: {{choices: [1], default: 1}}" for i in range(201)) + "}", "found 201 parameters"),
        ("evn: {}\n", "x.yaml:1: evn: found an unknown key, expected one of why, env, args, rules, try_first; did you mean 'env'?"),
        (parameter("{choises: [a]}"), "x.yaml:2: env.X.choises: found an unknown key, expected one of choices, int, float"),
        (parameter("{}"), "x.yaml:2: env.X: found none of choices, int and float, expected exactly one of them"),
        (parameter("{choices: [null, a], int: {low: 1, high: 2}}"), "env.X: found choices and int of choices, int and float"),
        # names
        (parameter("{choices: [null, a]}", name="nccl_algo"), "env.nccl_algo: found the name 'nccl_algo', expected an environment"),
        (parameter("{choices: [null, a]}", name="_X"), "found the name '_X'"),
        (parameter("{choices: [null, a]}", name='"X;rm -rf ~"'), "found the name 'X;rm -rf ~'"),
        (parameter("{choices: [null, a]}", name='"X=1 Y"'), "found the name 'X=1 Y'"),
        (parameter("{choices: [null, a]}", name='"X\\n"'), "found the key 'X\\n', expected at most 256 printable"),
        (parameter("{choices: [null, a]}", name="É"), "found the name 'É'"),
        (parameter("{choices: [null, a]}", "args", "--host"), "found the name '--host', expected an argument such as"),
        (parameter("{choices: [null, a]}", "args", "a_b"), "found the name 'a_b'"),
        (parameter("{choices: [null, a]}", "args", '"a b"'), "found the name 'a b'"),
        # choices
        (parameter("{choices: []}"), "env.X.choices: found no value to choose, expected at least one beside null"),
        (parameter("{choices: [null]}"), "env.X.choices: found no value to choose"),
        (parameter("{choices: Ring}"), "env.X.choices: found 'Ring', expected a list"),
        (parameter("{choices: [null, [a]]}"), "env.X.choices[1]: found a list, expected a text, a whole number"),
        (parameter("{choices: [null, {why: a}]}"), "env.X.choices[1]: found no key 'value'"),
        (parameter("{choices: [null, a, a]}"), "env.X.choices[2]: found 'a' a second time, expected each choice once"),
        (parameter('{choices: [null, 1, "1"]}'), "env.X.choices[2]: found '1' a second time"),
        (parameter("{choices: [null, 1, 1.0]}"), "env.X.choices[2]: found 1.0 a second time"),
        (parameter("{choices: [null, 1, true]}", "args", "x"), "args.x.choices[2]: found true a second time"),
        (parameter("{choices: [" + ", ".join(map(str, range(257))) + "]}"), "env.X.choices: found 257 choices, expected at most 256"),
        # values
        (parameter("{choices: [null, true]}"), "env.X.choices[1]: found true, expected a number or a text"),
        (parameter("{choices: [null, false]}", "args", "x"), "args.x.choices[1]: found false, expected null: a flag that is not"),
        (parameter("{choices: [null, '']}"), "env.X.choices[1]: found '', expected 1 to 256 printable characters in one line"),
        (parameter(f"{{choices: [null, {'a' * 257}]}}"), "expected 1 to 256 printable characters"),
        (parameter('{choices: [null, "a\\nb"]}'), "env.X.choices[1]: found 'a\\nb', expected 1 to 256 printable"),
        (parameter('{choices: [null, "a\\tb"]}'), "expected 1 to 256 printable"),
        (parameter('{choices: [null, "a\\0b"]}'), "x.yaml:2: found the control character '\\x00'"),
        (parameter('{choices: [null, "--trust-remote-code"]}', "args", "x"), "expected a value that does not begin with a dash"),
        # ranges
        (parameter("{int: {low: 1}}"), "env.X.int: found no key 'high', expected it"),
        (parameter("{int: {low: 1, high: 2.5}}"), "env.X.int.high: found 2.5, expected a whole number"),
        (parameter("{int: {low: one, high: 2}}"), "env.X.int.low: found 'one', expected a whole number"),
        (parameter("{int: {low: true, high: 2}}"), "env.X.int.low: found true, expected a whole number"),
        (parameter("{int: {low: 3, high: 2}}"), "env.X.int: found low 3 above high 2, expected low <= high"),
        (parameter("{int: {low: 1, high: 2, step: 0}}"), "env.X.int: found step 0, expected a positive one"),
        (parameter("{int: {low: 1, high: 4, step: 2}}"), "found step 2 that does not lead from 1 to 4"),
        (parameter("{int: {low: 0, high: 4, log: true}}"), "found log with low 0, expected low >= 1"),
        (parameter("{int: {low: 1, high: 5, step: 2, log: true}}"), "found log with step 2, expected one of the two"),
        (parameter("{float: {low: 0, high: 1, log: true}}"), "found log with low 0.0, expected low > 0"),
        (parameter("{float: {low: 0.1, high: 1, step: 0.1, log: true}}"), "found log with step 0.1"),
        (parameter("{float: {low: 0, high: 1, step: 0.3}}"), "found step 0.3 that does not lead from 0.0 to 1.0"),
        (parameter("{float: {low: 0, high: .inf}}"), "found .inf, expected a plain decimal number"),
        # defaults
        (parameter("{choices: [a, b]}"), "env.X.default: found no default, which means null (unset), expected one of a, b"),
        (parameter("{choices: [a, b], default: null}"), "env.X.default: found null, expected one of a, b"),
        (parameter("{choices: [1, 2], default: '1'}"), "env.X.default: found '1', expected one of 1, 2"),
        (parameter("{int: {low: 1, high: 5, step: 2}, default: 2}"), "env.X.default: found 2, expected one of 1 … 5 by 2"),
        (parameter("{int: {low: 1, high: 5}, default: 1.0}"), "env.X.default: found 1.0, expected one of 1 … 5"),
        (parameter("{float: {low: 0, high: 1, step: 0.1}, default: 0.25}"), "expected one of 0 … 1 by 0.1"),
        (
            parameter("{choices: [a, {value: b, requires: {nccl: '>=2'}}], default: b}"),
            "env.X.default: found 'b', expected a choice without requires",
        ),
        # guards
        (parameter("{choices: [null, a], requires: {nccl: '2.24'}}"), "env.X.requires: found '2.24', expected a version specifier for nccl"),
        (parameter("{choices: [null, a], requires: {nccl: ''}}"), "env.X.requires: found '', expected a version specifier"),
        (parameter("{choices: [null, a], requires: {gpus: 2}}"), "env.X.requires.gpus: found 2, expected a text"),
        (parameter("{choices: [null, a], requires: {ncll: '>=2'}}"), "env.X.requires.ncll: found an unknown key"),
        (parameter("{choices: [null, {value: a, requires: {engine: 'new'}}]}"), "env.X.choices[1].requires: found 'new'"),
        (parameter("{choices: [{value: null, requires: {engine: '>=1'}}, a]}"), "env.X.choices[0]: found requires on null"),
        # conditions and rules
        (parameter("{choices: [null, a], when: Y == 1}"), "env.X.when: in 'Y == 1', column 1: found the unknown name 'Y'"),
        (parameter("{choices: [null, a], when: X == 'a'}"), "env.X.when: found a circle of conditions (X → X), expected none"),
        (parameter("{choices: [null, a], when: true}"), "env.X.when: found true, expected a text"),
        (
            "env:\n  A: {choices: [null, a], when: B == null}\n  B: {choices: [null, a], when: A == null}\n",
            "x.yaml:2: env.A.when: found a circle of conditions (A → B → A)",
        ),
        (parameter("{choices: [null, a]}") + "rules: [{rule: X == 'b'}]", "rules[0].rule: in \"X == 'b'\", column 6: found 'b'"),
        (parameter("{choices: [null, a]}") + "rules: [{rule: 'X <'}]", "rules[0].rule: in 'X <', column 4: found the end"),
        (parameter("{choices: [null, a]}") + "rules: [X == null]", "rules[0]: found 'X == null', expected a mapping"),
        (parameter("{int: {low: 1, high: 5}, default: 4}") + "rules: [{rule: X < 4}]", "rules: found defaults that break X < 4"),
        # first configurations
        (parameter("{choices: [null, a]}") + "try_first: [{set: {}}]", "try_first[0]: found no key 'name'"),
        (parameter("{choices: [null, a]}") + "try_first: [{name: '', set: {}}]", "expected a name of 1 to 80 characters"),
        (parameter("{choices: [null, a]}") + "try_first: [{name: a}, {name: a}]", "try_first[1].name: found 'a' a second time"),
        (
            parameter("{choices: [null, a]}") + "try_first: [{name: a, set: {Z: a}}]",
            "try_first[0].set.Z: found an unknown parameter, expected one of the space's",
        ),
        (
            parameter("{choices: [null, Ring]}") + "try_first: [{name: a, set: {X: ring}}]",
            "try_first[0].set.X: found 'ring', expected one of unset, Ring; did you mean 'Ring'?",
        ),
        (parameter("{choices: [a], default: a}") + "try_first: [{name: a, set: {X: null}}]", "X: found null, expected one of a"),
        (
            "env:\n  A: {choices: [null, a]}\n  B: {choices: [null, b], when: A != null}\n"
            "try_first:\n- name: b\n  set: {B: b}\n",
            "x.yaml:6: try_first[0].set: B: found 'b', expected unset: it needs A != null",
        ),
        (
            parameter("{int: {low: 1, high: 5}}") + "rules: [{rule: X < 4, why: because}]\ntry_first: [{name: a, set: {X: 5}}]",
            "try_first[0].set: found a configuration that breaks X < 4 (because), expected one that meets every rule",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_line_and_path(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_space(text, "x.yaml")
    assert message in str(caught.value)
    assert all(problem.startswith("x.yaml:") for problem in caught.value.problems)


def test_all_mistakes_are_reported_together() -> None:
    text = """
env:
  bad: {choices: [null, 1]}
  A: {choices: [null, Ring]}
  B: {int: {low: 3, high: 1}, when: B +}
args:
  x: {choices: [null, -a, -b]}
rules:
  - rule: A == 'ring'
  - rule: B > 3
try_first:
  - {name: a, set: {A: ring, B: 4}}
"""
    with pytest.raises(InputError) as caught:
        load_space(text, "x.yaml")
    assert [problem.split(": found")[0] for problem in caught.value.problems] == [
        "x.yaml:3: env.bad",
        "x.yaml:5: env.B.int",
        "x.yaml:7: args.x.choices[1]",
        "x.yaml:7: args.x.choices[2]",
        "x.yaml:9: rules[0].rule: in \"A == 'ring'\", column 6",
        "x.yaml:12: try_first[0].set.A",
    ]


def test_a_hostile_number_of_mistakes_is_cut_short() -> None:
    text = parameter("{choices: [null, a]}") + "rules:\n" + "- {rule: Y == 1}\n" * 5_000
    with pytest.raises(InputError) as caught:
        load_space(text, "x.yaml")
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert caught.value.problems[-1] == "x.yaml: found 100 problems, stopped looking"


def test_rules_on_a_faulty_parameter_are_checked_as_far_as_they_can_be() -> None:
    text = "env:\n  B: {int: {low: 3, high: 1}}\nrules:\n- {rule: B +}\n- {rule: B == 'x'}\n"
    with pytest.raises(InputError) as caught:
        load_space(text, "x.yaml")
    range_fault, syntax_fault = caught.value.problems  # B == 'x' may be right once B is mended
    assert range_fault.startswith("x.yaml:2: env.B.int: found low 3 above high 1")
    assert syntax_fault.startswith("x.yaml:4: rules[0].rule: in 'B +', column 4: found the end")
