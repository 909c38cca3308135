"""NCCL's belief, held to the tables that were computed from NCCL's source by hand."""

from __future__ import annotations

import pytest

from tuner.simulated.machine import machine
from tuner.simulated.nccl_belief import Belief, Topology
from tuner.simulated.nccl_settings import PROTOCOLS, NcclRefuses, NcclSettings, enabled_by, strtoll

HEALTHY = Topology(24.0, 24.0, channels=1, nvlink=False, compute_capability=120)
FAILED = Topology(0.1, 0.1, channels=1, nvlink=False, compute_capability=120)


def belief(topology: Topology = HEALTHY, version: tuple[int, ...] = (2, 28, 9), **env: str) -> Belief:
    return Belief(topology, 8, version, NcclSettings.of(env))


@pytest.mark.parametrize(
    ("message_bytes", "ring", "tree"),
    [
        (14336, (22.7, 50.1, 89.2), (27.8, 42.7, 66.0)),
        (28672, (24.8, 51.3, 90.3), (34.9, 44.8, 68.1)),
        (57344, (29.0, 53.5, 92.4), (49.0, 50.1, 73.1)),
        (71680, (31.1, 54.7, 93.4), (61.9, 54.5, 75.2)),
        (262144, (58.8, 69.8, 107.3), (246.4, 91.5, 111.9)),
        (1048576, (173.5, 132.1, 164.7), (742.6, 244.1, 254.4)),
    ],
)
def test_predicted_times_of_eight_pci_gpus(
    message_bytes: int, ring: tuple[float, ...], tree: tuple[float, ...]
) -> None:
    for algorithm, expected in (("Ring", ring), ("Tree", tree)):
        predicted = [belief().predicted_us(algorithm, protocol, message_bytes) for protocol in PROTOCOLS]
        assert predicted == pytest.approx(expected, abs=0.1)


def test_a_failed_search_turns_the_choice_to_simple() -> None:
    assert belief(HEALTHY).choose(14336) == ("Ring", "LL")
    failed = belief(FAILED)
    assert failed.predicted_us("Ring", "LL", 14336) == pytest.approx(522, abs=0.5)
    assert failed.predicted_us("Ring", "Simple", 14336) == pytest.approx(339, abs=0.5)
    assert failed.predicted_us("Tree", "Simple", 14336) == pytest.approx(454, abs=0.5)
    assert failed.choose(14336) == ("Ring", "Simple")
    assert machine("pcie8-failed-search").belief(NcclSettings.of({})).choose(14336) == ("Ring", "Simple")


def test_ll128_is_off_on_pci_unless_it_is_named() -> None:
    assert ("Ring", "LL128") not in belief().enabled("AllReduce")
    assert belief(NCCL_PROTO="LL128").choose(14336) == ("Tree", "LL128")
    nvlink = Topology(20.0, 20.0, channels=8, nvlink=True, compute_capability=90)
    assert ("Ring", "LL128") in belief(nvlink).enabled("AllReduce")


@pytest.mark.parametrize(
    ("algorithm", "protocol", "version", "channels"),
    [  # most channels at 14,336 and 71,680 bytes
        ("Ring", "LL", (2, 28, 9), (1, 2)),
        ("Ring", "Simple", (2, 28, 9), (1, 2)),
        ("Ring", "LL128", (2, 28, 9), (2, 9)),
        ("Tree", "LL128", (2, 28, 9), (2, 9)),
        ("Ring", "LL128", (2, 29, 2), (1, 5)),
        ("Tree", "LL128", (2, 30, 7), (1, 5)),
        ("Tree", "Simple", (2, 30, 7), (1, 2)),
        # 3 and 17 by the first limit alone; the second hands out whole cells: 35 cells of 2048 bytes, 3 to a channel
        ("Tree", "LL", (2, 28, 9), (3, 12)),
    ],
)
def test_channels_that_a_message_can_fill(
    algorithm: str, protocol: str, version: tuple[int, ...], channels: tuple[int, int]
) -> None:
    many = belief(version=version, NCCL_MIN_NCHANNELS="64")
    assert tuple(many.launch_of(algorithm, protocol, size).channels for size in (14336, 71680)) == channels


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
@pytest.mark.parametrize("message_bytes", [2, 4096, 14336, 71680, 1 << 20, 64 << 20])
def test_the_channels_share_the_whole_message(algorithm: str, protocol: str, message_bytes: int) -> None:
    for asked in ("1", "2", "3", "16", "64"):
        launch = belief(NCCL_MIN_NCHANNELS=asked, NCCL_MAX_NCHANNELS=asked).launch_of(
            algorithm, protocol, message_bytes
        )
        assert 1 <= launch.channels <= int(asked)
        assert launch.busiest_bytes <= message_bytes <= launch.busiest_bytes * launch.channels
        assert launch.threads % 32 == 0
        assert 96 <= launch.threads <= 640


def test_shares_are_uneven_where_channels_run_short() -> None:
    # 7 cells of 2048 bytes, one to a channel, on 4 channels: 1, 2, 2 and 2
    launch = Belief(machine("h200x2-shm").topology, 2, (2, 28, 9), NcclSettings.of({"NCCL_NTHREADS": "128"}))
    assert launch.launch_of("Ring", "LL", 14336).busiest_bytes == 4096
    # 224 cells, 14 to a channel by the rule: the first gets 14, the others 70 each
    assert launch.launch_of("Ring", "LL", 458752).channels == 4


def test_tree_launches_640_threads_whatever_is_asked() -> None:
    assert belief(NCCL_NTHREADS="64").launch_of("Tree", "LL", 14336).threads == 640
    assert belief(NCCL_NTHREADS="64").launch_of("Ring", "LL", 1 << 20).threads == 96
    assert belief(NCCL_NTHREADS="100").launch_of("Ring", "LL", 1 << 20).threads == 512, "no multiple of 32: the maximum"


@pytest.mark.parametrize(
    ("env", "channels"),
    [
        ({}, 2),
        ({"NCCL_MAX_NCHANNELS": "1"}, 1),
        ({"NCCL_MIN_NCHANNELS": "8"}, 8),
        ({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "1"}, 8),  # min wins
        ({"NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "4"}, 4),  # max wins
        ({"NCCL_MIN_CTAS": "-1"}, 2),
        ({"NCCL_MAX_NCHANNELS": "garbage"}, 1),  # 0, and that is raised to 1
        ({"NCCL_MIN_NCHANNELS": "1000"}, 64),
        ({"NCCL_MIN_NCHANNELS": "0x10"}, 16),
        ({"NCCL_MIN_NCHANEL": "8"}, 2),  # no such name
    ],
)
def test_channels_of_the_communicator(env: dict[str, str], channels: int) -> None:
    assert Belief(HEALTHY, 8, (2, 28, 9), NcclSettings.of(env)).channels == channels


@pytest.mark.parametrize(
    ("text", "value"),
    [("4M", 4), ("garbage", 0), ("", 0), (" 12", 12), ("-3x", -3), ("0x1F", 31), ("010", 8), ("08", 0), ("1e3", 1)],
)
def test_numbers_are_read_as_c_reads_them(text: str, value: int) -> None:
    assert strtoll(text) == value


def test_numbers_that_overflow_are_ignored() -> None:
    assert strtoll("9" * 30) is None
    assert strtoll("9" * 100_000) is None
    assert belief(NCCL_BUFFSIZE="9" * 30).settings.buffer_bytes["Simple"] == 4 << 20


@pytest.mark.parametrize(
    ("env", "level"),
    [
        ({}, "PXB"),
        ({"NCCL_P2P_LEVEL": "SYS"}, "SYS"),
        ({"NCCL_P2P_LEVEL": "sys"}, "PXB"),
        ({"NCCL_P2P_LEVEL": "4"}, "SYS"),
        ({"NCCL_P2P_LEVEL": "99"}, "SYS"),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, "LOC"),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "2"}, "SYS"),
    ],
)
def test_p2p_level(env: dict[str, str], level: str) -> None:
    assert NcclSettings.of(env).p2p_level == level


def test_lists_by_function() -> None:
    enabled = enabled_by("ring;AllReduce:tree,ring", ("Tree", "Ring"))
    assert enabled["AllGather"] == {"Tree": False, "Ring": True}
    assert enabled["AllReduce"] == {"Tree": True, "Ring": True}
    assert enabled_by("^ring", ("Tree", "Ring"))["Reduce"] == {"Tree": True, "Ring": False}
    assert enabled_by("", ("Tree", "Ring")) == {}


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("Trea", 'Unrecognized element token "Trea" when parsing "Trea"'),
        ("gather:ring", 'Unrecognized prefix token "gather" when parsing "gather:ring"'),
        ("allreduce:tree;ring", 'All entries except the first must have a prefix: "allreduce:tree;ring"'),
    ],
)
def test_malformed_lists_are_refused(text: str, warning: str) -> None:
    with pytest.raises(NcclRefuses) as caught:
        NcclSettings.of({"NCCL_ALGO": text})
    assert str(caught.value) == warning


@pytest.mark.parametrize(
    ("env", "small", "large"),
    [  # what the measured buffers and threads took effect on tells what was picked: 57,344 and 458,752 bytes
        ({}, ("Ring", "LL"), ("Ring", "Simple")),
        ({"NCCL_ALGO": "allreduce:tree"}, ("Tree", "LL"), ("Tree", "Simple")),
        ({"NCCL_PROTO": "Simple"}, ("Tree", "Simple"), ("Ring", "Simple")),
    ],
)
def test_choices_seen_on_two_h200_through_host_memory(
    env: dict[str, str], small: tuple[str, str], large: tuple[str, str]
) -> None:
    here = machine("h200x2-shm").belief(NcclSettings.of(env))
    assert here.choose(57344) == small
    assert here.choose(458752) == large
