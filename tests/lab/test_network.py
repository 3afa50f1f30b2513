import shutil
from pathlib import Path

import pytest

from thinwire_lab.lab import LabError, LabSpec, network


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_every_link_is_shaped_at_both_ends() -> None:
    spec = LabSpec(hosts=3, links="1gbit,100mbit,2.5gbit")
    shaped = [(pid, c) for pid, c in network.wiring(spec, 7, [10, 11, 12]) if "tbf" in c]
    assert [(pid, option(c, "dev"), option(c, "rate")) for pid, c in shaped] == [
        (10, "thin0", "1000000000bit"),
        (7, "p0", "1000000000bit"),
        (11, "thin0", "100000000bit"),
        (7, "p1", "100000000bit"),
        (12, "thin0", "2500000000bit"),
        (7, "p2", "2500000000bit"),
    ]


def test_a_link_without_a_rate_is_not_shaped() -> None:
    commands = [c for _, c in network.wiring(LabSpec(hosts=2, links="none,1gbit"), 7, [10, 11]) if c[0] == "tc"]
    assert {option(c, "dev") for c in commands} == {"thin0", "p1"}
    assert len(commands) == 2


def test_no_command_runs_in_the_machines_own_network() -> None:
    assert {pid for pid, _ in network.wiring(LabSpec(hosts=2, links="1gbit"), 7, [10, 11])} == {7, 10, 11}


def test_a_packet_is_delayed_once_on_its_way() -> None:
    commands = network.wiring(LabSpec(hosts=2, links="1gbit", latency="5ms"), 7, [10, 11])
    delays = [(pid, option(c, "dev"), option(c, "delay")) for pid, c in commands if "netem" in c]
    assert delays == [(10, "thin0", "5000us"), (11, "thin0", "5000us")]


def test_the_delay_queue_holds_what_a_full_link_brings_in() -> None:
    (_, netem) = network.shape_commands("thin0", 10**9, 0.1)
    assert int(option(netem, "limit")) * 1500 * 8 >= 10**9 * 0.1


def test_the_bucket_is_a_millisecond_or_a_few_packets() -> None:
    assert network.burst_bytes(10**9) == 125_000
    assert network.burst_bytes(10**6) >= 4 * 1514


def test_runs_of_packets_fit_the_bucket() -> None:
    commands = network.wiring(LabSpec(hosts=2, links="100mbit,none"), 7, [10, 11])
    sizes = [(pid, int(option(c, "gso_max_size"))) for pid, c in commands if "gso_max_size" in c]
    assert [pid for pid, _ in sizes] == [7, 10]  # an unshaped link takes what comes
    assert all(size + size // 1448 * 66 < network.burst_bytes(10**8) for _, size in sizes)
    assert network.segment_bytes(10**11) <= 65536


def test_host_names_lead_to_the_shaped_link() -> None:
    lines = network.hosts_table(3).splitlines()
    assert "10.77.0.3 host2" in lines
    assert "127.0.0.1 localhost" in lines
    assert len({network.host_address(host) for host in range(200)} | {network.switch_address()}) == 201


def test_a_missing_tool_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def which(tool: str, path: str) -> str | None:
        return None if tool == "tc" else "/bin/true"

    monkeypatch.setattr(shutil, "which", which)
    with pytest.raises(LabError, match="apt install iproute2"):
        network.require_tools()


def test_a_kernel_without_netem_is_explained() -> None:
    error = network.explain_failed_command(["tc", "qdisc", "netem"], "Error: Specified qdisc kind is unknown.")
    assert "sch_netem" in str(error)
    assert "--latency" in str(error)


def test_other_failures_show_the_command_and_its_words() -> None:
    assert "`ip link add` failed: no way" in str(network.explain_failed_command(["ip", "link", "add"], "no way\n"))


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "apparmor_restrict_unprivileged_userns=0"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces="),
        ("nothing", "0", "run it as root"),
    ],
)
def test_refused_namespaces_come_with_the_setting_to_change(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str, remedy: str
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == f"/proc/sys/{setting}")
    monkeypatch.setattr(Path, "read_text", lambda path: value + "\n")
    message = str(network.explain_refused_namespaces("unshare failed"))
    assert remedy in message
    assert "--link none" in message
