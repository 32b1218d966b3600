from __future__ import annotations

import pytest

from autoplan import load_cluster
from autoplan.cluster.load import catalog, resolve_cluster
from autoplan.errors import InputError


def document(**fields):
    base = {"name": "pair", "devices_per_node": 2, "device": "a100-80gb", "intra_node": "nvlink3"}
    return {name: value for name, value in (base | fields).items() if value is not None}


def test_cluster_file_takes_names_of_the_catalog_and_tables(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        """
name = "lab"
nodes = 2
devices_per_node = 8
device = "h100-80gb"
intra_node = "nvlink4"
nics_per_node = 8

[inter_node]
name = "our switch"
alpha_s = 1e-5
bandwidth_bytes_per_s = 40e9

[[measured]]
collective = "all_reduce"
devices = 8
nodes = 1
size_bytes = [1e6, 1e9]
seconds = [1e-4, 5e-3]
"""
    )
    read = load_cluster(file)
    assert read.num_devices == 16
    assert read.device.name == "H100 SXM 80 GB"
    assert read.intra_node.bandwidth_bytes_per_s == 370e9
    assert read.inter_node.alpha_s == 1e-5
    assert read.measured[0].seconds == (1e-4, 5e-3)


@pytest.mark.parametrize("device", catalog("devices"))
def test_every_catalogued_device_is_valid_and_has_a_source(device):
    assert resolve_cluster(document(device=device), "c.toml").device.source


@pytest.mark.parametrize("name", catalog("links"))
def test_every_catalogued_link_is_valid_and_has_a_source(name):
    read = resolve_cluster(document(intra_node=name, inter_node=name, nodes=2), "c.toml")
    assert read.intra_node == read.inter_node
    assert read.intra_node.source


@pytest.mark.parametrize(
    ("field", "name", "meant"),
    [
        ("device", "a100-80", "a100-80gb"),
        ("device", "h10080gb", "h100-80gb"),
        ("intra_node", "nvlink-3", "nvlink3"),
        ("inter_node", "100gb", "100gbe"),
    ],
)
def test_unknown_name_is_one_line_with_the_nearest_known_one(field, name, meant):
    with pytest.raises(InputError) as caught:
        resolve_cluster(document(**{field: name}), "c.toml")
    message = str(caught.value)
    assert message.startswith(f"c.toml: {field}: found {name!r}; allowed: a table, or one of ")
    assert message.endswith(f"(did you mean {meant!r}?)")
    assert "\n" not in message


def test_unknown_name_unlike_any_lists_all_without_a_guess():
    with pytest.raises(InputError) as caught:
        resolve_cluster(document(device="zzz"), "e.toml", "cluster")
    assert str(caught.value).startswith("e.toml: cluster.device: found 'zzz'")
    assert "h200-141gb" in str(caught.value)
    assert "did you mean" not in str(caught.value)


LINK = {"name": "x", "alpha_s": 0.0, "bandwidth_bytes_per_s": 1.0}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"nodes": 2}, "inter_node"),
        ({"nodes": 0}, "nodes"),
        ({"devices_per_node": 0}, "devices_per_node"),
        ({"devices_per_node": None}, "devices_per_node"),
        ({"nics_per_node": 0}, "nics_per_node"),
        ({"nodes": True}, "nodes"),
        ({"device": 3}, "device"),
        ({"device": {"name": "x"}}, "device.memory_bytes"),
        ({"device": {"name": "x", "memory_bytes": 0}}, "device.memory_bytes"),
        ({"intra_node": LINK | {"alpha_s": -1}}, "intra_node.alpha_s"),
        ({"intra_node": LINK | {"alpha_s": float("nan")}}, "intra_node.alpha_s"),
        ({"intra_node": LINK | {"beta": 1}}, "intra_node.beta"),
        (
            {"inter_node": LINK | {"bandwidth_bytes_per_s": 0}},
            "inter_node.bandwidth_bytes_per_s",
        ),
        ({"all_reduce": "butterfly"}, "all_reduce"),
        ({"measured": [{"collective": "broadcast"}]}, "measured[0].collective"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_cluster_that_makes_no_sense_is_refused_by_the_name_of_its_field(fields, field):
    with pytest.raises(InputError) as caught:
        resolve_cluster(document(**fields), "c.toml")
    assert str(caught.value).startswith(f"c.toml: {field}: found ")
